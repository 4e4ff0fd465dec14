"""`process_group`: rank 0 of a group whose other ranks are not there.

Note [As NCCL records]: the C++ of a process group leaves three events around the launch of a
kernel: its operator (`c10d::allreduce_`), the description of the collective (`record_param_comms`)
and the title of its work (`nccl:all_reduce`). A group in Python is asked before these are written,
so it writes them itself: same nesting, same arguments. The profiler of torch takes the second name
for its own and breaks where C++ did not prepare it, so that event is recorded as `DESCRIPTION`, and
`as_nccl_records` (`record/export.py`) gives the trace its name. On a CPU the title is
that of gloo (`gloo:all_reduce`), and lasts, as with gloo, until the transfer is over.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._profiler import _RecordFunctionFast
from torch.profiler import record_function

from torchtraceap.errors import OptionError
from torchtraceap.lab.collection.emulated.transfers import (
    NETWORKS,
    RANKS,
    Copies,
    DeviceLane,
    HostLane,
    Lane,
    Network,
    Transfer,
    TransferTimes,
    reduction_factor,
)
from torchtraceap.ops import bus_factor, collective_kernel
from torchtraceap.record import DESCRIPTION, EMULATED

__all__ = ["EmulatedGroup", "process_group"]

_SCALARS = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
}
# Kind in `torchtraceap.ops.durations` -> the operator of c10d, what record_param_comms calls it.
_NAMES = {
    "all_reduce": ("allreduce_", "allreduce"),
    "all_reduce_coalesced": ("allreduce_coalesced_", "allreduce_coalesced"),
    "all_gather": ("allgather_", "all_gather"),
    "all_gather_into": ("_allgather_base_", "_allgather_base"),
    "all_gather_coalesced": ("allgather_into_tensor_coalesced_", "allgather_coalesced"),
    "reduce_scatter": ("reduce_scatter_", "reduce_scatter"),
    "reduce_scatter_into": ("_reduce_scatter_base_", "_reduce_scatter_base"),
    "reduce_scatter_coalesced": ("reduce_scatter_tensor_coalesced_", "reduce_scatter_coalesced"),
    "all_to_all": ("alltoall_", "all_to_all"),
    "all_to_all_into": ("alltoall_base_", "all_to_allv"),
    "broadcast": ("broadcast_", "broadcast"),
    "reduce": ("reduce_", "reduce"),
    "gather": ("gather_", "gather"),
    "scatter": ("scatter_", "scatter"),
    "send_recv": ("send", "send"),
    "barrier": ("barrier", "barrier"),
}


class EmulatedGroup(dist.ProcessGroup):
    """Rank 0's view of a group; `process_group` and `new_group` make them.

    Every operation returns a work whose `wait` is ProcessGroupNCCL's: it makes the current stream
    wait on a GPU, and the host on a CPU.
    """

    def __init__(self, rank: int, size: int, times: TransferTimes) -> None:
        super().__init__(rank, size)
        self._ranks, self._times = size, times
        self._lanes: dict[torch.device, Lane] = {}
        self._sequence = itertools.count(1)
        self._last: Any = None
        self._name = self._description = ""

    @property
    def group_name(self) -> str:
        """Name of the group, as torch numbers groups."""
        return self._name

    @property
    def group_desc(self) -> str:
        """Description such as `default_pg`."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getBackendName(self) -> str:  # noqa: N802  # a name of torch
        """Return `emu`."""
        return EMULATED

    def shutdown(self) -> None:
        """Wait for what runs."""
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()

    abort = shutdown

    # ------------------------------------------------------------------- what torch calls

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Make every tensor the reduction of equal ones."""
        return self._reduced("all_reduce", tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Do as `allreduce`, in one transfer."""
        return self._reduced("all_reduce_coalesced", tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Do as `allreduce` where rank 0 is the root; else change nothing here."""
        if opts is not None and opts.rootRank != 0:
            return self._transfer("reduce", tensors, tensors, [])
        return self._reduced("reduce", tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Change nothing: the root holds the same."""
        return self._transfer("broadcast", tensors, tensors, [])

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        """Make every output the input."""
        copies = [Copies(own, out) for own, outs in zip(inputs, outputs) for out in outs]  # noqa: B905
        return self._transfer("all_gather", inputs, list(itertools.chain(*outputs)), copies)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Any:
        """Make the output copies of the input, one behind the other."""
        return self._transfer("all_gather_into", [given], [output], [Copies(given, output)])

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        """Do as `all_gather_single` for several, in one transfer."""
        copies = [Copies(own, out) for own, out in zip(inputs, outputs, strict=True)]
        return self._transfer("all_gather_coalesced", inputs, outputs, copies)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> Any:
        """Make the output the reduction of equal first inputs."""
        firsts = [each[0] for each in inputs]
        copies = self._sums(firsts, outputs, opts)
        return self._transfer("reduce_scatter", list(itertools.chain(*inputs)), outputs, copies)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Any:
        """Make the output the reduction of equal first parts of the input."""
        copies = self._sums([self._first_part(given)], [output], opts)
        return self._transfer("reduce_scatter_into", [given], [output], copies)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        """Do as `reduce_scatter_single` for several, in one transfer."""
        copies = self._sums([self._first_part(each) for each in inputs], outputs, opts)
        return self._transfer("reduce_scatter_coalesced", inputs, outputs, copies)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """Make all outputs the first input: every rank sends what is for rank 0."""
        copies = [Copies(inputs[0], out) for out in outputs]
        return self._transfer("all_to_all", inputs, outputs, copies)

    def all_to_all_single(
        self, output: Tensor, given: Tensor, out_splits: Any, in_splits: Any, opts: Any = None
    ) -> Any:
        """Make the output copies of the part of the input that is for rank 0.

        Raises:
            OptionError: Ranks with the same data would not send parts of the sizes asked for.
        """
        first = given[: in_splits[0]] if in_splits else self._first_part(given)
        if out_splits and any(size != len(first) for size in out_splits):
            raise OptionError(
                f"all-to-all: equal ranks send {len(first)} rows each, not {list(out_splits)}"
            )
        splits = {"In split size": list(in_splits or ()), "Out split size": list(out_splits or ())}
        copies = [Copies(first, output)]
        return self._transfer("all_to_all_into", [given], [output], copies, splits)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        """Do as `allgather` where rank 0 is the root."""
        copies = [Copies(own, out) for own, outs in zip(inputs, outputs) for out in outs]  # noqa: B905
        return self._transfer("gather", inputs, list(itertools.chain(*outputs)) or inputs, copies)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        """Make the output the first input where rank 0 is the root."""
        copies = [Copies(parts[0], out) for parts, out in zip(inputs, outputs)]  # noqa: B905
        return self._transfer("scatter", list(itertools.chain(*inputs)) or outputs, outputs, copies)

    def send(self, tensors: list[Tensor], rank: int, tag: int = 0) -> Any:
        """Take the time of a transfer."""
        return self._transfer("send_recv", tensors, tensors, [])

    def recv(self, tensors: list[Tensor], rank: int, tag: int = 0) -> Any:
        """Take the time of a transfer; the tensors stay, as no other rank's data is known."""
        return self._transfer("send_recv", tensors, tensors, [])

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Any:
        """Do as `recv`."""
        return self.recv(tensors, 0, tag)

    def barrier(self, opts: Any = None) -> Any:
        """Make the host wait for everything before it, as NCCL's barrier does."""
        device = torch.device("cuda", torch.cuda.current_device()) if self._on_gpu() else "cpu"
        work = self._transfer("barrier", [torch.zeros(1, device=device)], [], [])
        work.wait()
        if self._on_gpu():
            torch.cuda.current_stream().synchronize()
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        self._last = None

    def _end_coalescing(self, device: torch.device) -> Any:
        """Return the last work, which stands for all as transfers run in order."""
        return self._last if self._last is not None else self.barrier()

    # The names of torch up to 2.12.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # ------------------------------------------------------------------- how it is done

    def _on_gpu(self) -> bool:
        return any(device.type == "cuda" for device in self._lanes)

    def _sums(self, sources: list[Tensor], targets: list[Tensor], opts: Any) -> list[Copies]:
        operation = opts.reduceOp if opts is not None else dist.ReduceOp(dist.ReduceOp.SUM)
        factor = reduction_factor(operation, self._ranks)
        # Of equal truth values the sum is the same value.
        return [
            Copies(a, b, 1.0 if a.dtype == torch.bool else factor)
            for a, b in zip(sources, targets, strict=True)
        ]

    def _reduced(self, form: str, tensors: list[Tensor], opts: Any) -> Any:
        return self._transfer(form, tensors, tensors, self._sums(tensors, tensors, opts))

    def _first_part(self, given: Tensor) -> Tensor:
        """Return the first of as many parts as there are ranks."""
        if len(given) % self._ranks:
            raise OptionError(f"{len(given)} rows can't be dealt to {self._ranks} ranks")
        return given[: len(given) // self._ranks]

    def _transfer(
        self,
        form: str,
        inputs: Sequence[Tensor],
        outputs: list[Tensor],
        copies: Sequence[Copies],
        splits: dict[str, list[int]] | None = None,
    ) -> Any:
        kind, dtype = form.removesuffix("_into").removesuffix("_coalesced"), inputs[0].dtype
        size = max(sum(map(_bytes, inputs)), sum(map(_bytes, outputs)))
        ns = self._times.draw_ns(kind, size, self._ranks)
        moving = "all_reduce" if kind == "barrier" else kind
        name = collective_kernel(moving, str(dtype).removeprefix("torch."))
        # What comes over the links is read and written once more.
        moved = int(2 * bus_factor(moving, self._ranks) * size)
        transfer = Transfer(name, ns, moved, copies, outputs)
        device = inputs[0].device
        if device not in self._lanes:
            on_gpu = device.type == "cuda"
            self._lanes[device] = DeviceLane(device) if on_gpu else HostLane()
        lane = self._lanes[device]
        with self._recorded(form, inputs, outputs, splits or {}) as title:
            done = lane.run(transfer)
            if isinstance(lane, HostLane):
                done = title._call_end_callbacks_on_future(done)
            self._last = torch._C._distributed_c10d._create_work_from_future(done)
        return self._last

    @contextlib.contextmanager
    def _recorded(
        self,
        form: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        splits: dict[str, list[int]],
    ) -> Iterator[record_function]:
        """Record a collective and yield its title. See Note [As NCCL records]."""
        operator, name = _NAMES[form]
        described = {
            "Collective name": name,
            "dtype": _SCALARS.get(inputs[0].dtype, "Byte"),
            "In msg nelems": sum(tensor.numel() for tensor in inputs),
            "Out msg nelems": sum(tensor.numel() for tensor in outputs),
            "In split size": str(splits.get("In split size", [])),
            "Out split size": str(splits.get("Out split size", [])),
            "Group size": self._ranks,
            "Process Group Name": self.group_name,
            "Process Group Description": self.group_desc,
            "Process Group Ranks": str(dist.get_process_group_ranks(self)),
            "Global rank start": 0,
            "Global rank stride": 1,
            "Rank": 0,
            "Seq": next(self._sequence),
        }
        with (
            _RecordFunctionFast(f"c10d::{operator}", list(inputs)),
            _RecordFunctionFast(DESCRIPTION, list(inputs), described),
            record_function(f"{'nccl' if inputs[0].is_cuda else 'gloo'}:{name}") as title,
        ):
            yield title


def _bytes(tensor: Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


@contextlib.contextmanager
def process_group(
    world_size: int, network: str | Network = "nvlink", *, seed: int = 0
) -> Iterator[dist.ProcessGroup]:
    """Make this process rank 0 of a job of `world_size` ranks, none of which is there.

    Groups that are made inside (`new_group`, device meshes) are emulated as well.

    Args:
        world_size: Number of ranks, 2 to 8.
        network: A name in `NETWORKS`, or the links themselves.
        seed: Seed of the jitter and the late ranks.

    Raises:
        OptionError: Another number of ranks, or an unknown network.
    """
    if world_size not in RANKS:
        raise OptionError(f"world_size must be {RANKS.start} to {RANKS.stop - 1}: {world_size!r}")
    if isinstance(network, str) and network not in NETWORKS:
        raise OptionError(f"unknown network {network!r}: {', '.join(NETWORKS)}")
    links = NETWORKS[network] if isinstance(network, str) else network
    times = TransferTimes(links, seed)

    def create(store: Any, rank: int, size: int, timeout: timedelta) -> EmulatedGroup:
        return EmulatedGroup(rank, size, times)

    dist.Backend.register_backend(EMULATED, create, devices=["cpu", "cuda"])
    dist.init_process_group(EMULATED, store=dist.HashStore(), rank=0, world_size=world_size)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()  # shuts all groups down
