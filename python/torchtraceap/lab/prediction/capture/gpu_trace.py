"""Captures the operators of a trace that launch GPU work, and the time of that work."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from torchtraceap import _core
from torchtraceap.compat import RecordedCall
from torchtraceap.core import Array, dataclass, parse_dtype
from torchtraceap.lab.prediction.capture.batch import TracedCall, change_batch
from torchtraceap.lab.prediction.capture.batch_sizes import keeps_sizes
from torchtraceap.lab.prediction.capture.calls import (
    Call,
    Capture,
    CaptureError,
    Collective,
    Gradient,
)
from torchtraceap.lab.prediction.capture.reexecution import is_registered
from torchtraceap.lab.prediction.capture.rows import (
    gradients_of,
    named_inputs,
    phase_of,
    recorded_call,
    steady_step,
    with_location,
)
from torchtraceap.trace import RankTrace

__all__ = ["CapturedProfile", "capture_gpu_trace"]

_KEYS = (
    "Collective name", "In msg nelems", "Out msg nelems", "dtype", "Process Group Ranks",
    "Process Group Description", "Process Group Name",
)  # fmt: skip
_CLOCK_NS, _IDLE_NS, _GOES_ON_NS = 1_000, 2_000, 20_000
"""Tolerances for a waiting stream.

It resumes when the collective ends, as far as clocks agree, after it was idle and within the time
of a launch.
"""


@dataclass(frozen=True, slots=True)
class CapturedProfile:
    """Operators that launch GPU work in a step, with their measured times."""

    capture: Capture
    """Capture whose calls launch under their own names (`Call.is_innermost`)."""
    measured_ns: tuple[int, ...]
    """Sum of the GPU time of each call."""
    kernels: tuple[tuple[str, ...], ...]
    """Names of the GPU events of each call, in the order of their launches."""
    device: str | None
    """Name of the GPU in the trace."""
    step_ns: int
    """Host time from the begin to the end of the step."""
    changed: Capture | None = None
    """Capture at the requested batch size."""


def capture_gpu_trace(part: RankTrace, batch: int | None = None) -> CapturedProfile:
    """Return the operators that launch GPU work in a steady step.

    Args:
        part: Recorded with `record_shapes=True` and GPU activities.
        batch: New leading dimension of the inputs; None keeps it. Needs torch.

    Raises:
        CaptureError: Nothing on a GPU is recorded, or no shapes are.
        OptionError: Which sizes are the batch is ambiguous.
        MissingDependencyError: Torch is needed and not there.
    """
    table, tree = part.table, part.tree
    host_rows, step_ns, notes = steady_step(part)
    in_step = np.zeros(len(table) + 1, dtype=bool)
    in_step[host_rows] = True
    events = tree.gpu_rows.astype(np.int64)
    events = events[in_step[np.minimum(tree.launch[events].astype(np.int64), len(table))]]
    if not len(events):
        raise CaptureError(f"{part.path}: no GPU work with a launch is recorded in a step")
    launches = tree.launch[events].astype(np.int64)
    owners = tree.op[launches].astype(np.int64)
    owners = np.where(owners == _core.NO_ROW, launches, owners)
    order = np.lexsort((table.ts_ns[launches], table.ts_ns[owners]))
    events, owners = events[order], owners[order]
    begins = np.flatnonzero(np.diff(owners, prepend=-1))
    groups = np.split(events, begins[1:])
    rows = owners[begins].tolist()
    calls = [_call(part, row, group, {}) for row, group in zip(rows, groups, strict=True)]
    if not any(call.inputs for call in calls):
        raise CaptureError(f"{part.path}: operators have no shapes; record with record_shapes=True")
    of_parameters = gradients_of(part, host_rows.tolist())
    begins_ns = table.ts_ns[rows]
    gradients = tuple(
        Gradient(int(np.searchsorted(begins_ns, table.ts_ns[row])), tensor)
        for row, tensor in of_parameters.items()
    )
    waits = _waits(part, calls, groups)
    changed = None
    if batch is not None:
        traced = _traced_calls(part, host_rows, rows)
        shapes = [each.shape for each in of_parameters.values()]
        new_calls, notes_of_batch = change_batch(traced, batch, shapes, part.path)
        others = [
            _call(part, row, group, new_calls) for row, group in zip(rows, groups, strict=True)
        ]
        changed = Capture(
            _with_waits(others, waits), (*notes, *notes_of_batch), gradients=gradients
        )
    return CapturedProfile(
        Capture(_with_waits(calls, waits), notes, gradients=gradients),
        tuple(int(table.dur_ns[group].sum()) for group in groups),
        tuple(tuple(map(table.name_of, group.tolist())) for group in groups),
        table.devices[0].name if table.devices else None,
        step_ns,
        changed,
    )


def _traced_calls(part: RankTrace, rows: Array, owners: Sequence[int]) -> list[TracedCall]:
    """Return all operators of a step, since views show how tensors depend on each other."""
    needed = set(owners)
    traced = []
    for row in rows[part.table.kind[rows] == _core.EventKind.CPU_OP].tolist():
        name = part.table.name_of(row)
        parent = int(part.tree.parent[row])
        inside = parent != _core.NO_ROW and is_registered(part.table.name_of(parent))
        says = keeps_sizes(name.partition("::")[2]) if inside else is_registered(name)
        call = recorded_call(part, row) if row in needed or says else None
        if call is not None:
            tells = row in needed or not inside
            traced.append(TracedCall(row, call, phase_of(part, row), tells))
    return traced


def _waits(part: RankTrace, calls: Sequence[Call], groups: Sequence[Array]) -> dict[int, int]:
    """Return the collective that each call waits for, by call.

    It is seen where a stream idles up to the end of a collective and goes on then. Where none is
    seen to wait, what follows on the pass in which it was started does.
    """
    table = part.table
    begin = np.array([table.ts_ns[group[0]] for group in groups])
    end = np.array([(table.ts_ns[group] + table.dur_ns[group]).max() for group in groups])
    streams = np.array([table.stream[group[0]] for group in groups])
    free: dict[int, int] = {}
    before = np.zeros(len(groups), dtype=np.int64)
    for place, stream in enumerate(streams.tolist()):
        before[place] = free.get(stream, 0)
        free[stream] = max(free.get(stream, 0), int(end[place]))
    found: dict[int, int] = {}
    for place, call in enumerate(calls):
        if call.collective is None:
            continue
        behind = np.arange(place + 1, len(calls))
        behind = behind[streams[behind] != streams[place]]
        late = behind[begin[behind] >= end[place] - _CLOCK_NS]
        waiter = int(late[0]) if len(late) else None
        if waiter is not None and not (
            before[waiter] < end[place] - _IDLE_NS and begin[waiter] < end[place] + _GOES_ON_NS
        ):
            waiter = None
        if waiter is None:
            waiter = next((k for k in behind.tolist() if calls[k].phase != call.phase), None)
        if waiter is not None:
            found[waiter] = call.collective.id
    return found


def _with_waits(calls: Sequence[Call], waits: Mapping[int, int]) -> tuple[Call, ...]:
    return tuple(
        replace(call, waits_for=waits.get(place, call.waits_for))
        for place, call in enumerate(calls)
    )


def _call(part: RankTrace, row: int, events: Array, changed: Mapping[int, RecordedCall]) -> Call:
    """Return the operator as a call; a launch without one is named after its first kernel."""
    is_operator = part.table.kind[row] == _core.EventKind.CPU_OP
    name = part.table.name_of(row if is_operator else int(events[0]))
    recorded = (changed.get(row) or recorded_call(part, row)) if is_operator else None
    inputs = {} if recorded is None else named_inputs(recorded)
    call = Call(
        name,
        "default",
        inputs,
        (),
        phase_of(part, row),
        (),
        is_innermost=True,
        collective=_collective(part, row, int(events[0])),
    )
    return with_location(part, [call], row)[0]


def _collective(part: RankTrace, row: int, event: int) -> Collective | None:
    """Return the collective of a call, if it is one."""
    if part.tree.gpu_class[event] != _core.GpuClass.COMMUNICATION:
        return None
    said = _collective_texts(part, event) or _collective_texts(part, row)
    dtype = parse_dtype(said.get("dtype", ""))
    if dtype is None or "Collective name" not in said:
        return None
    try:
        group = json.loads(said.get("Process Group Ranks", ""))
    except (ValueError, RecursionError):  # the profiler cuts off long lists: ranks are unknown
        group = ()
    if not isinstance(group, list) or any(type(each) is not int or each < 0 for each in group):
        group = ()
    return Collective(
        said["Collective name"],
        tuple(group),
        said.get("Process Group Description") or said.get("Process Group Name", ""),
        _as_count(said.get("In msg nelems")),
        _as_count(said.get("Out msg nelems")),
        dtype,
        id=event,
    )


def _collective_texts(part: RankTrace, row: int) -> dict[str, str]:
    found = {}
    for key in _KEYS:
        codes, texts = part.table.text_codes(key, np.asarray([row], dtype=np.int64))
        if codes[0] >= 0:
            found[key] = texts[codes[0]]
    return found if "Collective name" in found else {}


def _as_count(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 20 else 0
