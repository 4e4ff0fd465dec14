"""Durations with intervals and sources, and the error that a model without an answer raises."""

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
    "resolve_device",
    "same_links",
]


FloatArray = npt.NDArray[np.float64]

# Note [Factors of intervals]
# A model with a mean absolute held-out error `e` (MAPE) covers 8 of 10 cases with a factor of about
# exp(1.6 e) to either side if the logarithms of the errors are normal: their deviation is 1.25 e,
# and 1.28 deviations to either side hold 80 %. The factors in the models follow from the errors in
# docs/results/durations.md where there are any and are larger where a case differs from what was
# measured.
# A comment marks them as a guess where nothing was measured.


@renderable
class Estimate(NamedTuple):
    """A duration with an 80 % interval and its source."""

    ns: float
    low_ns: float
    """10th percentile: 10 of 100 such cases are shorter."""
    high_ns: float
    """90th percentile: 10 of 100 such cases are longer."""
    source: str
    """Description of the measurements behind it and what was done to them."""

    @classmethod
    def within_factor(cls, ns: float, factor: float, source: str) -> Self:
        """Return an estimate with the interval from `ns / factor` to `ns * factor`.

        Note [Factors of intervals] explains the factors.
        """
        return cls(ns, ns / factor, ns * factor, source)

    def require(self) -> Self:
        """Return this estimate if it has a duration.

        Raises:
            UnknownDurationError: There is no duration; the source says why.
        """
        if np.isfinite(self.ns):
            return self
        raise UnknownDurationError(self.source)


@dataclass(frozen=True, slots=True)
class Estimates(Renderable):
    """Durations of `n` cases; NaN where there is none, with the reason as its source."""

    ns: FloatArray
    """float64 `[n]`."""
    low_ns: FloatArray
    """float64 `[n]`: 10th percentiles."""
    high_ns: FloatArray
    """float64 `[n]`: 90th percentiles."""
    source: npt.NDArray[np.int32]
    """int32 `[n]`: index in `sources`."""
    sources: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ns)

    def __getitem__(self, index: int) -> Estimate:
        """Return one estimate, whose duration may be NaN."""
        return Estimate(
            float(self.ns[index]),
            float(self.low_ns[index]),
            float(self.high_ns[index]),
            self.sources[int(self.source[index])],
        )

    @classmethod
    def within_factor(cls, ns: npt.ArrayLike, factor: npt.ArrayLike, source: str) -> Self:
        """Return estimates of one source with intervals from `ns / factor` to `ns * factor`."""
        times = np.atleast_1d(np.asarray(ns, dtype=np.float64))
        factors = np.asarray(factor, dtype=np.float64)
        codes = np.zeros(len(times), dtype=np.int32)
        return cls(times, times / factors, times * factors, codes, (source,))

    @classmethod
    def from_list(cls, estimates: Iterable[Estimate]) -> Self:
        """Collect single estimates."""
        listed = list(estimates)
        sources = tuple(dict.fromkeys(one.source for one in listed))
        places = {source: place for place, source in enumerate(sources)}
        columns = np.array([one[:3] for one in listed], dtype=np.float64).reshape(-1, 3).T
        codes = np.array([places[one.source] for one in listed], dtype=np.int32)
        return cls(columns[0].copy(), columns[1].copy(), columns[2].copy(), codes, sources)

    @classmethod
    def choose(cls, which: npt.ArrayLike, parts: Sequence[Estimates]) -> Self:
        """Choose one of several answers for each row.

        Args:
            which: int `[n]`: index in `parts`.
            parts: Answers to the same `n` questions.
        """
        count = len(parts[0])
        rows = np.asarray(which, dtype=np.int64) * count + np.arange(count)
        return cls.concatenate(parts).take(rows)

    @classmethod
    def scatter(cls, parts: Sequence[Estimates], rows: Sequence[npt.NDArray[np.int64]]) -> Self:
        """Place each part at its rows; together the rows are a permutation of 0 to n - 1."""
        back = np.argsort(np.concatenate([np.empty(0, np.int64), *rows]), kind="stable")
        return cls.concatenate(parts).take(back)

    def take(self, rows: npt.ArrayLike) -> Self:
        """Return the estimates at these indices."""
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
        """Return `count` estimates without a duration, for one reason."""
        return cls.within_factor(np.full(count, np.nan), 1.0, reason)

    @classmethod
    def concatenate(cls, parts: Sequence[Estimates]) -> Self:
        """Append the parts to each other."""
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
    """Raised if no measurement is near enough; the message says which one is missing."""


def resolve_device(device: str | Device) -> Device:
    """Find a device by id or by the name that CUDA or HIP reports; a `Device` is returned as is.

    Raises:
        UnknownDurationError: No device has that name.
        AmbiguousDeviceError: Several devices have that name.
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
    """Return the flop/s of the device's matrix units, else vector units, for a type such as "bf16".

    Raises:
        UnknownDurationError: The database has no such rate.
    """
    rate = device.matrix.get(dtype) or device.vector.get(dtype)
    if not rate:
        raise UnknownDurationError(f"the peak rate of {device.name} for {dtype} is not known")
    return rate


def element_bytes(dtype: str) -> int:
    """Return the bytes of an element of a floating-point type; tf32 is fp32 in memory.

    Raises:
        UnknownDurationError: No model was fitted to the type.
    """
    found = parse_dtype("fp32" if dtype == "tf32" else dtype)
    if found is None or found.rank != 2 or found.label == "fp4":
        raise UnknownDurationError(f"no durations of {dtype} were measured")
    return found.size


def same_links(one: Device, other: Device) -> bool:
    """Return True if collectives should take equally long: chips and GPU links are the same.

    The memory may differ, and so may the link to the host of a superchip.
    """

    def gpu_links(device: Device) -> dict[str, float]:
        return {kind: rate for kind, rate in device.links.items() if kind != "c2c"}

    return (
        one.architecture == other.architecture
        and one.multiprocessors == other.multiprocessors
        and gpu_links(one) == gpu_links(other)
    )
