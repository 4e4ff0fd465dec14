"""What a duration model answers, how far it may be off, and why it may not answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from torchtraceap.core.dtypes import parse_dtype
from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import Renderable, renderable
from torchtraceap.errors import AmbiguousDeviceError, OptionError
from torchtraceap.ops.devices import Device, device_named, find_device

__all__ = [
    "Estimate",
    "Estimates",
    "UnknownDurationError",
    "element_bytes",
    "peak_rate",
    "same_links",
    "the_device",
]


FloatArray = npt.NDArray[np.float64]

# Note [Factors of intervals]
# A model whose held-out errors have the mean size `e` (MAPE) covers 8 of 10 cases with a factor of
# about exp(1.6 e) to either side if the errors' logarithms are normal: their deviation is 1.25 e,
# and 1.28 deviations to either side hold 80 %. A factor in the models is this of the error in
# docs/durations.md where there is one, more where the case differs from what was measured, and
# says so; where nothing was measured it is a stated guess.


@renderable
class Estimate(NamedTuple):
    """A duration, how far it may be off, and where it comes from."""

    ns: float
    low_ns: float
    """In 10 of 100 cases like this one the time is shorter."""
    high_ns: float
    """In 10 of 100 cases like this one the time is longer."""
    source: str
    """For a person: the measurements behind it, and what was done to them."""

    @classmethod
    def around(cls, ns: float, factor: float, source: str) -> Self:
        """With an interval from `ns / factor` to `ns * factor`; see Note [Factors of intervals]."""
        return cls(ns, ns / factor, ns * factor, source)

    def known(self) -> Self:
        """This one.

        Raises:
            UnknownDurationError: There is no duration; the source says why.
        """
        if np.isfinite(self.ns):
            return self
        raise UnknownDurationError(self.source)


@dataclass(frozen=True, slots=True)
class Estimates(Renderable):
    """Many durations at once; NaN where there is none, with the reason as its source."""

    ns: FloatArray
    """float64 `[n]`, as the next two."""
    low_ns: FloatArray
    high_ns: FloatArray
    source: npt.NDArray[np.int32]
    """int32 `[n]`: index in `sources`."""
    sources: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ns)

    def __getitem__(self, index: int) -> Estimate:
        """One of them, NaN included."""
        return Estimate(
            float(self.ns[index]),
            float(self.low_ns[index]),
            float(self.high_ns[index]),
            self.sources[int(self.source[index])],
        )

    @classmethod
    def around(cls, ns: npt.ArrayLike, factor: npt.ArrayLike, source: str) -> Self:
        """All of one source, with intervals from `ns / factor` to `ns * factor`."""
        times = np.atleast_1d(np.asarray(ns, dtype=np.float64))
        factors = np.asarray(factor, dtype=np.float64)
        codes = np.zeros(len(times), dtype=np.int32)
        return cls(times, times / factors, times * factors, codes, (source,))

    @classmethod
    def of(cls, estimates: Iterable[Estimate]) -> Self:
        """Single ones, put together."""
        listed = list(estimates)
        sources = tuple(dict.fromkeys(one.source for one in listed))
        places = {source: place for place, source in enumerate(sources)}
        columns = np.array([one[:3] for one in listed], dtype=np.float64).reshape(-1, 3).T
        codes = np.array([places[one.source] for one in listed], dtype=np.int32)
        return cls(columns[0].copy(), columns[1].copy(), columns[2].copy(), codes, sources)

    @classmethod
    def choose(cls, which: npt.ArrayLike, parts: Sequence[Estimates]) -> Self:
        """For each row one of several answers to the same `[n]` questions.

        Args:
            which: int `[n]`: index in `parts`.
            parts: All of length `n`.
        """
        count = len(parts[0])
        joined = cls.joined(parts)
        rows = np.asarray(which, dtype=np.int64) * count + np.arange(count)
        return joined.take(rows)

    def take(self, rows: npt.ArrayLike) -> Self:
        """Some of them, by number."""
        places = np.asarray(rows, dtype=np.int64)
        return type(self)(
            self.ns[places],
            self.low_ns[places],
            self.high_ns[places],
            self.source[places],
            self.sources,
        )

    @classmethod
    def unknown(cls, count: int, reason: str) -> Self:
        """No answers, for one reason."""
        return cls.around(np.full(count, np.nan), 1.0, reason)

    @classmethod
    def joined(cls, parts: Sequence[Estimates]) -> Self:
        """Parts one after the other."""
        sources = tuple(dict.fromkeys(source for part in parts for source in part.sources))
        places = {source: place for place, source in enumerate(sources)}
        maps = [np.array([places[s] for s in part.sources], dtype=np.int32) for part in parts]
        codes = [table[part.source] for table, part in zip(maps, parts, strict=True)]
        empty = np.empty(0)
        return cls(
            np.concatenate([empty, *(part.ns for part in parts)]),
            np.concatenate([empty, *(part.low_ns for part in parts)]),
            np.concatenate([empty, *(part.high_ns for part in parts)]),
            np.concatenate([np.empty(0, np.int32), *codes]),
            sources,
        )


class UnknownDurationError(Exception):
    """No measurement is near enough; the message says which one is missing."""


def the_device(device: str | Device) -> Device:
    """A device by the name that CUDA or HIP reports, by our id, or as it is.

    Raises:
        UnknownDurationError: There is none of that name.
        AmbiguousDeviceError: There are several.
    """
    if isinstance(device, Device):
        return device
    found = find_device(device)
    if found is not None:
        return found
    try:
        return device_named(device)
    except AmbiguousDeviceError:
        raise
    except OptionError as error:
        raise UnknownDurationError(str(error)) from None


def peak_rate(device: Device, dtype: str) -> float:
    """flop/s of the device's matrix units for a type such as "bf16", else of its vector units.

    Raises:
        UnknownDurationError: The database has no such rate.
    """
    rate = device.matrix.get(dtype) or device.vector.get(dtype)
    if not rate:
        raise UnknownDurationError(f"the peak rate of {device.name} for {dtype} is not known")
    return rate


def element_bytes(dtype: str) -> int:
    """Bytes of an element of a floating type; tf32 is fp32 in memory.

    Raises:
        UnknownDurationError: Another type: no model was fitted to it.
    """
    found = parse_dtype("fp32" if dtype == "tf32" else dtype)
    if found is None or found.rank != 2 or found.label == "fp4":
        raise UnknownDurationError(f"no durations of {dtype} were measured")
    return found.size


def same_links(one: Device, other: Device) -> bool:
    """Whether collectives should take as long: same chip and links; memory may differ, and so
    may the host's side of a superchip."""

    def between(device: Device) -> dict[str, float]:
        return {kind: rate for kind, rate in device.links.items() if kind != "c2c"}

    return (
        one.architecture == other.architecture
        and one.multiprocessors == other.multiprocessors
        and between(one) == between(other)
    )
