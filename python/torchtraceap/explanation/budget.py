"""Cut a pack to the number of tokens that a language model is shown."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from torchtraceap.explanation.language_model import estimate_tokens
from torchtraceap.explanation.pack import Pack, PackRow, PackTable
from torchtraceap.explanation.pack_text import pack_text

__all__ = ["MOST_TOKENS", "fit_to_budget"]

MOST_TOKENS = 2500


def fit_to_budget(pack: Pack) -> Pack:
    """The pack with as many lines as the budget has room for.

    Lines of tables are dropped in the order of their costs, the least first, with events that they
    alone show; then the other events, the shortest first; then metrics of the segment from the end.
    `dropped` says how many. What is left can be cited; what was dropped no judge has seen.
    """
    if _fits(pack):
        return pack
    order = _order_by_cost(pack)
    numbers = range(1, len(order) + len(pack.metrics) + 1)
    place = bisect_left(numbers, True, key=lambda number: _fits(_without(pack, order, number)))
    return _without(pack, order, numbers[min(place, len(numbers) - 1)]) if numbers else pack


def _fits(pack: Pack) -> bool:
    return estimate_tokens(len(pack_text(pack))) <= MOST_TOKENS


def _order_by_cost(pack: Pack) -> list[str]:
    """Keys of lines and then of events that no line shows; of equal ones the last first."""
    lines = [(line.cost_ns, line.key) for table in pack.tables for line in table.lines]
    shown = _shown_rows(pack.tables)
    rows = [(row.duration_ns, row.key) for row in pack.rows if row.key not in shown]
    return [*_cheapest_first(lines), *_cheapest_first(rows)]


def _cheapest_first(costs: list[tuple[int, str]]) -> list[str]:
    order = sorted(range(len(costs)), key=lambda place: (costs[place][0], -place))
    return [costs[place][1] for place in order]


def _shown_rows(tables: tuple[PackTable, ...]) -> frozenset[str]:
    return frozenset(line.row for table in tables for line in table.lines)


def _without(pack: Pack, order: list[str], number: int) -> Pack:
    """The pack without that many lines, events and metrics."""
    gone = frozenset(order[:number])
    metrics = len(pack.metrics) - max(0, number - len(order))
    tables = tuple(
        replace(table, lines=tuple(line for line in table.lines if line.key not in gone))
        for table in pack.tables
    )
    orphans = _shown_rows(pack.tables) - _shown_rows(tables)

    def stays(row: PackRow) -> bool:
        return row.key not in gone and row.key not in orphans

    return replace(
        pack,
        metrics=pack.metrics[:metrics],
        tables=tables,
        rows=tuple(filter(stays, pack.rows)),
        dropped=pack.dropped + number,
    )
