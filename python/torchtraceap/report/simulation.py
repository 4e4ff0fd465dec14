"""A simulation as a person reads it: what the steps take, what each edit makes of it, the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchtraceap.core.formatting import format_ns, one_line
from torchtraceap.report.simulation_trust import trust_text
from torchtraceap.report.tables import TextTable

__all__ = ["simulation_tables"]

MAX_STEPS = 12  # rows of the table of steps
MAX_NOTE = 400


def simulation_tables(document: Mapping[str, Any], *, plan: bool = False) -> list[TextTable]:
    """Tables for reading.

    Args:
        document: `torchtraceap.simulation/1`.
        plan: The edits on top of each other too.
    """
    tables = [_steps(document), _edits(document)]
    if plan:
        tables.append(_plan(document))
    return tables


def _steps(document: Mapping[str, Any]) -> TextTable:
    steps = document["steps"]
    several = len({step["rank"] for step in steps}) > 1
    rows = [
        (
            *([step["rank"]] if several else []),
            one_line(step["name"], 60),
            format_ns(step["measured_ns"]),
            format_ns(step["replayed_ns"]),
            _change(step["replayed_ns"], step["measured_ns"]),
        )
        for step in steps[:MAX_STEPS]
    ]
    head = (*(["rank"] if several else []), "step", "measured", "replayed", "off by")
    more = [f"and {len(steps) - MAX_STEPS} more steps (--json)"] if len(steps) > MAX_STEPS else []
    notes = [one_line(note, MAX_NOTE) for note in (_trust(document), *document["notes"])]
    return TextTable("Replay", head, rows, "\n".join([*more, *notes]))


def _trust(document: Mapping[str, Any]) -> str:
    """What a step takes and how well it replays; or why no edit is simulated."""
    trust, measured = document["trust"], format_ns(document["measured_ns"])
    what = "the whole takes"
    if document["per_step"]:
        median = format_ns(document["median_ns"])
        what = "a step takes"
        measured += f" (mean; median {median})" if median != measured else ""
    said = f"{what} {measured}. Replayed {trust_text(trust)}."
    if trust["supports_prediction"]:
        return said[0].upper() + said[1:]
    return f"No edit is simulated: {trust['reason']}. {said[0].upper()}{said[1:]}"


def _edits(document: Mapping[str, Any]) -> TextTable:
    applied = [edit for edit in document["edits"] if edit["predicted_ns"] is not None]
    rows = [
        (
            edit["edit"],
            format_ns(document["measured_ns"]),
            format_ns(edit["predicted_ns"]),
            f"{format_ns(edit['low_ns'])} to {format_ns(edit['high_ns'])}",
            _change(edit["predicted_ns"], document["measured_ns"]),
        )
        for edit in applied
    ]
    notes = [
        f"{edit['edit']}: {'' if edit in applied else 'not simulated: '}{edit['note']}"
        for edit in document["edits"]
        if edit["note"]
    ]
    head = ("edit", "now", "then", "between", "change") if rows else ()
    return TextTable("Edits, each by itself", head, rows, _lines(notes))


def _plan(document: Mapping[str, Any]) -> TextTable:
    rows = [
        (
            number,
            fix["edit"],
            format_ns(fix["gain_ns"]),
            format_ns(fix["predicted_ns"]),
            f"{format_ns(fix['low_ns'])} to {format_ns(fix['high_ns'])}",
            _change(fix["predicted_ns"], document["measured_ns"]),
        )
        for number, fix in enumerate(document["plan"], start=1)
    ]
    head = ("", "edit", "gains", "then", "between", "change in all") if rows else ()
    predicted = document["trust"]["supports_prediction"]
    none = "No edit saves more than the steps vary by themselves."
    empty = [] if rows else [none if predicted else "No edit is simulated."]
    return TextTable("Plan, each on top of those before it", head, rows, _lines(empty))


def _lines(notes: Sequence[str]) -> str:
    return "\n".join(one_line(note, MAX_NOTE) for note in notes)


def _change(after_ns: int, before_ns: int) -> str:
    if not before_ns:
        return "—"
    percent = round(100 * (after_ns / before_ns - 1), 1)
    return f"{percent:+.1f} %" if percent else "0 %"
