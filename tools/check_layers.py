#!/usr/bin/env python3
"""Checks who includes whom, in C++ and in Python; exits 1 if there is a violation.

The tables are those of docs/architecture.md. A new layer or module needs a row here.
Usage: tools/check_layers.py [ROOT]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

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
    "model": {"features"},
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
STANDARD = re.compile(r"[a-z_0-9]+|(sys/\w+|unistd|fcntl|malloc|immintrin)\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

# Python module or package -> its siblings that it may import, at module level and in functions;
# what those may import is allowed too. Imports for type checkers alone don't count.
PYTHON_LAYERS: dict[str, set[str]] = {
    "_core": set(),
    "_model": {"errors"},
    "_version": set(),
    "aliases": set(),
    "dtypes": {"records"},
    "errors": set(),
    "intervals": set(),
    "sums": {"aliases"},
    "kernel_names": {"records"},
    "order": {"aliases"},
    "records": set(),
    "remember": set(),
    "rendering": set(),
    "stages": set(),
    "threads": {"_core"},
    "units": set(),
    "devices": {"errors", "records"},
    "knowledge": {"errors", "records"},
    "models": {"aliases", "dtypes", "errors", "kernel_names", "rendering"},
    "durations": {"devices", "models"},
    "codes": {"_core"},
    "writing": {"_core", "aliases", "errors"},
    "columns": {"_core", "aliases", "errors", "records"},
    "table": {"columns", "rendering", "writing"},
    "event_table": {"_core", "aliases", "errors", "records"},
    "results": {
        "_core",
        "errors",
        "intervals",
        "records",
        "rendering",
        "sums",
        "units",
        "writing",
    },
    "files": {"aliases", "results"},
    "ranks": {"_core", "remember", "results", "stages"},
    "tree": {"ranks", "report"},
    "summary": {"analysis"},
    "execution_trace": {"ranks", "table"},
    "analysis": {
        "codes",
        "devices",
        "durations",
        "event_table",
        "knowledge",
        "models",
        "order",
        "ranks",
        "table",
        "threads",
    },
    "tracelens": {"analysis"},
    "replay": {"analysis"},
    "pipelines": {"analysis", "durations"},
    "simulation": {"analysis", "durations", "event_table", "files", "order"},
    "workloads": {"aliases", "errors", "records"},
    "verdict": {"analysis", "intervals", "sums"},
    "scoring": {"_model", "analysis", "intervals", "sums"},
    "diagnosis": {"scoring", "simulation", "summary", "verdict"},
    "prediction": {
        "_version",
        "diagnosis",
        "event_table",
        "execution_trace",
        "files",
        "loading",
        "replay",
        "workloads",
    },
    "generation": {"loading", "prediction", "simulation"},
    "datasets": {"generation"},
    "training": {"datasets", "scoring"},
    "evaluation": {"training"},
    "overlay": {"diagnosis"},
    "report": {"_version", "analysis", "summary", "verdict"},
    "sql": {"analysis"},
    "trace": {"ranks", "table"},
    "loading": {"files", "threads", "trace"},
    "collect": {"diagnosis", "generation", "loading", "report"},
    "measures": {"diagnosis", "loading", "prediction"},
    "contracts": {"collect", "measures"},
    "bench": {"collect", "measures", "workloads"},
    "integrations": {"collect"},
    "llm": {"diagnosis", "evaluation", "loading", "report"},
    "pytest_plugin": {"contracts"},
    "cli": {"*"},
    "__init__": {"*"},
    "__main__": {"cli"},
}
# These show the whole package to users: in their functions any import goes, and nobody who is
# below may import them.
FACADES = ("__init__", "cli", "trace")
# Heavy packages -> modules that may import them at module level; elsewhere only inside functions.
PYTHON_HEAVY: dict[str, set[str]] = {
    "torch": {
        "collect.emulated",
        "collect.workloads",
        "datasets.batches",
        "generation",
        "prediction",
        "replay",
        "training",
        "workloads.suite",
    },
    "pandas": set(),
    "pyarrow": set(),
    "sklearn": {"training"},
    "lightgbm": {"training"},
    "safetensors": {"training"},
    "IPython": set(),
    "rich": {"report"},
    "jinja2": {"report"},
    "typer": set(),
    "openai": set(),
    "pydantic": {"llm.answer"},
    "mcp": set(),
}


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


class Import(NamedTuple):
    """One name that an import statement may bind."""

    line: int
    name: str
    """Absolute and dotted."""
    in_function: bool


class Module(NamedTuple):
    """A Python file of the package."""

    path: Path
    name: str
    """Absolute and dotted."""
    layer: str
    imports: tuple[Import, ...]
    """Those that run at some time: not for type checkers."""


def read_module(path: Path, top: Path) -> Module:
    parts = path.relative_to(top.parent).with_suffix("").parts
    tree = ast.parse(path.read_text("utf-8"), str(path))
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(path, name, parts[1], tuple(imports_in(tree, list(parts[:-1]))))


def imports_in(tree: ast.Module, package: list[str]) -> Iterator[Import]:
    todo: list[tuple[ast.AST, bool]] = [(tree, False)]
    while todo:
        node, in_function = todo.pop()
        children: Iterable[ast.AST] = ast.iter_child_nodes(node)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (Import(node.lineno, n, in_function) for n in imported(node, package))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            children = node.orelse
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            in_function = True
        todo += [(child, in_function) for child in children]


def imported(node: ast.Import | ast.ImportFrom, package: list[str]) -> list[str]:
    """Absolute dotted names that an import statement of a module in `package` may bind."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    above = package[: len(package) - node.level + 1] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    return [f"{base}.{alias.name}" for alias in node.names]


def check_python(root: Path) -> Iterator[str]:
    top = root / "python/torchtraceap"
    modules = [read_module(path, top) for path in sorted(top.rglob("*.py"))]
    for module in modules:
        if module.layer in PYTHON_LAYERS:
            yield from check_imports(module)
        else:
            yield f"{module.path}: module {module.layer!r} has no row in PYTHON_LAYERS"
    yield from check_circles(modules)


def check_imports(module: Module) -> Iterator[str]:
    allowed = reachable(module.layer, PYTHON_LAYERS)
    for entry in module.imports:
        where = f"{module.path}:{entry.line}"
        first, _, rest = entry.name.partition(".")
        if first == "torchtraceap":
            other = rest.partition(".")[0]
            free = "*" in allowed or (entry.in_function and module.layer in FACADES)
            if other in PYTHON_LAYERS.keys() - allowed and not free:
                yield f"{where}: {module.layer} may not import {other}"
        elif not entry.in_function and not may_import_heavy(module, first):
            yield f"{where}: import {first} inside the function using it"


def may_import_heavy(module: Module, package: str) -> bool:
    """Whether it, or a package that it is in, has the right to import a heavy one."""
    parts = module.name.split(".")[1:]
    around = {".".join(parts[: i + 1]) for i in range(len(parts))}
    return package not in PYTHON_HEAVY or bool(around & PYTHON_HEAVY[package])


def check_circles(modules: Sequence[Module]) -> Iterator[str]:
    """Modules that import each other over some way round, in functions or not."""
    known = {module.name for module in modules}
    graph = {module.name: set(imported_modules(module, known)) for module in modules}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"circle of imports: {' -> '.join(reversed(error.args[1]))}"


def imported_modules(module: Module, known: Set[str]) -> Iterator[str]:
    """Other modules of the package that this one imports; a facade's, outside its functions."""
    for entry in module.imports:
        if entry.in_function and module.layer in FACADES:
            continue
        name = entry.name
        while name and name not in known:
            name = name.rpartition(".")[0]
        is_core = entry.name.startswith("torchtraceap._core")
        if name and name != module.name and not is_core:
            yield name


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    violations = [*check_cpp(root), *check_python(root)]
    for violation in violations:
        print(violation)
    print(f"layers: {len(violations)} violations" if violations else "layers: in order")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
