"""What other profilers wrote: generated files give the events and links that they were made of."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.errors import ParseError, TraceError

PID, TID = 4242, 4243


@dataclass
class Work:
    """GPU work with the call that it comes from, in ns."""

    kind: str
    name: str
    call: str
    call_ns: tuple[int, int]
    gpu_ns: tuple[int, int]
    device: int
    stream: int
    correlation: int
    bytes: int = 0
    node: int | None = None


@dataclass
class Truth:
    """What a generated recording is made of."""

    work: list[Work] = field(default_factory=list)
    ranges: list[tuple[str, int, int]] = field(default_factory=list)


def make_truth(seed: int) -> Truth:
    """A few steps of operators that launch kernels and copies on several streams and devices."""
    rng = random.Random(seed)
    truth = Truth()
    at = free = rng.randrange(10**6, 10**9)
    for step in range(rng.randrange(2, 5)):
        begin = at
        for _ in range(rng.randrange(3, 9)):
            kind = rng.choice(["kernel", "kernel", "kernel", "memcpy", "memset"])
            call = (at + 500, at + 500 + rng.randrange(1_000, 9_000))
            free = max(free, call[1]) + rng.randrange(1, 5_000)
            end = free + rng.randrange(1_000, 90_000)
            name = {
                "kernel": f"void gemm_{rng.randrange(3)}<float, 4>(float*)",
                "memcpy": "Memcpy HtoD",
                "memset": "Memset",
            }[kind]
            calls = {
                "kernel": "LaunchKernel",
                "memcpy": "MemcpyAsync",
                "memset": "MemsetAsync",
            }
            device = rng.randrange(2) if seed % 2 else 0
            truth.work.append(
                Work(kind, name, calls[kind], call, (free, end), device, 7 + rng.randrange(2),
                     len(truth.work) + 1, rng.randrange(1, 10**6),
                     rng.choice([None, 5 + len(truth.work)]) if kind == "kernel" else None)
            )  # fmt: skip
            free = end
            truth.ranges.append(("aten::mm", at, call[1] + 100))
            at = call[1] + rng.randrange(200, 2_000)
        truth.ranges.append((f"ProfilerStep#{step}", begin, at))
        at += rng.randrange(1, 20_000)
    return truth


# ------------------------------------------------------------------------------ Nsight Systems


def write_nsight(truth: Truth, path: Path) -> None:
    """Write a database with the tables and columns of an export of Nsight Systems."""
    thread = (PID << 24) | TID
    texts: dict[str, int] = {}

    def code(text: str) -> int:
        return texts.setdefault(text, 100 + len(texts))

    with sqlite3.connect(path) as db:
        db.executescript("""
            CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
            CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
            CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER);
            CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT,
                totalMemory INTEGER, smCount INTEGER, computeMajor INTEGER, computeMinor INTEGER);
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
            CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER, name TEXT, label TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
                deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER,
                globalPid INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER,
                gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER,
                registersPerThread INTEGER, staticSharedMemory INTEGER,
                dynamicSharedMemory INTEGER, graphNodeId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER,
                contextId INTEGER, streamId INTEGER, correlationId INTEGER, bytes INTEGER,
                copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, deviceId INTEGER,
                streamId INTEGER, correlationId INTEGER, bytes INTEGER, memKind INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER,
                eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER,
                returnValue INTEGER);
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT,
                textId INTEGER, globalTid INTEGER);
            CREATE TABLE OSRT_API (start INTEGER, end INTEGER, nameId INTEGER);
        """)
        for w in truth.work:
            name = f"cuda{w.call}_v7000"
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0)",
                       (*w.call_ns, thread, w.correlation, code(name)))  # fmt: skip
            where = (*w.gpu_ns, w.device)
            if w.kind == "kernel":
                db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES "
                           "(?, ?, ?, 1, ?, ?, ?, ?, ?, 8, 2, 1, 128, 1, 1, 40, 16, 1024, ?)",
                           (*where, w.stream, w.correlation, PID << 24, code(w.name),
                            code("gemm"), w.node))  # fmt: skip
            elif w.kind == "memcpy":
                db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES "
                           "(?, ?, ?, 1, ?, ?, ?, 1, 0, 2)",
                           (*where, w.stream, w.correlation, w.bytes))  # fmt: skip
            else:
                db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (?, ?, ?, ?, ?, ?, 2)",
                           (*where, w.stream, w.correlation, w.bytes))  # fmt: skip
        for place, (text, start, end) in enumerate(truth.ranges):
            text = f"{text}, seq = {place}, sizes = [[2, 3], []]" if "::" in text else text
            known = (text, None) if place % 2 else (None, code(text))
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, ?)",
                       (start, end, *known, thread))  # fmt: skip
        db.execute("INSERT INTO NVTX_EVENTS VALUES (5, NULL, 34, 'mark', NULL, ?)", (thread,))
        db.execute("INSERT INTO OSRT_API VALUES (1, 2, 3)")
        db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000)")
        db.execute("INSERT INTO ThreadNames VALUES (?, 0, ?)", (code("main thread"), thread))
        db.execute("INSERT INTO PROCESSES VALUES (?, ?, 'python')", (PID << 24, PID))
        for device in range(2):
            db.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, ?, 'NVIDIA H100', 80, 132, 9, 0)",
                       (device,))  # fmt: skip
        db.executemany("INSERT INTO ENUM_CUDA_MEM_KIND VALUES (?, '', ?)",
                       [(0, "Pageable"), (2, "Device")])  # fmt: skip
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, t) for t, i in texts.items()])


# ------------------------------------------------------------------------------ rocprofv3


def write_rocprofv3(truth: Truth, path: Path) -> None:
    """Write the records of ROCprofiler-SDK as rocprofv3 does."""
    names = sorted({w.name for w in truth.work if w.kind != "memcpy"})
    calls = sorted({f"hip{w.call}" for w in truth.work})
    kinds = [
        {"kind": "KERNEL_DISPATCH", "operations": []},
        {"kind": "HIP_RUNTIME_API_EXT", "operations": calls},
        {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
        {"kind": "MARKER_CORE_API", "operations": ["roctxRangePushA"]},
    ]

    def record(
        kind: int, operation: int, times: tuple[int, int], correlation: int
    ) -> dict[str, object]:
        return {
            "size": 64, "kind": kind, "operation": operation, "thread_id": TID,
            "start_timestamp": times[0], "end_timestamp": times[1],
            "correlation_id": {"internal": correlation, "external": 0},
        }  # fmt: skip

    def agent(device: int) -> dict[str, int]:
        return {"handle": 9000 + device}

    dispatches = [
        record(0, 0, w.gpu_ns, w.correlation)
        | {
            "stream_id": {"handle": w.stream},
            "dispatch_info": {
                "agent_id": agent(w.device), "queue_id": {"handle": 1}, "dispatch_id": i,
                "kernel_id": names.index(w.name) + 1, "group_segment_size": 1024,
                "workgroup_size": {"x": 128, "y": 1, "z": 1},
                "grid_size": {"x": 1024, "y": 2, "z": 1},
            },
        }
        for i, w in enumerate(truth.work)
        if w.kind != "memcpy"
    ]  # fmt: skip
    copies = [
        record(2, 1, w.gpu_ns, w.correlation)
        | {"src_agent_id": {"handle": 1}, "dst_agent_id": agent(w.device), "bytes": w.bytes,
           "stream_id": {"handle": w.stream}}
        for w in truth.work
        if w.kind == "memcpy"
    ]  # fmt: skip
    api = [record(1, calls.index(f"hip{w.call}"), w.call_ns, w.correlation) for w in truth.work]
    markers = [
        record(3, 0, (start, end), 10_000 + i) for i, (_, start, end) in enumerate(truth.ranges)
    ]
    process = {
        "metadata": {"pid": PID, "init_time": 1, "fini_time": 2, "command": ["python", "x.py"]},
        "agents": [
            {"id": {"handle": 1}, "type": 1, "logical_node_id": 0, "name": "EPYC"},
            *({"id": agent(d), "type": 2, "logical_node_id": d + 1, "name": "gfx942",
               "product_name": "AMD Instinct MI300X", "cu_count": 304} for d in range(2)),
        ],
        "kernel_symbols": [
            {"kernel_id": 0},
            *({"kernel_id": i + 1, "formatted_kernel_name": n} for i, n in enumerate(names)),
        ],
        "strings": {
            "buffer_records": kinds,
            "marker_api": [
                {"key": 10_000 + i, "value": text} for i, (text, _, _) in enumerate(truth.ranges)
            ],
        },
        "buffer_records": {
            "kernel_dispatch": dispatches, "memory_copy": copies, "hip_api": api,
            "marker_api": markers, "hsa_api": [record(1, 0, (1, 2), 77)],
        },
    }  # fmt: skip
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}))


# ------------------------------------------------------------------------------ protocol buffers


def _varint(value: int) -> bytes:
    value %= 2**64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """A message of protocol buffers: numbers, texts and nested messages by field."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return out


def _packets(truth: Truth) -> list[bytes]:
    """What the CUPTI monitor of torch.profiler writes: many begins, then their ends; GPU work as
    render stages, which the calls name by their ids."""
    names = sorted({text for text, *_ in truth.ranges} | {w.name for w in truth.work}
                   | {f"cuda{w.call}" for w in truth.work})  # fmt: skip
    categories = ["cpu_op", "user_annotation", "cuda_runtime"]
    iid = {name: i + 1 for i, name in enumerate(names)}
    streams = sorted({w.stream for w in truth.work})
    stages = ["Kernel", "Memcpy", "Memset"]
    specs = [message((1, i + 1), (2, n), (4, 2 if n == "Kernel" else 0))
             for i, n in enumerate(stages)]  # fmt: skip
    specs += [message((1, 100 + i), (2, f"[{s}] stream {s}")) for i, s in enumerate(streams)]
    interned = [(2, message((1, i), (2, name))) for name, i in iid.items()]
    interned += [(1, message((1, i + 1), (2, c))) for i, c in enumerate(categories)]
    interned += [(24, spec) for spec in specs]
    interned += [(1000, message((1, iid[w.name]), (3, w.name))) for w in truth.work]
    clocks = [message((1, 6), (2, 5)), message((1, 1), (2, 1_700_000_000_000_000_005))]
    packets = [
        message((6, message(*((1, c) for c in clocks)))),
        message((60, message((1, 1), (3, message((1, PID), (6, "python")))))),
        message((60, message((1, 2), (5, 1), (4, message((1, PID), (2, TID), (5, "main")))))),
        message((10, 1), (13, 1), (12, message(*interned))),
    ]

    def group(slices: list[tuple[int, int, list[tuple[int, int | str | bytes]]]]) -> None:
        for start, _, fields in slices:
            packets.append(message((8, start), (10, 1), (13, 2),
                                   (11, message((9, 1), (11, 2), *fields))))  # fmt: skip
        for _, end, _ in slices:
            packets.append(message((8, end), (10, 1), (11, message((9, 2), (11, 2)))))

    group([(start, end, [(10, iid[text]), (3, 1 if "::" in text else 2)])
           for text, start, end in truth.ranges])  # fmt: skip
    group([(*w.call_ns, [(10, iid[f"cuda{w.call}"]), (3, 3), (3000, message((1, w.correlation))),
                         (4, message((10, "correlation"), (4, w.correlation)))])
           for w in truth.work])  # fmt: skip
    for w in truth.work:
        stage = ["kernel", "memcpy", "memset"].index(w.kind) + 1
        extra = {"device id": w.device, "stream id": w.stream, "correlation": w.correlation}
        extra |= {"bytes": w.bytes} if w.kind != "kernel" else {}
        extra |= {"graph node id": w.node} if w.node else {}
        fields: list[tuple[int, int | str | bytes]] = [
            (1, w.correlation), (2, w.gpu_ns[1] - w.gpu_ns[0]), (11, w.device),
            (13, 100 + streams.index(w.stream)), (14, stage), (5, 1),
        ]  # fmt: skip
        if w.kind == "kernel":
            size = [message((1, 8), (2, 2), (3, 1)), message((1, 128), (2, 1), (3, 1))]
            fields += [(19, iid[w.name]), (20, iid[w.name])]
            fields += [(21, message((1, size[0]), (2, size[1])))]
        fields += [(6, message((1, key), (2, str(value)))) for key, value in extra.items()]
        packets.append(message((8, w.gpu_ns[0]), (10, 1), (13, 2), (53, message(*fields))))
    return packets


def write_perfetto(truth: Truth, path: Path) -> None:
    path.write_bytes(message(*((1, packet) for packet in _packets(truth))))


def write_packed_perfetto(truth: Truth, path: Path) -> None:
    path.write_bytes(gzip.compress(message(*((1, packet) for packet in _packets(truth)))))


def write_xplane(truth: Truth, path: Path) -> None:
    """Write what XLA's profiler does: a plane for each device and for the host, names by id."""
    begin = min(min(start for _, start, _ in truth.ranges), 10**18)
    stats = {"correlation_id": 1, "step_num": 2, "kernel_details": 3, "group_id": 4}
    known = [(5, message((1, i), (2, message((1, i), (2, name))))) for name, i in stats.items()]
    events: dict[str, int] = {}

    def event(name: str, times: tuple[int, int], *more: tuple[int, int | str]) -> bytes:
        number = events.setdefault(name, len(events) + 1)
        fields = [message((1, stat), (5 if isinstance(v, str) else 4, v)) for stat, v in more]
        offset, length = (times[0] - begin) * 1000, (times[1] - times[0]) * 1000
        return message((1, number), (2, offset), (3, length), *((4, f) for f in fields))

    def line(number: int, name: str, found: list[bytes]) -> bytes:
        return message((1, number), (2, name), (3, begin), *((4, e) for e in found))

    def plane(number: int, name: str, lines: list[bytes]) -> bytes:
        metadata = [(4, message((1, i), (2, message((1, i), (2, n))))) for n, i in events.items()]
        return message((1, number), (2, name), *((3, one) for one in lines), *metadata, *known)

    planes = []
    for device in sorted({w.device for w in truth.work}):
        events.clear()
        lines = [
            line(stream, f"Stream #{stream}(Compute)",
                 [event({"memcpy": "MemcpyH2D", "memset": "Memset"}.get(w.kind, w.name), w.gpu_ns,
                        (1, w.correlation), *([(3, "grid:8,2,1 block:128,1,1")]
                                              if w.kind == "kernel" else []))
                  for w in truth.work if (w.device, w.stream) == (device, stream)])
            for stream in sorted({w.stream for w in truth.work if w.device == device})
        ]  # fmt: skip
        planes.append(plane(device + 1, f"/device:GPU:{device}", lines))
    events.clear()
    host = [event(f"cuda{w.call}", w.call_ns, (1, w.correlation)) for w in truth.work]
    steps = (r for r in truth.ranges if r[0].startswith("ProfilerStep"))
    host += [event("train", (start, end), (2, number)) for number, (_, start, end) in
             enumerate(steps)]  # fmt: skip
    planes.append(plane(9, "/host:CPU", [line(TID, "python", host)]))
    path.write_bytes(message(*((1, one) for one in planes)))


# ------------------------------------------------------------------------------ all formats

Writer = Callable[[Truth, Path], None]
FORMATS: dict[str, tuple[Writer, str]] = {
    "nsight": (write_nsight, "cuda"),
    "rocprofv3": (write_rocprofv3, "hip"),
    "perfetto": (write_perfetto, "cuda"),
    "packed perfetto": (write_packed_perfetto, "cuda"),
    "xplane": (write_xplane, "cuda"),
}
EVERY = pytest.mark.parametrize("name", FORMATS)


def _write(name: str, seed: int, folder: Path) -> tuple[Truth, Path]:
    truth = make_truth(seed)
    path = folder / "some_file"  # kinds are told by content
    FORMATS[name][0](truth, path)
    return truth, path


@EVERY
@pytest.mark.parametrize("seed", range(10))
def test_events_and_links_are_those_of_the_recording(name: str, seed: int, tmp_path: Path) -> None:
    truth, path = _write(name, seed, tmp_path)
    trace = ttap.load(path)
    assert len(trace.ranks) == 1
    part = trace.ranks[0]
    table, tree = part.table, part.tree
    expected = {
        (w.gpu_ns, w.device, w.correlation, f"{FORMATS[name][1]}{w.call}", w.call_ns)
        for w in truth.work
    }
    found = set()
    for row in tree.gpu_rows.tolist():
        call = int(tree.launch[row])
        ends = [(int(table.ts_ns[r]), int(table.ts_ns[r] + table.dur_ns[r])) for r in (row, call)]
        found.add((ends[0], int(table.device[row]), int(table.correlation[row]),
                   table.name_of(call), ends[1]))  # fmt: skip
    assert found == expected
    by_stream = {(int(table.device[r]), int(table.stream[r])) for r in tree.gpu_rows.tolist()}
    assert len(by_stream) == len({(w.device, w.stream) for w in truth.work})
    kernels = table.kind == _core.EventKind.KERNEL
    wanted = sum(w.kind == "kernel" or (name == "rocprofv3" and w.kind == "memset")
                 for w in truth.work)  # fmt: skip
    assert kernels.sum() == wanted
    steps = [step.name for step in tree.steps]
    wanted_steps = [text for text, *_ in truth.ranges if text.startswith("ProfilerStep")]
    assert [step.replace("train", "ProfilerStep") for step in steps] == wanted_steps
    if name == "xplane":
        return  # grid and block stay in a text
    grid, there = zip(*(_grid(table, row) for row in np.flatnonzero(kernels).tolist()), strict=True)
    assert set(grid) <= {(8, 2, 1)} and all(there)


def _grid(table: _core.EventTable, row: int) -> tuple[tuple[int, ...], bool]:
    args = json.loads(table.args_json(row))
    return tuple(args["grid"]), args["block"] == [128, 1, 1]


@EVERY
def test_a_recording_is_diagnosed_and_says_what_it_lacks(name: str, tmp_path: Path) -> None:
    _, path = _write(name, 3, tmp_path)
    trace = ttap.load(path)
    assert trace.diagnose().to_dict()["findings"] is not None
    lacks = {d.code: d for d in trace.diagnostics}["recording_lacks"]
    assert " has no " in lacks.message and lacks.count >= 2
    if name in ("nsight", "rocprofv3"):
        assert " were not read" in lacks.message
        assert trace.ranks[0].table.devices[0].sm_count in (132, 304)


@EVERY
def test_a_converted_recording_is_the_same_trace(name: str, tmp_path: Path) -> None:
    _, path = _write(name, 4, tmp_path)
    trace = ttap.load(path)
    _core.write_trace(trace.ranks[0].table, str(tmp_path / "trace.json"))
    again = ttap.load(tmp_path / "trace.json")
    assert [d.code for d in again.diagnostics] == [d.code for d in trace.diagnostics]
    documents = [one.diagnose().to_dict() for one in (trace, again)]
    assert documents[0]["findings"] == documents[1]["findings"]
    assert trace.events(with_args=True).to_dict() == again.events(with_args=True).to_dict()


@EVERY
def test_a_damaged_recording_is_an_error_or_a_table(name: str, tmp_path: Path) -> None:
    _, path = _write(name, 5, tmp_path)
    whole = path.read_bytes()
    rng = random.Random(7)
    failed = 0
    for _ in range(120):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 30)):
            place = rng.randrange(20, len(data))
            data[place] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(100, len(data)) :]
        path.write_bytes(data)
        try:
            ttap.load(path).summary()
        except TraceError as error:
            failed += 1
            assert str(path) in str(error) and "\n" not in str(error)
    assert failed  # it is not that nothing was damaged


def test_operators_of_nvtx_ranges_have_their_shapes(tmp_path: Path) -> None:
    _, path = _write("nsight", 1, tmp_path)
    table = ttap.load(path).ranks[0].table
    row = int(np.flatnonzero(table.kind == _core.EventKind.CPU_OP)[0])
    args = json.loads(table.args_json(row))
    assert table.name_of(row) == "aten::mm"
    assert args["Input Dims"] == [[2, 3], []] and "Sequence number" in args


def test_nodes_of_graphs_are_known(tmp_path: Path) -> None:
    truth, path = _write("nsight", 2, tmp_path)
    events = ttap.load(path).events(kind="kernel")
    found = sorted(n for n in events["graph_node_id"].tolist() if n is not None)
    assert found == sorted(w.node for w in truth.work if w.node is not None)


def test_other_databases_are_no_recordings(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE people (name TEXT)")
    with pytest.raises(ParseError, match="tables of CUDA"):
        ttap.load(path)


def test_a_database_whose_columns_hold_anything(tmp_path: Path) -> None:
    """SQLite checks no types: texts, blobs and huge numbers may stand anywhere."""
    path = tmp_path / "odd.sqlite"
    write_nsight(make_truth(0), path)
    with sqlite3.connect(path) as db:
        for odd in ("'text'", "x'00ff'", "1e300", "9223372036854775807", "NULL", "-5"):
            for column in ("start", "end", "deviceId", "streamId", "correlationId", "gridX",
                           "demangledName", "graphNodeId"):  # fmt: skip
                db.execute(f"UPDATE OR IGNORE CUPTI_ACTIVITY_KIND_KERNEL SET {column} = {odd} "
                           "WHERE rowid = 1 + abs(random() % 4)")  # fmt: skip
    try:
        ttap.load(path).diagnose()
    except ParseError as error:
        assert "Nsight" in str(error)
