// What is known of the step that is open.

function timesOf({ times }) {
  if (!times) return [];
  const share = total ? ` (${+((100 * times.gpu_us) / total).toPrecision(3)}% of the replay)` : "";
  return [
    ["GPU time", microseconds(times.gpu_us) + share],
    ["gap before it", microseconds(times.gap_us)],
    ["CPU time", microseconds(times.cpu_us)],
  ];
}

function kindsOf(segment) {
  const counts = {};
  for (const { kind } of segment.nodes) counts[kind] = (counts[kind] ?? 0) + 1;
  return Object.entries(counts).map(([kind, number]) => `${number} ${kind}`).join(", ") || "none";
}

const targetOf = ({ shape, dtype, ptr, bytes: size }) => `${dtype}[${shape.join(", ")}] at ${ptr}, ${bytes(size)}`;

function segmentFacts(segment) {
  const asked = segment.allocations ? ` in ${count(segment.allocations, "block")}` : "";
  return facts([
    ["nodes", kindsOf(segment)],
    ["branches", segment.branches > 1 ? `${segment.branches}${segment.joined ? `, ${segment.joined} joined by the capture` : ""}` : ""],
    ["streams seen", segment.streams.join(", ")],
    ["asked of the arena", bytes(segment.allocated) + asked],
    ["exec", segment.shared_exec ? "shared with other graphs" : ""],
    ...timesOf(segment),
  ]);
}

function breakFacts(step) {
  return facts([
    ["called at", make("code", {}, step.site)],
    ["tag", step.tag],
    ["lands in", `${step.destination} (${step.landing})`],
    ["replay writes", step.targets.map(targetOf).join("; ")],
    ["frozen", step.frozen.map(({ name, value }) => `${name} = ${value}`).join("; ")],
    ...timesOf(step),
  ]);
}

function showStep(step) {
  const title = make("h2", { id: "step-title", tabindex: -1 }, `Step ${steps.indexOf(step)}: ${nameOf(step)}`);
  if (step.kind === "break") {
    byId("step").replaceChildren(title, breakFacts(step));
    return;
  }
  const parts = step.nodes.length ? [...nodeGraph(step), folded("Nodes as a table", () => nodeTable(step))] : [make("p", {}, "It has no work: replay does not launch it.")];
  byId("step").replaceChildren(title, segmentFacts(step), ...parts);
}

function showKernels() {
  const found = new Map();
  for (const step of steps.filter(({ kind }) => kind === "segment")) {
    for (const { name } of step.nodes.filter(({ kind }) => kind === "kernel")) {
      const entry = found.get(name) ?? { times: 0, segments: new Set() };
      entry.times += 1;
      entry.segments.add(step.index);
      found.set(name, entry);
    }
  }
  const rows = [...found].sort(([, one], [, other]) => other.times - one.times).map(([name, { times, segments }]) => [
    make("button", { type: "button", title: name, "aria-label": `Search ${name}`, onclick: () => search(name) }, shorten(name, 60)),
    times,
    segments.size,
  ]);
  byId("kernels").replaceChildren(make("h2", { id: "kernels-title" }, "Kernels"), rows.length
    ? make("div", { class: "scroll", tabindex: 0 },
      table("Nodes by kernel", ["kernel", "nodes", "segments"], rows))
    : make("p", {}, "There are none."));
}
