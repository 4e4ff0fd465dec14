"""`build_serving`: where the time of one output token goes in the trace of a serving engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.columns import encode_texts
from torchtraceap.core.formatting import format_ns, format_percent, pluralize
from torchtraceap.core.intervals import covered_before, union
from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import Renderable
from torchtraceap.core.results import PHASES, Result
from torchtraceap.core.sums import sum_by_index, total
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.tables.catalog import Option, PageView, TableSpec, check_choice
from torchtraceap.tables.gpu.gpu_events import GpuEvents, masked_integers
from torchtraceap.tables.matching import rank_collectives
from torchtraceap.tables.serving.attribution import Attribution, attribute
from torchtraceap.tables.serving.bubbles import build_bubbles
from torchtraceap.tables.serving.iterations import (
    ServedIterations,
    batch_of,
    busy_intervals,
    served_iterations,
)
from torchtraceap.tables.serving.roles import ROLES
from torchtraceap.tables.steps.iterations import is_served
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "TABLE",
    "VIEWS",
    "ServedTime",
    "Serving",
    "SteadyRun",
    "build_serving",
    "build_serving_table",
    "served_time",
]

VIEWS = ("phases", "iterations", "layers", "bubbles")
_STEADY_SHARE = 0.9
"""Share of the peak batch that an iteration of the steady state has at least."""


@dataclass(frozen=True, slots=True)
class ServedTime(Result):
    """What an iteration of one phase takes, and what that consists of; figures are medians."""

    phase: str | None
    iteration_ns: int
    requests: int | None
    time_per_output_token_ns: int | None
    layers: int | None
    """Layers of the model; None where none were found."""
    layer_ns: int | None
    """GPU time of one of them, their mean."""
    communication_share: float | None
    """Share of the iteration; None where no communication is recorded."""
    wait_share: float | None
    """Share of the iteration in which communication waits for other ranks; None where most of it is
    not split into wait and transfer."""
    is_exchange: bool
    """Most of the communication takes tokens to their experts and back."""
    bubble_share: float | None
    """Share of the iteration in which the GPU waits for it to begin; None of a single one."""
    operators: dict[str, float]
    """Share of the GPU time of which an operator is known, by evidence."""

    @property
    def operators_line(self) -> str:
        """How much of the GPU time has an operator, and how that is known."""
        share = sum(self.operators.values())
        parts = sorted(self.operators.items(), key=lambda each: -each[1])
        kinds = ", ".join(f"{name} {format_percent(each)}" for name, each in parts if each > 0)
        more = "" if 2 * share >= 1 else "; --capture or --eager of `serving` may tell more"
        if not kinds:
            return f"operator known for no GPU time{more}"
        return f"operator known for {format_percent(share)} of GPU time: {kinds}{more}"

    def __str__(self) -> str:
        """Return it as one line, without what is not known."""
        first = [f"{self.phase or 'serving'}: {format_ns(self.iteration_ns)}/iteration"]
        if self.requests is not None:
            first.append(pluralize(self.requests, "request"))
        if self.time_per_output_token_ns is not None:
            first.append(f"{format_ns(self.time_per_output_token_ns)} a token")
        parts = [", ".join(first)]
        if self.layers and self.layer_ns is not None:
            parts.append(f"{pluralize(self.layers, 'layer')} x {format_ns(self.layer_ns)}")
        if self.communication_share is not None:
            kind = "exchange" if self.is_exchange else "communication"
            said = f"{kind} {format_percent(self.communication_share)}"
            waits = "" if self.wait_share is None else f" (wait {format_percent(self.wait_share)})"
            parts.append(said + waits)
        if self.bubble_share is not None:
            parts.append(f"bubble {format_percent(self.bubble_share)}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class SteadyRun(Result):
    """The steady state: the longest run of iterations with a batch near its peak."""

    first: int
    """`index` of its first iteration."""
    last: int
    iterations: int
    peak_batch: int
    """Most requests of an iteration."""
    share: float
    """Share of the time of the iterations that it was chosen of."""

    def __str__(self) -> str:
        return (
            f"steady state: {pluralize(self.iterations, 'iteration')} "
            f"({self.first} to {self.last}) of at most {pluralize(self.peak_batch, 'request')}, "
            f"{format_percent(self.share)} of the time"
        )


@dataclass(frozen=True, slots=True)
class Serving(Renderable):
    """The iterations of a serving engine, and what their time consists of."""

    engine: str | None
    """vllm, sglang, atom, xdit or tensorrt-llm; None where no annotation names one."""
    source: str
    """annotations, profiler steps, pattern, graphs or trace: what tells the iterations apart."""
    iterations: ColumnTable
    phases: ColumnTable
    layers: ColumnTable
    """GPU time of a typical iteration by layer and role; facts: `count`, `period`,
    `covered_share`, `phase`."""
    bubbles: ColumnTable
    attribution: dict[str, float]
    """Share of GPU time by evidence."""
    operators: dict[str, float]
    """The same of GPU time of which an operator is known."""
    steady: SteadyRun | None = None
    """None unless the tables are of the steady state alone."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `torchtraceap serving --json`."""
        bubbles = self.bubbles.to_dict()
        starts = bubbles["columns"].index("start_ns")
        lengths = bubbles["columns"].index("duration_ns")
        causes = bubbles["columns"].index("causes")
        return {
            "schema": "torchtraceap.serving/1",
            "engine": self.engine,
            "source": self.source,
            "iterations": _records(self.iterations),
            "phases": _records(self.phases),
            "layers": {**self.layers.facts, "rows": _records(self.layers)},
            "bubbles": [
                {
                    "start_ns": row[starts],
                    "end_ns": row[starts] + row[lengths],
                    "causes": row[causes],
                }
                for row in bubbles["rows"]
            ],
            "attribution": self.attribution,
            "operators": self.operators,
            "steady": self.steady.to_dict() if self.steady else None,
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """Return the JSON text of `to_dict()`, ASCII only."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)

    @property
    def time(self) -> ServedTime | None:
        """What an iteration of decode takes, else one of the phase with most; None without any."""
        rows = _records(self.phases)
        if not rows:
            return None
        row = max(rows, key=lambda each: (each["phase"] == "decode", each["iterations"]))
        ns_of_role: dict[str, int] = {}
        facts, in_layers = self.layers.facts, 0
        for each in _records(self.layers) if facts["phase"] == row["phase"] else ():
            ns_of_role[each["role"]] = ns_of_role.get(each["role"], 0) + each["gpu_ns"]
            in_layers += each["gpu_ns"] if each["layer"] is not None else 0
        layers = facts["count"] if facts["phase"] == row["phase"] else None
        length_ns = row["median_ns"] or 1
        communication_ns = row["communication_ns"]
        exchange = sum(ns_of_role.get(role, 0) for role in ("dispatch", "combine"))
        return ServedTime(
            phase=row["phase"],
            iteration_ns=row["median_ns"],
            requests=row["requests"],
            time_per_output_token_ns=row["time_per_output_token_ns"],
            layers=layers,
            layer_ns=round(in_layers / layers) if layers else None,
            communication_share=communication_ns / length_ns if communication_ns else None,
            wait_share=None if row["wait_ns"] is None else row["wait_ns"] / length_ns,
            is_exchange=2 * exchange > communication_ns > 0,
            bubble_share=row["bubble_ns"] / length_ns if row["iterations"] > 1 else None,
            operators=self.operators,
        )


def _records(table: ColumnTable) -> list[dict[str, Any]]:
    document = table.to_dict()
    return [dict(zip(document["columns"], row, strict=True)) for row in document["rows"]]


def build_serving(
    trace: Ranks,
    *,
    rank: int | None = None,
    phase: str | None = None,
    steady: bool = False,
    capture: PathLike | None = None,
    eager: PathLike | None = None,
) -> Serving:
    """Describe the iterations of one rank.

    Args:
        trace: One or several ranks.
        rank: The rank; by default the first.
        phase: One of `PHASES`: leave out the other iterations.
        steady: Of those leave out all but the steady state.
        capture, eager: As of `attribute`.

    Raises:
        OptionError: There is no such phase or rank, or what `attribute` raises.
        ParseError: `eager` is no trace.
    """
    if phase is not None and phase not in PHASES:
        raise OptionError(f"no phase {phase!r} (phases: {', '.join(PHASES)})")
    part = trace.rank(rank)
    serving = _describe(trace, part, phase, steady, attribute(part, capture, eager))
    if rank is None and len(trace.ranks) > 1:
        said = f"Of {len(trace.ranks)} ranks this is rank {part.rank}; `rank` takes others."
        return replace(serving, notes=(said, *serving.notes))
    return serving


def build_serving_table(
    part: RankTrace, *, by: str = "phases", phase: str | None = None, steady: bool = False
) -> ColumnTable:
    """Return one of the tables of `Serving` with its notes.

    Args:
        part: The rank.
        by: One of `VIEWS`.
        phase: As in `build_serving`.
        steady: As in `build_serving`.

    Raises:
        OptionError: There is no such view.
    """
    check_choice("by", by, VIEWS)
    serving = _describe(Ranks([part]), part, phase, steady, attribute(part))
    table: ColumnTable = getattr(serving, by)
    table.facts = {**table.facts, "engine": serving.engine, "told_by": serving.source}
    table.notes = (*table.notes, *serving.notes)
    return table


def _describe(
    trace: Ranks, part: RankTrace, phase: str | None, steady: bool, attribution: Attribution
) -> Serving:
    iterations = served_iterations(part)
    lengths = _Lengths(trace, part, iterations)
    chosen = np.array(
        [number for number, each in enumerate(iterations.phase) if phase in (None, each)],
        dtype=np.int64,
    )
    run = _steady_run(iterations, lengths, chosen) if steady else None
    if run:
        chosen = chosen[(chosen >= run.first) & (chosen <= run.last)]
    unknown = ["No batch is recorded that tells a steady state."] if steady and not run else []
    table = _iterations_table(part, iterations, lengths)
    duration_ns = GpuEvents.of(part).duration_ns
    return Serving(
        engine=iterations.engine,
        source=iterations.source,
        iterations=table.take(chosen),
        phases=_phases_table(iterations, lengths, chosen),
        layers=_layers_table(part, iterations, attribution, chosen),
        bubbles=_bubbles_table(part, iterations, chosen),
        attribution=attribution.shares(duration_ns),
        operators=attribution.shares(duration_ns, of_operators=True),
        steady=run,
        notes=(*attribution.refused, *unknown, *_notes(iterations)),
    )


def _steady_run(iterations: ServedIterations, lengths: _Lengths, chosen: Array) -> SteadyRun | None:
    """Return the longest run of the chosen iterations in which the batch is at least
    `_STEADY_SHARE` of its peak; of equal ones that which takes longest. None without batches."""
    marks = [iterations.marks[number] for number in chosen.tolist()]
    batches = [mark.requests if mark and mark.requests else 0 for mark in marks]
    peak = max(batches, default=0)
    if not peak:
        return None
    inside = np.array([batch >= _STEADY_SHARE * peak for batch in batches], dtype=bool)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], inside.astype(np.int8), [0]])))
    ns = lengths.ns[chosen]
    runs = [(end - begin, int(ns[begin:end].sum()), begin) for begin, end in edges.reshape(-1, 2)]
    count, run_ns, begin = max(runs)
    return SteadyRun(
        first=int(chosen[begin]),
        last=int(chosen[begin + count - 1]),
        iterations=int(count),
        peak_batch=peak,
        share=run_ns / max(1, int(ns.sum())),
    )


def served_time(trace: Ranks) -> ServedTime | None:
    """Return what an iteration of the first rank takes; None unless it is one of an engine that
    serves a model, by its annotations or its frames."""
    first = trace.ranks[0]
    if not is_served(first):
        return None
    return first.cached("served time", lambda: build_serving(trace, rank=first.rank).time)


def _notes(iterations: ServedIterations) -> list[str]:
    said = {
        "annotations": "",
        "profiler steps": "Iterations are the steps of the profiler; the engine marked none.",
        "pattern": "Iterations were inferred from what the main thread repeats.",
        "graphs": "Iterations were inferred from the replays of CUDA graphs.",
        "trace": "No iteration is marked and nothing repeats: the whole trace counts as one.",
    }[iterations.source]
    return [said] if said else []


def _waits(trace: Ranks, part: RankTrace, iterations: ServedIterations) -> tuple[Array, Array]:
    """Return how long communication of each iteration waits for other ranks, and how long what is
    not split into wait and transfer takes, int64 `[iterations]` each."""
    tree = part.tree
    if not (tree.gpu_class[tree.gpu_rows] == int(_core.GpuClass.COMMUNICATION)).any():
        none = np.zeros(len(iterations), dtype=np.int64)
        return none, none
    core = rank_collectives(trace)
    own = np.flatnonzero(core.rank == trace.ranks.index(part))
    event = np.searchsorted(tree.gpu_rows, core.row[own]).clip(0, len(tree.gpu_rows) - 1)
    own, event = (each[tree.gpu_rows[event] == core.row[own]] for each in (own, event))
    number = iterations.of_event[event]
    own, number = own[number >= 0], number[number >= 0]
    split = core.split[core.match[own]]
    duration = core.end_ns[own] - core.start_ns[own]
    return (
        sum_by_index(number[split], core.wait_ns[own][split], len(iterations)),
        sum_by_index(number[~split], duration[~split], len(iterations)),
    )


class _Lengths:
    """How long each iteration takes: from the end of the GPU work of the one before to that of its
    own, so that lengths sum to the time that passes and is judged; on the host where nothing ran on
    a GPU."""

    def __init__(self, trace: Ranks, part: RankTrace, iterations: ServedIterations) -> None:
        tree = part.tree
        self.host_ns = iterations.end_ns - iterations.start_ns
        self.has_gpu = iterations.has_gpu
        work_ns = iterations.work_ns
        begin_ns = work_ns[:, 0]
        left_out = union([tree.not_judged, tree.missing])
        judged_ns = work_ns[:, 1] - begin_ns - _covered(left_out, work_ns)
        self.ns = np.where(self.has_gpu, judged_ns, self.host_ns)
        busy = busy_intervals(part)
        self.busy_ns = _covered(busy, work_ns)
        gap = np.stack([begin_ns, np.maximum(begin_ns, iterations.gpu_start_ns)], axis=1)
        gap[~self.has_gpu] = 0
        self.bubble_ns = gap[:, 1] - gap[:, 0] - _covered(union([busy, left_out]), gap)
        self.wait_ns, self.unsplit_ns = _waits(trace, part, iterations)
        inside = iterations.of_event >= 0
        communication = inside & (
            tree.gpu_class[tree.gpu_rows] == int(_core.GpuClass.COMMUNICATION)
        )
        rows = tree.gpu_rows[communication]
        starts, lasting = part.table.ts_ns[rows], part.table.dur_ns[rows]
        lasting = lasting - _covered(left_out, np.stack([starts, starts + lasting], axis=1))
        self.communication_ns = sum_by_index(
            iterations.of_event[communication], lasting, len(iterations)
        )


def _covered(intervals: Array, spans: Array) -> Array:
    """Return how much of each of int64 `[n, 2]` lies in intervals, int64 `[n]`."""
    before = covered_before(intervals, spans)
    found: Array = before[:, 1] - before[:, 0]
    return found


def _tokens_in(mark: _core.IterationMark | None) -> int | None:
    """Tokens of prompts that the iteration reads."""
    if mark is None:
        return None
    return 0 if mark.prefill.requests == 0 else mark.prefill.tokens


def _tokens_out(mark: _core.IterationMark | None, phase: str | None) -> int | None:
    """Tokens that requests in generation get, one each. How many drafted ones are accepted is not
    recorded, and neither is which prompts are complete."""
    if mark is None or phase in (None, "speculative", "diffusion"):
        return None
    return mark.decode.requests


def _iterations_table(
    part: RankTrace, iterations: ServedIterations, lengths: _Lengths
) -> ColumnTable:
    marks = iterations.marks
    gpu_start = np.ma.array(iterations.gpu_start_ns, mask=~lengths.has_gpu)
    gpu_ns = np.ma.array(iterations.gpu_end_ns - iterations.gpu_start_ns, mask=~lengths.has_gpu)
    pairs = list(zip(marks, iterations.phase, strict=True))
    return ColumnTable(
        {
            "index": np.arange(len(iterations), dtype=np.int64),
            "phase": encode_texts(iterations.phase),
            "start_ns": iterations.start_ns,
            "duration_ns": lengths.host_ns,
            "gpu_start_ns": gpu_start,
            "gpu_duration_ns": gpu_ns,
            "length_ns": lengths.ns,
            "requests": masked_integers([mark.requests if mark else None for mark in marks]),
            "tokens_in": masked_integers([_tokens_in(mark) for mark in marks]),
            "tokens_out": masked_integers([_tokens_out(*pair) for pair in pairs]),
            "batch": masked_integers([batch_of(mark) for mark in marks]),
            "graph_batch": masked_integers([mark.graph_batch if mark else None for mark in marks]),
            "bubble_ns": lengths.bubble_ns,
            "busy_ns": lengths.busy_ns,
            "communication_ns": lengths.communication_ns,
        },
        shown=(
            "index", "phase", "length_ns", "duration_ns", "gpu_duration_ns", "requests",
            "tokens_in", "tokens_out", "bubble_ns", "communication_ns",
        ),
    )  # fmt: skip


def _phases_table(iterations: ServedIterations, lengths: _Lengths, chosen: Array) -> ColumnTable:
    of_phase: dict[str | None, list[int]] = {}
    for number in chosen.tolist():
        of_phase.setdefault(iterations.phase[number], []).append(number)
    names = sorted(of_phase, key=lambda phase: -sum(int(lengths.ns[i]) for i in of_phase[phase]))
    rows = [_phase_row(name, np.array(of_phase[name]), iterations, lengths) for name in names]
    columns: dict[str, Any] = {"phase": encode_texts(names)}
    for key in ("iterations", "median_ns", "p95_ns", "requests"):
        columns[key] = masked_integers([row[key] for row in rows])
    columns["tokens_per_s"] = np.array([row["tokens_per_s"] for row in rows], dtype=np.float64)
    columns["time_per_output_token_ns"] = masked_integers(
        [row["time_per_output_token_ns"] for row in rows]
    )
    columns["gpu_busy"] = np.array([row["gpu_busy"] for row in rows], dtype=np.float64)
    for key in ("host_ns", "communication_ns", "wait_ns", "bubble_ns"):
        columns[key] = masked_integers([row[key] for row in rows])
    return ColumnTable(columns)


def _phase_row(
    phase: str | None, places: Array, iterations: ServedIterations, lengths: _Lengths
) -> dict[str, Any]:
    ns = lengths.ns[places]
    marks = [iterations.marks[i] for i in places.tolist()]
    tokens_in = [_tokens_in(mark) for mark in marks]
    tokens_out = [_tokens_out(mark, phase) for mark in marks]
    handled = {"prefill": [tokens_in], "mixed": [tokens_in, tokens_out]}.get(
        phase or "", [tokens_out]
    )
    flat = [count for counts in handled for count in counts]
    total_s = total(ns) / 1e9
    known = total_s > 0 and all(count is not None for count in flat)
    out = sum(count or 0 for count in tokens_out)
    requests = [mark.requests for mark in marks if mark and mark.requests is not None]
    whole = None not in tokens_out and out > 0
    return {
        "iterations": len(places),
        "median_ns": round(float(np.median(ns))),
        "p95_ns": round(float(np.quantile(ns, 0.95))),
        "requests": round(float(np.median(requests))) if requests else None,
        "tokens_per_s": sum(count or 0 for count in flat) / total_s if known else float("nan"),
        "time_per_output_token_ns": round(total(ns) / out) if whole else None,
        "gpu_busy": total(lengths.busy_ns[places]) / max(1, total(ns)),
        "host_ns": round(float(np.median(lengths.host_ns[places]))),
        "communication_ns": round(float(np.median(lengths.communication_ns[places]))),
        "wait_ns": _median_wait(lengths, places),
        "bubble_ns": round(float(np.median(lengths.bubble_ns[places]))),
    }


def _median_wait(lengths: _Lengths, places: Array) -> int | None:
    """Return the median wait of communication; None where most of it is not split."""
    communication = total(lengths.communication_ns[places])
    if not communication or 2 * total(lengths.unsplit_ns[places]) > communication:
        return None
    return round(float(np.median(lengths.wait_ns[places])))


def _layers_table(
    part: RankTrace, iterations: ServedIterations, attribution: Attribution, chosen: Array
) -> ColumnTable:
    """GPU time by layer and role: medians over the iterations in which layers were found, of the
    phase that takes most time."""
    duration = GpuEvents.of(part).duration_ns
    of_event = iterations.of_event
    has_layers = np.zeros(len(iterations), dtype=bool)
    has_layers[of_event[(of_event >= 0) & (attribution.layer >= 0)]] = True
    candidates = [number for number in chosen.tolist() if has_layers[number]]
    phase = _phase_with_most_time([iterations.phase[i] for i in candidates], iterations, candidates)
    numbers = np.array([i for i in candidates if iterations.phase[i] == phase], dtype=np.int64)
    used = np.isin(of_event, numbers) if len(numbers) else np.zeros(len(of_event), dtype=bool)
    layer, role = attribution.layer[used], attribution.role.codes[used].astype(np.int64)
    role = np.where(role >= 0, role, ROLES.index("other"))
    # One row per layer and role; what lies outside of layers comes last.
    code = np.where(layer >= 0, layer, int(layer.max(initial=-1)) + 1) * len(ROLES) + role
    codes, cell = np.unique(code, return_inverse=True)
    iteration = np.searchsorted(numbers, of_event[used])
    ns = np.zeros((len(numbers), len(codes)), dtype=np.int64)
    count = np.zeros_like(ns)
    np.add.at(ns, (iteration, cell), duration[used])
    np.add.at(count, (iteration, cell), 1)
    layers = codes // len(ROLES)
    outside = layers > int(layer.max(initial=-1))
    whole_ns = total(duration[used])
    inside = layer[layer >= 0]
    sizes = np.unique(inside, return_counts=True)[1] // max(1, len(numbers))
    return ColumnTable(
        {
            "layer": np.ma.array(layers, mask=outside),
            "role": encode_texts(ROLES[i] for i in (codes % len(ROLES)).tolist()),
            "kernels": _medians(count),
            "gpu_ns": _medians(ns),
        },
        facts={
            "phase": phase,
            "count": len(sizes) or None,
            "period": int(np.median(sizes)) if len(sizes) else None,
            "covered_share": total(duration[used][layer >= 0]) / whole_ns if whole_ns else 0.0,
        },
    )


def _medians(values: Array) -> Array:
    if not values.size:
        return np.zeros(values.shape[1], dtype=np.int64)
    medians: Array = np.rint(np.median(values, axis=0)).astype(np.int64)
    return medians


def _phase_with_most_time(
    phases: Sequence[str | None], iterations: ServedIterations, numbers: Sequence[int]
) -> str | None:
    time: dict[str | None, int] = {}
    for phase, number in zip(phases, numbers, strict=True):
        span = int(iterations.gpu_end_ns[number] - iterations.gpu_start_ns[number])
        time[phase] = time.get(phase, 0) + span
    if "decode" in time:
        return "decode"
    return max(time, key=lambda phase: time[phase], default=None)


def _bubbles_table(part: RankTrace, iterations: ServedIterations, chosen: Array) -> ColumnTable:
    table = build_bubbles(part, iterations)
    return table.take(np.flatnonzero(np.isin(table["iteration"], chosen)))


TABLE = TableSpec(
    build=build_serving_table,
    views=VIEWS,
    first={
        "phases": ("phase", "median_ns", "iterations", "requests", "tokens_per_s"),
        "iterations": ("index", "phase", "length_ns", "requests", "bubble_ns"),
        "layers": ("layer", "role", "gpu_ns", "kernels"),
        "bubbles": ("iteration", "duration_ns", "start_ns"),
    },
    options=(
        Option(
            "steady",
            "--steady",
            "only the longest run of iterations with a batch near its peak",
            "flag",
            default=False,
        ),
    ),
    sql={f"serving_{view}": {"by": view} for view in VIEWS},
    page=tuple(
        PageView("serving", view, {"by": view})
        for view in ("iterations", "phases", "layers", "bubbles")
    ),
)
