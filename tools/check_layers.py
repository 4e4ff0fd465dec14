#!/usr/bin/env python3
"""Checks who includes whom, in C++ and in Python, and how large rooms are; exits 1 on a violation.

The layers of C++ are below, the rooms of Python in `layers.toml`: what each may import, the wall
between the product and the lab, and maxima of lines, modules and circles, which only go down. The
root of the repository holds listed names only, and docs/architecture.md has one row for each room
and each module of the tree.

    tools/check_layers.py [--tighten] [ROOT]

`--tighten` writes the figures of the tree where they are below the maxima.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

TOOLS = Path(__file__).resolve().parent
sys.path.insert(0, str(TOOLS / "structure"))

from modules import (  # noqa: E402
    PACKAGE,
    Import,
    Module,
    circles,
    import_graph,
    is_below,
    read_package,
)
from picture import PAGE, draw_parts, is_current  # noqa: E402

# Layer -> layers it may include directly; what those may include is allowed too.
CPP_LAYERS: dict[str, set[str]] = {
    "base": set(),
    "cuda": {"base"},
    "table": {"base"},
    "trace": {"table"},
    "tree": {"table"},
    "windows": {"tree"},
    "analysis": {"tree"},
    "detect": {"tree", "analysis"},
    "features": {"windows", "analysis"},
    "simulation": {"analysis"},
    "model": {"features", "cuda"},
    "bindings": {"trace", "detect", "features", "simulation", "model"},
}
# Third-party header -> the one layer that may see it. What matches nothing must be standard.
CPP_THIRD_PARTY: dict[str, str] = {
    r"simdjson\.h|isa-l(\.h|/.*)|zstd(_errors)?\.h|zlib\.h": "trace",
    r"Eigen/.*": "analysis",
    r"(xtensor|xtl)/.*": "features",
    r"ATen/.*": "model",
    r"cuda_runtime\.h": "cuda",
    r"pybind11/.*": "bindings",
}
STANDARD = re.compile(r"[a-z_0-9]+|(sys/\w+|unistd|fcntl|malloc|dlfcn|immintrin)\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def reachable(layer: str, layers: Mapping[str, set[str]]) -> set[str]:
    """The layer and everything below it."""
    return {layer}.union(*(reachable(below, layers) for below in layers.get(layer, ())))


def third_party_owner(header: str) -> str | None:
    owners = (layer for regex, layer in CPP_THIRD_PARTY.items() if re.fullmatch(regex, header))
    return next(owners, None)


def check_cpp(root: Path) -> Iterator[str]:
    private_headers: dict[str, str] = {}  # layer -> its one header that shows a third party
    own_includes: list[tuple[Path, str, str]] = []
    sources = (root / "cpp/traceap").rglob("*.*")
    for path in sorted(each for each in sources if each.suffix in (".cpp", ".hpp", ".cu")):
        layer = path.relative_to(root / "cpp/traceap").parts[0]
        if layer not in CPP_LAYERS:
            yield f"{path}: layer {layer!r} has no row in CPP_LAYERS"
            continue
        for quote, header in INCLUDE.findall(path.read_text("utf-8")):
            if header.startswith("traceap/"):
                own_includes.append((path, layer, header))
                if header.split("/")[1] not in reachable(layer, CPP_LAYERS):
                    yield f"{path}: {layer} may not include {header}"
            elif quote == '"':
                yield f'{path}: "{header}" should start with traceap/'
            elif owner := third_party_owner(header):
                if owner != layer:
                    yield f"{path}: <{header}> belongs to the layer {owner}"
                name = str(path.relative_to(root / "cpp"))
                shown = path.suffix == ".hpp" and layer != "bindings"
                if shown and private_headers.setdefault(layer, name) != name:
                    yield f"{path}: {layer} shows <{header}> in a second header"
            elif not STANDARD.fullmatch(header):
                yield f"{path}: <{header}> is in no row of CPP_THIRD_PARTY"
    for path, layer, header in own_includes:
        if header in private_headers.values() and private_headers.get(layer) != header:
            yield f"{path}: {header} shows third-party headers and is private to its layer"


class Rooms:
    """The contents of `layers.toml`."""

    def __init__(self, text: str) -> None:
        data: dict[str, Any] = tomllib.loads(text)
        self.root: list[str] = data["root"]
        self.late: list[str] = data["late"]
        self.lab: list[str] = data["wall"]["lab"]
        self.facades: list[str] = data["wall"]["facades"]
        self.wall_edges: list[str] = data["wall"]["edges"]
        self.doors: list[str] = data["wall"]["doors"]
        self.upward_types: list[str] = data["types"]["upward"]
        self.heavy: dict[str, list[str]] = data["heavy"]
        self.whole: dict[str, int] = data["whole"]
        self.maxima: dict[str, dict[str, int]] = {}
        self.may_import: dict[str, set[str]] = {}
        for name, room in data["rooms"].items():
            self.may_import[name] = set(room["may_import"])
            self.maxima[name] = {key: room[key] for key in FIGURES if key in room}


FIGURES = ("lines", "modules", "circle")
LINES_STEP = 50
"""Maxima of lines are multiples of this, so that a mended line needs no new maximum."""
SLACK = 0.03
"""The part of a maximum by which a figure may lie below it before it should be lowered."""


def read_rooms() -> Rooms:
    return Rooms((TOOLS / "layers.toml").read_text("utf-8"))


def room_of(module: Module) -> str:
    return module.room.removesuffix(".py")


def check_python(modules: Sequence[Module], rooms: Rooms) -> Iterator[str]:
    for module in modules:
        if room_of(module) in rooms.may_import:
            yield from check_imports(module, rooms)
        else:
            yield f"{module.path}: module {room_of(module)!r} has no row in layers.toml"
    yield from check_circles(modules, rooms)
    yield from check_wall(modules, rooms)
    yield from check_maxima(modules, rooms)


def check_imports(module: Module, rooms: Rooms) -> Iterator[str]:
    room = room_of(module)
    allowed = reachable(room, rooms.may_import)
    for entry in module.imports:
        where = f"{module.path}:{entry.line}"
        first, _, rest = entry.name.partition(".")
        if first == PACKAGE:
            other = rest.partition(".")[0]
            late = (entry.in_function or entry.for_types) and is_late(module, rooms)
            free = "*" in allowed or late
            if entry.for_types and f"{room} -> {other}" in rooms.upward_types:
                free = True
            if other in rooms.may_import.keys() - allowed and not free:
                how = " for types" if entry.for_types else ""
                yield f"{where}: {room} may not import {other}{how}"
        elif not (entry.in_function or entry.for_types or may_import_heavy(module, first, rooms)):
            yield f"{where}: import {first} inside the function using it"


def is_late(module: Module, rooms: Rooms) -> bool:
    """Tells whether the module shows the whole package, and so imports anything on use."""
    return module.name in rooms.facades or is_below(module.name, rooms.late)


def may_import_heavy(module: Module, package: str, rooms: Rooms) -> bool:
    """Tells whether the module, or a package that it is in, may import a heavy one at once."""
    return package not in rooms.heavy or is_below(module.name, rooms.heavy[package])


def check_circles(modules: Sequence[Module], rooms: Rooms) -> Iterator[str]:
    """Modules that import each other when they run, in functions or not."""

    def counts(module: Module, entry: Import) -> bool:
        return not entry.for_types and not (entry.in_function and is_late(module, rooms))

    try:
        TopologicalSorter(import_graph(modules, counts)).prepare()
    except CycleError as error:
        yield f"circle of imports: {' -> '.join(reversed(error.args[1]))}"


def wall_edges(modules: Sequence[Module], rooms: Rooms) -> set[str]:
    """The imports of the lab by the product, those for types too, as `layers.toml` lists them."""
    return {
        f"{name.removeprefix(f'{PACKAGE}.')} -> {other.removeprefix(f'{PACKAGE}.')}"
        for name, others in import_graph(modules).items()
        if not is_below(name, rooms.lab) and name not in rooms.facades
        for other in others
        if is_below(other, rooms.lab)
    }


def check_wall(modules: Sequence[Module], rooms: Rooms) -> Iterator[str]:
    for edge in sorted(wall_edges(modules, rooms) - set(rooms.wall_edges)):
        yield f"the product may not import the lab: {edge}"
    for name, others in import_graph(modules).items():
        if is_below(name, rooms.lab):
            for other in sorted(others):
                inner = other.removeprefix(f"{PACKAGE}.")
                if not is_below(other, rooms.lab) and inner not in rooms.doors:
                    yield f"{name} may not import {other}: the lab takes public names of rooms"


def upward_types(modules: Sequence[Module], rooms: Rooms) -> set[str]:
    """The pairs of rooms of which the lower names types of the upper."""
    return {
        f"{room_of(module)} -> {other}"
        for module in modules
        for entry in module.imports
        if entry.for_types and (other := entry.name.partition(".")[2].partition(".")[0])
    } & set(rooms.upward_types)


class Figure(NamedTuple):
    """A figure of a room beside its maximum."""

    room: str
    """Its name; "whole" for the package."""
    what: str
    found: int
    maximum: int

    @property
    def lowered(self) -> int:
        """The maximum that would do."""
        step = LINES_STEP if self.what == "lines" else 1
        return min(self.maximum, -(-self.found // step) * step)


def figures(modules: Sequence[Module], rooms: Rooms) -> Iterator[Figure]:
    """Yield the figures that have a maximum, for the rooms that the tree holds."""
    for room, maxima in rooms.maxima.items():
        inside = [module for module in modules if room_of(module) == room]
        if inside:
            found = (sum(module.lines for module in inside), len(inside), largest_circle(inside))
            for what, value in zip(FIGURES, found, strict=True):
                if what in maxima or what == "circle":
                    yield Figure(room, what, value, maxima.get(what, 1))
    yield Figure("whole", "circle", largest_circle(modules), rooms.whole["circle"])


def largest_circle(modules: Sequence[Module]) -> int:
    """The most modules that import each other, imports for type checkers counted."""
    return max(map(len, circles(import_graph(modules))), default=1)


def check_maxima(modules: Sequence[Module], rooms: Rooms) -> Iterator[str]:
    for each in figures(modules, rooms):
        if each.found > each.maximum:
            yield f"{each.room}: {each.what} {each.found}, more than the maximum {each.maximum}"


def notes(modules: Sequence[Module], rooms: Rooms) -> Iterator[str]:
    """Yield what `layers.toml` allows beyond need: `--tighten` lowers it."""
    for each in figures(modules, rooms):
        if each.lowered < (1 - SLACK) * each.maximum:
            yield f"{each.room}: {each.what} {each.found}, so lower the maximum {each.maximum}"
    for gone in unused(modules, rooms):
        yield f'"{gone}" is no longer imported, so take it from layers.toml'


def unused(modules: Sequence[Module], rooms: Rooms) -> list[str]:
    """The listed imports that are no longer there."""
    found = wall_edges(modules, rooms) | upward_types(modules, rooms)
    return [edge for edge in (*rooms.wall_edges, *rooms.upward_types) if edge not in found]


def tightened(text: str, modules: Sequence[Module]) -> str:
    """`layers.toml` with lower maxima, and without the imports that are gone."""
    rooms = Rooms(text)
    lowered = {(each.room, each.what): each.lowered for each in figures(modules, rooms)}
    gone = {f'"{edge}",' for edge in unused(modules, rooms)}
    lines, room = [], ""
    for line in text.splitlines():
        if line.startswith("["):
            room = line.strip("[]").removeprefix("rooms.")
        key = line.partition(" = ")[0]
        if (room, key) in lowered:
            line = f"{key} = {lowered[room, key]}"
        if line.strip() not in gone:
            lines.append(line)
    return "\n".join(lines) + "\n"


def check_root(root: Path, rooms: Rooms) -> Iterator[str]:
    """Tracked names in the root of the repository that nobody listed."""
    names = [path.name for path in root.iterdir()]
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "ls-files"]
        tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        names = [line.partition("/")[0] for line in tracked.splitlines()]
    for name in sorted(set(names) - set(rooms.root)):
        yield f"{root / name}: the root holds what layers.toml lists"


def check_rows(root: Path, rooms: Rooms) -> Iterator[str]:
    """docs/architecture.md names each room of Python once, and nothing in two rows."""
    path = root / PAGE
    if not path.exists():
        return
    for section in re.split(r"^## ", path.read_text("utf-8"), flags=re.MULTILINE):
        title = section.partition("\n")[0]
        cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
        named = Counter(name for cell in cells for name in re.findall(r"`([^`]+)`", cell))
        if title.startswith(("C++ core", "Python package", "Everything else")):
            for name in (name for name, rows in named.items() if rows > 1):
                yield f"{path}: {name} has several rows"
        if title.startswith("Python package"):
            shown = {name.removesuffix("/").removesuffix(".py") for name in named}
            for room in sorted(rooms.may_import.keys() - shown - {"__main__"}):
                yield f"{path}: {room} has no row"


def check_picture(root: Path, modules: Sequence[Module], rooms: Rooms) -> Iterator[str]:
    """docs/architecture.md shows the rooms and modules of the tree."""
    path = root / PAGE
    parts = draw_parts(root, modules, rooms.may_import, CPP_LAYERS)
    if path.exists() and not is_current(path.read_text("utf-8"), parts):
        yield f"{path}: other rooms or modules than in the tree: python tools/structure --draw"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=TOOLS.parent, metavar="ROOT")
    parser.add_argument("--tighten", action="store_true", help="write lower maxima")
    options = parser.parse_args(arguments)
    rooms, root = read_rooms(), options.root
    modules = read_package(root / "python" / PACKAGE)
    violations = [
        *check_cpp(root),
        *check_python(modules, rooms),
        *check_root(root, rooms),
        *check_rows(root, rooms),
        *check_picture(root, modules, rooms),
    ]
    if options.tighten:
        table = TOOLS / "layers.toml"
        table.write_text(tightened(table.read_text("utf-8"), modules), "utf-8")
        rooms = read_rooms()
    for line in (*violations, *notes(modules, rooms)):
        print(line)
    print(f"layers: {len(violations)} violations" if violations else "layers: in order")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
