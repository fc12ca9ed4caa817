// Finding nodes and breaks by name: the matches are listed, and marked in the timeline and in the node graph.

const LISTED = 200;
let query = "";

function matches() {
  return steps.flatMap((step, at) => {
    if (step.kind === "break") return matchesQuery(step.name) ? [{ at, place: null, text: nameOf(step) }] : [];
    return step.nodes.flatMap((node, place) =>
      (matchesQuery(node.name) ? [{ at, place, text: `${nameOf(step)}, node ${place}: ${node.name}` }] : []));
  });
}

function openMatch({ at, place }) {
  openStep(at, { focus: true });
  if (place !== null) byId("step").querySelectorAll("g.node")[place]?.focus();
}

function search(text) {
  byId("query").value = text;
  query = text.trim().toLowerCase();
  const found = matches();
  const where = new Set(found.map(({ at }) => at));
  stepButtons.forEach((button, at) => button.classList.toggle("match", where.has(at)));
  byId("found").textContent = query === "" ? "" : `${count(found.length, "match")} in ${count(where.size, "step")}`;
  byId("matches").hidden = found.length === 0;
  byId("matches").replaceChildren(...found.slice(0, LISTED).map((match) =>
    make("li", {}, make("button", { type: "button", onclick: () => openMatch(match) }, match.text))));
  if (steps.length) showStep(steps[currentStep]);
}

function listenToKeys() {
  byId("query").addEventListener("input", (event) => search(event.target.value));
  byId("query").addEventListener("keydown", (event) => {
    if (event.key === "Enter") byId("matches").querySelector("button")?.click();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && event.target !== byId("query")) {
      event.preventDefault();
      byId("query").focus();
    } else if (event.key === "Escape") {
      if (event.target === byId("query")) search("");
      stepButtons[currentStep]?.focus();
    }
  });
}
