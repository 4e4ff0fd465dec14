"""The time of a transfer between ranks: a model of the links, with jitter and late ranks.

Note [Late ranks]: a kernel of NCCL runs from the moment that its rank comes until the slowest rank
has come and the data has passed. So a late rank makes the kernel longer, and nothing else of it is
seen on rank 0.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from torchtraceap.errors import OptionError
from torchtraceap.ops import estimate_collective, load_measurements

__all__ = ["NETWORKS", "RANKS", "Network", "TransferTimes"]

RANKS = range(2, 9)
"""World sizes that are emulated: those of one machine, which the durations were measured on."""
_SMALLEST_BYTES = 4
# Collectives that no table has take as long as others that send as many bytes over a link.
_ALIKE = MappingProxyType(
    {"barrier": "all_reduce", "gather": "all_gather", "scatter": "reduce_scatter"}
)


@dataclass(frozen=True, slots=True)
class Network:
    """The links between the ranks, and how regular they are."""

    device: str = ""
    """Links of a GPU in the device database; empty: `rate` tells."""
    rate: float = 0.0
    """Bytes per second in one direction, of links that no device has."""
    start_ns: float = 0.0
    """Constant part of a transfer over such links."""
    step_ns: float = 0.0
    """Time for each rank beyond the first, over such links."""
    jitter: float = 0.05
    """Standard deviation of the logarithm of a transfer's time."""
    late_share: float = 0.02
    """Share of transfers that wait for a late rank."""
    late_ns: float = 200_000.0
    """Mean time for which such a rank is late; exponential."""
    factor: float = 1.0
    """Factor on all times, such as where the compute is slower as well."""

    def __post_init__(self) -> None:
        numbers = (self.rate, self.start_ns, self.step_ns, self.jitter, self.late_ns, self.factor)
        if not all(np.isfinite(number) and number >= 0 for number in numbers):
            raise OptionError("a network's times, rate and factor must be finite and not negative")
        if not 0 <= self.late_share <= 1:
            raise OptionError(f"late_share must be between 0 and 1, not {self.late_share!r}")
        if not self.device and self.rate <= 0:
            raise OptionError("a network needs a device, or the rate of its links")

    def transfer_ns(self, kind: str, size: int, ranks: int) -> float:
        """Return the time of a transfer once all ranks have come, without jitter.

        Args:
            kind: Kind in `torchtraceap.ops.durations`, or barrier, gather, scatter.
            size: Bytes of the larger of one rank's input and output.
            ranks: Members of the group.

        Raises:
            UnknownDurationError: Nothing tells it.
        """
        kind, size = _ALIKE.get(kind, kind), max(size, _SMALLEST_BYTES)
        if self.device:
            return self.factor * float(estimate_collective(kind, size, ranks, self.device).ns)
        links = replace(load_measurements().links, start_ns=self.start_ns, step_ns=self.step_ns)
        sizes = np.array([size], dtype=np.float64)
        return self.factor * float(links.at(kind, sizes, ranks, self.rate, True)[0])


NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "nvlink": Network(device="h100_sxm"),
        "pcie": Network(device="l4", jitter=0.1),
        # Sockets take tens of us for a message; kernels and the switches of a shared network make
        # it less regular than links within a machine.
        "ethernet": Network(
            rate=12.5e9,
            start_ns=25e3,
            step_ns=12e3,
            jitter=0.25,
            late_share=0.05,
            late_ns=500e3,
        ),
    }
)
"""NVLink through a switch, PCIe 4.0 x16, and 100 Gbit/s Ethernet with one GPU in each machine."""


class TransferTimes:
    """Drawn times of transfers, the same for one seed and one order of calls."""

    def __init__(self, network: Network, seed: int = 0) -> None:
        self.network = network
        self._random = random.Random(seed)

    def draw_ns(self, kind: str, size: int, ranks: int) -> int:
        """Draw the time of a transfer, with jitter and sometimes a late rank (Note [Late ranks]).

        Raises:
            UnknownDurationError: Nothing tells it.
        """
        network, draw = self.network, self._random
        ns = network.transfer_ns(kind, size, ranks) * draw.lognormvariate(0.0, network.jitter)
        if draw.random() < network.late_share and network.late_ns > 0:
            ns += network.factor * draw.expovariate(1.0 / network.late_ns)
        return round(ns)
