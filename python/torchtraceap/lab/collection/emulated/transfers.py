"""Transfers one after the other: by a thread for the host's tensors, by a stream for a GPU's.

Both give a future that is complete as a work of ProcessGroupNCCL is: on a GPU at once, its `wait`
makes the current stream wait for the transfer; on a CPU when the transfer is over. Rank 0's results
are those of equal data on all ranks: sums are multiples, gathers are copies.

The kernels of kernels.cu are built once for a kind of GPU by nvcc; they need no headers of torch.
Where no nvcc is at hand, `TORCHTRACEAP_EMULATED_KERNELS` names a library that was built elsewhere:

    nvcc -std=c++17 -O2 -shared -Xcompiler -fPIC -arch=sm_90 -o emulated.so kernels.cu

Note [Late ranks]: a kernel of NCCL runs from the moment that its rank comes until the slowest rank
has come and the data has passed. So a late rank makes the kernel longer, and nothing else of it is
seen on rank 0.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import queue
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from torchtraceap.core import cache_folder, replacing
from torchtraceap.errors import OptionError
from torchtraceap.ops import estimate_collective, load_measurements
from torchtraceap.record import RecordingError

__all__ = [
    "NETWORKS",
    "RANKS",
    "Copies",
    "DeviceLane",
    "HostLane",
    "Lane",
    "Network",
    "Transfer",
    "TransferTimes",
    "build_kernels",
    "reduction_factor",
]


_SOURCE = Path(__file__).with_name("kernels.cu")
_LIBRARY = "TORCHTRACEAP_EMULATED_KERNELS"
_HOMES = ("/usr/local/cuda",)
_SCRATCH_BYTES = 64 << 20  # beyond the caches of today's GPUs, so that memory is really used
_SUMMED = frozenset((
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8,
    torch.bool, torch.int32, torch.int64,
))  # fmt: skip
"""Types that kernels of reductions have."""
_UNCHANGING = (
    dist.ReduceOp.AVG,
    dist.ReduceOp.MIN,
    dist.ReduceOp.MAX,
    dist.ReduceOp.BAND,
    dist.ReduceOp.BOR,
)


# ------------------------------------------------------------------------- results


@dataclass(frozen=True, slots=True)
class Copies:
    """A result: `target` becomes copies of `factor * source`, one behind the other, as many as fit.

    All results are of this form, which a kernel can write as well. Both are contiguous, or the same
    dense tensor, and of one type and device.
    """

    source: Tensor
    target: Tensor
    factor: float = 1.0

    @property
    def changes_nothing(self) -> bool:
        """True if the result is there already."""
        same = self.source.data_ptr() == self.target.data_ptr()
        whole = self.source.numel() == self.target.numel()
        return self.target.numel() == 0 or (same and whole and self.factor == 1)

    def write(self) -> None:
        """Write the result by operators of torch."""
        if self.changes_nothing:
            return
        factor = int(self.factor) if self.factor.is_integer() else self.factor
        if self.source is self.target:  # in any layout, as gradients of convolutions have
            self.target.mul_(factor)
            return
        source = self.source.reshape(-1)
        if factor != 1:
            source = source * factor
        for part in self.target.view(-1).split(max(1, source.numel())):
            part.copy_(source[: part.numel()])


def reduction_factor(operation: dist.ReduceOp, ranks: int) -> float:
    """Return the factor by which a reduction multiplies equal values of so many ranks.

    Raises:
        OptionError: The result of this reduction is no multiple.
    """
    kind = operation.op
    if kind == dist.ReduceOp.SUM:
        return float(ranks)
    if kind == dist.ReduceOp.PREMUL_SUM:
        return float(ranks * operation.factor)
    if kind in _UNCHANGING:
        return 1.0
    raise OptionError(f"emulated collectives can't reduce by {kind.name}")


# ------------------------------------------------------------------------- kernels


class _Kernels:
    """A built library, and the memory that its kernels move on one device."""

    def __init__(self, library: Path, device: torch.device) -> None:
        try:
            self._launch = ctypes.CDLL(str(library)).torchtraceap_emulate_collective
        except (OSError, AttributeError) as error:
            raise RecordingError(f"{library}: is no library of kernels.cu ({error})") from None
        integer, pointer = ctypes.c_int64, ctypes.c_void_p
        transfer: list[Any] = [
            pointer, pointer, integer, integer, ctypes.c_double, integer, integer
        ]  # fmt: skip
        self._launch.argtypes = [ctypes.c_char_p, *transfer, pointer, integer, pointer]
        self._launch.restype = ctypes.c_int
        self._scratch = torch.zeros(_SCRATCH_BYTES, dtype=torch.uint8, device=device)

    def launch(self, name: str, ns: int, moved: int, copies: Copies | None, stream: Any) -> None:
        """Run a kernel on a stream; it writes `copies` and lasts for `ns`.

        Raises:
            RecordingError: The kernel did not start.
        """
        source, target, counts, factor = 0, 0, (0, 0), 1.0
        if copies is not None and not copies.changes_nothing:
            # A kernel that only moves has no type and counts bytes.
            size = 1 if "_Sum_" in name else copies.source.element_size()
            source, target = copies.source.data_ptr(), copies.target.data_ptr()
            counts = copies.source.numel() * size, copies.target.numel() * size
            factor = copies.factor
        code = self._launch(
            name.encode(), source, target, *counts, factor, ns, moved,
            self._scratch.data_ptr(), _SCRATCH_BYTES, stream.cuda_stream,
        )  # fmt: skip
        if code != 0:
            raise RecordingError(f"{name} did not start: CUDA error {code}")


@functools.cache
def _load_kernels(device: torch.device) -> _Kernels:
    """Return the kernels for a GPU, built where they were not yet.

    Raises:
        RecordingError: They can't be built or loaded.
    """
    given = os.environ.get(_LIBRARY)
    if given:
        return _Kernels(Path(given), device)
    major, minor = torch.cuda.get_device_capability(device)
    return _Kernels(build_kernels(f"sm_{major}{minor}"), device)


def build_kernels(architecture: str) -> Path:
    """Compile kernels.cu, or find what was compiled before, and return the library's path.

    Args:
        architecture: Architecture such as `sm_90`.

    Raises:
        RecordingError: There is no nvcc, or it fails.
    """
    source = _SOURCE.read_bytes()
    name = f"emulated-{hashlib.sha256(source).hexdigest()[:16]}-{architecture}.so"
    home = cache_folder()
    if (home / name).is_file():
        return home / name
    home.mkdir(parents=True, exist_ok=True)
    with replacing(home / name) as built:
        homes = [os.environ[key] for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
        places = [str(Path(each) / "bin" / "nvcc") for each in [*homes, *_HOMES]]
        nvcc = next((each for each in places if Path(each).is_file()), shutil.which("nvcc"))
        if nvcc is None:
            raise RecordingError(
                f"emulated collectives on a GPU need nvcc (set CUDA_HOME), or {_LIBRARY} set to a "
                "library that was built elsewhere"
            )
        command = [nvcc, "-std=c++17", "-O2", "-shared", "-Xcompiler", "-fPIC",
                   f"-arch={architecture}", "-o", str(built), str(_SOURCE)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RecordingError(f"nvcc could not build {_SOURCE.name}:\n{done.stderr.strip()}")
    return home / name


# ------------------------------------------------------------------------- lanes


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective, as a communicator sees it."""

    kernel: str
    """Name as in NCCL without arguments, such as `ncclDevKernel_AllGather_RING_LL`."""
    ns: int
    moved: int
    """Bytes that pass this rank's memory."""
    copies: Sequence[Copies]
    outputs: list[Tensor]
    """The future's value."""


class Lane(Protocol):
    """The queue of one communicator on one device."""

    def run(self, transfer: Transfer) -> Any:
        """Begin a transfer when those before it are over; return a `torch.futures.Future`."""

    def close(self) -> None:
        """Wait for what runs."""


class HostLane:
    """A thread that sleeps for as long as a transfer takes, and writes its result then.

    So a program that does not wait reads what was there before, as with real ranks.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[Transfer, Any, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="emulated links", daemon=True)
        self._thread.start()

    def run(self, transfer: Transfer) -> Any:
        """See `Lane`."""
        future: Any = torch.futures.Future()
        self._requests.put((transfer, future, time.perf_counter_ns()))
        return future

    def close(self) -> None:
        """See `Lane`."""
        self._requests.put(None)
        self._thread.join()

    def _serve(self) -> None:
        free_ns = 0
        while (item := self._requests.get()) is not None:
            transfer, future, requested_ns = item
            free_ns = max(free_ns, requested_ns) + transfer.ns
            try:
                with torch.no_grad():
                    time.sleep(max(0, free_ns - time.perf_counter_ns()) / 1e9)
                    for copies in transfer.copies:
                        copies.write()
            except Exception as error:  # belongs to whoever waits
                future.set_exception(error)
            else:
                future.set_result(transfer.outputs)


class DeviceLane:
    """A stream of high priority on which kernels named as NCCL's take the time of transfers."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kernels = _load_kernels(device)
        self._stream = torch.cuda.Stream(device, priority=-1)

    def run(self, transfer: Transfer) -> Any:
        """See `Lane`."""
        future: Any = torch.futures.Future(devices=[self._device])
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream), torch.no_grad():
            # NCCL works on one array; what has several is gathered before or scattered behind it.
            first, *more = transfer.copies or (None,)
            # Results of types that no kernel of a reduction has are written by operators of torch.
            is_sum = "_Sum_" in transfer.kernel
            if first is not None and is_sum and first.source.dtype not in _SUMMED:
                first, more = None, list(transfer.copies)
            self._kernels.launch(transfer.kernel, transfer.ns, transfer.moved, first, self._stream)
            for copies in more:
                copies.write()
            future.set_result(transfer.outputs)  # records an event on this stream
        for copies in transfer.copies:
            copies.source.record_stream(self._stream)
            copies.target.record_stream(self._stream)
        return future

    def close(self) -> None:
        """See `Lane`."""
        self._stream.synchronize()


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
