"""Read what Nsight Systems exports as SQLite (`nsys export --type sqlite`).

The tables and columns are those of its "SQLite Export Schema Reference"; they are made as needed,
so that each may be missing. Kernels, copies and API calls share a correlation id; NVTX ranges of
`torch.autograd.profiler.emit_nvtx` are operators, all others annotations.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.stored import check_file
from torchtraceap.errors import ParseError
from torchtraceap.trace.recordings.recording import EventGroup, Recording

__all__ = ["read"]

_FORMAT = "an export of Nsight Systems (SQLite)"
_LACKS = ("stacks of Python frames", "argument types of operators", "process groups of collectives")
_API = "CUPTI_ACTIVITY_KIND_RUNTIME"
_GPU = "CUPTI_ACTIVITY_KIND_"
_NOT_READ = {"OSRT_API": "calls of the operating system", "COMPOSITE_EVENTS": "samples of stacks",
             "SCHED_EVENTS": "switches of threads", "GPU_METRICS": "samples of GPU counters",
             "CUDNN_EVENTS": "calls of cuDNN", "CUBLAS_EVENTS": "calls of cuBLAS",
             "NCCL_EVENTS": "calls of NCCL"}  # fmt: skip
_COPIES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD",
           9: "HtoH", 10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}  # fmt: skip
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static",
           6: "Managed Static"}  # fmt: skip
_SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_RANGES = (59, 60)  # pushed and popped; started and ended
_NO_INTEGER = -(2**63)
_VERSION = re.compile(r"_v\d+$")
# As emit_nvtx writes them: "aten::add, seq = 12, op_id = 4, sizes = [[2, 3], []]".
_OPERATOR = re.compile(
    r"(?P<name>[^,]+?)(?:, seq = (?P<seq>\d{1,18}))?(?:, op_id = (?P<id>\d{1,18}))?"
    r"(?:, sizes = (?P<sizes>\[[\[\]\d, ]*\]))?(?:, input_op_ids = .*)?",
    re.DOTALL,
)
_QUALIFIED = re.compile(r"[A-Za-z_]\w*::\w")


def read(path: PathLike) -> Recording:
    """Read an export.

    Raises:
        ParseError: It is no database, one of something else, or damaged.
    """
    check_file(path)
    try:
        address = f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            return _Export(connection, path).recording()
    except (sqlite3.Error, UnicodeError, OverflowError, MemoryError) as error:
        raise ParseError(f"{path}: {_FORMAT} is damaged: {error}") from None


class _Rows:
    """Some columns of a table; one that the table lacks is absent in all rows."""

    def __init__(self, columns: Mapping[str, Sequence[Any]], length: int) -> None:
        self._columns = columns
        self._length = length

    def __len__(self) -> int:
        return self._length

    def column(self, name: str) -> Sequence[Any]:
        return self._columns.get(name) or [None] * self._length

    def integers(self, name: str, absent: int = 0) -> npt.NDArray[np.int64]:
        found = [value if type(value) is int else absent for value in self.column(name)]
        return np.array(found, dtype=np.int64)

    def known(self, name: str) -> Any:
        """Return the integers of a column, masked where a row has none."""
        values = self.integers(name, _NO_INTEGER)
        return np.ma.array(values, mask=values == _NO_INTEGER)

    def where(self, keep: npt.NDArray[np.bool_]) -> _Rows:
        rows = np.flatnonzero(keep).tolist()
        columns = {name: [values[row] for row in rows] for name, values in self._columns.items()}
        return _Rows(columns, len(rows))


class _Export:
    """An open database."""

    def __init__(self, connection: sqlite3.Connection, path: PathLike) -> None:
        self._connection = connection
        found = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        self._tables = {
            str(name): self._columns_of(str(name))
            for name, sql in found
            if not str(sql).upper().startswith("CREATE VIRTUAL")
        }
        if not any(name.startswith(_GPU) or name == "NVTX_EVENTS" for name in self._tables):
            raise ParseError(
                f"{path}: expected {_FORMAT}, found a database without tables of CUDA and NVTX"
            )
        self._texts = dict(self._pairs("StringIds", "id", "value"))

    def recording(self) -> Recording:
        groups = [*self._gpu_work(), *self._calls(), *self._nvtx()]
        left_out = {
            what: self._count(table) for table, what in _NOT_READ.items() if table in self._tables
        }
        graphs = self._count("CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
        return Recording(
            format=_FORMAT,
            groups=groups,
            process_names=self._process_names(),
            thread_names=self._thread_names(groups),
            metadata=self._metadata(),
            lacks=(*_LACKS, *(("kernels inside of CUDA graphs",) if graphs else ())),
            left_out={**left_out, "NVTX marks and unended ranges": self._open_ranges()},
        )

    # ------------------------------------------------------------------------------ tables

    def _columns_of(self, table: str) -> frozenset[str]:
        quoted = table.replace('"', '""')
        return frozenset(
            row[1] for row in self._connection.execute(f'PRAGMA table_info("{quoted}")')
        )

    def _rows(self, table: str, *columns: str) -> _Rows:
        there = [name for name in columns if name in self._tables.get(table, ())]
        if not there:
            return _Rows({}, 0)
        chosen = ", ".join(f'"{name}"' for name in there)
        rows = self._connection.execute(f'SELECT {chosen} FROM "{table}"').fetchall()
        values = zip(*rows, strict=True) if rows else ((),) * len(there)
        return _Rows(dict(zip(there, values, strict=True)), len(rows))

    def _timed(self, table: str, *columns: str) -> _Rows:
        """Return the rows that start and end."""
        rows = self._rows(table, "start", "end", *columns)
        kept = (rows.integers("start", -1) >= 0) & (rows.integers("end", -1) >= 0)
        return rows if kept.all() else rows.where(kept)

    def _pairs(self, table: str, key: str, value: str) -> Iterator[tuple[Any, Any]]:
        rows = self._rows(table, key, value)
        return zip(rows.column(key), rows.column(value), strict=True)

    def _count(self, table: str) -> int:
        if table not in self._tables:
            return 0
        return int(self._connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0])

    def _text(self, code: Any, otherwise: str) -> str:
        found = self._texts.get(code)
        return found if isinstance(found, str) else otherwise

    # ------------------------------------------------------------------------------ events

    def _gpu_work(self) -> Iterator[EventGroup]:
        shape = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
        kernels = self._gpu_rows(
            "KERNEL", "demangledName", "shortName", "mangledName", "registersPerThread",
            "staticSharedMemory", "dynamicSharedMemory", *shape,
        )  # fmt: skip
        codes = zip(
            *(kernels.column(name) for name in ("demangledName", "shortName", "mangledName")),
            strict=True,
        )
        names = [next((n for c in row if (n := self._text(c, ""))), "kernel") for row in codes]
        shapes = {
            word: list(zip(*(kernels.integers(f"{word}{axis}").tolist() for axis in "XYZ"),
                           strict=True))
            for word in ("grid", "block")
        }  # fmt: skip
        shared = kernels.integers("staticSharedMemory") + kernels.integers("dynamicSharedMemory")
        more = {
            "registers per thread": kernels.known("registersPerThread"),
            "shared memory": shared,
        }
        yield self._on_gpu(kernels, names, "kernel", {**shapes, **more})
        copies = self._gpu_rows("MEMCPY", "bytes", "copyKind", "srcKind", "dstKind")
        memory = self._labels("ENUM_CUDA_MEM_KIND", _MEMORY)
        ends = [map(memory, copies.column(name)) for name in ("srcKind", "dstKind")]
        directions = (_COPIES.get(kind, "Unknown") for kind in copies.column("copyKind"))
        names = [f"Memcpy {d} ({a} -> {b})" for d, a, b in zip(directions, *ends, strict=True)]
        yield self._on_gpu(copies, names, "gpu_memcpy", {"bytes": copies.known("bytes")})
        sets = self._gpu_rows("MEMSET", "bytes", "memKind")
        names = [f"Memset ({memory(kind)})" for kind in sets.column("memKind")]
        yield self._on_gpu(sets, names, "gpu_memset", {"bytes": sets.known("bytes")})
        graphs = self._gpu_rows("GRAPH_TRACE")
        yield self._on_gpu(graphs, ["CUDA graph"] * len(graphs), "kernel", {})
        syncs = self._gpu_rows("SYNCHRONIZATION", "syncType")
        names = [_SYNCS.get(kind, "Sync") for kind in syncs.column("syncType")]
        yield self._on_gpu(syncs, names, "cuda_sync", {})

    def _gpu_rows(self, table: str, *columns: str) -> _Rows:
        return self._timed(
            _GPU + table, "deviceId", "streamId", "contextId", "correlationId", "graphId",
            "graphNodeId", *columns,
        )  # fmt: skip

    @staticmethod
    def _on_gpu(
        rows: _Rows, names: Sequence[str], category: str, args: Mapping[str, Any]
    ) -> EventGroup:
        device, stream = rows.integers("deviceId"), rows.integers("streamId")
        graph = {
            key: np.ma.masked_equal(rows.known(column), 0)
            for key, column in (("graph id", "graphId"), ("graph node id", "graphNodeId"))
        }
        return EventGroup(
            name=names,
            category=category,
            start_ns=rows.integers("start"),
            dur_ns=rows.integers("end") - rows.integers("start"),
            pid=device,
            tid=stream,
            args={
                "device": device,
                "stream": stream,
                "context": rows.known("contextId"),
                "correlation": rows.known("correlationId"),
                **graph,
                **args,
            },
        )

    def _calls(self) -> Iterator[EventGroup]:
        rows = self._timed(_API, "globalTid", "correlationId", "nameId")
        names = [_VERSION.sub("", self._text(code, "call")) for code in rows.column("nameId")]
        is_driver = [name.startswith("cu") and not name.startswith("cuda") for name in names]
        yield self._on_host(
            rows,
            names,
            ["cuda_driver" if driver else "cuda_runtime" for driver in is_driver],
            {"correlation": rows.known("correlationId")},
        )

    def _nvtx(self) -> Iterator[EventGroup]:
        rows = self._timed("NVTX_EVENTS", "eventType", "text", "textId", "globalTid")
        rows = rows.where(np.isin(rows.integers("eventType", _RANGES[0]), _RANGES))
        texts = [
            text if isinstance(text, str) else self._text(code, "range")
            for text, code in zip(rows.column("text"), rows.column("textId"), strict=True)
        ]
        read = {text: _read_range(text) for text in set(texts)}
        found = [read[text] for text in texts]
        args = {
            "Sequence number": [seq for _, _, seq, _ in found],
            "Input Dims": [sizes for _, _, _, sizes in found],
        }
        yield self._on_host(
            rows, [name for name, *_ in found], [kind for _, kind, *_ in found], args
        )

    @staticmethod
    def _on_host(
        rows: _Rows, names: Sequence[str], category: Sequence[str], args: Mapping[str, Any]
    ) -> EventGroup:
        threads = rows.integers("globalTid")
        return EventGroup(
            name=names,
            category=category,
            start_ns=rows.integers("start"),
            dur_ns=rows.integers("end") - rows.integers("start"),
            pid=_pid(threads),
            tid=_tid(threads),
            args=args,
        )

    def _open_ranges(self) -> int:
        rows = self._rows("NVTX_EVENTS", "start", "end", "eventType")
        open_ends = rows.integers("end", -1) < 0
        return int((open_ends & np.isin(rows.integers("eventType"), (34, *_RANGES))).sum())

    # ------------------------------------------------------------------------------ names

    def _labels(self, table: str, known: Mapping[int, str]) -> Callable[[Any], str]:
        labels = {key: text for key, text in self._pairs(table, "id", "label") if text}
        return lambda kind: str(labels.get(kind) or known.get(kind, "Unknown"))

    def _process_names(self) -> dict[int | str, str]:
        rows = self._rows("PROCESSES", "pid", "name")
        pairs = zip(rows.column("pid"), rows.column("name"), strict=True)
        return {pid: str(name) for pid, name in pairs if type(pid) is int and name}

    def _thread_names(self, groups: Sequence[EventGroup]) -> dict[tuple[int | str, int | str], str]:
        names: dict[tuple[int | str, int | str], str] = {}
        rows = self._rows("ThreadNames", "globalTid", "nameId")
        threads = rows.integers("globalTid")
        for pid, tid, code in zip(
            _pid(threads).tolist(), _tid(threads).tolist(), rows.column("nameId"), strict=True
        ):
            if name := self._text(code, ""):
                names[pid, tid] = name
        for group in groups:
            if "stream" in group.args:
                pairs = np.stack([np.asarray(group.pid), np.asarray(group.tid)], axis=1)
                for device, stream in np.unique(pairs, axis=0).tolist():
                    names.setdefault((device, stream), f"stream {stream}")
        return names

    def _metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        starts = self._rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs").integers("utcEpochNs")
        if len(starts):
            metadata["baseTimeNanoseconds"] = int(starts[0])
        if devices := self._devices():
            metadata["deviceProperties"] = devices
        return metadata

    def _devices(self) -> list[dict[str, Any]]:
        rows = self._rows("TARGET_INFO_GPU", "id", "name", "totalMemory", "smCount", "computeMajor",
                          "computeMinor")  # fmt: skip
        keys = {"totalMemory": "totalGlobalMem", "smCount": "numSms",
                "computeMajor": "computeMajor", "computeMinor": "computeMinor"}  # fmt: skip
        gpus = {}
        for place, gpu in enumerate(rows.column("id")):
            found = {key: rows.column(name)[place] for name, key in keys.items()}
            known = {key: value for key, value in found.items() if type(value) is int}
            gpus[gpu] = {"name": str(rows.column("name")[place] or ""), **known}
        # CUDA may number the GPUs in another way than the machine does.
        numbers = dict(self._pairs("TARGET_INFO_CUDA_DEVICE", "cudaId", "gpuId"))
        of_cuda = {cuda: gpu for cuda, gpu in numbers.items() if gpu in gpus}
        chosen = of_cuda or {gpu: gpu for gpu in gpus}
        return [{"id": i, **gpus[gpu]} for i, gpu in chosen.items() if type(i) is int]


def _pid(threads: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The process of serialized thread ids: 24 bits above those of the thread."""
    return (threads >> 24) & 0xFFFFFF


def _tid(threads: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return threads & 0xFFFFFF


_Range = tuple[str, str, int | None, "tuple[Any, ...] | None"]


def _read_range(text: str) -> _Range:
    """Return name, category, sequence number and sizes of an NVTX range."""
    found = _OPERATOR.fullmatch(text)
    if not found or not (found["seq"] or found["id"] or _QUALIFIED.match(text)):
        return text, "user_annotation", None, None
    return (
        found["name"],
        "cpu_op",
        int(found["seq"]) if found["seq"] else None,
        _sizes(found["sizes"]),
    )


def _sizes(text: str | None) -> tuple[Any, ...] | None:
    """Return "[[2, 3], []]" as tuples; None where it is none."""
    if text is None:
        return None
    inner = re.findall(r"\[([\d, ]*)\]", text[1:-1])
    if any(len(digits) > 18 for digits in re.findall(r"\d+", text)):
        return None
    return tuple(tuple(int(n) for n in part.split(",") if n.strip()) for part in inner)
