// Making elements, and writing sizes and times. Text goes in as text: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";
const graph = JSON.parse(document.getElementById("graph").textContent);
const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const count = (number, what) => `${number} ${what}${number === 1 ? "" : what.endsWith("ch") ? "es" : "s"}`;

function bytes(size) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (size < 1024) return `${+size.toPrecision(4)} ${unit}`;
    size /= 1024;
  }
  return `${+size.toPrecision(4)} GiB`;
}

const microseconds = (us) => (us < 1000 ? `${+us.toPrecision(3)} µs` : `${+(us / 1000).toPrecision(3)} ms`);

function shorten(text, width) {
  const head = Math.ceil((width - 1) / 2);
  return text.length <= width ? text : `${text.slice(0, head)}…${text.slice(text.length - (width - 1 - head))}`;
}

function facts(pairs) {
  const kept = pairs.filter(([, value]) => value !== "" && value !== null);
  return make("dl", {}, ...kept.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function table(caption, heads, rows) {
  const numeric = (at) => rows.length > 0 && rows.every((row) => typeof row[at] === "number");
  const cell = (tag, at, value) => make(tag, { class: numeric(at) ? "number" : null, scope: tag === "th" ? "col" : null },
    value instanceof Node ? value : String(value));
  return make("table", {},
    make("caption", { class: "note" }, caption),
    make("thead", {}, make("tr", {}, ...heads.map((head, at) => cell("th", at, head)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((value, at) => cell("td", at, value))))));
}

// A part that is made when it is first opened: most readers never do.
function folded(summary, content) {
  const details = make("details", {}, make("summary", {}, summary));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(content());
  });
  return details;
}
