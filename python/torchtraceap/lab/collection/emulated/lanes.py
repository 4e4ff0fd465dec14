"""Where transfers run, one after the other: a thread for the host's tensors, a stream for a GPU's.

Both give a future that is complete as a work of ProcessGroupNCCL is: on a GPU at once, its `wait`
makes the current stream wait for the transfer; on a CPU when the transfer is over.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from torchtraceap.lab.collection.emulated.kernels import can_write, load_kernels
from torchtraceap.lab.collection.emulated.results import Copies

__all__ = ["DeviceLane", "HostLane", "Lane", "Transfer"]


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
    """Of one communicator on one device."""

    def run(self, transfer: Transfer) -> Any:
        """Begins when those before it are over; gives a `torch.futures.Future`."""

    def close(self) -> None:
        """Waits for what runs."""


class HostLane:
    """A thread that sleeps for as long as a transfer takes, and writes its result then.

    So a program that does not wait reads what was there before, as with real ranks.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Transfer, Any, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="emulated links", daemon=True)
        self._thread.start()

    def run(self, transfer: Transfer) -> Any:
        """See `Lane`."""
        future: Any = torch.futures.Future()
        self._asked.put((transfer, future, time.perf_counter_ns()))
        return future

    def close(self) -> None:
        """See `Lane`."""
        self._asked.put(None)
        self._thread.join()

    def _serve(self) -> None:
        free_ns = 0
        while (item := self._asked.get()) is not None:
            transfer, future, asked_ns = item
            free_ns = max(free_ns, asked_ns) + transfer.ns
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
        self._kernels = load_kernels(device)
        self._stream = torch.cuda.Stream(device, priority=-1)

    def run(self, transfer: Transfer) -> Any:
        """See `Lane`."""
        future: Any = torch.futures.Future(devices=[self._device])
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream), torch.no_grad():
            # NCCL works on one array; what has several is gathered before or scattered behind it.
            first, *more = transfer.copies or (None,)
            if first is not None and not can_write(transfer.kernel, first):
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
