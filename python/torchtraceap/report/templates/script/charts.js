// Small charts: rows of text with bars, maps of cells, the strip of steps. Colours are classes.

const legendOf = (entries) => {
  const legend = make("p", "legend"), seen = new Set();
  for (const [fill, label] of entries) {
    if (seen.has(label)) continue;
    seen.add(label);
    const key = make("span", "key"), swatch = makeSvg("svg", { class: "swatch", "aria-hidden": "true" });
    swatch.append(makeSvg("rect", { class: `fill-${fill}`, width: "100%", height: "100%" }));
    key.append(swatch, label);
    legend.append(key);
  }
  return legend;
};

const barSvg = (className, parts) => {
  const svg = makeSvg("svg", { class: className, "aria-hidden": "true" });
  for (const [fill, from, to, hint] of parts) {
    const part = makeSvg("rect", { class: `fill-${fill}`, x: percentOf(from), width: percentOf(to - from), height: "100%" });
    if (hint) part.append(makeSvg("title", {}, hint));
    svg.append(part);
  }
  return svg;
};

const drawBars = (chart) => {
  const sums = chart.rows.map((row) => row.parts.reduce((sum, part) => sum + part[2], 0));
  const most = Math.max(...sums, Number.MIN_VALUE);
  const list = make("div", "bar-rows");
  for (const row of chart.rows) {
    let at = 0;
    const parts = row.parts.map(([fill, label, value]) => {
      const from = at;
      at += value / most;
      return [fill, from, at, `${label} ${formatAs(chart.unit, value)}`];
    });
    if (row.label) list.append(make("span", "bar-label", row.label));
    const svg = barSvg("bar-line", parts);
    list.append(svg);
    if (row.label) list.append(make("span", "bar-value", formatAs(chart.unit, row.total)));
    else svg.classList.add("whole-row");
  }
  const lone = chart.rows.length === 1;
  const entries = chart.rows.flatMap((row) => row.parts.map(([fill, label, value]) => [fill, lone ? `${label} ${formatAs(chart.unit, value)}` : label]));
  return [list, legendOf(entries)];
};

// A map of cells: the stronger the colour, the larger the value; the number is in each cell.
const drawHeat = (chart) => {
  const most = Math.max(...chart.values.flat().filter((value) => value !== null), Number.MIN_VALUE);
  const table = make("table", "heat"), head = make("tr");
  head.append(make("td", "", chart.corner));
  for (const name of chart.columns) {
    const cell = make("th", "number", name);
    cell.scope = "col";
    head.append(cell);
  }
  const body = make("tbody");
  chart.rows.forEach((name, number) => {
    const row = make("tr"), label = make("th", "", name);
    label.scope = "row";
    row.append(label);
    for (const value of chart.values[number]) {
      const cell = make("td", "number", value === null ? "–" : formatAs(chart.unit, value));
      if (value) cell.style.setProperty("--heat", `${Math.round(6 + 54 * Math.sqrt(value / most))}%`);
      row.append(cell);
    }
    body.append(row);
  });
  const top = make("thead");
  top.append(head);
  table.append(top, body);
  const scroll = make("div", "scroll");
  scroll.append(table);
  return [scroll];
};

const CLASSES = ["compute", "communication", "memcpy"];
const STRIP = 110;
const drawSteps = (chart) => {
  const most = Math.max(...chart.ns), count = chart.ns.length, slot = 100 / count;
  const svg = makeSvg("svg", { class: "step-strip", height: STRIP });
  const width = `${Math.min(slot * 0.86, 8)}%`;
  chart.ns.forEach((ns, number) => {
    const group = makeSvg("g", { class: chart.outlier[number] ? "step outlier" : "step", role: "button", tabindex: 0 });
    const left = `${slot * number + Math.max(0, slot * 0.86 - 8) / 2}%`;
    const tall = (value) => (value / most) * (STRIP - 8);
    const text = `${chart.names[number]}: ${formatTime(ns)}${chart.outlier[number] ? ", unusual" : ""}`;
    group.setAttribute("aria-label", text);
    group.append(makeSvg("title", {}, text));
    group.append(makeSvg("rect", { class: "step-idle", x: left, width, y: STRIP - tall(ns), height: tall(ns) }));
    let y = STRIP;
    for (const name of CLASSES) {
      const height = tall(chart[name][number]);
      y -= height;
      group.append(makeSvg("rect", { class: `fill-${name}`, x: left, width, y, height }));
    }
    group.append(makeSvg("rect", { class: "step-frame", x: left, width, y: STRIP - tall(ns), height: tall(ns) }));
    const show = () => {
      scrollToTimeline();
      moveTo(chart.at[number] + state.origin, chart.at[number] + state.origin + ns);
    };
    group.addEventListener("click", show);
    group.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); show(); } });
    svg.append(group);
  });
  if (chart.median) {
    const y = STRIP - (chart.median / most) * (STRIP - 8);
    svg.append(makeSvg("line", { class: "step-median", x1: 0, x2: "100%", y1: y, y2: y }));
  }
  const parts = [svg, legendOf(chart.legend)];
  if (chart.median) parts[1].append(make("span", "key", `line: median ${formatTime(chart.median)}`));
  if (chart.left) parts.push(make("p", "note", `The first ${formatCount(count)} of ${formatCount(count + chart.left)} steps.`));
  return parts;
};

// Iterations of a serving engine by phase; a click shows the bubble in front of one and its layers.
const drawIterations = (chart) => {
  const most = Math.max(...chart.ns, 1), count = chart.ns.length, slot = 100 / count;
  const svg = makeSvg("svg", { class: "step-strip", height: STRIP });
  const width = `${Math.min(slot * 0.86, 8)}%`, detail = make("div", "iteration-detail");
  const groups = [];
  const show = (number) => {
    groups.forEach((group, other) => group.classList.toggle("chosen", other === number));
    detail.replaceChildren(...iterationDetail(chart, number));
  };
  chart.ns.forEach((ns, number) => {
    const group = makeSvg("g", { class: "step iteration", role: "button", tabindex: 0 });
    const left = `${slot * number + Math.max(0, slot * 0.86 - 8) / 2}%`;
    const height = Math.max(1, (ns / most) * (STRIP - 8));
    const text = iterationTitle(chart, number);
    group.setAttribute("aria-label", text);
    group.append(makeSvg("title", {}, text));
    group.append(makeSvg("rect", { class: `fill-${chart.fill[number]}`, x: left, width, y: STRIP - height, height }));
    group.append(makeSvg("rect", { class: "step-frame", x: left, width, y: STRIP - height, height }));
    group.addEventListener("click", () => show(number));
    group.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); show(number); } });
    groups.push(group);
    svg.append(group);
  });
  const parts = [];
  if (chart.token) parts.push(make("p", "chart-title", `${chart.token.title}: ${formatTime(chart.token.rows[0].total)}`), ...drawBars(chart.token));
  parts.push(svg, legendOf(chart.fill.map((fill, number) => [fill, chart.phase[number] || "phase not known"])));
  if (chart.left) parts.push(make("p", "note", `The first ${formatCount(count)} of ${formatCount(count + chart.left)} iterations.`));
  parts.push(detail);
  return parts;
};

const iterationTitle = (chart, number) => {
  const requests = chart.requests[number], phase = chart.phase[number];
  const said = [`Iteration ${chart.number[number]}${phase ? `, ${phase}` : ""}: ${formatTime(chart.ns[number])}`];
  if (requests !== null) said.push(`${formatCount(requests)} ${requests === 1 ? "request" : "requests"}`);
  return said.join(", ");
};

const iterationDetail = (chart, number) => {
  const found = chart.details[number];
  const inTimeline = makeButton("", "Show in the timeline", () => {
    scrollToTimeline();
    const at = chart.at[number] + state.origin;
    moveTo(at, at + Math.max(chart.host[number], chart.ns[number]));
  });
  const content = [make("p", "chart-title", iterationTitle(chart, number)), inTimeline];
  if (!found) return [...content, make("p", "note", "Its layers are not in the page: `serving --by layers` has those of a typical iteration.")];
  if (found.bubble.length) {
    const bubble = { unit: "ns", rows: [{ label: "", parts: found.bubble.map(([cause, ns]) => ["host_wait", cause, ns]), total: 0 }] };
    const total = found.bubble.reduce((sum, part) => sum + part[1], 0);
    content.push(make("p", "note", `Bubble in front: the GPU waits ${formatTime(total)}, meanwhile the host does`), ...drawBars(bubble));
  }
  const rows = found.rows.map(([layer, parts]) => ({
    label: layer < 0 ? "outside" : `layer ${layer}`,
    parts: parts.map(([code, ns]) => [chart.roles[code][0], chart.roles[code][1], ns]),
    total: parts.reduce((sum, part) => sum + part[1], 0),
  }));
  return [...content, ...drawBars({ unit: "ns", rows })];
};

// What was added and taken away, one after the other; the last bar is the sum.
const drawWaterfall = (chart) => {
  const rows = make("div", "waterfall"), sum = chart.after - chart.before;
  const reached = [0];
  for (const [, delta] of chart.rows) reached.push(reached[reached.length - 1] + delta);
  const low = Math.min(0, ...reached), span = Math.max(0, ...reached) - low || 1;
  const place = (value) => (value - low) / span;
  const add = (label, from, to, value, className) => {
    const svg = makeSvg("svg", { class: "bar-line", "aria-hidden": "true" });
    const left = Math.min(place(from), place(to)), width = Math.abs(place(to) - place(from));
    svg.append(makeSvg("rect", { class: className, x: percentOf(left), width: percentOf(Math.max(width, 0.002)), height: "100%" }));
    svg.append(makeSvg("line", { class: "zero", x1: percentOf(place(0)), x2: percentOf(place(0)), y1: 0, y2: "100%" }));
    const row = make("div", "fall");
    row.append(make("span", "bar-label", label), svg, make("span", "bar-value", value));
    rows.append(row);
  };
  chart.rows.forEach(([label, delta], number) => {
    add(label, reached[number], reached[number + 1], formatDelta(delta), delta > 0 ? "slower" : "faster");
  });
  add("in all", 0, sum, formatDelta(sum), "in-all");
  return [rows];
};

const CHARTS = { bars: drawBars, heat: drawHeat, steps: drawSteps, iterations: drawIterations, waterfall: drawWaterfall };

const buildChart = (chart, table) => {
  const figure = make("figure", "chart");
  if (chart.title) figure.append(make("figcaption", "chart-title", chart.title));
  figure.append(...CHARTS[chart.kind](chart, table));
  return figure;
};
