"""The charts of a page as JSON, `{"kind": ..., ...}`, derived from tables."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_part, one_line
from torchtraceap.core.sums import clamp

if TYPE_CHECKING:
    from torchtraceap.core.table import ColumnTable
    from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "BOUND_FILLS",
    "PATH_FILLS",
    "bars",
    "collective_waits",
    "iterations",
    "lateness",
    "module_flame",
    "path_shares",
    "rank_to_rank",
    "roofline",
    "stack_flame",
    "steps",
    "waterfall",
]

MAX_POINTS = 500  # points of a roofline plot, by GPU time
LEAST_SHARE = 1e-4  # share of the busy time: an operator with less is no point of the plot
MAX_STEPS = 800  # bars of the strip of steps
MAX_MEETINGS = 40  # rows of the map of waits
MAX_RANKS = 64  # columns of a map
MAX_NAME = 200  # characters of a name in a flame graph
HUES = 8  # colors of names, --host-0 and so on in the style sheet
MAX_DELTAS = 9  # bars of a waterfall before "everything else"

Chart = dict[str, Any]
# The color in the style sheet of each part of the critical path.
PATH_FILLS = {
    "gpu_compute": "compute",
    "communication": "communication",
    "copy": "memcpy",
    "data_loading": "data_loading",
    "host_forward": "host_wait",
    "host_backward": "host_wait",
    "host_optimizer": "host_wait",
    "host_other": "host_wait",
    "host_gap": "host_wait",
    "synchronization": "synchronization",
    "compilation": "compilation",
    "allocator": "allocator",
    "launch_latency": "launch_latency",
    "gpu_gap": "launch_latency",
    "profiler": "profiler",
    "unknown": "unknown",
}
BOUND_FILLS = {
    "cpu_bound": "host_wait",
    "gpu_compute_bound": "compute",
    "communication_bound": "communication",
    "copy_bound": "memcpy",
    "data_loading": "data_loading",
    "synchronization_bound": "synchronization",
    "launch_bound": "launch_latency",
    "compilation_bound": "compilation",
    "allocator_bound": "allocator",
    "profiler": "profiler",
    "unknown": "unknown",
}
_LATE_FILLS = {
    "late_compute_ns": ("compute", "compute"),
    "late_communication_ns": ("communication", "communication"),
    "late_copies_ns": ("memcpy", "copies"),
    "late_input_ns": ("data_loading", "input"),
    "late_host_ns": ("host_wait", "host"),
}


def bars(
    rows: Sequence[tuple[str, Sequence[tuple[str, str, float]], float]], *, unit: str, title: str
) -> Chart:
    """Make stacked bars of one scale: rows of (label, parts, total), parts of (fill, label, value).

    Parts below zero, such as work that a rank has done sooner than others, have no length.
    """
    described = [
        {"label": label, "parts": [part for part in parts if part[2] > 0], "total": total}
        for label, parts, total in rows
    ]
    return {"kind": "bars", "unit": unit, "title": title, "rows": described}


def path_shares(table: ColumnTable) -> Chart | None:
    """Make a bar of the critical path by the resource that bounds it."""
    shares = table.facts.get("bound_shares") or {}
    parts = [(BOUND_FILLS.get(n, "unknown"), format_part(n), s) for n, s in shares.items()]
    if not parts:
        return None
    return bars([("", parts, 1.0)], unit="share", title="Share of the path")


def lateness(table: ColumnTable) -> Chart | None:
    """Make bars of how late each rank came to collectives, and of its additional work."""
    numbers, late = table.to_list("rank")[:MAX_RANKS], table.to_list("lateness_ns")
    causes = {key: table.to_list(key) for key in _LATE_FILLS}
    rows = []
    for i, number in enumerate(numbers):
        parts = [(*_LATE_FILLS[key], values[i] or 0) for key, values in causes.items()]
        rows.append((f"rank {'?' if number is None else number}", parts, late[i] or 0))
    if not any(part[2] > 0 for _, parts, _ in rows for part in parts):
        return None
    return bars(
        rows, unit="ns", title="Late for collectives, and what the rank did more of than the others"
    )


def rank_to_rank(table: ColumnTable) -> Chart | None:
    """Make a map of the bytes that all-to-alls sent from rank to rank."""
    ranks, matrix = table.facts.get("ranks") or [], table.facts.get("matrix_bytes") or []
    if not matrix or len(ranks) > MAX_RANKS:
        return None
    return {
        "kind": "heat",
        "unit": "bytes",
        "title": "Bytes of all-to-alls, from the rank of a row to that of a column",
        "corner": "from, to rank",
        "columns": [f"{rank}" for rank in ranks],
        "rows": [f"rank {rank}" for rank in ranks],
        "values": [[value or 0 for value in row] for row in matrix],
    }


def collective_waits(table: ColumnTable) -> Chart | None:
    """Make a map of the waits of each rank in the collectives with the longest waits, by time."""
    ranks = [rank for rank in table.facts.get("ranks") or [] if rank is not None][:MAX_RANKS]
    if len(ranks) < 2 or not table.num_rows:
        return None
    longest = np.ma.filled(np.ma.asarray(table["longest_wait_ns"], dtype=np.float64), 0.0)
    longest = np.nan_to_num(longest)
    chosen = np.sort(np.argsort(-longest, kind="stable")[:MAX_MEETINGS])
    chosen = chosen[longest[chosen] > 0]
    if not len(chosen):
        return None
    few = table.take(chosen)
    rows, values = [], []
    for name, step, members, waits in zip(
        *(few.to_list(key) for key in ("name", "step", "ranks", "wait_ns")), strict=True
    ):
        by_rank = dict(zip(members or [], waits or [], strict=False))
        rows.append(one_line(f"{name} · {step}" if step else str(name), 60))
        values.append([by_rank.get(rank) for rank in ranks])
    most = table.num_rows > len(chosen)
    return {
        "kind": "heat",
        "unit": "ns",
        "title": f"How long each rank waits{': the longest waits, by time' if most else ''}",
        "corner": "rank",
        "columns": [f"{rank}" for rank in ranks],
        "rows": rows,
        "values": values,
    }


def steps(table: ColumnTable, origin_ns: int) -> Chart | None:
    """Make a bar of each step: its GPU time by class, its idle time above."""
    if table.num_rows < 2:
        return None
    few = table.take(slice(0, MAX_STEPS))
    keys = ("compute_ns", "exposed_communication_ns", "exposed_memcpy_ns")
    parts = [np.nan_to_num(np.ma.filled(np.ma.asarray(few[key]), 0)).tolist() for key in keys]
    return {
        "kind": "steps",
        "names": [one_line(name or "", 80) for name in few.to_list("name")],
        "at": (np.asarray(few["start_ns"], np.int64) - origin_ns).tolist(),
        "ns": few.to_list("duration_ns"),
        "compute": parts[0],
        "communication": parts[1],
        "memcpy": parts[2],
        "outlier": [bool(v) for v in few.to_list("outlier")],
        "median": (table.facts.get("jitter") or {}).get("median_ns"),
        "left": table.num_rows - few.num_rows,
        "legend": [
            *((part, format_part(part)) for part in ("compute", "communication", "memcpy")),
            ("step-idle", "GPU idle"),
        ],
    }


# The color in the style sheet of each role of a kernel in a layer; others are unknown.
_ROLE_FILLS = {
    role: f"role-{number}"
    for number, roles in enumerate(
        (
            ("attention", "kv_write", "rope"),
            ("qkv", "attention_output", "gate_up", "down", "lm_head", "product"),
            ("experts_up", "experts_down", "experts"),
            ("norm", "quantize", "activation"),
            ("dispatch", "combine", "all_reduce", "communication"),
            ("router", "sampling", "metadata", "embedding"),
        )
    )
    for role in roles
} | {"bubble": "host_wait", "gap": "launch_latency"}
_PHASE_FILLS = {
    "decode": "compute",
    "prefill": "memcpy",
    "mixed": "device_memcpy",
    "speculative": "communication",
    "diffusion": "compute",
    "idle": "unknown",
}
MAX_CELLS = 40_000  # parts of iterations by layer and role


def iterations(table: ColumnTable, rank: RankTrace) -> Chart | None:
    """Make a strip of iterations of a serving engine. Each has its bubble by what the host did, and
    its layers as rows of roles, as many as there is room for; and a token, in parts of its time."""
    from torchtraceap.tables.serving.bubbles import bubbles_of
    from torchtraceap.tables.serving.iterations import served_iterations
    from torchtraceap.tables.serving.parts import BUBBLE, iteration_parts

    if not table.num_rows:
        return None
    few = table.take(slice(0, MAX_STEPS))
    numbers, phases = few.to_list("index"), few.to_list("phase")
    lengths = few.to_list("length_ns")
    parts, served = iteration_parts(rank), served_iterations(rank)
    bounds = np.searchsorted(parts.iteration, np.arange(len(served) + 1)).tolist()
    of_bubble: dict[int, dict[str, int]] = {}
    for each in bubbles_of(rank, served):
        causes = of_bubble.setdefault(each.iteration, {})
        for cause, ns in each.causes.items():
            causes[cause] = causes.get(cause, 0) + ns
    texts = list(parts.role.texts)
    details: list[Any] = []
    waits: dict[int, int] = {}
    cells = 0
    for number in numbers:
        begin, end = bounds[number], bounds[number + 1]
        cells += end - begin
        if begin == end or cells > MAX_CELLS:
            details.append(None)
            continue
        rows: dict[int, list[tuple[int, int]]] = {}
        for layer, code, ns in zip(
            parts.layer[begin:end].tolist(),
            parts.role.codes[begin:end].tolist(),
            parts.ns[begin:end].tolist(),
            strict=True,
        ):
            if texts[code] == BUBBLE:
                waits[number] = ns
            else:
                rows.setdefault(layer, []).append((code, ns))
        bubble = [(format_part(cause), ns) for cause, ns in of_bubble.get(number, {}).items()]
        details.append({"bubble": bubble, "rows": [[layer, of] for layer, of in rows.items()]})
    return {
        "kind": "iterations",
        "at": (np.asarray(few["start_ns"], np.int64) - rank.tree.profiled[0]).tolist(),
        "host": few.to_list("duration_ns"),
        "number": numbers,
        "ns": lengths,
        "phase": [phase or "" for phase in phases],
        "fill": [_PHASE_FILLS.get(phase or "", "unknown") for phase in phases],
        "requests": few.to_list("requests"),
        "roles": [(_ROLE_FILLS.get(text, "unknown"), text.replace("_", " ")) for text in texts],
        "details": details,
        "token": _token(few, details, texts, waits),
        "left": table.num_rows - few.num_rows,
    }


def _token(
    table: ColumnTable, details: Sequence[Any], texts: Sequence[str], waits: Mapping[int, int]
) -> Chart | None:
    """Divide the time of a token into parts that sum to it: that of the iteration of decode (else
    of any that gives tokens) with the median length."""
    given = list(
        zip(
            table.to_list("length_ns"), table.to_list("tokens_out"), details,
            table.to_list("phase"), table.to_list("index"), strict=True,
        )
    )  # fmt: skip
    usable = [each for each in given if each[1] and each[2] and each[0]]
    usable = [each for each in usable if each[3] == "decode"] or usable
    if not usable:
        return None
    usable.sort(key=lambda each: each[0])
    length, tokens, detail, phase, number = usable[(len(usable) - 1) // 2]
    sums = {"bubble": waits.get(number, 0)}
    for _, row in detail["rows"]:
        for code, ns in row:
            sums[texts[code]] = sums.get(texts[code], 0) + ns
    # Ends of parts are rounded, not parts: these sum to the token exactly.
    before = ended = 0
    parts = []
    for role, ns in sorted(sums.items(), key=lambda item: -item[1]):
        ended += ns
        end_ns = round(ended / tokens)
        fill = _ROLE_FILLS.get(role, "unknown")
        parts.append((fill, role.replace("_", " "), end_ns - before))
        before = end_ns
    title = (
        f"One token: an iteration of {phase or 'the engine'} ({number}, the median) "
        f"over the {tokens} tokens that it gives"
    )
    return bars([("", parts, round(length / tokens))], unit="ns", title=title)


def roofline(table: ColumnTable, rank: RankTrace) -> Chart | None:
    """Plot operators by intensity and rate, below the roofs that apply to them.

    A point is `[row, intensity in FLOP/byte, TFLOP/s, share of the GPU's busy time]`; `row` is its
    place in the table.
    """
    keys = ("intensity", "tflops", "busy_share")
    columns = [np.nan_to_num(np.asarray(table[key], dtype=np.float64)) for key in keys]
    drawn = np.flatnonzero((columns[0] > 0) & (columns[1] > 0))
    # Points with hardly any time would stretch the axes and hide the rest.
    large = drawn[columns[2][drawn] >= LEAST_SHARE]
    drawn = large if len(large) else drawn
    drawn = drawn[np.argsort(-columns[2][drawn], kind="stable")[:MAX_POINTS]]
    if not len(drawn):
        return None
    facts = table.facts
    used = [name for name in dict.fromkeys(table.to_list("peak")) if name]
    roofs = []  # TFLOP/s of peaks such as "bf16 matrix"
    for name in used:
        dtype, _, unit = name.partition(" ")
        rate = (facts.get(f"{unit}_tflops") or {}).get(dtype)
        if rate is not None:
            roofs.append((name, float(rate)))
    device = ", ".join(sorted({device.name for device in rank.table.devices if device.name}))
    points = [[int(row), *(float(f"{c[row]:.5g}") for c in columns)] for row in drawn]
    return {
        "kind": "roofline",
        "device": one_line(str(facts.get("device") or device or ""), 80),
        "known": bool(roofs) and facts.get("bandwidth_tbps") is not None,
        "bandwidth": facts.get("bandwidth_tbps"),
        "roofs": sorted(roofs, key=lambda roof: -roof[1]),
        "points": points,
    }


def waterfall(table: ColumnTable, fills: Sequence[str]) -> Chart:
    """Make a waterfall of the largest changes; the rest closes the sum exactly.

    Args:
        table: A table of `ttap.diff`; its `delta_ns` sum to the fact `difference_ns`.
        fills: The fill of each row.
    """
    deltas = np.asarray(table["delta_ns"], dtype=np.int64)
    largest = np.argsort(-np.abs(deltas), kind="stable")
    largest = largest[deltas[largest] != 0]
    shown = largest[: MAX_DELTAS + (len(largest) == MAX_DELTAS + 1)]
    names = table.to_list("title" if "title" in table.columns else "name")
    rows = [[one_line(str(names[i]), 200), int(deltas[i]), fills[i]] for i in shown.tolist()]
    rest = int(deltas.sum()) - sum(row[1] for row in rows)
    left = len(largest) - len(shown)
    if left:
        rows.append([f"everything else ({left:,} rows)", rest, "unknown"])
    facts = table.facts
    return {
        "kind": "waterfall",
        "before": facts["before_step_ns"],
        "after": facts["after_step_ns"],
        "rows": rows,
    }


def stack_flame(table: ColumnTable, part: RankTrace, most: int) -> Chart:
    """Make a flame graph of `trace.stacks()`, of at most `most` stacks."""
    order = np.argsort(table["id"], kind="stable")
    few = table.take(order)
    rows = np.ma.filled(few["first_row"], 0)
    classes = np.where(np.ma.getmaskarray(few["first_row"]), 0, part.tree.gpu_class[rows])
    names, kinds = few.to_list("name"), few.to_list("kind")
    fills = []
    for name, kind, gpu_class in zip(names, kinds, classes.tolist(), strict=True):
        if kind is None:
            fills.append("thread")
        elif kind in _API_KINDS:
            fills.append("call")
        else:
            fills.append(_GPU_FILLS[gpu_class] or _hue(name or ""))
    parents = np.ma.filled(few["parent_id"], -1)
    what = "GPU time" if table.facts["by"] == "gpu" else "host time"
    counts = few.to_list("count")
    return _flame(what, names, parents, few["self_ns"], few["total_ns"], counts, fills, most)


def module_flame(table: ColumnTable, most: int) -> Chart | None:
    """Make a flame graph of `trace.modules()`, of at most `most` modules: by GPU time, or by host
    time where there is none."""
    on_gpu = bool(table["own_gpu_ns"].any())
    own = table["own_gpu_ns" if on_gpu else "self_host_ns"]
    parents = np.ma.filled(table["parent_id"], -1)
    below = own.tolist()
    for row in range(len(below) - 1, -1, -1):  # children come after their parents
        if parents[row] >= 0:
            below[parents[row]] = clamp(below[parents[row]] + below[row])
    if not any(below):
        return None
    names, counts = table.to_list("name"), table.to_list("calls")
    kinds = table.to_list("type")
    fills = [_hue(kind or name or "") for kind, name in zip(kinds, names, strict=True)]
    what = "GPU time" if on_gpu else "host time"
    return _flame(what, names, parents, own, np.array(below), counts, fills, most)


_GPU_FILLS = ("", "compute", "communication", "memcpy")
_API_KINDS = frozenset(
    _core.kind_names()[int(kind)] for kind in (_core.EventKind.RUNTIME, _core.EventKind.DRIVER)
)


def _hue(name: str) -> str:
    return str(zlib.crc32(name.encode("utf-8", "surrogatepass")) % HUES)


def _flame(
    what: str,
    names: Sequence[str | None],
    parents: Array,
    own: Array,
    below: Array,
    counts: Sequence[int | None],
    fills: Sequence[str],
    most: int,
) -> Chart:
    """Make a flame graph of the nodes with the most time, whose parents have no less."""
    chosen = np.argsort(-below, kind="stable")[:most]
    chosen = np.sort(chosen[below[chosen] > 0])
    place = np.full(len(below) + 1, -1, dtype=np.int64)
    place[chosen] = np.arange(len(chosen))
    few = chosen.tolist()
    texts: dict[str, int] = {}
    codes = [texts.setdefault(one_line(names[i] or "(no name)", MAX_NAME), len(texts)) for i in few]
    return {
        "kind": "flame",
        "what": what,
        "names": list(texts),
        "name": codes,
        "parent": place[parents[chosen]].tolist(),
        "own": own[chosen].tolist(),
        "below": below[chosen].tolist(),
        "count": [counts[i] for i in few],
        "fill": [fills[i] for i in few],
        "left": int((below > 0).sum()) - len(few),
    }
