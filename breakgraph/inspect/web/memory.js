// Who lives where in the arena, from when to when. Steps go to the right, addresses down; holes are left out.

const MAP = { width: 1400, height: 320, left: 90, top: 8, bottom: 26, hole: 8 };
const blocks = graph.memory.blocks;

const stepName = (at) => (at < steps.length ? `step ${at}, ${nameOf(steps[at])}` : "the end");

function lifeOf(block) {
  const until = block.freed_in === null ? "outlives the capture" : `until ${stepName(block.freed_in)}`;
  return [`${bytes(block.bytes)} at ${block.ptr}`, `from ${stepName(block.made_in)}`, until, block.holds].filter(Boolean).join("; ");
}

// Ranges of offsets that are used at all, each with the place at which it is drawn.
function ranges() {
  const merged = [];
  for (const [offset, size] of blocks.flatMap(({ spans }) => spans).sort(([one], [other]) => one - other)) {
    const last = merged.at(-1);
    if (last && offset <= last.end) last.end = Math.max(last.end, offset + size);
    else merged.push({ start: offset, end: offset + size });
  }
  const used = merged.reduce((sum, { start, end }) => sum + end - start, 0);
  const height = MAP.height - MAP.top - MAP.bottom - MAP.hole * Math.max(merged.length - 1, 0);
  let top = MAP.top;
  for (const range of merged) {
    range.top = top;
    range.scale = Math.max(height, 1) / used;
    top += (range.end - range.start) * range.scale + MAP.hole;
  }
  return merged;
}

function axes(found, x) {
  const each = Math.ceil(steps.length / 30);
  const floor = MAP.height - MAP.bottom;
  const bands = steps.map((step, at) => (step.kind === "break"
    ? draw("rect", { class: "band", x: x(at), y: MAP.top, width: x(at + 1) - x(at), height: floor - MAP.top }) : null));
  const names = steps.map((step, at) => (at % each ? null
    : draw("text", { class: "small", x: (x(at) + x(at + 1)) / 2, y: MAP.height - 8, "text-anchor": "middle" }, `${step.kind[0]}${step.index}`)));
  const { end } = found.at(-1);
  const marks = [...found.slice(0, 12).map(({ start, top }) => [start, top + 10]), [end, floor]];
  const offsets = marks.map(([offset, y]) =>
    draw("text", { class: "small", x: MAP.left - 8, y, "text-anchor": "end" }, `+${bytes(offset)}`));
  return draw("g", { "aria-hidden": "true" }, ...bands, ...names, ...offsets);
}

function memoryMap(detail) {
  const found = ranges();
  const x = (moment) => MAP.left + ((MAP.width - MAP.left) * moment) / steps.length;
  const groups = blocks.map((block) => {
    const [start, end] = [x(block.start), x(block.end ?? steps.length)];
    const label = lifeOf(block);
    const rects = block.spans.map(([offset, size]) => {
      const range = found.find((one) => one.start <= offset && offset < one.end);
      const y = range.top + (offset - range.start) * range.scale;
      return draw("rect", { x: start, y, width: Math.max(end - start, 2), height: Math.max(size * range.scale, 2) });
    });
    const group = draw("g", { class: `block${block.holds ? " result" : ""}` }, ...rects);
    const tell = () => { detail.textContent = label; };
    group.addEventListener("focus", tell);
    group.addEventListener("mouseenter", tell);
    return pressable(group, label, (event) => openStep(block.made_in, { focus: event.type === "keydown" }));
  });
  roving(groups);
  return draw("svg", { role: "group", "aria-label": "Blocks of the arena over the steps", viewBox: `0 0 ${MAP.width} ${MAP.height}`, width: "100%" },
    axes(found, x), ...groups);
}

function memoryTable() {
  const rows = blocks.map((block) => [block.ptr, block.bytes, stepName(block.made_in),
    block.freed_in === null ? "outlives the capture" : stepName(block.freed_in), block.holds]);
  return make("div", { class: "scroll", tabindex: 0 }, table("Blocks of the arena", ["address", "bytes", "made in", "freed in", "holds"], rows));
}

function showMemory() {
  const { footprint, live, outputs, execs } = graph.memory;
  const title = make("h2", { id: "memory-title" }, "Arena memory");
  const account = facts([["of the arena", `${bytes(footprint)}, of which ${bytes(live)} are live now`], ["outputs", bytes(outputs)], ["execs", execs === null ? "not measured" : bytes(execs)]]);
  if (!blocks.length) {
    byId("memory").replaceChildren(title, account, make("p", {}, "The capture asked the arena for nothing."));
    return;
  }
  const detail = make("p", { class: "detail note", "aria-hidden": "true" }, "Point at a block, or move to it with the arrow keys; Enter opens the step that made it.");
  byId("memory").replaceChildren(title, account, memoryMap(detail),
    make("p", { class: "legend" }, make("span", { class: "key segment" }), " made in a segment ", make("span", { class: "key break" }), " result of a break"),
    detail, folded("Blocks as a table", memoryTable));
}
