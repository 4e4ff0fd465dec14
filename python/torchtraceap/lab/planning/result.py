"""The result of a plan: the document of `torchtraceap plan --json`."""

from __future__ import annotations

from torchtraceap.core import Json, PredictedTime, Result, add_renderer, dataclass, lazy_renderer
from torchtraceap.errors import OptionError
from torchtraceap.lab.memory import MemoryFit, MemoryNeed

__all__ = ["PlanOption", "RefusedOption", "TooLarge", "TrainingPlan", "cost_of"]

SCHEMA = "torchtraceap.plan/1"


@dataclass(frozen=True, slots=True)
class PlanOption(Result):
    """A way to run the job, with what it takes."""

    device: str
    gpus: int
    strategy: str
    """How the GPUs share the work, in words."""
    batch: int
    """Samples of a step over all GPUs."""
    micro_batch: int
    """Samples that a GPU works on at once."""
    largest_micro_batch: int | None
    """The largest one that fits into memory with this strategy; None if it is not known."""
    step: PredictedTime
    """Time of a step with its interval (`TrainingPlan.coverage`)."""
    steps: int
    """Steps of the run."""
    run_seconds: float
    samples_per_second: float
    tokens_per_second: float | None
    """None if the inputs do not say what a token is."""
    utilization: float | None
    """Share of the GPUs' peak that matrix products reach; None if the peak is not known."""
    price: float | None
    """Price of the run, in the unit of the given prices; None without one."""
    memory: MemoryNeed | None
    memory_fit: MemoryFit | None
    """None if the memory of the job or of the device is not known."""
    bound_by: str
    on_frontier: bool
    """True if no faster option is as cheap."""
    unmeasured: tuple[str, ...]
    """What lies outside of the measurements behind the times."""


def cost_of(option: PlanOption) -> float:
    """Return the price of a run, or the hours of its GPUs where there is none."""
    return option.gpus * option.run_seconds / 3600 if option.price is None else option.price


@dataclass(frozen=True, slots=True)
class TooLarge(Result):
    """A way to run the job that does not fit into memory."""

    device: str
    gpus: int
    strategy: str
    micro_batch: int
    memory: MemoryNeed
    memory_fit: MemoryFit
    fits_with: tuple[str, ...]
    """Changes with which it fits; each text is one way."""


@dataclass(frozen=True, slots=True)
class RefusedOption(Result):
    """A way to run the job that is impossible or unknown."""

    device: str
    gpus: int
    strategy: str
    reason: str


@dataclass(frozen=True, slots=True)
class TrainingPlan(Result):
    """Ways to run a job, the best first."""

    source: str
    """sizes, workload, cpu_profile, gpu_trace or execution_trace."""
    samples: float | None
    """Samples of the whole run; None if it is given in tokens."""
    tokens: float | None
    coverage: float
    """How often a step is expected to lie in its interval."""
    sorted_by: str
    """price or time."""
    options: tuple[PlanOption, ...]
    too_large: tuple[TooLarge, ...]
    refused: tuple[RefusedOption, ...]
    would_change: tuple[str, ...]
    """What would change the choice, in words."""
    notes: tuple[str, ...]

    @property
    def best(self) -> PlanOption:
        """The cheapest option, or the fastest without prices.

        Raises:
            OptionError: None is possible; the message says why.
        """
        if self.options:
            return self.options[0]
        reasons = [f"{one.strategy}: {one.memory_fit.verdict}" for one in self.too_large]
        reasons += [one.reason for one in self.refused]
        raise OptionError("nothing is possible" + (f": {reasons[0]}" if reasons else ""))

    def to_dict(self) -> Json:
        """Return the document of `torchtraceap plan --json`."""
        return {"schema": SCHEMA, **Result.to_dict(self)}


add_renderer(
    f"{__name__}.TrainingPlan",
    "tables",
    lazy_renderer("torchtraceap.lab.planning.text", "plan_tables"),
)
