"""Record a block, or the calls of a function, and check limits on what it did.

Note [Frames or times]: with Python frames a recording says which line of the program did something,
and the host runs several times slower. Counts and sizes are the same either way. So frames are
recorded where all limits are on those; a time, a share or a finding is measured without them, and
an event is then told by its operator or its range. Shares and times of a GPU can't be measured
where there is none, so there they cost no frames.
"""

from __future__ import annotations

import functools
import gzip
import inspect
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from torchtraceap.contracts.measures.vocabulary import MEASURES, base_of
from torchtraceap.contracts.recorder import Recorder
from torchtraceap.core.aliases import PathLike
from torchtraceap.core.rendering import Renderable
from torchtraceap.errors import OptionError
from torchtraceap.record import RecordingError

if TYPE_CHECKING:
    from torchtraceap.contracts.limits import Contract
    from torchtraceap.contracts.places import CallLines, Place
    from torchtraceap.contracts.result import CheckResult
    from torchtraceap.trace.ranks import RankTrace

__all__ = ["ContractBroken", "ContractWarning", "RecordedContract", "contract"]

MODES = ("raise", "warn", "collect")
DEFAULT_FOLDER = "ttap_traces"
_UNNAMED = "contract"
_ON_HOST = ("step_time", "findings")
"""Keys besides counts that a run without a GPU has too."""
_OWN = "profiler::"
"""Operators that mark ranges."""
_MOST_OWN = 1000


class ContractBroken(AssertionError):  # noqa: N818 - it says what has happened
    """A limit doesn't hold; the message says which, where in the program, and what it costs.

    Attributes:
        result: The whole check.
        path: The trace; None where it was not kept.
    """

    def __init__(self, message: str, result: CheckResult, path: Path | None) -> None:
        super().__init__(message)
        self.result = result
        self.path = path

    def __reduce__(self) -> Any:
        return ContractBroken, (str(self), self.result, self.path)


ContractBroken.__module__ = "torchtraceap"


class ContractWarning(UserWarning):
    """A limit doesn't hold, where that is to be no error."""


class RecordedContract(Renderable):
    """Limits on a block of code; made by `contract`, used once in a `with` statement, or as a
    decorator."""

    def __init__(
        self,
        contract: Contract,
        *,
        name: str,
        warmup: int,
        mode: str,
        path: PathLike | None,
        strict: bool,
        folder: PathLike = DEFAULT_FOLDER,
        keep: bool = True,
    ) -> None:
        if mode not in MODES:
            raise OptionError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
        self.contract = contract
        self.name = name
        """Name of the contract: a test's node id, a function, a name of yours."""
        self.result: CheckResult | None = None
        """The check; None until the block has ended without an exception."""
        self.message = ""
        """Message of `ContractBroken`; empty if every limit holds."""
        self.path: Path | None = None
        """The trace; None where it was not kept."""
        self._warmup, self._mode, self._strict = warmup, mode, strict
        self._path = None if path is None else Path(path)
        self._folder = Path(folder)
        self._keep = keep
        self._recorder: Recorder | None = Recorder(warmup)
        self._has_frames = False
        self._running = False

    def __repr__(self) -> str:
        said = "" if self.result is None else f", passed={self.result.passed}"
        return f"RecordedContract(keys={sorted(self.contract.keys)}{said})"

    def __enter__(self) -> Self:
        __tracebackhide__ = True  # pytest shows the line of the test, not ours
        if self._recorder is None or self._running:
            raise RecordingError("a contract is used once; call ttap.contract() again for another")
        has_gpu = self._recorder.has_accelerator()
        limited = (MEASURES[key] for key in self.contract.keys)
        # See Note [Frames or times].
        self._has_frames = not any(
            not each.is_exact and (has_gpu or each.key in _ON_HOST) for each in limited
        )
        memory = any(base_of(key) == "peak_allocated_bytes" for key in self.contract.keys)
        self._recorder.start(with_stack=self._has_frames, with_memory=memory)
        self._running = True
        return self

    def step(self) -> None:
        """Tell that an iteration of the loop in the block has ended.

        Raises:
            RecordingError: Outside of the block, or in another thread or process.
        """
        if self._recorder is None or not self._running:
            raise RecordingError("step() outside of the block of the contract")
        self._recorder.step()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        __tracebackhide__ = True
        recorder, self._recorder, self._running = self._recorder, None, False
        assert recorder is not None
        if error is not None:
            recorder.drop()
            return
        self._check(recorder)
        if not self.message or self.result is None:
            return
        if self._mode == "raise":
            raise ContractBroken(self.message, self.result, self.path)
        if self._mode == "warn":
            warnings.warn(self.message, ContractWarning, stacklevel=2)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of which every call is recorded and checked.

        Raises:
            OptionError: It is a generator, whose calls do nothing yet.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise OptionError("a contract can't be put on a generator; use it around the loop")
        name = getattr(function, "__qualname__", "")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                __tracebackhide__ = True
                with self._copy(name):
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                __tracebackhide__ = True
                with self._copy(name):
                    return function(*args, **kwargs)

        return wrapped

    def _copy(self, name: str) -> RecordedContract:
        return RecordedContract(
            self.contract,
            name=self.name or name,
            warmup=self._warmup,
            mode=self._mode,
            path=self._path,
            strict=self._strict,
            folder=self._folder,
            keep=self._keep,
        )

    def _check(self, recorder: Recorder) -> None:
        from torchtraceap.contracts.checker import check, untold
        from torchtraceap.contracts.places import CallLines, relative_path
        from torchtraceap.contracts.wording import broken_message
        from torchtraceap.core.writing import staging
        from torchtraceap.trace.loader import load

        profiler = recorder.stop()
        with staging(None) as folder:
            file = recorder.export(profiler, folder / f"{self._file_name}.json")
            places: dict[str, Place] = {}
            trace = None if file is None else load(file)
            if file is None or trace is None or _is_idle(trace.rank(None)):
                result = untold(self.contract, "no operation of torch ran in the block")
            else:
                result = check(trace, self.contract)
                result, places = _with_places(result, trace.rank(None), CallLines(profiler))
            is_broken = bool(result.failed or (self._strict and result.inconclusive))
            if file is not None and (self._path is not None or (is_broken and self._keep)):
                self.path = self._keep_trace(file, recorder)
        paths = () if self.path is None else (str(self.path),)
        self.result = replace(result, name=self.name, paths=paths)
        if is_broken:
            frames = "" if self._has_frames else _NO_FRAMES
            if recorder.swapped_by is not None:
                frames = _SWAPPED.format(recorder.swapped_by)
            path = None if self.path is None else relative_path(str(self.path.absolute()))
            self.message = broken_message(self.result, places, path=path, frames=frames)

    @property
    def _file_name(self) -> str:
        return re.sub(r"[^\w.-]+", "_", self.name).strip("_")[-120:] or _UNNAMED

    def _keep_trace(self, file: Path, recorder: Recorder) -> Path:
        """Move the trace to where it is wanted: never over a file that has been named, but over
        that of the same contract from the last time."""
        from torchtraceap.core.writing import first_free, replacing, staging
        from torchtraceap.record.export import TraceNames

        if self._path is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            place = self._folder / f"{file.stem}.json.gz"
            with replacing(place) as staged:
                _pack(file, staged)
            return place
        names = TraceNames(self._path, rank=recorder.rank, run="", worker_name=self._file_name)
        with staging(names.folder) as folder:
            packed = folder / f"packed{names.suffix}"
            if names.use_gzip:
                _pack(file, packed)
            else:
                shutil.copyfile(file, packed)
            return first_free(packed, names.candidates())


_SWAPPED = (
    "{} swapped the profile function of Python in the block; it was left to the recording of "
    "frames, so what it times includes that"
)
_NO_FRAMES = (
    "Python frames were not recorded, since they slow the host down and a time, a share or a "
    "finding is limited; a contract on counts alone names the lines"
)


def contract(
    source: PathLike | Contract | None = None,
    /,
    *,
    name: str = "",
    warmup: int = 0,
    mode: str = "raise",
    path: PathLike | None = None,
    strict: bool = False,
    **limits: Any,
) -> RecordedContract:
    """Record a block with the profiler of torch and check limits on what it did.

    ```python
    with ttap.contract(syncs=0, launches_per_step="<=120", warmup=1) as c:
        for batch in loader:
            train(batch)
            c.step()
    ```

    With `step()` after every iteration, counts per step are those of the worst one, and what comes
    behind the last is in no step. Without it the whole block is one step. The thread that enters
    the block is recorded, with what autograd runs for it. An exception in the block passes through,
    and nothing is checked. Used as a decorator, every call of the function is such a block.

    Args:
        source: A contract's file, or a contract; limits named beside it take the places of its own.
        name: The contract of the file, if it has several; else a name for this one.
        warmup: Steps that are left out.
        mode: The effect of a broken limit: "raise" (`ContractBroken`), "warn" (`ContractWarning`),
            or "collect": nothing, `result` tells.
        path: Keep the trace here, in a file that ends in `.json` or `.json.gz`, or a folder; a file
            that exists is not overwritten. Unless given, the trace of a broken contract is kept
            in the folder `ttap_traces`.
        strict: Treat what could not be checked as broken.
        limits: Limits by key (docs/contracts.md).

    Returns:
        The contract, to be used in a `with` statement or as a decorator; `result` and `path` tell
        what came of it.

    Raises:
        OptionError: A key or a limit makes no sense, or there is none.
        MissingDependencyError: torch is not installed (on entering the block).
        RecordingError: Another recording or torch profiler is running (on entering the block);
            nothing was recorded (at its end).
    """
    from torchtraceap.contracts.limits import Contract

    if source is None:
        found = Contract.parse(limits, name=name)
    elif isinstance(source, Contract):
        found = source
    else:
        from torchtraceap.contracts.file import read_contracts

        found = read_contracts(source).contract(name or None)
    if source is not None and limits:
        found = found.merged(Contract.parse(limits))
    if not len(found):
        raise OptionError("the contract has no limits; name some, such as syncs=0")
    return RecordedContract(
        found, name=name or found.name, warmup=warmup, mode=mode, path=path, strict=strict
    )


def _is_idle(part: RankTrace) -> bool:
    """Return True if there are frames and marks at most, which are no work: a contract on nothing
    must not look like one that holds."""
    from torchtraceap._core import EventKind

    operators = (part.table.kind == EventKind.CPU_OP).nonzero()[0].tolist()
    names = {part.table.name_of(row) for row in operators[:_MOST_OWN]}
    return not len(part.tree.gpu_rows) and all(name.startswith(_OWN) for name in names)


def _with_places(
    result: CheckResult, part: RankTrace, lines: CallLines
) -> tuple[CheckResult, dict[str, Place]]:
    """Add the lines that the recording knows better than the trace to a check."""
    from torchtraceap.contracts.result import Frame

    places = {}
    results = []
    for each in result.results:
        place = lines.place_of(part, each.first_event.row) if each.first_event else None
        if place is not None:
            places[each.key] = place
            frame = Frame("python", place.function, place.file, place.line)
            each = replace(each, frame=frame)
        results.append(each)
    return replace(result, results=tuple(results)), places


def _pack(source: Path, target: Path) -> None:
    # No name and no time in the header: the file then depends on the trace alone.
    with (
        source.open("rb") as plain,
        target.open("xb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed)
