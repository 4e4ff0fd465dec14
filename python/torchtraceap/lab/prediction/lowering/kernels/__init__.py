"""Kernels, copies and memsets that an operator launches, with Kineto's names.

There is a file for each family of operators. The rules follow ATen's sources (which kernel is
launched, with which grid) and its libraries; none is a table of traces.

Note [Shares]: `op_times` gives the time of an operator, not of its kernels. Helper kernels (a
memset, a change of layout) move their bytes at the rate of the memory; the main kernels share the
rest, at least half. Without a main kernel all share by their bytes.
"""

from __future__ import annotations

from contextlib import suppress

from torchtraceap.lab.prediction.lowering.kernels import (
    attention,
    convolutions,
    embeddings,
    indexing,
    lists,
    miscellaneous,
    normalization,
    pointwise,
    products,
    recurrent,
    reductions,
)
from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Launch,
    Rule,
    Setting,
    UnknownArgumentError,
    bytes_of,
    ceil_div,
)
from torchtraceap.lab.prediction.lowering.step import (
    GpuWork,
    LaunchingOp,
    Libraries,
    OpTime,
    WorkKind,
)
from torchtraceap.ops import Device, Estimate, family_of

__all__ = ["kernel_names", "kernels_of"]

_START_NS = 1_000.0
"""Duration of the shortest kernels."""
_LEAST_OF_MAIN = 0.5

_RULES: dict[str, Rule] = {
    **pointwise.RULES,
    **products.RULES,
    **reductions.RULES,
    **normalization.RULES,
    **attention.RULES,
    **convolutions.RULES,
    **indexing.RULES,
    **embeddings.RULES,
    **lists.RULES,
    **recurrent.RULES,
    **miscellaneous.RULES,
}
"""Rules by operator of ATen or torchvision; other operators are pointwise or unknown."""


def kernels_of(
    op: LaunchingOp, device: Device, libraries: Libraries, time: OpTime
) -> tuple[GpuWork, ...]:
    """Return the GPU work of an operator in stream order.

    Args:
        op: Operator from `launching_ops`.
        device: A GPU.
        libraries: Libraries of the build of torch.
        time: Time of all its GPU work, which is split among the pieces.
    """
    launches = _launches(op, Setting(device, libraries))
    whole = time.estimate
    works = []
    for launch, share in zip(launches, _shares(launches, whole.ns, device), strict=True):
        grid, block = (
            size if isinstance(size, tuple) else (size, 1, 1)
            for size in (launch.grid, launch.block)
        )
        work = GpuWork(
            name=launch.name,
            kind=launch.kind,
            estimate=Estimate(
                share * whole.ns, share * whole.low_ns, share * whole.high_ns, whole.source
            ),
            bytes=launch.bytes,
            grid=(max(1, grid[0]), max(1, grid[1]), max(1, grid[2])),
            block=block,
            registers=launch.registers,
            shared_memory=launch.shared_memory,
        )
        works.append(work)
    return tuple(works)


def kernel_names(op: LaunchingOp, device: Device, libraries: Libraries) -> tuple[str, ...]:
    """Return the names of an operator's kernels, without copies and memsets."""
    launches = _launches(op, Setting(device, libraries))
    return tuple(each.name for each in launches if each.kind is WorkKind.KERNEL)


def _launches(op: LaunchingOp, setting: Setting) -> tuple[Launch, ...]:
    """Return the launches by the operator's rule; one kernel of an assumed name without any."""
    base = op.name.removeprefix("aten::")
    rule = _RULES.get(base) or _RULES.get(base.rstrip("_")) or pointwise.pointwise
    with suppress(UnknownArgumentError):
        found = tuple(rule(op, setting))
        if found:
            return found
    elements = max((each.elements for each in op.tensors), default=1)
    name = f"{family_of(op.name)}_kernel<{op.name}>"
    return (Launch(name, ceil_div(elements, 512), moved=bytes_of(*op.tensors)),)


def _shares(launches: tuple[Launch, ...], ns: float, device: Device) -> list[float]:
    """Return the share of the operator's time for each launch; see Note [Shares]."""
    alone = [_START_NS + 1e9 * (each.moved or 0.0) / device.bandwidth for each in launches]
    mains = sum(each.moved is None for each in launches)
    if not mains:
        whole = sum(alone)
        return [each / whole for each in alone]
    helping = sum(t for t, each in zip(alone, launches, strict=True) if each.moved is not None)
    helpers = min(helping / ns, 1.0 - _LEAST_OF_MAIN) if ns > 0 else 0.0
    return [
        (1.0 - helpers) / mains if each.moved is None else helpers * t / helping
        for t, each in zip(alone, launches, strict=True)
    ]
