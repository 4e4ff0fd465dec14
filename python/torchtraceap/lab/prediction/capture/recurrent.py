"""Recurrent layers as a GPU runs them: all steps and layers in one library call.

Note [Recurrent layers]: ATen's `lstm`, `gru`, ... call `_cudnn_rnn` (cuDNN) on a GPU. Batch-first
inputs are copied to have the steps first (`cudnn/RNN.cpp`); the output is a view. The weights are
contiguous, as `flatten_parameters()` leaves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchtraceap.lab.prediction.capture.calls import Phase
from torchtraceap.lab.prediction.capture.known_values import DecomposedOp, decompose
from torchtraceap.lab.prediction.capture.modes import bind_arguments

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.capture.recorder import Recorder

__all__ = ["RECURRENT", "run_recurrent"]

_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""Values of cudnnRNNMode_t."""
RECURRENT = tuple(
    getattr(getattr(torch.ops.aten, name), overload)
    for name in _MODES
    for overload in ("input", "data")
)
"""Operators that programs call, for sequences of equal length and packed ones."""


def run_recurrent(recorder: Recorder, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the output and the last states, as `torch.nn.LSTM` and others use them."""
    given = bind_arguments(function, args, kwargs)
    kind = function._schema.name.removeprefix("aten::")
    states = given["hx"] if kind == "lstm" else [given["hx"]]
    batch_first = bool(given.get("batch_first"))
    x = given["input"] if "input" in given else given["data"]
    steps_first = (x.transpose(0, 1) if batch_first else x).contiguous()
    options = {
        "mode": _MODES[kind],
        "hidden_size": states[-1].shape[-1],
        "proj_size": states[0].shape[-1] if states[0].shape[-1] != states[-1].shape[-1] else 0,
        "num_layers": given["num_layers"],
        "batch_first": batch_first,
        "dropout": given["dropout"],
        "train": given["train"],
        "bidirectional": given["bidirectional"],
        "batch_sizes": given.get("batch_sizes"),
    }
    whole = decompose(recorder, function, (x, *states, *given["params"]), given)
    arguments = (steps_first, *states, *given["params"])
    found = _Recurrent.apply(recorder, options, len(states), whole, *arguments)
    output = found[0].transpose(0, 1) if batch_first else found[0]
    return (output, *found[1:])


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        recorder: Recorder,
        options: dict[str, Any],
        count: int,
        whole: DecomposedOp | None,
        x: torch.Tensor,
        *rest: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        states, weights = rest[:count], rest[count:]
        directions = 2 if options["bidirectional"] else 1
        output = x.new_empty((*x.shape[:-1], directions * states[0].shape[-1]))
        made = (output, *(torch.empty_like(state) for state in states))
        if whole is not None:
            for one, other in zip(made, whole.outputs, strict=True):
                one.copy_(other.transpose(0, 1) if one.shape != other.shape else other)
        ctx.recorder, ctx.options, ctx.count, ctx.whole = recorder, options, count, whole
        ctx.set_materialize_grads(False)  # a state that nothing is computed of has none
        ctx.save_for_backward(x, output, *rest)
        inputs = _inputs(x, weights, states, options)
        recorder.write("aten::_cudnn_rnn", "default", inputs, made)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        x, output, *rest = ctx.saved_tensors
        states, weights = rest[: ctx.count], rest[ctx.count :]
        found = tuple(torch.empty_like(each) for each in (x, *rest))
        if ctx.whole is not None:
            found = _gradients(ctx.whole, grads, ctx.options)
        inputs = {
            **_inputs(x, weights, states, ctx.options),
            "output": output,
            "grad_output": None if grads[0] is None else grads[0].contiguous(),
            "grad_hy": grads[1],
            "grad_cy": grads[2] if len(grads) > 2 else None,
        }
        with ctx.recorder.in_phase(Phase.BACKWARD):
            made = (found[0], *found[1 : 1 + ctx.count], list(found[1 + ctx.count :]))
            ctx.recorder.write("aten::_cudnn_rnn_backward", "default", inputs, made)
        return None, None, None, None, *found


def _gradients(
    whole: DecomposedOp, grads: Sequence[torch.Tensor | None], options: dict[str, Any]
) -> tuple[torch.Tensor, ...]:
    """Return gradients with the steps first, as in the library."""
    first, *others = grads
    swaps = options["batch_first"]
    if swaps and first is not None:
        first = first.transpose(0, 1)
    x, *found = whole.gradients([first, *others])
    return (x.transpose(0, 1) if swaps else x, *found)


def _inputs(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    states: Sequence[torch.Tensor],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Return the arguments in the order of the operator's schema."""
    per_layer = len(weights) // (options["num_layers"] * (2 if options["bidirectional"] else 1))
    return {
        "input": x,
        "weight": list(weights),
        "weight_stride0": per_layer,
        "weight_buf": None,
        "hx": states[0],
        "cx": states[1] if len(states) > 1 else None,
        **options,
        "dropout_state": None,
    }
