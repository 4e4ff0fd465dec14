"""Runs a step of a workload in the steady state.

Note [Steady state]: the first step of an optimizer creates its state, which later steps use, while
the calls of forward and backward pass are mostly the same from the first step on. So the passes run
and are recorded once, then the optimizer runs twice and its second run is recorded. A model that
keeps something of its first pass, such as a table of positions, that leaves parameters on the host,
or whose optimizer frees the gradients, runs once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import Phase
from torchtraceap.lab.workloads.workload import Workload

if TYPE_CHECKING:
    import torch

    from torchtraceap.lab.prediction.capture.recorder import Recorder

__all__ = [
    "input_tensors",
    "restored",
    "run_step",
    "step_counters",
    "use_foreach",
    "watch_optimizers",
    "with_values",
]


def run_step(
    workload: Workload,
    recorder: Recorder,
    passes: Callable[[], None] | None = None,
    steps: int | None = None,
) -> torch.nn.Module:
    """Run steps of which the last is recorded.

    Args:
        workload: The workload to run.
        recorder: Recorder of the calls.
        passes: Runs forward and, with a loss, backward pass; by default the workload's.
        steps: Steps until the steady state; by default see Note [Steady state].

    Returns:
        The model.

    Raises:
        OptionError: The workload's optimizer has no `step`.
    """
    model = workload.model
    tensors = [*model.parameters(), *model.buffers(), *input_tensors(workload)]
    passes = passes or (lambda: _passes(workload, recorder))
    model.train(workload.loss is not None)
    update = _update(workload, recorder)

    def turn() -> None:
        recorder.begin_step(tensors)
        if workload.loss is not None:
            with recorder.in_phase(Phase.OPTIMIZER):
                model.zero_grad()
        passes()

    if steps is not None:
        for _ in range(steps):
            turn()
            update()
        return model
    before = _state_sizes(model)
    turn()
    if _state_sizes(model) != before or recorder.leaves_on_host(model):
        turn()
    with recorder.paused():
        had_gradients = _has_gradients(model)
        update()
    if had_gradients and not _has_gradients(model):
        turn()
    recorder.add_initial(recorder.optimizer_state())
    update()
    return model


def _passes(workload: Workload, recorder: Recorder) -> None:
    import torch

    if workload.loss is None:
        with torch.no_grad():  # inference mode would keep composite operators in one piece
            workload.forward()
        return
    loss = workload.loss(workload.forward())
    if not isinstance(loss, torch.Tensor):
        raise OptionError(f"the loss gives a {type(loss).__name__}, not a tensor")
    if loss.numel() != 1:
        raise OptionError(f"the loss gives {tuple(loss.shape)} numbers, not one; .mean() makes one")
    if not loss.requires_grad:
        raise OptionError("the loss does not depend on a parameter that is trained")
    with recorder.in_phase(Phase.BACKWARD):
        loss.backward()


def input_tensors(workload: Workload) -> Iterator[torch.Tensor]:
    """Return the tensors among the inputs."""
    import torch
    from torch.utils._pytree import tree_leaves

    return (leaf for leaf in tree_leaves(workload.inputs) if isinstance(leaf, torch.Tensor))


def _has_gradients(model: torch.nn.Module) -> bool:
    return any(each.grad is not None for each in model.parameters())


def _state_sizes(model: torch.nn.Module) -> list[dict[str, int]]:
    """Return the size of each attribute of each module, except parameters and buffer counts.

    It is the elements of a tensor, the length of a collection, 0 for None and else 1.
    """
    sizes = []
    for module in model.modules():
        found = {}
        for name, value in (*vars(module).items(), *module._buffers.items()):
            if name in _MODULE_ATTRIBUTES:
                continue
            found[name] = 0 if value is None else 1
            if hasattr(value, "numel") and callable(value.numel):
                found[name] = int(value.numel())
            elif isinstance(value, (list, tuple, set, Mapping)):
                found[name] = len(value)
        sizes.append(found)
    return sizes


_MODULE_ATTRIBUTES = frozenset(("_parameters", "_buffers", "_modules", "training"))


@contextmanager
def with_values(workload: Workload) -> Iterator[Workload]:
    """Yield a workload whose tensors on the meta device lie on the host within the context.

    Parameters and buffers are drawn, as a model's would be before training; the model gets its own
    back.
    """
    import torch
    from torch.utils._pytree import tree_map_only

    made: dict[int, torch.Tensor] = {}
    before: list[tuple[dict[str, Any], str, torch.Tensor]] = []

    def on_host(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "meta":
            return tensor
        if id(tensor) not in made:  # one that two modules share stays shared
            found = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
            if tensor.is_floating_point():
                found.normal_(std=_INITIAL)
            if isinstance(tensor, torch.nn.Parameter):
                found = torch.nn.Parameter(found, requires_grad=tensor.requires_grad)
            made[id(tensor)] = found
        return made[id(tensor)]

    for module in workload.model.modules():
        for own in (module._parameters, module._buffers):
            for name, tensor in own.items():
                if tensor is not None and tensor.device.type == "meta" and not _is_lazy(tensor):
                    before.append((own, name, tensor))
                    own[name] = on_host(tensor)
    try:
        yield replace(workload, inputs=tree_map_only(torch.Tensor, on_host, workload.inputs))
    finally:
        for own, name, tensor in before:
            own[name] = tensor


_INITIAL = 0.02
"""Standard deviation of parameters that have no values."""


def _is_lazy(tensor: torch.Tensor) -> bool:
    from torch.nn.parameter import is_lazy

    return bool(is_lazy(tensor))


@contextmanager
def restored(model: torch.nn.Module, *, with_parameters: bool) -> Iterator[None]:
    """Restore a model after the context.

    Args:
        model: The model.
        with_parameters: Restore the values of parameters as well.
    """
    import torch

    kept = [*model.buffers(), *(model.parameters() if with_parameters else ())]
    values = [(tensor, tensor.detach().clone()) for tensor in kept]
    gradients = {id(each): each.grad for each in model.parameters() if each.grad is not None}
    training = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in values:
                tensor.copy_(value)
        for parameter in model.parameters():
            parameter.grad = gradients.get(id(parameter))
        for module, was in training:
            module.training = was


# ------------------------------------------------------------------------------- optimizers


def _update(workload: Workload, recorder: Recorder) -> Callable[[], None]:
    """Return a function that runs the optimizers and schedulers, which may be in a collection."""
    if workload.loss is None or workload.optimizer is None:
        return lambda: None
    made = workload.optimizer(workload.model.parameters())
    listed = made.values() if isinstance(made, Mapping) else made
    if not isinstance(made, (Mapping, list, tuple)):
        listed = (made,)
    parts = [each for each in listed if callable(getattr(each, "step", None))]
    if not parts:
        raise OptionError(
            f"a workload's optimizer makes something with step(), not {type(made).__name__}"
        )

    def update() -> None:
        with recorder.in_phase(Phase.OPTIMIZER):
            for part in parts:
                part.step()

    return update


@contextmanager
def watch_optimizers(recorder: Recorder) -> Iterator[None]:
    """Run optimizer steps as on a GPU and assign their calls to the optimizer phase."""
    from torch.optim import optimizer as hooks

    phases: list[Any] = []

    def begin(optimizer: Any, *_: Any) -> None:
        use_foreach(optimizer)
        recorder.add_optimizer(optimizer)
        phases.append(recorder.in_phase(Phase.OPTIMIZER))
        phases[-1].__enter__()

    def end(optimizer: Any, *_: Any) -> None:
        phases.pop().__exit__(None, None, None)
        recorder.keep_on_host(step_counters(optimizer))

    begins = hooks.register_optimizer_step_pre_hook(begin)
    ends = hooks.register_optimizer_step_post_hook(end)
    try:
        yield
    finally:
        begins.remove()
        ends.remove()


def use_foreach(optimizer: torch.optim.Optimizer) -> None:
    """Update many tensors at once, which is the default on a GPU but not on a CPU."""
    for group in optimizer.param_groups:
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True


def step_counters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the step counters of parameters.

    torch keeps them on the host unless the optimizer is fused or capturable.
    """
    on_gpu = {
        id(parameter)
        for group in optimizer.param_groups
        if group.get("fused") or group.get("capturable")
        for parameter in group["params"]
    }
    for parameter, state in optimizer.state.items():
        if "step" in state and id(parameter) not in on_gpu and hasattr(state["step"], "stride"):
            yield state["step"]
