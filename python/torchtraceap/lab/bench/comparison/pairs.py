"""Pairs of fresh runs, one of each side, in an order that was drawn before the first run.

Note [Kept comparisons]: a comparison has a folder under `comparisons/` of the store, named by what
it compares: the words or commits of both sides, the contents of files that its commands name, looks
and seed. Pairs are written as they come. The verdict comes last, and a folder that has one is left
as it is: the next comparison of the same takes a new folder, so old times never mix with new ones.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.core import (
    Array,
    Result,
    check_fields,
    dataclass,
    naming,
    progress_stage,
    read_json_lines,
    write_text,
)
from torchtraceap.errors import OptionError, SchemaError
from torchtraceap.lab.bench.comparison.sides import (
    ProgramSide,
    Side,
    run_side,
    sides_can_take_turns,
    steps_of_last_run,
    take_turns,
    work_ratios,
)
from torchtraceap.lab.bench.processes.cleaner import working_folder
from torchtraceap.lab.bench.processes.programs import ProgramError
from torchtraceap.lab.bench.statistics.sequential import abba

__all__ = ["PAIRS", "Pair", "Pairs", "keep", "make_folder", "parent_folder"]

PAIRS = "pairs.jsonl"
_VERDICT = "comparison.json"


@dataclass(frozen=True, slots=True)
class Pair:
    """One run of each side, next to each other in time."""

    order: str
    """"AB" or "BA"."""
    before_ns: int
    """Median step of A."""
    after_ns: int
    before_step_ns: tuple[int, ...]
    """All steps of the run of A."""
    after_step_ns: tuple[int, ...]
    load: float
    """Runnable processes before the pair began, averaged over the last minute, our own included."""
    log_ratio: float
    """Log ratio after / before: of the medians, or the median over steps that took turns."""
    exchanges: int = 0
    """Number of steps that took turns; 0 if one run followed the other."""
    work: Mapping[str, float] = field(default_factory=dict)
    """Log ratios of processor time ("cpu") and retired "instructions", where both are known."""


class Pairs:
    """Runs of two sides in turn, with their times."""

    def __init__(
        self,
        side_a: Side,
        side_b: Side,
        *,
        most: int,
        seed: int,
        kept: Path | None = None,
        name: str = "",
        deadline_s: float = math.inf,
    ) -> None:
        """Prepare up to `most` pairs in orders that `seed` draws.

        `kept` is a file of JSON lines with the pairs so far; a comparison that was interrupted goes
        on from it. Progress shows `name`. No pair begins that would, by the longest so far, end
        behind `deadline_s` of the monotonic clock.

        Raises:
            OptionError: The file is none of such pairs.
        """
        self._side_a, self._side_b = side_a, side_b
        self._a_first = abba(most, np.random.default_rng(seed))
        self._kept = kept
        self._seed = seed
        self._in_turns = False
        self._most = most
        self._name = f"{name}: " if name else ""
        self._warm = False
        self._deadline_s, self._longest_s = deadline_s, 0.0
        self.pairs: list[Pair] = _read(kept, self._a_first) if kept and kept.exists() else []
        self.resumed = len(self.pairs)
        """Pairs that were there already."""

    def until(self, count: int) -> Array:
        """Return the log ratios after / before of so many pairs, or of all for which there was
        time, after running the missing ones.

        Raises:
            ProgramError: A run failed twice.
        """
        if len(self.pairs) < count and not self._warm:
            began_s = time.monotonic()
            with progress_stage(f"{self._name}warming up"):
                self._run(True)  # not counted: files and pages are not cached yet
            self._warm, self._longest_s = True, time.monotonic() - began_s
            self._in_turns = sides_can_take_turns(self._side_a, self._side_b)
        while len(self.pairs) < count and not (self.pairs and self.is_over):
            number, began_s = len(self.pairs), time.monotonic()
            with progress_stage(f"{self._name}pair {number + 1} of at most {self._most}"):
                self.pairs.append(self._run(bool(self._a_first[number])))
            self._longest_s = max(self._longest_s, time.monotonic() - began_s)
            if self._kept is not None:
                lines = (json.dumps(asdict(pair), separators=(",", ":")) for pair in self.pairs)
                write_text(self._kept, "\n".join(lines) + "\n")
        return np.array([pair.log_ratio for pair in self.pairs[:count]])

    @property
    def is_over(self) -> bool:
        """True if there is no time for another pair."""
        return time.monotonic() + self._longest_s > self._deadline_s

    def work(self, name: str) -> Array | None:
        """Return the log ratios of another measure of all pairs so far; None if one lacks it."""
        if not self.pairs or any(name not in pair.work for pair in self.pairs):
            return None
        return np.array([pair.work[name] for pair in self.pairs])

    def _run(self, a_first: bool) -> Pair:
        order, load = "AB" if a_first else "BA", round(os.getloadavg()[0], 2)
        if self._in_turns:
            a, b = self._side_a, self._side_b
            assert isinstance(a, ProgramSide) and isinstance(b, ProgramSide)
            seed = len(self.pairs) + self._seed
            try:
                ratio, exchanges = take_turns(a, b, seed)
            except ProgramError:  # a run that fails is tried once more
                ratio, exchanges = take_turns(a, b, seed)
            assert a.last is not None and b.last is not None
            before_ns, before = a.last.median_ns, a.last.step_ns
            after_ns, after = b.last.median_ns, b.last.step_ns
            work = work_ratios(a.last, b.last, exchanges)
        else:
            taken: dict[str, tuple[int, tuple[int, ...]]] = {}
            for label in order:
                side = self._side_a if label == "A" else self._side_b
                median_ns = max(1, run_side(side, f"side {label} ({side.name})"))
                taken[label] = median_ns, tuple(steps_of_last_run(side, median_ns).tolist())
            (before_ns, before), (after_ns, after) = taken["A"], taken["B"]
            ratio, exchanges = float(np.log(after_ns / before_ns)), 0
            a_run, b_run = (getattr(side, "last", None) for side in (self._side_a, self._side_b))
            work = work_ratios(a_run, b_run) if a_run and b_run else {}
        return Pair(order, before_ns, after_ns, before, after, load, ratio, exchanges, work)


_PAIR: dict[str, type] = {
    "order": str, "before_ns": int, "after_ns": int, "before_step_ns": list,
    "after_step_ns": list, "load": float, "log_ratio": float, "exchanges": int, "work": dict,
}  # fmt: skip


def _read(path: Path, a_first: Array) -> list[Pair]:
    try:
        found = []
        for place, row in read_json_lines(path):
            row.setdefault("work", {})  # files of older versions
            check_fields(row, _PAIR, place)
            steps = ("before_step_ns", "after_step_ns")
            if not all(type(ns) is int for name in steps for ns in row[name]):
                raise SchemaError(f"{place}: whole nanoseconds of steps are needed")
            if not all(isinstance(ratio, float) for ratio in row["work"].values()):
                raise SchemaError(f"{place}: log ratios of work are numbers")
            found.append(Pair(*(kind(row[name]) for name, kind in _PAIR.items())))
    except SchemaError as error:
        raise OptionError(f"{path}: holds no pairs of runs ({error})") from error
    for pair, first in zip(found, a_first, strict=False):
        if (pair.order == "AB") != bool(first) or min(pair.before_ns, pair.after_ns) < 1:
            raise OptionError(f"{path}: holds pairs of another comparison")
    return found[: len(a_first)]


# ------------------------------------------------------------------------- kept comparisons


@contextmanager
def parent_folder(store: str | None) -> Iterator[Path]:
    """Yield the folder of comparisons of a store; without a store, a temporary folder."""
    if store is not None:
        yield Path(store) / "comparisons"
        return
    with working_folder() as folder:
        yield folder


def make_folder(
    parent: Path, side_a: ProgramSide, side_b: ProgramSide, settings: Sequence[Any]
) -> Path:
    """Make and return the folder of an undecided comparison, which also takes its traces.

    Raises:
        OutputError: It can't be made.
    """
    # A comparison is resumed only where both sides and the settings are the same.
    text = json.dumps([side_a.identity, side_b.identity, *settings])
    key = sha256(text.encode()).hexdigest()[:16]
    names = (key if number == 1 else f"{key}-{number}" for number in count(1))
    folder = next(each for each in map(parent.joinpath, names) if not (each / _VERDICT).exists())
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    side_a.target, side_b.target = folder / "before.json.gz", folder / "after.json.gz"
    return folder


def keep(folder: Path, result: Result) -> None:
    """Write the verdict of a decided comparison.

    Raises:
        OutputError: It can't be written.
    """
    write_text(folder / _VERDICT, json.dumps(result.to_dict(), allow_nan=False) + "\n")
