"""Reports of comparisons and calibrations in words and tables."""

from __future__ import annotations

from collections.abc import Iterator

from torchtraceap.core import format_ns, pluralize
from torchtraceap.lab.bench.comparison.calibrate import Calibration
from torchtraceap.lab.bench.comparison.compare import Comparison, CountChange, Evidence
from torchtraceap.lab.bench.comparison.suites import Comparisons
from torchtraceap.report import TextTable

__all__ = [
    "calibration_tables",
    "cause_lines",
    "comparison_lines",
    "false_alarms_line",
    "percent",
    "suite_tables",
]

_MOST_CAUSES = 5
_MOST_COUNTS = 12
_LEAST_SHARE = 0.01
"""The smallest share of the difference for which a cause gets a line."""


def percent(change: float | None, *, sign: bool = True) -> str:
    """Format a fraction as a percentage with its sign; "?" if unknown."""
    if change is None:
        return "?"
    digits = 2 if abs(change) < 0.0095 else 1
    return f"{100 * change:{'+' if sign else ''}.{digits}f} %"


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return the verdict, then its basis, as lines."""
    found, evidence = comparison, comparison.evidence
    lines = [
        _verdict(found),
        f"A  {format_ns(found.before_ns)}  {found.before}",
        f"B  {format_ns(found.after_ns)}  {found.after}",
    ]
    if changed := found.changed_counts:
        shown = [_count(count) for count in changed[:_MOST_COUNTS]]
        shown += [f"{len(changed) - _MOST_COUNTS} more"] if len(changed) > _MOST_COUNTS else []
        lines.append(f"counts changed (a {evidence.counted_by}): {', '.join(shown)}")
    elif evidence.counts:
        known = sum(None not in (each.before, each.after) for each in evidence.counts)
        lines.append(f"counts: none of {known} changed")
    if found.verdict != "equivalent":  # the difference of two equivalent recordings is noise
        lines += cause_lines(evidence)
    if found.rules:
        said = (f"{name} {rule['says']} ({percent(rule['change'])})"
                for name, rule in found.rules.items())  # fmt: skip
        lines.append("other rules on the same runs: " + ", ".join(said))
    lines += [f"note: {note}" for note in found.notes]
    lines += [f"again: {found.reproduce}"] if found.reproduce else []
    return lines


def _verdict(found: Comparison) -> str:
    runs = pluralize(found.pairs, "pair") if found.pairs else "no pairs"
    interval = f"{percent(found.low)} to {percent(found.high)}"
    rest = f"({interval} with {100 * found.confidence:.4g} % confidence; {runs})"
    if found.verdict in ("slower", "faster"):
        more = "longer" if found.verdict == "slower" else "less time"
        size = percent(abs(found.best), sign=False)
        return f"{found.verdict}: B takes {size} {more} than A {rest}"
    minimal = percent(found.minimal_effect, sign=False)
    if found.low is None:
        return f"undecided: {runs} can't say anything yet, best guess {percent(found.best)}"
    if found.verdict == "equivalent":
        return f"equivalent: B is within {minimal} of A, best guess {percent(found.best)} {rest}"
    return f"undecided: B relative to A may be anything in {interval}, best guess " + (
        f"{percent(found.best)}; minimal effect {minimal} {rest.replace(interval + ' ', '')}"
    )


def _count(count: CountChange) -> str:
    return f"{count.key} {count.before} to {count.after}"


def cause_lines(evidence: Evidence) -> Iterator[str]:
    """Yield the causes of a difference, with what moved, came and went, as lines."""
    causes = evidence.causes
    if not causes:
        return
    shown = [cause for cause in causes if abs(cause["share"]) >= _LEAST_SHARE][:_MOST_CAUSES]
    for cause in shown:
        delta = _signed_ns(cause["delta_ns"])
        yield f"cause: {delta} {100 * cause['share']:.0f} %  {cause['sentence']}"
    if len(causes) > len(shown):
        yield f"cause: {len(causes) - len(shown)} more, with --json"
    if evidence.traced_difference_ns is not None:
        total = _signed_ns(evidence.traced_difference_ns)
        yield f"causes sum to {total} a step, the difference of the two recordings"
    for moved in evidence.moved[:_MOST_CAUSES]:
        places = f"from {moved['before'] or 'the step'} to {moved['after'] or 'the step'}"
        yield f"moved, no cause: {moved['name']} {places}"
    for when, entries in (evidence.findings or {}).items():
        for entry in entries:
            yield f"finding {when}: {entry['title']}"
    if price := evidence.price:
        yield (
            f"price: fixing {price['finding']} would save {format_ns(price['saving_ns'])} a step, "
            f"{100 * price['share']:.0f} % of the difference, by simulation"
        )


def _signed_ns(ns: int) -> str:
    return f"{'-' if ns < 0 else '+'}{format_ns(abs(ns))}"


def suite_tables(found: Comparisons) -> list[TextTable]:
    """Return a table with a row for each comparison."""
    rows = [
        [
            name,
            each.verdict,
            percent(each.best),
            percent(each.low),
            percent(each.high),
            str(each.pairs),
            f"{q:.2g}",
            ", ".join(_count(count) for count in each.changed_counts[:3]),
        ]
        for name, q, each in found.comparisons
    ]
    columns = ("name", "verdict", "change", "low", "high", "pairs", "q", "counts changed")
    note = f"False ones among slower and faster: {100 * found.fdr:.0f} % at most on average."
    return [TextTable("comparisons", columns, rows, note, first=(0, 1, 2))]


def false_alarms_line(found: Calibration) -> str:
    """Summarize a calibration in one line."""
    alarms = found.false_alarms
    return (
        f"false alarms: {100 * alarms.value:.2g} % of {alarms.of} comparisons with itself "
        f"({100 * alarms.low:.2g} to {100 * alarms.high:.2g} %, 95 %; alpha is "
        f"{100 * found.alpha:.2g} %)"
    )


def calibration_tables(found: Calibration) -> list[TextTable]:
    """Return tables of the noise, and of the answers of each rule to each effect."""
    noise = found.noise
    least = found.least_effect
    figures = [
        ["runs", str(found.runs)],
        ["median step", format_ns(found.median_ns)],
        ["run to run (1 sd)", percent(noise.run, sign=False)],
        ["whole sequence (1 sd)", percent(noise.whole, sign=False)],
        ["drift (1 sd)", percent(noise.drift, sign=False)],
        ["trend, first to last run", percent(noise.trend)],
        ["correlation with the run before", f"{noise.lag_one:.2f}"],
        ["slow runs", percent(noise.slow_runs, sign=False)],
        ["step to step in a run (1 sd)", percent(noise.step, sign=False)],
        [
            f"least effect that {found.looks[-1]} pairs find in 90 %",
            "more than 100 %" if least is None else percent(least, sign=False),
        ],
    ]
    columns = ("rule", "planted", "flagged", "95 % interval", "undecided", "runs a side")
    rows = [
        [
            row.rule,
            "none (A/A)" if not row.effect else percent(row.effect),
            f"{100 * row.flagged.value:.1f} %",
            f"{100 * row.flagged.low:.1f}-{100 * row.flagged.high:.1f} %",
            f"{100 * row.undecided:.1f} %",
            f"{row.pairs:.1f}",
        ]
        for row in found.rows
    ]
    title = (
        f"{found.comparisons} comparisons of each rule, minimal effect "
        f"{percent(found.minimal_effect, sign=False)}, alpha {found.alpha:g}"
    )
    return [
        TextTable(f"noise of {found.name}", ("what", "value"), figures),
        TextTable(title, columns, rows, " ".join(found.notes), whole=True),
    ]
