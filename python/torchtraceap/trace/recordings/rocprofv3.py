"""Read the JSON of rocprofv3 (`rocprofv3 --sys-trace --output-format json`).

Its records are those of ROCprofiler-SDK's buffers. A dispatch or copy has the internal correlation
id of the HIP call that it comes from, or of the HSA call where HIP was not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.stored import parse_json, read_stored
from torchtraceap.errors import ParseError, SchemaError
from torchtraceap.trace.recordings.recording import EventGroup, Recording

__all__ = ["read"]

_FORMAT = "the JSON of rocprofv3"
_LACKS = ("operators", "stacks of Python frames", "process groups of collectives")
_MOST_BYTES = 4 << 30
_ROOT = "rocprofiler-sdk-tool"
_READ = {"kernel_dispatch", "kernel_dispatches", "memory_copy", "hip_api", "marker_api"}
_GPU = 2  # the type of an agent
_DIRECTIONS = {"HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH", "DEVICE_TO_DEVICE": "DtoD",
               "HOST_TO_HOST": "HtoH"}  # fmt: skip


def read(path: PathLike) -> Recording:
    """Read the records of all processes of a file.

    Raises:
        ParseError: It is no such JSON, or damaged.
    """
    place = str(path)
    try:
        found = parse_json(read_stored(path, most=_MOST_BYTES), place, wide=True).get(_ROOT)
        processes = [
            _Process(one) for one in _objects([found] if isinstance(found, dict) else found)
        ]
    except SchemaError as error:
        raise ParseError(f"{place}: {_FORMAT} is damaged: {error}") from None
    left_out: dict[str, int] = {}
    for process in processes:
        for what, count in process.left_out().items():
            left_out[what] = left_out.get(what, 0) + count
    groups = [group for process in processes for group in process.groups()]
    on_gpu: list[Any] = [group for group in groups if "stream" in group.args]
    streams: dict[tuple[int | str, int | str], str] = {
        pair: f"stream {pair[1]}"
        for group in on_gpu
        for pair in zip(group.pid, group.tid, strict=True)
    }
    devices = next((one.devices for one in processes if one.devices), [])
    return Recording(
        format=_FORMAT,
        groups=groups,
        process_names={one.pid: one.name for one in processes if one.name},
        thread_names=streams,
        metadata={"deviceProperties": devices} if devices else {},
        lacks=_LACKS,
        left_out=left_out,
    )


def _objects(found: Any) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _object(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _integer(found: Any, otherwise: int = 0) -> int:
    return found if type(found) is int and -(2**63) < found < 2**63 else otherwise


def _handle(found: Any) -> Any:
    """Return an id, written as a number or as an object around it."""
    found = found.get("handle", found.get("id")) if isinstance(found, dict) else found
    return found if type(found) is int else None


class _Process:
    """One process of a file."""

    def __init__(self, found: dict[str, Any]) -> None:
        about = _object(found.get("metadata"))
        self.pid = _integer(about.get("pid"))
        command = about.get("command")
        self.name = str(command[0]) if isinstance(command, list) and command else ""
        self._strings = _object(found.get("strings"))
        self._records = {
            key: _objects(records) for key, records in _object(found.get("buffer_records")).items()
        }
        agents = _objects(found.get("agents"))
        gpus = [agent for agent in agents if agent.get("type") in (_GPU, "GPU")]
        gpus.sort(key=lambda agent: _integer(agent.get("logical_node_id")))
        self._device = {_handle(agent.get("id")): i for i, agent in enumerate(gpus)}
        self.devices = [
            {
                "id": i,
                "name": str(agent.get("product_name") or agent.get("name") or ""),
                "numSms": _integer(agent.get("cu_count")),
            }
            for i, agent in enumerate(gpus)
        ]
        symbols = _objects(found.get("kernel_symbols"))
        self._kernels = {
            _integer(symbol.get("kernel_id"), place): str(
                symbol.get("formatted_kernel_name") or symbol.get("kernel_name") or "kernel"
            )
            for place, symbol in enumerate(symbols)
        }
        self._streams: dict[Any, int] = {}

    def groups(self) -> Iterator[EventGroup]:
        yield self._dispatches()
        yield self._copies()
        calls = self._records.get("hip_api")
        category = "cuda_runtime" if calls else "cuda_driver"
        yield self._calls(calls or self._records.get("hsa_api") or [], category)
        yield self._markers()

    def left_out(self) -> dict[str, int]:
        """Return the records that are not read."""
        read = _READ if self._records.get("hip_api") else _READ | {"hsa_api"}
        return {f"records of {k}": len(r) for k, r in self._records.items() if k not in read}

    def _dispatches(self) -> EventGroup:
        records = (
            self._records.get("kernel_dispatch") or self._records.get("kernel_dispatches") or []
        )
        about = [_object(record.get("dispatch_info")) for record in records]
        blocks = [_size(one.get("workgroup_size")) for one in about]
        # The grid is counted in work-items, as HSA does.
        grids = [
            tuple(
                -(-items // max(1, width)) for items, width in zip(_size(grid), block, strict=True)
            )
            for grid, block in zip((one.get("grid_size") for one in about), blocks, strict=True)
        ]
        return self._on_gpu(
            records,
            [self._kernels.get(_integer(one.get("kernel_id"), -1), "kernel") for one in about],
            "kernel",
            [self._device.get(_handle(one.get("agent_id")), 0) for one in about],
            [_handle(one.get("queue_id")) for one in about],
            {
                "grid": grids,
                "block": blocks,
                "shared memory": _column(one.get("group_segment_size") for one in about),
            },
        )

    def _copies(self) -> EventGroup:
        records = self._records.get("memory_copy") or []
        ends = [
            (_handle(one.get("src_agent_id")), _handle(one.get("dst_agent_id"))) for one in records
        ]
        return self._on_gpu(
            records,
            [self._copy_name(record) for record in records],
            "gpu_memcpy",
            [self._device.get(to, self._device.get(start, 0)) for start, to in ends],
            ["copies"] * len(records),
            {"bytes": [_integer(one.get("bytes"), 0) or None for one in records]},
        )

    def _copy_name(self, record: Mapping[str, Any]) -> str:
        words = self._operation(record).upper().removeprefix("MEMORY_COPY_")
        return f"Memcpy {_DIRECTIONS.get(words, 'Unknown')}"

    def _on_gpu(
        self,
        records: Sequence[Mapping[str, Any]],
        names: Sequence[str],
        category: str,
        device: Sequence[int],
        queues: Sequence[Any],
        args: Mapping[str, Any],
    ) -> EventGroup:
        streams = [_handle(record.get("stream_id")) for record in records]
        keys = [("stream", s) if s is not None else q for s, q in zip(streams, queues, strict=True)]
        stream = [self._streams.setdefault(key, len(self._streams)) for key in keys]
        on_gpu = {"device": np.array(device, "i8"), "stream": np.array(stream, "i8")}
        return self._timed(records, names, category, device, stream, {**on_gpu, **args})

    def _calls(self, records: Sequence[Mapping[str, Any]], category: str) -> EventGroup:
        names = [self._operation(record) or "call" for record in records]
        return self._on_host(records, names, category)

    def _markers(self) -> EventGroup:
        texts = {
            _integer(one.get("key"), -1): str(one.get("value", ""))
            for one in _objects(self._strings.get("marker_api"))
        }
        records = [
            record
            for record in self._records.get("marker_api", [])
            if record.get("end_timestamp") != record.get("start_timestamp")
        ]
        names = [
            texts.get(_integer(_object(record.get("correlation_id")).get("internal"), -1), "range")
            for record in records
        ]
        return self._on_host(records, names, "user_annotation")

    def _on_host(
        self, records: Sequence[Mapping[str, Any]], names: Sequence[str], category: str
    ) -> EventGroup:
        threads = [_integer(record.get("thread_id")) for record in records]
        return self._timed(records, names, category, [self.pid] * len(records), threads, {})

    def _timed(
        self,
        records: Sequence[Mapping[str, Any]],
        names: Sequence[str],
        category: str,
        pid: Sequence[int],
        tid: Sequence[int],
        args: Mapping[str, Any],
    ) -> EventGroup:
        start = [_integer(record.get("start_timestamp")) for record in records]
        end = [_integer(record.get("end_timestamp")) for record in records]
        ids = (_object(record.get("correlation_id")).get("internal") for record in records)
        return EventGroup(
            name=names,
            category=category,
            start_ns=start,
            dur_ns=[to - begin for begin, to in zip(start, end, strict=True)],
            pid=list(pid),
            tid=list(tid),
            args={"correlation": _column(ids), **args},
        )

    def _operation(self, record: Mapping[str, Any]) -> str:
        """Return the name of what a record is of; numbers stand for kind and operation."""
        operation = record.get("operation")
        if isinstance(operation, str):
            return operation
        kinds = self._strings.get("buffer_records")
        try:
            return str(kinds[record["kind"]]["operations"][operation])  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return ""


def _size(found: Any) -> tuple[int, int, int]:
    found = _object(found)
    x, y, z = (max(0, _integer(found.get(axis))) for axis in "xyz")
    return x, y, z


def _column(values: Iterator[Any] | Any) -> Any:
    """Return integers as an array, masked where there is none."""
    found = [value if type(value) is int and abs(value) < 2**63 else None for value in values]
    mask = [value is None for value in found]
    return np.ma.array([value or 0 for value in found], mask=mask, dtype=np.int64)
