"""The recording of a loop that uses `accelerate.Accelerator`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchtraceap.errors import MissingDependencyError
from torchtraceap.record.history import WatchRow, metrics_of
from torchtraceap.record.integrations.stepper import Recorded, Stepper
from torchtraceap.record.trace_handler import on_trace_ready

if TYPE_CHECKING:
    pass

__all__ = ["AcceleratedSteps", "profile", "profile_kwargs"]


class AcceleratedSteps(Recorded):
    """The steps of a loop; made by `profile`."""

    def __init__(self, accelerator: Any, stepper: Stepper) -> None:
        self._accelerator = accelerator
        self.stepper = stepper

    def step(self) -> None:
        """Tell that a batch is done: it ends a step where the accelerator synchronises the
        gradients, so that a step is one of the optimizer."""
        if self._accelerator.sync_gradients:
            self.stepper.step()

    def pause(self) -> None:
        """Tell that something other than a step comes: an evaluation, a checkpoint."""
        self.stepper.pause()


@contextlib.contextmanager
def profile(
    accelerator: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    every: float | str | None = None,
    **options: Any,
) -> Iterator[AcceleratedSteps]:
    """Record some steps of an accelerated loop, and logs what is found to its trackers.

    ```python
    with ttap.integrations.accelerate.profile(accelerator, "runs/") as p:
        for batch in loader:
            with accelerator.accumulate(model):
                ...
            p.step()            # after every batch
    p.diagnosis
    ```

    Args:
        accelerator: That of the loop.
        path: The folder for traces; `ttap_traces` unless given.
        every: None: one recording. Else the time between two, as `ttap.watch` takes it.
        options: Those of `ttap.profile`, with `active="auto"`; with `every` those of `ttap.watch`.

    Yields:
        What takes `step()` and `pause()`.
    """
    stepper = Stepper(path, every=every, **options)

    def log(row: WatchRow) -> None:
        if accelerator.trackers:
            accelerator.log(metrics_of(row), step=row["step"])

    stepper.start(log)
    try:
        yield AcceleratedSteps(accelerator, stepper)
    except BaseException as error:
        stepper.end(error)
        raise
    stepper.end()


def profile_kwargs(
    path: str | os.PathLike[str], *, wait: int = 1, warmup: int = 1, active: int = 3, **options: Any
) -> Any:
    """Return `ProfileKwargs` for `accelerator.profile()`: one cycle, written and diagnosed.

    ```python
    accelerator = Accelerator(kwargs_handlers=[profile_kwargs("runs/")])
    with accelerator.profile() as p:
        for batch in loader:
            ...
            p.step()
    ```

    Args:
        path: The folder for traces.
        wait: Steps to let pass first.
        warmup: Steps during which the profiler runs but keeps nothing.
        active: Steps to record.
        options: Those of `ProfileKwargs`.

    Raises:
        MissingDependencyError: accelerate is not installed.
    """
    try:
        utilities = import_module("accelerate.utils")
    except ImportError as error:
        raise MissingDependencyError(f"this needs accelerate ({error})") from error
    return utilities.ProfileKwargs(
        schedule_option={"wait": wait, "warmup": warmup, "active": active, "repeat": 1},
        on_trace_ready=on_trace_ready(path),
        **{"record_shapes": True, **options},
    )
