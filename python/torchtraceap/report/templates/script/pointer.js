// Pointing at the timeline: hovering, dragging, pinching, the wheel, keys.

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

const KINDS = { idle: "time without GPU work", path: "piece of the critical path" };

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
    lines.push(["is a", KINDS[lane.kind] || lane.kind]);
  }
  return { name: names[lane.name[i]], lines };
};

const fillDescription = (node, hit) => fillLines(node, describe(hit));
const fillLines = (node, { name, lines }) => {
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
  const box = board.getBoundingClientRect();
  const left = clamp(x + 16 + width > state.width ? x - width - 12 : x + 16, 0, Math.max(0, state.width - width));
  // Below the pointer, else above it, and never outside the window.
  const below = y + 18, fits = box.top + below + height <= window.innerHeight;
  const lowest = window.innerHeight - box.top - height;
  const top = fits ? below : clamp(y - height - 12, Math.min(-box.top, lowest), Math.max(-box.top, lowest));
  tooltip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
};

const select = (hit) => {
  state.selected = hit;
  state.range = false;
  const panel = byId("selection");
  panel.hidden = !hit;
  if (hit) fillDescription(panel, hit);
  requestDraw();
};

// What runs in a range: time with GPU work on any stream, and the names with most time in it.
const statisticsOf = (from, to) => {
  const byName = new Map(), pieces = [];
  let count = 0;
  for (const lane of state.rank.lanes) {
    if (lane.kind !== "gpu") continue;
    for (let i = 0; i < lane.count; i++) {
      const start = Math.max(lane.start[i], from), end = Math.min(lane.start[i] + lane.dur[i], to);
      if (end <= start) continue;
      count += 1;
      pieces.push([start, end]);
      byName.set(lane.name[i], (byName.get(lane.name[i]) || 0) + end - start);
    }
  }
  pieces.sort((a, b) => a[0] - b[0]);
  let busy = 0, reach = from;
  for (const [start, end] of pieces) {
    busy += Math.max(0, end - Math.max(start, reach));
    reach = Math.max(reach, end);
  }
  const largest = [...byName].sort((a, b) => b[1] - a[1]).slice(0, 4);
  return { count, busy, largest: largest.map(([name, ns]) => [state.rank.names[name], ns]) };
};

const showStatistics = (from, to) => {
  state.range = true;
  const { count, busy, largest } = statisticsOf(from, to), panel = byId("selection");
  const lines = [
    ["GPU busy", `${formatTime(busy)}, ${formatPercent(busy / (to - from))}`],
    ["GPU events", formatCount(count)],
    ...largest.map(([name, ns]) => [formatTime(ns), name.length > 70 ? `${name.slice(0, 69)}…` : name]),
  ];
  state.selected = null;
  panel.hidden = false;
  fillLines(panel, { name: `Range of ${formatTime(to - from)}`, lines });
};

// The figures of a range follow the view once it rests.
let rangeWaits = 0;
const followView = () => {
  if (!state.range) return;
  clearTimeout(rangeWaits);
  rangeWaits = setTimeout(() => { if (state.range) showStatistics(state.view.from, state.view.to); }, 120);
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
  canvas.focus({ preventScroll: true });  // keys work after a click
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
    showStatistics(from, to);
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

// Keys work wherever the last click was, but in fields that take text and where a part of the page
// has taken the key. Keys that scroll a page or a table move the timeline only when it has the focus.
document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !state.rank) return;
  const { target } = event, dialog = byId("keys");
  if (target.closest("input, select, textarea, [contenteditable]") || dialog && dialog.open) return;
  const actions = {
    a: () => panBy(-0.2), d: () => panBy(0.2), "+": () => zoomBy(0.6), "=": () => zoomBy(0.6), w: () => zoomBy(0.6),
    "-": () => zoomBy(1 / 0.6), s: () => zoomBy(1 / 0.6), 0: showAll, f: fitSelection, m: toggleMark,
    n: () => stepFocus(1), p: () => stepFocus(-1), Escape: clearAll,
    "/": () => byId("search").focus(), "?": () => dialog && dialog.showModal(),
  };
  const scrolling = { ArrowLeft: () => panBy(-0.2), ArrowRight: () => panBy(0.2), Home: showAll };
  const free = target === canvas || target === document.body && event.key !== "Home";
  const action = actions[event.key] || free && scrolling[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

const clearAll = () => { setFocus(null); select(null); showTooltip(null); };

// The event that is selected, else the range, else the current place: as times, null for none.
const chosenSpan = () => {
  const { selected, range, focus } = state;
  if (selected) {
    const from = selected.lane.start[selected.i];
    return { from, to: from + selected.lane.dur[selected.i] };
  }
  return range ? { ...state.view } : focus && focus.places[focus.index];
};
const fitSelection = () => {
  const span = chosenSpan();
  if (span) zoomTo(span.from, span.to);
};
const toggleMark = () => {
  const span = chosenSpan();
  if (!span) return;
  const same = (mark) => mark.from === span.from && mark.to === span.to;
  state.marks = state.marks.some(same) ? state.marks.filter((mark) => !same(mark)) : [...state.marks, span];
  requestDraw();
};

// Marks stay until they are taken away, in each view: edges, and the time between them on the ruler.
const drawMarks = () => {
  for (const { from, to } of state.marks) {
    const left = clamp(xOf(from), state.gutter, state.width), right = clamp(xOf(to), state.gutter, state.width);
    if (right <= state.gutter || left >= state.width) continue;
    ink.fillStyle = palette.focus;
    ink.fillRect(left, 0, Math.max(1, right - left), 3);
    for (const [x, at] of [[left, from], [right, to]]) {
      if (Math.abs(xOf(at) - x) < 1) ink.fillRect(Math.round(x), 0, 1, state.height);
    }
    const label = formatTime(to - from);
    if (right - left > widthOf(label) + 8) {
      ink.fillStyle = palette.ink;
      ink.fillText(label, left + 4, RULER - 8);
    }
  }
};
