"""Find the frame of the program that an event belongs to.

Python frames tell it where they were recorded (with_stack=True), as events around the operator or,
by older profilers, as its `Call stack`: the innermost one that is no library's and not built in. An
event of the backward pass has no frame of the program around it; there it is that of the operator
of the forward pass. Without frames it is the innermost range that the program named, else the
module, else the outermost operator.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator

from torchtraceap._core import NO_ROW
from torchtraceap.core.codes import EventKind
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.trace.ranks import RankTrace

__all__ = ["FRAME", "Frame", "frame_of", "rows_above"]

FRAME = re.compile(r"(?P<file>.+?)\((?P<line>[0-9]{1,9})\): (?P<function>.+)", re.DOTALL)
_INSTALLED = re.compile(
    r"(^|[/\\])(site-packages|dist-packages|lib/python\d[^/]*|torch|torchtraceap)[/\\]"
)
_MODULE = "nn.Module: "
_MARKS = ("ProfilerStep", "Optimizer.", "enumerate(DataLoader)", "Torch-Compiled Region")
_LONGEST_STACK = 4096
_CALL_STACK = "Call stack"


@dataclass(frozen=True, slots=True)
class Frame(Result):
    """The place in the program that an event belongs to."""

    kind: str
    """"python": a frame, which `file` and `line` are of; else "module", "annotation" or
    "operator", where the trace has no frames around the event."""
    name: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.kind == "python" and self.file:
            return f"{self.file}:{self.line}, in {self.name}"
        return f"the {self.kind} {self.name}"


def frame_of(part: RankTrace, row: int) -> Frame | None:
    """Return the frame around an event, GPU events by their launch; None where nothing tells."""
    tree = part.tree
    launch = int(tree.launch[row])
    around = list(rows_above(part, launch if launch != NO_ROW else row))
    found = _frame_among(part, around)
    if found is None or found.kind != "python":
        links = (int(tree.forward[each]) for each in around)
        forward = next((link for link in links if link != NO_ROW), None)
        if forward is not None:
            found = _frame_among(part, list(rows_above(part, forward))) or found
    return found


def rows_above(part: RankTrace, row: int) -> Iterator[int]:
    """Yield a row of the host and those around it, innermost first."""
    if part.tree.host_position[row] == NO_ROW:
        return
    for _ in range(_LONGEST_STACK):
        yield row
        row = int(part.tree.parent[row])
        if row == NO_ROW:
            return


def _frame_among(part: RankTrace, rows: list[int]) -> Frame | None:
    table = part.table
    fallback: dict[str, Frame] = {}
    of_library: Frame | None = None
    for row in rows:
        kind, name = int(table.kind[row]), table.name_of(row)
        if kind == EventKind.PYTHON_FUNCTION:
            if name.startswith(_MODULE):
                fallback.setdefault("module", Frame("module", name.removeprefix(_MODULE)))
            elif found := FRAME.fullmatch(name):
                frame = Frame("python", found["function"], found["file"], int(found["line"]))
                if not _is_library(found["file"]):
                    return frame
                of_library = of_library or frame
        elif name.startswith(_MARKS):
            continue
        elif kind == EventKind.USER_ANNOTATION:
            fallback.setdefault("annotation", Frame("annotation", name))
        elif kind == EventKind.CPU_OP:
            fallback["operator"] = Frame("operator", name)
            if of_library is None:
                of_library = _frame_of_call_stack(part, row)
                if of_library is not None and not _is_library(of_library.file or ""):
                    return of_library
    chosen = (fallback.get(kind) for kind in ("annotation", "module", "operator"))
    return of_library or next((frame for frame in chosen if frame is not None), None)


def _frame_of_call_stack(part: RankTrace, row: int) -> Frame | None:
    """Return the innermost frame of the program in an operator's `Call stack`, else that of a
    library; None where it has none."""
    text = part.table.args_json(row)
    if _CALL_STACK not in text:
        return None
    try:
        stack = json.loads(text).get(_CALL_STACK)
    except (ValueError, AttributeError, RecursionError):
        return None
    innermost = None
    for entry in str(stack or "").split(";")[:_LONGEST_STACK]:
        if found := FRAME.fullmatch(entry.strip()):
            frame = Frame("python", found["function"], found["file"], int(found["line"]))
            if not _is_library(found["file"]):
                return frame
            innermost = innermost or frame
    return innermost


def _is_library(file: str) -> bool:
    """Return whether a file is installed, generated or of Python's own library, as far as its name
    tells: the profiler takes the folder of `sys.path` off its front."""
    first = re.split(r"[/\\]", file, maxsplit=1)[0].removesuffix(".py")
    own = first in sys.stdlib_module_names and first != "__main__"
    return file.startswith("<") or own or _INSTALLED.search(file) is not None
