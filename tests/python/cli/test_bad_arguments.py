"""Arguments that name nothing raise one sentence with the names that there are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.errors import MissingColumnError, OptionError, TraceError
from torchtraceap.tables.catalog import TABLES, table_spec

DEMO = Path(__file__).parents[3] / "examples/traces/resnet50_num_workers_0.json.gz"


@pytest.fixture(scope="module")
def trace() -> ttap.Trace:
    return ttap.load(DEMO)


# What is asked, and words of the answer: some of the choices.
CASES: dict[str, tuple[Callable[[ttap.Trace], Any], tuple[str, ...]]] = {
    "diff by": (lambda t: ttap.diff(t, t, by="nothing"), ("op", "kernel", "finding")),
    "diff sides": (lambda t: ttap.diff(t, 3), ("a file, a folder or a list",)),  # type: ignore[arg-type]
    "load": (lambda _: ttap.load(3), ("a file, a folder or a list",)),  # type: ignore[arg-type]
    "windows": (lambda t: t.diagnose(windows="x"), ("1 to 1000000",)),
    "window count": (lambda t: t.windows(count=0), ("1 to 1000000",)),
    "feature count": (lambda t: t.features(count=2.5), ("1 to 1000000",)),
    "finding": (lambda t: t.diagnose().finding("nothing"), ("cpu_bound", "recompilation")),
    "edits as a text": (lambda t: t.simulate("pin_memory"), ("['pin_memory']", "cuda_graph")),
    "no edit": (lambda t: t.simulate([3]), ("cuda_graph", "loader_workers[=N]")),
    "together": (lambda t: t.simulate(["cuda_graph"]).together(["nothing"]), ("cuda_graph",)),
    "column": (lambda t: t.steps()["nothing"], ("name", "duration_ns")),
    "columns": (lambda t: t.steps().select(["name", "nothing"]), ("duration_ns",)),
    "sort": (lambda t: t.steps().sort("nothing"), ("duration_ns",)),
    "values": (lambda t: t.steps().to_list("nothing"), ("duration_ns",)),
    "kind": (lambda t: t.events(kind="nothing"), ("cpu_op", "kernel")),
    "step": (lambda t: t.tree_rows(step="nothing"), ("ProfilerStep#5",)),
    "step of the tree": (lambda t: t.tree().to_text(step="nothing"), ("ProfilerStep#5",)),
    "step of the path": (lambda t: t.critical_path(step="nothing"), ("ProfilerStep#5",)),
    "compat of the path": (lambda t: t.critical_path(compat="nothing"), ("hta",)),
    "compat of the roofline": (lambda t: t.roofline(compat="nothing"), ("tracelens",)),
    "device": (lambda t: t.roofline(device="nothing"), ("h100", "mi300x")),
    "device of the models": (lambda t: t.expected(device="nothing"), ("h100", "mi300x")),
    "operator": (lambda t: t.replay(op="aten::mmm"), ("similar: aten::",)),
    "file to annotate": (lambda t: t.annotate("out.txt"), (".json.gz", ".pftrace")),
    "file to merge": (lambda t: t.merge("out.txt"), (".json", ".json.gz")),
    "table of SQL": (lambda t: t.sql("select * from nothing"), ("events", "ops", "stacks")),
    "time for ranks": (lambda _: ttap.profile(ranks_timeout=-1), ("0 and 86400",)),
    "steps to record": (lambda _: ttap.profile(active=0), ("at least 1",)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_answer_has_the_choices(trace: ttap.Trace, name: str) -> None:
    if name == "table of SQL":
        pytest.importorskip("duckdb")
    ask, choices = CASES[name]
    with pytest.raises(TraceError) as raised:
        ask(trace)
    said = str(raised.value)
    assert isinstance(raised.value, OptionError)
    assert [words for words in choices if words not in said] == []
    assert "\n" not in said


@pytest.mark.parametrize("name", [name for name in TABLES if table_spec(name).views])
def test_every_table_lists_its_views(trace: ttap.Trace, name: str) -> None:
    for wrong in ("nothing", None, 3, ""):
        with pytest.raises(OptionError) as raised:
            getattr(trace, TABLES[name].method)(by=wrong)
        assert [view for view in table_spec(name).views if view not in str(raised.value)] == []


@pytest.mark.parametrize("name", [name for name in TABLES if table_spec(name).per_rank])
def test_every_table_says_that_a_rank_is_not_there(trace: ttap.Trace, name: str) -> None:
    for wrong in (7, "x", -1):
        with pytest.raises(OptionError, match="no rank"):
            getattr(trace, TABLES[name].method)(rank=wrong)


def test_methods_of_a_rank_say_that_it_is_not_there(trace: ttap.Trace) -> None:
    told = {
        name
        for name, method in inspect.getmembers(ttap.Trace, inspect.isfunction)
        if not name.startswith("_") and "rank" in inspect.signature(method).parameters
    }
    given: dict[str, tuple[Any, ...]] = {
        "annotate": ("out.json",),
        "args": (0,),
        "event": (0,),
        "explain_idle": (0,),
        "replay": (0,),
    }
    for name in told:
        with pytest.raises(OptionError, match="no rank 7"):
            getattr(trace, name)(*given.get(name, ()), rank=7)


def test_a_missing_column_is_a_missing_key_too(trace: ttap.Trace) -> None:
    with pytest.raises(KeyError) as raised:
        _ = trace.steps()["nothing"]
    assert isinstance(raised.value, MissingColumnError)
    assert str(raised.value).startswith("no column 'nothing' in this table; there are: ")
    assert ttap.ColumnTable({}).columns == ()
    with pytest.raises(MissingColumnError, match="none"):
        ttap.ColumnTable({}).column("x")
