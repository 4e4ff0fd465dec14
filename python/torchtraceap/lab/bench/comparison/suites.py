"""Suites of comparisons with control of false discoveries; see Note [False discoveries]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchtraceap.core import Result, dataclass, read_toml
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.comparison.compare import (
    Comparison,
    Evidence,
    Sequential,
    build_comparison,
    record_evidence,
)
from torchtraceap.lab.bench.comparison.pairs import Pairs
from torchtraceap.lab.bench.comparison.sides import Side
from torchtraceap.lab.bench.statistics.sequential import FDR, Plan, q_values

__all__ = ["ComparisonSpec", "Comparisons", "SuiteEntry", "compare_many", "read_suite"]

_ALARMS = ("slower", "faster")
_KEYS = {"name", "a", "b", "program", "setup", "minimal_effect"}


@dataclass(frozen=True, slots=True)
class SuiteEntry:
    """One comparison of a suite."""

    name: str
    side_a: Side
    side_b: Side
    plan: Plan
    kept: Path | None = None


@dataclass(frozen=True, slots=True)
class ComparisonSpec:
    """One comparison of a suite file."""

    name: str
    a: str
    b: str
    program: str | None = None
    setup: str | None = None
    minimal_effect: float | str | None = None


@dataclass(frozen=True, slots=True)
class Comparisons(Result):
    """The verdicts of a suite."""

    fdr: float
    """The largest expected share of false alarms among the alarms."""
    comparisons: tuple[tuple[str, float, Comparison], ...]
    """Name, q value and verdict; an alarm that the suite does not confirm is undecided."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `torchtraceap bench compare --suite FILE --json`."""
        return {
            "schema": "torchtraceap.comparisons/1",
            "fdr": self.fdr,
            "slower": [name for name, _, each in self.comparisons if each.verdict == "slower"],
            "faster": [name for name, _, each in self.comparisons if each.verdict == "faster"],
            "comparisons": [
                {"name": name, "q": q, **each.to_dict()} for name, q, each in self.comparisons
            ],
        }


def compare_many(
    entries: Sequence[SuiteEntry],
    *,
    seed: int = 0,
    causes: bool = True,
    fdr: float = FDR,
    reproduce: str = "",
) -> Comparisons:
    """Run the comparisons of a suite one after the other, then correct for their number.

    Args:
        entries: The comparisons, with unique names.
        seed: Decides the orders within pairs.
        causes: True to record sides, for counts and causes.
        fdr: The largest expected share of false ones among the alarms.
        reproduce: The command to state.

    Raises:
        OptionError: There are none.
        ProgramError: A run failed twice.
    """
    if not entries:
        raise OptionError("a suite needs a comparison")
    begun = []
    for place, entry in enumerate(entries):
        pairs = Pairs(
            entry.side_a,
            entry.side_b,
            most=entry.plan.looks[-1],
            seed=seed + place,  # orders of comparisons must be independent
            kept=entry.kept,
            name=entry.name,
        )
        begun.append(Sequential(pairs, entry.plan))
    undecided = begun
    while undecided:  # alarms that the correction made too weak take further looks
        for each in undecided:
            each.decide()
        q = [float(value) for value in q_values([each.p for each in begun])]
        undecided = [
            each
            for each, value in zip(begun, q, strict=True)
            if each.looks[-1].verdict in _ALARMS and value > fdr and each.may_go_on
        ]
    found = []
    for place, (entry, each) in enumerate(zip(entries, begun, strict=True)):
        last = each.looks[-1]
        evidence = Evidence()
        if causes:
            evidence = record_evidence(entry.side_a, entry.side_b, last)
        verdict: str | None = None
        notes: list[str] = []
        if last.verdict in _ALARMS and q[place] > fdr:
            verdict = "undecided"
            notes = [
                f"alone this would be {last.verdict}; among the comparisons of the suite its q is "
                f"{q[place]:.2g}, more than {fdr:.2g}"
            ]
        comparison = build_comparison(
            each,
            entry.side_a,
            entry.side_b,
            evidence=evidence,
            seed=seed + place,
            reproduce=reproduce,
            verdict=verdict,
            notes=notes,
        )
        found.append((entry.name, q[place], comparison))
    return Comparisons(fdr, tuple(found))


def read_suite(path: Path) -> tuple[ComparisonSpec, ...]:
    """Read a TOML file with a table `[[compare]]` for each comparison.

    Raises:
        MissingFileError: There is no such file.
        OptionError: It is something else; the message says what.
    """
    document = read_toml(path)
    tables = document.get("compare")
    if not isinstance(tables, list) or not tables or document.keys() != {"compare"}:
        raise OptionError(f"{path}: a table [[compare]] for each comparison is needed, alone")
    found = []
    for number, table in enumerate(tables, 1):
        where = f"{path}: comparison {number}"
        if not isinstance(table, dict) or not {"a", "b"} <= table.keys():
            raise OptionError(f"{where} needs a and b")
        if unknown := table.keys() - _KEYS:
            raise OptionError(f"{where} has {sorted(unknown)[0]!r}; known are {sorted(_KEYS)}")
        texts = {key: value for key, value in table.items() if key != "minimal_effect"}
        if any(not isinstance(value, str) for value in texts.values()):
            raise OptionError(f"{where}: {', '.join(texts)} are texts")
        name = texts.pop("name", f"{table['a']} | {table['b']}")
        effect = table.get("minimal_effect")
        found.append(ComparisonSpec(name=name, minimal_effect=effect, **texts))
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        raise OptionError(f"{path}: two comparisons have the same name")
    return tuple(found)
