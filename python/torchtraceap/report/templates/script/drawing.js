// Draws the timeline. Only what is visible is visited.

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

// Where GPU records are missing: hatched over everything, as nothing is known there.
const drawMissing = () => {
  const missing = state.rank.missing;
  if (!missing) return;
  ink.save();
  ink.strokeStyle = palette.muted;
  ink.lineWidth = 1;
  for (const [from, to] of missing) {
    const left = clamp(xOf(from), state.gutter, state.width), right = clamp(xOf(to), state.gutter, state.width);
    if (right - left < 1) continue;
    const height = state.height - RULER;
    ink.save();
    ink.beginPath();
    ink.rect(left, RULER, right - left, height);
    ink.clip();
    ink.beginPath();
    for (let x = left - height; x < right; x += 12) {
      ink.moveTo(x, state.height);
      ink.lineTo(x + height, RULER);
    }
    ink.stroke();
    ink.restore();
  }
  ink.restore();
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
