"""A callback for `transformers.Trainer`."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.errors import MissingDependencyError
from torchtraceap.record.history import WatchRow, metrics_of
from torchtraceap.record.integrations.logging import TensorBoard
from torchtraceap.record.integrations.stepper import Recorded, Stepper

if TYPE_CHECKING:
    pass

__all__ = ["TraceCallback"]


def _callback_class() -> Any:
    try:
        return import_module("transformers").TrainerCallback
    except ImportError as error:
        raise MissingDependencyError(f"this callback needs transformers ({error})") from error


class TraceCallback(Recorded, _callback_class()):  # type: ignore[misc]
    """Records some steps of a training by `transformers.Trainer`.

    ```python
    Trainer(..., callbacks=[TraceCallback("runs/")])               # once, diagnosed at once
    Trainer(..., callbacks=[TraceCallback("runs/", every="10m")])  # as ttap.watch
    ```

    A step is one of the optimizer, with all the batches that it accumulates. Evaluations and
    checkpoints belong to no step. Findings go into `trainer.state.log_history`, and where
    `report_to` names TensorBoard into a run of their own beside the trainer's.

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

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        sinks: list[Any] = [lambda row: _to_history(state, row)]
        if "tensorboard" in (args.report_to or ()) and state.is_world_process_zero:
            logs = os.environ.get("TENSORBOARD_LOGGING_DIR") or Path(args.output_dir, "runs")
            sinks.append(TensorBoard(Path(logs, "torchtraceap")))
        self.stepper.start(*sinks)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.stepper.step(state.global_step)
        self._pause_for(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._pause_for(control)

    def _pause_for(self, control: Any) -> None:
        """Pause before what the trainer does next, which the default callback alone tells
        beforehand."""
        if control.should_evaluate or control.should_save:
            self.stepper.pause()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.stepper.pause()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.stepper.pause()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.stepper.end()


def _to_history(state: Any, row: WatchRow) -> None:
    state.log_history.append({**metrics_of(row), "epoch": state.epoch, "step": row["step"]})
