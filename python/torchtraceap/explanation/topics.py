"""The topics of questions: words that lead to a topic, and the tables that answer it.

Note [Choice]: each word of a topic that a question holds adds its weight, in any form and once.
The topic with the most has the question, of equals the first; it needs `LEAST` or more, which one
word of its own gives, while words that other topics share support it. No question is known as a
whole. `ELSEWHERE` lists what a trace never holds, and what would be needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core.columns import TextCodes
from torchtraceap.core.formatting import format_part, plain_line
from torchtraceap.core.records import dataclass
from torchtraceap.explanation.segments import finding_of
from torchtraceap.explanation.table_answers import Asked, Filter, Measure, Ranking, tell_ranking
from torchtraceap.simulation.edits.base import EDITS
from torchtraceap.simulation.simulate import simulate
from torchtraceap.tables.summary import build_summary

if TYPE_CHECKING:
    from torchtraceap.core.table import ColumnTable

__all__ = ["ELSEWHERE", "NAMED", "OF_NAMES", "OF_STEPS", "TOPICS", "Topic", "topic_of"]

LEAST = 3
"""Least sum of weights of a topic that has the question."""
_MOST_CAUSES = 5
_MOST_STEP_CAUSES = 3

_OFTEN = r"often|frequent(ly)?|many times|most calls|most called|count"
_LONGEST = r"longest|single"
_MEAN = r"average|mean|typical(ly)?|per call"
_HOST = r"cpu|host|python|framework"


@dataclass(frozen=True, slots=True)
class Topic:
    """Something that a question can be about."""

    name: str
    words: Mapping[str, int]
    """Patterns of whole words, with their weights."""
    tell: Callable[[Asked], None] | Ranking
    types: Sequence[str] = ()
    """Findings that belong to it."""


def topic_of(asked: Asked) -> Topic | None:
    """Return what a question is about. See Note [Choice]."""
    weights = [
        sum(weight for words, weight in topic.words.items() if asked.asks(words))
        for topic in TOPICS
    ]
    best = max(range(len(weights)), key=weights.__getitem__)
    return TOPICS[best] if weights[best] >= LEAST else None


# ------------------------------------------------------------------------- the time as a whole


def _tell_idle(asked: Asked) -> None:
    """Answer with the causes of idle time, the largest first, and the leading finding."""
    found = asked.diagnosis
    if asked.step is not None:
        _tell_steps(asked)
        return
    asked.stand_on("diagnose PATH")
    if not sum(found.time_ns.values()) or found.computes_on != "gpu":
        asked.say(
            "The trace records no work of a GPU, so it does not say when one is idle: record with "
            "ProfilerActivity.CUDA."
        )
        return
    idle_ns = sum(found.idle_ns.values())
    idle = asked.cite("idle", "time_ns", idle_ns)
    asked.say(f"The GPU is idle for {idle}, {_of_profiled(asked, 'idle', idle_ns)}.")
    causes = sorted(((ns, name) for name, ns in found.idle_ns.items() if ns), reverse=True)
    for ns, name in causes[:_MOST_CAUSES]:
        cause = asked.cite(f"idle.{name}", "time_ns", ns)
        asked.say(f"- {format_part(name)}: {cause}, {_of_profiled(asked, f'idle.{name}', ns)}")
    if found.lead is not None and (finding := finding_of(found, found.lead.type)) is not None:
        asked.say_finding(finding)


def _of_profiled(asked: Asked, name: str, ns: int) -> str:
    profiled_ns = asked.diagnosis.profiled_ns or 1
    return f"{asked.cite(name, 'profiled_share', ns / profiled_ns)} of the profiled time"


def _tell_time(asked: Asked) -> None:
    """Answer with the parts of the profiled time."""
    found = asked.diagnosis
    asked.stand_on("diagnose PATH")
    if not any(found.time_ns.values()):
        asked.say(
            "The trace records no work of a GPU, and no operators that compute: record with "
            "ProfilerActivity.CUDA."
        )
        return
    if found.computes_on == "gpu":
        share = asked.cite("gpu", "busy_share", found.busy_share)
        asked.say(f"The GPU is busy for {share} of the profiled time.")
    for name, ns in sorted(found.time_ns.items(), key=lambda part: -part[1]):
        if ns:
            time = asked.cite(f"time.{name}", "time_ns", ns)
            asked.say(f"- {format_part(name)}: {time}, {_of_profiled(asked, f'time.{name}', ns)}")


def _tell_bound(asked: Asked) -> None:
    """Answer with what bounds the run, and what its critical path consists of."""
    bound = asked.diagnosis.bound_by.replace("_", " ")
    table = asked.table("critical-path", per_rank=False, by="cause")
    asked.say(
        "The trace does not tell what bounds the run."
        if bound == "unknown"
        else f"The run is bound by: {bound}. The critical path consists of:"
    )
    for place, row in enumerate(table.take(slice(0, _MOST_CAUSES)).records(), 1):
        of = f"critical-path.{place}"
        time = asked.cite(of, "time_ns", row["time_ns"])
        share = asked.cite(of, "time_share", row["time_share"])
        asked.say(f"- {row['cause'].replace('_', ' ')}: {time}, {share} of the path")


def _tell_problems(asked: Asked) -> None:
    """Answer with the findings in the order of the diagnosis."""
    found = asked.diagnosis
    asked.stand_on("diagnose PATH")
    if not found.findings:
        asked.say("Nothing that was checked costs a noteworthy part of the profiled time.")
    for finding in found.findings[: asked.most_rows]:
        asked.say_finding(finding)


def _tell_savings(asked: Asked) -> None:
    """Answer with the fixes of the plan and the step's time after each."""
    found = asked.diagnosis
    if not found.plan:
        _tell_problems(asked)
        return
    asked.stand_on("diagnose PATH")
    of_step = found.replay is not None and found.replay.per_step
    what = "a step" if of_step else "the profiled time"
    asked.say(f"Fixes in the order of the plan, each on top of those before, for {what}:")
    for place, fix in enumerate(found.plan, 1):
        gain = asked.cite(f"plan.{place}", "gain_ns", fix.gain_ns)
        after = asked.cite(f"plan.{place}", "total_ns", fix.total_ns_after)
        finding = finding_of(found, fix.type)
        title = finding.title if finding else fix.type
        asked.say(f"- {title} ({fix.edit}): saves {gain}, then {what} takes {after}")
    first = finding_of(found, found.plan[0].type)
    if first is not None:
        asked.say(f"Change: {first.fix}")


_EDIT_WORDS = {
    "loader_workers": r"(num |loader )?workers?|loader workers",
    "pin_memory": r"pin(s|ned|ning)?( memory)?",
    "cuda_graph": r"cuda ?graphs?|reduce overhead",
    "mixed_precision": r"mixed precision|amp|autocast|bf16|bfloat16|fp16|half precision|tf32",
    "fused_optimizer": r"fused? (the )?optimi[sz]er",
    "fuse_pointwise": r"fus(e|ed|ing) pointwise|fus(e|ing) elementwise",
    "channels_last": r"channels last",
    "zero_grad_to_none": r"set to none|zero grad",
    "remove_host_sync": r"(remov|avoid)\w* (the |all )?(host )?sync\w*|without syncs?",
    "overlap_collectives": r"overlap\w* (the )?(collectives|communication|all ?reduces?)",
    "merge_collectives": r"merg\w* (the )?(collectives|all ?reduces?)",
    "no_recompilation": r"(without|no) recompil\w*",
    "straggler_to_median": r"without (the )?straggler",
}
"""Words for edits of `simulate`; the words of its own name lead to each of them too."""
_IF = r"would|if|what if|were|help|with"


def _edit_of(asked: Asked) -> str | None:
    """Return the edit that a question names, with its number where it takes one."""
    for name, entry in EDITS.items():
        if entry.required:
            continue
        if asked.asks(_EDIT_WORDS.get(name, name.replace("_", " "))):
            choices = entry.value.split("|") if "|" in (entry.value or "") else []
            value = next((choice for choice in choices if asked.asks(choice.casefold())), None)
            if entry.value and not choices:
                number = re.search(r"\b\d{1,4}\b", asked.text)
                words = {"two": "2", "four": "4", "eight": "8", "sixteen": "16"}
                spelled = next((n for word, n in words.items() if asked.asks(word)), None)
                value = number[0] if number else spelled
            return f"{name}={value}" if value else name
    return None


def _tell_edit(asked: Asked) -> None:
    """Answer with the replay of the run with the fix that the question names."""
    edit = _edit_of(asked)
    if edit is None:
        _tell_savings(asked)
        return
    asked.stand_on(f"simulate PATH --edit {edit}")
    found = simulate(asked.diagnosis.trace, [edit])
    outcome, what = found.edits[0], "a step" if found.run.per_step else "the trace"
    if outcome.predicted_ns is None:
        asked.say(f"{edit}: this can't be predicted here: {plain_line(outcome.note, 300)}.")
        return
    of = f"simulate.{outcome.edit}"
    before = asked.cite(of, "measured_ns", found.measured_ns)
    after = asked.cite(of, "predicted_ns", outcome.predicted_ns)
    line = f"With {outcome.edit}, {what} takes {after} in place of {before}"
    if outcome.low_ns is not None and outcome.high_ns is not None:
        low = asked.cite(of, "low_ns", outcome.low_ns)
        high = asked.cite(of, "high_ns", outcome.high_ns)
        line += f", likely between {low} and {high}"
    within = found.measured_ns - outcome.predicted_ns <= (found.noise_ns or 0)
    asked.say(f"{line} (simulated{'; within the noise of the steps' if within else ''}).")


# ------------------------------------------------------------------------- parts of the time


def _tell_families(asked: Asked) -> None:
    """Answer with the GPU time of the kinds of work that the question names."""
    families = "|".join(family for words, family in _FAMILIES.items() if asked.asks(words))
    tell_ranking(
        asked,
        Ranking(
            "ops",
            "kinds of work of that name",
            "family",
            (
                Measure("exclusive_gpu_ns", "the most GPU time", "the least GPU time", sums=True),
                Measure("count", "the most calls", "the fewest calls", _OFTEN),
                Measure("self_host_ns", "the most host time", "the least host time", _HOST),
            ),
            (
                ("exclusive_gpu_ns", "{} on the GPU"),
                ("busy_share", "{} of the busy time"),
                ("count", "{} calls"),
            ),
            {"by": "category"},
            only=Filter("family", families),
            without="The trace has no operator or kernel of that kind.",
        ),
    )


_FAMILIES = {
    r"conv(s|olutions?)?|convolutional": "convolution",
    r"mat(rix )?(mul|mult)s?\w*|gemms?|linears?|matrix (products?|multipl\w+)": "gemm",
    r"attention|sdpa|flash": "attention",
    r"(batch|layer|group|rms)? ?norms?|normali[sz]ations?|batchnorm|layernorm": "normalization",
    r"pointwise|element ?wise": "elementwise",
    r"activations?|relu|gelu|silu": "activation",
    r"softmax": "softmax",
    r"embeddings?": "embedding",
    r"reductions?": "reduction",
    r"pooling|pool": "pooling",
    r"dropout": "dropout",
    r"loss (function|computation|kernel)s?|cross entropy": "cross_entropy|loss",
    r"quanti[sz]\w+": "quantization",
    r"triton": "triton",
    r"rope|rotary": "rope",
    r"moe|experts?": "moe|grouped_gemm",
}
"""Words for kinds of work, with patterns of the families of `ops --by category`."""


def _tell_precision(asked: Asked) -> None:
    """Answer with the GPU time of operators by the rate that bounds them, of those that a model
    covers."""
    table = asked.table("roofline", by="args")
    times: dict[str, int] = {}
    for peak, ns in zip(table.to_list("peak"), table.to_list("gpu_ns"), strict=True):
        if peak is not None and ns:
            times[peak] = times.get(peak, 0) + ns
    if not times:
        asked.say_notes(
            table,
            "The trace does not tell in which precision the GPU computes: that needs shapes and "
            "dtypes (record_shapes=True).",
        )
    else:
        asked.say("GPU time of the operators with a model, by the units that compute them:")
    for peak, ns in sorted(times.items(), key=lambda item: -item[1]):
        asked.say(f"- {peak}: {asked.cite(f'roofline.{peak}', 'gpu_ns', ns)}")


def _tell_phases(asked: Asked) -> None:
    """Answer with the GPU time of forward, backward, optimizer and the rest of a step."""
    table = asked.table("kernels", by="event")
    times = _sums(table, "phase", "exclusive_ns")
    if not times:
        asked.say_notes(
            table, "The trace does not tell phases of a step: it needs steps and operators."
        )
        return
    asked.say("GPU time by the phase of the step that launched the work:")
    for name, ns in sorted(times.items(), key=lambda item: -item[1]):
        asked.say(f"- {name}: {asked.cite(f'kernels.{name}', 'exclusive_ns', ns)}")


def _sums(table: ColumnTable, by: str, column: str) -> dict[str, int]:
    """Return the sums of a column by the texts of another one."""
    names = table.column(by)
    if not isinstance(names, TextCodes) or not table.num_rows:
        return {}
    known = names.codes >= 0
    sums = np.zeros(len(names.texts), dtype=np.int64)
    np.add.at(sums, names.codes[known], np.asarray(table[column])[known])
    return {text: int(ns) for text, ns in zip(names.texts, sums.tolist(), strict=True) if ns}


def _tell_memory(asked: Asked) -> None:
    """Answer with the peaks of the allocator and its calls."""
    table = asked.table("memory", by="allocator")
    facts = table.facts if isinstance(table.facts.get("peaks"), list) else {}
    peaks = [peak for peak in facts.get("peaks", ()) if isinstance(peak, dict)]
    if not peaks:
        asked.say(
            "The trace records no allocations: record with profile_memory=True for allocations "
            "and peaks, and a memory snapshot for what holds the memory (memory-timeline)."
        )
    for peak in peaks:
        device = plain_line(str(peak["device_type"]))
        of = f"memory.{device}"
        for column, text in (
            ("peak_allocated_bytes", "at most {} are allocated"),
            ("peak_reserved_bytes", "at most {} are reserved"),
            ("peak_growth_bytes", "memory grows by at most {} over its start"),
        ):
            if peak.get(column) is not None:
                asked.say(f"- {device}: {text.format(asked.cite(of, column, peak[column]))}")
    if peaks and facts.get("allocations") is not None:
        count = asked.cite("memory", "allocations", facts["allocations"])
        size = asked.cite("memory", "allocated_bytes", facts["allocated_bytes"])
        calls = asked.cite("memory", "calls", facts["calls"])
        asked.say(
            f"{count} allocations of {size} together; {calls} calls of the driver's allocator."
        )


# ------------------------------------------------------------------------- steps and ranks


def _tell_steps(asked: Asked) -> None:
    """Answer with the time of a step and how it varies, or with one step, or with the slowest."""
    table = asked.table("steps")
    if not table.num_rows:
        asked.say_notes(
            table,
            "The trace marks no steps: call prof.step() after each, or give the profiler a "
            "schedule.",
        )
        return
    names = table.to_list("name")
    step = asked.diagnosis.step
    if asked.step is not None:
        mine = [place for place, name in enumerate(names) if _ends_in(name, asked.step)]
        if not mine:
            first, last = plain_line(names[0] or ""), plain_line(names[-1] or "")
            asked.say(f"The trace has no such step; there are {first} to {last}.")
        for place in mine[:_MOST_CAUSES]:
            _tell_step(asked, table.take(slice(place, place + 1)).records()[0])
        return
    if asked.asks_how_many:
        asked.say(f"The trace has {asked.cite('steps', 'rows', table.num_rows)} steps.")
    if step is not None:
        mean = asked.cite("step", "measured_ns", step.measured_ns)
        median = asked.cite("step", "median_ns", step.median_ns)
        asked.say(f"A step takes {mean} (mean; median {median}).")
    jitter = table.facts["jitter"]
    for rank, facts in enumerate(jitter if isinstance(jitter, list) else [jitter]):
        if facts.get("mad_share") is None or rank >= _MOST_CAUSES:
            continue
        of = f"steps.{rank}"
        spread = asked.cite(of, "mad_share", facts["mad_share"])
        most = asked.cite(of, "max_ns", facts["max_ns"])
        outliers = asked.cite(of, "outliers", facts["outliers"])
        asked.say(
            f"- half of the whole steps lie within {spread} of the median; the longest takes "
            f"{most}; outliers: {outliers}"
        )
    if asked.asks(r"which|slow(est)?|longest|fast(est)?|short(est)?|outliers?|why|top"):
        order = table.sort("duration_ns", descending=not asked.asks_for_least)
        for record in order.take(slice(0, asked.most_rows)).records():
            _tell_step(asked, record)


def _ends_in(name: str | None, number: int) -> bool:
    found = re.search(r"(?<!\d)\d{1,9}\Z", name or "", re.ASCII)
    return found is not None and int(found[0]) == number


def _tell_step(asked: Asked, row: Mapping[str, Any]) -> None:
    name = plain_line(row["name"] or "")
    of = f"steps.{name}"
    time = asked.cite(of, "duration_ns", row["duration_ns"])
    busy = asked.cite(of, "busy_ns", row["busy_ns"])
    idle = asked.cite(of, "idle_ns", row["idle_ns"])
    causes = sorted(
        (
            (ns, column)
            for column, ns in row.items()
            if column.startswith("idle_") and column != "idle_ns" and ns
        ),
        reverse=True,
    )
    told = [
        f"{format_part(column.removeprefix('idle_').removesuffix('_ns'))} "
        f"{asked.cite(of, column, ns)}"
        for ns, column in causes[:_MOST_STEP_CAUSES]
    ]
    rank = f"rank {asked.cite(of, 'rank', row['rank'])}, " if row.get("rank") is not None else ""
    line = f"- {rank}{name}: {time}, of which the GPU is busy for {busy} and idle for {idle}"
    if told:
        line += f" ({', '.join(told)})"
    asked.say(line)
    more = [each for each in row.get("differs") or () if isinstance(each, dict)]
    for each in more[:2]:
        by = asked.cite(f"{of}.differs", "delta_ns", each["delta_ns"])
        asked.say(f"  more than in other steps: {plain_line(each['name'], 90)}, by {by}")


def _tell_ranks(asked: Asked) -> None:
    """Answer with the ranks, the latest first."""
    if len(asked.diagnosis.trace.ranks) == 1:
        asked.stand_on("ranks PATH")
        asked.say(
            "The trace has a single rank, and ranks are compared only with each other: give the "
            "folder with a file of every rank."
        )
        return
    table = asked.table("ranks", per_rank=False, by="rank").sort("lateness_ns", descending=True)
    asked.say("Ranks in the order of how late they come to collectives:")
    for row in table.take(slice(0, asked.most_rows)).records():
        number = asked.cite("ranks", "rank", row["rank"])
        of = f"ranks.{row['rank']}"
        late = asked.cite(of, "lateness_ns", max(0, row["lateness_ns"]))
        waits = asked.cite(of, "wait_ns", row["wait_ns"])
        because = f", mostly by its {row['cause'].replace('_', ' ')}" if row["cause"] else ""
        asked.say(
            f"- rank {number} ({row['verdict']}): {late} late{because}; waits for {waits} itself"
        )


def _tell_collectives(asked: Asked) -> None:
    """Answer with the exposed part of communication, then with collectives."""
    times = asked.diagnosis.profiled_timeline
    if times.communication_ns:
        all_ns = asked.cite("communication", "time_ns", times.communication_ns)
        exposed = asked.cite("communication", "exposed_ns", times.exposed_communication_ns)
        asked.say(
            f"Communication runs for {all_ns}, of which {exposed} are exposed: nothing is computed "
            "meanwhile."
        )
    kinds = "|".join(kind for words, kind in _KINDS.items() if asked.asks(words))
    tell_ranking(
        asked, replace(_COLLECTIVES, only=Filter("kind", kinds)) if kinds else _COLLECTIVES
    )


_KINDS = {
    r"all ?reduces?": "all_reduce",
    r"all ?gathers?": "all_gather",
    r"reduce ?scatters?": "reduce_scatter",
    r"all ?to ?alls?": "all_to_all",
    r"broadcasts?": "broadcast",
}
"""Words for kinds of collectives, with patterns of `kind`."""


def _tell_copies(asked: Asked) -> None:
    """Answer with the copies in the direction that the question names, or in all."""
    to_device = asked.asks(r"to (the )?(gpu|device)s?|h(ost )?(2|to) ?d(evice)?|htod|uploads?")
    to_host = asked.asks(r"(to (the )?(host|cpu)|d(evice)? ?(2|to) ?h(ost)?|dtoh|downloads?)")
    wanted = [*(["HtoD"] if to_device else []), *(["DtoH"] if to_host else [])]
    tell_ranking(asked, replace(_COPIES, only=Filter("direction", "|".join(wanted) or "to")))


def _tell_serving(asked: Asked) -> None:
    """Answer with the phases of a serving engine."""
    table = asked.table("serving", by="phases")
    if table.facts.get("engine") is None:
        asked.say(
            "The trace is not known to be of a serving engine: it marks no iterations with phases "
            "and requests (vLLM, SGLang, TensorRT-LLM and others do in their profiles)."
        )
    else:
        asked.say(f"Iterations of {plain_line(str(table.facts['engine']))} by phase:")
    for row in table.take(slice(0, _MOST_CAUSES)).records():
        of = f"serving.{row['phase'] or 'iterations'}"
        said = [
            text.format(asked.cite(of, column, row[column]))
            for column, text in _SERVING
            if row.get(column) is not None
        ]
        asked.say(f"- {row['phase'] or 'all iterations'}: {', '.join(said)}")


_SERVING = (
    ("iterations", "{} iterations"),
    ("median_ns", "median {}"),
    ("requests", "{} requests at once"),
    ("time_per_output_token_ns", "{} for a token of a request"),
    ("gpu_busy", "GPU busy {} of the time"),
    ("bubble_ns", "{} of bubbles"),
)


def _tell_quality(asked: Asked) -> None:
    """Answer with what the recording lacks."""
    table = asked.table("quality", per_rank=False)
    share = asked.cite("quality", "recorded_share", float(table.facts["recorded_share"]))
    asked.say(f"{share} of the profiled GPU time is recorded, as far as the trace tells.")
    if not table.num_rows:
        asked.say("Nothing is known to be missing or to be left out.")
    for text in table.to_list("message")[: asked.most_rows]:
        asked.say(f"- {plain_line(text or '', 300)}")
    lacks = {signal for signals in asked.diagnosis.abstained.values() for signal in signals}
    if lacks:
        asked.say(f"Some checks need what it does not hold: {', '.join(sorted(lacks)[:6])}.")


def _tell_facts(asked: Asked) -> None:
    """Answer with devices, ranks, streams, events and steps."""
    found = build_summary(asked.diagnosis.trace)
    asked.stand_on("summary PATH")
    names = ", ".join(plain_line(name) for name in found.device_names)
    devices = asked.cite("summary", "devices", len(found.devices))
    ranks = asked.cite("summary", "ranks", len(found.ranks))
    streams = asked.cite("summary", "streams", sum(device.streams for device in found.devices))
    asked.say(f"- GPU: {names or 'not named'}; {devices} recorded, streams: {streams}")
    asked.say(f"- ranks: {ranks}; steps: {asked.cite('summary', 'steps', len(found.steps))}")
    events = asked.cite("summary", "events", found.events.total)
    gpu = asked.cite("summary", "gpu_events", found.events.gpu)
    asked.say(f"- events: {events}, of which {gpu} are GPU work")
    profiled = asked.cite("summary", "profiled_ns", asked.diagnosis.profiled_ns)
    asked.say(
        f"- profiled time: {profiled}{' of all ranks together' if len(found.ranks) > 1 else ''}"
    )
    for name, version in sorted(found.versions.items()):
        asked.say(f"- {plain_line(name)}: {plain_line(str(version))}")


def _tell_host(asked: Asked) -> None:
    """Answer with what the host does, by Python frame where these are recorded and asked for."""
    frames = asked.asks(r"python|functions?|lines?|code|file|frames?")
    if frames and asked.box.table("host", by="frame", rank=asked.rank).num_rows:
        tell_ranking(asked, _host("frame", "Python frames"))
        return
    if frames:
        asked.say("The trace has no Python frames: record with with_stack=True. By call instead:")
    tell_ranking(asked, _host("op", "calls of the host"))


def _tell_syncs(asked: Asked) -> None:
    """Answer with calls that wait for the GPU."""
    idle_ns = asked.diagnosis.idle_ns.get("synchronization", 0)
    idle = asked.cite("idle.synchronization", "time_ns", idle_ns)
    asked.stand_on("diagnose PATH")
    asked.say(f"The GPU is idle for {idle} because the host had waited for it.")
    tell_ranking(asked, _SYNCS)


def _tell_loading(asked: Asked) -> None:
    """Answer with the idle time that data loading causes, and the calls in it."""
    asked.stand_on("diagnose PATH")
    idle_ns = asked.diagnosis.idle_ns.get("data_loading", 0)
    idle = asked.cite("idle.data_loading", "time_ns", idle_ns)
    share = _of_profiled(asked, "idle.data_loading", idle_ns)
    asked.say(f"The GPU is idle for {idle}, {share}, while data is loaded.")
    if idle_ns:
        tell_ranking(asked, _LOADING)


# ------------------------------------------------------------------------- rankings

_KERNELS = Ranking(
    "kernels",
    "kernels",
    "name",
    (
        Measure("sum_ns", "the most time in total", "the least time in total", sums=True),
        Measure("count", "the most runs", "the fewest runs", _OFTEN),
        Measure("mean_ns", "the longest average run", "the shortest average run", _MEAN),
        Measure("max_ns", "the longest single run", "the shortest single run", _LONGEST),
        Measure("occupancy_share", "the highest occupancy", "the lowest occupancy", "occupancy"),
        Measure("registers_per_thread", "the most registers", "the fewest registers", "registers?"),
    ),
    (
        ("sum_ns", "{} in total"),
        ("max_ns", "the longest {}"),
        ("mean_ns", "{} on average"),
        ("busy_share", "{} of the busy time"),
        ("count", "{} runs"),
        ("op", "launched by {}"),
        ("occupancy_share", "occupancy {}"),
    ),
    {"by": "name"},
    ("count", "runs"),
    Filter("class", "compute|communication"),
    "The trace records no kernels: record with ProfilerActivity.CUDA on a machine with a GPU.",
)
_OPS = Ranking(
    "ops",
    "operators",
    "name",
    (
        Measure(
            "exclusive_gpu_ns", "the most GPU time of their own", "the least GPU time", sums=True
        ),
        Measure("count", "the most calls", "the fewest calls", _OFTEN),
        Measure("launches", "the most launches", "the fewest launches", r"launch\w*"),
        Measure(
            "self_host_ns", "the most host time of their own", "the least host time", _HOST, True
        ),
        Measure("backward_gpu_ns", "the most GPU time in their backward", "", "backward"),
    ),
    (
        ("exclusive_gpu_ns", "{} on the GPU"),
        ("subtree_gpu_ns", "{} with what it calls"),
        ("self_host_ns", "{} on the host"),
        ("busy_share", "{} of the busy time"),
        ("count", "{} calls"),
    ),
    {"by": "name"},
    ("count", "calls"),
    without="The trace records no operators: record with ProfilerActivity.CPU.",
)
_SHAPES = Ranking(
    "ops",
    "operators with their shapes",
    "name",
    _OPS.measures,
    (("input_dims", "shapes {}"), *_OPS.show),
    {"by": "args"},
    ("count", "calls"),
)
_MODULES = Ranking(
    "modules",
    "modules",
    "module",
    (
        Measure("own_gpu_ns", "the most GPU time of their own", "the least GPU time", sums=True),
        Measure("self_host_ns", "the most host time", "the least host time", _HOST),
        Measure("backward_gpu_ns", "the most GPU time backward", "", "backward"),
    ),
    (
        ("own_gpu_ns", "{} of its own on the GPU"),
        ("gpu_ns", "{} with what it calls"),
        ("calls", "{} calls"),
    ),
    counted=("calls", "calls"),
    without="The trace has no modules: record with with_stack=True or with_modules=True.",
)
_STACKS = Ranking(
    "stacks",
    "stacks of calls",
    "name",
    (Measure("self_ns", "the most time of their own", "", "", True),),
    (("self_ns", "{}"), ("self_share", "{} of all"), ("caller", "called by {}")),
)
_SEQUENCES = Ranking(
    "sequences",
    "sequences of kernels",
    "kernels",
    (
        Measure("removable_ns", "the most time that fusing would remove", ""),
        Measure("count", "the most repetitions", "", _OFTEN),
    ),
    (
        ("removable_ns", "{} removable"),
        ("count", "{} repetitions"),
        ("length", "{} kernels each"),
    ),
    without="No sequence of kernels repeats.",
)
_GRIDS = Ranking(
    "grids",
    "kernels",
    "canonical",
    (
        Measure("below_one_wave_ns", "the most time in runs that don't fill the GPU once", ""),
        Measure("empty_share", "the largest empty part of their last wave", "", r"empty|tail"),
    ),
    (
        ("below_one_wave_ns", "{} below one wave"),
        ("sum_ns", "{} in total"),
        ("waves", "{} waves"),
    ),
    {"by": "name"},
    without="The trace does not say how large grids are or which device ran them.",
)
_LAUNCHES = Ranking(
    "launches",
    "launch calls",
    "call",
    (
        Measure("host_sum_ns", "the most host time", "the least host time", sums=True),
        Measure("delay_median_ns", "the longest wait in the queue", "", r"queue\w*|delay\w*"),
        Measure("calls", "the most calls", "the fewest calls", _OFTEN),
    ),
    (
        ("host_sum_ns", "{} on the host"),
        ("calls", "{} calls"),
        ("host_mean_ns", "{} each"),
        ("delay_median_ns", "median delay {}"),
        ("short", "{} with less GPU work than the call takes"),
    ),
    {"by": "call"},
    ("calls", "calls"),
    without="The trace records no launch calls next to GPU work.",
)
_STREAMS = Ranking(
    "launches",
    "streams",
    "stream",
    (Measure("gpu_sum_ns", "the most GPU work", "the least GPU work", sums=True),),
    (("gpu_sum_ns", "{} of GPU work"), ("gpu_events", "{} events")),
    {"by": "stream"},
    ("gpu_events", "events"),
    without="The trace records no streams.",
)
_ROOFLINE = Ranking(
    "roofline",
    "operators",
    "name",
    (
        Measure("gpu_ns", "the most GPU time", "the least GPU time"),
        Measure(
            "roofline_share",
            "the best use of the device",
            "",
            r"best|most efficient",
        ),
        Measure(
            "roofline_share",
            "the worst use of the device",
            "",
            r"worst|least efficient|inefficient",
            rises=True,
        ),
        Measure("tflops", "the most FLOPs per second", "", r"flops?|tflops?|mfu"),
    ),
    (
        ("gpu_ns", "{} on the GPU"),
        ("roofline_share", "{} of what the device can"),
        ("tflops", "{} TFLOP per second"),
        ("bound", "bound by {}"),
    ),
    {"by": "args"},
    only=Filter("bound", "."),
    without="No operator has a model with shapes: record with record_shapes=True.",
)
_EXPECTED = Ranking(
    "expected",
    "operators",
    "name",
    (Measure("ratio", "the largest time over what is expected", "the smallest ratio"),),
    (("ratio", "{} times what is expected"), ("gpu_ns", "{} on the GPU"), ("count", "{} calls")),
    {"by": "args"},
    only=Filter("method", "."),
)
_COPIES = Ranking(
    "memory",
    "directions of copies",
    "direction",
    (
        Measure("time_ns", "the most time", "the least time", sums=True),
        Measure("total_bytes", "the most bytes", "the fewest bytes", r"bytes|data|size|large\w*"),
        Measure("count", "the most copies", "the fewest copies", _OFTEN),
        Measure(
            "bandwidth_gb_per_s",
            "the highest bandwidth",
            "the lowest bandwidth",
            r"bandwidth|fast|slow|speed|rate",
        ),
    ),
    (
        ("time_ns", "{}"),
        ("total_bytes", "{}"),
        ("count", "{} copies"),
        ("bandwidth_gb_per_s", "{}"),
        ("exposed_ns", "{} exposed"),
        ("host_memory", "host memory {}"),
    ),
    {"by": "direction"},
    ("count", "copies"),
    without="The trace records no such copies.",
)
_COLLECTIVES = Ranking(
    "collectives",
    "collectives",
    "name",
    (
        Measure("exposed_ns", "the most exposed time", "the least exposed time"),
        Measure("longest_wait_ns", "the longest wait for a rank", "", r"waits?|waiting|late"),
        Measure("bytes", "the most bytes", "the fewest bytes", r"bytes|larg\w*|size|message"),
        Measure(
            "bus_bandwidth_gb_per_s",
            "the highest bus bandwidth",
            "the lowest bus bandwidth",
            r"bandwidth|fast|slow|speed",
        ),
        Measure("transfer_ns", "the longest transfer", "the shortest transfer", _LONGEST),
    ),
    (
        ("transfer_ns", "{} of transfer"),
        ("exposed_ns", "{} exposed"),
        ("longest_wait_ns", "a rank waits for up to {}"),
        ("bus_bandwidth_gb_per_s", "{} on the bus"),
        ("step", "in {}"),
    ),
    counted=("calls", "calls"),
    without="The trace has no such collectives.",
)
_PATH = Ranking(
    "critical-path",
    "events of the critical path",
    "name",
    (Measure("time_ns", "the most time on it", ""),),
    (("time_ns", "{}"), ("time_share", "{} of the path"), ("cause", "{}")),
    {"by": "name"},
    without="The trace has no critical path: it lacks work that depends on other work.",
)
_SYNCS = Ranking(
    "host",
    "calls that wait for the GPU",
    "name",
    (
        Measure("self_ns", "the most time", "the least time", sums=True),
        Measure("count", "the most calls", "the fewest calls", _OFTEN),
    ),
    (("self_ns", "{}"), ("count", "{} calls")),
    {"by": "op"},
    ("count", "calls"),
    Filter("name", r"synchronize|^aten::(item|_local_scalar_dense|nonzero|is_nonzero)$"),
    "The trace has no calls that wait for the GPU.",
)
_LOADING = Ranking(
    "host",
    "calls of the host",
    "name",
    (Measure("data_loading_ns", "the most idle time by data loading", ""),),
    (("data_loading_ns", "{} of idle time"), ("self_ns", "{} of its own"), ("count", "{} calls")),
    {"by": "op"},
)


def _host(view: str, rows: str) -> Ranking:
    return Ranking(
        "host",
        rows,
        "name",
        (
            Measure(
                "gpu_idle_ns", "the most of their own time while the GPU is idle", "", "idle|waits?"
            ),
            Measure("self_ns", "the most time of their own", "the least time", "time|slow", True),
            Measure("count", "the most calls", "the fewest calls", _OFTEN),
        ),
        (
            ("self_ns", "{} of its own"),
            ("gpu_idle_ns", "{} of it while the GPU is idle"),
            ("count", "{} calls"),
        ),
        {"by": view},
        ("count", "calls"),
        without="The trace records nothing of the host: record with ProfilerActivity.CPU.",
    )


NAMED = ((_OPS, "name"), (_KERNELS, "canonical"))
"""Tables in which names of a question are looked up, by a column that holds them."""

_SLOW = r"slow(er|est|ly)?|long"

TOPICS = (
    Topic("if", {_IF: 2, "|".join(_EDIT_WORDS.values()): 3}, _tell_edit),
    Topic(
        "loading",
        {r"data ?loaders?|dataloading|data (is )?load\w*|load\w* (the )?data|input pipeline"
         r"|batch(es)? (is |are )?(fetch|load)\w*|fetch\w*|collat\w*|preprocess\w*": 5},
        _tell_loading,
        ("single_process_data_loading", "worker_starvation", "cpu_starvation"),
    ),
    Topic(
        "syncs",
        {r"sync(s|hron\w*|ed)?|item\(?\)?|cudadevicesynchronize"
         r"|block(s|ed|ing)? the (host|cpu)": 5},
        _tell_syncs,
        ("host_sync_in_loop", "explicit_synchronize", "blocking_copy"),
    ),
    Topic(
        "precision",
        {r"tensor ?cores?|precision|dtypes?|fp16|bf16|fp32|tf32|fp8|half|matrix units?": 4},
        _tell_precision,
        ("fp32_matmul", "misaligned_dimensions", "cast_storm"),
    ),
    Topic(
        "idle",
        {r"idl(e|es|ing)|starv\w*|under ?(utili[sz]\w*|used)|gaps?|not busy|low utili[sz]ation": 3,
         r"wait(s|ing)?": 2, r"gpus?": 1, "why": 1},
        _tell_idle,
    ),
    Topic(
        "bound",
        {r"bottlenecks?|bound|limit(s|ed|ing)?": 4, r"(cpu|host|gpu|compute) bound": 1},
        _tell_bound,
    ),
    Topic(
        "path",
        {r"critical( path)?|longest chain": 5},
        _PATH,
    ),
    Topic(
        "savings",
        {r"fix(es|ed)?|sav(e|es|ing|ings)|gains?|speed ?ups?|faster|improve\w*|optimi[sz]e"
         r"|plan": 4},
        _tell_savings,
    ),
    Topic(
        "collectives",
        {r"collectives?|all ?reduces?|all ?gathers?|reduce ?scatters?|all ?to ?alls?|nccl|rccl"
         r"|communicat\w*|broadcasts?": 5, r"overlap\w*|hidden|exposed": 2},
        _tell_collectives,
        ("nccl_compute_not_overlapped", "nccl_blocks_main_stream", "small_nccl_kernels"),
    ),
    Topic(
        "copies",
        {r"cop(y|ies|ied|ying)|memcpys?|h(ost )?(2|to) ?d(evice)?|d(evice)? ?(2|to) ?h(ost)?|htod"
         r"|dtoh|pci ?e?|pinned|pageable|transfer(s|red)?": 4,
         r"to the gpu|from the gpu|bandwidth": 2},
        _tell_copies,
        ("no_memory_pin", "high_memcpy", "blocking_copy", "pageable_readback", "small_copies"),
    ),
    Topic(
        "launches",
        {r"launch(es|ed|ing)?|launch overhead|queue\w*|overhead": 4, r"kernels?": 1},
        _LAUNCHES,
        ("tiny_kernels", "cpu_bound"),
    ),
    Topic(
        "sequences",
        {r"fus(e|ed|es|ing|ion)|sequences?|follow each other|repeat(s|ed|ing)?": 5},
        _SEQUENCES,
        ("unfused_pointwise", "unfused_optimizer", "attention_not_fused"),
    ),
    Topic(
        "grids",
        {r"grids?|waves?|blocks?|fill(s|ed)? the (gpu|device)|(too )?small kernels?"
         r"|multiprocessors?|sms": 5},
        _GRIDS,
        ("small_grids", "tiny_kernels"),
    ),
    Topic(
        "streams",
        {r"streams?": 4},
        _STREAMS,
    ),
    Topic(
        "expected",
        {r"expected|should (it|they|a|the|each|kernels?) \w*|slower than (they |it )?should": 5},
        _EXPECTED,
    ),
    Topic(
        "roofline",
        {r"roofline|flops?|tflops|mfu|peak (rate|performance)|intensity|memory bound|compute bound"
         r"|efficien\w*|hardware limits?|speed of light": 5, r"operators?|kernels?": 1},
        _ROOFLINE,
        ("fp32_matmul", "misaligned_dimensions"),
    ),
    Topic(
        "memory",
        {r"memory|alloc\w*|oom|out of memory|fragment\w*": 3, r"peak|usage|used?|how much": 1},
        _tell_memory,
        ("allocator_thrash", "uncached_allocator"),
    ),
    Topic(
        "serving",
        {r"tokens?|prefill|decod(e|ing)|ttft|tpot|requests?|serv(es?|ing)|engine|bubbles?"
         r"|speculative": 5},
        _tell_serving,
        ("host_between_tokens", "decode_batch_small", "prefill_stalls_decode"),
    ),
    Topic(
        "ranks",
        {r"ranks?|stragglers?|imbalance\w*|late(st)?|workers are behind": 4, _SLOW: 1},
        _tell_ranks,
        ("straggler", "collective_imbalance"),
    ),
    Topic(
        "phases",
        {r"backward( pass)?|forward( pass)?|optimi[sz]er( step)?|phases?": 4},
        _tell_phases,
        ("unfused_optimizer", "zero_grad_not_none"),
    ),
    Topic(
        "families",
        {"|".join(_FAMILIES): 4},
        _tell_families,
    ),
    Topic(
        "shapes",
        {r"shapes?|sizes? of (the )?(inputs?|tensors?)|input dim\w*": 4, r"operators?|ops?": 1},
        _SHAPES,
    ),
    Topic(
        "stacks",
        {r"(call )?stacks?|callers?|who calls|called (by|from)|call paths?": 4},
        _STACKS,
    ),
    Topic(
        "modules",
        {r"modules?|layers?|nn\.module": 4},
        _MODULES,
    ),
    Topic(
        "ops",
        {r"operators?|operations?|ops?|aten": 5},
        _OPS,
    ),
    Topic(
        "kernels",
        {r"kernels?|occupancy|registers?": 4},
        _KERNELS,
    ),
    Topic(
        "host",
        {rf"{_HOST}|threads?": 3, r"does the (cpu|host|python) do": 2,
         r"do(es|ing)?|spend\w*|functions?|busy": 1},
        _tell_host,
        ("cpu_bound", "gc_pause", "host_silence"),
    ),
    Topic(
        "steps",
        {r"steps?|iterations?|profilerstep": 4, r"jitter|outliers?|vary|varies|variation": 3},
        _tell_steps,
    ),
    Topic(
        "quality",
        {r"quality|complete|missing|trust\w*|recorded|recording|lost records?|truncated": 4},
        _tell_quality,
    ),
    Topic(
        "facts",
        {r"(which|what) (gpus?|devices?|hardware)|versions?|how many (gpus?|ranks|events)"
         r"|what is in|world size": 5, r"events?": 3},
        _tell_facts,
    ),
    Topic(
        "time",
        {r"busy|utili[sz](ed|ation)|where (does|is|did)( \w+){0,3} time|time go(es)?|breakdown"
         r"|comput(e|es|ing|ation)": 3},
        _tell_time,
    ),
    Topic(
        "problems",
        {r"wrong|problems?|issues?|anti ?patterns?|findings?|diagnos\w*": 4, _SLOW: 3, "why": 1,
         r"training|run|model|program|job|loop": 1},
        _tell_problems,
    ),
)  # fmt: skip

OF_STEPS = ("steps", "idle")
"""Topics whose answers are of the step that a question names."""
OF_NAMES = ("ops", "kernels")
"""Topics in which any word may be the name of an operator or a kernel."""
ELSEWHERE = (
    (
        r"power|watts?|energy|temperature|thermal|joules?|fan",
        "The profiler records no power or temperature: nvidia-smi or DCGM do, over the same time.",
    ),
    (
        r"accura\w*|converg\w*|nans?|perplexity|loss (value|curve|go|diverge|fall|decrease)\w*"
        r"|gradient norms?|learning rate|overfit\w*|train(ing)? loss|validation",
        "The profiler records times and sizes, not values: look into the log of the training.",
    ),
    (
        r"dollars?|prices?|money|cheap(er)?|cost in|\$",
        "The profiler records no prices: `torchtraceap plan` takes a model, GPUs and their prices.",
    ),
    (
        r"cache (hits?|miss\w*)|l1|l2|branch\w*|bank conflicts?|stall reasons?|instructions?"
        r"|warp stalls?",
        "The profiler records no counters of the device: run Nsight Compute on the kernel.",
    ),
    (
        r"disks?|ssds?|nvme|file ?system|storage",
        "The profiler records no input and output of files: it shows only how long the loader "
        "takes. Use iostat or a tracer of system calls over the same time.",
    ),
    (
        r"(than|since|from|before) (the )?(yesterday|last|previous|other|old|baseline)( \w+)?"
        r"|regress\w*|last week|baseline",
        "One trace can't be compared with another run: `torchtraceap diff BEFORE AFTER` takes "
        "both.",
    ),
    (
        r"(on|with) (an? )?(h100|h200|a100|b200|b100|l40s?|mi300x?|v100|t4|other gpus?)s?",
        "The trace is of the GPU that it was recorded on: `torchtraceap simulate PATH --edit "
        "device=NAME` replays it on another.",
    ),
    (
        r"(max|largest|biggest|maximum|larger|bigger) batch( size)?",
        "The trace is of the batch size that was recorded: `torchtraceap predict` computes others.",
    ),
)
"""Patterns of what a trace never holds, with what would be needed."""
