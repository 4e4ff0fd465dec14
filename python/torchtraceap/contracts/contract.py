"""A contract: limits by key, and the circumstances under which they were measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torchtraceap.contracts.limits import Limit
from torchtraceap.contracts.measures.vocabulary import MEASURES, find_measure
from torchtraceap.core.records import dataclass
from torchtraceap.errors import OptionError

__all__ = ["Contract"]


@dataclass(frozen=True, slots=True)
class Contract:
    """The limits that a trace has to hold."""

    limits: tuple[tuple[str, Limit], ...]
    """Limits by key, in the order in which they were written."""
    name: str = ""
    """Name of a contract among several in a file: a test's node id, or a name of yours."""
    device: str | None = None
    """The device that times and shares were measured on, as its driver names it, or "cpu"."""
    when: str | None = None
    """The day on which the limits were recorded."""
    reason: str | None = None
    """Reason of the last change."""
    tolerance: float = 0.0
    """Share of a bound by which times and shares may lie beyond it."""
    file: str | None = None
    """File in which the contract is written."""
    lines: tuple[tuple[str, int], ...] = ()
    """The line of each key in that file, from 1."""

    @classmethod
    def parse(cls, limits: Mapping[str, Any], **more: Any) -> Contract:
        """A contract from limits as a test or a file says them.

        Args:
            limits: Limits by key of the vocabulary; None for no limit.
            more: Other fields: name, device, when, reason, tolerance, file, lines.

        Raises:
            OptionError: A key is unknown, or a limit makes no sense for it.
        """
        tolerance = more.get("tolerance", 0.0)
        if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)):
            raise OptionError(f"tolerance is a share such as 0.05, not {tolerance!r}")
        if not 0 <= tolerance < math.inf:
            raise OptionError(f"tolerance is a share from 0, not {tolerance!r}")
        parsed = []
        for key, value in limits.items():
            measure = find_measure(key)
            if value is None:
                continue
            try:
                parsed.append((measure.key, Limit.parse(value, measure.kind)))
            except OptionError as error:
                raise OptionError(f"{key}: {error}") from error
        return cls(tuple(parsed), **more)

    def __len__(self) -> int:
        return len(self.limits)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the limits."""
        return tuple(key for key, _ in self.limits)

    @property
    def empty_keys(self) -> tuple[str, ...]:
        """Keys that a file has without a limit."""
        return tuple(key for key, _ in self.lines if key not in self.keys)

    @property
    def needs_device(self) -> bool:
        """Return True if a limit depends on the device."""
        return any(MEASURES[key].kind in ("share", "time") for key in self.keys)

    def limit(self, key: str) -> Limit | None:
        """Return the limit of a key, or None."""
        return dict(self.limits).get(key)

    def line(self, key: str) -> int | None:
        """Return the line of a key, from 1; None outside of a file."""
        return dict(self.lines).get(key)

    def without(self, keys: Iterable[str]) -> Contract:
        """Return the contract without limits on these keys."""
        gone = set(keys)
        return replace(self, limits=tuple(pair for pair in self.limits if pair[0] not in gone))

    def merged(self, other: Contract) -> Contract:
        """These limits, with those of another one in their places and behind them."""
        limits = {**dict(self.limits), **dict(other.limits)}
        return Contract(
            tuple(limits.items()),
            other.name or self.name,
            other.device or self.device,
            other.when or self.when,
            other.reason or self.reason,
            other.tolerance or self.tolerance,
            other.file or self.file,
            tuple({**dict(self.lines), **dict(other.lines)}.items()),
        )
