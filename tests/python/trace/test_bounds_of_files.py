"""Files beside traces that nobody should have written: refused in a sentence, or read in bounds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap.errors import ParseError
from torchtraceap.tables.gpu import memory_timeline
from torchtraceap.tables.gpu.memory_timeline import read_memory_timeline
from torchtraceap.trace import execution
from torchtraceap.trace.execution import LinkedExecution, _align, dependencies, reader
from torchtraceap.trace.execution import load_execution_trace as load
from torchtraceap.trace.execution.dependencies import find_dependencies
from torchtraceap.trace.execution.reader import Access, Node
from torchtraceap.trace.files import natural_key

Json = dict[str, Any]


def write(path: Path, content: Any) -> Path:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


# ------------------------------------------------------------------------------- memory timelines


@pytest.mark.parametrize("form", ["raw", "sizes"])
def test_a_timeline_is_read_in_pieces(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = [[i, 2, (i * 37) % 100, i % 8] for i in range(300)]
    sizes = [
        [float(i) for i in range(300)],
        [[0, *[(i * k) % 90 for k in range(8)]] for i in range(300)],
    ]
    path = write(tmp_path / "m.json.gz", raw if form == "raw" else sizes)
    whole = read_memory_timeline(path).to_dict()
    monkeypatch.setattr(memory_timeline, "_PIECE_BYTES", 50)
    assert read_memory_timeline(path).to_dict() == whole
    assert whole["format"] == form and len(whole["rows"]) == 300


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[[1, 2, 3, 0] [2, 2, 3, 0]]", "JSON: Expecting ',' delimiter at byte 14"),
        (b"[[1, 2, NaN, 0]]", "of numbers"),
        (b"[[1, 2, 1e400, 0]]", "of numbers"),
        (b"[[1, 2, " + b"9" * 30 + b", 0]]", "of numbers"),
        (b"[[1, 2, " + b"9" * 5000 + b", 0]]", "JSON: Exceeds the limit"),
        (b'[[1, 2, "3", 0]]', "of numbers"),
        (b"[[1, 2, 3, 0], [1, 2, 3]]", "of equal length"),
        (b"[" * 100_000 + b"]" * 100_000, "JSON|equal length"),
        (b"[[1, 2, 3, \xff]]", "JSON"),
        (b"[[1, 2, %d, 0], [2, 2, 1, 0]]" % (2**63 - 1), "fits in 64 bits"),
        (b"[[1], [[0, %d, %d, 0, 0, 0, 0, 0, 0]]]" % (2**62, 2**62), "fits in 64 bits"),
        (b"[[1, 2], [[0, 1, 2, 3, 4, 5, 6, 7, 8]]]", "as many sizes as times"),
        (b"[[1], [[0, 1, 2, 3, 4, 5, 6, 7, 8]], 5]", "expected"),
        (b"{}", "a JSON list"),
        (b"", "a JSON list"),
    ],
)
def test_timelines_that_are_none(content: bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.json", content)
    with pytest.raises(ParseError, match=message) as caught:
        read_memory_timeline(path)
    assert str(path) in str(caught.value)


def test_timelines_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_timeline, "MAX_ENTRIES", 1000)
    monkeypatch.setattr(memory_timeline, "MAX_TEXT_BYTES", 1 << 20)
    many = write(tmp_path / "many.raw.json.gz", b"[" + b"[1,2,5,3]," * 1000 + b"[1,2,5,3]]")
    sizes = [[0] * 1002, []]
    for path in (many, write(tmp_path / "many.json", sizes)):
        with pytest.raises(ParseError, match="more than 1,000 entries"):
            read_memory_timeline(path)
    bomb = write(tmp_path / "bomb.json.gz", b"[" + b" " * (1 << 20) + b"]")
    with pytest.raises(ParseError, match="holds more than 1 MiB"):
        read_memory_timeline(bomb)
    assert read_memory_timeline(write(tmp_path / "ok.json", [[1, 2, 5, 3]] * 1000)).num_rows == 1


# ------------------------------------------------------------------------------- execution traces


def entry(**fields: Any) -> Json:
    return {"id": 3, "name": "aten::mm", "parent": 1, "rf_id": 7, "tid": 1, "scope": 0} | fields


def document(tmp_path: Path, *entries: Any, name: str = "e.json") -> Path:
    return write(tmp_path / name, {"schema": "1.0.1", "pid": 5, "nodes": [*entries]})


def tensor(storage: Any = 1, offset: Any = 0, elements: Any = 8, item: Any = 4) -> list[Any]:
    return [1, storage, offset, elements, item, "cuda:0"]


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"rf_id": 2**65}, "node 3, rf_id"),
        ({"parent": -(2**64)}, "node 3, parent"),
        ({"tid": "9" * 25}, "node 3, tid"),
        ({"seq_id": [2**63]}, "node 3, seq_id"),
        ({"fw_parent": 2**63}, "node 3, fw_parent"),
        ({"fw_tid": 2**63}, "node 3, fw_tid"),
        ({"scope": 2**63}, "node 3, scope"),
        ({"inputs": [0, tensor(storage=2**64)]}, r"node 3, inputs\[1\]"),
        ({"outputs": [tensor(offset=2**62, item=4)]}, r"node 3, outputs\[0\]"),
        ({"inputs": [[tensor(elements=2**62)]]}, r"node 3, inputs\[0\]"),
        ({"inputs": [tensor(elements=2**60)] * 2}, "node 3, bytes of the inputs"),
    ],
)
def test_numbers_beyond_64_bits(fields: Json, where: str, tmp_path: Path) -> None:
    path = document(tmp_path, entry(**fields))
    with pytest.raises(ParseError, match=f"{where}: expected an integer of 64 bits, found") as e:
        load(path)
    assert str(path) in str(e.value)


@pytest.mark.parametrize("value", [None, "--5", "²", 1.5, True, {}, [], [[1]], "x", "9" * 50])
def test_ids_of_other_types_are_absent(value: Any, tmp_path: Path) -> None:
    found = load(document(tmp_path, entry(rf_id=value, op_schema=value))).nodes.records()
    assert [row["rf_id"] for row in found] == [None]


def test_the_pid_is_a_number_too(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="pid: expected an integer of 64 bits"):
        load(write(tmp_path / "e.json", {"pid": 2**70, "nodes": [entry()]}))


def test_a_file_is_read_value_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        entry(id=i, rf_id=10**15 + i, inputs=[tensor(i)], op_schema="ä\\u00e4" * 9)
        for i in range(1, 90)
    ]
    content = {"before": {"nodes": [1]}, "nodes": nodes, "schema": "1.0.1", "pid": 12345678}
    path = write(tmp_path / "e.json.gz", content)
    whole = load(path)
    for size in (1, 7, 100):
        monkeypatch.setattr(reader, "_PART_BYTES", size)
        again = load(path)
        assert (again.schema, again.pid) == (whole.schema, whole.pid) == ("1.0.1", 12345678)
        assert again.nodes.to_dict() == whole.nodes.to_dict() and whole.nodes.num_rows == 89


def test_what_is_damaged_ends_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = b'{"nodes": [{"id": 1, "name": "a"}, '
    for broken in (
        b'{"id": tru}, {"id": 2, "name": "b"}]}',
        b"[" * 100_000,
        b'{"id": ' + b"9" * 10_000 + b"}]}",
        b'{"name": "' + b"x" * (17 << 20) + b'"}]}',
        b'{"id": 2, "name": "\xff',
    ):
        found = load(write(tmp_path / "e.json", whole + broken))
        assert found.nodes.num_rows == 1 and "first 1 nodes are read" in found.nodes.notes[0]
    found = load(write(tmp_path / "e.json", b"{broken " + whole[1:]))
    assert found.nodes.num_rows == 1
    with pytest.raises(ParseError, match="no JSON: a value is longer than 16 MiB"):
        load(write(tmp_path / "e.json", b'["' + b"x" * (40 << 20)))
    monkeypatch.setattr(reader, "MAX_BYTES", 1 << 30)
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b" " * (1 << 20), 9) * 1025)
    with pytest.raises(ParseError, match="holds more than 1 GiB"):
        load(bomb)


def test_files_of_too_many_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_ENTRIES", 100)
    monkeypatch.setattr(reader, "MAX_TENSORS", 100)
    with pytest.raises(ParseError, match="more than 100 nodes"):
        load(document(tmp_path, *[0] * 101))
    with pytest.raises(ParseError, match="more than 100 tensors"):
        load(document(tmp_path, entry(inputs=[tensor()] * 101)))
    assert load(document(tmp_path, entry(inputs=[tensor()] * 100), *[0] * 99)).nodes.num_rows == 1


def node(number: int, reads: list[Access], writes: list[Access], parent: int = 0) -> Node:
    name = "aten::add_" if reads else "aten::rand"
    return Node(number, name, parent, number, 1, 0, 0, -1, 0, "", tuple(reads), tuple(writes))


def access(storage: int, start: int, end: int) -> Access:
    return Access(storage, start, end, 0, "cuda:0")


def test_slices_of_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call looks at the ranges that it meets, not at all of the buffer's."""
    count = 40_000
    order = [(i * 7919) % count for i in range(count)]  # in no order of address
    calls = [node(1, [], [access(1, 0, 4 * count)])]
    calls += [node(2 + i, [access(1, 4 * at, 4 * at + 4)], []) for i, at in enumerate(order * 2)]
    found = find_dependencies(calls)
    raw = [d for d in found if d.kind == 0]
    assert len(raw) == 2 * count and sum(d.producer == 1 for d in raw) == count


def test_calls_inside_each_other() -> None:
    """What was touched below a call is not copied at each level."""
    depth = 60_000
    calls = [node(i, [access(i, 0, 8)], [], parent=i - 1) for i in range(1, depth)]
    calls.append(node(depth, [access(i, 0, 8) for i in range(1, 100)], []))
    found = find_dependencies(calls)
    assert {(d.producer, d.consumer) for d in found} == {(i, depth) for i in range(1, 100)}


def test_dependencies_without_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Slices that are all read by every call: the pairs are as many as slices times calls."""
    slices = [
        entry(id=i, parent=0, name="aten::add_", inputs=[tensor(1, i, 1)]) for i in range(1, 300)
    ]
    whole = [
        entry(id=i, parent=0, name="aten::sum", inputs=[tensor(1, 0, 300)]) for i in range(300, 600)
    ]
    path = document(tmp_path, *slices, *whole)
    assert load(path).dependencies.num_rows == 299 * 300
    monkeypatch.setattr(dependencies, "MAX_VISITS", 50_000)
    with pytest.raises(ParseError, match=r"e\.json: its accesses meet .* more than 50,000 times"):
        load(path)
    monkeypatch.setattr(dependencies, "MAX_DEPENDENCIES", 10_000)
    with pytest.raises(ParseError, match=r"e\.json: its calls depend .* in over 10,000 ways"):
        load(path)


def linked(tmp_path: Path, events: list[Json], nodes: list[Json]) -> LinkedExecution:
    trace = ttap.load(write(tmp_path / "t.json", {"traceEvents": events}))
    return load(document(tmp_path, *nodes)).link(trace)


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> Json:
    place = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}
    return place | {"args": args}


def test_threads_are_paired_among_the_longest(tmp_path: Path) -> None:
    """Comparing each with each would take 25 million comparisons."""
    count = 5_000
    assert count > execution.MAX_PAIRED_THREADS
    events = [event("cpu_op", f"op{i}", 10.0 * i, 5, tid=i) for i in range(count)]
    events += [event("cpu_op", "many", 10.0 * i, 5, tid=count) for i in range(50)]
    nodes = [entry(id=i + 1, name=f"op{i}", tid=i, rf_id=-1) for i in range(count)]
    nodes += [entry(id=count + 1 + i, name="many", tid=count, rf_id=-1) for i in range(50)]
    found = linked(tmp_path, events, nodes)
    assert set(range(count + 1, count + 51)) <= set(found.rows)


def test_names_that_never_agree() -> None:
    a = [str(i % 50) for i in range(40_000)]
    b = ["x" if i % 2 else str(i % 50) for i in range(40_000)]
    assert len(list(_align(a, b))) <= 40_000


def test_gpu_events_below_nested_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depth = 200
    events, nodes = [], []
    for i in range(depth):
        extent = (float(i), 10.0 * depth - 2 * i)
        events.append(event("cpu_op", f"op{i}", *extent, **{"External id": i + 1}))
        events.append(event("cuda_runtime", "cudaLaunchKernel", i + 0.5, 0.1, correlation=i + 1))
        place = {"device": 0, "stream": i, "correlation": i + 1}
        events.append(event("kernel", "k", 20.0 * depth + i, 1, 7, **place))
        nodes.append(entry(id=i + 1, parent=0, name=f"op{i}", rf_id=i + 1, inputs=[tensor(1)]))
        nodes[-1]["op_schema"] = f"aten::op{i}(Tensor(a!) self) -> Tensor(a!)"
    found = linked(tmp_path, events, nodes)
    assert found.matches.facts["matched"] == depth
    monkeypatch.setattr(execution, "MAX_EVENTS_BELOW", 20)
    with pytest.raises(ParseError, match="more than 20 GPU events"):
        linked(tmp_path, events, nodes)


# ------------------------------------------------------------------------------- names of files


@pytest.mark.parametrize("name", ["1²3.json", "٣.json", "²", "a1b٢"])
def test_digits_of_other_scripts(name: str) -> None:
    assert natural_key(Path(name)) == natural_key(Path(name))
    assert sorted([Path("rank10"), Path("rank9")], key=natural_key)[0] == Path("rank9")


def test_sums_of_a_timeline_are_exact(tmp_path: Path) -> None:
    path = write(tmp_path / "m.json", [[1, 2, 2**62, 0], [2, 2, 2**61, 1], [3, 4, -(2**60), 0]])
    total = np.asarray(read_memory_timeline(path)["total_bytes"]).tolist()
    assert total == [2**62, 2**62 + 2**61, 2**62 + 2**61 - 2**60]
