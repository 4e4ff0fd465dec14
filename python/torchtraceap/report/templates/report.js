"use strict";
// The report's behaviour: a canvas timeline fed by gzipped columns, and the tables filled from
// JSON. Text that comes from the trace reaches the page through textContent and fillText only.
(() => {
  const byId = (id) => document.getElementById(id);
  const report = JSON.parse(byId("report-data").textContent);
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // ---------------------------------------------------------------- small helpers

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

  // ---------------------------------------------------------------- decoding

  const unpack = async (text) => {
    const binary = atob(text.trim());
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  };

  // Integers lie in byte planes, least significant plane first.
  const readColumn = (bytes, base, count, [offset, planes]) => {
    const values = new Float64Array(count);
    let scale = 1;
    for (let plane = 0; plane < planes; plane++, scale *= 256) {
      const from = base + offset + plane * count;
      for (let i = 0; i < count; i++) values[i] += bytes[from + i] * scale;
    }
    return values;
  };

  const readLane = (bytes, base, described) => {
    const lane = { ...described };
    for (const [key, place] of Object.entries(described.columns)) {
      lane[key] = readColumn(bytes, base, described.count, place);
    }
    let now = 0;
    for (let i = 0; i < described.count; i++) lane.start[i] = now += lane.start[i];
    return lane;
  };

  // One list of events per line of a lane, by start, so that a redraw only visits what is visible.
  const splitRows = (lane) => {
    const counts = [];
    for (const row of lane.row) counts[row] = (counts[row] || 0) + 1;
    const rows = Array.from(counts, (n) => ({
      lane, count: n || 0, start: new Float64Array(n || 0), end: new Float64Array(n || 0),
      reach: new Float64Array(n || 0), index: new Uint32Array(n || 0),
    }));
    const filled = new Uint32Array(rows.length);
    for (let i = 0; i < lane.count; i++) {
      const row = rows[lane.row[i]], at = filled[lane.row[i]]++;
      row.start[at] = lane.start[i];
      row.end[at] = lane.start[i] + lane.dur[i];
      row.reach[at] = at ? Math.max(row.reach[at - 1], row.end[at]) : row.end[at];
      row.index[at] = i;
    }
    return rows;
  };

  const decodeRank = async (number) => {
    const bytes = await unpack(byId(`timeline-${number}`).textContent);
    const headerLength = new DataView(bytes.buffer).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + headerLength)));
    const lanes = header.lanes.map((entry) => readLane(bytes, 4 + headerLength, entry));
    for (const lane of lanes) lane.rows = splitRows(lane);
    return { ...header, lanes: lanes.filter((lane) => lane.count > 0) };
  };

  // ---------------------------------------------------------------- colours

  const GPU_CLASSES = ["compute", "compute", "communication", "memcpy"];
  let palette = {};
  const readPalette = () => {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    palette = {
      ink: read("--ink"), muted: read("--muted"), line: read("--line"), card: read("--card"),
      band: read("--band"), focus: read("--focus"), finding: read("--finding"),
      step: read("--step"), call: read("--host-call"),
      gpu: GPU_CLASSES.map((name) => read(`--c-${name}`)),
      idle: report.causes.map((name) => read(`--c-${name}`)),
      host: Array.from({ length: 8 }, (_, i) => read(`--host-${i}`)),
    };
  };

  const colourOf = (lane, i) => {
    const code = lane.code[i];
    switch (lane.kind) {
      case "gpu": return palette.gpu[code] || palette.gpu[0];
      case "idle": return palette.idle[code] || palette.muted;
      case "finding": return palette.finding;
      case "step": return palette.step;
      default:
        if (lane.calls.has(code)) return palette.call;
        if (code === lane.annotation) return palette.step;
        return palette.host[(lane.name[i] * 2654435761 >>> 0) % palette.host.length];
    }
  };
  // Dark or white text, by how light the colour is: white on anything lighter is hard to read.
  const inks = new Map();
  const inkOn = (colour) => {
    let ink = inks.get(colour);
    if (ink) return ink;
    const part = (at) => {
      const value = parseInt(colour.slice(at, at + 2), 16) / 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    };
    const light = 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
    inks.set(colour, ink = light > 0.22 ? "#15191f" : "#ffffff");
    return ink;
  };

  // ---------------------------------------------------------------- timeline

  const RULER = 26, LANE_GAP = 9, TITLE = 17, OVERVIEW = 46;
  const ROW_HEIGHT = { step: 22, finding: 16, idle: 18, gpu: 21, host: 16 };
  const FOLDED_ROWS = { main: 10, other: 3 };
  const MIN_SPAN = 200;
  const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

  const canvas = byId("timeline-canvas");
  const overview = byId("overview-canvas");
  const tooltip = byId("timeline-tooltip");
  const board = byId("timeline-board");
  const ink = canvas.getContext("2d");

  const state = {
    rank: null, origin: 0, view: { from: 0, to: 1 }, bounds: { from: 0, to: 1 },
    width: 0, height: 0, gutter: 0, placed: [], unfolded: false, open: new Set(),
    hover: null, selected: null, focus: null, target: null, animation: 0,
  };

  const spanOf = (view) => view.to - view.from;
  const plotWidth = () => Math.max(1, state.width - state.gutter);
  const xOf = (time) => state.gutter + ((time - state.view.from) / spanOf(state.view)) * plotWidth();
  const timeAt = (x) => state.view.from + ((x - state.gutter) / plotWidth()) * spanOf(state.view);

  const limitView = (from, to) => {
    const whole = spanOf(state.bounds);
    const span = clamp(to - from, Math.min(MIN_SPAN, whole), whole);
    const middle = (from + to) / 2;
    const start = clamp(middle - span / 2, state.bounds.from, state.bounds.to - span);
    return { from: start, to: start + span };
  };

  const setView = (from, to) => {
    cancelAnimationFrame(state.animation);
    state.view = limitView(from, to);
    state.target = state.view;
    requestDraw();
  };

  const moveTo = (from, to) => {
    const goal = limitView(from, to), begin = { ...state.view };
    if (calm.matches) return setView(goal.from, goal.to);
    cancelAnimationFrame(state.animation);
    state.target = goal;
    const started = performance.now();
    const frame = (now) => {
      const part = clamp((now - started) / 320, 0, 1);
      const eased = 1 - (1 - part) ** 3;
      state.view = {
        from: begin.from + (goal.from - begin.from) * eased,
        to: begin.to + (goal.to - begin.to) * eased,
      };
      draw();
      if (part < 1) state.animation = requestAnimationFrame(frame);
    };
    state.animation = requestAnimationFrame(frame);
  };

  const zoomBy = (factor, around) => {
    const base = state.target || state.view;
    const pivot = around === undefined ? (base.from + base.to) / 2 : around;
    setView(pivot - (pivot - base.from) * factor, pivot + (base.to - pivot) * factor);
  };
  const panBy = (share) => {
    const base = state.target || state.view, shift = spanOf(base) * share;
    moveTo(base.from + shift, base.to + shift);
  };
  const showAll = () => moveTo(...homeView());
  const homeRange = () => ({ from: state.rank.profiled[0], to: state.rank.profiled[1] });
  const homeView = () => {
    const { from, to } = homeRange(), pad = (to - from) * 0.015;
    return [from - pad, to + pad];
  };

  // Which lines of a lane to draw. Folded host threads leave out the outermost frames that last all
  // the time, as the script and its launcher do, and what is too deep.
  const rowsShown = (lane) => {
    const all = lane.rows.length;
    if (lane.kind !== "host" || state.unfolded || state.open.has(lane)) return { skip: 0, count: all };
    const skip = wrapperRows(lane), limit = lane.main ? FOLDED_ROWS.main : FOLDED_ROWS.other;
    return { skip, count: Math.min(all - skip, limit) };
  };

  const wrapperRows = (lane) => {
    const { from, to } = homeRange();
    let skip = 0;
    while (skip < lane.rows.length - 1) {
      const { start, end } = lane.rows[skip];
      const spans = start.some((at, i) => Math.min(end[i], to) - Math.max(at, from) > 0.9 * (to - from));
      if (!spans) break;
      skip += 1;
    }
    return skip;
  };

  const layOut = () => {
    state.width = board.clientWidth;
    state.gutter = state.width >= 720 ? 164 : 0;
    state.placed = [];
    let y = RULER + 4;
    for (const lane of state.rank.lanes) {
      const height = ROW_HEIGHT[lane.kind], { skip, count } = rowsShown(lane);
      const top = y;
      if (!state.gutter) y += TITLE;
      state.placed.push({ lane, top, first: y, height, skip, count });
      y += height * count + LANE_GAP;
    }
    state.height = Math.ceil(y);
    sizeCanvas(canvas, state.width, state.height);
    sizeCanvas(overview, state.width, OVERVIEW);
    requestDraw();
  };

  const sizeCanvas = (element, width, height) => {
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    element.style.width = `${width}px`;
    element.style.height = `${height}px`;
    element.width = Math.round(width * ratio);
    element.height = Math.round(height * ratio);
    element.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
  };

  let drawQueued = false;
  const requestDraw = () => {
    if (drawQueued) return;
    drawQueued = true;
    requestAnimationFrame(() => { drawQueued = false; draw(); });
  };

  const draw = () => {
    if (!state.rank) return;
    ink.clearRect(0, 0, state.width, state.height);
    drawGrid();
    drawFocusBands();
    for (const place of state.placed) drawLane(place);
    drawLaunchLink();
    drawOutline(state.selected, 2);
    drawOutline(state.hover, 1);
    drawSweep();
    drawGutter();
    drawOverview();
    canvas.dataset.viewFrom = String(Math.round(state.view.from - state.origin));
    canvas.dataset.viewTo = String(Math.round(state.view.to - state.origin));
    byId("view-range").textContent =
      `${formatTime(state.view.from - state.origin)} to ${formatTime(state.view.to - state.origin)}` +
      ` · ${formatTime(spanOf(state.view))} shown`;
  };

  const tickStep = () => {
    const rough = spanOf(state.view) / Math.max(2, plotWidth() / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= rough);
  };

  const drawGrid = () => {
    const step = Math.max(1, tickStep());
    const first = Math.ceil((state.view.from - state.origin) / step) * step;
    ink.font = FONT;
    ink.textBaseline = "middle";
    ink.textAlign = "left";
    ink.lineWidth = 1;
    for (let at = first; at <= state.view.to - state.origin; at += step) {
      const x = Math.round(xOf(at + state.origin)) + 0.5;
      ink.strokeStyle = palette.line;
      ink.beginPath();
      ink.moveTo(x, RULER - 6);
      ink.lineTo(x, state.height);
      ink.stroke();
      ink.fillStyle = palette.muted;
      const label = tickLabel(at, step);
      if (x + 4 + widthOf(label) <= state.width) ink.fillText(label, x + 4, RULER / 2);
    }
  };

  const drawFocusBands = () => {
    const focus = state.focus;
    if (!focus) return;
    ink.fillStyle = palette.band;
    const { start, end, reach } = focus.spans;
    let edge = -1;
    for (let i = upperBound(reach, state.view.from); i < start.length && start[i] < state.view.to; i++) {
      const left = Math.max(xOf(start[i]), edge, state.gutter), right = Math.max(xOf(end[i]), left + 1);
      if (right - edge < 1) continue;
      ink.fillRect(left, RULER, right - left, state.height - RULER);
      edge = right;
    }
    const current = focus.places[focus.index];
    const left = clamp(xOf(current.from), state.gutter, state.width);
    const right = clamp(xOf(current.to), state.gutter, state.width);
    if (right <= state.gutter || left >= state.width) return;
    ink.fillStyle = palette.focus;
    ink.fillRect(left, RULER - 3, Math.max(2, right - left), 3);
  };

  const drawLane = (place) => {
    for (let number = 0; number < place.count; number++) {
      drawRow(place.lane, place.lane.rows[place.skip + number], place.first + number * place.height, place.height - 1);
    }
  };

  // Events narrower than a pixel are added up per pixel column and drawn as strong as they cover
  // it, so that a sparse stream looks sparse from afar.
  const drawRow = (lane, row, y, height) => {
    const { start, end, reach, index, count } = row;
    const scale = plotWidth() / spanOf(state.view), from = state.view.from;
    let column = -1, covered = 0, longest = 0, colour = "";
    const flush = () => {
      if (covered <= 0) return;
      ink.globalAlpha = Math.min(1, 0.22 + covered * 0.9);
      ink.fillStyle = colour;
      ink.fillRect(column, y, 1, height);
      ink.globalAlpha = 1;
      covered = longest = 0;
    };
    for (let i = upperBound(reach, from); i < count && start[i] < state.view.to; i++) {
      const width = (end[i] - start[i]) * scale;
      const left = state.gutter + (start[i] - from) * scale;
      if (width < 1.5) {
        const at = Math.floor(left);
        if (at !== column) { flush(); column = at; }
        covered += Math.max(width, 0.05);
        if (width >= longest) { longest = width; colour = colourOf(lane, index[i]); }
        continue;
      }
      drawBox(lane, index[i], left, y, width, height);
    }
    flush();
  };

  const widths = new Map();
  const widthOf = (text) => {
    let width = widths.get(text);
    if (widths.size > 30000) widths.clear();
    if (width === undefined) widths.set(text, width = ink.measureText(text).width);
    return width;
  };
  const fitText = (text, room) => {
    const width = widthOf(text);
    if (width <= room) return text;
    let kept = Math.floor(text.length * (room / width));
    while (kept > 2 && widthOf(`${text.slice(0, kept)}…`) > room) kept -= 1;
    return kept > 2 ? `${text.slice(0, kept)}…` : "";
  };

  const drawBox = (lane, i, left, y, width, height) => {
    const x = Math.max(left, state.gutter - 1), right = Math.min(left + width, state.width + 1);
    if (right <= x) return;
    const gap = width > 4 ? 0.75 : 0;
    const colour = colourOf(lane, i);
    ink.fillStyle = colour;
    ink.fillRect(x, y, right - x - gap, height);
    if (right - x < 26 || lane.kind === "finding" && right - x < 60) return;
    ink.fillStyle = inkOn(colour);
    ink.font = FONT;
    ink.fillText(fitText(state.rank.names[lane.name[i]], right - x - 8), x + 4, y + height / 2 + 0.5);
  };

  const placeOf = (hit) => {
    const place = state.placed.find((p) => p.lane === hit.lane);
    if (!place) return null;
    const row = hit.lane.row[hit.i] - place.skip;
    return row >= 0 && row < place.count ? { y: place.first + row * place.height, height: place.height - 1 } : null;
  };

  const drawOutline = (hit, weight) => {
    const place = hit && placeOf(hit);
    if (!place) return;
    const start = hit.lane.start[hit.i], end = start + hit.lane.dur[hit.i];
    const left = clamp(xOf(start), state.gutter - 3, state.width + 3);
    const right = clamp(xOf(end), state.gutter - 3, state.width + 3);
    ink.strokeStyle = palette.ink;
    ink.lineWidth = weight;
    ink.strokeRect(left - 0.5, place.y - 0.5, Math.max(2, right - left), place.height + 1);
  };

  // From a GPU event back to the call that launched it.
  const drawLaunchLink = () => {
    const hit = state.hover && state.hover.lane.delay ? state.hover : state.selected;
    if (!hit || !hit.lane.delay || !hit.lane.delay[hit.i]) return;
    const place = placeOf(hit);
    const start = hit.lane.start[hit.i], launch = start - (hit.lane.delay[hit.i] - 1);
    const host = findLaunch(hit, launch);
    if (!place || !host) return;
    const to = placeOf(host);
    const y = to ? to.y + to.height / 2 : state.height;
    ink.strokeStyle = palette.ink;
    ink.globalAlpha = 0.65;
    ink.lineWidth = 1.25;
    ink.save();
    ink.beginPath();
    ink.rect(state.gutter, RULER, plotWidth(), state.height);
    ink.clip();
    ink.beginPath();
    ink.moveTo(xOf(launch), y);
    ink.bezierCurveTo(xOf(launch), y - 40, xOf(start), place.y + place.height + 40, xOf(start), place.y + place.height);
    ink.stroke();
    ink.restore();
    ink.globalAlpha = 1;
    drawOutline(host, 1);
  };

  const findLaunch = (hit, launch) => {
    const name = hit.lane.call[hit.i] - 1;
    for (const { lane } of state.placed) {
      if (lane.kind !== "host") continue;
      for (const row of lane.rows) {
        let at = upperBound(row.start, launch) - 1;
        for (; at >= 0 && row.start[at] === launch; at--) {
          if (lane.name[row.index[at]] === name) return { lane, i: row.index[at] };
        }
      }
    }
    return null;
  };

  const drawGutter = () => {
    ink.font = FONT;
    ink.textAlign = "left";
    if (state.gutter) ink.clearRect(0, 0, state.gutter - 4, state.height);
    const fit = (text) => fitText(text, state.gutter ? state.gutter - 14 : state.width / 2);
    for (const place of state.placed) {
      const { lane } = place;
      const lines = state.gutter ? [place.first + place.height / 2, place.first + place.height * 1.5] : [place.top + 8];
      ink.fillStyle = palette.ink;
      ink.fillText(fit(lane.label), 2, lines[0]);
      if (lane.kind === "finding" && state.gutter) drawNumbers(place);
      const more = hiddenRows(place) || lane.detail;
      if (!more) continue;
      ink.fillStyle = palette.muted;
      if (!state.gutter) ink.fillText(more, 10 + ink.measureText(fit(lane.label)).width, lines[0]);
      else if (place.count > 1) ink.fillText(fit(more), 2, lines[1]);
      else if (ink.measureText(`${lane.label}  ${more}`).width < state.gutter - 10) {
        ink.fillText(more, 8 + ink.measureText(lane.label).width, lines[0]);
      }
    }
  };

  const hiddenRows = ({ lane, skip, count }) => {
    const deeper = lane.rows.length - skip - count;
    const parts = [];
    if (skip) parts.push(`${skip} above`);
    if (deeper) parts.push(`${deeper} deeper`);
    return parts.length ? `+ ${parts.join(", ")}` : "";
  };

  const drawNumbers = ({ lane, first, height }) => {
    ink.textAlign = "right";
    ink.fillStyle = palette.finding;
    lane.rows.forEach((row, line) => {
      if (row.count) ink.fillText(String(lane.code[row.index[0]] + 1), state.gutter - 10, first + height * (line + 0.5));
    });
    ink.textAlign = "left";
  };

  // ---------------------------------------------------------------- overview strip

  const overviewX = (time) => state.gutter + (time / state.rank.length) * plotWidth();

  const drawOverview = () => {
    const context = overview.getContext("2d");
    context.clearRect(0, 0, state.width, OVERVIEW);
    drawActivity(context);
    drawFocusMarks(context);
    drawBrush(context);
    if (!state.gutter) return;
    context.clearRect(0, 0, state.gutter - 4, OVERVIEW);
    context.font = FONT;
    context.textBaseline = "middle";
    context.fillStyle = palette.ink;
    context.fillText("GPU activity", 2, OVERVIEW / 2);
  };

  const drawActivity = (context) => {
    const layers = state.rank.overview, buckets = layers.compute.length;
    const step = plotWidth() / buckets;
    for (let i = 0; i < buckets; i++) {
      let base = OVERVIEW;
      for (const name of ["compute", "communication", "memcpy"]) {
        const tall = (layers[name][i] / 255) * (OVERVIEW - 8);
        context.fillStyle = palette.gpu[GPU_CLASSES.lastIndexOf(name)];
        context.fillRect(state.gutter + i * step, base - tall, step + 0.5, tall);
        base -= tall;
      }
    }
  };

  const drawFocusMarks = (context) => {
    if (!state.focus) return;
    context.fillStyle = palette.focus;
    const { start, end } = state.focus.spans;
    let edge = -1;
    for (let i = 0; i < start.length; i++) {
      const left = overviewX(start[i]), right = Math.max(overviewX(end[i]), left + 1);
      if (right - edge < 0.5) continue;
      context.fillRect(left, 0, right - left, 4);
      edge = right;
    }
  };

  const drawBrush = (context) => {
    const left = overviewX(state.view.from), right = Math.max(overviewX(state.view.to), left + 3);
    context.fillStyle = palette.card;
    context.globalAlpha = 0.72;
    context.fillRect(state.gutter, 0, left - state.gutter, OVERVIEW);
    context.fillRect(right, 0, state.width - right, OVERVIEW);
    context.globalAlpha = 1;
    context.strokeStyle = palette.ink;
    context.lineWidth = 1.5;
    context.strokeRect(left + 0.75, 0.75, Math.max(1.5, right - left - 1.5), OVERVIEW - 1.5);
  };

  const overviewTime = (event) => {
    const x = event.clientX - overview.getBoundingClientRect().left;
    return ((x - state.gutter) / plotWidth()) * state.rank.length;
  };
  let overviewGrip = null;
  overview.addEventListener("pointerdown", (event) => {
    const at = overviewTime(event);
    const inside = at >= state.view.from && at <= state.view.to;
    const middle = (state.view.from + state.view.to) / 2;
    overviewGrip = inside ? at - middle : 0;
    overview.setPointerCapture(event.pointerId);
    if (!inside) setView(at - spanOf(state.view) / 2, at + spanOf(state.view) / 2);
  });
  overview.addEventListener("pointermove", (event) => {
    if (overviewGrip === null) return;
    const middle = overviewTime(event) - overviewGrip, half = spanOf(state.view) / 2;
    setView(middle - half, middle + half);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    overview.addEventListener(name, () => { overviewGrip = null; });
  }

  // ---------------------------------------------------------------- pointing

  const hitAt = (x, y) => {
    if (x < state.gutter) return null;
    const place = state.placed.find((p) => y >= p.first && y < p.first + p.count * p.height);
    if (!place) return null;
    const row = place.lane.rows[place.skip + Math.floor((y - place.first) / place.height)];
    const time = timeAt(x), slack = spanOf(state.view) / plotWidth() * 2;
    let best = null, distance = Infinity;
    const first = Math.max(0, upperBound(row.reach, time - slack));
    for (let i = first; i < row.count && row.start[i] <= time + slack && i < first + 2000; i++) {
      const away = Math.max(row.start[i] - time, time - row.end[i], 0);
      if (away <= slack && away <= distance) { best = i; distance = away; }
    }
    return best === null ? null : { lane: place.lane, i: row.index[best] };
  };

  const describe = (hit) => {
    const { lane, i } = hit, { names } = state.rank;
    const lines = [["lasts", formatTime(lane.dur[i])], ["starts at", formatTime(lane.start[i] - state.origin)]];
    if (lane.kind === "gpu") {
      lines.push(["runs on", `${lane.label}${lane.detail ? ` (${lane.detail})` : ""}`]);
      if (lane.op && lane.op[i]) lines.push(["for", names[lane.op[i] - 1]]);
      if (lane.call && lane.call[i]) {
        const delay = lane.delay[i] ? `, ${formatTime(lane.delay[i] - 1)} earlier` : "";
        lines.push(["launched by", `${names[lane.call[i] - 1]}${delay}`]);
      }
    } else if (lane.kind === "host") {
      lines.push(["on", `${lane.label}${lane.detail ? ` (${lane.detail})` : ""}`]);
      lines.push(["kind", (state.rank.kinds[lane.code[i]] || "").replaceAll("_", " ")]);
    } else {
      lines.push(["is a", lane.kind === "idle" ? "time without GPU work" : lane.kind]);
    }
    return { name: names[lane.name[i]], lines };
  };

  const fillDescription = (node, hit) => {
    const { name, lines } = describe(hit);
    const list = make("dl");
    for (const [term, value] of lines) {
      const pair = make("div");
      pair.append(make("dt", "", term), make("dd", "", value));
      list.append(pair);
    }
    node.replaceChildren(make("strong", "event-name", name), list);
  };

  const showTooltip = (hit, x, y) => {
    tooltip.hidden = !hit;
    if (!hit) return;
    fillDescription(tooltip, hit);
    const width = tooltip.offsetWidth, height = tooltip.offsetHeight;
    const left = x + 16 + width > state.width ? Math.max(0, x - width - 12) : x + 16;
    const below = y + 18, screen = board.getBoundingClientRect().top + below + height;
    const top = screen > window.innerHeight ? Math.max(0, y - height - 12) : below;
    tooltip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  };

  const select = (hit) => {
    state.selected = hit;
    const panel = byId("selection");
    panel.hidden = !hit;
    if (hit) fillDescription(panel, hit);
    requestDraw();
  };

  const pointers = new Map();
  let drag = null;
  const positionOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    const at = positionOf(event);
    pointers.set(event.pointerId, at);
    canvas.setPointerCapture(event.pointerId);
    showTooltip(null);
    if (pointers.size === 2) { drag = null; return; }
    const sweep = at.y < RULER || event.shiftKey;
    drag = { ...at, view: { ...state.view }, moved: false, sweep, to: at.x };
  });

  canvas.addEventListener("pointermove", (event) => {
    const at = positionOf(event);
    if (pointers.size === 2 && pointers.has(event.pointerId)) return pinch(event.pointerId, at);
    if (!drag) return hoverAt(at, event.pointerType);
    if (Math.abs(at.x - drag.x) > 3) drag.moved = true;
    if (!drag.moved) return;
    if (drag.sweep) { drag.to = at.x; requestDraw(); return; }
    const shift = ((drag.x - at.x) / plotWidth()) * spanOf(drag.view);
    setView(drag.view.from + shift, drag.view.to + shift);
  });

  const hoverAt = (at, type) => {
    const hit = hitAt(at.x, at.y);
    state.hover = hit;
    canvas.classList.toggle("over-event", Boolean(hit));
    canvas.classList.toggle("over-ruler", at.y < RULER);
    if (type !== "touch") showTooltip(hit, at.x, at.y);
    requestDraw();
  };

  const pinch = (id, at) => {
    const other = [...pointers.entries()].find(([key]) => key !== id)[1];
    const before = pointers.get(id);
    const factor = Math.max(8, Math.abs(before.x - other.x)) / Math.max(8, Math.abs(at.x - other.x));
    pointers.set(id, at);
    zoomBy(factor, timeAt((at.x + other.x) / 2));
  };

  const release = (event) => {
    pointers.delete(event.pointerId);
    const done = drag;
    drag = null;
    if (!done || event.type === "pointercancel") return requestDraw();
    if (done.sweep && done.moved) {
      const [from, to] = [timeAt(done.x), timeAt(done.to)].sort((a, b) => a - b);
      return moveTo(from, to);
    }
    if (!done.moved) clickAt(done);
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => {
    state.hover = null;
    showTooltip(null);
    requestDraw();
  });

  const clickAt = ({ x, y }) => {
    const place = state.placed.find((p) => y >= p.top && y < p.first + p.count * p.height);
    if (place && place.lane.kind === "host" && (x < state.gutter || y < place.first)) {
      if (!state.open.delete(place.lane)) state.open.add(place.lane);
      return layOut();
    }
    const hit = hitAt(x, y);
    if (hit && hit.lane.kind === "finding") focusFinding(hit.lane.code[hit.i], hit.lane.start[hit.i]);
    select(hit);
  };

  canvas.addEventListener("dblclick", (event) => {
    const { x, y } = positionOf(event), hit = hitAt(x, y);
    if (hit) zoomTo(hit.lane.start[hit.i], hit.lane.start[hit.i] + hit.lane.dur[hit.i]);
  });

  const drawSweep = () => {
    if (!drag || !drag.sweep || !drag.moved) return;
    const left = Math.min(drag.x, drag.to), width = Math.abs(drag.to - drag.x);
    ink.fillStyle = palette.band;
    ink.fillRect(left, 0, width, state.height);
    ink.fillStyle = palette.ink;
    ink.fillText(formatTime(timeAt(left + width) - timeAt(left)), left + 4, RULER + 8);
  };

  // A wheel that began to turn outside the timeline goes on scrolling the page.
  let lastPageScroll = -1e9;
  window.addEventListener("wheel", (event) => {
    if (event.target !== canvas) lastPageScroll = event.timeStamp;
  }, { passive: true });
  canvas.addEventListener("wheel", (event) => {
    if (event.timeStamp - lastPageScroll < 350 && !event.ctrlKey) { lastPageScroll = event.timeStamp; return; }
    const across = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    const lines = event.deltaMode === 1 ? 16 : 1;
    const base = state.view;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      const shift = (across * lines / plotWidth()) * spanOf(base);
      return setView(base.from + shift, base.to + shift);
    }
    const outermost = spanOf(base) >= spanOf(state.bounds) * 0.999;
    if (event.deltaY > 0 && outermost) return;
    event.preventDefault();
    const factor = Math.exp(clamp(event.deltaY * lines, -240, 240) * 0.0028);
    zoomBy(factor, timeAt(positionOf(event).x));
  }, { passive: false });

  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowLeft: () => panBy(-0.2), ArrowRight: () => panBy(0.2), a: () => panBy(-0.2), d: () => panBy(0.2),
      "+": () => zoomBy(0.6), "=": () => zoomBy(0.6), w: () => zoomBy(0.6),
      "-": () => zoomBy(1 / 0.6), s: () => zoomBy(1 / 0.6),
      Home: showAll, 0: showAll, n: () => stepFocus(1), p: () => stepFocus(-1), Escape: clearAll,
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });

  const clearAll = () => { setFocus(null); select(null); showTooltip(null); };

  // ---------------------------------------------------------------- focus: a list of intervals

  const zoomTo = (from, to) => {
    const pad = Math.max((to - from) * 0.35, MIN_SPAN);
    moveTo(from - pad, to + pad);
  };

  // Intervals given as [lane, event] pairs in order of their starts.
  const spansOf = (pairs) => {
    const start = new Float64Array(pairs.length), end = new Float64Array(pairs.length);
    const reach = new Float64Array(pairs.length);
    pairs.forEach(([lane, i], at) => {
      start[at] = lane.start[i];
      end[at] = lane.start[i] + lane.dur[i];
      reach[at] = at ? Math.max(reach[at - 1], end[at]) : end[at];
    });
    return { start, end, reach };
  };

  // Neighbouring intervals are one place to go to: a gap of 0.4 % of the time cannot be seen.
  const placesOf = ({ start, end, reach }) => {
    const places = [], gap = spanOf(homeRange()) * 0.004;
    for (let i = 0; i < start.length; i++) {
      const last = places[places.length - 1];
      const fresh = Math.max(0, end[i] - Math.max(start[i], i ? reach[i - 1] : start[i]));
      if (last && start[i] - last.to < gap) {
        last.to = Math.max(last.to, end[i]);
        last.cost += fresh;
        last.count += 1;
      } else places.push({ from: start[i], to: end[i], cost: fresh, count: 1 });
    }
    return places;
  };
  const dearestOf = (places) => places.reduce((best, p, i) => (p.cost > places[best].cost ? i : best), 0);

  const setFocus = (focus) => {
    state.focus = focus && focus.places.length ? focus : null;
    byId("focus-bar").hidden = !focus;
    for (const node of document.querySelectorAll("[data-focus]")) {
      node.setAttribute("aria-pressed", String(Boolean(focus) && node.dataset.focus === focus.key));
    }
    if (focus) showFocusBar(focus);
    requestDraw();
  };

  const showFocusBar = (focus) => {
    const many = focus.places.length, place = focus.places[focus.index];
    byId("focus-label").textContent = focus.label;
    byId("focus-place").textContent = many
      ? `place ${formatCount(focus.index + 1)} of ${formatCount(many)}: ${formatTime(place.cost)}` +
        (place.count > 1 ? ` in ${formatCount(place.count)} pieces` : "")
      : "nothing of it in this timeline";
    byId("focus-previous").disabled = byId("focus-next").disabled = many < 2;
  };

  const goToFocus = () => {
    const focus = state.focus;
    if (focus) zoomTo(focus.places[focus.index].from, focus.places[focus.index].to);
  };

  const stepFocus = (by) => {
    const focus = state.focus;
    if (!focus) return;
    const many = focus.places.length;
    setFocus({ ...focus, index: (focus.index + by + many) % many });
    goToFocus();
  };

  const focusLane = (kind, key, label, code, near) => {
    const lane = state.rank.lanes.find((entry) => entry.kind === kind);
    const chosen = [];
    for (let i = 0; lane && i < lane.count; i++) if (lane.code[i] === code) chosen.push([lane, i]);
    const spans = spansOf(chosen), places = placesOf(spans);
    const at = places.findIndex((place) => near >= place.from && near <= place.to);
    setFocus({ key, label, spans, places, index: at >= 0 ? at : dearestOf(places) });
    goToFocus();
  };

  const focusFinding = (number, near) => {
    const finding = report.findings[number];
    focusLane("finding", `finding-${number}`, `${number + 1}  ${finding.title}`, number, near);
  };
  const focusCause = (name) => {
    focusLane("idle", `cause-${name}`, `GPU idle: ${name.replaceAll("_", " ")}`, report.causes.indexOf(name));
  };

  const MAX_MATCHES = 20000;
  const focusSearch = (text) => {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return setFocus(null);
    const matches = state.rank.names.map((name) => name.toLowerCase().includes(wanted));
    const found = [];
    for (const lane of state.rank.lanes) {
      if (lane.kind !== "gpu" && lane.kind !== "host" && lane.kind !== "step") continue;
      for (let i = 0; i < lane.count && found.length < MAX_MATCHES; i++) {
        if (matches[lane.name[i]]) found.push([lane, i]);
      }
    }
    found.sort((a, b) => a[0].start[a[1]] - b[0].start[b[1]]);
    const spans = spansOf(found);
    const places = found.map(([lane, i]) => ({ from: lane.start[i], to: lane.start[i] + lane.dur[i], cost: lane.dur[i], count: 1 }));
    setFocus({ key: "search", label: `“${text.trim()}”`, spans, places, index: 0 });
    goToFocus();
  };

  const scrollToTimeline = () => {
    const section = byId("timeline");
    const box = section.getBoundingClientRect();
    if (box.top >= -4 && box.top < window.innerHeight * 0.45) return;
    section.scrollIntoView({ behavior: calm.matches ? "auto" : "smooth", block: "start" });
  };

  // ---------------------------------------------------------------- ranks

  const ranks = [];
  const showRank = async (number) => {
    ranks[number] = ranks[number] || await decodeRank(number);
    const rank = ranks[number];
    for (const lane of rank.lanes) {
      lane.calls = new Set(["runtime", "driver"].map((name) => rank.kinds.indexOf(name)));
      lane.annotation = rank.kinds.indexOf("user_annotation");
    }
    state.rank = rank;
    state.number = number;
    state.origin = rank.profiled[0];
    state.bounds = { from: 0, to: rank.length };
    state.hover = state.selected = state.focus = null;
    state.open.clear();
    setFocus(null);
    select(null);
    byId("timeline-note").textContent = report.ranks[number].notes.join(" ");
    state.view = state.target = limitView(...homeView());
    layOut();
    canvas.dataset.ready = String(number);
  };

  const withRank = async (name, then) => {
    const number = report.ranks.findIndex((rank) => rank.name === name);
    if (number >= 0 && number !== state.number) {
      byId("rank-select").value = String(number);
      await showRank(number);
    }
    scrollToTimeline();
    then();
  };

  // ---------------------------------------------------------------- tables from the trace

  const severalRanks = report.rankRows.length > 1;
  const cell = (row, text, className) => row.append(make("td", className, text));

  const goButton = (text, label, action) => {
    const button = make("button", "go", text);
    button.type = "button";
    button.setAttribute("aria-label", label);
    button.addEventListener("click", action);
    return button;
  };

  const fillEvidence = () => {
    report.findings.forEach((finding, number) => {
      const body = byId(`evidence-${number}`);
      if (!body) return;
      for (const item of finding.evidence) {
        const row = make("tr"), first = make("td", "name");
        const show = () => withRank(item.rank, () => {
          const from = item.at + state.origin;
          setFocus({ key: `evidence-${number}`, label: item.name, index: 0,
            spans: { start: [from], end: [from + item.ns], reach: [from + item.ns] },
            places: [{ from, to: from + item.ns, cost: item.ns, count: 1 }] });
          goToFocus();
        });
        first.append(goButton(item.name, `Show ${item.name} in the timeline`, show));
        row.append(first);
        if (severalRanks) cell(row, item.rank === null ? "" : String(item.rank), "number");
        cell(row, formatTime(item.at), "number");
        cell(row, formatTime(item.ns), "number");
        body.append(row);
      }
    });
  };

  const SVG = "http://www.w3.org/2000/svg";
  const smallBar = (shares) => {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("class", "small-bar");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", shares.map(([name, share]) => `${name} ${Math.round(share * 100)} %`).join(", "));
    let x = 0;
    for (const [name, share] of shares) {
      const part = document.createElementNS(SVG, "rect");
      part.setAttribute("x", `${(x * 100).toFixed(2)}%`);
      part.setAttribute("width", `${(share * 100).toFixed(2)}%`);
      part.setAttribute("height", "100%");
      part.setAttribute("class", `fill-${name}`);
      svg.append(part);
      x += share;
    }
    return svg;
  };

  const fillSteps = () => {
    const body = byId("step-rows");
    if (!body) return;
    for (const step of report.steps) {
      const row = make("tr"), first = make("td", "name");
      const show = () => withRank(step.rank, () => moveTo(step.at + state.origin, step.at + state.origin + step.ns));
      first.append(goButton(step.name, `Show ${step.name} in the timeline`, show));
      row.append(first);
      if (severalRanks) cell(row, step.rank === null ? "" : String(step.rank), "number");
      cell(row, formatTime(step.ns), "number");
      const bar = make("td", "meter");
      bar.append(smallBar([["compute", step.compute], ["communication", step.communication], ["memcpy", step.memcpy]]));
      row.append(bar);
      cell(row, `${Math.round(step.busy * 100)} %`, "number");
      body.append(row);
    }
  };

  const fillRanks = () => {
    const body = byId("rank-rows");
    if (!body) return;
    for (const rank of report.rankRows) {
      const row = make("tr"), first = make("td", "name");
      first.append(goButton(rank.label, `Show ${rank.label} in the timeline`, () => withRank(rank.name, () => {})));
      row.append(first);
      cell(row, formatTime(rank.ns), "number");
      const bar = make("td", "meter");
      bar.append(smallBar([["compute", rank.compute], ["communication", rank.communication], ["memcpy", rank.memcpy]]));
      row.append(bar);
      cell(row, `${Math.round(rank.busy * 100)} %`, "number");
      body.append(row);
    }
  };

  const fillNotes = () => {
    const list = byId("notes");
    if (!list) return;
    for (const note of report.notes) {
      const item = make("li");
      item.append(make("b", "", `${note.code.replaceAll("_", " ")} (${formatCount(note.count)}): `), note.message);
      list.append(item);
    }
  };

  const fillTexts = () => {
    for (const node of document.querySelectorAll("[data-text]")) {
      const value = node.dataset.text.split(".").reduce((at, key) => at[key], report);
      node.textContent = String(value);
    }
    document.title = `${report.texts.title} · torchtraceap`;
  };

  // ---------------------------------------------------------------- copying

  const copyByCommand = (text) => {
    const area = make("textarea", "off-screen");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  };

  const copyCode = async (button, number) => {
    const text = report.findings[number].code;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      copyByCommand(text);
    }
    const label = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  };

  // ---------------------------------------------------------------- wiring

  const onClick = (id, action) => {
    const node = byId(id);
    if (node) node.addEventListener("click", action);
  };

  const wire = () => {
    for (const node of document.querySelectorAll("[data-finding]")) {
      const number = Number(node.dataset.finding);
      node.addEventListener("click", () => withRank(report.findings[number].rank, () => focusFinding(number)));
    }
    for (const node of document.querySelectorAll("[data-cause]")) {
      node.addEventListener("click", () => { scrollToTimeline(); focusCause(node.dataset.cause); });
    }
    for (const node of document.querySelectorAll("[data-copy]")) {
      node.addEventListener("click", () => copyCode(node, Number(node.dataset.copy)));
    }
    onClick("zoom-in", () => zoomBy(0.5));
    onClick("zoom-out", () => zoomBy(2));
    onClick("zoom-all", showAll);
    onClick("focus-previous", () => stepFocus(-1));
    onClick("focus-next", () => stepFocus(1));
    onClick("focus-clear", clearAll);
    onClick("unfold", (event) => {
      state.unfolded = !state.unfolded;
      event.currentTarget.setAttribute("aria-pressed", String(state.unfolded));
      layOut();
    });
    const search = byId("search");
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      if (state.focus && state.focus.key === "search" && search.dataset.last === search.value) return stepFocus(event.shiftKey ? -1 : 1);
      search.dataset.last = search.value;
      focusSearch(search.value);
    });
    search.addEventListener("search", () => { if (!search.value) setFocus(null); });
    const chooser = byId("rank-select");
    if (chooser) {
      report.ranks.forEach((rank, number) => {
        const option = make("option", "", rank.label);
        option.value = String(number);
        chooser.append(option);
      });
      chooser.addEventListener("change", () => showRank(Number(chooser.value)));
    }
    dark.addEventListener("change", () => { readPalette(); requestDraw(); });
    new ResizeObserver(() => { if (state.rank && board.clientWidth !== state.width) layOut(); }).observe(board);
  };

  const begin = async () => {
    readPalette();
    fillTexts();
    fillEvidence();
    fillSteps();
    fillRanks();
    fillNotes();
    wire();
    try {
      await showRank(0);
    } catch (error) {
      byId("timeline-note").textContent =
        `This browser cannot draw the timeline (${error.message}); everything else on the page is complete.`;
      canvas.dataset.ready = "failed";
    }
  };
  begin();
})();
