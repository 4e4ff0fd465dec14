"""Events in columns: a file that gives back the same table, or one clear error."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.cli import main
from torchtraceap.errors import ParseError
from torchtraceap.trace import column_file, packed_file
from torchtraceap.trace.column_file import MAGIC, holds_events, read_columns, write_columns
from torchtraceap.trace.files import expand_paths
from torchtraceap.trace.packed_file import read_packed, write_packed

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

EXAMPLES = sorted((Path(__file__).parents[3] / "examples/traces").glob("*.json.gz"))
COLUMNS = ("ts_ns", "dur_ns", "name", "category", "kind", "phase", "flags", "track", "device",
           "stream", "correlation", "external_id")  # fmt: skip


def _events() -> list[dict[str, Any]]:
    """Everything that is stored in its own way: odd ids, texts, numbers, phases, damage."""
    on_gpu = {"pid": 0, "tid": 7, "cat": "kernel"}
    return [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "py ü"}},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": "a", "args": {"name": "main"}},
        {"ph": "X", "cat": "cpu_op", "name": 'mm "x"\n', "pid": 7, "tid": "a", "ts": 1.5, "dur": 9,
         "args": {"External id": 3, "Input Dims": [[2, 3], []], "big": 2**70, "f": 1.25e-3,
                  "t": "text", "n": None, "deep": {"a": [1, {"b": -5}]}}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": "a",
         "ts": 2, "dur": 1, "args": {"correlation": 11, "External id": 3}},
        {"ph": "X", "name": "k", "ts": 4, "dur": 5.001, **on_gpu,
         "args": {"correlation": 11, "stream": 7, "device": 0, "grid": [1, 2, 3]}},
        {"ph": "X", "name": "k", "ts": 3, "dur": -1, **on_gpu, "args": {"device": 2**40}},
        {"ph": "s", "name": "ac2g", "cat": "ac2g", "id": 11, "pid": 7, "tid": "a", "ts": 2},
        {"ph": "f", "name": "ac2g", "cat": "ac2g", "id": 11, "pid": 0, "tid": 7, "ts": 4,
         "bp": "e"},
        {"ph": "B", "name": "outer", "pid": 7, "tid": "a", "ts": 1},
        {"ph": "E", "name": "outer", "pid": 7, "tid": "a", "ts": 30},
        {"ph": "i", "name": "mark", "pid": 7, "tid": 0, "ts": 5, "s": "g"},
        {"ph": "C", "name": "count", "pid": 7, "tid": 0, "ts": 6, "args": {"bytes": 12}},
    ]  # fmt: skip


def _trace(folder: Path) -> Path:
    path = folder / "trace.json"
    about = {"distributedInfo": {"rank": 2, "world_size": 4}, "odd": [1, "ä", None],
             "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}  # fmt: skip
    path.write_text(json.dumps({**about, "traceEvents": _events()}) + "x")
    return path


def _same(one: _core.EventTable, other: _core.EventTable) -> None:
    for name in COLUMNS:
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
    assert one.strings == other.strings and one.metadata == other.metadata
    tracks = [
        [(t.pid, t.tid, t.process_name, t.process_labels, t.thread_name) for t in table.tracks]
        for table in (one, other)
    ]
    assert tracks[0] == tracks[1]
    entries = [
        [(d.code, d.count, d.first_byte_offset, d.message) for d in table.diagnostics]
        for table in (one, other)
    ]
    assert entries[0] == entries[1]
    about = ("rank", "world_size", "backend", "total_objects", "text_bytes")
    assert [getattr(one, a) for a in about] == [getattr(other, a) for a in about]
    assert [d.name for d in one.devices] == [d.name for d in other.devices]
    assert _core.trace_json(one) == _core.trace_json(other)


def _stored(path: Path, folder: Path) -> tuple[_core.EventTable, Path]:
    table = _core.read_trace(path)
    target = folder / "events.parquet"
    write_columns(table, target)
    return table, target


FORMS: dict[str, tuple[Callable[..., None], Callable[..., _core.EventTable]]] = {
    "parquet": (write_columns, read_columns),
    "arrow": (write_packed, read_packed),
    "mapped": (partial(write_packed, pack=False), read_packed),
}
EVERY = pytest.mark.parametrize("form", FORMS)


@EVERY
def test_nothing_of_a_trace_is_lost(form: str, tmp_path: Path) -> None:
    table = _core.read_trace(_trace(tmp_path))
    assert any(d.count for d in table.diagnostics)
    write, read = FORMS[form]
    write(table, tmp_path / "stored")
    _same(table, read(tmp_path / "stored"))
    _same(table, read(tmp_path / "stored", threads=1))


@pytest.mark.parametrize("count", [1, 3])
def test_ids_of_any_size(count: int, tmp_path: Path) -> None:
    """Correlations are stored from the lowest one on, which may be far from the highest."""
    ids = [-(2**62), 2**62, 0][:count]
    path = tmp_path / "trace.json"
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 1, "ts": -5 + i, "dur": 1,
         "args": {"correlation": one, "stream": -one, "device": i}}
        for i, one in enumerate(ids)
    ]  # fmt: skip
    path.write_text(json.dumps(events))
    table = _core.read_trace(path)
    for write, read in FORMS.values():
        write(table, tmp_path / "stored")
        _same(table, read(tmp_path / "stored"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
@EVERY
def test_a_real_trace_is_diagnosed_equally(form: str, path: Path, tmp_path: Path) -> None:
    target, back = tmp_path / "no_suffix", tmp_path / "back.json"
    table = _core.read_trace(path)
    write, read = FORMS[form]
    write(table, target)
    _same(table, read(target))
    one, other = ttap.load(path), ttap.load(target)
    texts = [_plain(trace.diagnose().to_dict()) for trace in (one, other)]
    assert texts[0] == texts[1]
    assert main(["convert", str(target), str(back)]) == 0
    assert _core.trace_json(_core.read_trace(back)) == _core.trace_json(table)
    if form != "mapped":
        assert target.stat().st_size * 10 < table.text_bytes


def _plain(document: dict[str, Any]) -> str:
    """A document without the name of its file."""
    return json.dumps({k: v for k, v in document.items() if k not in ("path", "files", "summary")})


def test_convert_writes_it_for_other_readers_too(tmp_path: Path) -> None:
    path, target = _trace(tmp_path), tmp_path / "events.parquet"
    assert main(["convert", str(path), str(target)]) == 0
    rows = parquet.read_table(target).to_pylist()
    kernel = next(row for row in rows if row["name"] == "k" and row["dur_ns"])
    assert (kernel["ts_ns"], kernel["dur_ns"], kernel["stream"]) == (4000, 5001, 7)
    assert json.loads(kernel["args"])["grid"] == [1, 2, 3]
    _same(_core.read_trace(path), read_columns(target))
    back, packed = tmp_path / "back.json", tmp_path / "events.arrow"
    assert main(["convert", str(target), str(packed)]) == 0
    assert main(["convert", str(packed), str(back)]) == 0
    assert _core.trace_json(_core.read_trace(back)) == _core.trace_json(_core.read_trace(path))


def test_a_folder_of_them_is_a_job_of_ranks(tmp_path: Path) -> None:
    for rank in range(2):
        trace = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": _events()}
        (tmp_path / "source.json").write_text(json.dumps(trace))
        write_columns(_core.read_trace(tmp_path / "source.json"), tmp_path / f"{rank}.parquet")
    (tmp_path / "source.json").unlink()
    parquet.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    assert len(expand_paths(tmp_path)[0]) == 2
    assert [rank.rank for rank in ttap.load(tmp_path).ranks] == [0, 1]


def test_other_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    parquet.write_table(pa.table({"a": [1]}), other)
    assert not holds_events(other)
    with pytest.raises(ParseError, match="a file of another kind"):
        ttap.load(other)
    other.write_bytes(MAGIC + b"\0" * 20)
    assert not holds_events(other)
    with pytest.raises(ParseError, match=r"other\.parquet: is damaged"):
        ttap.load(other)


@EVERY
def test_every_damaged_byte_is_noticed_or_does_no_harm(form: str, tmp_path: Path) -> None:
    table, target = _core.read_trace(EXAMPLES[0]), tmp_path / "stored"
    write, read = FORMS[form]
    write(table, target)
    whole = target.read_bytes()
    expected = _core.trace_json(table)
    rng = random.Random(3)
    failed = 0
    for _ in range(60):
        data = bytearray(whole)
        place = rng.randrange(4, len(data))
        data[place] ^= 1 << rng.randrange(8)
        target.write_bytes(data if rng.random() < 0.8 else data[:place])
        try:
            again = read(target)
        except ParseError as error:
            failed += 1
            assert str(target) in str(error) and "\n" not in str(error)
        else:
            assert _core.trace_json(again) == expected
    assert failed > 40


def _rewritten(target: Path, **columns: Any) -> None:
    """Replace columns of a file, with right checksums: what a stranger could make."""
    rows = parquet.read_table(target, read_dictionary=["name", "template"])
    for name, values in columns.items():
        rows = rows.set_column(rows.column_names.index(name), name, values)
    parquet.write_table(rows, target)


def test_made_up_columns_are_refused(tmp_path: Path) -> None:
    table, target = _stored(_trace(tmp_path), tmp_path)
    whole, rows = target.read_bytes(), parquet.read_table(target)
    count = len(table)
    texts = rows["template"].to_pylist()
    bad: dict[str, Any] = {
        "ts_ns": pa.array(range(count, 0, -1)),
        "dur_ns": pa.array([-1] * count),
        "track": pa.array([2**32 - 1] * count, pa.uint32()),
        "flags": pa.array([None] * count, pa.uint8()),
        "kind": pa.array(["no such kind"] * count),
        "phase": pa.array(["XX"] * count),
        "name": pa.array([None] * count, pa.string()),
        "values": pa.array([b"\xff" * 30] * count),
        "template": pa.array([b'{"a": '] * count),
        "stream": pa.array(["text"] * count),
    }
    bad_templates = (b"[]", b'{"a": \x07}', b"", b'{"a": "\x12"}', b"\x12")
    cases = list(bad.items())
    cases += [("template", pa.array([text] * count)) for text in bad_templates]
    cases += [("template", pa.array([texts[-1]] * count))]  # of another row
    cases += [("values", pa.array([b""] * count)), ("values", pa.array([b"\x05" * 9] * count))]
    for name, values in cases:
        target.write_bytes(whole)
        _rewritten(target, **{name: values})
        with pytest.raises(ParseError, match=r"events\.parquet"):
            read_columns(target)
    target.write_bytes(whole)
    _rewritten(target)
    _same(table, read_columns(target))


def test_packed_arguments_are_checked(tmp_path: Path) -> None:
    """Where no event's arguments are like another's, their text is among the values."""
    table, target = _stored(_trace(tmp_path), tmp_path)
    whole = target.read_bytes()

    def read(template: bytes, values: bytes) -> _core.EventTable:
        target.write_bytes(whole)
        count = len(table)
        _rewritten(target, template=pa.array([template] * count), values=pa.array([values] * count))
        return read_columns(target)

    packed, text = b'{"a": 1, "args": \x14, "b": \x12}', b'{"c": [\x12, \x13]}'
    good = bytes([2 * len(text)]) + text + b"\x06\x031e5" + b"\x09"
    event = {"a": 1, "args": {"c": [3, 1e5]}, "b": -5}
    assert json.loads(read(packed, good).event_json(3)) == event
    assert json.loads(read(packed, good).args_json(3)) == event["args"]
    bad = [
        good[:-1], good + b"\x01", good[:1], b"", bytes([2 * len(good)]) + good[1:],
        bytes([2 * len(text) - 1]) + good[1:], good.replace(b"1e5", b"1e+"),
        good.replace(b"\x12", b"\x14"), good.replace(b"{", b"["), good.replace(b"\x13", b"\x01"),
    ]  # fmt: skip
    cases = [(packed, values) for values in bad]
    cases += [(b'{"args": \x14, "b": \x14}', good + good)]
    # A number's length would be taken from the rest of an integer that is too long.
    cases += [(b'{"a": \x12, "b": \x13}', b"\x81" * 19 + b"\x01" + b"\x011")]
    for template, values in cases:
        with pytest.raises(ParseError, match=r"events\.parquet"):
            read(template, values)


@EVERY
def test_arguments_that_never_repeat_come_back(form: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 1, "ts": i, "dur": 1,
         "args": {"correlation": i, f"key {i}": [i, 0.5 * i], "text": f"of {i}"}}
        for i in range(3000)
    ]  # fmt: skip
    path.write_text(json.dumps(events))
    table = _core.read_trace(path, threads=1)
    assert len(_core.template_texts(table)) < 2000
    write, read = FORMS[form]
    write(table, tmp_path / "stored")
    _same(table, read(tmp_path / "stored"))
    assert json.loads(table.args_json(2999)) == events[2999]["args"]


def test_made_up_packed_columns_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, target = _core.read_trace(_trace(tmp_path)), tmp_path / "events.arrow"
    pack, count = packed_file._pack, len(table)
    numbers = {
        "step_ns": [-5] * count, "dur_ns": [-1] * count, "name": [2**32 - 1] * count,
        "category": [10**6] * count, "kind": [200] * count, "track": [2**31] * count,
        "template": [999] * count, "device": [-1] * count, "stream": [77] * count,
        "values_bytes": [2**40] * count, "strings_bytes": [-3] * 5, "flags": [0] * (count + 1),
        "templates": list(b'{"a": ' * 500), "values": [255] * 4, "stream_values": [],
    }  # fmt: skip
    for name, values in numbers.items():

        def packed(pa: Any, table: Any, name: str = name, values: Any = values) -> Any:
            columns, about = pack(pa, table)
            return {**columns, name: np.array(values, dtype=np.int64)}, about

        monkeypatch.setattr(packed_file, "_pack", packed)
        write_packed(table, target)
        with pytest.raises(ParseError, match=r"events\.arrow"):
            read_packed(target)
    monkeypatch.setattr(packed_file, "_pack", pack)
    other = pa.table({"a": [1]})
    with pa.ipc.new_file(str(target), other.schema) as writer:
        writer.write_table(other)
    with pytest.raises(ParseError, match="a file of another kind"):
        ttap.load(target)


def test_a_claim_beyond_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, target = _stored(_trace(tmp_path), tmp_path)
    monkeypatch.setattr(column_file, "_ROW_BYTES", 1 << 44)
    with pytest.raises(ParseError, match="12 events, which memory does not hold"):
        read_columns(target)
