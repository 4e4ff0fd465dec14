"""The plan of a data set: a group of traces for each base, and the split that it is in.

Note [Splits]: of 610 traces the paper trains on 460 and tests on 75 of tasks that training sees and
on 75 of tasks that it does not. So are the groups here, and one of eight that could be trained on
is for validation. All traces of a group are of one base, so no base is on two sides, and neither is
a run and its twin. Of the groups for the test of seen tasks, one of three is of networks that
training sees too, in another configuration; two are of networks kept for that. What is made of
recorded traces is for testing alone.

Note [Turns]: types take turns, so that all are in every split: in every third group those of
collectives, which need a training run of several ranks, in the others the rest. The fault of the
type is drawn, or a look-alike; where a type does not fit the base, the next one does.

Note [Two injectors]: in every third group faults are blocks of events between those of the run,
in the others edits of its graph whose price a replay finds. What is learned from one alone may
know the injector instead of the fault.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from torchtraceap.datasets import SEEN_TASKS, TASKS, TYPES
from torchtraceap.errors import OptionError

__all__ = [
    "GROUP",
    "LOOK_ALIKE",
    "NETWORKS_FOR_TESTS",
    "Group",
    "plan_groups",
    "plan_mini_groups",
    "type_order",
]

GROUP = 8
"""Traces of a base."""
LOOK_ALIKE = "look_alike"
"""Takes the place of a type."""
NETWORKS_FOR_TESTS = frozenset({"separable_classifier", "query_detector", "dilated_segmenter"})
"""See Note [Splits]."""
_TEST, _VALIDATION = 75 / 610, 1 / 8
_COLLECTIVE = ("small_nccl_kernels", "straggler", "nccl_blocks_main_stream",
               "nccl_compute_not_overlapped")  # fmt: skip
_OTHERS = tuple(name for name in TYPES if name not in _COLLECTIVE)
_LOOK_ALIKES = 0.25
"""Share of pairs."""


@dataclass(frozen=True)
class Group:
    """Traces of one base."""

    number: int
    split: str
    place: int
    """Place among the groups of its split."""
    task: str | None
    is_new: bool
    """True if its network is none of those that training sees."""
    base: str | None = None
    """Path of a recorded trace; None: a run is predicted."""
    way: str = "lifted"
    """Injector: "lifted", "real_graph" or "event_space". See Note [Two injectors]."""
    types: tuple[str, ...] = ()
    """Types of its pairs in order, if nothing else will do, or `LOOK_ALIKE`."""

    @property
    def size(self) -> int:
        """Number of traces."""
        return 2 * len(self.types) or GROUP

    @property
    def shard(self) -> str:
        """Name of its files."""
        return f"{self.split}-{self.number:04d}"

    @property
    def is_test(self) -> bool:
        """True if nothing is fitted to it."""
        return self.split not in ("train", "validation")

    @property
    def is_collective(self) -> bool:
        """True if faults of collectives come first, or alone. See Note [Turns]."""
        return set(self.types) <= set(_COLLECTIVE) if self.types else self.place % 3 == 0


def plan_groups(count: int, bases: Sequence[str] = ()) -> list[Group]:
    """Return the groups of a data set. See Note [Splits].

    Args:
        count: Least number of traces of predicted runs.
        bases: Paths of recorded traces.

    Raises:
        OptionError: So few that a split would be empty.
    """
    groups = math.ceil(count / GROUP)
    tests = math.ceil(groups * _TEST)
    fitted = groups - 2 * tests
    if fitted < 2:
        raise OptionError(f"{count} traces are too few for all splits; at least {4 * GROUP}")
    validation = math.ceil(fitted * _VALIDATION)
    sizes = {"train": fitted - validation, "validation": validation, "seen": tests, "unseen": tests}
    places = [(split, place) for split, size in sizes.items() for place in range(size)]
    found = [_predicted(number, *at) for number, at in enumerate(places)]
    ways = [(base, way) for base in bases for way in ("real_graph", "event_space")]
    found += [
        Group(len(places) + place, "real", place, None, True, base, way)
        for place, (base, way) in enumerate(ways)
    ]
    return found


def _predicted(number: int, split: str, place: int, types: tuple[str, ...] = ()) -> Group:
    tasks = TASKS[len(SEEN_TASKS) :] if split == "unseen" else SEEN_TASKS
    # Tasks and kinds of faults both come in threes: one of them has to move on after each round.
    task = tasks[(place + place // 3) % len(tasks)]
    is_new = split == "unseen" or (split == "seen" and place % 3 != 2)
    way = "event_space" if place % 3 == 2 and not types else "lifted"
    return Group(number, split, place, task, is_new, way=way, types=types)


def plan_mini_groups() -> list[Group]:
    """Return groups of four traces: each type once, and two look-alikes."""
    kinds = [*_COLLECTIVE, *_OTHERS, LOOK_ALIKE, LOOK_ALIKE]
    pairs = [tuple(kinds[place : place + 2]) for place in range(0, len(kinds), 2)]
    splits = ("train", "seen", "validation", "train", "unseen", "train", "seen", "train")
    found = []
    for number, (types, split) in enumerate(zip(pairs, splits, strict=True)):
        place = splits[:number].count(split)
        found.append(_predicted(number, split, place, types))
    return found


def type_order(group: Group, rng: random.Random, place: int) -> tuple[bool, list[str]]:
    """Return True if a pair of a group is a look-alike first, and types in order of preference.

    Args:
        group: The group.
        rng: Random numbers.
        place: Place of the pair in the group.
    """
    pairs = GROUP // 2
    turn = (group.place // 3 if group.is_collective else group.place - group.place // 3) * pairs
    first, second = (_COLLECTIVE, _OTHERS) if group.is_collective else (_OTHERS, _COLLECTIVE)
    start = (turn + place + (group.place // 3 if group.is_collective else 0)) % len(first)
    rest = list(second)
    rng.shuffle(rest)
    return rng.random() < _LOOK_ALIKES, [*first[start:], *first[:start], *rest]
