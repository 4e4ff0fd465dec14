"""Find the line of the program that an event of a recording at hand belongs to.

`tables/frames.py` finds the frame in any trace, `CallLines` the line while torch's profiler lives.

Note [Lines of calls]: in a trace a Python frame has the line where its function begins. The
profiler knows more as long as it lives: for every call that a frame makes, the line of the frame
at that moment. The call above an operator so gives its line exactly. An operator that comes from
syntax (`if x:`, `x + y`) has no call above it; then the calls before and behind it in the same
frame are two lines between which it lies, and if the source has only one place between them where
such an operator can come from, that is it.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

from torchtraceap._core import NO_ROW
from torchtraceap.core.codes import EventKind
from torchtraceap.core.records import dataclass
from torchtraceap.tables.frames import FRAME, rows_above
from torchtraceap.trace.ranks import RankTrace

__all__ = ["CallLines", "Place", "relative_path"]

_OUR_FOLDER = str(Path(__file__).resolve().parents[1])


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a program."""

    file: str
    """Relative to the working directory where it is below it."""
    line: int
    function: str
    exact: bool
    """False: the line is near, or where the function begins."""

    @property
    def text(self) -> str:
        """Return the place such as "train.py:12 (step)"."""
        return f"{self.file}:{self.line} ({self.function})"

    @property
    def source(self) -> str:
        """The line itself; empty where the file can't be read."""
        return linecache.getline(str(Path(self.file).absolute()), self.line).strip()


class CallLines:
    """Finds places of one recording.

    Args:
        profiler: A stopped profiler of torch that recorded Python frames; None for none.
    """

    def __init__(self, profiler: Any = None) -> None:
        self._profiler = profiler
        self._lines: dict[int, int] | None = None

    def place_of(self, part: RankTrace, row: int) -> Place | None:
        """Return the place in the program's own code, rather than a library's, that an event comes
        from.

        Args:
            part: The rank of the event.
            row: The event; for one of a GPU, its launch.

        Returns:
            None where there are no Python frames above it.
        """
        tree, table = part.tree, part.table
        launch = int(tree.launch[row])
        row = launch if launch != NO_ROW else row
        innermost = None
        below = row  # what the frame called, on the way to the event
        for around in rows_above(part, row):
            if table.kind[around] == EventKind.PYTHON_FUNCTION:
                found = FRAME.fullmatch(table.name_of(around))
                if found is not None:
                    file = _resolve_path(found["file"])
                    if not _is_library(file):
                        return self._place(part, around, below, found, file)
                    innermost = innermost or (around, below, found, file)
                below = around
            elif table.kind[around] == EventKind.CPU_OP:
                below = around
        return None if innermost is None else self._place(part, *innermost)

    def _place(
        self, part: RankTrace, frame: int, below: int, found: re.Match[str], file: str
    ) -> Place:
        start, function = int(found["line"]), found["function"]
        line = self._line_of(part, below)
        if line is not None:
            return Place(relative_path(file), line, function, exact=True)
        calls = [(row, self._line_of(part, row)) for row in _called_rows(part, frame)]
        before = [at for row, at in calls if row < below and at]
        behind = [at for row, at in calls if row > below and at]
        first, last = before[-1] if before else start, behind[0] if behind else 0
        lines = _lines_between(file, function, first, last, part.table.name_of(below))
        exact = len(lines) == 1
        return Place(relative_path(file), lines[0] if exact else first, function, exact=exact)

    def _line_of(self, part: RankTrace, row: int) -> int | None:
        """Return the line from which a call was made; None if the row is no call."""
        table = part.table
        if table.kind[row] != EventKind.PYTHON_FUNCTION:
            return None
        if self._lines is None:
            self._lines = {}
            base_ns = int(dict(table.metadata).get("baseTimeNanoseconds", "0"))
            try:
                todo = list(self._profiler.profiler.kineto_results.experimental_event_tree())
            except (AttributeError, RuntimeError):  # none, or of another version of torch
                todo = []
            self._profiler = None
            while todo:
                # Names are not asked for: that of a module which was imported meanwhile is gone
                # (torch 2.13).
                event = todo.pop()
                todo += event.children
                caller = getattr(event.extra_fields, "caller", None)
                if caller is not None:
                    self._lines[event.start_time_ns - base_ns] = caller.line_number
        return self._lines.get(int(table.ts_ns[row]))


def _called_rows(part: RankTrace, frame: int) -> list[int]:
    """Return the rows that a frame calls itself, in order; operators and ranges may lie between."""
    import numpy as np

    parent, of_python = part.tree.parent, part.table.kind == EventKind.PYTHON_FUNCTION
    rows = np.flatnonzero(of_python)
    rows = rows[rows > frame]
    above = parent[rows]
    while (between := (above != NO_ROW) & ~of_python[np.where(above == NO_ROW, 0, above)]).any():
        above[between] = parent[above[between]]
    found: list[int] = rows[above == frame].tolist()
    return found


def _resolve_path(name: str) -> str:
    """Return the whole path of a file: the profiler takes a folder of `sys.path` off its front."""
    if Path(name).is_absolute():
        return name
    for folder in sys.path:
        candidate = Path(folder or ".") / name
        if candidate.is_file():
            return str(candidate.absolute())
    return name


def relative_path(file: str, folder: Path | None = None) -> str:
    """Return a path relative to a folder, the working directory by default, if it lies below it."""
    path, here = Path(file), folder or Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


@cache
def _library_folders() -> tuple[str, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return (*(sysconfig.get_path(kind) for kind in kinds), _OUR_FOLDER)


def _is_library(file: str) -> bool:
    if file.startswith("<") or not Path(file).is_absolute():
        return True
    parts = Path(file).parts
    installed = "site-packages" in parts or "dist-packages" in parts
    generated = any(part.startswith("torchinductor") for part in parts)
    return installed or generated or file.startswith(tuple(f"{f}/" for f in _library_folders()))


_OPERATORS: dict[str, tuple[type[ast.AST], ...]] = {
    "add": (ast.Add,),
    "sub": (ast.Sub,),
    "rsub": (ast.Sub,),
    "mul": (ast.Mult,),
    "div": (ast.Div,),
    "floor_divide": (ast.FloorDiv,),
    "remainder": (ast.Mod,),
    "pow": (ast.Pow,),
    "matmul": (ast.MatMult,),
    "neg": (ast.USub,),
    "bitwise_not": (ast.Invert,),
    "gt": (ast.Gt,),
    "lt": (ast.Lt,),
    "ge": (ast.GtE,),
    "le": (ast.LtE,),
    "eq": (ast.Eq,),
    "ne": (ast.NotEq,),
}
_ASKS = ("item", "is_nonzero", "_local_scalar_dense", "equal")
_INDEXES = ("index", "select", "slice", "index_put_", "copy_", "nonzero", "masked_select")
_NUMBERS = ("float", "int", "bool", "complex", "range", "round", "print", "str", "format")


def _lines_between(file: str, function: str, first: int, last: int, name: str) -> list[int]:
    """Return the lines of a function where its syntax can give an operator.

    From the line of one call to that of the next. Where that is not further down, a loop may have
    begun anew between them, and they are those of the loop.
    """
    try:
        tree = ast.parse(Path(file).read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return []
    body = _function(tree, function, first)
    if body is None:
        return []
    bare = name.rpartition("::")[2]
    nodes = (node for node in ast.walk(body) if hasattr(node, "lineno") and _gives(node, bare))
    lines = {node.lineno for node in nodes}
    if last <= first:
        kinds = (ast.For, ast.AsyncFor, ast.While)
        around = [
            (node.lineno, node.end_lineno or node.lineno)
            for node in ast.walk(body)
            if isinstance(node, kinds) and node.lineno <= first <= (node.end_lineno or 0)
        ]
        first, last = max(around, default=None) or (first, last or sys.maxsize)
    return sorted(line for line in lines if first <= line <= last)


def _function(tree: ast.Module, function: str, line: int) -> ast.AST | None:
    """Return the innermost function of that name around a line; the module for its own frame."""
    if function == "<module>":
        return tree
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, kinds)
        and node.name == function.rpartition(".")[2]
        and min([node.lineno, *(each.lineno for each in node.decorator_list)])
        <= line
        <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def _gives(node: ast.AST, name: str) -> bool:
    """Return True if an expression can call an operator of that name."""
    if name in _ASKS:
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.Not)
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Name) and node.func.id in _NUMBERS
        kinds = (ast.If, ast.While, ast.IfExp, ast.Assert, ast.BoolOp, ast.FormattedValue)
        return isinstance(node, kinds)
    if name in _INDEXES:
        return isinstance(node, ast.Subscript)
    wanted = _OPERATORS.get(name.rstrip("_"), ())
    if isinstance(node, ast.Compare):
        return any(isinstance(each, wanted) for each in node.ops)
    return isinstance(node, (ast.BinOp, ast.AugAssign, ast.UnaryOp)) and isinstance(node.op, wanted)
