"""Small HTML tables for Jupyter. Every text that may come from a trace is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from torchtraceap.report.tables import table_for_reading
from torchtraceap.report.view import replay_text
from torchtraceap.results import Diagnosis, Finding, Summary, Timeline
from torchtraceap.table import ColumnTable
from torchtraceap.units import format_ns, format_share

__all__ = ["diagnosis_html", "summary_html", "table_html"]

_MAX_ROWS = 20


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def table_html(table: ColumnTable) -> str:
    """Any table as a person reads it: the first rows, units, and what is to be said of them."""
    shown = table_for_reading(table, limit=_MAX_ROWS)
    notes = "".join(f"<p>{escape(line)}</p>" for line in shown.note.splitlines())
    return _table(shown.columns, shown.rows) + notes


def _timeline_row(name: str, timeline: Timeline) -> list[str]:
    shares = (
        timeline.compute_ns,
        timeline.exposed_communication_ns,
        timeline.exposed_memcpy_ns,
        timeline.idle_ns,
    )
    return [name, format_ns(timeline.span_ns), *(format_share(timeline.share(s)) for s in shares)]


def summary_html(summary: Summary) -> str:
    """One line of counts and a table of the timelines."""
    events = summary.events
    rows = [_timeline_row("whole trace", summary.timeline)]
    if len(summary.ranks) > 1:
        rows += [_timeline_row(f"rank {rank.rank}", rank.timeline) for rank in summary.ranks]
    rows += [_timeline_row(step.name, step.timeline) for step in summary.steps]
    more = f"<p>and {len(rows) - _MAX_ROWS} more</p>" if len(rows) > _MAX_ROWS else ""
    head = ("", "span", "compute", "exposed communication", "exposed copies", "idle")
    counts = (
        f"{len(summary.files)} file(s), {events.total} events, {events.gpu} on the GPU, "
        f"{events.gpu_orphan} of them without a launch, {len(summary.diagnostics)} diagnostics"
    )
    return f"<div><p>{escape(counts)}</p>{_table(head, rows[:_MAX_ROWS])}{more}</div>"


def _saves(finding: Finding) -> str:
    saving = finding.saving
    if saving is None:
        return ""
    unit = " per step" if saving.per_step else ""
    if not saving.simulated:
        return f"up to {format_ns(saving.high_ns)}{unit}"
    if not saving.best_ns:
        return "less than the steps vary"
    low, high = format_ns(saving.low_ns), format_ns(saving.high_ns)
    return f"{format_ns(saving.best_ns)}{unit} (simulated, {low} to {high})"


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """The findings with cost and saving, then how to fix each; what could not be checked."""
    parts = [f"<p><b>{escape(_verdict_line(diagnosis))}</b></p>"]
    replay = replay_text(diagnosis)
    if replay:
        parts.append(f"<p>{escape(replay[0].upper() + replay[1:])}.</p>")
    if diagnosis.findings:
        head = ("finding", "cost", "share", "saves", "sure")
        rows = (
            (
                f.title,
                format_ns(f.cost_ns),
                format_share(f.cost_share),
                _saves(f),
                f"{f.confidence:.0%}",
            )
            for f in diagnosis.findings
        )
        parts.append(_table(head, rows))
        parts += [_details(finding) for finding in diagnosis.findings]
    if diagnosis.abstained:
        lacks = ((name, "; ".join(signals)) for name, signals in diagnosis.abstained.items())
        table = _table(("could not be checked", "missing in the trace"), lacks)
        parts.append(f"<details><summary>Not checked</summary>{table}</details>")
    return f"<div>{''.join(parts)}</div>"


def _verdict_line(diagnosis: Diagnosis) -> str:
    over = f"of {format_ns(diagnosis.profiled_ns)} profiled"
    if not diagnosis.findings:
        return f"Nothing material found in {format_ns(diagnosis.profiled_ns)} profiled"
    first = diagnosis.findings[0]
    return f"{first.title}: {format_share(first.cost_share)} {over}"


def _details(finding: Finding) -> str:
    return (
        f"<details><summary>{escape(finding.title)}</summary><p>{escape(finding.why)}</p>"
        f"<p>{escape(finding.fix)}</p><pre>{escape(finding.code)}</pre></details>"
    )
