"""What a duration model answers, and why it may not."""

from __future__ import annotations

from typing import NamedTuple

from torchtraceap.devices import Device, device_named, find_device
from torchtraceap.dtypes import dtype_named
from torchtraceap.errors import OptionError

__all__ = [
    "Estimate",
    "UnknownDurationError",
    "element_bytes",
    "peak_rate",
    "same_links",
    "the_device",
]


class Estimate(NamedTuple):
    """A duration and where it comes from."""

    ns: float
    source: str
    """For a person: the measurements behind it, and what was done to them."""


class UnknownDurationError(Exception):
    """No measurement is near enough; the message says which one is missing."""


def the_device(device: str | Device) -> Device:
    """A device by the name that CUDA or HIP reports, by our id, or as it is.

    Raises:
        UnknownDurationError: There is none of that name, or there are several.
    """
    if isinstance(device, Device):
        return device
    found = find_device(device)
    if found is not None:
        return found
    try:
        return device_named(device)
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
    found = dtype_named("fp32" if dtype == "tf32" else dtype)
    if found is None or found.rank != 2 or found.label == "fp4":
        raise UnknownDurationError(f"no durations of {dtype} were measured")
    return found.size


def same_links(one: Device, other: Device) -> bool:
    """Whether collectives should take as long: same chip and links; memory may differ."""
    return (
        one.architecture == other.architecture
        and one.multiprocessors == other.multiprocessors
        and dict(one.links) == dict(other.links)
    )
