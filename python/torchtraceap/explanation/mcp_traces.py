"""The traces that an MCP server may read: those that its user named, and those below one folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from torchtraceap.core.formatting import plain_line
from torchtraceap.errors import OptionError, ParseError
from torchtraceap.explanation.tools import Tool, Toolbox
from torchtraceap.trace.files import expand_paths

if TYPE_CHECKING:
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.trace.trace import Trace

__all__ = ["Load", "ServedTraces"]

Load = Callable[[Sequence[str]], "Trace"]
MOST_LOADED = 4
"""Most traces that are kept in memory; the one that was not asked for the longest goes."""


class ServedTraces:
    """Reads traces when a call needs them, and keeps the last used ones.

    Args:
        paths: Files of the trace that calls without `trace` are about; empty if there is none.
        baseline: Path of the trace to compare with, if there is one.
        root: Folder below which a client may choose traces; None: it may choose none.
        load: Reads a trace.
        offered: Tools beside those that a language model is offered.
    """

    def __init__(
        self,
        paths: Sequence[str],
        baseline: str | None,
        root: str | None,
        load: Load,
        offered: Sequence[Tool] = (),
    ) -> None:
        self.paths, self.baseline, self._load = tuple(paths), baseline, load
        self.root = None if root is None else Path(os.path.realpath(root))
        self._offered = tuple(offered)
        self._lock = Lock()
        self._loaded: dict[tuple[str, ...], tuple[Trace, Diagnosis]] = {}
        self._boxes: dict[tuple[tuple[str, ...], tuple[str, ...]], Toolbox] = {}

    def listed(self) -> list[str]:
        """Return the traces below the root, as clients name them."""
        if self.root is None:
            return []
        try:
            files, _ = expand_paths(self.root, deep=True)
        except ParseError:
            return []
        root = self.root
        inside = (path for path in files if _is_below(Path(os.path.realpath(path)), root))
        return [path.relative_to(root).as_posix() for path in inside]

    def box(self, trace: str | None = None, baseline: str | None = None) -> Toolbox:
        """Return the tools of a trace; it is read and diagnosed if it is not in memory.

        Args:
            trace: Path below the root; by default the trace that the user named.
            baseline: Path below the root of the one to compare with; by default the user's.

        Raises:
            OptionError: There is no such trace, or its path leaves the root.
            TraceError: It can't be read.
        """
        own = self.paths if trace is None else (self._below_root(trace),)
        if not own:
            known = ", ".join(map(plain_line, self.listed()[:8])) or "none"
            raise OptionError(f"trace is needed: a path below the root; there are: {known}")
        given = self.baseline if baseline is None else self._below_root(baseline)
        other = () if given is None else (given,)
        with self._lock:
            key = (own, other)
            if key not in self._boxes or own not in self._loaded:
                loaded, diagnosis = self._read(own)
                compared = self._read(other)[0] if other else None
                box = Toolbox(loaded, compared, diagnosis=diagnosis)
                box.offered = self._offered
                self._boxes[key] = box
            self._loaded[own] = self._loaded.pop(own)  # the last used one
            return self._boxes[key]

    def _read(self, paths: tuple[str, ...]) -> tuple[Trace, Diagnosis]:
        """Return a trace with its diagnosis, so that later calls find both in memory."""
        if paths not in self._loaded:
            trace = self._load(paths)
            self._loaded[paths] = trace, trace.diagnose()
            while len(self._loaded) > MOST_LOADED:
                gone = next(iter(self._loaded))
                del self._loaded[gone]
                self._boxes = {key: box for key, box in self._boxes.items() if gone not in key}
        return self._loaded[paths]

    def _below_root(self, text: str) -> str:
        """Return the path that a client named.

        Raises:
            OptionError: It, or a file that it stands for, lies outside of the root; links count
                as what they point to.
        """
        if self.root is None:
            raise OptionError("no trace can be chosen: the server was started without --root")
        try:
            path = Path(os.path.realpath(self.root / text))
            files = expand_paths(path)[0] if _is_below(path, self.root) else None
        except ValueError:  # a null byte
            files = None
        if files is None or not all(
            _is_below(Path(os.path.realpath(file)), self.root) for file in files
        ):
            raise OptionError(f"{plain_line(text)}: lies outside of the folder that is served")
        return str(path)


def _is_below(path: Path, root: Path) -> bool:
    return path.is_relative_to(root)
