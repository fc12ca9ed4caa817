// The node graph of a segment: layers from top to bottom, branches side by side. The layout comes with the data.

const BOX = { width: 232, height: 36, x: 250, y: 58, margin: 12 };
const DRAWN = 2000; // nodes; the table has them all

function extent(three, what) {
  const [x, y, z] = three;
  const shape = z > 1 ? `${x}×${y}×${z}` : y > 1 ? `${x}×${y}` : `${x}`;
  return `${shape} ${what}${shape === "1" ? "" : "s"}`;
}

function launchOf(node) {
  if (node.grid) return `${extent(node.grid, "block")} of ${extent(node.block, "thread")}`;
  return node.bytes === null ? "" : bytes(node.bytes);
}

const matchesQuery = (name) => query !== "" && name.toLowerCase().includes(query);

function nodeLabel(node, at, before) {
  const after = before.length ? `after ${before.map((one) => `node ${one}`).join(", ")}` : "first";
  const shared = node.shared_bytes ? `${bytes(node.shared_bytes)} of shared memory` : "";
  return [`node ${at}: ${node.kind === "kernel" ? "kernel " : ""}${node.name}`, launchOf(node), shared, after].filter(Boolean).join(", ");
}

function nodeGraph(segment) {
  const shown = segment.nodes.slice(0, DRAWN);
  const before = segment.nodes.map(() => []);
  for (const [tail, head] of segment.edges) before[head].push(tail);
  const place = (node) => [BOX.margin + node.lane * BOX.x, BOX.margin + node.layer * BOX.y];
  const detail = make("p", { class: "detail note", "aria-hidden": "true" }, "Point at a node, or move to it with the arrow keys.");
  const groups = shown.map((node, at) => {
    const [x, y] = place(node);
    const label = nodeLabel(node, at, before[at]);
    const group = draw("g", { class: `node ${node.kind}${matchesQuery(node.name) ? " match" : ""}`, transform: `translate(${x} ${y})` },
      draw("rect", { width: BOX.width, height: BOX.height, rx: 5 }),
      draw("text", { x: 8, y: 15, class: "name" }, shorten(node.name, 30)),
      draw("text", { x: 8, y: 29, class: "small" }, shorten(launchOf(node), 36)));
    const tell = () => { detail.textContent = label; };
    group.addEventListener("focus", tell);
    group.addEventListener("mouseenter", tell);
    return pressable(group, label, tell);
  });
  roving(groups);
  const edges = segment.edges.filter(([tail, head]) => Math.max(tail, head) < shown.length).map(([tail, head]) => {
    const [[x, y], [u, v]] = [place(shown[tail]), place(shown[head])];
    const [top, low] = [y + BOX.height, v];
    const middle = BOX.width / 2;
    return draw("path", { class: "edge", d: `M${x + middle} ${top}C${x + middle} ${top + 20} ${u + middle} ${low - 20} ${u + middle} ${low}` });
  });
  const reach = (key, each) => 2 * BOX.margin + each * (1 + Math.max(...shown.map((node) => node[key])));
  const picture = draw("svg", { role: "group", "aria-label": `Nodes of ${nameOf(segment)}`, width: reach("lane", BOX.x), height: reach("layer", BOX.y) },
    ...edges, ...groups);
  const cut = shown.length < segment.nodes.length ? make("p", { class: "note" }, `The first ${shown.length} nodes are drawn.`) : null;
  return [make("div", { class: "scroll" }, picture), detail, ...(cut ? [cut] : [])];
}

function nodeTable(segment) {
  const before = segment.nodes.map(() => []);
  for (const [tail, head] of segment.edges) before[head].push(tail);
  const rows = segment.nodes.map((node, at) => [at, node.kind, node.name, launchOf(node), before[at].join(", ")]);
  return make("div", { class: "scroll", tabindex: 0 }, table(`Nodes of ${nameOf(segment)}`, ["node", "kind", "name", "size", "after"], rows));
}
