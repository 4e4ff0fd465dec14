"""Draws the rooms of the code with their sizes, and lists the modules of each, for the docs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from modules import Module

PAGE = "docs/architecture.md"
_BAR_LINES = 500
"""Lines of code for which a bar has one block."""


class Room(NamedTuple):
    """A box of the picture."""

    name: str
    lines: int
    files: int


def draw_parts(
    root: Path, modules: Sequence[Module], rooms: Iterable[str], layers: Iterable[str]
) -> dict[str, str]:
    """Return the drawn parts of the page by name. Rooms and layers come lowest first."""
    inside = defaultdict[str, list[Module]](list)
    for module in modules:
        _, top, *rest = *module.name.split("."), ""
        inside[f"lab.{rest[0]}" if top == "lab" else top].append(module)
    lab = sorted(name for name in inside if name.startswith("lab."))
    hidden = ("_core", "lab", "__init__", "__main__")
    sizes = {name: _python_room(name, found) for name, found in inside.items()}
    cpp = [_cpp_layer(root, name) for name in layers]
    product = [sizes[name] for name in rooms if name in sizes and name not in hidden]
    annexes = sorted((sizes[name] for name in lab if name != "lab."), key=lambda room: room.lines)
    lines = [
        *_draw_floor("lab: torchtraceap/lab/", annexes),
        "~~~~~~~~ the wall: the lab imports the product, never the reverse ~~~~~~~~",
        *_draw_floor("product: torchtraceap/", product),
        "-------- _core, by pybind11: handles, columns, codes --------",
        *_draw_floor("C++ core: cpp/traceap/", cpp),
    ]
    return {"rooms": "\n".join(["```", *lines, "```"]), "modules": _list_modules(root, modules)}


def _python_room(name: str, modules: Sequence[Module]) -> Room:
    return Room(name.removeprefix("lab."), sum(m.lines for m in modules), len(modules))


def _cpp_layer(root: Path, name: str) -> Room:
    paths = list((root / "cpp/traceap" / name).rglob("*.[ch]pp"))
    return Room(name, sum(len(p.read_text("utf-8").splitlines()) for p in paths), len(paths))


def _draw_floor(title: str, rooms: Sequence[Room]) -> list[str]:
    """Return the rows of a floor, its highest room first."""
    lines, files = sum(room.lines for room in rooms), sum(room.files for room in rooms)
    rows = [f"{title:<24} {lines:>7,} lines {files:>4} files"]
    for room in reversed(rooms):
        bar = "█" * -(-room.lines // _BAR_LINES)
        rows.append(f"  {room.name:<22} {room.lines:>7,}       {room.files:>4}  {bar}")
    return rows


def _list_modules(root: Path, modules: Sequence[Module]) -> str:
    """Return a table with a row for each folder: every Python module and C++ source once."""
    sources = [module.path for module in modules if module.path.stem != "__init__"]
    sources += (root / "cpp/traceap").rglob("*.[ch]pp")
    inside = defaultdict[str, set[str]](set)
    for path in sources:
        inside[path.parent.relative_to(root).as_posix()].add(path.stem)
    rows = [f"| `{name}/` | {', '.join(sorted(stems))} |" for name, stems in sorted(inside.items())]
    return "\n".join(["| folder | modules |", "|---|---|", *rows])


def fill(page: str, parts: dict[str, str]) -> str:
    """Return the page with each part between its marks."""
    for name, text in parts.items():
        mark = f"<!-- begin {name}: python tools/structure --draw -->"
        before, begin, rest = page.partition(mark)
        _, end, after = rest.partition(f"<!-- end {name} -->")
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page


def is_current(page: str, parts: dict[str, str]) -> bool:
    """Return whether the page names the same rooms and modules, with sizes a fifth off at most."""
    (text, sizes), (new_text, new_sizes) = map(_split_sizes, (page, fill(page, parts)))
    pairs = zip(sizes, new_sizes, strict=True)
    return text == new_text and all(abs(a - b) <= max(200, b / 5) for a, b in pairs)


def _split_sizes(page: str) -> tuple[str, list[int]]:
    sizes = re.findall(r" ([\d,]+)(?= lines| +\d+  █)", page)
    text = re.sub(r" [\d,]+ lines +\d+ files| +[\d,]+ +\d+  █+", "", page)
    return text, [int(size.replace(",", "")) for size in sizes]
