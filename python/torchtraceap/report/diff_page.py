"""Two traces side by side as one self-contained HTML page: the changes and their size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import format_ns, format_part, format_percent, one_line, pluralize
from torchtraceap.core.results import GPU_PARTS
from torchtraceap.core.writing import check_target, write_text
from torchtraceap.report.charts import waterfall
from torchtraceap.report.document import compressed_json, render_document, table_data
from torchtraceap.report.view import Segment, facts_of, title_of

if TYPE_CHECKING:
    from torchtraceap.core.table import ColumnTable
    from torchtraceap.trace.trace import Trace

__all__ = ["render_diff", "write_diff_page"]

SCRIPT_PARTS = ("basics", "unpack", "charts", "tables", "tree", "sections", "compare")

MAX_ROWS = 1500
MAX_NODES = 40_000  # nodes of the call tree: those with the most time on either side
TOP_ROWS = 5  # changes that the head of the page names
TOP_SHARE = 0.01  # share of the longer step that a change must have to be named there

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
    """Write the page that compares two traces.

    Raises:
        OptionError: `path` is one of the files that were read.
        OutputError: It can't be written.
    """
    inputs = [part.path for trace in (before, after) for part in trace.ranks]
    check_target(path, inputs)
    write_text(path, render_diff(before, after), inputs=inputs)


def render_diff(before: Trace, after: Trace) -> str:
    """Render the page that compares two traces. Pure: the same traces give the same text."""
    from torchtraceap.tables.compare.diff import build_diff

    tables = {by: build_diff(before, after, by=by) for by, _, _ in _VIEWS}
    summaries = [trace.summary() for trace in (before, after)]
    sides = [{"title": title_of(s), "facts": " · ".join(facts_of(s))} for s in summaries]
    heads, blob = _sections(tables, build_diff(before, after, by="tree"))
    top, notes = _largest_changes(tables["op"]), tables["op"].notes[1:]
    columns = (tables["finding"].to_list(key) for key in ("status", "title", "delta_ns"))
    return render_document(
        "diff.html",
        SCRIPT_PARTS,
        {
            "texts": {
                "title": f"{sides[0]['title']} → {sides[1]['title']}",
                "facts": "",
                "sides": sides,
                "top": top,
                "notes": [one_line(note, 600) for note in notes],
            },
            "sections": heads,
            "absent": [],
        },
        {"tables": blob},
        verdict=_verdict(tables["cause"]),
        bars=_bars(tables["cause"]),
        top=len(top),
        notes=len(notes),
        findings=[
            (status, title, ("+" if delta > 0 else "−") + format_ns(abs(delta)))
            for status, title, delta in zip(*columns, strict=True)
            if status in ("appeared", "vanished") and title
        ],
        sections=heads,
    )


# ---------------------------------------------------------------------------------- the head


def _verdict(table: ColumnTable) -> dict[str, str]:
    """Return the headline, and the times that it compares."""
    facts = table.facts
    before, after = facts["before_step_ns"], facts["after_step_ns"]
    delta = facts["difference_ns"]
    basis = {
        "whole steps": "the median step",
        "inferred steps": "the median step (inferred)",
        "profiled range": "the whole profiled range",
    }.get(facts["basis"], facts["basis"])
    if facts["basis"] != "profiled range":
        basis += f" of {facts['before_steps']} before and {facts['after_steps']} after"
    share = f" ({format_percent(abs(delta) / before)})" if before else ""
    headline = "Both take the same time"
    if delta:
        less = "less" if delta < 0 else "more"
        headline = f"After takes {format_ns(abs(delta))}{share} {less} than before"
    return {
        "headline": headline,
        "what": basis,
        "before": format_ns(before),
        "after": format_ns(after),
    }


def _largest_changes(table: ColumnTable) -> list[dict[str, str]]:
    """Return the largest changes in words."""
    facts = table.facts
    least = TOP_SHARE * max(facts["before_step_ns"], facts["after_step_ns"])
    top = []
    columns = ("name", "status", "significance", "delta_ns", "before_ns", "after_ns")
    for row in zip(*(table.to_list(key) for key in columns), strict=True):
        name, status, significance, delta, start, end = row
        if abs(delta) < least or status not in _STATUS or significance == "within noise":
            continue
        top.append(
            {
                "name": one_line(name, 160),
                "says": f"{_STATUS[status]}: {format_ns(start)} → {format_ns(end)}",
                "delta": ("+" if delta > 0 else "−") + format_ns(abs(delta)),
            }
        )
    return top[:TOP_ROWS]


def _bars(table: ColumnTable) -> list[dict[str, Any]]:
    """Return the time of either side by class, to the scale of the longer."""
    keys = _fills(table)
    facts = table.facts
    longest = max(facts["before_step_ns"], facts["after_step_ns"], 1)
    order = [*GPU_PARTS, *_core.idle_cause_names()]
    bars = []
    for when in ("before", "after"):
        segments = [
            Segment(
                key,
                "spread between steps" if key == "spread" else format_part(key),
                ns,
                ns / longest,
                key not in GPU_PARTS,
                format_ns(ns),
            )
            for key, ns in zip(keys, table.to_list(f"{when}_ns"), strict=True)
            if ns > 0
        ]
        segments.sort(key=lambda s: order.index(s.key) if s.key in order else len(order))
        total = format_ns(facts[f"{when}_step_ns"])
        bars.append({"label": when, "total": total, "segments": segments})
    return bars


_PARTS = {"exposed_communication": "communication", "exposed_memcpy": "memcpy"}


def _fills(table: ColumnTable) -> list[str]:
    """Return the color of each row: a class of GPU work, an idle cause, host, or "spread"."""
    if "part" in table.columns:
        parts = [part or "" for part in table.to_list("part")]
    else:
        names = [name or "" for name in table.to_list("name")]
        parts = [name.removeprefix("idle: ").replace(" ", "_") for name in names]
    known = {*GPU_PARTS, *_core.idle_cause_names(), "host"}
    fills = (_PARTS.get(part, part) for part in parts)
    return [fill if fill in known else "spread" for fill in fills]


# ---------------------------------------------------------------------------------- the tables


def _sections(
    tables: dict[str, ColumnTable], tree: ColumnTable
) -> tuple[list[dict[str, Any]], bytes]:
    """Return the heads of the sections, and their tables packed."""
    changes = []
    for by, _, _ in _VIEWS:
        data = table_data(tables[by], most_rows=MAX_ROWS)
        data["notes"] = data["notes"][2:]  # the first two repeat the head of the page
        data["chart"] = waterfall(tables[by], _fills(tables[by]))
        changes.append([data])
    packed = {"changes": changes}
    rows = pluralize(tables["op"].num_rows, "row")
    heads = [
        {
            "key": "changes",
            "title": "What changed",
            "open": True,
            "leads": [f"{rows}: they sum to the difference exactly"],
            "views": [
                {"key": by, "label": label, "hint": hint, "find": "", "meter": ""}
                for by, label, hint in _VIEWS
            ],
        }
    ]
    if tree.num_rows:
        heads.append(
            {
                "key": "tree",
                "title": "Call trees side by side",
                "open": True,
                "leads": [f"{pluralize(tree.num_rows, 'call')}, aligned by name and shape"],
                "views": [
                    {"key": "tree", "label": "tree", "hint": _TREE_HINT, "find": "", "meter": ""}
                ],
            }
        )
        packed["tree"] = [[_tree_data(tree)]]
    return heads, compressed_json(packed)


_TREE_HINT = (
    "GPU time of each call with everything below it, before and after. A call that only one side "
    "has is marked. Calls contain each other: these times do not sum."
)


def _tree_data(tree: ColumnTable) -> dict[str, Any]:
    """Return the aligned tree in pre-order; of a large one the calls with the most time.

    A parent has at least the time of a child and comes before it, so it stays where the child does.
    """
    has_gpu = any(_times(tree, f"{when}_gpu_ns").any() for when in ("before", "after"))
    kind = "gpu" if has_gpu else "host"
    longer = np.maximum(_times(tree, f"before_{kind}_ns"), _times(tree, f"after_{kind}_ns"))
    kept = np.sort(np.argsort(-longer, kind="stable")[:MAX_NODES])
    few = tree if len(kept) == tree.num_rows else tree.take(kept)
    shown = np.array([one_line(n or "", 160) for n in few.to_list("name")], dtype=object)
    names, codes = np.unique(shown.astype(str), return_inverse=True)
    matched, how = np.unique(
        np.array([m or "" for m in few.to_list("matched_by")]), return_inverse=True
    )
    sides = {}
    for when in ("before", "after"):
        times = _times(few, f"{when}_{kind}_ns").tolist()
        absent = np.ma.getmaskarray(few[f"{when}_row"]).tolist()
        sides[when] = [None if gone else ns for ns, gone in zip(times, absent, strict=True)]
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
        **sides,
    }


def _times(table: ColumnTable, name: str) -> Array:
    """Return a column of times, absent as 0."""
    values: Array = np.ma.filled(np.ma.asarray(table[name]), 0).astype(np.int64)
    return values
