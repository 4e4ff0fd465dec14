"""`Program`: one rank of a run as injections see it, with the places where work can be injected.

Note [Places]: work is injected between two operators of a thread that lie in no other operator,
right behind what comes before. On a stream it follows everything that was launched before that
place and precedes what was launched later.

Note [Noise]: times of the host vary, as what a profiler sees repeatedly never takes the same time.
The quantiles are medians over eight public traces (H100, A100, V100, MI300X, RTX 2080 Ti) of the
times of launches that repeat by name, over their median. The tail is long: interrupts, other
threads, the allocator.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from torchtraceap._core import EventKind, GpuClass, Phase
from torchtraceap.core import Array
from torchtraceap.lab.prediction.timeline.profilers import Profiler, detect_profiler
from torchtraceap.simulation import SimulatedRun, views
from torchtraceap.trace import parse_recorded

__all__ = ["Places", "Program", "host_noise"]

LOADER = r"^enumerate\(DataLoader\)#"
_RANGES = rf"{LOADER}|^(ProfilerStep#|Optimizer\.|DistributedDataParallel|Torch-Compiled|##)"
"""Operators by category that are ranges around operators, as torch before 1.12 writes them."""
_TICKS = 0.6
"""Share of the times that are whole ticks of a clock."""
_LEAST_REPEATS = 4
_FIRST = 64
"""Operators of a thread that may serve as a template for injected ones."""
_LEAST_PLACES = 8
_LEAST_NOISE = 0.15
_GPU_NOISE = (0.005, 0.1)
"""Bounds of the noise that is drawn: beyond them what repeats by name is not the same work."""
_SHARES = np.array([0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98, 0.995, 1])
_LOGS = np.array([-0.6, -0.44, -0.28, -0.15, 0, 0.17, 0.33, 0.64, 1.1, 1.6])
_MEAN = float(np.exp(np.interp((np.arange(10_000) + 0.5) / 10_000, _SHARES, _LOGS)).mean())
_USUAL_VARIATION = 0.25
"""Median over the traces of Note [Noise] of a launch's standard deviation over its mean."""


def host_noise(uniform: Array, share: float) -> Array:
    """Return factors with a mean of about 1, float64 `[n]`. See Note [Noise].

    Args:
        uniform: float64 `[n]`, drawn from 0 to 1.
        share: Share of the usual noise, 0 to 1, as a recording varies already.
    """
    factors: Array = np.exp(share * np.interp(uniform, _SHARES, _LOGS)) / _MEAN**share
    return factors


@dataclass(frozen=True, slots=True)
class Places:
    """Places of one thread, by time. See Note [Places]."""

    track: int
    edge: Array
    """int64 `[places]`: the graph's edge that is opened."""
    source: Array
    """int64 `[places]`: the point before."""
    point: Array
    """int64 `[places]`: the point behind."""
    time_ns: Array
    """int64 `[places]`, measured, on the graph's clock."""
    step: Array
    """int64 `[places]`: index of the run's step; -1 outside of all."""
    phase: Array
    """uint8 `[places]`: phase of the operator behind."""
    parent: Array
    """int64 `[places]`: row around the operator behind, or NO_ROW."""

    def __len__(self) -> int:
        return len(self.edge)


class Program:
    """One rank of a run; immutable.

    Args:
        run: A run of one rank with GPU work.
    """

    def __init__(self, run: SimulatedRun) -> None:
        self.run = run
        self.view = views(run)[0]
        self.table, self.tree, self.graph = self.view.table, self.view.tree, run.graph

    # ------------------------------------------------------------------------- places

    @cached_property
    def main(self) -> Places:
        """Places of the thread that carries the steps."""
        track = self.tree.main_track
        return self._places_on(-1 if track is None else track)

    @cached_property
    def backward(self) -> Places:
        """Places of the thread that runs the backward pass, which may be the main thread."""
        ops = np.flatnonzero(self._is_op & (self.tree.phase == Phase.BACKWARD))
        tracks, counts = np.unique(self.table.track[ops], return_counts=True)
        if not len(tracks):
            return self.main
        track = int(tracks[counts.argmax()])
        return self.main if track == self.main.track else self._places_on(track)

    @cached_property
    def _is_op(self) -> Array:
        is_op: Array = self.view.is_kind(EventKind.CPU_OP) & self.view.has_points
        return is_op & ~self.view.has_name(_RANGES)

    def _places_on(self, track: int) -> Places:
        view, graph = self.view, self.graph
        ops = view.outermost(np.flatnonzero(self._is_op & (self.table.track == track)))
        inside = view.inside(view.begin_of[ops].astype(np.int64), self.loader_rows)
        ops = ops[inside < 0]
        points = view.begin_of[ops].astype(np.int64)
        edges = view.edges_into(points, "program_order")
        ends = view.destination_of(edges).astype(np.int64)
        # An outermost operator has one begin, and so one edge of its thread.
        ops, points = ops[np.isin(points, ends)], points[np.isin(points, ends)]
        edges = edges[np.searchsorted(ends, points)]
        times = graph.time_ns[points]
        return Places(
            track, edges, graph.source[edges].astype(np.int64), points, times,
            self._step_at(times), self.tree.phase[ops], self.tree.parent[ops].astype(np.int64),
        )  # fmt: skip

    def _step_at(self, times_ns: Array) -> Array:
        begins, ends = self.step_bounds.T
        if not len(begins):
            return np.zeros(len(times_ns), dtype=np.int64)
        place = np.searchsorted(begins, times_ns, side="right") - 1
        inside = (place >= 0) & (times_ns <= ends[np.maximum(place, 0)])
        return np.where(inside, place, -1)

    @cached_property
    def step_bounds(self) -> Array:
        """Begins and ends of steps on the host, int64 `[steps, 2]`, measured, on the graph's clock;
        none where the whole trace is one step."""
        if not self.run.per_step:
            return np.zeros((0, 2), dtype=np.int64)
        times = self.graph.time_ns
        bounds = [(times[step.begin], times[step.end]) for step in self.run.steps]
        return np.array(bounds, dtype=np.int64).reshape(-1, 2)

    @property
    def is_usable(self) -> bool:
        """True if it has places, and kernels with their launches."""
        return len(self.main) >= _LEAST_PLACES and bool(self.steps) and len(self._kernels) > 0

    @cached_property
    def steps(self) -> list[int]:
        """Steps with places in them."""
        return sorted({step for step in self.main.step.tolist() if step >= 0})

    def step_of_rows(self, rows: Array) -> Array:
        """Return the steps in which host rows begin, int64; -1 outside of all."""
        return self._step_at(self.graph.time_ns[self.view.begin_of[rows]])

    @property
    def step_ns(self) -> float:
        """The mean measured iteration."""
        return float(self.run.mean_ns(self.run.measured_ns))

    @cached_property
    def loader_rows(self) -> Array:
        """Ranges of torch's DataLoader, by start."""
        rows = self.view.rows_named(LOADER, EventKind.CPU_OP, EventKind.USER_ANNOTATION)
        rows = rows[self.view.has_points[rows]]
        return self.view.outermost(rows)

    # ------------------------------------------------------------------------- streams

    @cached_property
    def stream_rows(self) -> Array:
        """GPU rows of the stream with most kernels, in its order."""
        rows = self.view.gpu_rows
        streams, counts = np.unique(self.tree.stream_of[rows], return_counts=True)
        rows = rows[self.tree.stream_of[rows] == streams[counts.argmax()]]
        in_order: Array = rows[np.argsort(self.view.begin_of[rows], kind="stable")]
        return in_order

    @cached_property
    def _launched_ns(self) -> Array:
        times = self.view.launch_times_ns(self.stream_rows) + self.run.offsets_ns[0]
        launched: Array = np.maximum.accumulate(times)
        return launched

    def slots(self, times_ns: Array) -> Array:
        """Return for each time the index in `stream_rows` of the first work that is launched then
        or later, int64."""
        found: Array = np.searchsorted(self._launched_ns, times_ns)
        return found

    @cached_property
    def launch_latency_ns(self) -> float:
        """Time from the begin of a launch to that of its work on a free stream."""
        return float(self.view.launch_latency_ns(np.zeros(0, dtype=np.int64)))

    @cached_property
    def backward_share(self) -> float:
        """Share of the launches that are in the backward pass."""
        phases = self.view.phase_of(self.stream_rows)
        return float((phases == Phase.BACKWARD).mean()) if len(phases) else 0.0

    # ------------------------------------------------------------------------- other ranks

    @cached_property
    def collectives(self) -> Array:
        """GPU rows of the program's own collectives, by launch."""
        rows = self.view.gpu_rows
        rows = rows[self.tree.gpu_class[rows] == GpuClass.COMMUNICATION]
        in_order: Array = rows[np.argsort(self.view.begin_of[rows], kind="stable")]
        return in_order

    @cached_property
    def edges_through_collectives(self) -> Array:
        """The edge from begin to end of each of `collectives`, int64."""
        begins = self.view.begin_of[self.collectives]
        edges = self.view.edges_into(self.view.end_of[self.collectives], "execution")
        edges = edges[np.isin(self.graph.source[edges], begins)]
        order = np.searchsorted(self.view.destination_of(edges), self.view.end_of[self.collectives])
        found: Array = edges[order]
        return found

    # ------------------------------------------------------------------------- noise

    @cached_property
    def gpu_noise(self) -> float:
        """Median coefficient of variation of kernels that repeat with the same name and grid."""
        view = self.view
        rows = view.gpu_rows[view.is_kind(EventKind.KERNEL)[view.gpu_rows]]
        rows = rows[self.tree.gpu_class[rows] == GpuClass.COMPUTE]
        grids, _ = self.table.text_codes("grid", rows)
        key = self.table.name[rows].astype(np.int64) << 32 | (grids.astype(np.int64) + 1)
        return _variation(key, self.table.dur_ns[rows], *_GPU_NOISE)

    @cached_property
    def host_noise(self) -> float:
        """Share of the usual noise that complements the recording's own; a little in any case."""
        calls = self.view.launch_of(self._kernels)
        own = _variation(self.table.name[calls], self.table.dur_ns[calls], 0.0, _USUAL_VARIATION)
        return max(_LEAST_NOISE, math.sqrt(1 - (own / _USUAL_VARIATION) ** 2))

    # ------------------------------------------------------------------------- clock

    @cached_property
    def is_work(self) -> Array:
        """True for the rows of GPU work, bool `[rows]`."""
        kinds = (EventKind.KERNEL, EventKind.GPU_MEMCPY, EventKind.GPU_MEMSET)
        found: Array = np.isin(self.table.kind, kinds)
        return found

    @cached_property
    def _ticks(self) -> tuple[int, int, bool]:
        """Tick of GPU durations and of host times, ns, but for a nanosecond of conversion, and True
        if starts of GPU work are multiples of the host's tick too; as found in its own times."""
        table = self.table
        whole = np.concatenate([table.ts_ns, table.dur_ns])
        if (whole % 1_000 == 0).mean() > _TICKS:
            return 1, 1_000, True
        host, gpu = table.dur_ns[self._is_op], table.dur_ns[self.is_work]
        host_tick_ns = 10 if len(host) and (host % 10 == 0).mean() > _TICKS else 1
        for each in (40, 32) if len(gpu) else ():
            if (np.minimum(gpu % each, -gpu % each) <= 1).mean() > _TICKS:
                return each, host_tick_ns, False
        return 1, host_tick_ns, False

    def quantize(self, ts_ns: Array, dur_ns: Array, is_work: Array) -> tuple[Array, Array]:
        """Return starts and lengths, ns, of host events and of GPU work in the resolution of the
        recording."""
        gpu_tick_ns, host_tick_ns, is_coarse = self._ticks
        tick = np.where(is_work & (not is_coarse), 1, host_tick_ns)
        starts: Array = ts_ns // tick * tick
        lengths: Array = (ts_ns + dur_ns) // tick * tick - starts
        if gpu_tick_ns == 1:
            return starts, lengths
        ticks = np.maximum(np.rint(dur_ns / gpu_tick_ns), 1).astype(np.int64)
        of_gpu = ticks * gpu_tick_ns - (ts_ns % 7 == 0)
        return starts, np.where(is_work, of_gpu, lengths)

    # ------------------------------------------------------------------------- templates

    def template_op(self, track: int) -> dict[str, Any]:
        """Return that of the first operators of a thread which has most arguments."""
        rows = np.flatnonzero(self._is_op & (self.table.track == track))[:_FIRST]
        return max((self._fields(row) for row in rows.tolist()), key=lambda of: len(of["args"]))

    @cached_property
    def template_annotation(self) -> dict[str, Any] | None:
        """A range of the user, where such ranges are not operators."""
        rows = self.view.rows_named("", EventKind.USER_ANNOTATION)
        return self._fields(int(rows[0])) if len(rows) else None

    @cached_property
    def template_call(self) -> dict[str, Any]:
        """A call that launches a kernel."""
        calls = self.view.launch_of(self._kernels)
        of_runtime = calls[self.view.is_kind(EventKind.RUNTIME)[calls]]
        return self._fields(int(of_runtime[0] if len(of_runtime) else calls[0]))

    @cached_property
    def template_kernel(self) -> dict[str, Any]:
        """An element-wise kernel, else any short one."""
        rows = self._kernels
        pointwise = rows[self.view.has_name("elementwise")[rows]]
        rows = pointwise if len(pointwise) else rows
        return self._fields(int(rows[self.table.dur_ns[rows].argmin()]))

    @cached_property
    def template_copy(self) -> dict[str, Any]:
        """A copy; where there is none, one made of a kernel's place."""
        rows = self.view.gpu_rows[self.view.is_kind(EventKind.GPU_MEMCPY)[self.view.gpu_rows]]
        if len(rows):
            return self._fields(int(rows[0]))
        fields = dict(self.template_kernel)
        fields["cat"] = "gpu_memcpy" if fields["cat"] == "kernel" else "Memcpy"
        kept = ("device", "context", "stream", "correlation", "external id", "External id")
        fields["args"] = {key: fields["args"][key] for key in kept if key in fields["args"]}
        fields["args"] |= {"bytes": 0, "memory bandwidth (GB/s)": 0.0}
        return fields

    @cached_property
    def _kernels(self) -> Array:
        rows = self.stream_rows
        rows = rows[self.view.is_kind(EventKind.KERNEL)[rows]]
        return rows[self.view.launch_of(rows) >= 0]

    @cached_property
    def arrows(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Both ends of the arrow from a call to its work, where the recording has such."""
        found: dict[str, dict[str, Any]] = {}
        ids = set(self.table.correlation[self._kernels[:2_000]].tolist())
        for row in np.flatnonzero(self.table.kind == EventKind.FLOW).tolist():
            fields = parse_recorded(self.table.event_json(row), f"row {row}")
            if fields.get("id") in ids and fields.get("cat") in ("ac2g", "async"):
                found.setdefault(fields["ph"], fields)
            if len(found) == 2:
                return found["s"], found["f"]
        return None

    @cached_property
    def profiler(self) -> Profiler:
        """The version of the profiler that writes most like the recording."""
        return detect_profiler(self.table)

    @cached_property
    def is_ancient(self) -> bool:
        """True if it is of a torch before 1.12, with categories of its own."""
        return self.template_kernel.get("cat") == "Kernel"

    @cached_property
    def runtime(self) -> str:
        """Prefix of its runtime calls: "cuda" or "hip"."""
        return "hip" if re.match("hip", str(self.template_call["name"])) else "cuda"

    def _fields(self, row: int) -> dict[str, Any]:
        fields = parse_recorded(self.table.event_json(row), f"row {row}")
        fields["ph"] = "X"
        fields["args"] = dict(fields.get("args") or {})
        return fields


def _variation(keys: Array, ns: Array, low: float, high: float) -> float:
    """Return the median coefficient of variation of times with one key, within bounds."""
    found = []
    order = np.argsort(keys, kind="stable")
    for group in np.split(ns[order], np.flatnonzero(np.diff(keys[order])) + 1):
        if len(group) >= _LEAST_REPEATS and group.mean() > 0:
            found.append(float(group.std() / group.mean()))
    return min(max(float(np.median(found)), low), high) if found else low
