// Connects buttons with what they do, then shows the first rank.

const onClick = (id, action) => {
  const node = byId(id);
  if (node) node.addEventListener("click", action);
};

const wire = () => {
  for (const node of document.querySelectorAll("[data-finding]")) {
    const number = Number(node.dataset.finding);
    node.addEventListener("click", () => withRank(report.findings[number].rank, () => focusFinding(number)));
  }
  for (const node of document.querySelectorAll("[data-cause]")) {
    node.addEventListener("click", () => { scrollToTimeline(); focusCause(node.dataset.cause); });
  }
  for (const node of document.querySelectorAll("[data-copy]")) {
    node.addEventListener("click", () => copyCode(node, Number(node.dataset.copy)));
  }
  onClick("zoom-in", () => zoomBy(0.5));
  onClick("zoom-out", () => zoomBy(2));
  onClick("zoom-all", showAll);
  onClick("focus-previous", () => stepFocus(-1));
  onClick("focus-next", () => stepFocus(1));
  onClick("focus-clear", clearAll);
  onClick("show-keys", () => byId("keys").showModal());
  onClick("close-keys", () => byId("keys").close());
  for (const node of document.querySelectorAll("[data-markdown]")) {
    node.addEventListener("click", () => copyText(node, asMarkdown(report.findings[Number(node.dataset.markdown)])));
  }
  onClick("unfold", (event) => {
    state.unfolded = !state.unfolded;
    event.currentTarget.setAttribute("aria-pressed", String(state.unfolded));
    layOut();
  });
  const search = byId("search");
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    if (state.focus && state.focus.key === "search" && search.dataset.last === search.value) return stepFocus(event.shiftKey ? -1 : 1);
    search.dataset.last = search.value;
    focusSearch(search.value);
  });
  // Marks matches as one types; Enter goes to them.
  let typed = 0;
  search.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(() => { search.dataset.last = ""; markSearch(search.value); }, 150);
  });
  search.addEventListener("search", () => { if (!search.value) setFocus(null); });
  for (const chooser of document.querySelectorAll(".choose-rank")) {
    report.ranks.forEach((rank, number) => {
      const option = make("option", "", rank.label);
      option.value = String(number);
      chooser.append(option);
    });
    chooser.addEventListener("change", () => showRank(Number(chooser.value)));
  }
  window.addEventListener("beforeprint", () => {
    state.printed = state.view;
    state.view = limitView(state.bounds.from, state.bounds.to);
    draw();
  });
  window.addEventListener("afterprint", () => setView(state.printed.from, state.printed.to));
  dark.addEventListener("change", () => { readPalette(); requestDraw(); });
  new ResizeObserver(() => { if (state.rank && board.clientWidth !== state.width) layOut(); }).observe(board);
};

const begin = async () => {
  readPalette();
  fillTexts();
  fillEvidence();
  fillSteps();
  fillRanks();
  fillNotes();
  wire();
  wireSections();
  try {
    await showRank(0);
    await openPlace();
  } catch (error) {
    byId("timeline-note").textContent =
      `This browser cannot draw the timeline (${error.message}); everything else on the page is complete.`;
    canvas.dataset.ready = "failed";
  }
};
begin();
