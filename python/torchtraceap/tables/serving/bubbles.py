"""`build_bubbles`: when the GPU waits between iterations of an engine, and what the host does then.

Note [Bubble]: a bubble lies between the last GPU work of one iteration and the first of the next,
where no other GPU work runs. It is split by what the thread that runs the engine does meanwhile:
the innermost frame, range or call whose name tells decides, so that a sort inside of the scheduler
is scheduling. The parts of a bubble sum to it exactly.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import encode_json
from torchtraceap.core.records import dataclass
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.serving.iterations import ServedIterations, idle_within
from torchtraceap.trace.ranks import RankTrace

__all__ = ["HOST_CAUSES", "Bubble", "bubbles_of", "build_bubbles"]

HOST_CAUSES = (
    "scheduling",
    "input_preparation",
    "sampling",
    "detokenizing",
    "transfer",
    "launch",
    "waiting",
    "synchronization",
    "garbage_collection",
    "other_host_work",
    "not_recorded",
)
"""What the host does in a bubble. `waiting`: for requests, for another process or for a lock."""

_WORDS: tuple[tuple[str, str], ...] = (
    ("garbage_collection", r"garbage|gc\.collect|gen[012] collection"),
    ("detokenizing", r"detoken|tokenizer|decode_stream|incremental_decode"),
    ("sampling", r"sampl|logits_?process|rejection|argmax|multinomial|penalt|grammar|bitmask"),
    ("input_preparation", r"prepare_?(?:input|batch|decode|extend|prefill|for_)|input_?batch|"
     r"init_forward_metadata|attn_metadata|build_metadata|slot_mapping|block_table|"
     r"forwardbatch|init_new|update_states|make_buffer|prepare_tp_inputs|replay_prepare"),
    ("scheduling", r"schedul|get_next_batch|event_loop|update_running|engine_?core|"
     r"process_batch_result|update_from_output|kv_cache_manager|radix_cache|allocate_slots|"
     r"recv_requests|process_input_requests|stream_output|output_processor"),
    ("waiting", r"(?:^|[^a-z])(?:recv|poll|select|acquire|dequeue|wait|sleep)(?:$|[^a-z])|"
     r"queue\.(?:get|py)|zmq|shm_broadcast|_wait_for|threading\.py.*wait|selectors\.py|sched_yield"),
)  # fmt: skip
_API = {
    _core.ApiClass.KERNEL_LAUNCH: "launch",
    _core.ApiClass.GRAPH_LAUNCH: "launch",
    _core.ApiClass.COPY: "transfer",
    _core.ApiClass.ASYNC_COPY: "transfer",
    _core.ApiClass.MEMSET: "transfer",
    _core.ApiClass.STREAM_SYNC: "synchronization",
    _core.ApiClass.DEVICE_SYNC: "synchronization",
    _core.ApiClass.EVENT_SYNC: "synchronization",
}


@dataclass(frozen=True, slots=True)
class Bubble:
    """One stretch in which the GPU waits in front of an iteration."""

    iteration: int
    """The iteration that follows."""
    start_ns: int
    """GPU clock."""
    end_ns: int
    causes: dict[str, int]
    """ns by one of `HOST_CAUSES`, the longest first; they sum to the bubble."""


def bubbles_of(part: RankTrace, iterations: ServedIterations) -> list[Bubble]:
    """Return the bubbles in front of every iteration but the first. See Note [Bubble]."""
    return part.cached("serving bubbles", lambda: _build(part, iterations))


def _build(part: RankTrace, iterations: ServedIterations) -> list[Bubble]:
    host = _HostThread(part, iterations)
    found = []
    end_ns = -1
    for number, (begin, end) in enumerate(
        zip(iterations.gpu_start_ns.tolist(), iterations.gpu_end_ns.tolist(), strict=True)
    ):
        if end < 0:
            continue
        if 0 <= end_ns < begin:
            found += [
                Bubble(number, start, stop, host.causes(start, stop))
                for start, stop in idle_within(part, end_ns, begin).tolist()
            ]
        end_ns = max(end_ns, end)
    return found


class _HostThread:
    """The thread that runs the engine, and what it does at a time."""

    def __init__(self, part: RankTrace, iterations: ServedIterations) -> None:
        table, tree = part.table, part.tree
        track = iterations.track
        self._part = part
        self._shift_ns = tree.launch_delay_correction_ns
        begin, end = (0, 0) if track is None else tree.host_offsets[track : track + 2].tolist()
        self._rows = tree.host_rows[int(begin) : int(end)].astype(np.int64)
        self._start_ns = table.ts_ns[self._rows]
        self._end_ns = self._start_ns + table.dur_ns[self._rows]
        # The latest end of all rows up to each: the first row that may reach into a bubble.
        self._reach_ns = np.maximum.accumulate(self._end_ns) if len(self._rows) else self._end_ns

    def causes(self, start_ns: int, end_ns: int) -> dict[str, int]:
        """Return ns by cause within [start, end) of the GPU's clock."""
        start, end = start_ns + self._shift_ns, end_ns + self._shift_ns
        low = int(np.searchsorted(self._reach_ns, start, side="right"))
        high = int(np.searchsorted(self._start_ns, end, side="left"))
        # Rows come parents first, so what is written later is further inside.
        inside = low + np.flatnonzero(self._end_ns[low:high] > start)
        begins = self._start_ns[inside].clip(start, end)
        ends = self._end_ns[inside].clip(start, end)
        times = np.unique(np.concatenate([[start, end], begins, ends]))
        causes = np.full(len(times) - 1, "not_recorded", dtype=object)
        kinds = self._kinds(self._rows[inside])
        places = zip(
            np.searchsorted(times, begins).tolist(),
            np.searchsorted(times, ends).tolist(),
            kinds,
            strict=True,
        )
        for first, last, kind in places:
            if kind is not None:
                causes[first:last] = kind
            else:
                part = causes[first:last]
                part[part == "not_recorded"] = "other_host_work"
        lengths = np.diff(times)
        sums = {
            cause: int(lengths[causes == cause].sum()) for cause in HOST_CAUSES if cause in causes
        }
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def _kinds(self, rows: Array) -> list[str | None]:
        table, tree = self._part.table, self._part.tree
        api = tree.api[rows].tolist()
        texts = table.strings
        return [
            _API.get(_core.ApiClass(code)) if code else host_cause(texts[name])
            for code, name in zip(api, table.name[rows].tolist(), strict=True)
        ]


@lru_cache(maxsize=1 << 14)
def host_cause(name: str) -> str | None:
    """Return what the name of a frame, range or operator says that the host does; None where it
    says nothing, so that what encloses it decides."""
    lower = name.lower()
    return next((cause for cause, words in _WORDS if re.search(words, lower)), None)


def build_bubbles(part: RankTrace, iterations: ServedIterations) -> ColumnTable:
    """Return one row for each bubble: `iteration` that follows, `start_ns`, `duration_ns`, and
    `causes` (JSON: ns by what the host did)."""
    bubbles = bubbles_of(part, iterations)
    return ColumnTable(
        {
            "iteration": np.array([each.iteration for each in bubbles], dtype=np.int64),
            "start_ns": np.array([each.start_ns for each in bubbles], dtype=np.int64),
            "duration_ns": np.array([each.end_ns - each.start_ns for each in bubbles], np.int64),
            "causes": encode_json([each.causes for each in bubbles]),
        }
    )
