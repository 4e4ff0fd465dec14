"""Every public result shows itself: `print` gives text, a notebook HTML, by one mechanism."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_samples as samples

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.core.rendering import Renderable
from torchtraceap.diagnosis.verdict import parts_over_time, time_parts
from torchtraceap.record.step_plan import StepPlan
from torchtraceap.report import notebook
from torchtraceap.report.result_tables import MAX_ROWS, tables_of

DEMO = Path(__file__).parents[3] / "examples/traces/resnet50_num_workers_0.json.gz"
NO_RESULTS = {
    "Change",
    "ContractBroken",
    "ContractWarning",
    "EditedGraph",
    "Entry",
    "EventGroup",
    *("_core." + name for name in ("EventTree", "GpuCosts", "IdleBreakdown", "Step", "Stream")),
}
"""Parts of edits and of the registry of models, exceptions, and what the core keeps for the next
analysis."""


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(ttap.__path__, "torchtraceap."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


@pytest.fixture(scope="module")
def classes() -> dict[str, list[type]]:
    """The classes of the package by name, those of the core with its name before theirs."""
    found: dict[str, list[type]] = {}
    for module in modules():
        for name, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == module.__name__:
                core = "_core." if module is _core else ""
                found.setdefault(core + name, []).append(value)
    return found


def names_in(annotation: Any) -> set[str]:
    return set(re.findall(r"(?:_core\.)?[A-Za-z]\w*", str(annotation)))


def returned(function: Any) -> set[str]:
    """Names in the annotation of what a function returns."""
    return names_in(function.__annotations__.get("return", ""))


def answers_of(owner: Any) -> set[str]:
    """Names of what the public functions, methods and properties of a class or module return."""
    names: set[str] = set()
    for name, member in inspect.getmembers(owner):
        if name.startswith("_"):
            continue
        member = member.fget if isinstance(member, property) else getattr(member, "func", member)
        if inspect.isfunction(member):
            names |= returned(member)
    return names


def test_every_public_result_shows_itself(classes: dict[str, list[type]]) -> None:
    wanted = answers_of(ttap.durations) | answers_of(ttap.models)
    for name in ttap.__all__:
        member = getattr(ttap, name)
        wanted |= {name} if inspect.isclass(member) else set()
        wanted |= returned(member) if inspect.isfunction(member) else set()
    seen: set[str] = set()
    while fresh := (wanted & classes.keys()) - seen:
        seen |= fresh
        for kind in (kind for name in fresh for kind in classes[name]):
            wanted |= answers_of(kind) if issubclass(kind, Renderable) else set()
            if dataclasses.is_dataclass(kind):
                wanted |= {
                    name for field in dataclasses.fields(kind) for name in names_in(field.type)
                }
    results = seen - NO_RESULTS
    core = {"_core.WindowSet"}
    assert {"Diagnosis", "Simulation", "ColumnTable", "Estimate", "Trust", *core} <= results
    assert {name for name in results if not any(map(shows_itself, classes[name]))} == set()


def shows_itself(kind: type) -> bool:
    return hasattr(kind, "_repr_html_") and kind.__str__ is not object.__str__


@pytest.fixture(scope="module")
def trace() -> ttap.Trace:
    return ttap.load(DEMO)


def results_of(trace: ttap.Trace) -> dict[str, Any]:
    diagnosis, simulation = trace.diagnose(), trace.simulate(["loader_workers=4", "nothing"])
    estimate = ttap.durations.gemm_ns
    return {
        "trace": trace,
        "rank": trace.rank(),
        "diagnosis": diagnosis,
        "findings": diagnosis.findings[0],
        "evidence": diagnosis.findings[0].evidence[0],
        "saving": diagnosis.findings[0].saving,
        "fact": next(iter(diagnosis.findings[0].facts.values())),
        "windows": diagnosis.windows,
        "replay": diagnosis.replay,
        "trust": simulation.trust,
        "plan": diagnosis.plan[0],
        "summary": diagnosis.summary,
        "timeline": trace.timeline(),
        "simulation": simulation,
        "edit": simulation.edits[1],
        "tree": trace.tree(),
        "idle": trace.idle(),
        "window set": trace.windows(count=3),
        "features": trace.features(count=3),
        "ops": trace.ops(),
        "diff": ttap.diff(trace, trace),
        "kind times": trace.kind_times(),
        "calibration": ttap.durations.calibrate(trace),
        "estimate": estimate(512, 512, 512, "bf16", "H200", return_estimate=True)
        if "return_estimate" in inspect.signature(estimate).parameters
        else estimate(512, 512, 512, "bf16", "H200"),
        "estimates": estimate([512, 1024], 512, 512, "bf16", "H200"),
    }


def test_each_has_words_in_text_and_html(trace: ttap.Trace) -> None:
    for name, result in results_of(trace).items():
        text, page = str(result), result._repr_html_()
        assert text.strip() and "object at 0x" not in text, name
        assert page.startswith("<div") and page.count("<div") == page.count("</div>"), name
        assert max(map(len, text.splitlines())) <= 200, name


def test_len_and_print_of_a_table_are_its_rows(trace: ttap.Trace) -> None:
    table = trace.kernels()
    assert len(table) == table.num_rows > MAX_ROWS
    assert list(table) == list(table.columns) == list(table.keys())
    assert dict(table).keys() == set(table.columns)
    assert "name" in table and "nothing" not in table
    assert len(str(table).splitlines()) > MAX_ROWS
    assert f"{len(table) - MAX_ROWS} more rows" in str(table)
    assert table.take(slice(0, 0))  # without rows it still says why


def test_the_notebook_shows_verdict_bar_timeline_and_places(trace: ttap.Trace) -> None:
    diagnosis = trace.diagnose()
    page = diagnosis._repr_html_()
    assert diagnosis.to_dict()["headline"] in page
    labels = re.findall(r'<svg role="img" aria-label="([^"]*)"', page)
    assert labels[:2] == ["Where the time goes", "Timeline: what most of each moment goes to"]
    assert sum(label.startswith("Places of") for label in labels) == len(diagnosis.findings)
    assert "Timeline" in trace._repr_html_()


def test_a_simulation_shows_two_bars_for_each_edit(trace: ttap.Trace) -> None:
    page = trace.simulate(["loader_workers=4", "nothing"])._repr_html_()
    assert page.count("now ") >= 1
    assert len(re.findall(r'aria-label="then ', page)) == 1
    assert "nothing" in page


@pytest.mark.parametrize("on_host", [False, True])
def test_parts_over_time_are_the_parts_of_the_bar(tmp_path: Path, on_host: bool) -> None:
    path = DEMO
    if on_host:
        path = samples.host_training().write(tmp_path / "t.json")
    trace = ttap.load(path)
    low, high = trace.rank().tree.profiled
    bounds = low + np.linspace(0, high - low, 38).astype(np.int64)
    found = {name: int(part.sum()) for name, part in parts_over_time(trace.rank(), bounds).items()}
    assert sum(found.values()) == high - low
    assert {n: ns for n, ns in found.items() if ns} == {
        n: ns for n, ns in time_parts(trace).items() if ns
    }


def test_every_part_has_a_colour(trace: ttap.Trace) -> None:
    for part in (*_core.idle_cause_names(), "compute", "communication", "memcpy", "host_forward"):
        assert re.fullmatch("#[0-9a-f]{6}", notebook._colors()[part])


def test_recordings_show_themselves_before_and_after(tmp_path: Path) -> None:
    recording = ttap.profile(tmp_path, active=1)
    handler = ttap.on_trace_ready(tmp_path)
    assert StepPlan(1, 1, 1).skipped == 2
    for result in (recording, handler):
        assert len(tables_of(result)) == 1
        assert str(result).strip()


class Balanced(HTMLParser):
    """Elements that are open where another one ends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.wrong += [] if self.open and self.open[-1] == tag else [tag]
        self.open = self.open[:-1]


def test_html_is_well_formed(trace: ttap.Trace) -> None:
    for name, result in results_of(trace).items():
        page = Balanced(result._repr_html_())
        assert page.open == page.wrong == [], name
