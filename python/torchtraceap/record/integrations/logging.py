"""Loggers of findings: TensorBoard, MLflow, W&B and others, each through its own interface.

Nothing is imported that the training does not use: what is given is recognised by its methods, and
an active run of a tracker is looked up in modules that are loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from torchtraceap.core.formatting import format_share
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.record.history import PREFIX, WatchRow, append_line, metrics_of
from torchtraceap.record.notices import report_problem

__all__ = ["Sink", "Sinks", "active_runs", "sink_of"]

Sink = Callable[[WatchRow], None]
"""Takes a row of the series (docs/integrations.md)."""


class Sinks:
    """Several sinks; one that fails is told of once and left out.

    Args:
        log: What `watch` takes; None for the active runs of trackers, asked for at each row.
        folder: For what is given by a bare name.
    """

    def __init__(self, log: Iterable[Any] | None, folder: Path) -> None:
        self._sinks = None if log is None else [sink_of(each, folder) for each in log]
        self._more: list[Sink] = []
        self._failed: set[str] = set()

    def add(self, sink: Sink) -> None:
        self._more.append(sink)

    def write(self, row: WatchRow) -> None:
        for sink in [*(active_runs() if self._sinks is None else self._sinks), *self._more]:
            name = getattr(sink, "__qualname__", type(sink).__name__)
            if name in self._failed:
                continue
            try:
                sink(row)
            except Exception as error:
                self._failed.add(name)
                report_problem(f"findings could not be logged by {name}, which is left out", error)

    def close(self) -> None:
        for sink in self._sinks or ():
            if isinstance(sink, TensorBoard):
                sink.close()


def sink_of(log: Any, folder: Path) -> Sink:
    """Return what writes rows to a logger.

    Args:
        log: A `SummaryWriter`, the module `mlflow` or a run of it, the module `wandb` or a run of
            it, a logger with `log_metrics(metrics, step=)`; "tensorboard", "mlflow" or "wandb";
            the path of a folder for TensorBoard, or of a file of JSON lines; or a function that
            takes a row.
        folder: For "tensorboard".

    Raises:
        OptionError: It is none of them.
        MissingDependencyError: What is named is not installed.
    """
    if isinstance(log, (str, os.PathLike)):
        return _sink_by_name(str(os.fspath(log)), folder)
    module = getattr(log, "__name__", "") if not callable(log) else ""
    if module in ("mlflow", "wandb"):
        return _sink_by_name(module, folder)
    if hasattr(log, "add_scalar"):
        return TensorBoard(log)
    if hasattr(log, "log") and hasattr(log, "define_metric"):
        return WeightsAndBiases(lambda: log)
    run_id = getattr(getattr(log, "info", None), "run_id", None)
    if run_id is not None:
        return MLflow(str(run_id))
    if hasattr(log, "log_metrics"):
        return Metrics(log)
    if callable(log):
        sink: Sink = log
        return sink
    raise OptionError(
        "log takes SummaryWriter objects, runs of mlflow or wandb, loggers with log_metrics, "
        f"paths and functions, not {type(log).__name__}"
    )


def _sink_by_name(name: str, folder: Path) -> Sink:
    if name == "mlflow":
        return MLflow(None)
    if name == "wandb":
        return WeightsAndBiases(lambda: getattr(sys.modules.get("wandb"), "run", None))
    if name.endswith((".jsonl", ".ndjson")):
        path = Path(name)
        return lambda row: append_line(path, row)
    return TensorBoard(folder / "tensorboard" if name == "tensorboard" else name)


def active_runs() -> list[Sink]:
    """Return the runs of MLflow and W&B that the training has begun itself."""
    sinks: list[Sink] = []
    mlflow, wandb = sys.modules.get("mlflow"), sys.modules.get("wandb")
    active = getattr(mlflow, "active_run", lambda: None)() if mlflow is not None else None
    if active is not None:
        sinks.append(MLflow(str(active.info.run_id)))
    run = getattr(wandb, "run", None)
    if run is not None:
        sinks.append(WeightsAndBiases(lambda: run))
    return sinks


class TensorBoard:
    """Scalars, and the findings as text.

    Args:
        writer: A `SummaryWriter`, or the folder of one that is made with the first row.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._is_own = isinstance(writer, (str, Path))
        if self._is_own:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise MissingDependencyError(
                    f"logging to TensorBoard needs the package tensorboard ({error})"
                ) from error
            self._make: Any = SummaryWriter

    def __call__(self, row: WatchRow) -> None:
        if isinstance(self._writer, (str, Path)):
            self._writer = self._make(str(self._writer))
        for name, value in metrics_of(row).items():
            self._writer.add_scalar(name, value, row["step"])
        self._writer.add_text(f"{PREFIX}/findings", as_text(row), row["step"])
        if self._is_own:
            self._writer.flush()

    def close(self) -> None:
        if self._is_own and not isinstance(self._writer, (str, Path)):
            self._writer.close()


class MLflow:
    """Metrics of a run, by the step at which they were recorded.

    Args:
        run_id: The run; None for the one that is active when a row comes.
    """

    def __init__(self, run_id: str | None) -> None:
        try:
            self._mlflow = import_module("mlflow")
        except ImportError as error:
            raise MissingDependencyError(f"logging to MLflow needs mlflow ({error})") from error
        self._run_id = run_id

    def __call__(self, row: WatchRow) -> None:
        if self._run_id is None and self._mlflow.active_run() is None:
            return
        metrics = metrics_of(row)
        self._mlflow.log_metrics(metrics, step=row["step"], run_id=self._run_id)


class WeightsAndBiases:
    """A run's history. Findings are known some steps after they were recorded, and W&B takes no
    earlier step than its own: so they have an axis of their own, and wait for the next row that
    the training logs.

    Args:
        run: Gives the run, or None where none is active.
    """

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run

    def __call__(self, row: WatchRow) -> None:
        run = self._run()
        if run is None:
            return
        axis = f"{PREFIX}/step"
        run.define_metric(axis)
        run.define_metric(f"{PREFIX}/*", step_metric=axis)
        run.log({**metrics_of(row), axis: row["step"]}, commit=False)


class Metrics:
    """A logger with `log_metrics(metrics, step=)`, as those of Lightning."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __call__(self, row: WatchRow) -> None:
        self._logger.log_metrics(metrics_of(row), step=row["step"])


def as_text(row: WatchRow) -> str:
    """Return the findings as Markdown."""
    lines = [f"- {change}" for change in row.get("notices", ())]
    lines += ["", "| finding | takes | a fix saves |", "|---|---|---|"] if row["findings"] else []
    for finding in row["findings"]:
        saving = finding["saving_share"]
        saved = "not known" if saving is None else format_share(saving)
        lines.append(f"| {finding['type']} | {format_share(finding['cost_share'])} | {saved} |")
    return "\n".join(lines) or "no finding"
