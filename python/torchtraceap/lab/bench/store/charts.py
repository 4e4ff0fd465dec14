"""Charts of the breakdown of runs: stacked bars on one self-contained page.

No script is in it, names are escaped, and a content security policy allows the one style sheet.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from statistics import fmean

from torchtraceap._version import __version__
from torchtraceap.core.aliases import PathLike
from torchtraceap.core.formatting import format_ns, format_share, one_line, replace_controls
from torchtraceap.core.writing import write_text
from torchtraceap.lab.bench.store.breakdown import GROUPS, RunBreakdown, group_of
from torchtraceap.report.labels import GPU_LABELS, HOST_LABELS, IDLE_LABELS

__all__ = ["breakdown_page", "write_breakdown_page"]

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


def write_breakdown_page(
    found: Sequence[RunBreakdown], path: PathLike, notes: Sequence[str] = ()
) -> None:
    """Write `breakdown_page` to a file.

    Raises:
        OutputError: It can't be written.
    """
    write_text(path, breakdown_page(found, notes))


def breakdown_page(found: Sequence[RunBreakdown], notes: Sequence[str] = ()) -> str:
    """Return a page with a figure for each mode, workloads grouped by task.

    Args:
        found: Breakdowns of runs.
        notes: Sentences below the figures.
    """
    modes = sorted(
        {each.mode for each in found}, key=lambda mode: (mode not in _MODES, mode != "train", mode)
    )
    figures = "\n".join(_figure(mode, [e for e in found if e.mode == mode]) for mode in modes)
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
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
{_legend(found)}
{said}
</body>
</html>
"""


def _style() -> str:
    fills = "".join(f".f-{part}{{fill:{light}}}" for part, (light, _) in _COLOURS.items())
    dark = "".join(f".f-{part}{{fill:{shade}}}" for part, (_, shade) in _COLOURS.items())
    return (
        ":root{color-scheme:light dark;--page:#fff;--ink:#15191f;--muted:#5a6472;--line:#e0e4ea}"
        "body{margin:24px auto;max-width:1000px;padding:0 16px;background:var(--page);"
        "color:var(--ink);font:15px/1.5 system-ui,sans-serif}"
        "h1{font-size:22px}h2{font-size:17px;margin:26px 0 6px}p{color:var(--muted);max-width:46em}"
        "svg{display:block;max-width:100%;height:auto}text{fill:var(--ink);font-size:12.5px}"
        ".task{font-weight:650}.muted{fill:var(--muted)}.base{fill:var(--line)}"
        ".range{stroke:var(--ink);stroke-width:1.5}"
        ".legend{display:flex;flex-wrap:wrap;gap:4px 18px;color:var(--muted);font-size:13.5px;"
        "margin-top:12px}"
        ".legend svg{display:inline-block;margin-right:6px;vertical-align:-1px}"
        f"rect{{fill:{_OTHER[0]}}}{fills}"
        "@media (prefers-color-scheme:dark){:root{--page:#0e1116;--ink:#e6e9ee;--muted:#98a3b3;"
        f"--line:#2a313b}}rect{{fill:{_OTHER[1]}}}{dark}}}"
    )


# ------------------------------------------------------------------------- a figure


def _figure(mode: str, found: Sequence[RunBreakdown]) -> str:
    tasks = sorted({each.task for each in found})
    rows = [row for task in tasks for row in _task(task, [e for e in found if e.task == task])]
    rows += _row_of_means(found)
    height = _ROW * len(rows) + 4
    body = "".join(
        f'<g transform="translate(0 {_ROW * place})">{row}</g>' for place, row in enumerate(rows)
    )
    title = _MODES.get(mode, mode or "Runs")
    return (
        f"<h2>{escape(replace_controls(title))}</h2>\n"
        f'<svg role="img" aria-label="{escape(_caption(title, found), quote=True)}" '
        f'viewBox="0 0 {_NAME + _BAR + _VALUE} {height}">{body}</svg>'
    )


def _caption(title: str, found: Sequence[RunBreakdown]) -> str:
    means = ", ".join(
        f"{_GROUP_LABELS[group]} {format_share(_mean(found, group))}" for group in GROUPS
    )
    return replace_controls(f"{title}, mean over {len(found)} runs: {means}")


def _mean(found: Sequence[RunBreakdown], group: str) -> float:
    return fmean(each.breakdown.shares[group]["mean"] for each in found)


def _task(task: str, found: Sequence[RunBreakdown]) -> Iterator[str]:
    yield f'<text class="task" y="17">{escape(one_line(task, 60))}</text>'
    for each in sorted(found, key=lambda e: (-e.breakdown.shares["active"]["mean"], e.name)):
        breakdown = each.breakdown
        active = breakdown.shares["active"]
        yield (
            _name(each.name)
            + _bar(breakdown.parts)
            + _range(active["low"], active["high"])
            + _value(f"{format_share(active['mean'])} of {format_ns(breakdown.step_ns)}")
        )


def _row_of_means(found: Sequence[RunBreakdown]) -> list[str]:
    """Return the mean row of several runs with equal weights."""
    if len(found) < 2:
        return []
    parts = {part for each in found for part in each.breakdown.parts}
    means = {part: fmean(e.breakdown.parts.get(part, 0.0) for e in found) for part in parts}
    active = format_share(_mean(found, "active"))
    bar = _bar(means)
    return [f'<text class="task" y="17">mean</text>{bar}{_value(f"{active} active")}']


def _name(name: str) -> str:
    shown = escape(one_line(name, 34))
    full = escape(replace_controls(name))
    return f'<text class="muted" x="14" y="17">{shown}<title>{full}</title></text>'


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
        said = escape(f"{_label(part)}: {format_share(share)}")
        drawn.append(
            f'<rect class="f-{_class(part)}" x="{_NAME + left * _BAR:.2f}" y="4" '
            f'width="{width * _BAR:.2f}" height="{_HIGH}"><title>{said}</title></rect>'
        )
        left += width
    return "".join(drawn)


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return ""
    y = 4 + _HIGH / 2
    ends = f'x1="{_NAME + low * _BAR:.2f}" x2="{_NAME + high * _BAR:.2f}"'
    return f'<line class="range" {ends} y1="{y}" y2="{y}"></line>'


def _value(text: str) -> str:
    return f'<text class="muted" x="{_NAME + _BAR + 10}" y="17">{escape(text)}</text>'


def _legend(found: Sequence[RunBreakdown]) -> str:
    there = {part for each in found for part in each.breakdown.parts}
    keys = "".join(
        '<span><svg width="11" height="11" aria-hidden="true">'
        f'<rect class="f-{_class(part)}" width="11" height="11"></rect></svg>'
        f"{escape(_GROUP_LABELS[group_of(part)])}: {escape(_label(part))}</span>"
        for part in _in_order(there)
    )
    return f'<div class="legend">{keys}</div>'


def _label(part: str) -> str:
    labels = {**IDLE_LABELS, **HOST_LABELS, **GPU_LABELS}
    return labels.get(part, part.replace("_", " "))


def _class(part: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "-" for c in part)
