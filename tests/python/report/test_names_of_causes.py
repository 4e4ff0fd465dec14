"""A cause of lost time bears one name, its key in words, and one meaning wherever it is shown."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from conftest import ROOT

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.core.formatting import format_part
from torchtraceap.core.results import GPU_PARTS
from torchtraceap.report.annotate import build_slices
from torchtraceap.report.charts import PATH_FILLS
from torchtraceap.report.diff_page import render_diff
from torchtraceap.report.labels import MEANINGS
from torchtraceap.report.notebook import diagnosis_html, summary_html
from torchtraceap.report.page import render_html
from torchtraceap.report.terminal import render_text
from torchtraceap.report.view import build_view
from torchtraceap.tables.steps.pieces import part_titles

TRACES = sorted((ROOT / "examples/traces").glob("*.json.gz"))
IDLE = set(_core.idle_cause_names())
DOC = ROOT / "docs/idle_time.md"


@pytest.fixture(scope="module")
def diagnosis() -> ttap.Diagnosis:
    return ttap.load(TRACES[0]).diagnose()


def idle_names(text: str) -> set[str]:
    """The names behind "idle:", in lower case up to a share or what stands behind them."""
    return {name.strip() for name in re.findall(r"idle: ([a-z]+(?: [a-z]+)*)(?= +[<(\d]|$)", text)}


def shown(diagnosis: ttap.Diagnosis, least: float = 0.0) -> set[str]:
    """Names of the causes of more than a share of the time."""
    least_ns = least * diagnosis.profiled_ns
    return {format_part(part) for part in IDLE if diagnosis.time_ns.get(part, 0) > least_ns}


def test_the_first_screen_the_page_and_a_notebook_name_the_same_causes(
    diagnosis: ttap.Diagnosis,
) -> None:
    names = shown(diagnosis)
    assert len(names) > 2
    view = build_view(diagnosis)
    assert {part.label for part in view.idle} == names
    for part in view.segments:
        assert part.label == format_part(part.key) and part.meaning == MEANINGS[part.key]
    assert idle_names(render_text(diagnosis)) <= names
    for page in (render_html(diagnosis), diagnosis_html(diagnosis)):
        found = idle_names(unescape(re.sub("<[^>]*>", " ", page)))
        assert shown(diagnosis, 0.002) <= found <= names


def test_tables_name_the_causes_that_the_first_screen_names(diagnosis: ttap.Diagnosis) -> None:
    one, other = map(ttap.load, TRACES[:2])
    compared = ttap.diff(one, other, by="cause")["name"].tolist()
    assert {n.removeprefix("idle: ") for n in compared if n.startswith("idle: ")} <= {
        format_part(part) for part in IDLE
    }
    assert f"idle: {format_part('data_loading')}" in compared
    assert idle_names(str(one.steps())) <= {format_part(part) for part in IDLE}
    assert idle_names(unescape(re.sub("<[^>]*>", " ", render_diff(one, other)))) > set()
    assert set(one.critical_path()["cause"].tolist()) <= set(PATH_FILLS)
    # Codes that two tables share are the same word.
    assert {"data_loading", "synchronization", "launch_latency"} <= IDLE & set(PATH_FILLS)
    summary = str(ttap.load(TRACES[0]).summary())
    for part in ("communication", "memcpy"):
        assert format_part(part) in summary
        assert format_part(part) in summary_html(ttap.load(TRACES[0]).summary())
    (track,) = [t for t in build_slices(diagnosis, None) if t.group == "why the GPU idles"]
    assert shown(diagnosis, 0.002) <= set(track.names) <= shown(diagnosis)


def test_every_part_has_a_name_and_a_meaning_and_those_of_the_documentation() -> None:
    titles = [title.removeprefix("idle: ") for title in part_titles()]
    assert {format_part(part) for part in IDLE} <= set(titles)
    assert {format_part("communication"), format_part("memcpy")} <= set(titles)
    assert set(MEANINGS) >= IDLE | set(GPU_PARTS)
    table = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|$", DOC.read_text(), re.MULTILINE))
    assert {part: MEANINGS[part] for part in IDLE} == {part: table[part] for part in IDLE}


def test_no_script_of_a_page_has_names_of_its_own() -> None:
    scripts = ROOT / "python/torchtraceap/report/templates/script"
    names = {format_part(part) for part in (*IDLE, *GPU_PARTS) if " " in format_part(part)}
    for script in Path(scripts).glob("*.js"):
        text = script.read_text()
        assert not [name for name in names if f'"{name}"' in text], script.name
