// The page's short lists, the choice of a rank, and copying.

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
  state.marks = [];
  setFocus(null);
  select(null);
  byId("timeline-note").textContent = report.ranks[number].notes.join(" ");
  state.view = state.target = homeView();
  layOut();
  for (const chooser of document.querySelectorAll(".choose-rank")) chooser.value = String(number);
  showPart(number);
  canvas.dataset.ready = String(number);
};

const withRank = async (name, then) => {
  const number = report.ranks.findIndex((rank) => rank.name === name);
  if (number >= 0 && number !== state.number) await showRank(number);
  scrollToTimeline();
  then();
};

const severalRanks = report.rankRows.length > 1;
// Then the host's operators stand where a GPU's time would.
const onHost = report.operators.length > 0;
const cell = (row, text, className) => row.append(make("td", className, text));

const goButton = (text, label, action) => {
  const button = makeButton("go", text, action);
  button.setAttribute("aria-label", label);
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

const smallBar = (shares) => {
  const label = shares.map(([name, share]) => `${name} ${Math.round(share * 100)} %`).join(", ");
  const svg = makeSvg("svg", { class: "small-bar", role: "img", "aria-label": label });
  let x = 0;
  for (const [name, share] of shares) {
    svg.append(makeSvg("rect", { x: percentOf(x), width: percentOf(share), height: "100%", class: `fill-${name}` }));
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
    if (!onHost) fillBusy(row, step);
    body.append(row);
  }
};

const fillBusy = (row, part) => {
  const bar = make("td", "meter");
  bar.append(smallBar([["compute", part.compute], ["communication", part.communication], ["memcpy", part.memcpy]]));
  row.append(bar);
  cell(row, `${Math.round(part.busy * 100)} %`, "number");
};

const fillRanks = () => {
  const body = byId("rank-rows");
  if (!body) return;
  for (const rank of report.rankRows) {
    const row = make("tr"), first = make("td", "name");
    first.append(goButton(rank.label, `Show ${rank.label} in the timeline`, () => withRank(rank.name, () => {})));
    row.append(first);
    cell(row, formatTime(rank.ns), "number");
    fillBusy(row, rank);
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

const copyByCommand = (text) => {
  const area = make("textarea", "off-screen");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
};

const asMarkdown = (finding) => [
  `### ${finding.title}`, "", `**${finding.saves}** (${finding.type})`, "", finding.why, "", finding.fix, "",
  ...(finding.code ? ["```python", finding.code.trimEnd(), "```", ""] : []),
  ...finding.evidence.slice(0, 3).map((item) => `- ${item.name.replaceAll("`", "'")}: ${formatTime(item.ns)} at ${formatTime(item.at)}`),
  "",
].join("\n");

const copyCode = (button, number) => copyText(button, report.findings[number].code);
const copyText = async (button, text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyByCommand(text);
  }
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1500);
};
