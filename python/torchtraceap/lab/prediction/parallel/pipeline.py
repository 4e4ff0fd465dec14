"""Pipeline parallelism: stages of blocks that microbatches pass through.

Note [A stage]: a stage begins with the received output of the previous block and ends with the
output of its last block, which is sent. Layers before the first block belong to the first stage,
those after the last block to the last stage. Every rank runs the model's own forward: blocks of
other stages return their output of a trial run, and nothing around them is recorded. Computations
that later stages would repeat for themselves, such as positions and masks, are not counted.

Note [Order]: the order is one forward, one backward, as in torch's Schedule1F1B: a stage begins
with as many forward passes as there are stages from it to the end, and then alternates backward and
forward passes. It sends and receives in one batch between the two, and waits for that.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.flop_counter import FlopCounterMode

from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import Phase
from torchtraceap.lab.prediction.capture.recorder import Recorder
from torchtraceap.lab.prediction.capture.run import run_step
from torchtraceap.lab.prediction.parallel.data import (
    DDP_STEPS,
    PLAIN_STEPS,
    model_blocks,
    wrap_ddp,
)
from torchtraceap.lab.prediction.parallel.strategy import DATA, PIPELINE, Strategy
from torchtraceap.lab.workloads.workload import Workload

__all__ = ["run_stage"]

_PARTS_PER_STAGE = 4


def _split_batch(workload: Workload, strategy: Strategy) -> list[Workload]:
    """Return a workload for each microbatch, with its inputs and its targets in the loss.

    There are as many as requested, or up to 4 per stage.

    Raises:
        OptionError: The batch has no so many equal parts, or fewer than there are stages.
    """
    leaves = tree_leaves(workload.inputs)
    rows = (leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim())
    batch: int = next(rows, 1)
    stages, parts = strategy.size(PIPELINE), strategy.microbatches
    if parts is None:
        fit = range(min(batch, _PARTS_PER_STAGE * stages), stages - 1, -1)
        parts = next((each for each in fit if batch % each == 0), None)
        if parts is None:
            raise OptionError(
                f"pp={stages} needs a batch of {stages} equal parts or more, not of {batch} rows"
            )
    if parts < stages:
        raise OptionError(f"pp={stages} needs {stages} microbatches or more, not {parts}")
    if batch % parts:
        raise OptionError(f"a batch of {batch} has no {parts} equal parts")
    return [
        replace(
            workload,
            inputs=tree_map(partial(_rows, batch, parts, index), workload.inputs),
            loss=workload.loss and _loss_of(workload.loss, batch, parts, index),
        )
        for index in range(parts)
    ]


def _rows(batch: int, parts: int, index: int, value: Any) -> Any:
    """Return a microbatch's rows of a tensor that has rows for the whole batch."""
    if not isinstance(value, torch.Tensor) or not value.dim() or value.shape[0] % batch:
        return value
    rows = value.shape[0] // parts
    return value.narrow(0, index * rows, rows)


def _loss_of(loss: Callable[..., Any], batch: int, parts: int, index: int) -> Callable[..., Any]:
    """Return the loss with a microbatch's rows of the targets in its closure, defaults or
    arguments."""
    rows = partial(tree_map, partial(_rows, batch, parts, index))
    if isinstance(loss, partial):
        inner = _loss_of(loss.func, batch, parts, index)
        return partial(inner, *rows(loss.args), **rows(loss.keywords))
    if not isinstance(loss, types.FunctionType):
        return loss
    cells = tuple(types.CellType(rows(cell.cell_contents)) for cell in loss.__closure__ or ())
    made = types.FunctionType(
        loss.__code__, loss.__globals__, loss.__name__, rows(loss.__defaults__), cells
    )
    made.__kwdefaults__ = rows(loss.__kwdefaults__)
    return made


@dataclass
class _Block:
    module: nn.Module
    output: Any
    """Output in the trial run."""
    cost: int
    """Operations since the end of the previous block."""


def _trial_run(part: Workload) -> tuple[list[_Block], int]:
    """Return the blocks in the order in which they run, and the cost of what follows."""
    blocks: list[_Block] = []
    done = 0
    counter = FlopCounterMode(display=False)

    def check_inputs(block: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = [e for e in tree_leaves((args, kwargs)) if isinstance(e, torch.Tensor)]
        if len({id(each) for each in tensors if each.requires_grad}) > 1:
            raise OptionError(
                f"a pipeline hands one tensor from block to block, and {names[block]} takes more"
            )

    def note_output(block: nn.Module, _args: Any, output: Any) -> None:
        nonlocal done
        if any(block is each.module for each in blocks):
            raise OptionError(f"a pipeline runs each block once, and {names[block]} runs again")
        total = counter.get_total_flops()
        blocks.append(_Block(block, tree_map(_detach, output), total - done))
        done = total

    named = model_blocks(part.model)
    names = {module: name for name, module in named.items()}
    with ExitStack() as stack:
        for module in named.values():
            hook = module.register_forward_pre_hook(check_inputs, with_kwargs=True)
            stack.callback(hook.remove)
            stack.callback(module.register_forward_hook(note_output).remove)
        stack.enter_context(counter)
        stack.enter_context(torch.set_grad_enabled(part.loss is not None))
        part.forward()
    return blocks, counter.get_total_flops() - done


def _detach(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(value.requires_grad)


def _balanced_bounds(costs: list[int], rest: int, stages: int) -> list[int]:
    """Return the bounds of stages that minimize the cost of the costliest."""
    costs = [cost + 1 for cost in costs]  # blocks without products are shared out too
    costs[-1] += rest
    sums = [0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    count = len(costs)
    best: list[tuple[int, list[int]]] = [(sums[end], [0, end]) for end in range(count + 1)]
    for stage in range(2, stages + 1):
        best = [
            min(
                (
                    (max(best[cut][0], sums[end] - sums[cut]), [*best[cut][1], end])
                    for cut in range(stage - 1, end)
                ),
                default=(sums[-1] + 1, []),
            )
            for end in range(count + 1)
        ]
    return best[count][1]


def _output_tensor(output: Any) -> torch.Tensor:
    """Return the floating point tensor that a block hands to the next."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf
    raise OptionError("a pipeline hands a tensor from block to block, and a block gives none")


class Stage(nn.Module):
    """A stage of blocks with the parameters that it trains.

    Its forward takes the index of a microbatch and the tensor received for it, and returns the
    tensor to be sent, or the model's output.
    """

    def __init__(
        self,
        parts: list[Workload],
        blocks: list[_Block],
        rest: int,
        count: int,
        index: int,
        recorder: Recorder,
    ) -> None:
        """Change the forward of the blocks of a model.

        Args:
            parts: Microbatches.
            blocks, rest: See `_trial_run`.
            count: Number of stages.
            index: Index of this stage.
            recorder: Recorder of the calls, paused.
        """
        super().__init__()
        if len(blocks) < count:
            raise OptionError(
                f"pp={count} needs {count} blocks or more, and the model has {len(blocks)}"
            )
        bounds = _balanced_bounds([block.cost for block in blocks], rest, count)
        first, end = bounds[index : index + 2]
        self.after = count - 1 - index
        """Number of later stages."""
        self.is_first, self.is_last = index == 0, self.after == 0
        self.parts = parts
        self._recorder, self._is_on = recorder, False
        self._before = None if self.is_first else blocks[first - 1].output
        self._last = blocks[end - 1].output
        self._received: torch.Tensor | None = None
        self._sent: torch.Tensor | None = None
        for position, block in enumerate(blocks):
            if position == first - 1:
                block.module.forward = self._begin
            elif not first <= position < end:
                block.module.forward = _constant(block.output)
            elif position == end - 1 and not self.is_last:
                block.module.forward = partial(self._end, block.module.forward)
        # The stage trains the parameters that get a gradient here; without training it has those
        # of its blocks.
        model, loss = parts[0].model, parts[0].loss
        if loss is None:
            modules = [block.module for block in blocks[first:end]]
            own = {id(each) for module in modules for each in module.parameters()}
        else:
            output = self(0, self.input_buffer())
            (loss(output) if self.is_last else output.sum()).backward()
            own = {id(each) for each in model.parameters() if each.grad is not None}
            model.zero_grad()
        for name, parameter in model.named_parameters():
            if id(parameter) in own:
                self.register_parameter(name.replace(".", "_"), parameter)

    def input_buffer(self) -> torch.Tensor | None:
        """Return a buffer for the previous stage's output; None in the first stage."""
        if self._before is None:
            return None
        handed = _output_tensor(self._before)
        return self._like(handed).requires_grad_(handed.requires_grad)

    def gradient_buffer(self) -> torch.Tensor | None:
        """Return a buffer for the next stage's gradient; None in the last stage or without
        training."""
        handed = None if self.is_last else _output_tensor(self._last)
        return self._like(handed) if handed is not None and handed.requires_grad else None

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._recorder.blank():
            return torch.empty(tensor.shape, dtype=tensor.dtype)

    def forward(self, part: int, received: torch.Tensor | None) -> Any:
        self._is_on, self._received = self._recorder.is_on, received
        self._recorder.is_on = self._is_on and self.is_first
        try:
            output = self.parts[part].forward()
        finally:
            self._recorder.is_on = self._is_on
        return output if self.is_last else self._sent

    def _begin(self, *_args: Any, **_kwargs: Any) -> Any:
        """Replace the block before the stage."""
        received = self._received
        assert received is not None
        self._recorder.is_on = self._is_on
        old = _output_tensor(self._before)
        leaves, structure = tree_flatten(self._before)
        return tree_unflatten([received if leaf is old else leaf for leaf in leaves], structure)

    def _end(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the last block of the stage; what follows is not recorded."""
        output = forward(*args, **kwargs)
        self._sent = _output_tensor(output)
        self._recorder.is_on = False
        return tree_map(_detach, output)


def _constant(output: Any) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: output


_Exchange: TypeAlias = tuple[Callable[..., Any], torch.Tensor, int]
"""Function of torch.distributed, tensor and peer."""


def _exchange(start: Callable[..., Any], tensor: torch.Tensor | None, peer: int) -> list[_Exchange]:
    return [] if tensor is None else [(start, tensor, peer)]


class Pipeline:
    """Runs the microbatches of a batch through a stage; see Note [Order]."""

    def __init__(
        self,
        stage: Stage,
        group: dist.ProcessGroup,
        recorder: Recorder,
        copies: DistributedDataParallel | None = None,
    ) -> None:
        """Prepare the buffers of a rank.

        Args:
            stage: Stage of the rank.
            group: Ranks with the stages in order.
            recorder: Recorder of the calls.
            copies: The stage, if its gradients are averaged among copies of it.
        """
        self._stage, self._group, self._recorder, self._copies = stage, group, recorder, copies
        ranks = dist.get_process_group_ranks(group)
        here = ranks.index(dist.get_rank())
        self._previous, self._next = ranks[here - 1], ranks[(here + 1) % len(ranks)]
        count = len(stage.parts)
        self._inputs: list[torch.Tensor | None] = [None] * count
        self._gradients: list[torch.Tensor | None] = [None] * count
        with recorder.paused():
            for part in range(count):
                self._inputs[part] = stage.input_buffer()
                self._gradients[part] = stage.gradient_buffer()
        self._outputs: list[Any] = [None] * count

    def warm_up(self) -> None:
        """Run one microbatch without recording it, which creates gradients and buckets."""
        with self._recorder.paused():
            self._forward(0)
            self._backward(0, is_last=True)

    def infer(self) -> None:
        """Run the forward passes of all microbatches."""
        sent: list[int] = []
        for part in range(len(self._outputs)):
            self._wait(self._start(self._receives(part)))
            self._forward(part)
            self._wait(sent)
            sent = self._start(self._sends(part))
        self._wait(sent)

    def train(self) -> None:
        """Run forward and backward passes; gradients are averaged over the microbatches."""
        count = len(self._outputs)
        begun = min(count, self._stage.after + 1)
        sent: list[int] = []
        for part in range(begun):
            self._wait(self._start(self._receives(part)))
            self._forward(part)
            self._wait(sent)
            if part < begun - 1:
                sent = self._start(self._sends(part))
        sends = self._sends(begun - 1)
        for part in range(count):
            gradient, received = self._gradients[part], self._inputs[part]
            receives = _exchange(dist.irecv, gradient, self._next)
            self._wait(self._start([*sends, *receives]))
            self._backward(part, is_last=part == count - 1)
            self._wait(sent)
            returned = None if received is None else received.grad
            sends, sent = _exchange(dist.isend, returned, self._previous), []
            if begun < count:
                self._wait(self._start([*sends, *self._receives(begun)]))
                self._forward(begun)
                sends = self._sends(begun)
                begun += 1
            else:
                sends, sent = [], self._start(sends)
        self._wait(sent)
        with self._recorder.in_phase(Phase.BACKWARD):
            for parameter in self._stage.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(count)

    def _forward(self, part: int) -> None:
        stage, received = self._stage, self._inputs[part]
        if received is not None:
            received.grad = None
        with self._copies.no_sync() if self._copies else nullcontext():
            output = (self._copies or stage)(part, received)
        loss = stage.parts[part].loss
        self._outputs[part] = loss(output) if stage.is_last and loss else output

    def _backward(self, part: int, *, is_last: bool) -> None:
        output, self._outputs[part] = self._outputs[part], None
        if not output.requires_grad:
            return
        quiet: AbstractContextManager[None] = nullcontext()
        if self._copies is not None and is_last:
            self._copies.reducer.prepare_for_backward([output])
        elif self._copies is not None:
            quiet = self._copies.no_sync()
        with quiet, self._recorder.in_phase(Phase.BACKWARD):
            output.backward(self._gradients[part])

    def _receives(self, part: int) -> list[_Exchange]:
        return _exchange(dist.irecv, self._inputs[part], self._previous)

    def _sends(self, part: int) -> list[_Exchange]:
        output = None if self._stage.is_last else self._outputs[part]
        return _exchange(dist.isend, output, self._next)

    def _start(self, exchanges: list[_Exchange]) -> list[int]:
        """Start transfers as one launch and return what to wait for."""
        with self._recorder.one_launch() as started:
            for start, tensor, peer in exchanges:
                start(tensor, peer, group=self._group)
        return started

    def _wait(self, started: list[int]) -> None:
        streams = self._recorder.streams
        streams.wait(streams.current, started)


def run_stage(
    workload: Workload,
    strategy: Strategy,
    mesh: DeviceMesh,
    recorder: Recorder,
    *,
    finds_unused: bool = False,
) -> nn.Module:
    """Run steps of the current rank, see `run_step`.

    Args:
        workload: Workload of each rank; its model is changed.
        strategy: Strategy of the job.
        mesh: Groups of the strategy.
        recorder: Recorder of the calls.
        finds_unused: See `wrap_ddp`.

    Raises:
        OptionError: The model has fewer blocks than there are stages, or does not go from one to
            the next, or its batch can't be split.
    """
    parts = _split_batch(workload, strategy)
    workload.model.train(workload.loss is not None)
    with recorder.paused():
        index = strategy.coordinate(dist.get_rank(), PIPELINE)
        stage = Stage(parts, *_trial_run(parts[0]), strategy.size(PIPELINE), index, recorder)
    staged, steps = replace(workload, model=stage), None
    copies = None
    if strategy.size(DATA) > 1:
        staged = wrap_ddp(staged, mesh.get_group(DATA), finds_unused=finds_unused)
        steps = DDP_STEPS
        copies = cast(DistributedDataParallel, staged.model)
    pipeline = Pipeline(stage, mesh.get_group(PIPELINE), recorder, copies)
    passes = pipeline.infer if workload.loss is None else pipeline.train
    warm_ups = [pipeline.warm_up] * ((steps or PLAIN_STEPS) - 1) if workload.loss else []
    turns = iter([*warm_ups, passes])
    if strategy.microbatches is None:
        recorder.note(f"the batch goes through the pipeline in {len(parts)} parts")
    return run_step(staged, recorder, lambda: next(turns)(), len(warm_ups) + 1)
