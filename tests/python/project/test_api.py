"""The public surface: what `import torchtraceap` offers, and what a `Trace` answers."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import report_samples as samples
from conftest import WriteTrace

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.core import formatting, intervals
from torchtraceap.errors import OptionError


@pytest.fixture
def trace(write_trace: WriteTrace) -> ttap.Trace:
    return ttap.load(samples.slow_loader(steps=3, rank=1, world_size=4).write(write_trace([])))


def test_the_surface() -> None:
    assert set(ttap.__all__) <= set(dir(ttap))
    for name in ("load", "diagnose", "profile", "on_trace_ready"):
        function = getattr(ttap, name)
        assert callable(function)
        assert inspect.getdoc(function)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ttap.nothing  # type: ignore[attr-defined]


def test_options_are_keyword_only() -> None:
    for function in (ttap.load, ttap.diagnose, ttap.Trace.diagnose, ttap.Trace.summary):
        parameters = [
            p for p in inspect.signature(function).parameters.values() if p.name != "self"
        ]
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert len(positional) <= 1


def test_diagnose_takes_a_trace_or_a_path(trace: ttap.Trace) -> None:
    path = trace.rank().path
    assert ttap.diagnose(path).verdicts == ttap.diagnose(trace).verdicts
    assert ttap.diagnose([path], windows=50).windows.count == 50
    assert ttap.diagnose(trace).trace is trace


def test_a_diagnosis_prints_and_writes_a_page(trace: ttap.Trace, tmp_path: Path) -> None:
    diagnosis = ttap.diagnose(trace)
    text = str(diagnosis)
    assert diagnosis.findings[0].title.lower()[:20] in text.lower()
    assert "\x1b[" not in text
    page = diagnosis.to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page
    assert page.lstrip().lower().startswith("<!doctype html>")


def test_every_key_of_an_event_can_be_read_back(write_trace: WriteTrace) -> None:
    event = {
        "ph": "X", "cat": "kernel", "name": "k \"quoted\" é", "pid": "GPU", "tid": 7,
        "ts": 1700000000123456.8, "dur": 2.5, "id": 12345678901234567890, "own": [1, {"a": None}],
        "args": {"stream": 7, "correlation": 3, "grid": [1, 2, 3], "est. achieved occupancy %": 50,
                 "Input Dims": [[2, 3], []], "big": 18446744073709551615, "text": "a\tb"},
    }  # fmt: skip
    trace = ttap.load(write_trace([event]))
    back = trace.event(0)
    assert back == event
    assert list(back) == list(event)
    assert trace.args(0) == event["args"]
    assert trace.rank().table.ts_ns.tolist() == [1_700_000_000_123_456_800]


def test_ranks_are_chosen_by_number(tmp_path: Path) -> None:
    for rank in (0, 2):
        samples.slow_loader(steps=2 + rank, rank=rank, world_size=3).write(
            tmp_path / f"{rank}.json"
        )
    trace = ttap.load(tmp_path)
    assert len(trace.tree(2).steps) == 4
    assert len(trace.tree().steps) == 2
    assert trace.rank(2).rank == 2
    with pytest.raises(OptionError, match="no rank 1 in this trace; there are: 0, 2"):
        trace.rank(1)
    assert trace.idle(2).num_rows > trace.idle(0).num_rows


def test_tree_is_built_once_and_only_when_needed(
    trace: ttap.Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[_core.EventTree] = []

    def build(table: _core.EventTable, **options: int | None) -> _core.EventTree:
        built.append(build_tree(table, **options))
        return built[-1]

    build_tree = _core.build_tree
    monkeypatch.setattr(_core, "build_tree", build)
    rank = trace.rank()
    assert not built
    assert [rank.tree, rank.tree] == built * 2


# --- tree text ---


def test_tree_text_shows_stacks_and_kernels(trace: ttap.Trace) -> None:
    lines = trace.tree().to_text().splitlines()
    assert lines[0].startswith("thread 100 of process 100")
    assert lines[1] == "  ProfilerStep#0  100 ms  [GPU 52.7 ms, 8 events]"
    assert lines[2] == f"    {samples.LOADER}  45.0 ms"
    assert lines[3] == "      aten::stack  44.0 ms"
    assert "      aten::linear  9.00 ms" not in lines
    assert "    aten::linear  9.00 ms  [GPU 52.7 ms, 8 events]" in lines
    assert "      cudaLaunchKernel  8.00 µs" in lines
    assert "        -> ampere_sgemm_128x64  6.59 ms  stream 7" in lines


def test_gpu_time_of_a_row_is_what_its_subtree_launched(trace: ttap.Trace) -> None:
    tree = trace.tree()
    core, table = tree.core, trace.ranks[0].table
    for row in core.host_rows[::7].tolist():
        stack, time_ns, events = [row], 0, 0
        while stack:
            inner = stack.pop()
            launched = tree.launched_by(inner)
            time_ns += int(table.dur_ns[launched].sum())
            events += len(launched)
            stack += tree.children(inner).tolist()
        assert tree.gpu_time(row) == (time_ns, events)


def test_tree_text_filters(trace: ttap.Trace) -> None:
    tree = trace.tree()
    assert "cudaLaunchKernel" not in tree.to_text(max_depth=1)
    assert "->" not in tree.to_text(kernels=False)
    assert "aten::linear" not in tree.to_text(min_duration_ns=20_000_000)
    step = tree.to_text(step="ProfilerStep#1")
    assert step == tree.to_text(step=1)
    assert "ProfilerStep#1" in step
    assert "ProfilerStep#0" not in step
    cut = tree.to_text(max_lines=5).splitlines()
    assert len(cut) == 6
    assert cut[:5] == tree.to_text().splitlines()[:5]
    assert cut[5] == "... cut after 5 lines"
    with pytest.raises(OptionError, match="no step 'x'"):
        tree.to_text(step="x")
    with pytest.raises(OptionError, match="max_lines"):
        tree.to_text(max_lines=0)


def test_tree_links(trace: ttap.Trace) -> None:
    tree, events = trace.tree(), trace.events()
    names = events["name"]
    step = int(np.flatnonzero(names == "ProfilerStep#0")[0])
    children = tree.children(step)
    assert names[children].tolist() == [samples.LOADER, "aten::linear"]
    calls = tree.children(int(children[1]))
    assert set(names[calls]) == {"cudaLaunchKernel"}
    assert len(calls) == 8
    (kernel,) = tree.launched_by(int(calls[0])).tolist()
    assert names[kernel] == "ampere_sgemm_128x64"
    assert tree.core.launch[kernel] == calls[0]
    assert len(tree.children(kernel)) == 0
    assert [stream.role for stream in tree.streams] == ["compute"]


def test_hostile_names_stay_on_one_line(write_trace: WriteTrace) -> None:
    names = ["a\nb\r\n\x1b[31m", "x" * 5_000_000, ""]
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": i * 10, "dur": 5}
        for i, name in enumerate(names)
    ]
    lines = ttap.load(write_trace(events)).tree().to_text().splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) < 150
    assert not any(ord(char) < 32 for line in lines for char in line)


# --- small parts ---


def test_idle_totals_sum_to_the_idle_time(trace: ttap.Trace) -> None:
    assert sum(trace.idle().totals_ns.values()) == trace.timeline().idle_ns
    profiled = trace.idle(profiled=True)
    assert sum(profiled.totals_ns.values()) == trace.rank().profiled_timeline().idle_ns
    assert set(profiled["cause"]) <= set(_core.idle_cause_names())


def test_windows_by_length(trace: ttap.Trace) -> None:
    windows = trace.windows(length_ns=50_000_000)
    assert len(windows) == 6
    with pytest.raises(OptionError, match="length_ns"):
        trace.windows(length_ns=-1)


def test_quantisation_takes_int64_arrays() -> None:
    codes = _core.quantize_delays_ns(np.array([0, 1_000, 10**10], dtype=np.int64))
    assert codes.tolist() == [0, 0, 255]
    assert _core.quantize_durations_ns(np.array([10**9])).tolist() == [255]
    with pytest.raises(ttap.errors.SchemaError):
        _core.quantize_delays_ns(np.zeros((2, 2), dtype=np.int64))


def test_union_and_coverage() -> None:
    sets = [np.array([[5, 9], [0, 2]]), np.array([[1, 3], [9, 9], [8, 12]])]
    merged = intervals.union(sets)
    assert merged.tolist() == [[0, 3], [5, 12]]
    bounds = np.array([-5, 0, 2, 6, 10, 20])
    assert intervals.covered_ns(merged, bounds).tolist() == [0, 2, 2, 4, 2]
    assert intervals.covered_ns(intervals.EMPTY, bounds).tolist() == [0] * 5
    assert intervals.union([]).shape == (0, 2)


def test_union_and_coverage_agree_with_counting() -> None:
    rng = np.random.default_rng(7)
    for _ in range(50):
        starts = rng.integers(0, 60, 12)
        sets = [np.stack((starts, starts + rng.integers(0, 9, 12)), axis=1)]
        marks = np.zeros(80, dtype=bool)
        for start, end in sets[0]:
            marks[start:end] = True
        bounds = np.sort(rng.integers(0, 80, 7))
        covered = intervals.covered_ns(intervals.union(sets), bounds)
        expected = [marks[a:b].sum() for a, b in itertools.pairwise(bounds)]
        assert covered.tolist() == expected


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1_000, "1.00 µs"), (12_345_678, "12.3 ms"),
     (999_960, "1.00 ms"), (176_078_000, "176 ms"), (-2_500, "-2.50 µs"), (61 * 10**9, "61.0 s")],
)  # fmt: skip
def test_times_for_a_person(ns: int, text: str) -> None:
    assert formatting.format_ns(ns) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0.0 %"), (0.0001, "< 0.1 %"), (0.339, "33.9 %"), (1.0, "100 %")]
)
def test_shares_for_a_person(share: float, text: str) -> None:
    assert formatting.format_share(share) == text


def test_a_missing_core_is_said_clearly(tmp_path: Path) -> None:
    """A checkout that was not built."""
    shutil.copytree(Path(ttap.__file__).parent, tmp_path / "torchtraceap",
                    ignore=shutil.ignore_patterns("_core*", "__pycache__"))  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    for arguments, code in (
        (["-c", "import torchtraceap; torchtraceap.load"], 1),
        (["-m", "torchtraceap", "summary", "trace.json"], 2),
    ):
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path
        )
        assert done.returncode == code
        assert "core of torchtraceap does not load" in done.stderr
        assert "pip install ." in done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "import torchtraceap; dir(torchtraceap)",
        "from torchtraceap.cli import main; main(['--version'])",
        "from torchtraceap.cli import main; main(['--help'])",
        "from torchtraceap.cli import main; main(['no-such-command', 'x'])",
    ],
)
def test_start_up_loads_neither_numpy_nor_the_core(code: str) -> None:
    listed = "import sys; print([m for m in sys.modules if m in ('numpy', 'torchtraceap._core')])"
    command = [sys.executable, "-c", f"{code}; {listed}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "most"),
    [(["--version"], 16), (["--help"], 18), (["summary"], 46), (["diagnose"], 103)],
)
def test_a_command_loads_no_more_modules(arguments: list[str], most: int, bundled: Path) -> None:
    """Modules are counted and not time, which depends on the machine. More than these needs a
    reason: each takes part of a start-up."""
    given = arguments if arguments[0].startswith("-") else [*arguments, str(bundled)]
    code = (
        "import sys; from torchtraceap.cli import main; "
        f"main({given!r}); print(*(name for name in sys.modules if 'torchtraceap' in name))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert len(loaded) <= most, loaded


TOP = Path(ttap.__file__).parent
LATE = [TOP / "__init__.py"] + [
    path for path in TOP.rglob("__init__.py") if "lazy_exports(" in path.read_text("utf-8")
]


@pytest.mark.parametrize("path", LATE, ids=lambda path: path.parent.name)
def test_type_checkers_see_every_name_that_is_imported_late(path: Path) -> None:
    module = importlib.import_module(".".join(path.parent.relative_to(TOP.parent).parts))
    tree = ast.parse(path.read_text("utf-8"))
    (block,) = (n for n in tree.body if isinstance(n, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    told = {
        alias.name: node.module
        for node in block.body if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }  # fmt: skip
    declared = {n.target.id for n in block.body if isinstance(n, ast.AnnAssign)}
    eager = {name for name in module.__all__ if name in vars(module)}
    assert set(module.__all__) - eager - declared <= set(told)
    if path.parent != TOP:
        assert set(told) | declared == set(module.__all__)
    for name in module.__all__:
        assert name in dir(module) and getattr(module, name) is not None
        if name in told and name not in ("datasets", "durations", "integrations", "models"):
            assert getattr(module, name) is getattr(importlib.import_module(told[name]), name)


def test_a_name_that_is_ours_stays_what_it_is() -> None:
    """Whatever a call imports: no submodule takes the place of a function."""
    before = {name: getattr(ttap, name) for name in ttap.__all__}
    with pytest.raises(ttap.errors.TraceError):
        ttap.diagnose("no-such-file.json")
    for name, value in before.items():
        assert getattr(ttap, name) is value
    for module in pkgutil.iter_modules(ttap.__path__):
        if module.name in ttap.__all__:
            assert inspect.ismodule(getattr(ttap, module.name))


def test_every_real_trace_answers_everything(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    features = trace.features(count=50)
    assert features.num_rows == 50
    assert np.isfinite(features.values_matrix).all()
    assert np.isfinite(features.zscores).all()
    assert np.abs(features.zscores).max(initial=0) <= 10
    windows = trace.windows(count=50)
    assert windows.offsets[-1] == len(windows.rows)
    assert len(trace.tree().to_text(max_lines=50).splitlines()) <= 51
    rows = trace.rank().tree.gpu_rows[:20].tolist()
    for row in rows:
        assert trace.event(row)["name"] == trace.rank().table.name_of(row)
        assert trace.event(row).get("args", {}) == trace.args(row)
    for page in (trace._repr_html_(), str(trace.tree()), repr(trace.events())):
        assert page
