// What of the timeline is visible, and where each lane lies on the canvas.

const RULER = 26, LANE_GAP = 9, TITLE = 17, OVERVIEW = 46;
const ROW_HEIGHT = { step: 22, finding: 16, idle: 18, path: 18, gpu: 21, host: 16 };
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
  hover: null, selected: null, range: false, marks: [], focus: null, target: null, animation: 0,
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
const showAll = () => moveTo(state.bounds.from, state.bounds.to);
const homeRange = () => ({ from: state.rank.profiled[0], to: state.rank.profiled[1] });
const homeView = () => {
  const { from, to } = homeRange(), pad = (to - from) * 0.015;
  return limitView(from - pad, to + pad);
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
  drawMissing();
  drawLaunchLink();
  drawOutline(state.selected, 2);
  drawOutline(state.hover, 1);
  drawMarks();
  drawSweep();
  drawGutter();
  drawOverview();
  canvas.dataset.viewFrom = String(Math.round(state.view.from - state.origin));
  canvas.dataset.viewTo = String(Math.round(state.view.to - state.origin));
  canvas.dataset.marks = String(state.marks.length);
  byId("view-range").textContent =
    `${formatPlace(state.view.from)} to ${formatPlace(state.view.to)}` +
    ` · ${formatTime(spanOf(state.view))} shown`;
  noteView();
  followView();
};
// A time on the page's clock with as many digits as tell the ends of the view apart.
const formatPlace = (time) => tickLabel(Math.round(time - state.origin), spanOf(state.view) / 1000);
