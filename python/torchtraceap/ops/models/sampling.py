"""Models of sampling tokens from scores."""

from __future__ import annotations

from torchtraceap.ops.models.arguments import OpCall, UnknownWorkError
from torchtraceap.ops.models.registry import Work, register

# Divide by the temperature; subtract the maximum, exponential; divide by the noise; compare.
_RACE = 5


@register("aiter::mixed_sample_outer_exponential")
def sample_with_noise(call: OpCall) -> Work:
    """Arguments: (out, scores, noise, temperatures, eps): the greatest of exp(scores / temperature)
    / noise.

    Noise of a single row that all tokens share is read once.
    """
    out, scores, noise, temperatures = (call.tensor(i) for i in range(4))
    if len(scores.shape) != 2 or out.elements != scores.shape[0]:
        raise UnknownWorkError("its output does not fit its scores")
    read = scores.bytes + noise.bytes + temperatures.bytes
    return Work(_RACE * scores.elements, read, out.bytes)
