"""Breakdown of a step's time into active, data movement and idle by cause (arXiv 2304.14226, 2.3).

Note [Parts of a step]: each instant of a step belongs to one part, by union of intervals. On a GPU
*active* is computation, or a collective with no computation beside it; *data movement* is copies
that run alone; *idle* is the rest, by cause. A run that computes on the host has the parts of its
critical path: operators are active, copies as above, and what no operator fills is idle. Shares are
means over the counted steps (tables/steps/iterations.py) with the 95 % interval of Student's t, in
which steps of one process count as independent.

The page of charts is self-contained: no script is in it, names are escaped, and a content security
policy allows the one style sheet.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap._version import __version__
from torchtraceap.core import (
    Array,
    ColumnTable,
    PathLike,
    Result,
    dataclass,
    encode_json,
    encode_texts,
    format_ns,
    format_part,
    format_share,
    one_line,
    progress_stage,
    replace_controls,
    write_text,
)
from torchtraceap.diagnosis import COMPUTATION, computes_on, parts_over_time
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.runs.run_store import StoredRun
from torchtraceap.lab.bench.statistics import scipy_stats
from torchtraceap.lab.workloads.registry import workloads
from torchtraceap.tables import counted_spans
from torchtraceap.trace import Ranks, load

__all__ = ["GROUPS", "Breakdown", "RunBreakdown", "break_down", "break_down_runs",
           "breakdown_page", "breakdown_table", "mean_interval", "task_table",
           "write_breakdown_page"]  # fmt: skip

GROUPS = ("active", "data_movement", "idle")
_ACTIVE = {*COMPUTATION, "communication"}
_MOVEMENT = {"memcpy", "device_memcpy", "copy"}
_NO_TASK = "other"


@dataclass(frozen=True, slots=True)
class Breakdown(Result):
    """The breakdown of a trace; see Note [Parts of a step]."""

    computes_on: str
    """"gpu" or "host"."""
    steps: int
    """Number of steps; 0 if the trace has none and the whole profiled time was used."""
    step_ns: int
    """The mean step."""
    shares: dict[str, Any]
    """For each of `GROUPS` the mean share, and `low` and `high`, the 95 % interval of the mean over
    steps; None with fewer than two steps."""
    parts: dict[str, float]
    """Mean shares of all parts with time, largest first in each group."""


@dataclass(frozen=True, slots=True)
class RunBreakdown(Result):
    """The breakdown of a stored run."""

    run: str
    name: str
    task: str
    mode: str
    device: str
    breakdown: Breakdown


def group_of(part: str) -> str:
    """Return the group of `GROUPS` to which a part of `verdict.time_parts` belongs."""
    return "active" if part in _ACTIVE else "data_movement" if part in _MOVEMENT else "idle"


def break_down(trace: Ranks, where: str | None = None) -> Breakdown | None:
    """Break down the steps of all ranks; None if the trace does not hold the work.

    `where` is "gpu" or "host", where it is known what the run computes on: of a run whose operators
    are lost among Python code the trace does not tell.
    """
    where = where or computes_on(trace)
    if where is None:
        return None
    lengths, by_part, steps = list[Array](), dict[str, list[Array]](), 0
    for rank in trace.ranks:
        spans = counted_spans(rank)
        steps += len(spans)
        if not len(spans):
            spans = np.array([rank.tree.profiled], dtype=np.int64).reshape(-1, 2)
        bounds = np.unique(spans)
        places = np.searchsorted(bounds, spans[:, 0])  # of the steps between the bounds
        parts = parts_over_time(rank, bounds, where)
        lengths.append(np.diff(bounds)[places])
        for part, ns in parts.items():
            by_part.setdefault(part, []).append(ns[places])
    length = np.concatenate(lengths)
    if not len(length) or not length.all():
        return None
    groups = {group: np.zeros(len(length)) for group in GROUPS}
    means: dict[str, float] = {}
    for part, pieces in by_part.items():
        if len(pieces) == len(lengths):
            share = np.concatenate(pieces) / length
            groups[group_of(part)] += share
            if share.any():
                means[part] = float(share.mean())
    # The rest is host time in which nothing on the path ran.
    groups["idle"] += np.maximum(0.0, 1.0 - sum(groups.values()))
    shares = {}
    for group, values in groups.items():
        mean, low, high = mean_interval(values)
        if low is not None and high is not None:
            low, high = max(0.0, low), min(1.0, high)
        shares[group] = {"mean": mean, "low": low, "high": high}
    order = sorted(means, key=lambda part: (GROUPS.index(group_of(part)), -means[part]))
    return Breakdown(
        computes_on=where,
        steps=steps,
        step_ns=round(float(length.mean())),
        shares=shares,
        parts={part: means[part] for part in order},
    )


def mean_interval(values: npt.ArrayLike) -> tuple[float, float | None, float | None]:
    """Return the mean of numbers `[n]`, n > 0, and its 95 % interval by Student's t; None for its
    ends where n is 1."""
    numbers = np.asarray(values, dtype=np.float64)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return mean, None, None
    quantile = float(scipy_stats().t.ppf(0.975, len(numbers) - 1))
    half = quantile * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return mean, mean - half, mean + half


# ------------------------------------------------------------------------- of runs


def break_down_runs(runs: Sequence[StoredRun]) -> tuple[list[RunBreakdown], list[str]]:
    """Return the breakdowns of runs that have a trace with their work, and the reasons why others
    have none.

    Raises:
        StoreError: A trace is missing or damaged.
        OptionError: There is not one run.
    """
    if not runs:
        raise OptionError("there is no run to break down: torchtraceap bench run keeps some")
    tasks = {entry.name: entry.task for entry in workloads()}
    found, without = [], []
    for run in runs:
        path = run.trace
        if path is None:
            without.append(f"{run.id} ({run.name}): has no trace")
            continue
        with progress_stage(f"breaking down {run.name}"):
            is_cpu = run.config.get("device") == "cpu"
            breakdown = break_down(load(path), "host" if is_cpu else None)
        if breakdown is None:
            without.append(f"{run.id} ({run.name}): its trace does not hold the work of steps")
            continue
        mode, device = str(run.config.get("mode", "")), str(run.config.get("device", ""))
        task = tasks.get(run.name) or _NO_TASK
        found.append(RunBreakdown(run.id, run.name, task, mode, device, breakdown))
    return found, without


def breakdown_table(found: Sequence[RunBreakdown], notes: Sequence[str] = ()) -> ColumnTable:
    """Return a table with a row for each run."""
    columns: dict[str, Any] = {
        "run": encode_texts(each.run for each in found),
        "workload": encode_texts(each.name for each in found),
        "task": encode_texts(each.task for each in found),
        "mode": encode_texts(each.mode for each in found),
        "device": encode_texts(each.device for each in found),
        "computes_on": encode_texts(each.breakdown.computes_on for each in found),
        "steps": np.array([each.breakdown.steps for each in found], dtype=np.int64),
        "step_ns": np.array([each.breakdown.step_ns for each in found], dtype=np.int64),
    }
    for group in GROUPS:
        for field in ("mean", "low", "high"):
            name = f"{group}_share" if field == "mean" else f"{group}_{field}_share"
            columns[name] = np.array(
                [each.breakdown.shares[group][field] for each in found],
                dtype=np.float64,  # None becomes NaN
            )
    idle = [
        {part: share for part, share in each.breakdown.parts.items() if group_of(part) == "idle"}
        for each in found
    ]
    columns["largest_idle"] = encode_texts(
        max(each, key=each.__getitem__, default=None) for each in idle
    )
    columns["idle_causes"] = encode_json(idle)
    columns["parts"] = encode_json(each.breakdown.parts for each in found)
    shown = ("workload", "task", "mode", "device", "steps", "step_ns", "active_share",
             "data_movement_share", "idle_share", "largest_idle")  # fmt: skip
    first = ("workload", "mode", "active_share", "idle_share")
    return ColumnTable(columns, shown=shown, first=first, notes=notes)


def task_table(found: Sequence[RunBreakdown], notes: Sequence[str] = ()) -> ColumnTable:
    """Return means over the workloads of each task by mode, as in Figures 1 and 2 of the paper."""
    keys = sorted(
        {(each.mode, each.task) for each in found}, key=lambda key: (key[0] != "train", key)
    )
    grouped = [[e for e in found if (e.mode, e.task) == key] for key in keys]
    columns: dict[str, Any] = {
        "mode": encode_texts(mode for mode, _ in keys),
        "task": encode_texts(task for _, task in keys),
        "runs": np.array([len(runs) for runs in grouped], dtype=np.int64),
    }
    for group in GROUPS:
        columns[f"{group}_share"] = np.array(
            [np.mean([e.breakdown.shares[group]["mean"] for e in runs]) for runs in grouped],
            dtype=np.float64,
        )
    return ColumnTable(columns, notes=notes)


# ------------------------------------------------------------------------- as a page


_NAME, _BAR, _VALUE, _ROW, _HIGH = 250, 560, 150, 24, 16
"""Widths of the columns of a figure; heights of a row and of its bar."""
_GROUP_LABELS = {"active": "active", "data_movement": "data movement", "idle": "idle"}
_MODES = {"train": "Training", "eval": "Evaluation"}
_COLOURS = {
    "compute": ("#14866a", "#35b491"),
    "communication": ("#7a4fd0", "#a583f0"),
    "host_forward": ("#14866a", "#35b491"),
    "host_backward": ("#0f6b8f", "#4aa8d0"),
    "host_optimizer": ("#4f7f2a", "#8cc25f"),
    "host_other": ("#5f7f77", "#8fb3aa"),
    "memcpy": ("#c9760c", "#e89a38"),
    "device_memcpy": ("#8a6d1b", "#c9b458"),
    "copy": ("#c9760c", "#e89a38"),
    "data_loading": ("#d6435c", "#f2647c"),
    "host_wait": ("#e5825a", "#f0976f"),
    "synchronization": ("#b8468f", "#db77b6"),
    "memory_copy": ("#d9a441", "#e3b960"),
    "communication_wait": ("#a58ae0", "#b9a3ec"),
    "compilation": ("#4f93c4", "#6fb0de"),
    "allocator": ("#8a9a3c", "#a9ba5c"),
    "launch_latency": ("#93a0b2", "#7f8c9f"),
    "host_gap": ("#93a0b2", "#7f8c9f"),
    "profiler": ("#b4bbc6", "#667080"),
}
_OTHER = ("#cdd2da", "#4a5361")
_STYLE = (
    ":root{{color-scheme:light dark;--page:#fff;--ink:#15191f;--muted:#5a6472;--line:#e0e4ea}}"
    "body{{margin:24px auto;max-width:1000px;padding:0 16px;background:var(--page);"
    "color:var(--ink);font:15px/1.5 system-ui,sans-serif}}"
    "h1{{font-size:22px}}h2{{font-size:17px;margin:26px 0 6px}}"
    "p{{color:var(--muted);max-width:46em}}"
    "svg{{display:block;max-width:100%;height:auto}}text{{fill:var(--ink);font-size:12.5px}}"
    ".task{{font-weight:650}}.muted{{fill:var(--muted)}}.base{{fill:var(--line)}}"
    ".range{{stroke:var(--ink);stroke-width:1.5}}"
    ".legend{{display:flex;flex-wrap:wrap;gap:4px 18px;color:var(--muted);font-size:13.5px;"
    "margin-top:12px}}"
    ".legend svg{{display:inline-block;margin-right:6px;vertical-align:-1px}}"
    "rect{{fill:{light}}}{fills}"
    "@media (prefers-color-scheme:dark){{:root{{--page:#0e1116;--ink:#e6e9ee;--muted:#98a3b3;"
    "--line:#2a313b}}{dark}}}"
)


def write_breakdown_page(
    found: Sequence[RunBreakdown], path: PathLike, notes: Sequence[str] = ()
) -> None:
    """Write `breakdown_page` to a file.

    Raises:
        OutputError: It can't be written.
    """
    write_text(path, breakdown_page(found, notes))


def breakdown_page(found: Sequence[RunBreakdown], notes: Sequence[str] = ()) -> str:
    """Return a page with a figure for each mode, workloads grouped by task, and notes below."""
    modes = sorted(
        {each.mode for each in found}, key=lambda mode: (mode not in _MODES, mode != "train", mode)
    )
    figures = "\n".join(_figure(mode, [e for e in found if e.mode == mode]) for mode in modes)
    fills = "".join(f".f-{part}{{fill:{light}}}" for part, (light, _) in _COLOURS.items())
    dark = "".join(f".f-{part}{{fill:{shade}}}" for part, (_, shade) in _COLOURS.items())
    style = _STYLE.format(light=_OTHER[0], fills=fills, dark=f"rect{{fill:{_OTHER[1]}}}{dark}")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    keys = "".join(
        '<span><svg width="11" height="11" aria-hidden="true">'
        f'<rect class="f-{_class(part)}" width="11" height="11"></rect></svg>'
        f"{escape(_GROUP_LABELS[group_of(part)])}: {escape(format_part(part))}</span>"
        for part in _in_order({part for each in found for part in each.breakdown.parts})
    )
    said = "".join(f"<p>{escape(replace_controls(note))}</p>" for note in notes)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="torchtraceap {__version__}">
<title>Where the time of a step goes</title>
<style>{style}</style>
</head>
<body>
<h1>Where the time of a step goes</h1>
<p>Active: something computes or communicates. Data movement: copies run alone. Idle: the rest, by
cause. Means over the recorded steps of each workload; the line is the 95 % interval of the active
share.</p>
{figures}
<div class="legend">{keys}</div>
{said}
</body>
</html>
"""


def _figure(mode: str, found: Sequence[RunBreakdown]) -> str:
    rows: list[str] = []
    for task in sorted({each.task for each in found}):
        rows.append(f'<text class="task" y="17">{escape(one_line(task, 60))}</text>')
        of_task = [each for each in found if each.task == task]
        for each in sorted(of_task, key=lambda e: (-e.breakdown.shares["active"]["mean"], e.name)):
            active = each.breakdown.shares["active"]
            said = f"{format_share(active['mean'])} of {format_ns(each.breakdown.step_ns)}"
            name = escape(one_line(each.name, 34))
            full = escape(replace_controls(each.name))
            interval = ""
            if active["low"] is not None:
                low, high = (_NAME + active[end] * _BAR for end in ("low", "high"))
                ends, y = f'x1="{low:.2f}" x2="{high:.2f}"', 4 + _HIGH / 2
                interval = f'<line class="range" {ends} y1="{y}" y2="{y}"></line>'
            rows.append(
                f'<text class="muted" x="14" y="17">{name}<title>{full}</title></text>'
                + _bar(each.breakdown.parts)
                + interval
                + _value(said)
            )
    means = {
        group: format_share(fmean(each.breakdown.shares[group]["mean"] for each in found))
        for group in GROUPS
    }
    if len(found) > 1:  # the mean of the runs, with equal weights
        parts = {part for each in found for part in each.breakdown.parts}
        bar = _bar({p: fmean(e.breakdown.parts.get(p, 0.0) for e in found) for p in parts})
        rows.append(
            f'<text class="task" y="17">mean</text>{bar}{_value(means["active"] + " active")}'
        )
    body = "".join(
        f'<g transform="translate(0 {_ROW * place})">{row}</g>' for place, row in enumerate(rows)
    )
    title = _MODES.get(mode, mode or "Runs")
    shares = ", ".join(f"{_GROUP_LABELS[group]} {share}" for group, share in means.items())
    caption = replace_controls(f"{title}, mean over {len(found)} runs: {shares}")
    return (
        f"<h2>{escape(replace_controls(title))}</h2>\n"
        f'<svg role="img" aria-label="{escape(caption, quote=True)}" '
        f'viewBox="0 0 {_NAME + _BAR + _VALUE} {_ROW * len(rows) + 4}">{body}</svg>'
    )


def _in_order(parts: Iterable[str]) -> list[str]:
    """Order parts alike in each bar, so that bars can be compared; groups are those of the
    paper."""
    known = list(_COLOURS)
    places = {part: known.index(part) if part in known else len(known) for part in parts}
    return sorted(places, key=lambda part: (GROUPS.index(group_of(part)), places[part], part))


def _bar(parts: Mapping[str, float]) -> str:
    """Draw segments from left to right; what no part covers stays empty."""
    drawn = [f'<rect class="base" x="{_NAME}" y="4" width="{_BAR}" height="{_HIGH}"></rect>']
    left = 0.0
    for part in _in_order(parts):
        share = parts[part]
        width = min(share, 1.0 - left)
        said = escape(f"{format_part(part)}: {format_share(share)}")
        drawn.append(
            f'<rect class="f-{_class(part)}" x="{_NAME + left * _BAR:.2f}" y="4" '
            f'width="{width * _BAR:.2f}" height="{_HIGH}"><title>{said}</title></rect>'
        )
        left += width
    return "".join(drawn)


def _value(text: str) -> str:
    return f'<text class="muted" x="{_NAME + _BAR + 10}" y="17">{escape(text)}</text>'


def _class(part: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "-" for c in part)
