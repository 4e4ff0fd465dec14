// A focus is a list of intervals to walk through: a finding, a cause, matches of a search.

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
const markSearch = (text) => {
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
};
const focusSearch = (text) => {
  markSearch(text);
  goToFocus();
};

// A link to a place: the visible range and the rank stand behind the "#" of the address.
let placeNoted = 0;
const noteView = () => {
  clearTimeout(placeNoted);
  placeNoted = setTimeout(() => {
    const { from, to } = state.view, home = homeView();
    const isHome = state.number === 0 && Math.abs(from - home.from) < 1 && Math.abs(to - home.to) < 1;
    const place = `#at=${Math.round(from - state.origin)},${Math.round(to - state.origin)}&rank=${state.number}`;
    if (!isHome || location.hash.startsWith("#at=")) history.replaceState(null, "", isHome ? "#" : place);
  }, 400);
};
const openPlace = async () => {
  const found = /^#at=(-?\d{1,15}),(-?\d{1,15})&rank=(\d{1,4})$/.exec(location.hash);
  if (!found || !report.ranks[Number(found[3])]) return;
  if (Number(found[3]) !== state.number) await showRank(Number(found[3]));
  setView(Number(found[1]) + state.origin, Number(found[2]) + state.origin);
};

const scrollToTimeline = () => {
  const section = byId("timeline");
  const box = section.getBoundingClientRect();
  if (box.top >= -4 && box.top < window.innerHeight * 0.45) return;
  section.scrollIntoView({ behavior: calm.matches ? "auto" : "smooth", block: "start" });
};
