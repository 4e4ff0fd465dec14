"""Brings what a torch profiler recorded into a file: once, whole, and never over another file."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchtraceap.collect.sanitize import copy_without_private_data

__all__ = ["TraceNames", "export_trace"]

SUFFIXES = (".json.gz", ".json")
DEFAULT_WORKER = "trace"


class TraceNames:
    """File names of the recordings of one process: `worker_rank0_cycle001.json.gz`, counted up.

    A path that ends in `.json` or `.json.gz` names the first file itself; of several ranks each
    gets its rank in the name, and later files or files that are in the way a number.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rank: int,
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
        self.folder = path.parent if self._is_file else path
        stem = path.name[: -len(self.suffix)] if self._is_file else worker_name or DEFAULT_WORKER
        self._stem = re.sub(r"[^\w.-]+", "_", stem) if not self._is_file else stem
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def use_gzip(self) -> bool:
        return self.suffix.endswith(".gz")

    def candidates(self) -> Iterator[Path]:
        """Names in the order in which they are tried."""
        if not self._is_file:
            number = 1
            while True:
                yield self.folder / f"{self._stem}_rank{self.rank}_cycle{number:03d}{self.suffix}"
                number += 1
        stem = self._stem if self.rank == 0 else f"{self._stem}_rank{self.rank}"
        yield self.folder / f"{stem}{self.suffix}"
        number = 2
        while True:
            yield self.folder / f"{stem}_{number}{self.suffix}"
            number += 1

    def reserve(self) -> Path:
        """Creates an empty file under the first free name, so that nobody else takes it."""
        for path in self.candidates():
            with contextlib.suppress(FileExistsError):
                path.open("xb").close()
                return path
        raise AssertionError("the names never end")


def export_trace(profiler: Any, names: TraceNames) -> Path | None:
    """Exports what a stopped torch profiler holds.

    The file appears under its name when it is complete; a profiler exports once only, so whatever
    goes wrong afterwards must not need a second export.

    Returns:
        The file, or None when the profiler holds nothing but its own marks (a discarded or empty
        cycle): there is then no file.
    """
    handle, raw_name = tempfile.mkstemp(prefix=".recording_", suffix=".json", dir=names.folder)
    os.close(handle)
    raw, packed = Path(raw_name), Path(raw_name + ".partial")
    try:
        profiler.export_chrome_trace(str(raw))
        if raw.stat().st_size == 0:
            return None
        with packed.open("wb") as target:
            worth_keeping = copy_without_private_data(raw, target, use_gzip=names.use_gzip)
        return publish(packed, names) if worth_keeping else None
    finally:
        raw.unlink(missing_ok=True)
        packed.unlink(missing_ok=True)


def publish(finished: Path, names: TraceNames) -> Path:
    path = names.reserve()
    try:
        os.replace(finished, path)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path
