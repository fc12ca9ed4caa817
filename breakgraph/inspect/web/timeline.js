// The steps in order, as wide as they took.

const steps = graph.steps;
const measured = steps.length > 0 && steps.every((step) => step.times !== null);
const total = measured ? steps.reduce((sum, { times }) => sum + times.gap_us + times.gpu_us, 0) : 0;

const nameOf = (step) => (step.kind === "segment" ? `segment ${step.index}` : `break ${step.index} ${step.name}`);

function labelOf(step) {
  const what = step.kind === "segment" ? count(step.nodes.length, "node") : step.tag ? `tag ${step.tag}` : "";
  const time = step.times ? `${microseconds(step.times.gpu_us)} on the GPU` : "";
  return [nameOf(step), what, time].filter(Boolean).join(", ");
}

const stepButtons = steps.map((step, at) => make("button", {
  type: "button",
  class: step.kind,
  style: measured ? `flex-grow: ${step.times.gpu_us}` : null,
  "aria-pressed": "false",
  "aria-label": labelOf(step),
  title: labelOf(step),
  onclick: (event) => openStep(at, { focus: event.detail === 0 }), // 0: a key, not a pointer
}, make("span", {}, `${step.kind[0]}${step.index}`)));

let currentStep = 0;
let focusableStep = () => {};

function stepTable() {
  const heads = ["step", "what", "nodes", ...(measured ? ["gap µs", "GPU µs", "CPU µs"] : [])];
  const rows = steps.map((step, at) => [at, nameOf(step), step.kind === "segment" ? step.nodes.length : "",
    ...(measured ? [step.times.gap_us, step.times.gpu_us, step.times.cpu_us].map((us) => +us.toPrecision(4)) : [])]);
  return make("div", { class: "scroll", tabindex: 0 }, table("The steps of the forward", heads, rows));
}

function showTimeline() {
  byId("scale").textContent = measured
    ? `One replay: ${microseconds(total)} on the GPU. Widths are measured times; dotted lines are gaps in which the GPU waited.`
    : "No times were measured: all steps are drawn equally wide.";
  for (const [at, step] of steps.entries()) {
    if (measured && step.times.gap_us > 0) {
      byId("timeline").append(make("span", { class: "gap", style: `flex: ${step.times.gap_us} 0 0` }));
    }
    byId("timeline").append(stepButtons[at]);
  }
  focusableStep = roving(stepButtons);
  byId("timeline").after(folded("Steps as a table", stepTable));
}

function openStep(at, { focus = false } = {}) {
  stepButtons[currentStep].setAttribute("aria-pressed", "false");
  currentStep = at;
  stepButtons[at].setAttribute("aria-pressed", "true");
  focusableStep(at);
  showStep(steps[at]);
  if (focus) byId("step-title").focus();
}
