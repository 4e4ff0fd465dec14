// Any table: sorted by a click on a heading, filtered by text, its first rows, more on demand.

const FIRST_ROWS = 200, MORE_ROWS = 500;

const cellText = (column, row) => {
  const value = column.values[row];
  if (column.unit === "text") return value < 0 ? "—" : column.texts[value];
  return value === null ? "—" : formatAs(column.unit, value);
};

// Orders rows by a column; absent values come last whichever way it is sorted.
const sortedRows = (rows, column, descending) => {
  const key = column.unit === "text"
    ? (row) => (column.values[row] < 0 ? null : column.texts[column.values[row]].toLowerCase())
    : (row) => column.values[row];
  const sign = descending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const x = key(a), y = key(b);
    if (x === null || y === null) return (x === null) - (y === null) || a - b;
    return (x < y ? -sign : x > y ? sign : 0) || a - b;
  });
};

const matchingRows = (columns, count, wanted) => {
  const rows = Array.from({ length: count }, (_, row) => row);
  if (!wanted) return rows;
  const texts = columns.filter((column) => column.unit === "text");
  const hits = texts.map((column) => column.texts.map((text) => text.toLowerCase().includes(wanted)));
  return rows.filter((row) => texts.some((column, i) => column.values[row] >= 0 && hits[i][column.values[row]]));
};

const meterCell = (share, text) => {
  const cell = make("td", "number with-meter"), svg = makeSvg("svg", { class: "meter-bar", "aria-hidden": "true" });
  svg.append(makeSvg("rect", { class: "strip-base", width: "100%", height: "100%" }));
  svg.append(makeSvg("rect", { class: "meter-fill", width: percentOf(Math.min(1, share)), height: "100%" }));
  cell.append(svg, text);
  return cell;
};

// Short words stay on one line; a heading is wider than they are anyway.
const isShort = (column) => column.texts.every((text) => text.length <= 26);

// A change counts as one unless the table says that it is within noise.
const changeClass = (table, value, row) => {
  const status = table.columns.find((entry) => entry.name === "status");
  if (!value || status && status.texts[status.values[row]] === "unchanged") return "";
  return value > 0 ? " more" : " less";
};

const buildCell = (table, column, row, view) => {
  const text = cellText(column, row), value = column.values[row];
  if (column.name === view.meter && value !== null) return meterCell(value, text);
  if (column.unit !== "text") {
    return make("td", `number${column.unit === "delta" ? changeClass(table, value, row) : ""}`, text);
  }
  const cell = make("td", isShort(column) ? "text short-text" : "text");
  if (column.name === view.find && value >= 0) {
    cell.append(makeButton("go", text, () => { scrollToTimeline(); focusSearch(text.trim().replace(/…$/, "").slice(0, 150)); }));
  } else {
    const line = make("span", "clamp", text);
    if (text.length > 60) line.title = text;
    cell.append(line);
  }
  return cell;
};

// All columns of the rows that the page holds; no cell begins as a formula does.
const csvOf = (table) => {
  const quoted = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  const cell = (column, row) => {
    const value = column.values[row];
    if (column.unit === "text") return value < 0 ? "" : quoted(column.texts[value]);
    return value === null ? "" : String(value);
  };
  const lines = [table.columns.map((column) => column.name).join(",")];
  for (let row = 0; row < table.rows; row++) lines.push(table.columns.map((column) => cell(column, row)).join(","));
  return `${lines.join("\r\n")}\r\n`;
};
const saveCsv = (table, view) => {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([csvOf(table)], { type: "text/csv" }));
  link.download = `${view.key}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
};

const buildTable = (table, view) => {
  const box = make("div", "data-table");
  const own = { order: null, descending: true, wanted: "", limit: FIRST_ROWS, every: false };
  const bar = make("div", "table-bar"), search = make("input");
  search.type = "search";
  search.placeholder = "Filter rows";
  search.setAttribute("aria-label", `Filter the rows of ${view.label}`);
  search.autocomplete = "off";
  search.maxLength = 200;
  const count = make("span", "note");
  count.setAttribute("role", "status");
  const every = makeButton("", "All columns", () => {
    own.every = !own.every;
    every.setAttribute("aria-pressed", String(own.every));
    render();
  });
  every.setAttribute("aria-pressed", "false");
  const save = makeButton("", "Save as CSV", () => saveCsv(table, view));
  bar.append(search, ...(table.columns.length > table.shown ? [every] : []), save, count);
  const scroll = make("div", "scroll rows");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "group");
  scroll.setAttribute("aria-label", view.label);
  const more = makeButton("more", "", () => { own.limit += MORE_ROWS; render(); });
  box.append(bar, scroll, more);

  const heading = (column) => {
    const cell = make("th", column.unit === "text" ? "" : "number");
    cell.scope = "col";
    const active = own.order === column.name;
    if (active) cell.setAttribute("aria-sort", own.descending ? "descending" : "ascending");
    cell.append(makeButton("sort", `${column.title}${active ? (own.descending ? " ↓" : " ↑") : ""}`, () => {
      const first = column.unit !== "text";
      if (own.order !== column.name) { own.order = column.name; own.descending = first; }
      else if (own.descending === first) own.descending = !first;
      else own.order = null;
      render();
    }));
    return cell;
  };

  const render = () => {
    const columns = own.every ? table.columns : table.columns.slice(0, table.shown);
    let rows = matchingRows(columns, table.rows, own.wanted);
    const order = table.columns.find((column) => column.name === own.order);
    if (order) rows = sortedRows(rows, order, own.descending);
    const grid = make("table"), head = make("thead"), top = make("tr"), body = make("tbody");
    top.append(...columns.map(heading));
    head.append(top);
    for (const row of rows.slice(0, own.limit)) {
      const line = make("tr");
      line.append(...columns.map((column) => buildCell(table, column, row, view)));
      body.append(line);
    }
    grid.append(head, body);
    scroll.replaceChildren(grid);
    const left = rows.length - Math.min(rows.length, own.limit);
    more.hidden = !left;
    more.textContent = `Show ${formatCount(Math.min(left, MORE_ROWS))} more`;
    const cut = table.total > table.rows ? ` The page holds the first ${formatCount(table.rows)} of ${formatCount(table.total)}.` : "";
    count.textContent = `${own.wanted ? `${formatCount(rows.length)} of ` : ""}${formatCount(table.rows)} row${table.rows === 1 ? "" : "s"}.${cut}`;
  };
  search.addEventListener("input", () => { own.wanted = search.value.trim().toLowerCase(); own.limit = FIRST_ROWS; render(); });
  render();
  return box;
};
