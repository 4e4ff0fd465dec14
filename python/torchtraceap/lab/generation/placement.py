"""`Planting`: what a fault or a decoy is told, and the places that it may take."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torchtraceap._core import Phase
from torchtraceap.core.aliases import Array
from torchtraceap.lab.generation.data_parallel import DataParallel
from torchtraceap.lab.generation.program import Places, Program
from torchtraceap.lab.generation.scene import Block, Outcome, Scene

__all__ = ["Form", "NoPlaceError", "Planting"]


class NoPlaceError(Exception):
    """The program has no place for this form."""


@dataclass(frozen=True)
class Planting:
    """A scene without a fault, and what is to be put into it."""

    scene: Scene
    rng: random.Random
    rank: int
    """The one into which it is put."""
    ns: float
    """To be lost in each step, about."""
    spread: DataParallel | None
    """How the ranks exchange gradients; None for one rank."""
    clean: Outcome
    """Of the scene without a fault."""

    @property
    def program(self) -> Program:
        """What runs."""
        return self.scene.program

    @property
    def all_steps(self) -> list[int]:
        """With places in them."""
        return self.program.steps

    @cached_property
    def steps(self) -> list[int]:
        """Those that get it: all, or every other one."""
        known = self.all_steps
        every = self.rng.choice((1, 1, 1, 2))
        return known[self.rng.randrange(every) :: every] if len(known) > every else known

    def among(self, step: int, *phases: Phase, places: Places | None = None) -> Array:
        """Indices of the places in a step, or in some phases of it.

        Raises:
            NoPlaceError: There is none.
        """
        places = self.program.main if places is None else places
        inside = places.step == step
        if phases:
            inside &= np.isin(places.phase, phases)
        found = np.flatnonzero(inside)
        if not len(found):
            raise NoPlaceError
        return found

    def some(self, places: Array, count: int) -> list[int]:
        """So many of the places, or all, by time, at random and evenly spread."""
        parts = np.array_split(places, min(count, len(places)))
        return [int(self.rng.choice(part.tolist())) for part in parts]

    def first(self, step: int) -> int:
        """The first place in a step."""
        return int(self.among(step)[0])

    def block(self, place: int, places: Places | None = None) -> Block:
        """Work at a place, by default of the rank's main thread."""
        places = self.program.main if places is None else places
        return self.scene.block(self.rank, places, place)

    def with_slack(self, candidates: Array, ns: float) -> list[int]:
        """Of places of the main thread those that may be so much later at no cost.

        Raises:
            NoPlaceError: There is none.
        """
        points = self.program.main.point[candidates] + self.scene.on(self.rank, 0)
        found: list[int] = candidates[self.clean.slack_ns[points] >= ns].tolist()
        if not found:
            raise NoPlaceError
        return found

    def when_idle(self, step: int) -> Array:
        """Indices of the places in a step at which the stream has nothing to do.

        Raises:
            NoPlaceError: There is none.
        """
        places, ahead_ns = self._ahead(step)
        return _some_of(places[ahead_ns <= 0])

    def when_busy(self, step: int, ns: float) -> Array:
        """Indices of the places in a step at which it has work for so long.

        Raises:
            NoPlaceError: There is none.
        """
        places, ahead_ns = self._ahead(step)
        return _some_of(places[ahead_ns >= ns])

    def _ahead(self, step: int) -> tuple[Array, Array]:
        """Places in a step, and for how long the stream has work at each, ns."""
        main, scene = self.program.main, self.scene
        places = self.among(step)
        slots = self.program.slots(main.time_ns[places])
        places, slots = places[slots > 0], slots[slots > 0]
        rows = self.program.stream_rows[slots - 1]
        own, times = scene.on(self.rank, 0), self.clean.times_ns
        done = times[own + self.program.view.end_of[rows].astype(np.int64)]
        return places, done - times[own + main.source[places]]


def _some_of(places: Array) -> Array:
    if not len(places):
        raise NoPlaceError
    return places


@dataclass(frozen=True)
class Form:
    """A way in which a fault, or what looks like one, shows."""

    name: str
    type: str
    """What the product calls it; of a decoy what it looks like."""
    put: Callable[[Planting], None] = lambda planting: None
    decoy: bool = False
    spread: Callable[[random.Random, DataParallel], tuple[DataParallel, DataParallel]] | None = None
    """Of a form of collectives how ranks exchange gradients without it and with it, given what a
    good job does."""
    in_twin: Callable[[Planting], None] | None = None
    """What the twin has in its place."""
    idles: bool = False
    """What it costs is time in which the GPU waits for the host."""
    of_one_rank: bool = False
    """It is put into one rank, for which the others wait."""
    own_type: str | None = None
    """Of a fault of one rank what that rank itself shows, where it has another type."""


def named(forms: Sequence[Form]) -> dict[str, Form]:
    """By name."""
    return {form.name: form for form in forms}
