"""Record one block with the profiler of torch, without output; every failure is an error.

Note [Marked steps]: the profiler marks a step from one `step()` to the next, so a range is open
behind the last one, and nothing tells beforehand which will be the last. Its mark is renamed in
the file: a step counts when `step()` has said that it ended. A block that never says so is one
step, from its first line to its last.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from typing import Any

from torchtraceap.errors import OptionError
from torchtraceap.record import RecordingError
from torchtraceap.record.export import TraceNames, export_trace
from torchtraceap.record.torch_access import (
    check_thread,
    claim_profiler,
    current_rank,
    default_activities,
    import_torch,
    profiler_is_running,
    release_profiler,
    this_thread,
)

__all__ = ["Recorder"]

_STEP_MARK = "ProfilerStep#"
_REST_MARK = "behind the last step "
_OWNER = "contract"


class Recorder:
    """Records from `start` to `stop`, without the first steps.

    Args:
        warmup: Steps that are left out.
    """

    def __init__(self, warmup: int = 0) -> None:
        if not isinstance(warmup, int) or isinstance(warmup, bool) or warmup < 0:
            raise OptionError(f"warmup must be a number of steps, not {warmup!r}")
        self._warmup = warmup
        self._steps = 0
        self._profiler: Any = None
        self._torch: Any = None
        self._owner = (0, 0)  # process and thread that started it
        self._frames = _KeptFrames()

    @property
    def steps(self) -> int:
        """Whole recorded steps."""
        return max(0, self._steps - self._warmup)

    @property
    def swapped_by(self) -> str | None:
        """The module that asked for another profile function meanwhile, which it did not get."""
        return self._frames.swapped_by

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return current_rank(self._torch)

    def has_accelerator(self) -> bool:
        """Return True if this process can record more than its CPU.

        Raises:
            MissingDependencyError: torch is not installed.
        """
        return len(default_activities(import_torch())) > 1

    def start(self, *, with_stack: bool, with_memory: bool = False) -> None:
        """Begin recording.

        Args:
            with_stack: Record Python frames.
            with_memory: Record allocations.

        Raises:
            RecordingError: Something else records in this process.
            MissingDependencyError: torch is not installed.
        """
        self._torch = import_torch()
        claim_profiler(self._torch, _OWNER)
        try:
            actions = self._torch.profiler.ProfilerAction

            def action(step: int) -> Any:
                return actions.WARMUP if step < self._warmup else actions.RECORD

            self._profiler = self._torch.profiler.profile(
                activities=default_activities(self._torch),
                schedule=action,
                record_shapes=True,
                with_stack=with_stack,
                profile_memory=with_memory,
            )
            with _quiet():
                self._profiler.start()
            if with_stack:
                self._frames.start()
        except BaseException:
            self._profiler = None
            self._frames.stop()
            release_profiler()
            raise
        self._owner = this_thread()

    def step(self) -> None:
        """Tell that an iteration has ended.

        Raises:
            RecordingError: Outside of the block, or in another thread or process.
        """
        if self._profiler is None:
            raise RecordingError("step() outside of the block of the contract")
        check_thread(self._owner, "step()")
        self._steps += 1
        with _quiet():
            self._profiler.step()

    def drop(self) -> None:
        """End without a result, whatever state it is in."""
        profiler, self._profiler = self._profiler, None
        self._frames.stop()
        try:
            if profiler is not None and self._owner == this_thread():
                with _quiet(), contextlib.suppress(Exception):
                    profiler.stop()
        finally:
            release_profiler()

    def stop(self) -> Any:
        """End the recording.

        Returns:
            The profiler that holds it, for `export`.

        Raises:
            RecordingError: There is nothing, and the reason.
        """
        profiler = self._profiler
        try:
            check_thread(self._owner, "the end of the block")
            if self._steps >= self._warmup and not profiler_is_running(self._torch):
                raise RecordingError(
                    "a torch profiler was used inside the block of a contract; it has ended the "
                    "contract's own recording, of which nothing is left"
                )
            with _quiet():
                profiler.stop()
            self._profiler = None
        finally:
            self.drop()
        if self._steps < self._warmup:
            raise RecordingError(
                f"nothing was recorded: {self._warmup} steps are left out as warm-up, and step() "
                f"was called {self._steps} times"
            )
        return profiler

    def export(self, profiler: Any, path: Path) -> Path | None:
        """Write what `stop` gave; a file that is there is never overwritten.

        Args:
            profiler: The result of `stop`; it can be written once.
            path: Ends in `.json` or `.json.gz`. Of several ranks all but the first get theirs in
                the name.

        Returns:
            The file; None if no operation of torch ran.

        Raises:
            OutputError: It can't be written.
        """
        names = TraceNames(path, rank=self.rank, run="")
        rest = f"{_STEP_MARK}{self._steps}" if self.steps else None
        return export_trace(_MarkedProfiler(profiler, rest), names)


class _KeptFrames:
    """Keeps `sys.setprofile` from ending a recording of Python frames.

    torch's tracer of frames is the profile function of the thread, and an object that can't be
    called. A program that takes it off for a while, as pytest-benchmark does around what it times,
    gets an error of Python when it puts it back.
    """

    def __init__(self) -> None:
        self.swapped_by: str | None = None
        self._original: Any = None

    def start(self) -> None:
        """Ignore calls of `sys.setprofile` from now on, and note who made the first."""
        self._original = sys.setprofile

        def setprofile(function: Any, /) -> None:
            if self.swapped_by is None:
                self.swapped_by = sys._getframe(1).f_globals.get("__name__", "a program")

        sys.setprofile = setprofile

    def stop(self) -> None:
        if self._original is not None:
            sys.setprofile, self._original = self._original, None


class _MarkedProfiler:
    """A profiler whose file calls the open range behind the last step otherwise. See Note [Marked
    steps]."""

    def __init__(self, profiler: Any, rest: str | None) -> None:
        self._profiler, self._rest = profiler, rest

    def export_chrome_trace(self, path: str) -> None:
        self._profiler.export_chrome_trace(path)
        if self._rest is None:
            return
        file = Path(path)
        name = self._rest.encode()
        renamed = (_REST_MARK + self._rest.removeprefix(_STEP_MARK)).encode()
        file.write_bytes(file.read_bytes().replace(b'"' + name + b'"', b'"' + renamed + b'"'))


@contextlib.contextmanager
def _quiet() -> Any:
    """Suppress warnings of the profiler, which must not fail a test where warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
