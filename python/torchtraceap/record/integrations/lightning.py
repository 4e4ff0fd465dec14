"""A callback for Lightning's `Trainer`."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchtraceap.errors import MissingDependencyError
from torchtraceap.record.integrations.logging import Metrics
from torchtraceap.record.integrations.stepper import Recorded, Stepper

if TYPE_CHECKING:
    pass

__all__ = ["TraceCallback"]


def _callback_class() -> Any:
    """Return the class of the package `lightning`, or of `pytorch_lightning`, which are
    different."""
    inner: ImportError | None = None
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(name).Callback
        except ImportError as error:
            if error.name != name.partition(".")[0]:  # it is there, and fails inside
                inner = inner or error
    needed = "this callback needs lightning or pytorch_lightning"
    if inner is None:
        raise MissingDependencyError(needed)
    raise MissingDependencyError(f"{needed}, whose import fails: {inner}") from inner


class TraceCallback(Recorded, _callback_class()):  # type: ignore[misc]
    """Records some steps of a training by Lightning's `Trainer`.

    ```python
    Trainer(..., callbacks=[TraceCallback("runs/")])               # once, diagnosed at once
    Trainer(..., callbacks=[TraceCallback("runs/", every="10m")])  # as ttap.watch
    ```

    A step is one of the optimizer, with all the batches that it accumulates. Validations and
    checkpoints belong to no step. Findings go to the loggers of the trainer.

    Args:
        path: The folder for traces; `ttap_traces` unless given.
        every: None: one recording. Else the time between two, as `ttap.watch` takes it.
        options: Those of `ttap.profile`, with `active="auto"`; with `every` those of `ttap.watch`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        every: float | str | None = None,
        **options: Any,
    ) -> None:
        self.stepper = Stepper(path, every=every, **options)
        self._step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._step = trainer.global_step
        self.stepper.start(*(Metrics(logger) for logger in trainer.loggers))

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if trainer.global_step != self._step:  # else the batch was only accumulated
            self._step = trainer.global_step
            self.stepper.step(self._step)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.stepper.pause()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.stepper.pause()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        self.stepper.pause()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.stepper.end(exception)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.stepper.end()
