"""Answers to questions from the tables of a trace: their sentences and the numbers that they cite.

`topics` says which words of a question lead to which table. An answer names the command that shows
the same table, and every number in it is one of its citations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core.formatting import plain_line
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.records import dataclass
from torchtraceap.explanation.numbers import Metric, numbers_in
from torchtraceap.explanation.segments import finding_of, rule_says
from torchtraceap.explanation.tools import Toolbox

if TYPE_CHECKING:
    from torchtraceap.core.results import Finding
    from torchtraceap.core.table import ColumnTable
    from torchtraceap.diagnosis.result import Diagnosis

__all__ = ["Asked", "Filter", "Measure", "Ranking", "tell_ranking"]

MOST_NAME = 90
"""Most characters of a name in an answer."""
MOST_ROWS = 10
_ROWS = 3
_FINDINGS = 2
_NOTES = 2
_WORDS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10,
}  # fmt: skip
_NUMBER = rf"\d{{1,6}}|{'|'.join(_WORDS)}"
_TOP = re.compile(
    rf"\b(?:top|first|worst) ({_NUMBER})\b"
    rf"|\b({_NUMBER}) (?:most|longest|slowest|largest|worst)\b"
)
_LEAST = re.compile(r"\b(least|fewest|shortest|smallest|lowest|fastest|cheapest|rarely)\b")
_HOW_MANY = re.compile(r"\b(how many|number of|count of)\b")
_TOTAL = re.compile(r"\b(how much|how long|total|altogether|overall|share|fraction|per ?cent)\b")
_YES_OR_NO = re.compile(r"^\W*(is|are|was|were|do|does|did|has|have|can|could|any)\b")
_RANK = re.compile(r"\brank\s*#?(\d{1,6})\b")
_OF_RANK = re.compile(r"\b(?:on|of|in|for) rank #?\d{1,6}\b")
_STEP = re.compile(r"\b(?:step|iteration|profilerstep)\s*#?(\d{1,9})\b")


@dataclass(frozen=True, slots=True)
class Measure:
    """A column by which rows can be ranked."""

    column: str
    most: str
    """The merit of the first row, such as "the most time in total"."""
    least: str = ""
    words: str = ""
    """Pattern of words that ask for it; the first measure needs none."""
    sums: bool = False
    """Its sum over the rows is the time that they have together."""
    rises: bool = False
    """The smallest is the most telling."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Rows of which a text column matches a pattern."""

    column: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """Rows of a table in the order of one of its columns."""

    table: str
    """The name of its command."""
    rows: str
    """The name of the rows, in the plural."""
    name: str
    """The column that names a row."""
    measures: Sequence[Measure]
    """The first is taken where no other is asked for."""
    show: Sequence[tuple[str, str]]
    """Columns, with what is said of each: "{} in total"."""
    options: Mapping[str, Any] = field(default_factory=dict)
    counted: tuple[str, str] = ("", "")
    """The column that counts the events of a row, and what they are."""
    only: Filter | None = None
    without: str = ""
    """The answer where no row is left; the notes of the table follow."""


class Asked:
    """A question about a trace, with the answer that grows from it.

    Args:
        diagnosis: The trace's diagnosis.
        question: The question.
    """

    def __init__(self, diagnosis: Diagnosis, question: str) -> None:
        self.diagnosis, self.question = diagnosis, question
        self.box = Toolbox(diagnosis.trace, diagnosis=diagnosis)
        self.text = " ".join(question.casefold().replace("-", " ").split())
        self._subject = _OF_RANK.sub(" ", self.text)
        self.lines: list[str] = []
        self.citations: list[Metric] = []
        self.commands: list[str] = []

    def asks(self, pattern: str) -> bool:
        """Return True if the question has words that match a pattern; the rank to which it is
        limited is none of them."""
        return bool(re.search(rf"\b(?:{pattern})\b", self._subject))

    @property
    def asks_for_least(self) -> bool:
        return bool(_LEAST.search(self.text))

    @property
    def asks_how_many(self) -> bool:
        return bool(_HOW_MANY.search(self.text))

    @property
    def asks_for_total(self) -> bool:
        return bool(_TOTAL.search(self.text))

    @property
    def asks_yes_or_no(self) -> bool:
        return bool(_YES_OR_NO.search(self.text))

    @property
    def most_rows(self) -> int:
        """Rows that the question wants, `_ROWS` where it names no number."""
        found = _TOP.search(self.text)
        if found is None:
            return _ROWS
        word = found[1] or found[2]
        return min(MOST_ROWS, max(1, _WORDS.get(word) or int(word)))

    @property
    def rank(self) -> int | None:
        """The rank that the question names, where the trace has several and this one."""
        found = _RANK.search(self.text)
        known = [rank.rank for rank in self.diagnosis.trace.ranks]
        return int(found[1]) if found and len(known) > 1 and int(found[1]) in known else None

    @property
    def names_unknown_rank(self) -> bool:
        return bool(_OF_RANK.search(self.text)) and self.rank is None

    @property
    def step(self) -> int | None:
        """The number of the step that the question names."""
        found = _STEP.search(self.text)
        return int(found[1]) if found else None

    def table(self, name: str, *, per_rank: bool = True, **options: Any) -> ColumnTable:
        """Return a table, and name its command as one on which the answer stands."""
        rank = self.rank if per_rank else None
        view = f" --by {options['by']}" if "by" in options else ""
        of_rank = "" if rank is None else f" --rank {rank}"
        self.stand_on(f"{name} PATH{view}{of_rank}")
        return self.box.table(name, rank=rank, **options)

    def stand_on(self, command: str) -> None:
        """Name a command that shows what the answer rests on."""
        if command not in self.commands:
            self.commands.append(command)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def cite(self, name: str, column: str, value: float) -> str:
        """Return a number as a person reads it, and cite it.

        Args:
            name: The row or object that has it, dotted.
            column: Its column, whose ending is the unit.
            value: In that unit.
        """
        metric = _metric_of(f"{name}.{column}", column, value)
        if metric not in self.citations:
            self.citations.append(metric)
        return metric.text

    def say_notes(self, table: ColumnTable, otherwise: str) -> None:
        """Say that a table has no answer, and what it says of itself: such notes name the option
        that records what is missing."""
        self.say(otherwise)
        told = [note for note in table.notes if not numbers_in(note)]
        self.lines += [plain_line(note, 300) for note in told[:_NOTES]]

    def say_findings(self, types: Iterable[str]) -> None:
        """Say which of some findings the trace has; to a question with yes or no also that they
        were looked for and not found, or could not be checked."""
        known = list(types)
        present = [f for name in known if (f := finding_of(self.diagnosis, name)) is not None]
        if self.asks_yes_or_no:
            for name in known[: 1 if present else _FINDINGS]:
                if finding_of(self.diagnosis, name) is None:
                    self.say_verdict(name)
        for finding in present[:_FINDINGS]:
            self.say_finding(finding)

    def say_verdict(self, name: str) -> None:
        """Say of a type without a finding that it is absent or could not be checked."""
        self.stand_on("diagnose PATH")
        absent = rule_says(self.diagnosis, name) == "absent"
        lacks = ", ".join(self.diagnosis.abstained.get(name, ()))
        said = "was looked for and not found" if absent else "could not be checked"
        why = f": the trace lacks {lacks}" if lacks and not absent else ""
        self.say(f"{load_knowledge()[name].title} ({name}): {said} in this trace{why}.")

    def say_finding(self, finding: Finding) -> None:
        """Say what a finding costs, what its fix saves, and the fix."""
        self.stand_on("diagnose PATH")
        of = f"finding.{finding.type}"
        cost = self.cite(of, "cost_ns", finding.cost_ns)
        share = self.cite(of, "cost_share", finding.cost_share)
        line = f"{finding.title} ({finding.type}): it costs {cost}, {share} of the profiled time."
        saving = finding.saving
        if saving is not None and saving.believed_ns:
            how = "saves" if saving.simulated else "saves at most"
            per = "a step" if saving.per_step else "the profiled time"
            gain = self.cite(of, "saving_ns", saving.believed_ns)
            line += f" A fix {how} {gain} of {per}."
        self.say(line)
        self.say(f"Change: {finding.fix}")


def _metric_of(name: str, column: str, value: float) -> Metric:
    if column.endswith("_ns"):
        return Metric.of_ns(name, round(value))
    if column.endswith("_bytes"):
        return Metric.of_bytes(name, round(value))
    if column.endswith("_share") or column == "gpu_busy":
        return Metric.of_share(name, value)
    if column.endswith("_gb_per_s"):
        return Metric.of_rate(name, value, "GB/s")
    return Metric.of_count(name, value) if isinstance(value, int) else Metric.of_rate(name, value)


def tell_ranking(asked: Asked, ranking: Ranking) -> None:
    """Answer with the first rows of a table, in the order for which the question asks."""
    per_rank = ranking.table not in ("collectives", "ranks", "critical-path", "quality")
    table = asked.table(ranking.table, per_rank=per_rank, **ranking.options)
    kept = _rows_of(table, ranking.only) if ranking.only else table
    measure, known = _measure(asked, ranking, kept)
    if not known:
        asked.say_notes(table, ranking.without or f"The trace has no {ranking.rows}.")
        return
    least = asked.asks_for_least and bool(measure.least)
    kept = kept.sort(measure.column, descending=not (least or measure.rises))
    if asked.asks_how_many:
        rows = asked.cite(ranking.table, "rows", kept.num_rows)
        column, counted = ranking.counted
        events = (
            asked.cite(ranking.table, f"all.{column}", int(kept[column].sum())) if column else ""
        )
        asked.say(
            f"{rows} different {ranking.rows}{f' with {events} {counted}' if column else ''}."
        )
    if measure.sums and asked.asks_for_total:
        total = asked.cite(ranking.table, f"all.{measure.column}", int(kept[measure.column].sum()))
        asked.say(f"All {ranking.rows} together: {total}.")
    asked.say(f"The {ranking.rows} with {measure.least if least else measure.most}:")
    for place, row in enumerate(kept.take(slice(0, asked.most_rows)).records(), 1):
        if row[measure.column] is None:
            break
        asked.say(f"- {_describe(asked, ranking, measure, place, row)}")


def _rows_of(table: ColumnTable, only: Filter) -> ColumnTable:
    wanted = re.compile(only.pattern, re.IGNORECASE)
    texts = [text or "" for text in table.to_list(only.column)]
    return table.take(np.flatnonzero([bool(wanted.search(text)) for text in texts]))


def _measure(asked: Asked, ranking: Ranking, table: ColumnTable) -> tuple[Measure, bool]:
    """Return the measure for which a question asks, and whether a row has it; where nobody asks,
    the first that is not zero everywhere."""

    def total(measure: Measure) -> float:
        values = [value for value in table.to_list(measure.column) if value is not None]
        return sum(map(abs, values)) if values else -1.0

    there = [measure for measure in ranking.measures if measure.column in table]
    for measure in there:
        if measure.words and asked.asks(measure.words):
            return measure, total(measure) >= 0
    found = next((measure for measure in there if total(measure) > 0), ranking.measures[0])
    return found, found.column in table and total(found) >= 0 and table.num_rows > 0


def _describe(
    asked: Asked, ranking: Ranking, measure: Measure, place: int, row: Mapping[str, Any]
) -> str:
    """Return a row as its name, the measure, and what else is shown of it."""
    of = f"{ranking.table}.{place}"
    said, texts = [], dict(ranking.show)
    columns = [measure.column, *(name for name in texts if name != measure.column)]
    for column in columns:
        value = row.get(column)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            continue
        if not value and column != measure.column:
            continue
        template = texts.get(column, "{} " + _words_of(column))
        if value == 1 and template.endswith("s"):
            template = re.sub(
                r"(?<=cop)ies$|s$", lambda end: "y" if end[0] == "ies" else "", template
            )
        written = plain_line(value, 60) if isinstance(value, str) else asked.cite(of, column, value)
        said.append(template.format(written))
    rank = f"rank {asked.cite(of, 'rank', row['rank'])}: " if row.get("rank") is not None else ""
    name = row[ranking.name]
    if isinstance(name, list):
        name = ", ".join(map(str, name))
    elif isinstance(name, int):
        name = f"{ranking.name} {asked.cite(of, ranking.name, name)}"
    return f"{rank}{plain_line(str(name), MOST_NAME)}: {', '.join(said)}"


def _words_of(column: str) -> str:
    return re.sub(r"_(ns|share|bytes|gb_per_s)$", "", column).replace("_", " ")
