"""Prints the measures of the package's structure.

    python tools/structure [--json | --markdown | --edges | --draw] [ROOT]

`--markdown` prints a table with the figures of `before.json` beside those of now; `--edges` lists
the imports through the wall between the product and the lab. `--write-before` stores the figures
of now in `before.json`; `--draw` draws the rooms in docs/architecture.md anew. What belongs to the
lab is said in `tools/layers.toml`.
"""

from __future__ import annotations

import argparse
import json
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import measures
import picture
from modules import PACKAGE, is_below, read_package

HERE = Path(__file__).resolve().parent
TITLES = {
    "product_lines": "product, lines of Python",
    "product_modules": "product, modules",
    "lab_lines": "lab, lines of Python",
    "lab_modules": "lab, modules",
    "largest_circle": "largest circle of imports, those for types counted",
    "diagnose_modules": "modules that `diagnose` loads",
    "diagnose_lines": "lines of these",
    "edges_product_to_lab": "edges from the product to the lab",
    "product_modules_of_lab": "product modules that the lab imports",
    "dataclasses": "dataclasses",
    "alike_pairs": "pairs of dataclasses that share half of their fields",
    "one_caller_helpers_per_kloc": "private helpers with one caller, per 1,000 lines",
    "fragment_docstrings_percent": "docstrings that begin as a fragment, %",
    "function_lines_median": "function length, median",
    "function_lines_p90": "function length, 90th percentile",
    "function_lines_max": "function length, maximum",
    "words_of_docs": "words of docs/",
}


def _text(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,}"


def _table(figures: measures.Figures) -> str:
    width = max(map(len, TITLES.values()))
    return "\n".join(f"{TITLES[name]:<{width}}  {_text(figures[name]):>9}" for name in TITLES)


def _markdown(figures: measures.Figures) -> str:
    before = json.loads((HERE / "before.json").read_text("utf-8"))
    lines = [f"| measure | before ({before['commit']}) | now |", "|---|---|---|"]
    lines += [
        f"| {title} | {_text(before['figures'].get(name))} | {_text(figures[name])} |"
        for name, title in TITLES.items()
    ]
    return "\n".join(lines)


def _commit(root: Path) -> str:
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="structure", description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=HERE.parents[1], metavar="ROOT")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the figures as JSON")
    form.add_argument("--markdown", action="store_true", help="print a table of before and now")
    form.add_argument("--edges", action="store_true", help="list the imports through the wall")
    form.add_argument("--draw", action="store_true", help="draw the rooms in the docs anew")
    form.add_argument("--write-before", action="store_true", help="store these figures as before")
    options = parser.parse_args()
    modules = read_package(options.root / "python" / PACKAGE)
    table = tomllib.loads((HERE.parent / "layers.toml").read_text("utf-8"))
    wall = table["wall"]
    if options.draw:
        layers = runpy.run_path(str(HERE.parent / "check_layers.py"))["CPP_LAYERS"]
        parts = picture.draw_parts(options.root, modules, table["rooms"], layers)
        page = options.root / picture.PAGE
        page.write_text(picture.fill(page.read_text("utf-8"), parts), "utf-8")
        return 0
    if options.edges:
        for name, other in measures.wall_edges(modules, wall["lab"]):
            print(f"{name} -> {other}")
        for name in sorted(measures.product_imported_by_lab(modules, wall["lab"])):
            print(f"lab -> {name}")
        return 0
    unknown = [part for part in wall["lab"] if not any(is_below(m.name, [part]) for m in modules)]
    if unknown:
        print(f"no such modules of the lab: {', '.join(unknown)}", file=sys.stderr)
    figures = measures.measure(options.root, modules, wall["lab"], wall["facades"])
    if options.write_before:
        stored = {"commit": _commit(options.root), "figures": figures}
        (HERE / "before.json").write_text(json.dumps(stored, indent=2) + "\n", "utf-8")
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print(_markdown(figures) if options.markdown else _table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
