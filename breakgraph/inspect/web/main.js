// The page, once.

function showHead() {
  const segments = steps.filter(({ kind }) => kind === "segment");
  const nodes = segments.reduce((sum, { nodes: all }) => sum + all.length, 0);
  byId("name").textContent = graph.name ?? "A captured graph";
  byId("facts").textContent = steps.length
    ? `${count(segments.length, "segment")}, ${count(steps.length - segments.length, "break")}, ${count(nodes, "node")}, ${count(graph.replays, "replay")}; driver ${graph.driver}, ${graph.device}`
    : `It holds no capture: ${graph.state}.`;
}

showHead();
showTimeline();
showKernels();
showMemory();
listenToKeys();
if (steps.length) openStep(0);
else byId("step").replaceChildren(make("h2", { id: "step-title" }, "Step"), make("p", {}, "There are none."));
