"""Choosing tokens from scores."""

from __future__ import annotations

from torchtraceap.ops.models.arguments import OpCall, UnknownWorkError
from torchtraceap.ops.models.registry import Work, register

_RACE = 5  # by temperature; subtract the maximum, exponential; by the noise; compare


@register("aiter::mixed_sample_outer_exponential")
def sample_with_noise(call: OpCall) -> Work:
    """(out, scores, noise, temperatures, eps): the greatest of exp(scores / temperature) / noise.

    Noise of one row for all is read once.
    """
    out, scores, noise, temperatures = (call.tensor(i) for i in range(4))
    if len(scores.shape) != 2 or out.elements != scores.shape[0]:
        raise UnknownWorkError("its output does not fit its scores")
    read = scores.bytes + noise.bytes + temperatures.bytes
    return Work(_RACE * scores.elements, read, out.bytes)
