"""Selection of the workloads that cover most in a given time.

Note [Choosing]: which set covers most within a budget is NP-hard, and so is the cheapest set that
covers all. Both are chosen greedily: again and again the one that adds most for its seconds.

- Within a budget, the better of that and of the single one that covers most is at least
  (1 - 1/e) / 2, 0.316, of the best that any choice could cover (Khuller, Moss and Naor, 1999). The
  (1 - 1/e) of the textbooks holds where all cost the same.
- For all, it costs at most 1 + ln(n) times the cheapest set, with n the most that one of them
  covers (Chvatal, 1979).

Both are far from what happens, so that a bound for the very choice is given too: no choice can
cover more than the chosen ones and, of what others add to these, as much as the budget buys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from torchtraceap.core import Result, dataclass
from torchtraceap.errors import OptionError

__all__ = ["Candidate", "Selection", "select"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A workload that can be chosen."""

    name: str
    mode: str
    seconds: float
    """Time to run it."""
    covers: frozenset[str]
    measured: bool = False
    """True if `seconds` come from a kept run rather than from the suite's file."""
    adds: int = 0
    """If it is chosen, the number of items that earlier choices do not cover."""


@dataclass(frozen=True, slots=True)
class Selection(Result):
    """A selection in the order in which it was made."""

    budget_s: float | None
    """The time budget; None to cover everything."""
    chosen: tuple[Candidate, ...]
    seconds: float
    covered: int
    of: int
    """Items that all candidates cover together."""
    bound: int
    """An upper bound of the coverage of any selection within this budget."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; of the chosen ones without what they cover."""
        names = ("name", "mode", "seconds", "measured", "adds")
        chosen = [{name: getattr(each, name) for name in names} for each in self.chosen]
        return {**Result.to_dict(replace(self, chosen=())), "chosen": chosen}

    @property
    def share(self) -> float:
        """Share of everything that all candidates cover."""
        return self.covered / self.of if self.of else 1.0


def select(candidates: Sequence[Candidate], budget_s: float | None = None) -> Selection:
    """Select workloads as in Note [Choosing]; ties are broken by name.

    Without a budget in seconds all is to be covered, and one that the others make needless is left
    out again.

    Raises:
        OptionError: The budget or a cost makes no sense.
    """
    if budget_s is not None and not 0 < budget_s < math.inf:
        raise OptionError(f"a budget of {budget_s} seconds makes no sense")
    for each in candidates:
        if not 0 <= each.seconds < math.inf:
            raise OptionError(f"{each.name} takes {each.seconds} seconds, which makes no sense")
    ordered = sorted(candidates, key=lambda each: (each.name, each.mode))
    limit = math.inf if budget_s is None else budget_s
    affordable = [each for each in ordered if each.seconds <= limit]
    chosen = _choose_greedily(ordered, limit)
    if budget_s is None:  # those whose items others cover by now, the most expensive first
        for each in sorted(chosen, key=lambda one: -one.seconds):
            others = [other for other in chosen if other is not each]
            if each.covers <= _union(others):
                chosen = others
    else:
        best = max(affordable, key=lambda each: len(each.covers), default=None)
        if best is not None and len(best.covers) > len(_union(chosen)):
            chosen = _choose_greedily(ordered, limit, first=best)
    covered, told = set[str](), []
    for each in chosen:
        adds = len(each.covers - covered)
        told.append(replace(each, adds=adds))
        covered |= each.covers
    reachable = len(_union(affordable))
    bound = reachable
    if budget_s is not None:
        bound = min(_bound(covered, affordable, budget_s), reachable)
    return Selection(
        budget_s,
        tuple(told),
        sum(each.seconds for each in chosen),
        len(covered),
        len(_union(ordered)),
        bound,
    )


def _choose_greedily(
    ordered: Sequence[Candidate], limit: float, first: Candidate | None = None
) -> list[Candidate]:
    chosen = [] if first is None else [first]
    left = [each for each in ordered if each is not first]
    covered, spent = set(_union(chosen)), sum(each.seconds for each in chosen)
    while True:
        left = [each for each in left if each.covers - covered and spent + each.seconds <= limit]
        if not left:
            return chosen
        best = max(left, key=lambda each: _worth(len(each.covers - covered), each.seconds))
        chosen.append(best)
        covered |= best.covers
        spent += best.seconds
        left.remove(best)


def _worth(adds: int, seconds: float) -> tuple[float, int]:
    return (adds / seconds if seconds else math.inf, adds)


def _bound(covered: set[str], affordable: Sequence[Candidate], budget_s: float) -> int:
    """Return an upper bound of the coverage: the covered items, and the best that the whole budget
    buys of additions, the last one in part. A selection never adds more than the sum of its
    members' additions."""
    adds = [
        (len(each.covers - covered), each.seconds) for each in affordable if each.covers - covered
    ]
    found, left = float(len(covered)), budget_s
    for gain, seconds in sorted(adds, key=lambda pair: _worth(*pair), reverse=True):
        share = 1.0 if seconds <= left else left / seconds
        found += share * gain
        left -= share * seconds
        if share < 1:
            break
    return math.floor(found + 1e-9)


def _union(chosen: Sequence[Candidate]) -> frozenset[str]:
    return frozenset(chain.from_iterable(each.covers for each in chosen))


def seconds_of_run(
    first_s: float, step_s: float, *, processes: int, steps: int, warmup: int
) -> float:
    """Return the seconds that `bench run` takes for a workload in one mode, with its trace recorded
    but not read, from those of the first step, with the start of the process, and of each other
    one."""
    return (processes + 1) * first_s + processes * (warmup - 1 + 2 * steps) * step_s


def measured_seconds(
    runs: Sequence[Mapping[str, object]], *, processes: int, steps: int, warmup: int
) -> dict[tuple[str, str], float]:
    """Return `seconds_of_run` by workload and mode from the latest run of each on a CPU. `runs` are
    those of `StoredRun.to_dict`, in the order of time."""
    found = {}
    for run in runs:
        config, metrics = run["config"], run["metrics"]
        if not isinstance(config, dict) or not isinstance(metrics, dict):
            continue
        plain = config.get("device") == "cpu" and not config.get("compiled")
        first, step = metrics.get("first_batch_ns"), metrics.get("step_ns")
        if plain and isinstance(first, dict) and isinstance(step, dict):
            found[str(config["workload"]), str(config["mode"])] = seconds_of_run(
                first["total"] / 1e9, step["median"] / 1e9,
                processes=processes, steps=steps, warmup=warmup,
            )  # fmt: skip
    return found
