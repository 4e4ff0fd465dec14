"""The data set: what is written is what is read, and nothing of a trace is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.cli import main
from torchtraceap.datasets.arrow import schemas
from torchtraceap.datasets.labels import GRIDS, TYPES
from torchtraceap.datasets.reader import DataSet, labeled_runs
from torchtraceap.datasets.samples import load_samples
from torchtraceap.datasets.writer import write_shard
from torchtraceap.errors import MissingFileError, OptionError, SchemaError
from torchtraceap.lab.building import build as building
from torchtraceap.lab.building.add import add, add_labelled, export
from torchtraceap.lab.building.plan import GROUP, Group, plan_groups, plan_mini_groups, type_order
from torchtraceap.lab.generation.generate import generate
from torchtraceap.trace.ranks import RankTrace

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.slow  # generates traces and builds data sets of them
ROOT = Path(__file__).resolve().parents[3]
BASES = [str(ROOT / f"examples/traces/resnet50_num_workers_{n}.json.gz") for n in (0, 4)]
WriteTrace = Callable[..., Path]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated") / "traces"
    generate(out, 8, 3, bases=BASES)
    return out


def labelled(generated: Path) -> list[tuple[dict[str, Any], RankTrace]]:
    pairs = []
    for run in labeled_runs(generated):
        for label, part in zip(run.labels, run.load().ranks, strict=True):
            pairs.append(({**label, "id": label["id"].replace("/", "-"), "split": "real"}, part))
    return pairs


def made(folder: Path, pairs: list[tuple[dict[str, Any], RankTrace]], shard: str) -> DataSet:
    folder.mkdir(exist_ok=True)
    (folder / "dataset.json").write_text('{"format": 1}')
    write_shard(folder, shard, pairs)
    return DataSet(folder)


@pytest.fixture(scope="module")
def dataset(generated: Path, tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return made(tmp_path_factory.mktemp("set") / "set", labelled(generated), "real-0000")


def events(table: _core.EventTable) -> list[str]:
    """Events as sorted texts, without what is not kept."""
    found = json.loads(_core.trace_json(table))["traceEvents"]
    for event in found:
        if event["ph"] == "M":
            event.pop("ts", None)
        if not event.get("args", True):
            del event["args"]
        event["pid"], event["tid"] = str(event["pid"]), str(event["tid"])
    texts = (json.dumps(event, sort_keys=True) for event in found)
    return sorted(re.sub(r"(\d)\.0\b(?=[,}\]])", r"\1", text) for text in texts)


def of_json(table: _core.EventTable) -> list[tuple[str, Any]]:
    return [(key, json.loads(text)) for key, text in table.metadata]


def test_every_event_comes_back_with_all_of_its_values(generated: Path, dataset: DataSet) -> None:
    for label, part in labelled(generated):
        table = dataset.table(label["id"])
        assert events(table) == events(part.table)
        assert of_json(table) == of_json(part.table)


def test_what_is_computed_of_a_trace_is_the_same(
    generated: Path, dataset: DataSet, tmp_path: Path
) -> None:
    for label, part in labelled(generated)[:4]:
        original = ttap.Trace([part])
        again = ttap.load(export(dataset.path, label["id"], tmp_path / "exported.json.gz"))
        stored = ttap.Trace([dataset.rank(label["id"])])
        expected = original.diagnose()
        for trace in (again, stored):
            np.testing.assert_array_equal(
                trace.features().values_matrix, original.features().values_matrix
            )
            found = trace.diagnose()
            assert [f.type for f in found.findings] == [f.type for f in expected.findings]
            assert [f.cost_ns for f in found.findings] == [f.cost_ns for f in expected.findings]
            for one, two in zip(found.findings, expected.findings, strict=True):
                np.testing.assert_array_equal(one.intervals, two.intervals)
                assert [e.name for e in one.evidence] == [e.name for e in two.evidence]


def test_samples_of_the_set_are_those_of_the_traces(generated: Path, dataset: DataSet) -> None:
    of_set = {sample.id: sample for sample in load_samples(dataset.path, windows=50)}
    for sample in load_samples(generated, windows=50):
        stored = of_set[sample.id.replace("/", "-")]
        for name in ("bounds_ns", "cost", "positive", "ignore", "values", "zscores", "evidence"):
            np.testing.assert_array_equal(getattr(stored, name), getattr(sample, name))


def test_windows_are_those_of_the_samples(dataset: DataSet) -> None:
    for count in GRIDS:
        for sample in load_samples(dataset.path, windows=count):
            rows = dataset.windows(sample.id).to_pandas()
            rows = rows[rows["n_w"] == count]
            origin_ns = dataset.entry(sample.id).row["origin_ns"]
            assert (rows["start_ns"] + origin_ns).tolist() == sample.bounds_ns[:-1].tolist()
            assert (rows["end_ns"] + origin_ns).tolist() == sample.bounds_ns[1:].tolist()
            assert rows["positive"].tolist() == sample.positive.tolist()
            assert rows["ignore"].tolist() == sample.ignore.tolist()
            np.testing.assert_array_equal(rows[list(TYPES)].to_numpy(), sample.cost)


def test_odd_values_come_back(write_trace: WriteTrace, tmp_path: Path) -> None:
    made_of = [
        {"ph": "M", "name": "process_name", "pid": "Spans", "tid": 0, "args": {"name": "ü"}},
        {"ph": "X", "cat": "cpu_op", "name": "naïve ☃", "pid": 1, "tid": 2, "ts": 1.001, "dur": 5,
         "args": {"External id": "7", "Bytes": -1, "nested": {"a": [1, None]}, "null": None}},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 3, "dur": 1,
         "args": {"device": 0, "stream": "seven", "correlation": 3, "grid": [1, 2],
                  "block": [32, 1, 1], "bytes": 1 << 62}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 2,
         "ts": 2, "dur": 0.5, "args": {"correlation": 3, "stream": 7, "device": 0}},
        {"ph": "B", "cat": "cpu_op", "name": "b", "pid": 1, "tid": 2, "ts": 10},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 12, "name": "b", "cat": "cpu_op"},
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 2, "ts": 2, "id": 3},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 3, "id": "x",
         "bp": "e"},
        {"ph": "i", "s": "g", "name": "mark", "pid": 1, "tid": 2, "ts": 4},
    ]  # fmt: skip
    path = write_trace({"traceEvents": made_of, "distributedInfo": {"rank": 3}, "x": [1.5, "é"]})
    part = ttap.load(path).ranks[0]
    label = {**_label("odd"), "rank": 3}
    again = made(tmp_path / "set", [(label, part)], "own-odd").table("odd")
    assert events(again) == events(part.table)
    assert again.rank == 3
    assert json.loads(dict(again.metadata)["x"]) == [1.5, "é"]


def test_traces_without_events_of_a_gpu_or_with_none_that_last(
    write_trace: WriteTrace, tmp_path: Path
) -> None:
    for number, event in enumerate(({"cat": "cpu_op", "ph": "X", "dur": 2}, {"ph": "i"})):
        event = {"name": "a", "pid": 1, "tid": 1, "ts": 5, **event}
        part = ttap.load(write_trace({"traceEvents": [event]})).ranks[0]
        folder = tmp_path / str(number)
        again = made(folder, [(_label("one"), part)], "own-one").table("one")
        assert events(again) == events(part.table)
        assert len(load_samples(folder, windows=50)[0].bounds_ns) == 51


def _label(name: str) -> dict[str, Any]:
    return {"id": name, "split": None, "task": None, "source": {"kind": "recorded", "base": name},
            "device": None, "rank": 0, "run": name, "twin": None, "type": None, "form": "none",
            "decoy": False, "intervals": [], "already": []}  # fmt: skip


def test_the_small_set_has_every_type_with_its_twin() -> None:
    small = DataSet(ROOT / "examples/mini_dataset")
    labels = {label["id"]: label for label in small.labels()}
    assert len(labels) == 32
    faulty = [label for label in labels.values() if label["type"] is not None]
    assert {label["type"] for label in faulty} == set(TYPES)
    split_of: dict[str, str] = {}
    for label in labels.values():
        assert split_of.setdefault(label["source"]["base"], label["split"]) == label["split"]
    for label in faulty:
        twin = labels[label["twin"]]
        assert (twin["type"], twin["split"]) == (None, label["split"])
        longer_ns = small.rank(label["id"]).profiled_ns - small.rank(twin["id"]).profiled_ns
        assert longer_ns == pytest.approx(label["cost_ns"], rel=0.1, abs=1e6)
        windows = small.windows(label["id"]).to_pandas()
        assert windows["positive"].any()
        assert not small.windows(twin["id"]).to_pandas()["positive"].any()


@pytest.mark.slow
def test_a_group_of_the_small_set_is_made_again_byte_by_byte(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (group,) = [group for group in plan_mini_groups() if group.split == "validation"]
    write_shard(tmp_path, group.shard, building.group_traces(group, 1))
    kept = ROOT / "examples/mini_dataset"
    for path in tmp_path.rglob("*.parquet"):
        assert path.read_bytes() == (kept / path.relative_to(tmp_path)).read_bytes()


# ------------------------------------------------------------------------------ plan


def test_splits_have_the_proportions_of_the_paper() -> None:
    groups = plan_groups(610)
    traces = {
        split: GROUP * sum(group.split == split for group in groups)
        for split in ("train", "validation", "seen", "unseen")
    }
    assert sum(traces.values()) >= 610
    assert traces["seen"] >= 75 <= traces["unseen"]
    assert 440 <= traces["train"] + traces["validation"] <= 480
    assert 48 <= traces["validation"] <= 64
    assert {g.task for g in groups if g.split == "unseen"} == {"generation", "pose", "depth"}
    known = [g.is_new for g in groups if g.split == "seen"]
    assert 0.25 <= known.count(False) / len(known) <= 0.4
    assert len({group.number for group in groups}) == len({g.shard for g in groups}) == len(groups)


def test_every_type_and_task_gets_its_turns_in_every_split() -> None:
    import random

    groups = plan_groups(640)
    for split in ("train", "validation", "seen", "unseen"):
        mine = [group for group in groups if group.split == split]
        firsts = {
            type_order(group, random.Random(0), place)[1][0]
            for group in mine
            for place in range(GROUP // 2)
        }
        assert firsts == set(TYPES)
        assert len({(group.task, group.is_collective) for group in mine}) == 6


def test_too_few_traces_for_all_splits_are_refused() -> None:
    with pytest.raises(OptionError, match="10 traces are too few"):
        plan_groups(10)


# ------------------------------------------------------------------------------ building


@pytest.fixture
def quick(generated: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Groups have one trace each, of recorded bases; the shards that were made."""
    pairs = labelled(generated)
    done: list[str] = []

    def one(group: Group, seed: int) -> Iterator[tuple[dict[str, Any], RankTrace]]:
        done.append(group.shard)
        label, part = pairs[group.number % len(pairs)]
        source = {"kind": "lifted", "base": f"base {group.number}"}
        name = f"{group.number:04d}-00"
        own = {"id": name, "run": name, "twin": None, "split": group.split, "source": source}
        yield {**label, **own}, part

    monkeypatch.setattr(building, "group_traces", one)
    return done


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_build_gives_the_same_bytes_and_goes_on_where_it_stopped(
    quick: list[str], tmp_path: Path
) -> None:
    whole = building.build(tmp_path / "whole", count=32, seed=1)
    assert len(quick) == 4
    part = building.build(tmp_path / "part", count=32, seed=1)
    lost = sorted((part / "traces").iterdir())[:2]
    for path in lost:
        path.unlink()
    quick.clear()
    building.build(part, count=32, seed=1, resume=True)
    assert sorted(quick) == [path.stem for path in lost]
    assert files(part) == files(whole)


def test_a_build_does_not_touch_what_it_did_not_begin(quick: list[str], tmp_path: Path) -> None:
    folder = building.build(tmp_path / "set", count=32)
    with pytest.raises(OptionError, match="holds a data set; resume it"):
        building.build(folder, count=32)
    with pytest.raises(OptionError, match="of other options"):
        building.build(folder, count=32, seed=2, resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("")
    with pytest.raises(OptionError, match="a new or empty folder"):
        building.build(tmp_path / "other", count=32)
    with pytest.raises(MissingFileError, match=r"no\.json: no such file"):
        building.build(tmp_path / "new", count=32, bases=["no.json"])


def test_no_base_and_no_pair_is_on_two_sides(quick: list[str], tmp_path: Path) -> None:
    labels = DataSet(building.build(tmp_path / "set", count=64)).labels()
    split_of: dict[str, str] = {}
    for label in labels:
        assert split_of.setdefault(label["source"]["base"], label["split"]) == label["split"]


def test_the_card_says_what_is_there(quick: list[str], tmp_path: Path) -> None:
    folder = building.build(tmp_path / "set", count=64)
    card = (folder / "README.md").read_text("utf-8")
    head = card.split("---\n")[1]
    for table in ("traces", "gpu_events", "host_events", "windows", "names"):
        for path in re.findall(rf"path: ({table}/[^\n]*)", head):
            assert list(folder.glob(path)), path
    figures = re.findall(r"\]\((figures/[^)]*)\)", card)
    assert len(figures) == 7
    for figure in figures:
        assert (folder / figure).read_text("utf-8").startswith("<svg")
    croissant = json.loads((folder / "croissant.json").read_text("utf-8"))
    assert {each["name"] for each in croissant["recordSet"]} == {
        "traces", "gpu_events", "host_events", "windows", "names",
    }  # fmt: skip
    for entry in croissant["distribution"]:
        if entry["@type"] == "cr:FileObject":
            assert (folder / entry["contentUrl"]).exists()
    for table in croissant["recordSet"]:
        kinds = {each.name: str(each.type) for each in schemas()[table["name"]]}
        typed = {each["name"]: each["dataType"] for each in table["field"]}
        # Readers turn each element of a field into its type; structs have none.
        assert not any("struct" in kinds[name] for name in typed)
        assert all(name in typed or name in table["description"] for name in kinds)
        for name, kind in kinds.items():
            is_whole = kind.removeprefix("list<item: ").startswith("int")
            assert name not in typed or (typed[name] == "sc:Integer") == is_whole


# ------------------------------------------------------------------------------ adding


def write_labels(folder: Path, content: Any) -> Path:
    path = folder / "labels.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_trace_of_ones_own_is_added(tmp_path: Path) -> None:
    start_ns = int(ttap.load(BASES[0]).ranks[0].tree.profiled[0])
    intervals = [
        {"start_ns": start_ns, "end_ns": start_ns + 200_000_000, "type": "high_memcpy"},
        {"start_ns": start_ns + 10**8, "end_ns": start_ns + 3 * 10**8, "type": "cpu_bound"},
    ]
    labels = write_labels(tmp_path, {"intervals": intervals, "task": "classification"})
    folder = tmp_path / "set"
    assert main(["dataset", "add", str(folder), BASES[0], "--labels", str(labels)]) == 0
    (sample,) = load_samples(folder)
    assert (sample.id, sample.split) == ("resnet50_num_workers_0", None)
    assert sample.cost[0, TYPES.index("high_memcpy")] == 1.0
    assert sample.positive[: int(len(sample.positive) * 0.2)].all()
    both = np.flatnonzero((sample.cost > 0).sum(axis=1) == 2)
    assert len(both)
    with pytest.raises(OptionError, match="has a trace 'resnet50_num_workers_0' already"):
        add(folder, BASES[0], labels)
    clean = write_labels(tmp_path, [])
    assert add(folder, BASES[1], clean, split="train") == "resnet50_num_workers_4"
    assert [s.label for s in load_samples(folder)] == [True, False]
    assert [s.id for s in load_samples(folder, splits=["train"])] == ["resnet50_num_workers_4"]


def test_a_folder_of_labelled_traces_is_added(generated: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    assert main(["dataset", "add", str(folder), str(generated), "--split", "real"]) == 0
    found = DataSet(folder)
    expected = {label["id"].replace("/", "-"): label for label in map(json.loads, (
        (generated / "labels.jsonl").read_text("utf-8").splitlines()))}  # fmt: skip
    assert list(found) == sorted(expected)
    assert len(found.shards) == len({each["source"]["base"] for each in expected.values()})
    for label in found.labels():
        assert label["intervals"] == expected[label["id"]]["intervals"]
        assert label["split"] == "real"
        assert label["twin"] is None or label["twin"] in found.entries
    with pytest.raises(OptionError, match="already"):
        add_labelled(folder, generated, split="real")
    assert main(["dataset", "add", str(folder), BASES[0]]) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ({"a": 1}, "a list of `intervals` is needed"),
        ([[1, 2]], "has the type None"),
        ([{"start_ns": 1, "end_ns": 2, "type": "slow"}], "has the type 'slow'"),
        ([{"start_ns": 1.5, "end_ns": 2, "type": "cpu_bound"}], "in whole nanoseconds"),
        ([{"start_ns": 2, "end_ns": 2, "type": "cpu_bound"}], "before it begins"),
        ([{"start_ns": 1, "end_ns": 2, "type": "cpu_bound"}], "is outside"),
        ({"intervals": [], "source": "me"}, "a `source` is an object"),
    ],
)
def test_labels_that_make_no_sense_are_named(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(message)):
        add(tmp_path / "set", BASES[0], write_labels(tmp_path, content))


def test_a_base_stays_in_its_split(tmp_path: Path) -> None:
    source = {"kind": "recorded", "base": "job"}
    first = write_labels(tmp_path, {"intervals": [], "source": source, "id": "one"})
    add(tmp_path / "set", BASES[0], first, split="train")
    second = write_labels(tmp_path, {"intervals": [], "source": source, "id": "two"})
    with pytest.raises(OptionError, match="'job' are in the split train"):
        add(tmp_path / "set", BASES[1], second, split="seen")


# ------------------------------------------------------------------------------ reading


def test_what_is_no_data_set_is_said(dataset: DataSet, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no such folder"):
        DataSet(tmp_path / "none")
    with pytest.raises(SchemaError, match="is no data set"):
        DataSet(tmp_path)
    (tmp_path / "dataset.json").write_text('{"format": 99}')
    with pytest.raises(SchemaError, match="of version 99, not 1"):
        DataSet(tmp_path)
    (tmp_path / "dataset.json").write_text("[]")
    with pytest.raises(SchemaError, match="expected an object"):
        DataSet(tmp_path)
    with pytest.raises(OptionError, match="has no trace 'x'; there are 8"):
        dataset.table("x")


@pytest.mark.parametrize("table", ["traces", "gpu_events", "host_events", "windows", "names"])
def test_a_damaged_file_is_named(generated: Path, tmp_path: Path, table: str) -> None:
    pair = labelled(generated)[:1]
    folder = made(tmp_path / "set", pair, "real-0000").path
    path = folder / table / "real-0000.parquet"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(SchemaError, match=f"{table}/real-0000.parquet: can't be read as Parquet"):
        read_all(folder, pair[0][0]["id"])
    path.unlink()
    with pytest.raises((MissingFileError, OptionError)):
        read_all(folder, pair[0][0]["id"])


def read_all(folder: Path, trace: str) -> None:
    found = DataSet(folder)
    found.table(trace)
    found.windows(trace)


def test_info_and_export_speak_on_the_command_line(
    dataset: DataSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dataset", "info", str(dataset.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "torchtraceap.dataset/1"
    assert found["traces"] == 8
    assert main(["dataset", "info", str(dataset.path)]) == 0
    assert "8 traces of" in capsys.readouterr().out
    name = next(iter(dataset))
    out = tmp_path / "one.json"
    assert main(["dataset", "export", str(dataset.path), name, str(out)]) == 0
    assert len(ttap.load(out).ranks[0].table) == len(dataset.table(name))
    assert main(["dataset", "export", str(dataset.path)]) == 2
    assert "torchtraceap dataset export OUT ID TRACE" in capsys.readouterr().err


def test_without_pyarrow_it_says_what_to_install(
    dataset: DataSet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["dataset", "info", str(dataset.path)]) == 2
    assert "pip install 'torchtraceap[arrow]'" in capsys.readouterr().err
