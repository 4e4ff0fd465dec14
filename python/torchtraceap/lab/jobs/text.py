"""Tables that show ways to split a training job over GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchtraceap.core.formatting import format_bytes, format_ns, format_percent, one_line
from torchtraceap.report.tables import TextTable

if TYPE_CHECKING:
    from torchtraceap.lab.jobs.parallelism import Parallelism

__all__ = ["parallelism_tables", "result_tables"]

MAX_ROWS = 15
MAX_REASONS = 8
MAX_TEXT = 200
_SAVES = {"none": "", "selective": "attention again", "full": "layers again"}


def result_tables(found: Parallelism) -> list[TextTable]:
    """Return the tables of a `Parallelism`."""
    return parallelism_tables(found.to_dict())


def parallelism_tables(document: Mapping[str, Any], *, limit: int = MAX_ROWS) -> list[TextTable]:
    """Return the tables of a document.

    Args:
        document: `torchtraceap.parallelism/1`.
        limit: Of the strategies.
    """
    found = [_strategies(document, limit)]
    if document["refused"]:
        found.append(_refused_table(document))
    return found


def _strategies(document: Mapping[str, Any], limit: int) -> TextTable:
    strategies = document["strategies"]
    head = (
        "tensor", "data", "pipeline", "micro-batch", "memory saved by", "a step", "8 of 10 between",
        "of peak", "memory", "bound by", "not measured",
    )  # fmt: skip
    rows = [_row(strategy) for strategy in strategies[:limit]]
    notes = []
    if len(strategies) > limit:
        notes.append(f"and {len(strategies) - limit} more, slower (--json)")
    notes += [one_line(note, 2 * MAX_TEXT) for note in document["notes"]]
    title = f"{document['gpus']} x {one_line(document['device'], 60)}"
    title += f", {document['global_batch']} sequences a step"
    if not strategies:
        notes.insert(0, "no strategy is possible")
    return TextTable(title, head, rows, "\n".join(notes), first=(0, 1, 2, 3, 5, 6, 8, 4))


def _row(strategy: Mapping[str, Any]) -> tuple[str, ...]:
    saves = [_SAVES[strategy["recompute"]]]
    saves += ["sequence"] if strategy["sequence_parallel"] else []
    saves += [f"ZeRO {strategy['zero']}"] if strategy["zero"] else []
    stages = str(strategy["pipeline"])
    stages += f" x {strategy['chunks']}" if strategy["chunks"] > 1 else ""
    low, high = (format_ns(round(strategy[f"{end}_ns"])) for end in ("low", "high"))
    return (
        str(strategy["tensor"]),
        str(strategy["data"]),
        stages,
        str(strategy["micro_batch"]),
        ", ".join(part for part in saves if part) or "-",
        format_ns(round(strategy["predicted_ns"])),
        f"{low} and {high}",
        format_percent(strategy["utilization"]),
        format_bytes(strategy["memory_bytes"]["total"]),
        strategy["bound_by"],
        one_line("; ".join(strategy["unmeasured"]), MAX_TEXT) or "-",
    )


def _refused_table(document: Mapping[str, Any]) -> TextTable:
    """Group refused ways by reason; reasons about memory are joined, because each has its own
    size."""
    reasons: Counter[str] = Counter()
    for refused in document["refused"]:
        told = refused["reason"]
        reasons["needs more memory than a GPU has" if "GB of memory" in told else told] += 1
    rows = [
        (str(count), one_line(why, MAX_TEXT)) for why, count in reasons.most_common(MAX_REASONS)
    ]
    left = len(reasons) - len(rows)
    return TextTable("Refused", ("ways", "why"), rows, f"and {left} more reasons" if left else "")
