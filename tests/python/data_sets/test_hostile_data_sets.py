"""Data sets of somebody else: whatever is in them, there is an answer or one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtraceap import cli
from torchtraceap.datasets import DataSet, samples
from torchtraceap.datasets.samples import load_samples
from torchtraceap.errors import SchemaError

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

MINI = Path(__file__).parents[3] / "examples/mini_dataset"
SHARD = "seen-0001"


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    """A data set of one shard."""
    folder = tmp_path / "set"
    for table in ("traces", "gpu_events", "host_events", "names", "windows"):
        (folder / table).mkdir(parents=True)
        shutil.copyfile(MINI / table / f"{SHARD}.parquet", folder / table / f"{SHARD}.parquet")
    shutil.copyfile(MINI / "dataset.json", folder / "dataset.json")
    return folder


def change(folder: Path, table: str, column: str, cell: Callable[[Any], Any]) -> None:
    """Change every cell of a column, the type of the column kept."""
    path = folder / table / f"{SHARD}.parquet"
    file = parquet.ParquetFile(path)
    schema = file.schema_arrow
    with parquet.ParquetWriter(path.with_suffix(".new"), schema) as writer:
        for number in range(file.num_row_groups):
            group = file.read_row_group(number)
            cells = pa.array([cell(v) for v in group.column(column).to_pylist()])
            place = schema.get_field_index(column)
            field = schema.field(column)
            writer.write_table(group.set_column(place, field, cells.cast(field.type)))
    path.with_suffix(".new").replace(path)


def read_all(folder: Path) -> None:
    stored = DataSet(folder)
    for trace in list(stored)[:2]:
        stored.table(trace)


CELLS: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("traces", "metadata", lambda _: "[" * 100_000),
    ("traces", "metadata", lambda _: "[1]"),
    ("traces", "metadata", lambda _: '{"a": NaN}'),
    ("traces", "metadata", lambda _: None),
    ("traces", "id", lambda _: None),
    ("traces", "origin_ns", lambda _: None),
    ("traces", "origin_ns", lambda _: 2**63 - 1),
    ("traces", "tracks", lambda _: None),
    ("traces", "tracks", lambda _: []),
    ("traces", "tracks", lambda _: [{"pid": None, "tid": "1"}]),
    ("traces", "costs", lambda _: [{"type": "x", "start_ns": None, "end_ns": 1}]),
    ("traces", "step_ns", lambda _: [None]),
    ("gpu_events", "args", lambda _: '{"a": ' + "[" * 1000),
    ("gpu_events", "args", lambda _: "7"),
    ("gpu_events", "members", lambda _: '{"a": 1, "a": 2}'),
    ("gpu_events", "start_ns", lambda _: 2**63 - 1),
    ("gpu_events", "dur_ns", lambda _: -1),
    ("gpu_events", "track", lambda _: -5),
    ("gpu_events", "name", lambda _: 7),
    ("host_events", "phase", lambda _: "\u00e9"),
    ("host_events", "phase", lambda _: None),
]


@pytest.mark.parametrize(("table", "column", "cell"), CELLS)
def test_cells_of_somebody_else(
    data_set: Path, table: str, column: str, cell: Callable[[Any], Any]
) -> None:
    change(data_set, table, column, cell)
    with pytest.raises(SchemaError, match=str(data_set)):
        read_all(data_set)


def test_numbers_of_300_digits_in_an_event_are_read(data_set: Path) -> None:
    change(data_set, "gpu_events", "args", lambda _: '{"a": ' + "9" * 300 + "}")
    read_all(data_set)


@pytest.mark.parametrize("text", ["", "[", "[1]", '{"format": "x"}', '{"format": 1e400}', "{}"])
def test_a_description_of_somebody_else(
    data_set: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (data_set / "dataset.json").write_text(text)
    with pytest.raises(SchemaError, match=r"dataset\.json"):
        DataSet(data_set)
    assert cli.main(["dataset", "card", str(data_set)]) == 2
    assert "internal error" not in capsys.readouterr().err


@pytest.mark.parametrize("kept", [0, 7, 1000])
@pytest.mark.parametrize("table", ["traces", "gpu_events", "names"])
def test_a_table_that_was_cut(data_set: Path, table: str, kept: int) -> None:
    path = data_set / table / f"{SHARD}.parquet"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(SchemaError, match=str(path)):
        read_all(data_set)


# ------------------------------------------------------------------------------ kept arrays


def _bomb(arrays: dict[str, Any]) -> dict[str, Any]:
    return arrays | {"0.values": np.zeros(samples._MOST_STORED + 1, np.uint8)}


FORGED: list[Callable[[dict[str, Any]], dict[str, Any]]] = [
    lambda arrays: {},
    lambda arrays: {"x": np.zeros(3)},
    lambda arrays: arrays | {"7.values": np.zeros(3)},
    lambda arrays: arrays | {"-1.values": np.zeros(3)},
    lambda arrays: arrays | {"0.values": np.zeros(3)},
    lambda arrays: arrays | {"0.values": arrays["0.values"].astype("U3")},
    lambda arrays: arrays | {"0.bounds_ns": arrays["0.bounds_ns"][::-1]},
    lambda arrays: arrays | {"0.evidence": arrays["0.evidence"][:, :2]},
    _bomb,
]


@pytest.mark.parametrize("forge", FORGED)
def test_arrays_of_somebody_else_are_computed_anew(
    data_set: Path,
    forge: Callable[[dict[str, Any]], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(samples, "_MOST_STORED", 1 << 22)
    first = load_samples(data_set, windows=20)
    for path in (data_set / ".cache").glob("*.npz"):
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        np.savez_compressed(path, **forge(arrays))
    for a, b in zip(first, load_samples(data_set, windows=20), strict=True):
        np.testing.assert_array_equal(a.values, b.values)
        np.testing.assert_array_equal(a.bounds_ns, b.bounds_ns)


def test_kept_arrays_are_of_the_content_and_not_of_the_name(data_set: Path) -> None:
    first = load_samples(data_set, windows=20)
    change(data_set, "gpu_events", "dur_ns", lambda ns: ns // 2)
    second = load_samples(data_set, windows=20)
    assert any((a.values != b.values).any() for a, b in zip(first, second, strict=True))


def test_nothing_is_written_through_a_link(data_set: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (data_set / ".cache").symlink_to(elsewhere)
    load_samples(data_set, windows=20)
    assert list(elsewhere.iterdir()) == []
    (data_set / ".cache").unlink()
    load_samples(data_set, windows=20)
    kept = sorted((data_set / ".cache").iterdir())
    victim = elsewhere / "victim"
    victim.write_text("theirs")
    for path in kept:
        path.unlink()
        path.symlink_to(victim)
    load_samples(data_set, windows=20)
    assert victim.read_text() == "theirs"


# ------------------------------------------------------------------------------ labels

LABEL = {
    "id": "0", "task": None, "source": {"kind": "k", "base": "b"}, "device": None, "rank": None,
    "run": "r", "twin": None, "type": None, "form": None, "intervals": [], "already": [],
    "split": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "../../etc/passwd"},
        {"id": "/etc/passwd"},
        {"id": 7},
        {"rank": 10**30},
        {"source": {}},
        {"intervals": [[1]]},
        {"intervals": 7},
        {"costs": {"idle": [[1, "2"]]}},
        {"costs": [1]},
        {"already": None},
    ],
)
def test_labels_of_somebody_else(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (tmp_path / "labels.jsonl").write_text(json.dumps(LABEL | wrong) + "\n")
    with pytest.raises(SchemaError, match=r"labels\.jsonl, line 1: "):
        load_samples(tmp_path)
