"""`on_trace_ready`: a handler for `torch.profiler.profile` that keeps and diagnoses every cycle."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.core.rendering import Renderable
from torchtraceap.record.export import TraceNames, export_trace
from torchtraceap.record.notices import analyse, report_problem, show
from torchtraceap.record.ranks import RANKS_TIMEOUT, Run, check_timeout, run_of
from torchtraceap.record.torch_access import import_torch

if TYPE_CHECKING:
    from torchtraceap.diagnosis.result import Diagnosis

__all__ = ["TraceHandler", "on_trace_ready"]

_HANDLERS = itertools.count(1)


class TraceHandler(Renderable):
    """Callable for the `on_trace_ready` argument of `torch.profiler.profile`.

    Whatever goes wrong in here is logged and warned of; the training run goes on.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        worker_name: str | None = None,
        diagnose: bool = True,
        use_gzip: bool = True,
        ranks_timeout: float = RANKS_TIMEOUT,
    ) -> None:
        check_timeout(ranks_timeout)
        self.folder = Path(path)
        self.paths: list[Path] = []
        """The files written so far, one per cycle."""
        self.diagnosis: Diagnosis | None = None
        """The diagnosis of the latest cycle (rank 0)."""
        self._worker_name = worker_name
        self._diagnose = diagnose
        self._use_gzip = use_gzip
        self._ranks_timeout = ranks_timeout
        self._number = next(_HANDLERS)
        self._cycle = 0
        self._began = time.time()
        self.folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, profiler: Any) -> None:
        """Export the cycle that has just ended, then say what is wrong in it."""
        self._cycle += 1
        try:
            # Asked for here: torch.distributed may be initialised after the handler.
            run = run_of(import_torch(), f"handler{self._number}-{self._cycle}", self._began)
            names = TraceNames(
                self.folder,
                rank=run.rank,
                run=f"{run.name}-cycle{self._cycle:03d}",
                worker_name=self._worker_name,
                use_gzip=self._use_gzip,
                always_folder=True,
            )
            path = export_trace(profiler, names)
            if path is None:
                report_problem(
                    "the profiler handed over a cycle without a single operation (a training loop "
                    "that ends just after a cycle begins gives one); no file was written for it"
                )
            else:
                self.paths.append(path)
        except Exception as error:
            report_problem(f"this cycle could not be written to {self.folder}", error)
            return
        if path is not None and self._diagnose and run.rank == 0:
            self._show(path, run)

    def _show(self, path: Path, run: Run) -> None:
        try:
            others = run.others_of(path, self._ranks_timeout)
            _, self.diagnosis = analyse(path, others)
            show(self.diagnosis, path.parent if others else path)
        except Exception as error:
            report_problem(f"{path} was recorded but could not be diagnosed", error)


def on_trace_ready(
    dir: str | os.PathLike[str],
    *,
    worker_name: str | None = None,
    diagnose: bool = True,
    use_gzip: bool = True,
    ranks_timeout: float = RANKS_TIMEOUT,
) -> TraceHandler:
    """Make a handler that writes one file per profiler cycle and prints its diagnosis.

    ```python
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=2),
        on_trace_ready=ttap.on_trace_ready("runs/"),
    ) as prof:
        for batch in loader:
            train(batch)
            prof.step()
    ```

    Each cycle has a folder of its own inside `dir`, in which each rank writes
    `WORKER_rankR.json.gz`; host names, environment variables and folder names are taken out of the
    files. Rank 0 waits for the files of the others and diagnoses all together. A failure to write
    or to analyse is logged and warned of, and never stops the training run.

    Args:
        dir: Folder for the files; it is created.
        worker_name: First part of the file names; `trace` unless given, never the host's name.
        diagnose: Load each file and print what is wrong (on rank 0).
        use_gzip: Write `.json.gz` instead of `.json`.
        ranks_timeout: Seconds that rank 0 waits for the files of the others, while training waits
            for it; with 0 it diagnoses its own alone.

    Returns:
        The handler; its `paths` and `diagnosis` tell what came of it.

    Raises:
        OptionError: `ranks_timeout` is no number of seconds.
    """
    return TraceHandler(
        dir,
        worker_name=worker_name,
        diagnose=diagnose,
        use_gzip=use_gzip,
        ranks_timeout=ranks_timeout,
    )
