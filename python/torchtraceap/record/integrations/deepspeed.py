"""A hook around the steps of a DeepSpeed engine."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from torchtraceap.record.history import WatchRow, metrics_of
from torchtraceap.record.integrations.stepper import Recorded, Stepper

if TYPE_CHECKING:
    pass

__all__ = ["Hook", "hook"]


class Hook(Recorded):
    """Watches an engine's `step`; made by `hook`. Ended by `end()` or as a `with` statement."""

    def __init__(self, engine: Any, stepper: Stepper) -> None:
        self.stepper = stepper
        self._engine = engine
        self._original = engine.step
        engine.step = self._step
        stepper.start(self._log)

    def _step(self, *arguments: Any, **keywords: Any) -> Any:
        # Asked before: the engine counts the batch inside of its step.
        is_boundary = self._engine.is_gradient_accumulation_boundary()
        result = self._original(*arguments, **keywords)
        if is_boundary:
            self.stepper.step(self._engine.global_steps)
        return result

    def _log(self, row: WatchRow) -> None:
        monitor = getattr(self._engine, "monitor", None)
        if monitor is not None and monitor.enabled:
            samples = self._engine.global_samples
            monitor.write_events([(k, v, samples) for k, v in metrics_of(row).items()])

    def pause(self) -> None:
        """Tell that something other than a step comes: an evaluation, a checkpoint."""
        self.stepper.pause()

    def end(self, error: BaseException | None = None) -> None:
        """End with the training, and give the engine its own `step` back."""
        self.stepper.end(error)
        if self._engine.__dict__.get("step") == self._step:
            del self._engine.step

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end(error)


def hook(
    engine: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    every: float | str | None = None,
    **options: Any,
) -> Hook:
    """Record some steps of a training by a DeepSpeed engine; what is found goes to its monitor.

    ```python
    engine, *_ = deepspeed.initialize(model=model, config=config)
    with ttap.integrations.deepspeed.hook(engine, "runs/") as h:
        for batch in loader:
            engine.backward(engine(batch))
            engine.step()
    h.diagnosis
    ```

    A step is one of the optimizer: a call of `engine.step()` that only accumulates ends none.

    Args:
        engine: What `deepspeed.initialize` returned first.
        path: The folder for traces; `ttap_traces` unless given.
        every: None: one recording. Else the time between two, as `ttap.watch` takes it.
        options: Those of `ttap.profile`, with `active="auto"`; with `every` those of `ttap.watch`.

    Returns:
        The hook, for a `with` statement, or with `end()`.
    """
    return Hook(engine, Stepper(path, every=every, **options))
