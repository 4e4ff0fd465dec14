"""The answer of `torchtraceap ci` in words: for a terminal, and as a comment of a pull request.

Names in it come from traces, commits and programs of others. The terminal's guard is that of all
commands; for Markdown `_text` and `_code` make them harmless.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchtraceap.contracts import markdown_of
from torchtraceap.core import escape_markdown, plain_line, pluralize
from torchtraceap.lab.bench.ci import MEASURE_WORDS, ChangeVerdict
from torchtraceap.lab.bench.comparison.compare import fraction_from_log
from torchtraceap.lab.bench.comparison.report import cause_lines, comparison_lines, percent

__all__ = ["ci_markdown", "ci_text"]

MARK = "<!-- torchtraceap ci -->"
"""The first line of the comment, by which a bot finds its own again."""
_SIGNS = {"passed": "✅", "failed": "❌", "broken": "❌"}
_MOST_CALLS = 5


def headline(found: ChangeVerdict) -> str:
    """Return the answer in one line."""
    if found.verdict == "broken":
        return "can't be judged, as a commit does not run"
    said = []
    risen = [each for each in found.changed_counts if each.key.partition(".")[0] in found.failures]
    said += [f"{each.key} {each.before:,} → {each.after:,}" for each in risen]
    if "contract" in found.failures:
        said.append("contract broken")
    if found.comparison is not None and found.time_verdict is not None:
        change = percent(found.comparison.best)
        said.append(f"{found.time_verdict} ({change})")
    others = len(found.changed_counts) - len(risen)
    if others:
        more = "other count" if risen else "count"
        said.append(f"{pluralize(others, more)} changed")
    elif not risen and found.counts:
        said.append("no count changed")
    return ", ".join(said) or "nothing could be measured"


def ci_text(found: ChangeVerdict) -> str:
    """Write the answer for a terminal."""
    asked = found.question
    lines = [
        f"{found.verdict}: {headline(found)}",
        f"base  {asked.base.short}  {plain_line(asked.base.title)}",
        f"head  {asked.head.short}  {plain_line(asked.head.title)}",
    ]
    lines += [
        f"count: {each.key} {each.before:,} to {each.after:,} a {found.counted_by}"
        for each in found.changed_counts
    ]
    lines += [f"cause: {call}" for call in _calls(found)]
    if found.comparison is not None:
        lines += comparison_lines(found.comparison)
        for name, best, low, high, verdict in _measures(found):
            if name != "time":
                lines.append(f"{MEASURE_WORDS[name]}: {verdict}, {best} ({low} to {high})")
    return "\n".join([*lines, *(f"note: {note}" for note in _notes(found))])


def ci_markdown(found: ChangeVerdict) -> str:
    """Write the answer as one comment, which each push writes anew."""
    asked = found.question
    lines = [
        MARK,
        f"## {_SIGNS[found.verdict]} Performance: {_text(headline(found))}",
        "",
        f"`{asked.head.short}` {_text(asked.head.title)}, compared with `{asked.base.short}` "
        f"{_text(asked.base.title)} on one machine.",
    ]
    if found.changed_counts:
        lines += ["", f"| count of a {found.counted_by} | base | head |", "|---|---|---|"]
        lines += [
            f"| {_text(each.key)} | {each.before:,} | {each.after:,} |"
            for each in found.changed_counts
        ]
        lines += ["", *(f"- {_text(call)}" for call in _calls(found))]
    if found.comparison is not None:
        pairs = found.comparison.pairs
        lines += ["", f"| {pairs} pairs | verdict | change | at least | at most |",
                  "|---|---|---|---|---|"]  # fmt: skip
        lines += [
            f"| {MEASURE_WORDS[name]} | {verdict} | {best} | {low} | {high} |"
            for name, best, low, high, verdict in _measures(found)
        ]
        if found.decided_by != "time":
            lines += ["", f"Decided by {MEASURE_WORDS[found.decided_by]}."]
        causes = list(cause_lines(found.comparison.evidence))
        lines += ["", *(f"- {_text(cause)}" for cause in causes)]
    broken = [each for each in found.checks[1:] if not each.passed]
    if broken:
        _, _, told = markdown_of(broken).partition("\n")
        lines += ["", told.replace("## ", "### ", 1)]
    if notes := _notes(found):
        lines += ["", "<details><summary>Notes</summary>", ""]
        lines += [*(f"- {_text(note)}" for note in notes), "", "</details>"]
    if asked.reproduce:
        lines += ["", f"Again: `{_code(asked.reproduce)}`"]
    return "\n".join(lines).rstrip() + "\n"


def _measures(found: ChangeVerdict) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield name, change with its ends, and verdict of each measure."""
    for name, look in found.last_looks.items():
        ends = (percent(fraction_from_log(value)) for value in (look.best, look.low, look.high))
        best, low, high = ends
        yield name, best, low, high, look.verdict


def _calls(found: ChangeVerdict) -> list[str]:
    """Return the calls that differ, the largest differences first."""
    lines = [
        f"{call['name']}: {call['before']:g} to {call['after']:g} calls"
        for call in found.calls[:_MOST_CALLS]
    ]
    more = len(found.calls) - len(lines)
    return [*lines, f"{more} more, in ci.json"] if more > 0 else lines


def _notes(found: ChangeVerdict) -> list[str]:
    notes = list(found.notes)
    if found.comparison is not None and found.no_instructions:
        notes.append(found.no_instructions)
    if found.counted_after_s is not None:
        notes.append(f"counts were told after {found.counted_after_s:.0f} s")
    if found.seconds:
        notes.append(f"all runs took {found.seconds:.0f} s")
    return notes


def _text(text: str) -> str:
    return escape_markdown(plain_line(text, 500))


def _code(text: str) -> str:
    """Return a text for the inside of backticks."""
    return plain_line(text, 1000).replace("`", "'")
