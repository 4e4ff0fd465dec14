"""Brings what a torch profiler recorded into a file: once, whole, and never over another file."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchtraceap.core.writing import first_free, naming, staging
from torchtraceap.errors import OutputError
from torchtraceap.record.sanitize import copy_without_private_data

__all__ = ["TraceNames", "export_raw", "export_trace", "pack_trace"]

SUFFIXES = (".json.gz", ".json")
DEFAULT_WORKER = "trace"
_TAIL_BYTES = 64


class TraceNames:
    """File names of one recording: `RUN/worker_rank0.json.gz` in a folder.

    A path that ends in `.json` or `.json.gz` names the file itself; of several ranks each but the
    first gets its rank in the name. Where a file is in the way there is a number behind the name.

    Args:
        path: A folder, or a file to be.
        rank: Of this process.
        run: Name of the folder of the recording inside `path`.
        worker_name: First part of the name in a folder.
        use_gzip: Of files in a folder.
        always_folder: `path` is a folder, whatever its name ends in.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rank: int,
        run: str,
        worker_name: str | None = None,
        use_gzip: bool = True,
        always_folder: bool = False,
    ) -> None:
        path = Path(path)
        suffix = next((s for s in SUFFIXES if path.name.lower().endswith(s)), None)
        if always_folder or path.is_dir():
            suffix = None
        self.rank = rank
        self._is_file = suffix is not None
        self.suffix = suffix if suffix is not None else SUFFIXES[0 if use_gzip else 1]
        self.parent = path.parent if self._is_file else path
        """The folder that is given."""
        self.folder = self.parent if self._is_file else path / run
        """That of the file."""
        stem = path.name[: -len(self.suffix)] if self._is_file else worker_name or DEFAULT_WORKER
        self._stem = re.sub(r"[^\w.-]+", "_", stem) if not self._is_file else stem
        self.parent.mkdir(parents=True, exist_ok=True)

    @property
    def use_gzip(self) -> bool:
        return self.suffix.endswith(".gz")

    def candidates(self) -> Iterator[Path]:
        """Names in the order in which they are tried."""
        has_rank = self.rank > 0 or not self._is_file
        stem = f"{self._stem}_rank{self.rank}" if has_rank else self._stem
        yield self.folder / f"{stem}{self.suffix}"
        number = 2
        while True:
            yield self.folder / f"{stem}_{number}{self.suffix}"
            number += 1


def export_trace(profiler: Any, names: TraceNames, *, unfinished: str | None = None) -> Path | None:
    """Exports what a stopped torch profiler holds.

    The file appears under its name when it is complete; a profiler exports once only, so whatever
    goes wrong afterwards must not need a second export.

    Args:
        profiler: That of torch.
        names: Where the file goes.
        unfinished: A step that had begun when the profiler was stopped; see `pack_trace`.

    Returns:
        The file, or None when the profiler holds nothing but its own marks (a discarded or empty
        cycle): there is then no file.

    Raises:
        OutputError: The disk is full, or there is another reason why it can't be written.
    """
    with _folder_of(names), naming(names.folder), staging(names.folder) as folder:
        raw = export_raw(profiler, folder)
        return None if raw is None else _pack(raw, folder, names, unfinished)


def export_raw(profiler: Any, folder: Path) -> Path | None:
    """Exports what a stopped torch profiler holds as it is, private data and all.

    Returns:
        The file, for `pack_trace`; None where the profiler wrote none.
    """
    raw = folder / "recording.json"
    profiler.export_chrome_trace(str(raw))
    return raw if raw.exists() and raw.stat().st_size else None


def pack_trace(raw: Path, names: TraceNames, *, unfinished: str | None = None) -> Path | None:
    """Brings what `export_raw` wrote to its place, without private data.

    Args:
        raw: Stays where it is.
        names: Where the file goes.
        unfinished: The name of a step that had begun when the profiler was stopped. torch ends its
            range there, as if it were a short step; it gets another name, and is none.

    Returns:
        The file; None where nothing was recorded.

    Raises:
        OutputError: It can't be written, or the profiler had no room for the whole of it.
    """
    with _folder_of(names), naming(names.folder), staging(names.folder) as folder:
        return _pack(raw, folder, names, unfinished)


@contextlib.contextmanager
def _folder_of(names: TraceNames) -> Iterator[None]:
    """Makes the folder of a recording, which goes again if there was nothing to write."""
    with naming(names.folder):
        names.folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if names.folder != names.parent:
            with contextlib.suppress(OSError):  # it holds something
                names.folder.rmdir()


def _pack(raw: Path, folder: Path, names: TraceNames, unfinished: str | None) -> Path | None:
    _check_whole(raw, names.folder)
    packed = folder / f"packed{names.suffix}"
    with packed.open("xb") as target:
        worth_keeping = copy_without_private_data(
            raw, target, use_gzip=names.use_gzip, unfinished=unfinished
        )
    return first_free(packed, names.candidates()) if worth_keeping else None


def _check_whole(raw: Path, folder: Path) -> None:
    """The profiler says nothing where the disk took only a part of its file."""
    with raw.open("rb") as file:
        file.seek(max(0, raw.stat().st_size - _TAIL_BYTES))
        if not file.read().rstrip().endswith(b"}"):
            raise OutputError(f"{folder}: the profiler wrote only a part of its file")
