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

const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
const digits = (value) => (value >= 100 ? 0 : value >= 10 ? 1 : 2);
const formatTime = (ns) => {
  const size = Math.abs(ns);
  const [scale, unit] = UNITS.find(([limit]) => size >= limit) || UNITS[3];
  const value = size / scale;
  return `${ns < 0 ? "−" : ""}${scale === 1 ? Math.round(value) : value.toFixed(digits(value))} ${unit}`;
};
const tickLabel = (ns, step) => {
  if (ns === 0) return "0";
  const [scale, unit] = UNITS.find(([limit]) => Math.abs(ns) >= limit) || UNITS[3];
  const decimals = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9)));
  return `${(ns / scale).toFixed(decimals).replace("-", "−")} ${unit}`;
};
const formatCount = (value) => value.toLocaleString("en-US");
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
