"""Reads the modules of the Python package, their imports and the circles that these form."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

PACKAGE = "torchtraceap"


class Import(NamedTuple):
    """One name that an import statement may bind."""

    line: int
    name: str
    """The absolute dotted name."""
    in_function: bool
    for_types: bool
    """The import stands under `if TYPE_CHECKING`."""


class Module(NamedTuple):
    """A Python file of the package."""

    path: Path
    name: str
    """The absolute dotted name."""
    room: str
    """The file or folder of the package that holds the module: the second part of its name."""
    lines: int
    tree: ast.Module
    imports: tuple[Import, ...]


def read_package(top: Path) -> list[Module]:
    """Reads every Python file below the folder of the package."""
    return [read_module(path, top) for path in sorted(top.rglob("*.py"))]


def read_module(path: Path, top: Path) -> Module:
    parts = path.relative_to(top.parent).with_suffix("").parts
    text = path.read_text("utf-8")
    tree = ast.parse(text, str(path))
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    imports = tuple(_imports_in(tree, list(parts[:-1])))
    return Module(path, name, parts[1], len(text.splitlines()), tree, imports)


def _imports_in(tree: ast.Module, package: list[str]) -> Iterator[Import]:
    todo: list[tuple[ast.AST, bool, bool]] = [(tree, False, False)]
    while todo:
        node, in_function, for_types = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in _names_bound(node, package):
                yield Import(node.lineno, name, in_function, for_types)
        elif isinstance(node, ast.If) and _is_for_types(node.test):
            todo += [(child, in_function, True) for child in node.body]
            todo += [(child, in_function, for_types) for child in node.orelse]
            continue
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            in_function = True
        todo += [
            (child, in_function, for_types)
            for child in ast.iter_child_nodes(node)
            if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case))
        ]


def _is_for_types(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _names_bound(node: ast.Import | ast.ImportFrom, package: list[str]) -> list[str]:
    """The absolute dotted names that an import statement of a module in `package` may bind."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    above = package[: len(package) - node.level + 1] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    return [f"{base}.{alias.name}" for alias in node.names]


def import_graph(
    modules: Sequence[Module], counts: Callable[[Module, Import], bool] = lambda *_: True
) -> dict[str, set[str]]:
    """For each module the other modules that it imports, over the imports that count."""
    known = {module.name for module in modules}
    return {
        module.name: {
            name
            for entry in module.imports
            if counts(module, entry) and (name := owner(entry.name, known)) and name != module.name
        }
        for module in modules
    }


def owner(name: str, known: Set[str]) -> str:
    """The module that a dotted name is of, or the empty string for none of the known ones."""
    if name.startswith(f"{PACKAGE}._core"):
        return ""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def circles(graph: Mapping[str, Set[str]]) -> list[list[str]]:
    """The groups of modules that reach each other, largest first (Kosaraju's algorithm)."""
    order = _by_finish(graph, graph)
    backward: dict[str, set[str]] = {name: set() for name in graph}
    for name, others in graph.items():
        for other in others & graph.keys():
            backward[other].add(name)
    groups: list[list[str]] = []
    seen: set[str] = set()
    for name in reversed(order):
        group = _by_finish(backward, [name], seen)
        if len(group) > 1:
            groups.append(sorted(group))
    return sorted(groups, key=len, reverse=True)


def _by_finish(
    graph: Mapping[str, Set[str]], starts: Iterable[str], seen: set[str] | None = None
) -> list[str]:
    """Depth-first search; the names in the order in which they were left."""
    seen = set() if seen is None else seen
    left: list[str] = []
    for start in starts:
        todo = [(start, False)]
        while todo:
            name, done = todo.pop()
            if done:
                left.append(name)
            elif name not in seen:
                seen.add(name)
                todo.append((name, True))
                todo += [(other, False) for other in sorted(graph[name] & graph.keys())]
    return left


def is_below(name: str, prefixes: Iterable[str]) -> bool:
    """Tells whether a module is one of these, or lies in one of these; names in the package."""
    inner = name.removeprefix(f"{PACKAGE}.")
    return any(inner == prefix or inner.startswith(f"{prefix}.") for prefix in prefixes)
