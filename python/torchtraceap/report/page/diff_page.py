"""Two traces side by side as one self-contained HTML page: what changed, and by how much."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core import formatting
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns, pluralize
from torchtraceap.core.records import dataclass
from torchtraceap.core.writing import check_target, write_text
from torchtraceap.report.page import charts
from torchtraceap.report.page.document import compressed_json, render_document
from torchtraceap.report.page.table_data import table_data
from torchtraceap.report.view import GPU_LABELS, IDLE_LABELS, Segment, facts_of, title_of

if TYPE_CHECKING:
    from torchtraceap.core.results import Summary
    from torchtraceap.core.table import ColumnTable
    from torchtraceap.trace.trace import Trace

__all__ = ["render_diff", "write_diff_page"]

SCRIPT_PARTS = ("basics", "unpack", "charts", "tables", "tree", "sections", "compare")

MAX_ROWS = 1500
MAX_NODES = 40_000  # of the call tree: those with the most time on either side
TOP_ROWS = 5  # changes that the head of the page names
TOLD_SHARE = 0.01  # of the longer step: a smaller change isn't worth a sentence

# (view of the diff, label, hint)
_VIEWS = (
    (
        "op",
        "by operator",
        "Operators at their place in the call tree, and idle time by the host event behind it.",
    ),
    ("kernel", "by kernel", "Kernels by name without template arguments and numbers."),
    (
        "ancestor",
        "by shared call",
        "Kernels that came, went or changed, by the lowest call around them that both have.",
    ),
    ("cause", "by cause", "Classes of GPU work and causes of idle time."),
    (
        "finding",
        "by finding",
        "What diagnose says of either; findings may share time, the last row closes the sum.",
    ),
)
_STATUS = {
    "new": "is new",
    "gone": "is gone",
    "regression": "takes longer",
    "improvement": "takes less",
}


def write_diff_page(before: Trace, after: Trace, path: Path) -> None:
    """Writes the page that compares two traces.

    Raises:
        OptionError: `path` is one of the files that were read.
        OutputError: It can't be written.
    """
    inputs = [part.path for trace in (before, after) for part in trace.ranks]
    check_target(path, inputs)
    write_text(path, render_diff(before, after), inputs=inputs)


def render_diff(before: Trace, after: Trace) -> str:
    """The page that compares two traces. Pure: the same traces give the same text."""
    from torchtraceap.tables.compare.diff import build_diff

    tables = {by: build_diff(before, after, by=by) for by, _, _ in _VIEWS}
    tree = build_diff(before, after, by="tree")
    sides = [_side(trace.summary()) for trace in (before, after)]
    data, blob = _sections(tables, tree)
    verdict = _verdict(tables["cause"])
    return render_document(
        "diff.html",
        SCRIPT_PARTS,
        {
            "texts": {
                "title": f"{sides[0]['title']} → {sides[1]['title']}",
                "facts": "",
                "sides": sides,
                "top": _top(tables["op"]),
                "notes": [formatting.one_line(note, 600) for note in tables["op"].notes[1:]],
            },
            **data,
        },
        {"tables": blob},
        verdict=verdict,
        bars=_bars(tables["cause"]),
        top=len(_top(tables["op"])),
        notes=len(tables["op"].notes) - 1,
        findings=_changed_findings(tables["finding"]),
        sections=data["sections"],
    )


def _side(summary: Summary) -> dict[str, str]:
    return {"title": title_of(summary), "facts": " · ".join(facts_of(summary))}


# ---------------------------------------------------------------------------------- the head


@dataclass(frozen=True, slots=True)
class Verdict:
    """The headline, in our own words."""

    headline: str
    what: str
    """What is compared: the median step, or the whole range."""
    before: str
    after: str
    change: str


def _verdict(table: ColumnTable) -> Verdict:
    facts = table.facts
    before, after = facts["before_step_ns"], facts["after_step_ns"]
    delta = facts["difference_ns"]
    what = {
        "whole steps": "the median step",
        "inferred steps": "the median step (inferred)",
        "profiled range": "the whole profiled range",
    }.get(facts["basis"], facts["basis"])
    share = f" ({formatting.format_percent(abs(delta) / before)})" if before else ""
    size = f"{format_ns(abs(delta))}{share}"
    if delta == 0:
        headline = "Both take the same time"
    else:
        headline = f"After takes {size} {'less' if delta < 0 else 'more'} than before"
    counts = (
        f" of {facts['before_steps']} before and {facts['after_steps']} after"
        if facts["basis"] != "profiled range"
        else ""
    )
    return Verdict(
        headline,
        what + counts,
        format_ns(before),
        format_ns(after),
        ("+" if delta > 0 else "−" if delta < 0 else "") + format_ns(abs(delta)),
    )


def _top(table: ColumnTable) -> list[dict[str, str]]:
    """The changes that made the difference, in words."""
    facts = table.facts
    least = TOLD_SHARE * max(facts["before_step_ns"], facts["after_step_ns"])
    told = []
    columns = ("name", "status", "significance", "delta_ns", "before_ns", "after_ns")
    for row in zip(*(table.to_list(key) for key in columns), strict=True):
        name, status, significance, delta, start, end = row
        if abs(delta) < least or status not in _STATUS or significance == "within noise":
            continue
        told.append(
            {
                "name": formatting.one_line(name, 160),
                "says": f"{_STATUS[status]}: {format_ns(start)} → {format_ns(end)}",
                "delta": ("+" if delta > 0 else "−") + format_ns(abs(delta)),
            }
        )
    return told[:TOP_ROWS]


@dataclass(frozen=True, slots=True)
class Bar:
    """The time of one side by class, to the scale of the longer."""

    label: str
    total: str
    segments: list[Segment]


def _bars(table: ColumnTable) -> list[Bar]:
    keys = _fills(table)
    facts = table.facts
    longest = max(facts["before_step_ns"], facts["after_step_ns"], 1)
    bars = []
    for when in ("before", "after"):
        times = table.to_list(f"{when}_ns")
        segments = [
            Segment(key, _label(key), ns, ns / longest, key not in GPU_LABELS, format_ns(ns))
            for key, ns in zip(keys, times, strict=True)
            if ns > 0
        ]
        order = [*GPU_LABELS, *IDLE_LABELS]
        segments.sort(key=lambda s: order.index(s.key) if s.key in order else len(order))
        bars.append(Bar(when, format_ns(facts[f"{when}_step_ns"]), segments))
    return bars


def _label(key: str) -> str:
    if key == "host":
        return "host"
    return GPU_LABELS.get(key) or IDLE_LABELS.get(key) or "spread between steps"


def _changed_findings(table: ColumnTable) -> list[tuple[str, str, str]]:
    """(status, title, change) of findings that came or went."""
    columns = ("status", "title", "delta_ns")
    rows = zip(*(table.to_list(key) for key in columns), strict=True)
    return [
        (status, title, ("+" if delta > 0 else "−") + format_ns(abs(delta)))
        for status, title, delta in rows
        if status in ("appeared", "vanished") and title
    ]


_PARTS = {"exposed_communication": "communication", "exposed_memcpy": "memcpy"}


def _fills(table: ColumnTable) -> list[str]:
    """The colour of each row: class of GPU work, idle cause, host, or none."""
    if "part" in table.columns:
        parts = [part or "" for part in table.to_list("part")]
    else:
        names = [name or "" for name in table.to_list("name")]
        parts = [name.removeprefix("idle: ").replace(" ", "_") for name in names]
    known = {*GPU_LABELS, *IDLE_LABELS, "host"}
    fills = (_PARTS.get(part, part) for part in parts)
    return [fill if fill in known else "spread" for fill in fills]


# ---------------------------------------------------------------------------------- the tables


def _sections(tables: dict[str, ColumnTable], tree: ColumnTable) -> tuple[dict[str, Any], bytes]:
    views = []
    for by, label, hint in _VIEWS:
        views.append({"key": by, "label": label, "hint": hint, "find": "", "meter": ""})
    changed = [_with_chart(tables[by]) for by, _, _ in _VIEWS]
    rows = tables["op"].num_rows
    heads = [
        {
            "key": "changes",
            "title": "What changed",
            "open": True,
            "leads": [f"{pluralize(rows, 'row')}: they sum to the difference exactly"],
            "views": views,
        }
    ]
    found: dict[str, Any] = {"changes": [[table] for table in changed]}
    if tree.num_rows:
        heads.append(
            {
                "key": "tree",
                "title": "Call trees side by side",
                "open": True,
                "leads": [f"{pluralize(tree.num_rows, 'call')}, aligned by name and shape"],
                "views": [{"key": "tree", "label": "tree", "hint": _TREE_HINT} | _NO_EXTRAS],
            }
        )
        found["tree"] = [[_tree_data(tree)]]
    return {"sections": heads, "absent": []}, compressed_json(found)


_TREE_HINT = (
    "GPU time of each call with everything below it, before and after. A call that only one side "
    "has is marked. Calls contain each other: these times do not sum."
)
_NO_EXTRAS = {"find": "", "meter": ""}


def _with_chart(table: ColumnTable) -> dict[str, Any]:
    data = table_data(table, most_rows=MAX_ROWS)
    # The first notes say what is compared, which the head of the page does.
    data["notes"] = data["notes"][2:]
    data["chart"] = charts.waterfall(table, _fills(table))
    return data


def _tree_data(tree: ColumnTable) -> dict[str, Any]:
    """The aligned tree in pre-order; where it is too large, the calls with the most time."""
    has_gpu = any(_times(tree, f"{when}_gpu_ns").any() for when in ("before", "after"))
    kind = "gpu" if has_gpu else "host"
    sides = [_times(tree, f"{when}_{kind}_ns") for when in ("before", "after")]
    kept = _longest_nodes(np.maximum(*sides), MAX_NODES)
    few = tree if len(kept) == tree.num_rows else tree.take(kept)
    names, codes = np.unique(
        np.array(
            [formatting.one_line(n or "", 160) for n in few.to_list("name")], dtype=object
        ).astype(str),
        return_inverse=True,
    )
    matched, how = np.unique(
        np.array([m or "" for m in few.to_list("matched_by")]), return_inverse=True
    )
    present = [~np.ma.getmaskarray(few[f"{when}_row"]) for when in ("before", "after")]
    return {
        "tree": True,
        "unit": "GPU time" if has_gpu else "host time",
        "notes": [],
        "chart": None,
        "rows": len(kept),
        "total": tree.num_rows,
        "names": names.tolist(),
        "name": codes.tolist(),
        "matched": matched.tolist(),
        "how": how.tolist(),
        "depth": np.asarray(few["depth"]).tolist(),
        "before": [
            int(t) if p else None
            for t, p in zip(_times(few, f"before_{kind}_ns"), present[0], strict=True)
        ],
        "after": [
            int(t) if p else None
            for t, p in zip(_times(few, f"after_{kind}_ns"), present[1], strict=True)
        ],
    }


def _times(table: ColumnTable, name: str) -> Array:
    """A column of times, absent as 0."""
    values: Array = np.ma.filled(np.ma.asarray(table[name]), 0).astype(np.int64)
    return values


def _longest_nodes(times: Array, most: int) -> Array:
    """Rows to keep, in order. A parent has at least the time of a child and comes before it, so it
    stays where the child does."""
    return np.sort(np.argsort(-times, kind="stable")[:most])
