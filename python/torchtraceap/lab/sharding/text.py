"""Formats a choice of sharding as text."""

from __future__ import annotations

from torchtraceap.core.formatting import format_bytes, format_count, format_ns, one_line
from torchtraceap.lab.sharding.result import Part, Sharding
from torchtraceap.report.result_tables import MAX_ROWS, MAX_TEXT
from torchtraceap.report.tables import TextTable

__all__ = ["sharding_tables"]


def sharding_tables(found: Sharding) -> list[TextTable]:
    """Return the ranking and the contents of each rank in the best assignment."""
    head = ("sharder", "step", "10 %", "90 %", "slowest lookups", "exchanges")
    rows = [
        (
            one.sharder,
            *(
                format_ns(round(ns))
                for ns in (one.step_ns, one.low_ns, one.high_ns, one.lookup_ns, one.all_to_all_ns)
            ),
        )
        for one in found.ranking
    ]
    told = [*found.notes, *(f"{name}: {reason}" for name, reason in found.refused.items())]
    ranks = [
        (
            str(load.rank),
            format_count(len(load.parts)),
            format_ns(round(load.forward_ns + load.backward_ns)),
            format_bytes(load.memory_bytes),
            one_line(", ".join(map(_part_words, load.parts)), MAX_TEXT),
        )
        for load in found.best.ranks[:MAX_ROWS]
    ]
    left = len(found.best.ranks) - len(ranks)
    title = f"{found.world_size} x {found.device}, {format_count(found.batch)} samples each"
    return [
        TextTable(title, head, rows, "\n".join(one_line(text, MAX_TEXT) for text in told)),
        TextTable(
            f"Chosen: {found.best.sharder}",
            ("rank", "tables", "lookups", "memory", "which"),
            ranks,
            f"{format_count(left)} more" if left > 0 else "",
        ),
    ]


def _part_words(part: Part) -> str:
    if part.is_whole:
        return one_line(part.table, 80)
    return f"{one_line(part.table, 80)}[{part.first_column}:{part.first_column + part.columns}]"
