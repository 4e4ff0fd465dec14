"""The run that a plan is about: its length and the prices of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from torchtraceap.core import PredictedTime, dataclass
from torchtraceap.errors import OptionError
from torchtraceap.lab.memory import MemoryFit, MemoryNeed
from torchtraceap.lab.planning.result import PlanOption
from torchtraceap.ops import Device

__all__ = ["Job"]


@dataclass(frozen=True, slots=True)
class Job:
    """A run of so many samples or tokens."""

    samples: float | None
    tokens: float | None
    """Given if `samples` is not."""
    prices: Mapping[str, float]
    """Price of an hour of one GPU, by the name of the device."""

    def samples_of(self, sample_tokens: int | None) -> float:
        """Return the samples of the run.

        Raises:
            OptionError: It is given in tokens, and the inputs don't say how many a sample has.
        """
        if self.samples is not None:
            return self.samples
        if sample_tokens is None:
            raise OptionError("the inputs don't say what a token is: give samples, not tokens")
        assert self.tokens is not None
        return self.tokens / sample_tokens

    def option(
        self,
        device: Device,
        gpus: int,
        strategy: str,
        *,
        batch: int,
        micro_batch: int,
        largest_micro_batch: int | None,
        step: PredictedTime,
        sample_tokens: int | None,
        utilization: float | None,
        memory: MemoryNeed | None,
        memory_fit: MemoryFit | None,
        bound_by: str,
        unmeasured: tuple[str, ...] = (),
    ) -> PlanOption:
        """Return a way to run the job with its time and price; see `PlanOption`."""
        steps = ceil(self.samples_of(sample_tokens) / batch)
        seconds = steps * step.predicted_ns / 1e9
        rate = 1e9 * batch / step.predicted_ns
        price = self.prices.get(device.name)
        return PlanOption(
            device=device.name,
            gpus=gpus,
            strategy=strategy,
            batch=batch,
            micro_batch=micro_batch,
            largest_micro_batch=largest_micro_batch,
            step=step,
            steps=steps,
            run_seconds=seconds,
            samples_per_second=rate,
            tokens_per_second=None if sample_tokens is None else rate * sample_tokens,
            utilization=utilization,
            price=None if price is None else price * gpus * seconds / 3600,
            memory=memory,
            memory_fit=memory_fit,
            bound_by=bound_by,
            on_frontier=False,
            unmeasured=unmeasured,
        )
