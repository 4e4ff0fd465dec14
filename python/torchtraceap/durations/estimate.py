"""What a duration model answers, and why it may not."""

from __future__ import annotations

from typing import NamedTuple

from torchtraceap.devices import Device, device_named, find_device
from torchtraceap.errors import OptionError

__all__ = ["Estimate", "UnknownDurationError", "same_links", "the_device"]


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


def same_links(one: Device, other: Device) -> bool:
    """Whether collectives should take as long: same chip and links; memory may differ."""
    return (
        one.architecture == other.architecture
        and one.multiprocessors == other.multiprocessors
        and dict(one.links) == dict(other.links)
    )
