// A flame graph, callers on top: as wide as the time of a call with all below it, so that what nothing
// below covers is its own time.

const FLAME_ROW = 19, FLAME_LEVELS = 60, LEAST_WIDTH = 0.8, LEAST_TEXT = 28;
const GPU_FILLS = new Set(["compute", "communication", "memcpy"]);

// Nodes with their children, widest first; threads are below one node for everything.
const flameOf = (chart) => {
  const count = chart.name.length, children = Array.from({ length: count + 1 }, () => []);
  const whole = count;
  for (let node = 0; node < count; node++) children[chart.parent[node] < 0 ? whole : chart.parent[node]].push(node);
  for (const below of children) below.sort((a, b) => chart.below[b] - chart.below[a] || a - b);
  const time = children[whole].reduce((sum, node) => sum + chart.below[node], 0);
  const above = (node) => (node === whole ? -1 : chart.parent[node] < 0 ? whole : chart.parent[node]);
  return {
    chart, children, whole, above,
    name: (node) => (node === whole ? `all ${chart.what}` : chart.names[chart.name[node]]),
    below: (node) => (node === whole ? time : chart.below[node]),
    own: (node) => (node === whole ? 0 : chart.own[node]),
    share: (node) => (time ? (node === whole ? 1 : chart.below[node] / time) : 0),
  };
};

// From the widest call down as long as it is nearly everything: wrappers tell nothing.
const flameStart = ({ children, below, whole }) => {
  let node = whole;
  while (children[node].length && below(children[node][0]) >= 0.97 * below(whole) && children[children[node][0]].length) node = children[node][0];
  return node;
};

// Where each visible call lies below the chosen one: [node, level, left, right], shares of the width.
const placeFlame = (flame, top, width) => {
  const placed = [[top, 0, 0, 1]], scale = flame.below(top) || 1;
  for (let at = 0; at < placed.length; at++) {
    const [node, level, left] = placed[at];
    if (level + 1 >= FLAME_LEVELS) continue;
    let x = left;
    for (const child of flame.children[node]) {
      const wide = flame.below(child) / scale;
      if (wide * width < LEAST_WIDTH) break; // the others are narrower
      placed.push([child, level + 1, x, x + wide]);
      x += wide;
    }
  }
  return placed;
};

const drawFlameNode = (flame, [node, level, left, right], width, found) => {
  const fill = node === flame.whole ? "thread" : flame.chart.fill[node], onGpu = GPU_FILLS.has(fill);
  const x = left * width, wide = Math.max(LEAST_WIDTH, (right - left) * width);
  const box = makeSvg("svg", { class: `node${onGpu ? " on-gpu" : ""}${found ? " found" : ""}`, x, y: level * FLAME_ROW, width: wide, height: FLAME_ROW, "data-node": node });
  box.append(makeSvg("rect", { class: onGpu ? `fill-${fill}` : `flame-${fill}`, width: "100%", height: "100%", rx: 2 }));
  if (wide >= LEAST_TEXT) box.append(makeSvg("text", { x: 5, y: FLAME_ROW - 6 }, flame.name(node)));
  return box;
};

// Calls whose name holds the text, and their time: of calls in each other the outermost counts.
const findInFlame = (flame, wanted) => {
  const hits = flame.chart.names.map((name) => name.toLowerCase().includes(wanted));
  const found = new Set(), inside = new Set();
  let time = 0;
  flame.chart.name.forEach((name, node) => { // parents come first
    const covered = inside.has(flame.chart.parent[node]);
    if (hits[name]) found.add(node);
    if (hits[name] && !covered) time += flame.chart.below[node];
    if (hits[name] || covered) inside.add(node);
  });
  return { found, time };
};

const sayFlame = (flame, node) => {
  const line = make("span"), count = node === flame.whole ? null : flame.chart.count[node];
  const own = flame.own(node), parts = [`${formatTime(flame.below(node))} with all below, ${formatPercent(flame.share(node))} of the ${flame.chart.what}`];
  parts.push(own ? `${formatTime(own)} of its own` : "nothing of its own");
  if (count) parts.push(`${formatCount(count)} time${count === 1 ? "" : "s"}`);
  line.append(make("b", "", flame.name(node)), ` ${parts.join("; ")}`);
  return line;
};

CHARTS.flame = (chart) => {
  const flame = flameOf(chart);
  const box = make("div", "flame"), bar = make("div", "flame-bar"), way = make("p", "flame-way"), says = make("p", "flame-says");
  const own = { top: flameStart(flame), current: -1, found: new Set(), wanted: "" };
  own.current = own.top;
  box.tabIndex = 0;
  box.setAttribute("role", "application");
  box.setAttribute("aria-label", `Flame graph of ${chart.what}: arrow keys go from call to call, Enter zooms to one, Escape back`);
  says.setAttribute("role", "status");
  const search = make("input");
  search.type = "search";
  search.placeholder = "Find a call";
  search.setAttribute("aria-label", "Find calls in the flame graph by name");
  search.autocomplete = "off";
  search.maxLength = 200;
  const hits = make("span", "note");
  hits.setAttribute("role", "status");

  const zoom = (node) => { own.top = own.current = node; paint(); };
  const goTo = (node) => { own.current = node; mark(true); };
  const showWay = () => {
    const nodes = [];
    for (let node = own.top; node >= 0; node = flame.above(node)) nodes.unshift(node);
    const shown = nodes.length > 5 ? [nodes[0], ...nodes.slice(-4)] : nodes;
    way.replaceChildren(...shown.flatMap((node, at) => {
      const label = flame.name(node), last = at === shown.length - 1;
      const item = last ? make("span", "", label) : makeButton("go", label, () => { zoom(node); box.focus(); });
      const gap = at === 1 && shown.length < nodes.length ? [make("span", "", `› ${nodes.length - shown.length} more`)] : [];
      return [...(at ? [...gap, make("span", "", "›")] : []), item];
    }));
  };
  const mark = (follow) => {
    for (const node of box.querySelectorAll(".current")) node.classList.remove("current");
    const node = box.querySelector(`[data-node="${own.current}"]`);
    if (node) node.classList.add("current");
    if (node && follow) {
      const y = Number(node.getAttribute("y"));
      if (y < box.scrollTop) box.scrollTop = y;
      if (y + FLAME_ROW > box.scrollTop + box.clientHeight) box.scrollTop = y + FLAME_ROW - box.clientHeight;
    }
    show.disabled = own.current === flame.whole || chart.fill[own.current] === "thread";
    says.replaceChildren(sayFlame(flame, own.current));
  };
  const paint = () => {
    const width = box.clientWidth;
    if (!width) return;
    own.placed = placeFlame(flame, own.top, width);
    const levels = own.placed.reduce((most, place) => Math.max(most, place[1]), 0) + 1;
    const svg = makeSvg("svg", { width, height: levels * FLAME_ROW, "aria-hidden": "true" });
    svg.append(...own.placed.map((place) => drawFlameNode(flame, place, width, own.found.has(place[0]))));
    box.replaceChildren(svg);
    showWay();
    mark(false);
  };
  const nodeAt = (event) => {
    const node = event.target.closest("[data-node]");
    return node ? Number(node.dataset.node) : -1;
  };
  // Callers above the one zoomed to are reached by Escape and by the way above the graph.
  const neighbour = (by) => {
    if (own.current === own.top) return own.current;
    const drawn = new Set(own.placed.map((place) => place[0]));
    const row = flame.children[flame.above(own.current)].filter((node) => drawn.has(node));
    return row[row.indexOf(own.current) + by] ?? own.current;
  };
  const below = () => own.placed.find((place) => flame.above(place[0]) === own.current && place[0] !== own.top)?.[0] ?? own.current;
  const keys = {
    ArrowDown: () => goTo(below()),
    ArrowUp: () => goTo(own.current === own.top ? own.top : flame.above(own.current)),
    ArrowLeft: () => goTo(neighbour(-1)),
    ArrowRight: () => goTo(neighbour(1)),
    Enter: () => zoom(own.current),
    Escape: () => zoom(own.top === flame.whole ? own.top : flame.above(own.top)),
    Home: () => zoom(flame.whole),
  };
  box.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  box.addEventListener("click", (event) => { const node = nodeAt(event); if (node >= 0) zoom(node); });
  box.addEventListener("pointermove", (event) => { const node = nodeAt(event); if (node >= 0 && node !== own.current) goTo(node); });
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    const { found, time } = wanted ? findInFlame(flame, wanted) : { found: new Set(), time: 0 };
    own.found = found;
    const share = time / (flame.below(flame.whole) || 1);
    hits.textContent = wanted ? `${formatCount(found.size)} found: ${formatTime(time)}, ${formatPercent(share)}` : "";
    paint();
  });
  const show = makeButton("", "Show in the timeline", () => { scrollToTimeline(); focusSearch(flame.name(own.current).replace(/…$/, "").slice(0, 150)); });
  bar.append(search, makeButton("", "Whole", () => zoom(flame.whole)), show, hits);
  let drawn = 0;
  new ResizeObserver(() => { if (box.clientWidth !== drawn) { drawn = box.clientWidth; paint(); } }).observe(box);
  const kinds = new Set(chart.fill), entries = [["compute", "compute"], ["communication", "communication"], ["memcpy", "copies and sets"]];
  const parts = [bar, way, box, says];
  if (entries.some(([fill]) => kinds.has(fill))) parts.push(legendOf(entries.filter(([fill]) => kinds.has(fill))));
  if (chart.left) parts.push(make("p", "note", `The ${formatCount(chart.name.length)} with the most time of ${formatCount(chart.name.length + chart.left)}.`));
  return parts;
};
