#!/usr/bin/env python3
"""Checks who includes whom, in C++ and in Python; exits 1 if there is a violation.

The tables are those of docs/architecture.md. A new layer or module needs a row here.
Usage: tools/check_layers.py [ROOT]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Layer -> layers it may include directly; what those may include is allowed too.
CPP_LAYERS: dict[str, set[str]] = {
    "base": set(),
    "table": {"base"},
    "trace": {"table"},
    "tree": {"table"},
    "windows": {"tree"},
    "analysis": {"tree"},
    "detect": {"tree", "analysis"},
    "features": {"windows", "analysis"},
    "simulation": {"analysis"},
    "bindings": {"trace", "detect", "features", "simulation"},
}
# Third-party header -> the one layer that may see it. What matches nothing must be standard.
CPP_THIRD_PARTY: dict[str, str] = {
    r"simdjson\.h|isa-l(\.h|/.*)|zstd\.h|zlib\.h": "trace",
    r"Eigen/.*": "analysis",
    r"(xtensor|xtl)/.*": "features",
    r"pybind11/.*": "bindings",
}
STANDARD = re.compile(r"[a-z_0-9]+|(sys/\w+|unistd|fcntl|immintrin)\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

# Python module or package -> its siblings that it may import at module level. Inside a function
# any import goes: `Diagnosis.to_html` reaches up to report/ when it is called.
PYTHON_LAYERS: dict[str, set[str]] = {
    "_core": set(),
    "_version": set(),
    "aliases": set(),
    "errors": set(),
    "intervals": set(),
    "kernel_names": set(),
    "threads": set(),
    "units": set(),
    "devices": {"errors"},
    "knowledge": {"errors"},
    "models": {"aliases", "errors", "kernel_names", "knowledge"},
    "durations": {"aliases", "devices", "errors", "models"},
    "columns": {"_core", "aliases", "errors"},
    "table": {"_core", "aliases", "columns", "errors", "results"},
    "event_frame": {"_core", "aliases", "columns", "errors"},
    "results": {"errors", "intervals", "units"},
    "files": {"aliases", "errors", "results"},
    "ranks": {"_core", "errors", "intervals", "results", "table", "threads"},
    "tree": {"_core", "errors", "ranks", "units"},
    "analysis": {
        "_core",
        "aliases",
        "columns",
        "devices",
        "errors",
        "intervals",
        "kernel_names",
        "models",
        "ranks",
        "results",
        "table",
        "threads",
        "units",
    },
    "execution_trace": {"_core", "aliases", "columns", "errors", "ranks", "table"},
    "pipelines": {
        "_core",
        "aliases",
        "analysis",
        "columns",
        "devices",
        "durations",
        "errors",
        "table",
    },
    "replay": {"_core", "aliases", "analysis", "columns", "errors", "ranks", "table"},
    "simulation": {
        "_core",
        "aliases",
        "analysis",
        "columns",
        "devices",
        "durations",
        "errors",
        "kernel_names",
        "models",
        "ranks",
        "results",
        "table",
        "units",
    },
    "tracelens": {
        "_core",
        "aliases",
        "analysis",
        "columns",
        "errors",
        "kernel_names",
        "models",
        "ranks",
        "table",
        "units",
    },
    "summary": {"_core", "errors", "intervals", "ranks", "results"},
    "diagnose": {
        "_core",
        "analysis",
        "errors",
        "intervals",
        "knowledge",
        "ranks",
        "results",
        "summary",
        "threads",
        "units",
    },
    "overlay": {"_core", "aliases", "analysis", "diagnose", "errors", "ranks", "results"},
    "report": {
        "_core",
        "_version",
        "aliases",
        "errors",
        "intervals",
        "knowledge",
        "results",
        "units",
    },
    "sql": {"aliases", "columns", "errors", "table"},
    "trace": {"_core", "aliases", "errors", "event_frame", "ranks", "results", "table"},
    "loading": {"_core", "aliases", "errors", "files", "ranks", "results", "threads", "trace"},
    "collect": {"errors"},
    "cli": {"*"},
    "__init__": {"*"},
    "__main__": {"cli"},
}
# Heavy packages -> modules that may import them at module level; elsewhere only inside functions.
PYTHON_HEAVY: dict[str, set[str]] = {
    "torch": {"replay"},
    "pandas": set(),
    "pyarrow": set(),
    "IPython": set(),
    "rich": {"report"},
    "jinja2": {"report"},
    "typer": set(),
}


def reachable(layer: str) -> set[str]:
    """The layer and everything below it."""
    return {layer}.union(*(reachable(below) for below in CPP_LAYERS[layer]))


def third_party_owner(header: str) -> str | None:
    owners = (layer for regex, layer in CPP_THIRD_PARTY.items() if re.fullmatch(regex, header))
    return next(owners, None)


def check_cpp(root: Path) -> Iterator[str]:
    private_headers: dict[str, str] = {}  # layer -> its one header that shows a third party
    own_includes: list[tuple[Path, str, str]] = []
    for path in sorted((root / "cpp/traceap").rglob("*.[ch]pp")):
        layer = path.relative_to(root / "cpp/traceap").parts[0]
        if layer not in CPP_LAYERS:
            yield f"{path}: layer {layer!r} has no row in CPP_LAYERS"
            continue
        for quote, header in INCLUDE.findall(path.read_text("utf-8")):
            if header.startswith("traceap/"):
                own_includes.append((path, layer, header))
                if header.split("/")[1] not in reachable(layer):
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


def module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run on import: not in functions, not under `if TYPE_CHECKING`."""
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        statement = todo.pop()
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            todo += statement.orelse
            continue
        yield statement
        todo += [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]


def imported(node: ast.AST, package: list[str]) -> list[str]:
    """Absolute dotted names that an import statement of a module in `package` may bind."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    above = package[: len(package) - node.level + 1] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    return [f"{base}.{alias.name}" for alias in node.names]


def check_python(root: Path) -> Iterator[str]:
    top = root / "python/torchtraceap"
    for path in sorted(top.rglob("*.py")):
        module = path.relative_to(top).parts[0].removesuffix(".py")
        if module not in PYTHON_LAYERS:
            yield f"{path}: module {module!r} has no row in PYTHON_LAYERS"
            continue
        tree = ast.parse(path.read_text("utf-8"), str(path))
        package = list(path.relative_to(top.parent).parts[:-1])
        allowed = PYTHON_LAYERS[module] | {module}
        for statement in module_level(tree):
            names = imported(statement, package)
            siblings = {name.split(".")[1] for name in names if name.startswith("torchtraceap.")}
            for sibling in sorted(siblings & PYTHON_LAYERS.keys() - allowed):
                if "*" not in allowed:
                    yield f"{path}:{statement.lineno}: {module} may not import {sibling}"
            for heavy in sorted({name.split(".")[0] for name in names} & PYTHON_HEAVY.keys()):
                if module not in PYTHON_HEAVY[heavy]:
                    yield f"{path}:{statement.lineno}: import {heavy} inside the function using it"


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    violations = [*check_cpp(root), *check_python(root)]
    for violation in violations:
        print(violation)
    print(f"layers: {len(violations)} violations" if violations else "layers: in order")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
