// What every part uses: the page's data, elements, numbers as people read them.

const byId = (id) => document.getElementById(id);
const report = JSON.parse(byId("report-data").textContent);
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

const make = (tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};

const SVG = "http://www.w3.org/2000/svg";
const makeSvg = (tag, attributes, text) => {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, String(value));
  if (text !== undefined) node.textContent = text;
  return node;
};
const percentOf = (share) => `${(Math.max(0, share) * 100).toFixed(3)}%`;

const makeButton = (className, text, action) => {
  const button = make("button", className, text);
  button.type = "button";
  button.addEventListener("click", action);
  return button;
};

// Text of the page's data goes where an element asks for it.
const fillTexts = () => {
  for (const node of document.querySelectorAll("[data-text]")) {
    const value = node.dataset.text.split(".").reduce((at, key) => at[key], report);
    node.textContent = String(value);
  }
  document.title = `${report.texts.title} · torchtraceap`;
};

const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
const minus = (text) => text.replace("-", "−");
// Three digits, as units.py does.
const formatTime = (ns) => {
  const size = Math.abs(ns);
  const [scale, unit] = UNITS.find(([limit]) => size / limit >= 0.9995) || UNITS[3];
  if (scale === 1) return minus(`${Math.round(ns)} ns`);
  const value = size / scale;
  return minus(`${(ns / scale).toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ${unit}`);
};
const formatDelta = (ns) => (ns > 0 ? `+${formatTime(ns)}` : formatTime(ns));
const tickLabel = (ns, step) => {
  if (ns === 0) return "0";
  const [scale, unit] = UNITS.find(([limit]) => Math.abs(ns) >= limit) || UNITS[3];
  const decimals = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9)));
  return `${(ns / scale).toFixed(decimals).replace("-", "−")} ${unit}`;
};
const formatCount = (value) => value.toLocaleString("en-US");
// Two leading digits and never rounded up to 100 %, as words.py does.
const formatPercent = (share) => {
  const percent = share * 100;
  if (percent > 0 && percent < 0.1) return "< 0.1 %";
  if (Math.abs(percent) < 9.95) return minus(`${percent.toFixed(1)} %`);
  if (percent > 99 && percent < 100) return `${(Math.floor(percent * 10) / 10).toFixed(1)} %`;
  return minus(`${percent.toFixed(0)} %`);
};
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];
const formatBytes = (size) => {
  let value = size, unit = 0;
  while (Math.abs(value) >= 1024 && unit < BYTES.length - 1) { value /= 1024; unit += 1; }
  return minus(unit ? `${value.toFixed(2)} ${BYTES[unit]}` : `${value.toFixed(0)} B`);
};
const formatNumber = (value) => {
  if (Number.isInteger(value) && Math.abs(value) < 1e12) return minus(formatCount(value));
  const size = Math.abs(value);
  return minus(size >= 1e6 || size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4))));
};
const formatAs = (unit, value) => {
  switch (unit) {
    case "ns": case "at": return formatTime(value);
    case "delta": return formatDelta(value);
    case "share": return formatPercent(value);
    case "bytes": return formatBytes(value);
    case "rate": return `${formatNumber(Number(value.toPrecision(3)))} GB/s`;
    default: return typeof value === "boolean" ? (value ? "yes" : "no") : formatNumber(value);
  }
};
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
// First index of an ascending array whose value is above the bound.
const upperBound = (array, bound) => {
  let low = 0, high = array.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (array[middle] <= bound) low = middle + 1; else high = middle;
  }
  return low;
};
