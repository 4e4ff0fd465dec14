"""The GPUs that tables are spread over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torchtraceap.errors import OptionError
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations import UnknownDurationError
from torchtraceap.ops.durations.estimate import resolve_device

__all__ = ["Cluster", "as_cluster"]

_MOST_RANKS = 4096
_MOST_BYTES = 1e15
# A guess: what the dense part, its gradients, NCCL and the allocator's gaps leave.
_SHARE_FOR_TABLES = 0.8


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal GPUs, one per rank, with the device's links."""

    device: str | Device
    """Name or id of a device, or a device of your own."""
    ranks: int
    nodes: int = 1
    """Number of machines."""
    memory_bytes: float | None = None
    """Memory of each GPU for tables; by default four fifths of its memory."""
    node_bandwidth: float | None = None
    """One-way bandwidth between a machine and the others, all adapters together, byte/s.

    Without it, exchanges over machines are estimated only as far as they were measured.
    """

    def __post_init__(self) -> None:
        for what, value, most in (
            ("ranks", self.ranks, _MOST_RANKS),
            ("nodes", self.nodes, self.ranks),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise OptionError(
                    f"{what} must be a whole number from 1 to {most:,}, not {value!r}"
                )
        if not isinstance(self.device, (str, Device)):
            raise OptionError(f"device must be a name, not {self.device!r}")
        for what, limit in (
            ("memory_bytes", self.memory_bytes),
            ("node_bandwidth", self.node_bandwidth),
        ):
            is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
            if limit is not None and not (is_number and 0 < limit <= _MOST_BYTES):
                raise OptionError(f"{what} must be from 1 to {_MOST_BYTES:g}, not {limit!r}")
        if self.node_bandwidth is not None and self.ranks % self.nodes:
            raise OptionError(f"{self.ranks} ranks can't be shared evenly by {self.nodes} machines")

    @property
    def chip(self) -> Device:
        """The device.

        Raises:
            OptionError: There is none of that name, or several.
        """
        try:
            return resolve_device(self.device)
        except UnknownDurationError as error:
            raise OptionError(str(error)) from None

    @property
    def table_bytes(self) -> int:
        """Memory of each GPU for tables, bytes.

        Raises:
            OptionError: Neither `memory_bytes` nor the device's memory is known.
        """
        if self.memory_bytes is not None:
            return int(self.memory_bytes)
        if not self.chip.memory_bytes:
            raise OptionError(f"the memory of {self.chip.name} is not known; give memory_bytes")
        return int(_SHARE_FOR_TABLES * self.chip.memory_bytes)


def as_cluster(given: Cluster | Mapping[str, Any]) -> Cluster:
    """Return a cluster, or make one of a mapping with its fields.

    Raises:
        OptionError: The argument is neither, or lacks the device or the ranks.
    """
    if isinstance(given, Cluster):
        return given
    if not isinstance(given, Mapping):
        raise OptionError(f"a cluster is a Cluster or a mapping, not {type(given).__name__}")
    known = [field.name for field in fields(Cluster)]
    unknown = sorted(str(name) for name in given if name not in known)
    missing = [name for name in ("device", "ranks") if name not in given]
    if unknown or missing:
        raise OptionError(f"a cluster has {', '.join(known)}, not {', '.join(map(str, given))}")
    return Cluster(**given)
