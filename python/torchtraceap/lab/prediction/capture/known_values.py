"""Values of composite operators whose inputs have values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.capture.recorder import Recorder

__all__ = ["DecomposedOp", "decompose"]


def decompose(
    recorder: Recorder, function: Any, tensors: Sequence[torch.Tensor], given: Any
) -> DecomposedOp | None:
    """Compute a composite operator by its decomposition on a CPU, without recording it.

    Args:
        recorder: Recorder of the calls.
        function: The operator.
        tensors: Tensors that may require gradients.
        given: All arguments by name, among them these tensors.

    Returns:
        None where one of the tensors has no values.
    """
    if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((tensors, given))):
        return None
    return DecomposedOp(recorder, function, tensors, given)


class DecomposedOp:
    """A computed composite operator with the graph for its backward pass."""

    def __init__(
        self, recorder: Recorder, function: Any, tensors: Sequence[torch.Tensor], given: Any
    ) -> None:
        self._recorder = recorder
        leaves = {
            id(tensor): tensor.detach().requires_grad_(tensor.is_floating_point())
            for tensor in tensors
        }
        self._leaves = [leaves[id(tensor)] for tensor in tensors]
        with recorder.paused(), torch.enable_grad():
            arguments = tree_map(lambda value: leaves.get(id(value), value), given)
            found = function.decompose(**arguments)
        self._outputs: tuple[torch.Tensor, ...] = found if isinstance(found, tuple) else (found,)

    @property
    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(each.detach() for each in self._outputs)

    def gradients(self, of_outputs: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        """Return the gradients of the tensors, zero where nothing depends on one."""
        pairs = [
            (output, gradient)
            for output, gradient in zip(self._outputs, of_outputs, strict=True)
            if gradient is not None and output.requires_grad
        ]
        with self._recorder.paused():
            found = torch.autograd.grad(
                [output for output, _ in pairs],
                self._leaves,
                [gradient for _, gradient in pairs],
                allow_unused=True,
                retain_graph=True,
            )
            return tuple(
                torch.zeros_like(leaf) if gradient is None else gradient
                for leaf, gradient in zip(self._leaves, found, strict=True)
            )
