"""Measures the structure of the package; each measure is a figure that should go down."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from modules import PACKAGE, Module, circles, import_graph, is_below

Figures = dict[str, float | int | None]
"""Figures by name; None where one could not be measured."""

# A docstring that begins so is a fragment: a clause or a phrase without a verb of its own.
_FRAGMENT = re.compile(
    r"(Of|What|By|Those|In|Whose|That|Who|How|Where|Which|Beside|As|For whom|Whether|Why|When"
    r"|From|With|Without|Within)\b|(?!Nothing|Something|Everything)[A-Z][a-z]+ing\b"
)
_DEMO = "examples/traces/resnet50_num_workers_0.json.gz"
_DIAGNOSE = f"""
import os, sys
from {PACKAGE}.cli import main
stdout = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
code = main(["diagnose", sys.argv[1], "--json"])
sys.stdout.flush()
names = [
    getattr(module, "__file__", None) or ""
    for name, module in sys.modules.items()
    if name.split(".")[0] == "{PACKAGE}"
]
os.write(stdout, "\\n".join(name for name in names if name.endswith(".py")).encode())
os._exit(code)
"""


class Size(NamedTuple):
    """Lines and files of a part of the package."""

    lines: int
    modules: int


def size(modules: Collection[Module]) -> Size:
    return Size(sum(module.lines for module in modules), len(modules))


def wall_edges(modules: Sequence[Module], lab: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of a product module and a module of the lab that it imports."""
    graph = import_graph(modules)
    return sorted(
        (name, other)
        for name, others in graph.items()
        for other in others
        if is_below(other, lab) and not is_below(name, lab)
    )


def product_imported_by_lab(modules: Sequence[Module], lab: Sequence[str]) -> set[str]:
    """The product modules that the lab imports."""
    graph = import_graph(modules)
    used = {other for name, others in graph.items() if is_below(name, lab) for other in others}
    return {name for name in used if not is_below(name, lab)}


def largest_circle(modules: Sequence[Module]) -> int:
    """The number of modules that import each other, imports for type checkers included."""
    return max(map(len, circles(import_graph(modules))), default=1)


def _field_names(node: ast.ClassDef) -> set[str]:
    return {
        part.target.id
        for part in node.body
        if isinstance(part, ast.AnnAssign)
        and isinstance(part.target, ast.Name)
        and "ClassVar" not in ast.unparse(part.annotation)
    }


def dataclass_fields(modules: Sequence[Module]) -> list[set[str]]:
    """The names of the fields of each dataclass."""
    return [
        _field_names(node)
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and any(map(_is_dataclass, node.decorator_list))
    ]


def _is_dataclass(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).rpartition(".")[2] == "dataclass"


def alike_pairs(fields: Sequence[set[str]]) -> int:
    """The pairs of dataclasses of three fields or more whose common fields are half of all."""
    large = [names for names in fields if len(names) >= 3]
    return sum(len(a & b) >= len(a | b) / 2 for a, b in itertools.combinations(large, 2))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))


def one_caller_helpers(module: Module) -> int:
    """The private functions and methods that the module names once beside their definition."""
    names = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(module.tree)
        if isinstance(node, (ast.Name, ast.Attribute))
    )
    return sum(
        names[node.name] == 1
        for node in _functions(module.tree)
        if node.name.startswith("_") and not node.name.startswith("__")
    )


def docstrings(tree: ast.Module) -> Iterator[str]:
    """The docstrings of the module, its classes and functions, and of their attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield text
        if isinstance(node, (ast.Module, ast.ClassDef)):
            for before, after in itertools.pairwise(node.body):
                if isinstance(before, (ast.Assign, ast.AnnAssign)) and isinstance(after, ast.Expr):
                    value = after.value
                    if isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield value.value


def is_fragment(docstring: str) -> bool:
    return bool(_FRAGMENT.match(docstring.strip()))


def function_lengths(modules: Sequence[Module]) -> tuple[int, int, int]:
    """The median, the 90th percentile and the maximum of lines from `def` to the end."""
    lengths = sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules
        for node in _functions(module.tree)
    )
    if not lengths:
        return 0, 0, 0
    return lengths[len(lengths) // 2], lengths[len(lengths) * 9 // 10], lengths[-1]


def loaded_by_diagnose(root: Path) -> Size | None:
    """The modules that a fresh process has loaded after it diagnosed the demo trace.

    None where the package cannot be run here, as without its extension modules.
    """
    command = [sys.executable, "-c", _DIAGNOSE, str(root / _DEMO)]
    environment = {"PYTHONPATH": str(root / "python"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        print(f"diagnose: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    paths = [Path(line) for line in done.stdout.splitlines()]
    return Size(sum(len(path.read_text("utf-8").splitlines()) for path in paths), len(paths))


def words_of_docs(root: Path) -> int:
    return sum(len(path.read_text("utf-8").split()) for path in (root / "docs").rglob("*.md"))


def measure(
    root: Path, modules: Sequence[Module], lab: Sequence[str], facades: Sequence[str]
) -> Figures:
    """All figures, by name."""
    in_lab = [module for module in modules if is_below(module.name, lab)]
    product = [module for module in modules if not is_below(module.name, lab)]
    fields = dataclass_fields(modules)
    texts = [text for module in modules for text in docstrings(module.tree)]
    median, p90, longest = function_lengths(modules)
    loaded = loaded_by_diagnose(root)
    edges = [edge for edge in wall_edges(modules, lab) if edge[0] not in facades]
    helpers = sum(map(one_caller_helpers, modules))
    return {
        "product_lines": size(product).lines,
        "product_modules": size(product).modules,
        "lab_lines": size(in_lab).lines,
        "lab_modules": size(in_lab).modules,
        "largest_circle": largest_circle(modules),
        "diagnose_modules": loaded and loaded.modules,
        "diagnose_lines": loaded and loaded.lines,
        "edges_product_to_lab": len(edges),
        "product_modules_of_lab": len(product_imported_by_lab(modules, lab)),
        "dataclasses": len(fields),
        "alike_pairs": alike_pairs(fields),
        "one_caller_helpers_per_kloc": round(1000 * helpers / max(1, size(modules).lines), 1),
        "fragment_docstrings_percent": round(
            100 * sum(map(is_fragment, texts)) / max(1, len(texts)), 1
        ),
        "function_lines_median": median,
        "function_lines_p90": p90,
        "function_lines_max": longest,
        "words_of_docs": words_of_docs(root),
    }
