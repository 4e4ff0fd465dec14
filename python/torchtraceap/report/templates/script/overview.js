// The strip above the timeline: what the GPU did over the whole trace, and a brush.

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
