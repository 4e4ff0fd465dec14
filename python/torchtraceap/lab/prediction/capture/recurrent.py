"""Recurrent layers as a GPU runs them: all steps and layers in one call of a library.

Note [Recurrent layers]: ATen's `lstm`, `gru`, ... call `_cudnn_rnn` (cuDNN) where a GPU is used.
What goes in with the batch first is copied to have the steps first (`cudnn/RNN.cpp`); what comes
out is a view. The weights lie in one piece of memory, as `flatten_parameters()` leaves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchtraceap.lab.prediction.capture.calls import Phase
from torchtraceap.lab.prediction.capture.known_values import Computed, computed
from torchtraceap.lab.prediction.capture.modes import all_arguments

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.capture.recorder import Recorder

__all__ = ["RECURRENT", "recurrent"]

_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""Numbers of cudnnRNNMode_t."""
RECURRENT = tuple(
    getattr(getattr(torch.ops.aten, name), overload)
    for name in _MODES
    for overload in ("input", "data")
)
"""The operators that programs call: with all sequences of one length, and packed."""


def recurrent(recorder: Recorder, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Output, and the last state or states, as `torch.nn.LSTM` and others use them."""
    given = all_arguments(function, args, kwargs)
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
    whole = computed(recorder, function, (x, *states, *given["params"]), given)
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
        whole: Computed | None,
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
    whole: Computed, grads: Sequence[torch.Tensor | None], options: dict[str, Any]
) -> tuple[torch.Tensor, ...]:
    """With the steps first, as the library has them."""
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
    """As the operator's schema names and orders them."""
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
