// Two call trees as one: rows open to show the calls below, times of both sides next to each other.

const treeOf = (data) => {
  const children = Array.from({ length: data.rows }, () => []), parent = new Array(data.rows).fill(-1);
  const roots = [], above = [];
  for (let node = 0; node < data.rows; node++) {
    while (above.length && data.depth[above[above.length - 1]] >= data.depth[node]) above.pop();
    if (above.length) parent[node] = above[above.length - 1];
    (above.length ? children[parent[node]] : roots).push(node);
    above.push(node);
  }
  return { children, parent, roots };
};

const changeOf = (data, node) => (data.after[node] || 0) - (data.before[node] || 0);

// Calls by what changed in themselves, largest first: without what changed in the calls below.
const TOLD_CHANGES = 100;
const largestChanges = (data, parent) => {
  const own = Float64Array.from({ length: data.rows }, (_, node) => changeOf(data, node));
  for (let node = 0; node < data.rows; node++) if (parent[node] >= 0) own[parent[node]] -= changeOf(data, node);
  const nodes = Array.from(own.keys()).filter((node) => own[node] !== 0);
  return nodes.sort((a, b) => Math.abs(own[b]) - Math.abs(own[a]) || a - b).slice(0, TOLD_CHANGES);
};

const TREE_ROWS = 1000;
const buildTree = (data, view) => {
  const box = make("div", "data-table"), bar = make("div", "table-bar");
  const { children, parent, roots } = treeOf(data), opened = new Set(), changes = largestChanges(data, parent);
  const most = roots.reduce((best, node) => Math.max(best, data.before[node] || 0, data.after[node] || 0), 1);
  let from = 0, current = -1, place = -1;
  const scroll = make("div", "scroll rows tree");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "group");
  scroll.setAttribute("aria-label", view.label);
  const note = make("span", "note");

  const side = (value) => {
    const cell = make("td", "number with-meter", value === null ? "—" : "");
    if (value === null) return cell;
    const svg = makeSvg("svg", { class: "meter-bar", "aria-hidden": "true" });
    svg.append(makeSvg("rect", { class: "strip-base", width: "100%", height: "100%" }), makeSvg("rect", { class: "meter-fill", width: percentOf(value / most), height: "100%" }));
    cell.append(svg, formatTime(value));
    return cell;
  };

  const rowOf = (node) => {
    const row = make("tr"), name = make("td", "text tree-name"), below = children[node].length;
    name.style.paddingLeft = `${Math.min(data.depth[node], 30) * 15}px`;
    const label = data.names[data.name[node]];
    if (below) {
      const button = makeButton("go fold", `${opened.has(node) ? "▾" : "▸"} ${label}`, () => {
        if (!opened.delete(node)) opened.add(node);
        render();
        const again = scroll.querySelector(`[data-node="${node}"]`);
        if (again) again.focus({ preventScroll: true });
      });
      button.setAttribute("aria-expanded", String(opened.has(node)));
      button.dataset.node = String(node);
      name.append(button);
    } else name.append(make("span", "clamp leaf", label));
    const before = data.before[node], after = data.after[node];
    const alone = before === null ? "only after" : after === null ? "only before" : data.matched[data.how[node]] === "position" ? "renamed" : "";
    if (alone) name.append(make("span", "mark", alone));
    const change = changeOf(data, node);
    if (node === current) row.className = "current";
    row.append(side(before), side(after), make("td", `number${Math.abs(change) < most * 0.002 ? "" : change > 0 ? " more" : " less"}`, change ? formatDelta(change) : "0"), name);
    return row;
  };

  const render = () => {
    const table = make("table"), head = make("thead"), top = make("tr"), body = make("tbody");
    for (const [title, className] of [[`${data.unit} before`, "number"], ["after", "number"], ["difference", "number"], ["call", ""]]) {
      const cell = make("th", className, title);
      cell.scope = "col";
      top.append(cell);
    }
    head.append(top);
    const lines = visible();
    from = clamp(from, 0, Math.max(0, lines.length - TREE_ROWS));
    const shown = lines.slice(from, from + TREE_ROWS);
    body.append(...shown.map(rowOf));
    table.append(head, body);
    scroll.replaceChildren(table);
    const cut = data.total > data.rows ? ` The page holds the ${formatCount(data.rows)} longest of ${formatCount(data.total)} calls.` : "";
    earlier.disabled = from === 0;
    later.disabled = from + TREE_ROWS >= lines.length;
    earlier.hidden = later.hidden = lines.length <= TREE_ROWS;
    const part = lines.length > TREE_ROWS ? `${formatCount(from + 1)} to ${formatCount(from + shown.length)} of ` : "";
    note.textContent = `${part}${formatCount(lines.length)} rows.${place >= 0 ? ` Change ${place + 1} of the ${changes.length} largest.` : ""}${cut}`;
  };

  const visible = () => {
    const lines = [], stack = [...roots].reverse();
    while (stack.length) {
      const node = stack.pop();
      lines.push(node);
      if (opened.has(node)) for (let i = children[node].length - 1; i >= 0; i--) stack.push(children[node][i]);
    }
    return lines;
  };

  // Opens the way to one of the largest changes, and nothing else.
  const goTo = (number) => {
    place = (number + changes.length) % changes.length;
    current = changes[place];
    opened.clear();
    for (let node = parent[current]; node >= 0; node = parent[node]) opened.add(node);
    from = visible().indexOf(current) - Math.floor(TREE_ROWS / 2);
    render();
    const row = scroll.querySelector("tr.current");
    if (row) scroll.scrollTop = row.offsetTop - scroll.clientHeight / 2;
  };
  const turn = (by) => { from += by; render(); scroll.scrollTop = 0; };
  const earlier = makeButton("", "Earlier rows", () => turn(-TREE_ROWS)), later = makeButton("", "Later rows", () => turn(TREE_ROWS));
  if (changes.length) bar.append(makeButton("", "‹ Larger change", () => goTo(place < 0 ? 0 : place - 1)), makeButton("", "Next change ›", () => goTo(place + 1)));
  bar.append(makeButton("", "Close all", () => { opened.clear(); current = place = -1; from = 0; render(); }), earlier, later, note);
  box.append(bar, scroll);
  render();
  if (changes.length) requestAnimationFrame(() => goTo(0));
  return box;
};
