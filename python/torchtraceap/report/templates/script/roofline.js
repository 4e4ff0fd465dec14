// Operators by intensity and rate, both on a logarithmic scale, below the roofs of the device.

const PLOT = { left: 56, right: 14, top: 14, bottom: 40 };
const powerLabel = (power) => (power >= 0 && power <= 5 ? formatCount(10 ** power) : power < 0 && power >= -3 ? String(Number((10 ** power).toFixed(-power))) : `1e${power}`);

// Decades that hold all values, with a little room.
const decades = (values) => {
  const low = Math.log10(Math.min(...values)), high = Math.log10(Math.max(...values));
  const from = Math.floor((low - 0.15) * 2) / 2, to = Math.ceil((high + 0.15) * 2) / 2;
  return [from, Math.max(to, from + 1)];
};

// What is slower than the fastest by this much would leave no room for the rest.
const SLOWEST = 1e-5;
const drawnPoints = (chart) => {
  const top = Math.max(...chart.points.map((point) => point[2]));
  return chart.points.filter((point) => point[2] >= top * SLOWEST);
};

const rooflineScale = (chart, points, width, height) => {
  const xs = points.map((point) => point[1]), ys = points.map((point) => point[2]);
  if (chart.known) {
    for (const [, rate] of chart.roofs) { xs.push(rate / chart.bandwidth); ys.push(rate); }
  }
  const [x0, x1] = decades(xs), [y0, y1] = decades(ys);
  const across = width - PLOT.left - PLOT.right, down = height - PLOT.top - PLOT.bottom;
  return {
    x0, x1, y0, y1,
    x: (value) => PLOT.left + ((Math.log10(value) - x0) / (x1 - x0)) * across,
    y: (value) => PLOT.top + (1 - (Math.log10(value) - y0) / (y1 - y0)) * down,
    bottom: PLOT.top + down, end: PLOT.left + across,
  };
};

const drawAxes = (svg, scale) => {
  for (let power = Math.ceil(scale.x0); power <= scale.x1; power++) {
    const x = scale.x(10 ** power);
    svg.append(makeSvg("line", { class: "grid", x1: x, x2: x, y1: PLOT.top, y2: scale.bottom }));
    svg.append(makeSvg("text", { class: "tick", x, y: scale.bottom + 16, "text-anchor": "middle" }, powerLabel(power)));
  }
  for (let power = Math.ceil(scale.y0); power <= scale.y1; power++) {
    const y = scale.y(10 ** power);
    svg.append(makeSvg("line", { class: "grid", x1: PLOT.left, x2: scale.end, y1: y, y2: y }));
    svg.append(makeSvg("text", { class: "tick", x: PLOT.left - 7, y: y + 4, "text-anchor": "end" }, powerLabel(power)));
  }
  svg.append(makeSvg("text", { class: "axis", x: scale.end, y: scale.bottom + 34, "text-anchor": "end" }, "FLOP per byte"));
  svg.append(makeSvg("text", { class: "axis", x: 2, y: PLOT.top - 2 }, "TFLOP/s"));
};

const drawRoofs = (svg, scale, chart) => {
  const left = 10 ** scale.x0, top = chart.roofs[0][1];
  const start = Math.max(left, 10 ** scale.y0 / chart.bandwidth);
  svg.append(makeSvg("path", { class: "roof", d: `M${scale.x(start)} ${scale.y(start * chart.bandwidth)}L${scale.x(top / chart.bandwidth)} ${scale.y(top)}` }));
  for (const [, rate] of chart.roofs) {
    const ridge = Math.max(rate / chart.bandwidth, left);
    svg.append(makeSvg("path", { class: "roof", d: `M${scale.x(ridge)} ${scale.y(rate)}H${scale.end}` }));
  }
};

// Above the points; the highest roof comes first, and a label that would lie on another goes below its roof.
const labelRoofs = (svg, scale, chart) => {
  const label = (x, y, text) => svg.append(makeSvg("text", { class: "roof-label", x, y, "text-anchor": "end" }, text));
  let last = -Infinity;
  for (const [name, rate] of chart.roofs) {
    const line = scale.y(rate), free = line - 5 >= last + 14;
    const y = free ? line - 5 : Math.max(last + 14, line + 13);
    label(scale.end - 2, y, `${name} ${formatNumber(rate)} TFLOP/s`);
    last = y;
  }
  const start = Math.max(10 ** scale.x0, 10 ** scale.y0 / chart.bandwidth);
  const middle = Math.sqrt(start * (chart.roofs[0][1] / chart.bandwidth));
  label(scale.x(middle) - 8, scale.y(middle * chart.bandwidth) - 6, `${formatNumber(chart.bandwidth)} TB/s`);
};

const cellOf = (table, name, row) => {
  const column = table.columns.find((entry) => entry.name === name);
  return column ? cellText(column, row) : "";
};

const showPoint = (tooltip, table, [row, intensity, rate], x, y, width) => {
  const list = make("dl"), share = cellOf(table, "roofline_share", row);
  const lines = [
    ["shapes", cellOf(table, "dims", row)], ["rate", `${formatNumber(Number(rate.toPrecision(3)))} TFLOP/s`],
    ["intensity", `${formatNumber(Number(intensity.toPrecision(3)))} FLOP per byte`],
    ["of roofline", share], ["bound by", cellOf(table, "bound", row)],
    ["GPU time", `${cellOf(table, "gpu_ns", row)} (${cellOf(table, "busy_share", row)})`],
    ["warning", cellOf(table, "warning", row)],
  ];
  for (const [term, value] of lines) {
    if (!value || value === "—") continue;
    const pair = make("div");
    pair.append(make("dt", "", term), make("dd", "", value));
    list.append(pair);
  }
  tooltip.replaceChildren(make("strong", "event-name", cellOf(table, "name", row)), list);
  tooltip.hidden = false;
  const left = clamp(x + 14, 0, Math.max(0, width - tooltip.offsetWidth));
  tooltip.style.transform = `translate(${Math.round(left)}px, ${Math.round(y + 14)}px)`;
};

const drawPoints = (svg, scale, points, table, tooltip, width) => {
  const most = Math.max(...points.map((point) => point[3]), 1e-9);
  for (const point of points) {
    const bound = cellOf(table, "bound", point[0]);
    const x = scale.x(point[1]), y = scale.y(point[2]);
    const circle = makeSvg("circle", { class: `point ${bound === "memory" ? "by-memory" : bound === "compute" ? "by-compute" : ""}`, cx: x, cy: y, r: 3 + 13 * Math.sqrt(point[3] / most) });
    circle.addEventListener("pointerenter", () => showPoint(tooltip, table, point, x, y, width));
    circle.addEventListener("pointerleave", () => { tooltip.hidden = true; });
    svg.append(circle);
  }
};

CHARTS.roofline = (chart, table) => {
  const box = make("div", "roofline"), tooltip = make("div", "tooltip");
  tooltip.hidden = true;
  const points = drawnPoints(chart), slower = chart.points.length - points.length;
  const paint = () => {
    const width = box.clientWidth;
    if (!width) return;
    const height = clamp(width * 0.5, 280, 460);
    const svg = makeSvg("svg", { width, height, role: "img", "aria-label": "Rate of each operator over its intensity; the table below has the numbers" });
    const scale = rooflineScale(chart, points, width, height);
    drawAxes(svg, scale);
    if (chart.known) drawRoofs(svg, scale, chart);
    drawPoints(svg, scale, points, table, tooltip, width);
    if (chart.known) labelRoofs(svg, scale, chart);
    box.replaceChildren(svg, tooltip);
  };
  let drawn = 0;
  new ResizeObserver(() => { if (box.clientWidth !== drawn) { drawn = box.clientWidth; paint(); } }).observe(box);
  const legend = legendOf([["by-compute", "bound by compute"], ["by-memory", "bound by memory"]]);
  legend.append(make("span", "key", "area: GPU time"));
  const known = chart.known ? `The roofs are those of ${chart.device}.`
    : `No roofs: the peak rates of ${chart.device || "this device"} are not in the device database (--device names one).`;
  const left = slower ? ` ${formatCount(slower)} far slower point${slower > 1 ? "s are" : " is"} left out.` : "";
  return [box, legend, make("p", "note", known + left)];
};
