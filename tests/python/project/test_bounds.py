"""What grows with the input grows in proportion, or is refused with a sentence.

Inputs are so large that a way which grows with their square takes minutes or all memory; none of
the tests looks at a clock.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hostile_shapes import ALL_REDUCE, SHAPES, Made
from hypothesis import given
from hypothesis import strategies as st

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.compat.tracelens import launchers
from torchtraceap.errors import TraceError
from torchtraceap.report.annotate import _memory_counters, _queue_counters, assign_lanes
from torchtraceap.simulation.edits.base import make_edit
from torchtraceap.simulation.excerpt import simulated_run
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.simulate import simulate
from torchtraceap.tables.matching import match_collectives, rank_collectives
from torchtraceap.tables.steps.pieces import Cells


def load(folder: Path, made: Made | str, events: int = 0) -> ttap.Trace:
    """A trace made here, or a shape of the benchmark."""
    files = SHAPES[made](events) if isinstance(made, str) else made.file
    folder.mkdir(exist_ok=True)
    for name, document in files.items():
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
    return ttap.load(folder)


# ------------------------------------------------------------------------------- steps


def test_a_pattern_of_many_names(tmp_path: Path) -> None:
    """Every name leads to the pattern, which is one stretch of rows."""
    names = [f"f{chr(97 + i % 26)}{chr(97 + i // 26 % 26)}{'x' * (i // 676)}" for i in range(9_000)]
    event = '{"ph":"X","cat":"cpu_op","name":"%s","pid":1,"tid":1,"ts":%d,"dur":1}'
    rows = [*names * 60, "odd"]
    text = ",".join(event % (name, 2 * i) for i, name in enumerate(rows))
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents":[' + text + "]}", encoding="utf-8")
    # The last row is no part of it, so that the pattern is not the whole thread: no steps.
    assert not ttap.load(path).ranks[0].tree.steps


# ------------------------------------------------------------------------------- overlay


def first_fit(starts: list[int], ends: list[int]) -> list[int]:
    """What `assign_lanes` says of itself, lane by lane."""
    lanes: list[list[int]] = []
    chosen = []
    for start, end in zip(starts, ends, strict=True):
        for lane in lanes:
            while lane and lane[-1] <= start:
                lane.pop()
        fits = [i for i, lane in enumerate(lanes) if not lane or end <= lane[-1]]
        if not fits:
            lanes.append([])
        chosen.append(fits[0] if fits else len(lanes) - 1)
        lanes[chosen[-1]].append(end)
    return chosen


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=40))
def test_a_slice_goes_where_it_nests_first(slices: list[tuple[int, int]]) -> None:
    starts = sorted(start for start, _ in slices)
    ends = [start + length for start, (_, length) in zip(starts, slices, strict=True)]
    lanes = assign_lanes(np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64))
    assert lanes.tolist() == first_fit(starts, ends)


def test_slices_that_all_cross_each_other() -> None:
    starts = np.arange(200_000)
    assert assign_lanes(starts, 2 * starts + len(starts)).tolist() == starts.tolist()


def test_a_queue_for_each_of_many_streams(tmp_path: Path) -> None:
    trace = load(tmp_path / "t", "many_streams", 80_000)
    counters = _queue_counters(trace.ranks[0])
    assert len(counters) == 40_000
    assert {len(counter.time_ns) for counter in counters} == {2}


def test_memory_of_many_devices(tmp_path: Path) -> None:
    trace = load(tmp_path / "t", "memory_events", 60_000)
    assert len(_memory_counters(trace.ranks[0])) == 2 * 30_000


def test_every_thread_is_drawn(tmp_path: Path) -> None:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    from torchtraceap.report.annotate import write_protobuf

    trace = load(tmp_path / "t", "many_threads", 60_000)
    stream = io.BytesIO()
    write_protobuf(trace.ranks[0], [], [], stream)
    read = protos.Trace.FromString(stream.getvalue())
    labels = [p.track_descriptor.name for p in read.packet if p.HasField("track_descriptor")]
    assert {f"thread {i}" for i in range(20_000)} <= set(labels)


# ------------------------------------------------------------------------------- collectives


def test_a_group_for_each_collective(tmp_path: Path) -> None:
    trace = load(tmp_path / "t", "many_groups", 320_000)
    matched = match_collectives(trace)
    assert matched.matches == 80_000 and len(matched.groups) == 80_000
    assert matched.core.count.tolist() == [2] * 80_000
    assert all(group.ranks == [0, 1] for group in matched.groups[:10])


def test_a_configured_group_that_every_call_describes_anew(tmp_path: Path) -> None:
    """Its long list of ranks is kept once, with the first description."""
    ranks = list(range(50_000))
    group = {"pg_name": "0", "ranks": ranks}
    about = {"backend": "nccl", "rank": 0, "world_size": len(ranks), "pg_config": [group]}
    made = Made(distributedInfo=about)
    for i in range(20_000):
        said = {"Collective name": "allreduce", "Process Group Name": "0"}
        said |= {"Process Group Description": f"group {i}", "Group size": i}
        made.launch(ALL_REDUCE, i + 1, 100.0 * i, 50, stream=20, **said)
    found = rank_collectives(load(tmp_path / "t", made)).groups
    assert [(g.name, g.description, g.size) for g in found] == [("0", "group 0", len(ranks))]
    assert found[0].ranks == ranks


def test_calls_of_one_thread_and_kernels_of_another(tmp_path: Path) -> None:
    made = Made()
    count = 120_000
    for i in range(count):
        made.op("record_param_comms", 2.0 * i, 1, **{"Collective name": "allreduce"})
    for i in range(count):
        at = 2.0 * (count + i)
        made.call("cudaLaunchKernel", at, 1, tid=2, correlation=i + 1)
        made.gpu(ALL_REDUCE, at + 3, 1, stream=20, correlation=i + 1)
    core = rank_collectives(load(tmp_path / "t", made))
    assert core.matches == count and len(core.groups) == 1


def test_calls_around_everything_that_is_launched(tmp_path: Path) -> None:
    """Whether something was launched below a call is not asked row by row."""
    made = Made()
    count = 60_000
    for i in range(count):
        args = {"Collective name": "allreduce"}
        made.op("record_param_comms", float(i), 4.0 * count - 2 * i, **args)
    for i in range(count):
        at = float(4 * count + 2 * i)
        made.call("cudaLaunchKernel", at, 1, correlation=i + 1)
        made.gpu(ALL_REDUCE, at + 3, 1, stream=20, correlation=i + 1)
    assert rank_collectives(load(tmp_path / "t", made)).matches == count


def test_pairs_of_a_large_group(tmp_path: Path) -> None:
    """Who is missing from a send does not take the list of the group."""
    ranks = list(range(40_000))
    group = {"pg_name": "0", "ranks": ranks}
    about = {"backend": "nccl", "rank": 0, "world_size": len(ranks), "pg_config": [group]}
    made = Made(distributedInfo=about)
    for i in range(30_000):
        said = {"Collective name": "send", "Process Group Name": "0", "Dst Rank": i + 1}
        made.launch("ncclDevKernel_SendRecv", i + 1, 100.0 * i, 50, stream=20, **said)
    matched = match_collectives(load(tmp_path / "t", made))
    assert sorted(matched.missing_ranks) == [[i + 1] for i in range(30_000)]


# ------------------------------------------------------------------------------- tables


def test_grids_of_many_devices(tmp_path: Path) -> None:
    grids = load(tmp_path / "t", "many_devices", 60_000).grids(by="event")
    assert grids.num_rows == 30_000


def test_tables_of_tracelens_of_deep_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchtraceap.compat.tracelens import tracelens_sheets

    tables = tracelens_sheets(load(tmp_path / "a", "deep_stacks", 3_000).ranks[0])
    monkeypatch.setattr(launchers, "_LISTED_AT_ONCE", 7)
    assert repr(tracelens_sheets(ttap.load(tmp_path / "a").ranks[0])) == repr(tables)
    with pytest.raises(TraceError, match=r"nested too deep"):
        tracelens_sheets(load(tmp_path / "b", "deep_stacks", 150_000).ranks[0])


def unlike_steps(count: int) -> Made:
    made = Made()
    for i in range(count):
        made.add("user_annotation", f"ProfilerStep#{i}", 100.0 * i, 100)
        made.launch(f"kernel{i}", i + 1, 100.0 * i + 20, 10 + i % 7)
    return made


def test_steps_that_have_nothing_in_common(tmp_path: Path) -> None:
    """As many names as steps: a matrix of both would have 3.6 billion numbers."""
    steps = load(tmp_path / "t", unlike_steps(60_000)).steps()
    assert steps.num_rows == 60_000


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(0, 9)), max_size=60))
def test_what_most_steps_lack_is_known_without_a_matrix(pieces: list[tuple[int, int, int]]) -> None:
    row, step, ns = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    matrix = np.zeros((6, 7))
    np.add.at(matrix, (row, step), ns)
    cells = Cells.of(row, step, ns, matrix.shape)
    assert cells.standard_errors() == pytest.approx(matrix.std(axis=1, ddof=1) / np.sqrt(7))
    assert cells.medians().tolist() == np.median(matrix, axis=1).tolist()
    chosen = np.arange(7) % 3 != 1
    of_some = np.median(matrix[:, chosen], axis=1)
    assert cells.of_steps(chosen).medians().tolist() == of_some.tolist()


# ------------------------------------------------------------------------------- simulation


def test_work_of_many_steps(tmp_path: Path) -> None:
    """What belongs to a step is not asked of all that was recorded."""
    run = SimulatedRun(load(tmp_path / "t", unlike_steps(60_000)))
    assert len(run.steps) == 60_000
    assert {len(step.work) for step in run.steps} == {2}  # its end and that of its kernel
    assert np.bincount(run.step_of_point[run.step_of_point != _core.NO_ROW]).max() == 7


def test_many_streams_in_one_step(tmp_path: Path) -> None:
    made = Made()
    for i in range(60_000):
        made.launch("gemm", i + 1, 10.0 * i + 20, 4, stream=i)
    made.add("user_annotation", "ProfilerStep#1", 0, 10.0 * 60_000)
    run = SimulatedRun(load(tmp_path / "t", made))
    assert len(run._carried) >= 60_000


def test_calls_that_all_lie_in_each_other(tmp_path: Path) -> None:
    """Every launch begins at one instant: what an edit takes away lies in all of them."""
    trace = load(tmp_path / "t", "same_time", 180_000)
    assert len(simulate(trace, ["cuda_graph"]).edits) == 1


def small_collectives(count: int, *, steps: bool = False) -> Made:
    made = Made(distributedInfo={"backend": "nccl", "rank": 0, "world_size": 8})
    said = {"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8}
    said |= {"dtype": "Float", "Process Group Name": "0", "Group size": 8}
    for i in range(count):
        at = 100.0 * i
        if steps:
            made.add("user_annotation", f"ProfilerStep#{i}", at, 100)
            made.launch("gemm", 2 * i + 1, at + 20, 10)
        made.launch(ALL_REDUCE, 2 * i + 2, at + 50, 10, stream=20, **said)
    return made


def test_one_long_run_of_small_collectives(tmp_path: Path) -> None:
    run = simulated_run(load(tmp_path / "t", small_collectives(40_000)))
    assert len(make_edit("merge_collectives").apply(run).best)


def test_collectives_of_many_steps(tmp_path: Path) -> None:
    trace = load(tmp_path / "t", small_collectives(40_000, steps=True))
    assert len(simulate(trace, ["overlap_communication", "merge_collectives"]).edits) == 2


def test_many_kernels_beside_communication_and_alone(tmp_path: Path) -> None:
    made = Made()
    for i in range(20_000):
        made.launch(ALL_REDUCE, 3 * i + 1, 100.0 * i, 20, stream=20)
        made.launch(f"gemm{i}", 3 * i + 2, 100.0 * i + 1, 10)
        made.launch(f"gemm{i}", 3 * i + 3, 100.0 * i + 40, 8)
    assert simulate(load(tmp_path / "t", made), ["overlap_communication"]).edits


# ------------------------------------------------------------------------------- the list of bounds

ROOT = Path(__file__).parents[3]
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def rows_of_bounds() -> list[tuple[list[str], list[str]]]:
    """The files that stand above each table, and a row of it."""
    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8").split("\n## Bounds\n")[1]
    rows, files = [], list[str]()
    for block in text.split("\n## ")[0].split("\n\n"):
        lines = block.strip().splitlines()
        if lines and lines[0].startswith("| "):
            rows += [(files, [cell.strip() for cell in row.strip("| ").split("|")])
                     for row in lines[2:]]  # fmt: skip
        else:
            files = re.findall(r"`([\w/]+\.(?:py|[ch]pp))`", block)
    return rows


def value_of(files: list[str], name: str) -> int:
    """What the constant is set to in one of the files."""
    found = []
    for path in files:
        file = ROOT / (path if path.startswith("cpp/") else f"python/torchtraceap/{path}")
        assert file.is_file(), file
        text = file.read_text(encoding="utf-8")
        found += re.findall(rf"\b{name}\s*=\s*([^;#\n]+)", text)
    assert len(found) == 1, f"{name} stands {len(found)} times in {files}"
    expression = re.sub(r"std::\w+\{(\w+)\}", r"\1", found[0]).replace("'", "").replace("_", "")
    return int(eval(re.sub(r"(?<=\d)[uUlL]+", "", expression), {"__builtins__": {}}))


@pytest.mark.parametrize(("files", "row"), rows_of_bounds(), ids=lambda value: value[0])
def test_the_list_of_bounds_says_what_the_code_does(files: list[str], row: list[str]) -> None:
    _, most, beyond, name = row
    number, _, unit = most.partition(" ")
    assert int(number.replace(",", "")) * UNITS.get(unit, 1) == value_of(files, name.strip("`"))
    assert beyond
