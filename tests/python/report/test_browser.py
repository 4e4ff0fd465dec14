"""The HTML report in a real browser: it draws, it moves to findings, it runs nothing foreign."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_samples as samples
from served_model import Served

pytest.importorskip("torchtraceap._core", reason="torchtraceap._core is not built")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright import sync_api

import torchtraceap as ttap
from torchtraceap.core.formatting import format_ns
from torchtraceap.report.diff_page import _VIEWS, write_diff_page

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
DEMO = Path(__file__).parents[3] / "examples/traces/resnet50_num_workers_0.json.gz"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"there is no {CHROMIUM}"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Visit:
    """A page that was opened, with everything suspicious that happened on it."""

    def __init__(self, browser: Any, path: Path, width: int = 1400) -> None:
        self.trouble: list[str] = []
        size = {"width": width, "height": 900}
        self.context = browser.new_context(viewport=size, reduced_motion="reduce")
        self.page = self.context.new_page()
        own = path.as_uri()
        note = self.trouble.append
        self.page.on("request", lambda r: r.url != own and note(f"request {r.url}"))
        self.page.on("dialog", lambda d: (note(f"dialog {d.message}"), d.dismiss()))
        self.page.on("pageerror", lambda error: note(f"error {error}"))
        self.page.on("console", lambda m: m.type == "error" and note(f"console {m.text}"))
        self.page.on("popup", lambda p: note(f"popup {p.url}"))
        self.page.goto(own)
        if self.page.locator("#timeline-canvas").count():
            self.page.wait_for_selector("#timeline-canvas[data-ready='0']")
            self.page.wait_for_selector("#timeline-canvas[data-view-from]")

    def view(self) -> tuple[int, int]:
        """The visible range, ns after the profiled start."""
        self.page.evaluate("() => new Promise(requestAnimationFrame)")
        self.page.evaluate("() => new Promise(requestAnimationFrame)")
        data = self.page.eval_on_selector("#timeline-canvas", "node => ({...node.dataset})")
        return int(data["viewFrom"]), int(data["viewTo"])

    def colours(self) -> int:
        """How many different colours the timeline shows."""
        return int(
            self.page.eval_on_selector(
                "#timeline-canvas",
                """node => {
                  const {data} = node.getContext("2d").getImageData(0, 0, node.width, node.height);
                  return new Set(new Uint32Array(data.buffer)).size;
                }""",
            )
        )

    def open_section(self, key: str) -> Any:
        """Opens a section of tables and waits until it is filled."""
        section = self.page.locator(f"#tables-{key}")
        if section.get_attribute("open") is None:
            section.locator("summary").click()
        self.page.wait_for_selector(f"#tables-{key}[data-ready]")
        return section

    def views(self, section: Any) -> Iterator[str]:
        """Shows each view of an open section in turn; gives its key."""
        for button in section.locator(".views button").all() or [None]:
            if button is not None:
                before = section.get_attribute("data-ready")
                pressed = button.get_attribute("aria-pressed") == "true"
                button.click()
                if not pressed:
                    self.page.wait_for_function(
                        "([id, before]) => document.getElementById(id).dataset.ready !== before",
                        arg=[section.get_attribute("id"), before],
                    )
            yield str(section.get_attribute("data-ready"))

    def cells(self, section: Any, column: int) -> list[str]:
        """The texts of a column of the table of an open section."""
        found: list[str] = section.locator(f".rows tbody td:nth-child({column})").all_inner_texts()
        return found

    def close(self) -> None:
        self.context.close()
        assert self.trouble == []


def write_diff(before: Path, after: Path, page: Path) -> tuple[ttap.Trace, ttap.Trace]:
    traces = ttap.load(before), ttap.load(after)
    write_diff_page(*traces, page)
    return traces


def write_page(trace: Path, folder: Path) -> tuple[ttap.Diagnosis, Path]:
    diagnosis = ttap.diagnose(trace)
    page = folder / "report.html"
    diagnosis.to_html(page)
    return diagnosis, page


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[ttap.Diagnosis, Path]:
    return write_page(DEMO, tmp_path_factory.mktemp("demo"))


def test_it_draws_the_whole_profile(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    diagnosis, page = demo
    visit = Visit(browser, page)
    start, end = visit.view()
    assert start <= 0
    assert end >= diagnosis.profiled_ns
    assert visit.colours() > 8
    assert visit.page.inner_text("h1").startswith(diagnosis.findings[0].title)
    visit.close()


@pytest.mark.parametrize("width", [1400, 420])
def test_a_click_on_a_finding_moves_the_timeline_there(
    browser: Any, demo: tuple[ttap.Diagnosis, Path], width: int
) -> None:
    diagnosis, page = demo
    visit = Visit(browser, page, width)
    before = visit.view()
    origin = diagnosis.trace.ranks[0].tree.profiled[0]
    for number, finding in enumerate(diagnosis.findings):
        visit.page.locator(f"article button[data-finding='{number}']").click()
        start, end = visit.view()
        assert end - start < before[1] - before[0]
        spans = finding.intervals - origin
        seen = (spans[:, 1] > start) & (spans[:, 0] < end)
        assert seen.any()
        # The whole place is in view, not its edge alone.
        inside = (spans[:, 0] >= start) & (spans[:, 1] <= end)
        assert inside.any()
        box = visit.page.locator("#timeline-canvas").bounding_box()
        assert box["y"] < 900 and box["y"] + box["height"] > 0
        assert visit.page.inner_text("#focus-label").endswith(finding.title)
        pressed = visit.page.get_attribute(f".chip[data-finding='{number}']", "aria-pressed")
        assert pressed == "true"
    visit.page.locator("#zoom-all").click()
    assert visit.view() == before
    visit.close()


def test_places_of_a_finding_are_walked_by_key(
    browser: Any, demo: tuple[ttap.Diagnosis, Path]
) -> None:
    visit = Visit(browser, demo[1])
    visit.page.locator(".chip").first.click()
    seen = {visit.view()}
    visit.page.focus("#timeline-canvas")
    for _ in range(3):
        visit.page.keyboard.press("n")
        seen.add(visit.view())
    assert len(seen) == 4
    visit.page.keyboard.press("p")
    assert visit.view() in seen
    visit.page.keyboard.press("Escape")
    assert visit.page.locator("#focus-bar").is_hidden()
    visit.close()


def test_evidence_steps_and_causes_lead_into_the_timeline(
    browser: Any, demo: tuple[ttap.Diagnosis, Path]
) -> None:
    diagnosis, page = demo
    visit = Visit(browser, page)
    origin = diagnosis.trace.ranks[0].tree.profiled[0]
    visit.page.locator("#evidence-0 button").nth(2).click()
    event = diagnosis.findings[0].evidence[2]
    start, end = visit.view()
    assert start <= event.start_ns - origin <= event.start_ns + event.duration_ns - origin <= end
    visit.page.locator("#step-rows button").nth(1).click()
    step = diagnosis.summary.steps[1]
    start, end = visit.view()
    assert abs(start - (step.start_ns - origin)) < 1000
    assert abs(end - start - step.duration_ns) < 2000
    visit.page.locator("[data-cause]").first.click()
    assert visit.page.inner_text("#focus-label").startswith("GPU idle")
    visit.close()


def test_wheel_drag_and_keys_move_the_view(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    visit = Visit(browser, demo[1])
    page = visit.page
    page.locator("#timeline").scroll_into_view_if_needed()
    page.evaluate("document.getElementById('timeline').scrollIntoView()")
    box = page.locator("#timeline-canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 120
    whole = visit.view()
    page.mouse.move(x, y)
    page.mouse.wheel(0, -400)
    near = visit.view()
    assert near[1] - near[0] < whole[1] - whole[0]
    page.mouse.down()
    page.mouse.move(x - 150, y, steps=4)
    page.mouse.up()
    moved = visit.view()
    assert moved[0] > near[0]
    assert moved[1] - moved[0] == pytest.approx(near[1] - near[0], rel=1e-3)
    page.focus("#timeline-canvas")
    page.keyboard.press("+")
    closer = visit.view()
    assert closer[1] - closer[0] < moved[1] - moved[0]
    page.keyboard.press("ArrowLeft")
    assert visit.view()[0] < closer[0]
    page.keyboard.press("0")
    assert visit.view() == whole
    visit.close()


def test_keys_work_after_a_click_anywhere(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    visit = Visit(browser, demo[1])
    page = visit.page
    whole = visit.view()
    page.click("#findings-title")  # far from the timeline
    for key, narrower in (("w", True), ("s", False), ("+", True), ("-", False)):
        before = visit.view()
        page.keyboard.press(key)
        after = visit.view()
        assert (after[1] - after[0] < before[1] - before[0]) is narrower
    page.keyboard.press("w")
    middle = visit.view()
    page.keyboard.press("d")
    assert visit.view()[0] > middle[0]
    page.keyboard.press("a")
    assert visit.view() == pytest.approx(middle, abs=2)
    page.keyboard.press("0")
    assert visit.view() == whole
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("aw")  # a field takes what is typed
    assert page.input_value("#search") == "aw"
    assert visit.view() == whole
    visit.close()


def test_the_keys_are_listed(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    visit = Visit(browser, demo[1])
    page = visit.page
    page.click("#findings-title")
    page.keyboard.press("?")
    page.wait_for_selector("#keys[open]")
    whole = visit.view()
    page.keyboard.press("w")  # the dialog is in front
    assert visit.view() == whole
    page.click("#close-keys")
    page.wait_for_selector("#keys:not([open])", state="attached")
    page.click("#show-keys")
    page.wait_for_selector("#keys[open]")
    assert page.locator("#keys kbd").count() >= 10
    visit.close()


def test_an_event_is_fitted_and_marked_by_key(
    browser: Any, demo: tuple[ttap.Diagnosis, Path]
) -> None:
    visit = Visit(browser, demo[1])
    page = visit.page
    page.locator(".chip").first.click()
    near = visit.view()
    page.keyboard.press("0")
    whole = visit.view()
    page.keyboard.press("f")
    assert visit.view() == near != whole
    page.keyboard.press("m")
    marks = "() => document.getElementById('timeline-canvas').dataset.marks"
    page.wait_for_function(f"({marks})() === '1'")
    page.keyboard.press("m")
    page.wait_for_function(f"({marks})() === '0'")
    visit.close()


def test_the_figures_of_a_range_follow_the_view(
    browser: Any, demo: tuple[ttap.Diagnosis, Path]
) -> None:
    visit = Visit(browser, demo[1])
    page = visit.page
    page.evaluate("document.getElementById('timeline').scrollIntoView()")
    box = page.locator("#timeline-canvas").bounding_box()
    x, y = box["x"] + 500, box["y"] + 10  # on the ruler
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 300, y, steps=4)
    page.mouse.up()
    page.wait_for_function(
        "() => document.querySelector('#selection').innerText.includes('Range of')"
    )
    said = page.inner_text("#selection")
    page.keyboard.press("w")
    page.wait_for_function(
        "said => document.querySelector('#selection').innerText !== said", arg=said
    )
    start, end = visit.view()
    shown = page.inner_text("#selection .event-name").removeprefix("Range of ")
    assert shown == format_ns(end - start).replace(" ", "\u00a0") or shown == format_ns(end - start)
    visit.close()


def test_hovering_an_event_names_it(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    visit = Visit(browser, demo[1])
    page = visit.page
    page.fill("#search", "aten::conv2d")
    page.press("#search", "Enter")
    assert "place 1 of" in page.inner_text("#focus-place")
    page.evaluate("document.getElementById('timeline').scrollIntoView()")
    box = page.locator("#timeline-canvas").bounding_box()
    names = set()
    for y in range(30, int(box["height"]), 8):
        page.mouse.move(box["x"] + 164 + (box["width"] - 164) / 2, box["y"] + y)
        tooltip = page.locator("#timeline-tooltip")
        if tooltip.is_visible():
            names.add(tooltip.locator(".event-name").inner_text())
    assert "aten::conv2d" in names
    page.mouse.move(5, 5)
    assert page.locator("#timeline-tooltip").is_hidden()
    visit.close()


def test_a_hostile_trace_runs_nothing(browser: Any, tmp_path: Path) -> None:
    trace = samples.hostile().write(tmp_path / "trace.json")
    diagnosis, page = write_page(trace, tmp_path)
    visit = Visit(browser, page)
    for button in visit.page.locator("main button:visible").all():
        if button.is_visible() and button.is_enabled():
            button.click()
            if visit.page.locator("dialog[open]").count():  # the list of keys, over everything
                visit.page.keyboard.press("Escape")
                visit.page.wait_for_selector("dialog[open]", state="hidden")
    visit.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    visit.page.evaluate("document.getElementById('timeline').scrollIntoView()")
    visit.page.locator("#zoom-all").click()
    box = visit.page.locator("#timeline-canvas").bounding_box()
    for y in range(10, int(box["height"]), 12):
        visit.page.mouse.move(box["x"] + 400, box["y"] + y)
        visit.page.mouse.click(box["x"] + 300, box["y"] + y)
    assert visit.page.evaluate("window.hacked === undefined")
    assert visit.page.locator("img").count() == 0
    assert visit.page.locator("script").count() == 4
    assert samples.HOSTILE[0] in visit.page.inner_text("#evidence-0")
    assert diagnosis.findings
    visit.close()


def test_ranks_can_be_switched(browser: Any, tmp_path: Path) -> None:
    for rank in range(3):
        samples.slow_loader(steps=2, rank=rank, world_size=3).write(tmp_path / f"rank{rank}.json")
    _, page = write_page(tmp_path, tmp_path)
    visit = Visit(browser, page)
    visit.page.select_option("#rank-select", "2")
    visit.page.wait_for_selector("#timeline-canvas[data-ready='2']")
    visit.page.locator("#rank-rows button").nth(1).click()
    visit.page.wait_for_selector("#timeline-canvas[data-ready='1']")
    assert visit.page.input_value("#rank-select") == "1"
    visit.close()


@pytest.mark.parametrize("width", [1400, 420])
def test_nothing_sticks_out_sideways(
    browser: Any, demo: tuple[ttap.Diagnosis, Path], width: int
) -> None:
    visit = Visit(browser, demo[1], width)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    visit.close()


def test_controls_have_names(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    visit = Visit(browser, demo[1])
    nameless = visit.page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, canvas[tabindex]")]
             .filter(n => !(n.textContent.trim() || n.ariaLabel || n.labels?.length))
             .map(n => n.outerHTML)"""
    )
    assert nameless == []
    ids = visit.page.evaluate("[...document.querySelectorAll('[id]')].map(n => n.id)")
    assert len(ids) == len(set(ids))
    visit.close()


# ---------------------------------------------------------------------------------- sections


def test_nothing_is_built_before_a_section_is_opened(
    browser: Any, demo: tuple[ttap.Diagnosis, Path]
) -> None:
    visit = Visit(browser, demo[1])
    assert visit.page.locator(".section-body *").count() == 0
    visit.open_section("operators")
    assert visit.page.locator(".section-body table").count() == 1
    visit.close()


@pytest.mark.parametrize("width", [1400, 420])
def test_every_view_of_every_section_opens(
    browser: Any, demo: tuple[ttap.Diagnosis, Path], width: int
) -> None:
    visit = Visit(browser, demo[1], width)
    sections = visit.page.locator("[data-section]").all()
    assert len(sections) >= 9
    for node in sections:
        section = visit.open_section(str(node.get_attribute("data-section")))
        for _ in visit.views(section):
            assert section.locator("tbody tr").count() > 0
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    visit.close()


def test_a_table_shows_what_the_trace_says(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    diagnosis, page = demo
    visit = Visit(browser, page)
    section = visit.open_section("operators")
    table = diagnosis.trace.ops()
    place = table.shown.index("exclusive_gpu_ns") + 1
    assert visit.cells(section, 1) == table.to_list("name")
    assert visit.cells(section, place) == [
        format_ns(ns) for ns in table.to_list("exclusive_gpu_ns")
    ]
    visit.close()


def test_tables_are_sorted_filtered_and_extended(
    browser: Any, demo: tuple[ttap.Diagnosis, Path]
) -> None:
    diagnosis, page = demo
    visit = Visit(browser, page)
    section = visit.open_section("operators")
    table = diagnosis.trace.ops()
    names, counts = table.to_list("name"), table.to_list("count")
    count = section.locator("button.sort", has_text="count")
    place = table.shown.index("count") + 1

    def shown() -> list[int]:
        return [int(text.replace(",", "")) for text in visit.cells(section, place)]

    count.click()
    assert shown() == sorted(counts, reverse=True)
    section.locator("th[aria-sort='descending'] button").click()
    assert shown() == sorted(counts)
    section.locator("th[aria-sort='ascending'] button").click()
    assert visit.cells(section, 1) == names
    search = section.locator("input[type=search]")
    search.fill("BATCH_norm")
    assert visit.cells(section, 1) == [name for name in names if "batch_norm" in name]
    search.fill("no such operator")
    assert visit.cells(section, 1) == []
    search.fill("")
    section.locator("button", has_text="All columns").click()
    assert section.locator("thead th").count() > len(table.shown)
    section.locator(".views button").nth(2).click()
    section.locator(".more").wait_for()
    assert len(visit.cells(section, 1)) == 200
    section.locator(".more").click()
    assert len(visit.cells(section, 1)) == diagnosis.trace.ops(by="args").num_rows
    visit.close()


def test_tables_and_steps_lead_into_the_timeline(
    browser: Any, demo: tuple[ttap.Diagnosis, Path]
) -> None:
    diagnosis, page = demo
    visit = Visit(browser, page)
    section = visit.open_section("operators")
    section.locator("tbody button.go").first.click()
    assert diagnosis.trace.ops().to_list("name")[0] in visit.page.inner_text("#focus-label")
    assert "place 1 of" in visit.page.inner_text("#focus-place")
    steps = visit.open_section("steps")
    bars = steps.locator("g.step")
    assert bars.count() == len(diagnosis.summary.steps)
    bars.nth(2).focus()
    visit.page.keyboard.press("Enter")
    step = diagnosis.summary.steps[2]
    start, end = visit.view()
    origin = diagnosis.trace.ranks[0].tree.profiled[0]
    assert abs(start - (step.start_ns - origin)) < 1000
    assert abs(end - start - step.duration_ns) < 2000
    visit.close()


def test_hovering_a_point_of_the_roofline_names_it(
    browser: Any, demo: tuple[ttap.Diagnosis, Path]
) -> None:
    diagnosis, page = demo
    visit = Visit(browser, page)
    section = visit.open_section("roofline")
    section.locator("circle.point").first.wait_for()
    section.scroll_into_view_if_needed()
    section.locator("circle.point").last.hover(force=True)
    tooltip = section.locator(".roofline .tooltip")
    name = tooltip.locator(".event-name").inner_text()
    assert name in diagnosis.trace.roofline().to_list("name")
    assert "TFLOP/s" in tooltip.inner_text()
    assert section.locator(".roof").count() >= 2
    visit.close()


def test_tables_follow_the_rank(browser: Any, tmp_path: Path) -> None:
    for rank in range(3):
        samples.slow_loader(steps=2 + rank, rank=rank, world_size=3).write(
            tmp_path / f"rank{rank}.json"
        )
    _, page = write_page(tmp_path, tmp_path)
    visit = Visit(browser, page)
    section = visit.open_section("steps")
    assert len(visit.cells(section, 1)) == 2
    visit.page.locator("#details .choose-rank").select_option("2")
    visit.page.wait_for_selector("#tables-steps[data-ready^='2-']")
    assert len(visit.cells(section, 1)) == 4
    assert visit.page.input_value("#rank-select") == "2"
    visit.open_section("ranks")
    visit.close()


def test_an_iteration_of_a_served_model_shows_its_layers(browser: Any, tmp_path: Path) -> None:
    served = Served(dense=2, experts=3, iterations=7)
    trace = tmp_path / "served.json"
    trace.write_text(json.dumps(served.trace()))
    _, page = write_page(trace, tmp_path)
    visit = Visit(browser, page)
    section = visit.open_section("serving")
    assert "One token" in section.inner_text() and "64 tokens" in section.inner_text()
    bars = section.locator(".iteration")
    assert bars.count() == 7
    assert bars.nth(2).get_attribute("aria-label").startswith("Iteration 2, decode")
    bars.nth(2).press("Enter")
    detail = section.locator(".iteration-detail")
    labels = detail.locator(".bar-label").all_inner_texts()
    assert labels == ["outside", *(f"layer {number}" for number in range(5))]
    assert "scheduling" in detail.inner_text() and "the GPU waits" in detail.inner_text()
    bars.nth(0).click()
    assert detail.inner_text().startswith("Iteration 0")
    assert "the GPU waits" not in detail.inner_text()
    visit.close()


def test_hostile_names_run_nothing_in_any_section(browser: Any, tmp_path: Path) -> None:
    trace = samples.hostile().write(tmp_path / "trace.json")
    _, page = write_page(trace, tmp_path)
    visit = Visit(browser, page)
    seen = ""
    for node in visit.page.locator("[data-section]").all():
        section = visit.open_section(str(node.get_attribute("data-section")))
        for _ in visit.views(section):
            every = section.locator("button", has_text="All columns")
            if every.count():
                every.click()
            for button in section.locator("tbody button.go").all()[:8]:
                button.click()
            seen += section.inner_text()
    for name in samples.HOSTILE[:3]:
        assert name in seen
    assert visit.page.evaluate("window.hacked === undefined")
    assert visit.page.locator("img").count() == 0
    assert visit.page.locator("script").count() == 4
    visit.close()


# ---------------------------------------------------------------------------------- diff


@pytest.fixture(scope="module")
def compared(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[tuple[ttap.Trace, ttap.Trace], Path]:
    folder = tmp_path_factory.mktemp("diff")
    other = samples.products(device="NVIDIA H100 80GB HBM3").write(folder / "other.json")
    page = folder / "diff.html"
    return write_diff(DEMO, other, page), page


@pytest.mark.parametrize("width", [1400, 420])
def test_the_diff_page_shows_all_views(
    browser: Any, compared: tuple[tuple[ttap.Trace, ttap.Trace], Path], width: int
) -> None:
    traces, page = compared
    visit = Visit(browser, page, width)
    section = visit.open_section("changes")
    for number, _ in enumerate(visit.views(section)):
        rows = ttap.diff(*traces, by=_VIEWS[number][0]).num_rows
        assert len(visit.cells(section, 1)) == min(rows, 200)
        assert section.locator(".waterfall .fall").count() >= 2
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    visit.close()


def test_the_tree_walks_through_the_largest_changes(
    browser: Any, compared: tuple[tuple[ttap.Trace, ttap.Trace], Path]
) -> None:
    visit = Visit(browser, compared[1])
    section = visit.open_section("tree")
    section.locator("tr.current").wait_for()
    first = section.locator("tr.current").inner_text()
    section.locator("button", has_text="Next change").click()
    assert "Change 2 of" in section.inner_text()
    section.locator("button", has_text="Larger change").click()
    assert section.locator("tr.current").inner_text() == first
    section.locator("button", has_text="Close all").click()
    closed = section.locator(".table-bar .note").inner_text()
    section.locator("button.fold").first.click()
    assert section.locator(".table-bar .note").inner_text() != closed
    assert section.locator("button.fold").first.get_attribute("aria-expanded") == "true"
    visit.close()


def test_hostile_names_run_nothing_in_a_diff(browser: Any, tmp_path: Path) -> None:
    hostile = samples.hostile_calls().write(tmp_path / "a.json")
    plain = samples.slow_loader().write(tmp_path / "b.json")
    for sides in ((hostile, plain), (plain, hostile)):
        page = tmp_path / "diff.html"
        write_diff(*sides, page)
        visit = Visit(browser, page)
        section = visit.open_section("changes")
        seen = ""
        for _ in visit.views(section):
            seen += section.inner_text()
        for button in visit.open_section("tree").locator("button:enabled:visible").all():
            if button.is_visible() and button.is_enabled():
                button.click()
        assert '<img src=x onerror="window.hacked' in seen
        assert visit.page.evaluate("window.hacked === undefined")
        assert visit.page.locator("img").count() == 0
        assert visit.page.locator("script").count() == 3
        visit.close()


def test_keys_work_after_a_click(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    visit = Visit(browser, demo[1])
    whole = visit.view()
    visit.page.evaluate("document.getElementById('timeline').scrollIntoView()")
    visit.page.locator("#timeline-canvas").click(position={"x": 600, "y": 200})
    visit.page.keyboard.press("+")
    assert visit.view()[1] - visit.view()[0] < whole[1] - whole[0]
    visit.close()


def test_a_page_that_was_only_opened_notes_no_place(
    browser: Any, demo: tuple[ttap.Diagnosis, Path]
) -> None:
    visit = Visit(browser, demo[1])
    visit.page.wait_for_timeout(1000)  # More than twice as long as a place waits to be noted.
    assert visit.page.evaluate("location.hash") == ""
    visit.close()


def test_a_link_leads_to_a_place(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    visit = Visit(browser, demo[1])
    visit.page.locator(".chip").first.click()
    here = visit.view()
    visit.page.wait_for_function("() => location.hash.startsWith('#at=')")
    place = visit.page.evaluate("location.hash")
    visit.close()
    again = Visit(browser, demo[1])
    again.page.goto("about:blank")
    again.trouble.clear()
    again.page.goto(f"{demo[1].as_uri()}{place}")
    # The page glides there from the whole recording.
    again.page.wait_for_function(
        """([from, to]) => {
          const view = document.getElementById("timeline-canvas").dataset;
          return Math.abs(view.viewFrom - from) <= 2 && Math.abs(view.viewTo - to) <= 2;
        }""",
        arg=list(here),
    )
    again.context.close()


@pytest.mark.parametrize("place", ["#at=1,2", "#at=x,y&rank=0", "#at=5,1&rank=99", "#<b>"])
def test_a_link_to_nowhere_is_the_page(
    browser: Any, demo: tuple[ttap.Diagnosis, Path], place: str
) -> None:
    visit = Visit(browser, demo[1])
    home = visit.view()
    visit.page.goto("about:blank")
    visit.trouble.clear()
    visit.page.goto(f"{demo[1].as_uri()}{place}")
    visit.page.wait_for_selector("#timeline-canvas[data-view-from]")
    assert visit.view() == home
    visit.context.close()


def test_a_range_has_statistics(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    visit = Visit(browser, demo[1])
    page = visit.page
    page.evaluate("document.getElementById('timeline').scrollIntoView()")
    box = page.locator("#timeline-canvas").bounding_box()
    page.mouse.move(box["x"] + 170, box["y"] + 8)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 8, steps=5)
    page.mouse.up()
    said = page.inner_text("#selection")
    assert said.startswith("Range of 1.0")
    shown = {float(number) for number in re.findall(r"(\d+) %", said)}
    assert any(abs(share - 100 * demo[0].busy_share) < 3 for share in shown)
    visit.close()


def test_a_table_is_saved_as_csv(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    visit = Visit(browser, demo[1])
    section = visit.open_section("kernels")
    with visit.page.expect_download() as download:
        section.get_by_role("button", name="Save as CSV").click()
    rows = list(csv.reader(Path(download.value.path()).read_text("utf-8").splitlines()))
    assert "count" in rows[0]
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows) > 5
    visit.context.close()


def test_a_finding_is_copied_as_markdown(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    visit = Visit(browser, demo[1])
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.page.locator("[data-markdown='0']").click()
    visit.page.wait_for_function(
        "() => document.querySelector('[data-markdown]').textContent === 'Copied'"
    )
    text = visit.page.evaluate("navigator.clipboard.readText()")
    finding = demo[0].findings[0]
    assert text.startswith(f"### {finding.title}\n")
    assert finding.why in text
    assert f"```python\n{finding.code.rstrip()}\n```" in text
    visit.close()


def test_search_marks_matches_as_one_types(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    visit = Visit(browser, demo[1])
    before = visit.view()
    visit.page.type("#search", "aten::conv2d")
    visit.page.wait_for_selector("#focus-bar:visible")
    assert "place 1 of" in visit.page.inner_text("#focus-place")
    assert visit.view() == before
    visit.close()


def flame_of(visit: Visit, section: Any) -> tuple[Any, Any]:
    """The flame graph of an open section, and the line that says what is chosen."""
    flame = section.locator(".flame")
    flame.locator(".node").first.wait_for()
    return flame, section.locator(".flame-says")


def test_a_flame_graph_is_walked_by_keys(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    diagnosis, page = demo
    visit = Visit(browser, page)
    section = visit.open_section("stacks")
    flame, says = flame_of(visit, section)
    table = diagnosis.trace.stacks()
    flame.focus()
    visit.page.keyboard.press("Home")
    assert says.inner_text().startswith("all GPU time ")
    assert format_ns(table.facts["total_ns"]) in says.inner_text()
    visit.page.keyboard.press("ArrowDown")
    widest = max((r for r in table.records() if r["depth"] == 0), key=lambda r: r["total_ns"])
    assert says.inner_text().startswith(widest["name"])
    assert format_ns(widest["total_ns"]) in says.inner_text()
    visit.page.keyboard.press("ArrowRight")
    assert not says.inner_text().startswith(widest["name"])
    visit.page.keyboard.press("ArrowLeft")
    drawn = flame.locator(".node").count()
    visit.page.keyboard.press("Enter")
    assert section.locator(".flame-way").inner_text().endswith(widest["name"])
    assert flame.locator(".node").count() != drawn
    visit.page.keyboard.press("Escape")
    assert flame.locator(".node").count() == drawn
    visit.close()


def test_a_call_of_a_flame_graph_is_zoomed_to_and_shown_in_the_timeline(
    browser: Any, demo: tuple[ttap.Diagnosis, Path]
) -> None:
    visit = Visit(browser, demo[1])
    section = visit.open_section("stacks")
    flame, says = flame_of(visit, section)
    show = section.get_by_role("button", name="Show in the timeline")
    flame.focus()
    visit.page.keyboard.press("Home")
    assert show.is_disabled()
    node = flame.locator(".node", has_text="aten::conv2d").first
    node.hover()
    assert says.inner_text().startswith("aten::conv2d ")
    node.click()
    assert section.locator(".flame-way").inner_text().endswith("aten::conv2d")
    width = flame.locator("> svg").get_attribute("width")
    assert flame.locator(".node").first.get_attribute("width") == width
    show.click()
    assert "aten::conv2d" in visit.page.inner_text("#focus-label")
    visit.close()


def test_calls_are_found_in_a_flame_graph(browser: Any, demo: tuple[ttap.Diagnosis, Path]) -> None:
    diagnosis, page = demo
    visit = Visit(browser, page)
    section = visit.open_section("stacks")
    flame, _ = flame_of(visit, section)
    section.get_by_label("Find calls in the flame graph by name").fill("BATCH_NORM")
    rows = diagnosis.trace.stacks().records()
    found = {row["id"]: row for row in rows if "batch_norm" in row["name"].lower()}
    above = {row["id"]: row["parent_id"] for row in rows}

    def inside(row: int | None) -> bool:
        return row is not None and (row in found or inside(above[row]))

    outermost = [row for row in found.values() if not inside(row["parent_id"])]
    told = section.locator(".flame-bar .note").inner_text()
    assert told.startswith(f"{len(found)} found: ")
    assert format_ns(sum(row["total_ns"] for row in outermost)) in told
    assert flame.locator(".found").count() > 0
    visit.close()


@pytest.mark.parametrize("width", [1400, 420])
def test_flame_graphs_fit_the_page(
    browser: Any, demo: tuple[ttap.Diagnosis, Path], width: int
) -> None:
    visit = Visit(browser, demo[1], width)
    section = visit.open_section("stacks")
    for _ in visit.views(section):
        flame, _ = flame_of(visit, section)
        ends = flame.locator(".node").evaluate_all(
            "nodes => nodes.map(n => Number(n.getAttribute('x')) + Number(n.getAttribute('width')))"
        )
        inside = flame.evaluate("node => node.clientWidth")
        assert max(ends) <= inside + 1
        assert flame.evaluate("node => node.scrollWidth") <= inside
    visit.close()


def test_hostile_names_run_nothing_in_a_flame_graph(browser: Any, tmp_path: Path) -> None:
    _, page = write_page(samples.hostile_calls().write(tmp_path / "trace.json"), tmp_path)
    visit = Visit(browser, page)
    section = visit.open_section("stacks")
    seen = ""
    for _ in visit.views(section):
        flame, says = flame_of(visit, section)
        flame.focus()
        for key in ("Home", *["ArrowDown", "Enter"] * 4):
            visit.page.keyboard.press(key)
            seen += says.inner_text() + section.locator(".flame-way").inner_text()
    assert "<" in seen
    assert visit.page.evaluate("window.hacked === undefined")
    assert visit.page.locator("img").count() == 0
    visit.close()
