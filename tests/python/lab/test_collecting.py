"""`collect`: manifests, a run on the CPU, and what a call leaves that is interrupted."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap._core import EventKind
from torchtraceap.cli import main
from torchtraceap.datasets.labels import TASKS
from torchtraceap.errors import MissingFileError, OptionError
from torchtraceap.lab.collection import collect as collecting
from torchtraceap.lab.collection import pairs
from torchtraceap.lab.collection.collect import collect
from torchtraceap.lab.collection.manifest import PlannedPair, read_manifest, shard
from torchtraceap.lab.collection.marker_removal import ORIGIN_NS
from torchtraceap.lab.collection.markers import COSTS
from torchtraceap.lab.collection.pairs import ACCEPTED_RATIO, ids_of
from torchtraceap.lab.generation.faults import STEP_FAULTS
from torchtraceap.record.notices import RecordingError

TYPES = ("single_process_data_loading", "no_memory_pin", "high_memcpy", "graph_break", "cpu_bound")
OF_RANKS = ("small_nccl_kernels", "nccl_blocks_main_stream", "nccl_compute_not_overlapped")
MANIFEST = """
[[workload]]
name = "segmenter"
task = "segmentation"
make = "own:skip_segmenter"
inputs = "images"
compiles = true
parallel = true
forms = ["python_between", "all_reduce_by_parameter"]
tiny = { batch = 4, side = 64, width = 8, depth = 1 }
full = { batch = 16, side = 384, width = 64, depth = 3 }
"""
PART_OF_A_GPU = """
[[workload]]
name = "part"
task = "segmentation"
make = "own:skip_segmenter"
inputs = "images"
multiprocessors = 8
forms = ["python_between"]
tiny = { batch = 4, side = 64, width = 8, depth = 1 }
full = { batch = 16, side = 384, width = 64, depth = 3 }
"""
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def manifest(tmp_path: Path, text: str = MANIFEST) -> Path:
    path = tmp_path / "manifest.toml"
    path.write_text(text)
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


# ------------------------------------------------------------------------- manifests


def test_every_type_has_four_faults_to_train_on_and_some_for_tests() -> None:
    for type_ in TYPES:
        faults = [fault for fault in STEP_FAULTS.values() if fault.type == type_]
        assert sum(not (fault.test or fault.look_alike) for fault in faults) >= 4
        assert any(fault.test for fault in faults)
        assert any(fault.look_alike for fault in faults)
    for type_ in OF_RANKS:
        faults = [fault for fault in STEP_FAULTS.values() if fault.type == type_]
        assert any(fault.test for fault in faults)
        assert any(fault.look_alike for fault in faults)
    assert {fault.type for fault in STEP_FAULTS.values()} == {*TYPES, *OF_RANKS}


@needs_torch
def test_forms_of_ranks_are_those_that_are_emulated() -> None:
    from torchtraceap.lab.collection import emulated

    ours = {name: fault for name, fault in STEP_FAULTS.items() if fault.parallel}
    assert set(emulated.FORMS) == set(ours)
    for name, form in emulated.FORMS.items():
        facts = (form.type, form.test, form.decoy)
        assert facts == (ours[name].type, ours[name].test, ours[name].look_alike)


@needs_torch
def test_every_fault_has_a_step() -> None:
    from torchtraceap.lab.collection.workloads import STEPS

    assert set(STEPS) == set(STEP_FAULTS)
    assert {step.cost for step in STEPS.values()} == set(COSTS)


def test_the_shipped_manifest_has_all_tasks_types_and_forms() -> None:
    entries = read_manifest()
    assert [entry.index for entry in entries] == list(range(len(entries)))
    for task in TASKS:
        of_task = [entry for entry in entries if entry.workload.task == task]
        found = {entry.fault.type for entry in of_task if not entry.fault.look_alike}
        assert found == {*TYPES, *OF_RANKS}, task
    assert {entry.fault.name for entry in entries} == set(STEP_FAULTS)
    for entry in entries:
        assert not (entry.fault.test and entry.split == "train")
        assert not (entry.workload.held_out and entry.split == "train")
        assert not (entry.fault.trained and not entry.workload.trains)


def test_families_are_in_one_split() -> None:
    splits: dict[str, set[bool]] = {}
    for entry in read_manifest():
        trained = entry.workload.split == "train"
        splits.setdefault(entry.workload.family, set()).add(trained)
    assert all(len(found) == 1 for found in splits.values())


def test_shards_part_the_entries() -> None:
    entries = read_manifest()
    parts = [shard(entries, number, 4) for number in (1, 2, 3, 4)]
    assert sorted(e.index for part in parts for e in part) == [e.index for e in entries]
    for number, count in ((0, 4), (5, 4)):
        with pytest.raises(OptionError, match=f"no part {number} of 4"):
            shard(entries, number, count)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("task =", "tusk ="), "unknown key 'tusk'"),
        (('"segmentation"', '"sorting"'), "unknown task 'sorting'"),
        (('"python_between"', '"no_such"'), "unknown form 'no_such'"),
        (("batch = 4", "batch = 0"), "tiny: batch and side"),
        (('inputs = "images"', "inputs = 3"), "inputs must be str"),
        (("parallel = true", 'precision = "fp8"'), "unknown precision"),
        (("parallel = true", "multiprocessors = -1"), "of a single rank"),
        (("parallel = true", "parallel = true\nmultiprocessors = 8"), "of a single rank"),
        (("parallel = true", "multiprocessors = 8"), "of a single rank"),  # the second form
        (("parallel = true", "multiprocessors = true"), "multiprocessors must be int"),
        (("name =", "# name ="), "lacks name"),
        (("[[workload]]", "[workload]"), r"has no \[\[workload\]\]"),
        (("[[workload]]", "[[workload"), "is no TOML"),
    ],
)
def test_a_manifest_that_is_wrong_is_named(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    path = manifest(tmp_path, MANIFEST.replace(*change))
    with pytest.raises(OptionError, match=message):
        read_manifest(path)


def test_workloads_have_different_names_and_files_exist(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="two workloads are called 'segmenter'"):
        read_manifest(manifest(tmp_path, MANIFEST + MANIFEST))
    with pytest.raises(MissingFileError, match=r"none\.toml: no such file"):
        read_manifest(tmp_path / "none.toml")


def test_the_pairs_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "--list", "--manifest", str(manifest(tmp_path))]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 2
    assert listed[1].split()[-2:] == ["small_nccl_kernels", "all_reduce_by_parameter"]
    assert main(["collect"]) == 2
    assert main(["collect", "x", "--shard", "2"]) == 2


def test_which_twin_comes_first_is_drawn() -> None:
    entries = read_manifest()
    first = [ids_of(entry, 0)[True] < ids_of(entry, 0)[False] for entry in entries]
    assert 0.35 < sum(first) / len(first) < 0.65
    ids = [each for entry in entries for each in ids_of(entry, 0).values()]
    assert sorted(ids) == [f"{i:06d}" for i in range(2 * len(entries))]


# ------------------------------------------------------------------------- a run on the CPU


@needs_torch
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in STEP_FAULTS if name != "shared_statistics"])
def test_both_twins_of_every_fault_run(name: str, tmp_path: Path) -> None:
    """`shared_statistics` needs a GPU."""
    import torch

    from torchtraceap.lab.collection.workloads import STEPS, Context

    workload = read_manifest(manifest(tmp_path))[0].workload
    context = Context(workload, workload.tiny, torch.device("cpu"), 0, 1, "eager")
    for bad in (False, True):
        twin = STEPS[name](context, bad)
        try:
            for _ in range(3):
                twin.step()
            assert twin._marks == (4 if "layer" in twin.parts else len(twin.parts))
        finally:
            twin.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("collected")
    entries = read_manifest(manifest(place, MANIFEST + PART_OF_A_GPU))
    found = collect(place / "out", entries, minutes=5, seed=3)
    assert found.left_out == {
        "part python_between": "cpu: only a GPU has multiprocessors to be limited"
    }
    assert found.to_do == 0
    return place


@needs_torch
@pytest.mark.slow
def test_both_twins_are_recorded_and_labelled(folder: Path) -> None:
    labels = lines(folder / "out" / "labels.jsonl")
    assert [label["id"] for label in labels] == ["000000", "000001", "000002", "000003"]
    by_id = {label["id"]: label for label in labels}
    for label in labels:
        assert label["source"] == {"kind": "collected", "base": "segmenter"}
        many = label["form"] == "all_reduce_by_parameter"
        assert (label["world_size"] > 1) == (label["strategy"] == "ddp")
        assert not many or label["collected"]["collectives"] == "emulated"
        assert (label["device"], label["split"], label["task"]) == ("cpu", "cpu", "segmentation")
        facts = label["collected"]
        if label["twin"] is None:
            assert (label["form"], label["type"], label["intervals"]) == ("none", None, [])
            continue
        twin = by_id[label["twin"]]["collected"]
        assert facts["ratio"] == pytest.approx(facts["step_ns"] / twin["step_ns"], abs=1e-4)
        accepted = facts["ratio"] >= ACCEPTED_RATIO
        assert facts["verdict"] == ("accepted" if accepted else "benign")
        assert (label["type"] is not None) == accepted == bool(label["intervals"])
        assert facts["marked"]


@needs_torch
@pytest.mark.slow
def test_the_traces_load_and_hold_no_marker(folder: Path) -> None:
    for label in lines(folder / "out" / "labels.jsonl"):
        path = folder / "out" / f"{label['id']}.json.gz"
        text = gzip.decompress(path.read_bytes()).decode()
        assert '"__m' not in text and "host_name" not in text and str(Path.home()) not in text
        numbers = {
            event["args"]["Ev Idx"]
            for event in json.loads(text)["traceEvents"]
            if "Ev Idx" in event.get("args", {})
        }
        assert numbers == set(range(len(numbers))) and len(numbers) > 100
        trace = ttap.load(path)
        assert len(trace.ranks[0].tree.steps) == label["steps"] >= 2
        table = trace.ranks[0].table
        end_ns = (table.ts_ns + table.dur_ns)[table.complete].max()
        for start, end in label["collected"]["marked"]:
            assert ORIGIN_NS <= start < end <= end_ns
        assert [len(windows) for windows in label["windows"].values()] == [50, 100, 200]


@needs_torch
@pytest.mark.slow
def test_the_cost_lies_where_the_host_works(folder: Path) -> None:
    """Python work is where no operator runs."""
    label = next(
        label
        for label in lines(folder / "out" / "labels.jsonl")
        if label["form"] == "python_between"
    )
    table = ttap.load(folder / "out" / f"{label['id']}.json.gz").ranks[0].table
    starts = table.ts_ns[table.kind == EventKind.CPU_OP]
    marked = label["collected"]["marked"]
    inside = sum(int(((starts > start) & (starts < end)).sum()) for start, end in marked)
    assert len(starts) > 100 and inside == 0


@needs_torch
@pytest.mark.slow
def test_a_second_call_goes_on_where_the_first_stopped(folder: Path) -> None:
    out, entries = folder / "out", read_manifest(folder / "manifest.toml")
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.json.gz")}
    (part,) = out.glob(".pairs/000001-*.json")
    part.unlink()
    found = collect(out, entries, minutes=5, seed=3)
    assert found.to_do == 0 and found.accepted + found.benign == 2
    after = {path.name: path.stat().st_mtime_ns for path in out.glob("*.json.gz")}
    same = {name for name in before if after[name] == before[name]}
    assert same == {"000000.json.gz", "000001.json.gz"}
    with pytest.raises(OptionError, match="another seed or device"):
        collect(out, entries, seed=4)


def test_options_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no device 'tpu'"):
        collect(tmp_path / "a", [], device="tpu")
    with pytest.raises(OptionError, match="make no sense"):
        collect(tmp_path / "a", [], minutes=0)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OptionError, match="empty folder"):
        collect(tmp_path, [])
    assert not (tmp_path / "a").exists()


# ------------------------------------------------------------------------- platforms


@needs_torch
def test_mixed_precision_is_for_products_and_not_for_weights(tmp_path: Path) -> None:
    import torch

    from torchtraceap.lab.collection.workloads import STEPS, Context

    text = MANIFEST.replace("parallel = true", 'precision = "bf16"')
    text = text.replace(', "all_reduce_by_parameter"', "")
    (entry,) = read_manifest(manifest(tmp_path, text))
    workload = entry.workload
    context = Context(workload, workload.tiny, torch.device("cpu"), 0, 1, "eager")
    step = STEPS["metrics_in_numpy"](context, True)  # NumPy has no such type
    found: set[Any] = set()
    step.model.register_forward_hook(lambda module, given, output: found.add(output.dtype))
    step.step()
    assert found == {torch.bfloat16}
    assert {p.dtype for p in step.model.parameters()} == {torch.float32}
    assert not torch.is_autocast_enabled("cpu")


@needs_torch
class TestPartOfAGpu:
    """A green context can be had on a GPU alone; here, what is made of what it does."""

    @pytest.fixture
    def platforms(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        import contextlib
        from types import SimpleNamespace

        import torch

        from torchtraceap.lab.collection.workloads import steps as platforms

        whole = SimpleNamespace(multi_processor_count=132)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: whole)
        monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
        self.streams: list[str] = []
        monkeypatch.setattr(torch.cuda, "set_stream", self.streams.append)
        return platforms

    def limit(self, platforms: Any, tmp_path: Path, count: int) -> Any:
        import torch

        text = PART_OF_A_GPU.replace("multiprocessors = 8", f"multiprocessors = {count}")
        (entry,) = read_manifest(manifest(tmp_path, text))
        return platforms.use_platform(entry.workload, torch.device("cuda"))

    @pytest.mark.parametrize(("part_ms", "works"), [(2.7, True), (1.7, True), (1.1, False)])
    def test_it_is_used_if_it_makes_work_slower(
        self,
        platforms: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        part_ms: float,
        works: bool,
    ) -> None:
        from types import SimpleNamespace

        context = SimpleNamespace(Stream=lambda: "of the context")
        times = iter([1.0, part_ms])
        monkeypatch.setattr(platforms, "_green_context", lambda count, device: context)
        monkeypatch.setattr(platforms, "_trial_ms", lambda device: next(times))
        if works:
            assert self.limit(platforms, tmp_path, 48) is context
        else:
            with pytest.raises(RecordingError, match=r"limits nothing: .* 1\.10 ms in it, and 1"):
                self.limit(platforms, tmp_path, 48)
        assert self.streams == (["of the context"] if works else [])

    def test_where_there_is_none_it_is_said(
        self, platforms: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(RecordingError, match="are no limit: the GPU has 132"):
            self.limit(platforms, tmp_path, 132)

        def old(count: int, device: Any) -> None:
            raise RuntimeError("cuda driver too old to use green context!\nframes")

        monkeypatch.setattr(platforms, "_green_context", old)
        with pytest.raises(RecordingError, match=r"context of 48 .*: cuda driver too old .*!$"):
            self.limit(platforms, tmp_path, 48)


# ------------------------------------------------------------------------- without recording


class Interrupted(BaseException):
    """Stands for Ctrl-C, which would end the tests."""


def entries_of(tmp_path: Path) -> list[PlannedPair]:
    second = MANIFEST.replace('"segmenter"', '"other"')
    return read_manifest(manifest(tmp_path, MANIFEST + second))


def test_an_interrupted_call_leaves_labels_of_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = entries_of(tmp_path)

    def record(folder: Path, group: list[PlannedPair], *_: object) -> None:
        if group[0].workload.name == "other":
            raise Interrupted
        label = {"id": "000000", "collected": {"verdict": "accepted"}}
        collecting._keep(folder, group[0], [(label, b"trace")])
        collecting._leave_out(folder, group[1], "does not\nfit")

    monkeypatch.setattr(collecting, "_in_process", record)
    with pytest.raises(Interrupted):
        collect(tmp_path / "out", entries)
    assert [label["id"] for label in lines(tmp_path / "out" / "labels.jsonl")] == ["000000"]
    assert lines(tmp_path / "out" / "left_out.jsonl") == [
        {"entry": "segmenter all_reduce_by_parameter", "reason": "does not fit"}
    ]
    monkeypatch.setattr(collecting, "_in_process", lambda *_: None)
    found = collect(tmp_path / "out", entries)
    assert (found.accepted, found.to_do, len(found.left_out)) == (1, 2, 1)


def test_a_process_that_crashes_loses_one_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = entries_of(tmp_path)
    (tmp_path / ".pairs").mkdir()
    collecting._blame(tmp_path, entries, -15)
    assert not list((tmp_path / ".pairs").iterdir())
    collecting._blame(tmp_path, entries, -11)
    assert [path.name for path in (tmp_path / ".pairs").iterdir()] == [
        "000000-segmenter-python_between.json"
    ]


def test_copies_are_never_faults_without_a_device() -> None:
    fault = STEP_FAULTS["pageable_workers"]
    assert pairs._verdict(fault, 2.0, on_gpu=False) == "benign"
    assert pairs._verdict(fault, 2.0, on_gpu=True) == "accepted"
    assert pairs._verdict(fault, 1.09, on_gpu=True) == "benign"
    look_alike = STEP_FAULTS["ready_batches"]
    assert pairs._verdict(look_alike, 1.0, on_gpu=True) == "decoy"
    with pytest.raises(pairs.UnfitError, match=r"2\.00 times"):
        pairs._verdict(look_alike, 2.0, on_gpu=True)


def test_levels_rise_until_a_fault_costs_enough() -> None:
    assert pairs._level(1.5, 8) == 1
    assert pairs._level(1.1, 8) == 2
    assert pairs._level(1.04, 8) == 5
    assert pairs._level(0.9, 8) == 8
