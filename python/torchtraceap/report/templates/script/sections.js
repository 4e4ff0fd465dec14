// Sections of tables and charts: built when they are opened, for the rank that is chosen.

let unpackedTables = null;
const tablesOf = (key) => {
  unpackedTables = unpackedTables || unpackJson("tables");
  return unpackedTables.then((tables) => tables[key]);
};

const sectionState = new Map(); // by key: the view that is shown
let currentPart = 0;

const fillSection = async (node) => {
  const section = report.sections.find((entry) => entry.key === node.dataset.section);
  const body = node.querySelector(".section-body");
  const views = await tablesOf(section.key);
  const chosen = sectionState.get(section.key) || 0;
  const view = section.views[chosen], parts = views[chosen];
  const table = parts[Math.min(currentPart, parts.length - 1)];
  const content = [];
  if (section.views.length > 1) content.push(viewButtons(node, section, chosen));
  if (view.hint) content.push(make("p", "lead", view.hint));
  if (table.chart) content.push(buildChart(table.chart, table));
  if (table.tree) content.push(buildTree(table, view));
  else if (table.rows) content.push(buildTable(table, view));
  const notes = make("ul", "notes");
  notes.append(...table.notes.map((note) => make("li", "", note)));
  if (table.notes.length) content.push(notes);
  body.replaceChildren(...content);
  node.dataset.ready = `${currentPart}-${view.key}`;
};

const viewButtons = (node, section, chosen) => {
  const group = make("div", "views");
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", `${section.title}: what the rows are`);
  section.views.forEach((view, number) => {
    const button = makeButton("", view.label, async () => {
      sectionState.set(section.key, number);
      await fillSection(node);
      node.querySelectorAll(".views button")[number].focus();
    });
    button.setAttribute("aria-pressed", String(number === chosen));
    group.append(button);
  });
  return group;
};

const openSection = (node) => fillSection(node).catch((error) => {
  node.querySelector(".section-body").replaceChildren(make("p", "note",
    `This browser cannot unpack the tables (${error.message}); the command line prints them too.`));
  node.dataset.ready = "failed";
});

const showPart = (number) => {
  currentPart = number;
  for (const node of document.querySelectorAll("[data-section]")) {
    const section = report.sections.find((entry) => entry.key === node.dataset.section);
    const leads = section.leads;
    node.querySelector(".section-lead").textContent = leads[Math.min(number, leads.length - 1)];
    if (leads.length < 2) continue;
    delete node.dataset.ready;
    if (node.open) openSection(node);
  }
};

const wireSections = () => {
  for (const node of document.querySelectorAll("[data-section]")) {
    node.addEventListener("toggle", () => { if (node.open && !node.dataset.ready) openSection(node); });
    if (node.open) openSection(node);
  }
  showPart(currentPart);
};
