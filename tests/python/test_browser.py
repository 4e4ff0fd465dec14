"""The HTML report in a real browser: it draws, it moves to findings, it runs nothing foreign."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_samples as samples

pytest.importorskip("torchtraceap._core", reason="torchtraceap._core is not built")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright import sync_api

import torchtraceap as ttap

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
DEMO = Path(__file__).parents[2] / "examples/traces/resnet50_num_workers_0.json.gz"

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

    def close(self) -> None:
        self.context.close()
        assert self.trouble == []


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
