"""The kernels of a folder of traces with what they compute and move, one row per kind of call.

Traces of one program are one source (`source_of`): what is fitted to one of them has seen the
others. A row holds the median time of all calls with the same operator, arguments and kernels.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import torchtraceap as ttap
from torchtraceap.ops.devices import Device, load_devices
from torchtraceap.ops.durations import families
from torchtraceap.ops.durations.operators import product_shape
from torchtraceap.ops.models import Work, family_of
from torchtraceap.ops.models.arguments import OpCall, UnknownWorkError
from torchtraceap.tables.gpu.recorded_device import chosen_device, peak_of
from torchtraceap.tables.ops.calls import Calls, GpuCalls
from torchtraceap.trace.ranks import RankTrace

_ENDINGS = (".json", ".json.gz")
Key = tuple[object, ...]
"""What tells the kind of a call: the columns of `Kernels` but the last, and its arguments."""
_LINK = re.compile(r"Memcpy (?!DtoD)")


@dataclass
class Kernels:
    """Arrays of one length, a row per kind of call."""

    source: np.ndarray
    family: np.ndarray
    """As `durations.families.family_variant` says."""
    device: np.ndarray
    launches: np.ndarray
    """Kernels of a call."""
    moving: np.ndarray
    """Bytes over bandwidth, ns."""
    computing: np.ndarray
    """Flops over the peak, ns."""
    peak: np.ndarray
    """Type and unit of the peak, such as "tf32 matrix"; empty without flops."""
    shape: np.ndarray
    """batch, m, n, k of products of matrices, as text; else empty."""
    alike: np.ndarray
    """Operator and kernels: rows of a program that have them in common differ in sizes alone."""
    ns: np.ndarray

    def __len__(self) -> int:
        return len(self.ns)

    def take(self, rows: np.ndarray) -> Kernels:
        return Kernels(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def amd(self) -> np.ndarray:
        devices = load_devices()
        return np.array([devices[name].vendor == "amd" for name in self.device], dtype=bool)


def source_of(path: Path) -> str:
    """The first word of the file's name; that of the folder where it only counts ranks."""
    word = re.match(r"[a-z]*", path.name.lower())
    name = word[0] if word else ""
    return path.parent.name if name in ("rank", "trace", "") else name


def kernels_of(folder: Path) -> Kernels:
    """Those of all traces of a folder whose device and shapes are known."""
    found = times_of(folder)
    keys = sorted(found, key=str)
    columns = [np.array([key[at] for key in keys]) for at in range(9)]
    return Kernels(*columns, ns=np.array([found[key] for key in keys]))


def times_of(folder: Path) -> dict[Key, float]:
    """Median time in ns of each kind of call."""
    found: dict[Key, list[float]] = defaultdict(list)
    for path in sorted(folder.rglob("*")):
        if path.name.endswith(_ENDINGS):
            for key, ns in _of_file(path):
                found[key].append(ns)
    return {key: float(np.median(times)) for key, times in found.items()}


def on_two_devices(folder: Path) -> list[tuple[OpCall, dict[str, float]]]:
    """Calls of programs that were recorded on several devices, with the times by device, ns."""
    found: dict[tuple[object, ...], dict[str, float]] = defaultdict(dict)
    for key, ns in times_of(folder).items():
        source, device, name, texts = key[0], str(key[2]), str(key[8]).split()[0], key[9]
        found[source, name, texts][device] = ns
    return [
        (OpCall(name, *texts), times)  # type: ignore[misc]
        for (_, name, texts), times in found.items()
        if len(times) > 1
    ]


def _of_file(path: Path) -> Iterator[tuple[Key, float]]:
    try:
        trace = ttap.load(path)
    except ttap.errors.TraceError:
        return
    for part in trace.ranks:
        device = chosen_device(part)[0]
        if device is not None:
            yield from _of_rank(source_of(path), part, device)


def _of_rank(source: str, part: RankTrace, device: Device) -> Iterator[tuple[Key, float]]:
    calls = Calls(part)
    on_gpu = GpuCalls(part, calls)
    kinds = np.full(len(part.table) + 1, -1, dtype=np.int64)
    kinds[calls.rows] = np.where(calls.has_work[calls.rows], calls.group, -1)
    kind_of = kinds[np.minimum(on_gpu.rows, len(part.table))]
    order = np.argsort(on_gpu.event_call, kind="stable")
    starts = np.concatenate([[0], np.cumsum(on_gpu.count)])
    for at in np.flatnonzero((kind_of >= 0) & (on_gpu.gpu_ns > 0)).tolist():
        events = on_gpu.events[order[starts[at] : starts[at + 1]]]
        names = tuple(calls.strings[i] for i in part.table.name[events].tolist())
        call = calls.kinds[int(kind_of[at])]
        if call.work is not None and not any(_LINK.match(name) for name in names):
            family = families.family_variant(family_of(call.name, names), names[0])
            ideal = _ideal(call.work, device, names)
            shape = _shape(call.name, call.texts)
            alike = " ".join((call.name, *names))
            key = (source, family, device.id, len(names), *ideal, shape, alike, call.texts)
            yield key, float(on_gpu.gpu_ns[at])


def _ideal(work: Work, device: Device, names: Sequence[str]) -> tuple[float, float, str]:
    """Bytes over bandwidth, flops over the peak that the kernels' names tell, and that peak."""
    peak = peak_of(work, device, names) if work.flops else None
    computing = 1e9 * (work.computed or 0.0) / peak[0] if peak else 0.0
    return 1e9 * work.bytes / device.bandwidth, computing, peak[1] if peak else ""


def _shape(name: str, texts: Sequence[str | None]) -> str:
    try:
        shape = product_shape(OpCall(name, *texts))
    except UnknownWorkError:
        return ""
    return "" if shape is None or min(shape) < 1 else " ".join(map(str, shape))
