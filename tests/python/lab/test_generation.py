"""Generated traces: labels of faults and look-alikes hold, and a seed gives the same traces."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.cli import main
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.datasets.labels import TYPES
from torchtraceap.errors import OptionError
from torchtraceap.lab.generation import bases as bases_module
from torchtraceap.lab.generation.faults import GRAPH_FAULTS, STEP_FAULTS
from torchtraceap.lab.generation.generate import generate, in_processes
from torchtraceap.lab.generation.graph_faults import FAULTS, LOOK_ALIKES
from torchtraceap.lab.generation.pairs import (
    Pair,
    covered_windows,
    draw_pair,
    lost_intervals,
    window_labels,
)
from torchtraceap.lab.generation.recorder import as_rank
from torchtraceap.lab.generation.scene import Outcome
from torchtraceap.simulation.graph_builder import THREAD, GraphBuilder
from torchtraceap.tables.gpu.recorded_device import recorded_device
from torchtraceap.tables.steps.iterations import iterations_of
from torchtraceap.trace.ranks import RankTrace

ROOT = Path(__file__).resolve().parents[3]
BASES = [str(ROOT / f"examples/traces/resnet50_num_workers_{n}.json.gz") for n in (0, 4)]
COUNT, SEED = 20, 3
"""Two units, with runs of which all ranks are recorded in the first one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated") / "traces"
    generate(out, COUNT, SEED, bases=BASES)
    return out


@pytest.fixture(scope="module")
def labels(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "labels.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def load(folder: Path, trace: str) -> ttap.Trace:
    return ttap.load(folder / f"{trace}.json.gz")


def length_ns(trace: ttap.Trace) -> int:
    table = trace.ranks[0].table
    rows = table.complete & (table.kind != _core.EventKind.PROFILER_TRACE)
    return int((table.ts_ns + table.dur_ns)[rows].max() - table.ts_ns[rows].min())


def steps_ns(trace: ttap.Trace) -> int:
    return int(iterations_of(trace.ranks[0]).length_ns.sum())


@pytest.mark.slow  # generates traces and diagnoses them
def test_every_trace_has_a_label_and_every_fault_a_twin(
    folder: Path, labels: list[dict[str, Any]]
) -> None:
    assert len(labels) == COUNT
    written = (path.relative_to(folder) for path in folder.rglob("*.json.gz"))
    assert sorted(str(path).removesuffix(".json.gz") for path in written) == sorted(
        label["id"] for label in labels
    )
    assert any("/rank" in label["id"] for label in labels)
    by_id = {label["id"]: label for label in labels}
    twins = [label["twin"] for label in labels if label["twin"] is not None]
    assert len(set(twins)) == len(twins) == COUNT // 2
    for label in labels:
        if label["twin"] is None:
            assert label["type"] is None and not label["decoy"] and label["cost_ns"] == 0
            assert label["intervals"] == [] and not any(map(any, label["windows"].values()))
        else:
            assert by_id[label["twin"]]["twin"] is None
            assert (label["type"] is None) == label["decoy"]
        assert {count: len(labels) for count, labels in label["windows"].items()} == {
            "50": 50, "100": 100, "200": 200,
        }  # fmt: skip
        assert label["source"]["kind"] == "real_graph" and label["seed"] == SEED
    splits = {label["source"]["base"]: label["split"] for label in labels}
    assert all(label["split"] == splits[label["source"]["base"]] for label in labels)


def test_a_fault_costs_what_its_label_says(folder: Path, labels: list[dict[str, Any]]) -> None:
    faults = [label for label in labels if label["type"]]
    assert len(faults) >= 3
    for label in faults:
        bad, good = load(folder, label["id"]), load(folder, label["twin"])
        assert length_ns(bad) - length_ns(good) == pytest.approx(label["cost_ns"], rel=0.1)
        assert steps_ns(bad) - steps_ns(good) == pytest.approx(label["cost_ns"], rel=0.1)
        assert label["cost_ns"] >= 0.03 * length_ns(good)


def test_time_is_lost_where_the_label_says(folder: Path, labels: list[dict[str, Any]]) -> None:
    """In these intervals none of the kernels runs that the twin has too."""
    for label in labels:
        has_slow_gpu = label["form"] == "late_rank_by_its_gpu" and label["role"] == "late"
        if not label["type"] or has_slow_gpu:  # there they do, for longer
            continue
        lost = np.array(label["intervals"])
        assert (lost[1:, 0] > lost[:-1, 1]).all()
        assert np.diff(lost, axis=1).sum() == pytest.approx(label["cost_ns"], rel=0.1)
        bad = load(folder, label["id"]).ranks[0].table
        names = [
            name for name in bad.strings if "nccl" not in name and "CUDAFunctor_add" not in name
        ]
        own = np.isin(bad.name, [bad.strings.index(name) for name in set(names)])
        rows = own & (bad.kind == _core.EventKind.KERNEL)
        begins, ends = bad.ts_ns[rows], (bad.ts_ns + bad.dur_ns)[rows]
        inside = np.minimum(ends[:, None], lost[:, 1]) - np.maximum(begins[:, None], lost[:, 0])
        assert np.maximum(inside, 0).sum() <= 0.1 * label["cost_ns"], label["form"]


def test_windows_are_those_that_the_intervals_cover(
    folder: Path, labels: list[dict[str, Any]]
) -> None:
    for label in labels:
        trace = load(folder, label["id"])
        for count, marked in label["windows"].items():
            bounds = trace.windows(count=int(count)).bounds_ns
            for place, mark in enumerate(marked):
                begin, end = bounds[place : place + 2].tolist()
                parts = (min(b, end) - max(a, begin) for a, b in label["intervals"])
                covered = sum(max(0, part) for part in parts)
                assert mark == (covered >= 0.1 * (end - begin))


def test_a_decoy_costs_nothing(folder: Path, labels: list[dict[str, Any]]) -> None:
    decoys = [label for label in labels if label["decoy"]]
    assert decoys
    for label in decoys:
        bad, good = load(folder, label["id"]), load(folder, label["twin"])
        step_ns = steps_ns(good) / label["steps"]
        assert abs(length_ns(bad) - length_ns(good)) < 0.01 * step_ns
        assert abs(steps_ns(bad) - steps_ns(good)) < 0.01 * step_ns
        assert len(bad.ranks[0].table) >= len(good.ranks[0].table)


def test_numbers_do_not_tell_what_was_put_in(folder: Path, labels: list[dict[str, Any]]) -> None:
    """Ids grow with time as in the twin, and none stands apart that does not there."""
    for label in labels:
        if label["twin"] is None:
            continue
        apart = []
        for which in ("id", "twin"):
            table = load(folder, label[which]).ranks[0].table
            ids = table.correlation[table.kind == _core.EventKind.RUNTIME]
            assert len(np.unique(ids)) == len(ids)
            assert (np.diff(ids) < 0).mean() < 0.02
            apart.append(int((np.diff(np.sort(ids)) >= 1_000).sum()))
        assert apart[0] == apart[1]


def test_what_is_put_in_has_arrows(folder: Path, labels: list[dict[str, Any]]) -> None:
    counted = []
    for label in labels:
        if label["twin"] is None:
            continue
        pair = [load(folder, label[which]).ranks[0] for which in ("id", "twin")]
        arrows = [int((part.table.kind == _core.EventKind.FLOW).sum()) for part in pair]
        launched = [len(part.tree.linked_gpu_rows) for part in pair]
        assert arrows[0] - arrows[1] == 2 * (launched[0] - launched[1])
        counted.append(launched[0] - launched[1])
    assert max(counted) > 0


def same_files(one: Path, other: Path) -> None:
    for path in sorted(one.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (other / path.relative_to(one)).read_bytes(), path.name


def test_processes_do_not_matter(folder: Path, tmp_path: Path) -> None:
    generate(tmp_path / "again", COUNT, SEED, bases=BASES, jobs=2)
    same_files(folder, tmp_path / "again")


@pytest.mark.slow  # generates traces and diagnoses them
def test_an_interrupted_run_goes_on(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    (again / "labels.jsonl").unlink()
    (again / ".units/000001-4.jsonl").unlink()
    late, *_, last = sorted(again.rglob("*.json.gz"))
    last.write_bytes(b"half of a trace")
    before = late.stat().st_mtime_ns
    generate(again, COUNT, SEED, bases=BASES)
    same_files(folder, again)
    assert late.stat().st_mtime_ns == before


def test_other_options_do_not_mix(folder: Path) -> None:
    with pytest.raises(OptionError, match="other options"):
        generate(folder, COUNT, SEED + 1, bases=BASES)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"types": ["high_memcopy"]}, "high_memcopy"),
        ({"tasks": ["chess"]}, "chess"),
        ({"tasks": ["pose", "depth"]}, "one task"),
        ({"count": 0}, "make no sense"),
        ({"jobs": 0}, "make no sense"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        generate(tmp_path / "out", **{"count": 2, "bases": BASES, **more})


def test_the_command_refuses_a_folder_with_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["generate", str(tmp_path), "--count", "2", "--base", BASES[0]]) == 2
    assert "new or empty folder" in capsys.readouterr().err


def test_a_base_without_gpu_work_is_refused(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    (tmp_path / "host.json").write_text(json.dumps({"traceEvents": [event]}))
    with pytest.raises(OptionError, match="GPU work"):
        generate(tmp_path / "out", 2, bases=[str(tmp_path / "host.json")])


# ---------------------------------------------------------------------------------- each fault


@pytest.fixture(scope="module")
def whole() -> RankTrace:
    return ttap.load(BASES[1]).ranks[0]


NEEDS_TWO = {"hidden_fetch", "late_rank", "late_rank_by_its_gpu", "behind_the_backward_pass",
             "small_at_the_end", "late_rank_by_its_host"}  # fmt: skip
"""These find a place behind a step, or in some draws of one step only."""


def base_of(whole: RankTrace, steps: int) -> bases_module.Base:
    """So many steps, so that a form takes little time, and without what the run has by itself."""
    first, last = whole.tree.steps[2], whole.tree.steps[1 + steps]
    part = RankTrace(*_excerpt(whole, first.start_ns, last.end_ns))
    return bases_module.Base(part, BASES[1], "real_graph", "classification", frozenset())


def _excerpt(whole: RankTrace, start_ns: int, end_ns: int) -> tuple[Any, None, Any]:
    table, tree = _core.excerpt(whole.table, whole.tree, np.array([[start_ns, end_ns]]))
    return table, None, tree


@pytest.mark.slow  # generates traces and diagnoses them
@pytest.mark.parametrize("fault", [*FAULTS, *LOOK_ALIKES], ids=lambda fault: fault.name)
def test_every_fault_finds_a_place(whole: RankTrace, fault: Any) -> None:
    base = base_of(whole, 2 if fault.name in NEEDS_TWO else 1)
    pair: Pair = draw_pair(base, [fault], "1")
    (side,) = pair.sides
    parts = [ttap.Trace([part]) for part in (side.faulty, side.twin)]
    cost_ns = length_ns(parts[0]) - length_ns(parts[1])
    assert cost_ns == side.cost_ns
    assert (cost_ns >= 0.03 * length_ns(parts[1])) is not fault.look_alike
    windows = window_labels(side.faulty, side.intervals)
    assert any(windows["100"]) is not fault.look_alike


# ---------------------------------------------------------------------------------- ranks


@pytest.fixture(scope="module")
def with_a_late_rank(whole: RankTrace) -> Pair:
    fault = next(fault for fault in FAULTS if fault.name == "late_rank_by_its_loader")
    return draw_pair(base_of(whole, 2), [fault], "2", 3)


def as_files(pair: Pair, folder: Path, which: str) -> ttap.Trace:
    folder.mkdir()
    for side in pair.sides:
        _core.write_trace(getattr(side, which).table, str(folder / f"rank{side.rank}.json.gz"))
    return ttap.load(folder)


def test_every_rank_of_a_run_loses_what_the_late_one_does(with_a_late_rank: Pair) -> None:
    pair = with_a_late_rank
    assert [side.rank for side in pair.sides] == [0, 1, 2] and pair.world_size == 3
    (late,) = (side for side in pair.sides if side.role == "late")
    assert late.rank == pair.late_rank and late.type == "single_process_data_loading"
    for side in pair.sides:
        parts = [ttap.Trace([part]) for part in (side.faulty, side.twin)]
        assert length_ns(parts[0]) - length_ns(parts[1]) == side.cost_ns
        assert side.cost_ns == pytest.approx(late.cost_ns, rel=0.1)
        assert np.diff(side.intervals, axis=1).sum() == pytest.approx(side.cost_ns, rel=0.1)
        assert side is late or (side.role, side.type) == ("waits", "straggler")


def test_ranks_are_processes_with_a_gpu_each(with_a_late_rank: Pair) -> None:
    host, gpus = [], []
    for side in with_a_late_rank.sides:
        table, tree = side.faulty.table, side.faulty.tree
        kernel = int(tree.linked_gpu_rows[0])
        call = int(tree.launch[kernel])
        said = [json.loads(table.event_json(row)) for row in (call, kernel)]
        host.append(said[0]["pid"])
        gpus.append((said[1]["pid"], said[1]["args"]["device"]))
    assert len(set(host)) == 3 and gpus == [(0, 0), (1, 1), (2, 2)]


def test_names_of_processes_stay_with_theirs(whole: RankTrace) -> None:
    """Of all GPUs of the machine there are some, and of a stream the name goes with it."""
    program = base_of(whole, 1).program(random.Random(0))
    process = program.template_call["pid"]
    lines = [
        '{"name": "process_labels", "ph": "M", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},',
        '{"name": "thread_name", "ph": "M", "pid": 0, "tid": 7, "args": {"name": "stream 7"}},',
        f'{{"name": "process_name", "ph": "M", "pid": {process}, "tid": 0}},',
    ]
    text = '"deviceProperties": [{"device": 0}],\n"traceEvents": [\n' + "\n".join(lines)
    moved = as_rank(text.encode(), program, 2).decode().splitlines()
    assert moved[0] == '"deviceProperties": [{"device": 0}],'
    assert '"pid": 0' in moved[2] and '"pid": 2' in moved[3]
    assert f'"pid": {process + 134}' in moved[4]


def test_a_late_rank_is_found_across_ranks(with_a_late_rank: Pair, tmp_path: Path) -> None:
    """The clocks of the ranks are apart, and what they say of each other is read from the files."""
    bad = as_files(with_a_late_rank, tmp_path / "bad", "faulty")
    good = as_files(with_a_late_rank, tmp_path / "good", "twin")
    assert [part.rank for part in bad.ranks] == [0, 1, 2]
    begins = [int(part.table.ts_ns[part.table.complete].min()) for part in bad.ranks]
    assert len(set(begins)) == 3
    waits = [
        sum(f.cost_ns for f in trace.diagnose().findings if f.type == "straggler")
        for trace in (bad, good)
    ]
    assert waits[0] - waits[1] > with_a_late_rank.sides[0].cost_ns
    (finding,) = (f for f in bad.diagnose().findings if f.type == "straggler")
    assert finding.facts["late rank"].value == str(with_a_late_rank.late_rank)


@pytest.mark.slow  # generates traces and diagnoses them
def test_a_shorter_set_has_the_beginning_of_a_longer_one(tmp_path: Path) -> None:
    """What is recorded with fewer ranks at its end is made again."""
    generate(tmp_path / "grown", 5, SEED, bases=BASES)
    generate(tmp_path / "grown", 8, SEED, bases=BASES)
    generate(tmp_path / "whole", 8, SEED, bases=BASES)
    same_files(tmp_path / "grown", tmp_path / "whole")
    same_files(tmp_path / "whole", tmp_path / "grown")


def test_the_documentation_names_every_fault() -> None:
    text = (ROOT / "docs/labeled_data.md").read_text("utf-8")
    assert [name for name in {**GRAPH_FAULTS, **STEP_FAULTS} if f"`{name}`" not in text] == []


def test_types_are_those_of_the_product() -> None:
    known = set(load_knowledge())
    assert set(TYPES) <= known
    assert {fault.type for fault in LOOK_ALIKES} <= known


def test_tasks_that_are_never_trained_on_are_unseen(whole: RankTrace) -> None:
    base = base_of(whole, 1)
    unseen = bases_module.Base(base.part, base.name, base.kind, "pose", frozenset())
    assert unseen.split == "unseen" != base.split


# ---------------------------------------------------------------------------------- predicted


@pytest.mark.slow  # generates traces and diagnoses them
def test_a_predicted_run_does_not_depend_on_others() -> None:
    pytest.importorskip("torch")
    from torchtraceap.lab.generation.predicted_bases import PredictedBases

    alone, later = (PredictedBases(2, ("classification",)) for _ in range(2))
    text = _core.trace_json(alone.get(0, 0).part.table)
    assert _core.trace_json(later.get(1, 0).part.table) != text
    assert _core.trace_json(later.get(0, 0).part.table) == text


def test_traces_of_predicted_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    lines = generate(tmp_path / "out", 2, 2, tasks=["pose"]).read_text("utf-8").splitlines()
    labels = [json.loads(line) for line in lines]
    assert {label["source"]["kind"] for label in labels} == {"lifted"}
    assert {label["task"] for label in labels} == {"pose"}
    assert {label["split"] for label in labels} == {"unseen"}
    (label,) = (label for label in labels if label["twin"] is not None)
    bad, good = load(tmp_path / "out", label["id"]), load(tmp_path / "out", label["twin"])
    assert length_ns(bad) - length_ns(good) == label["cost_ns"]
    for trace in (bad, good):
        device = recorded_device(trace.ranks[0].table.devices[0])
        assert device is not None and device.name == label["device"]


# ---------------------------------------------------------------------------------- loss


def outcome(times_ns: list[int]) -> Outcome:
    builder = GraphBuilder()
    builder.add_points(builder.add_lane(THREAD), len(times_ns))
    built = builder.build()
    number = built.points(np.arange(len(times_ns)))
    return Outcome(built.graph, number, np.array(times_ns, dtype=np.int64))


def lost(faulty: list[int], twin: list[int]) -> list[list[int]]:
    points = np.arange(len(twin))
    found: list[list[int]] = lost_intervals(outcome(faulty), outcome(twin), points).tolist()
    return found


def test_time_is_lost_at_the_end_of_a_gap() -> None:
    assert lost([0, 100, 170, 270], [0, 100, 110, 210]) == [[110, 170]]


def test_what_the_twin_waits_for_too_is_no_loss() -> None:
    """60 ns late, of which 40 are caught up: the last 20 of the gap are lost."""
    assert lost([0, 100, 170, 270, 280], [0, 100, 110, 210, 260]) == [[150, 170]]


def test_a_decline_belongs_to_the_stretch_before_it() -> None:
    faulty = [0, 10, 40, 50, 60, 90, 100, 110]
    twin = [0, 10, 20, 30, 50, 60, 70, 90]
    assert lost(faulty, twin) == [[30, 40], [80, 90]]


def test_no_difference_is_no_loss() -> None:
    assert lost([0, 5, 9], [0, 5, 9]) == []


def test_windows_need_a_tenth() -> None:
    bounds = np.array([0, 100, 200, 300])
    assert covered_windows(bounds, np.array([[95, 109], [205, 250]])) == [0, 0, 1]
    assert covered_windows(bounds, np.zeros((0, 2), dtype=np.int64)) == [0, 0, 0]


def test_what_is_put_in_is_written_like_the_rest(
    folder: Path, labels: list[dict[str, Any]]
) -> None:
    """In the order of members and arguments that its kind has in the twin, and with no others."""
    for label in labels:
        if label["twin"] is None:
            continue
        found, twin = (_ways(folder, label[key]) for key in ("id", "twin"))
        for kind, ways in found.items():
            members, arguments = ({way[part] for way in twin[kind]} for part in (0, 1))
            assert {way[0] for way in ways} <= members, (label["form"], kind)
            known = [way for way in ways if set(way[1]) in [set(each) for each in arguments]]
            assert all(way[1] in arguments for way in known), (label["form"], kind)


def _ways(folder: Path, trace: str) -> dict[str, set[tuple[tuple[str, ...], tuple[str, ...]]]]:
    """Keys in their order, by category."""
    found: dict[str, set[Any]] = {}
    for event in json.loads(gzip.decompress((folder / f"{trace}.json.gz").read_bytes()))[
        "traceEvents"
    ]:
        if event["ph"] == "X" and event["cat"] != "Trace":
            ways = found.setdefault(event["cat"], set())
            ways.add((tuple(event), tuple(event.get("args", {}))))
    return found


def test_a_process_that_is_killed_is_said_and_not_a_defect() -> None:
    with pytest.raises(OptionError, match="one of 2 processes was killed"):
        list(in_processes(os._exit, [1, 1], 2))
    assert list(in_processes(abs, [-3, 2, -1], 2)) == [3, 2, 1]


def test_a_heavier_network_is_the_same_one_and_ends_at_sizes_in_use() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from torchtraceap.lab.generation.predicted_bases import draw_workload

    drawn = draw_workload("classification", random.Random(3))
    heavier = drawn.heavier()
    assert heavier is not None
    assert (heavier.network, heavier.depth, heavier.side) == (
        drawn.network,
        drawn.depth,
        drawn.side,
    )
    assert heavier.batch == 4 * drawn.batch and heavier.width == 2 * drawn.width
    sizes = []
    while heavier is not None:
        sizes.append((heavier.batch, heavier.width))
        heavier = heavier.heavier()
    assert sizes[-1] == (1_024, 512)
