"""Find the place in the program that an event belongs to.

Python frames tell it where they were recorded (with_stack=True): the innermost one that is neither
torch's own nor built in. An event of the backward pass has no frame of the program around it; there
it is that of the operator of the forward pass. Without frames it is the innermost range that the
program named, else the module, else the outermost operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchtraceap import _core
from torchtraceap.contracts.result import Frame
from torchtraceap.core.codes import EventKind
from torchtraceap.trace.ranks import RankTrace

__all__ = ["frame_of"]

_FRAME = re.compile(r"(?P<file>.+?)\((?P<line>[0-9]{1,9})\): (?P<name>.+)", re.DOTALL)
_OF_TORCH = re.compile(r"(^|[/\\])(torch|torchtraceap)[/\\]")
_MODULE = "nn.Module: "
_MARKS = ("ProfilerStep", "Optimizer.", "enumerate(DataLoader)", "Torch-Compiled Region")
_LONGEST_STACK = 4096


def frame_of(part: RankTrace, row: int) -> Frame | None:
    """The frame around an event, GPU events by their launch; None where nothing tells."""
    tree = part.tree
    launch = int(tree.launch[row])
    at = launch if launch != _core.NO_ROW else row
    around = list(_above(part, at))
    found = _frame_among(part, around)
    if found is None or found.kind != "python":
        links = (int(tree.forward[each]) for each in around)
        forward = next((link for link in links if link != _core.NO_ROW), None)
        if forward is not None:
            found = _frame_among(part, list(_above(part, forward))) or found
    return found


def _above(part: RankTrace, row: int) -> Iterator[int]:
    """The row and those around it, innermost first."""
    parent, places = part.tree.parent, part.tree.host_position
    if places[row] == _core.NO_ROW:
        return
    for _ in range(_LONGEST_STACK):
        yield row
        row = int(parent[row])
        if row == _core.NO_ROW:
            return


def _frame_among(part: RankTrace, rows: list[int]) -> Frame | None:
    table = part.table
    fallback: dict[str, Frame] = {}
    of_torch: Frame | None = None
    for row in rows:
        kind, name = int(table.kind[row]), table.name_of(row)
        if kind == EventKind.PYTHON_FUNCTION:
            if name.startswith(_MODULE):
                fallback.setdefault("module", Frame("module", name.removeprefix(_MODULE)))
            elif found := _FRAME.fullmatch(name):
                frame = Frame("python", found["name"], found["file"], int(found["line"]))
                if not _OF_TORCH.search(found["file"]) and not found["file"].startswith("<"):
                    return frame
                of_torch = of_torch or frame
        elif name.startswith(_MARKS):
            continue
        elif kind == EventKind.USER_ANNOTATION:
            fallback.setdefault("annotation", Frame("annotation", name))
        elif kind == EventKind.CPU_OP:
            fallback["operator"] = Frame("operator", name)
    chosen = (fallback.get(kind) for kind in ("annotation", "module", "operator"))
    return of_torch or next((frame for frame in chosen if frame is not None), None)
