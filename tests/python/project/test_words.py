"""What a person reads is plain American English: some words and patterns are not used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "python/torchtraceap"

# A pattern, and what to write instead.
FORBIDDEN = {
    r"\bin all(?! (?:\w|`))": "in total",
    r"\bbesides?\b": "next to, alongside, during; also",
    r"\bsits? in\b": "waits in, is in",
    r"\bless than \w+ vary\b": "less than the noise",
    r"\bto be saved\b": "savings",
    r"(?<!instead )\bof one\b": "of a, of a single, of the same",
    r"\b(?:de)?(?:optim|synchron|quant|serial|initial|normal|recogn|summar)is(?:e[drs]?|ing|ation\w*)\b":
        "-ize",
    r"\banalys(?:e[drs]?|ing)\b": "analyze",
    r"\b(?:un)?labell(?:ed|ing)\b": "labeled",
    r"\b(?:neighbour|colour|behaviour|favour)\w*": "-or",
    r"\bmodell(?:ed|ing)\b": "modeled",
    r"\bcancell(?:ed|ing)\b": "canceled",
    r"\bcentre[ds]?\b": "center",
    r"\bhas drained its queue\b": "its queue runs dry",
}  # fmt: skip
# Names that are part of an interface, of a file or of somebody else's.
NAMES = re.compile(
    r"beside communication|collectives in all|language modelling|summarisation|SYNCHRONISATIONS"
    r"|^(?:un)?labelled$|^analysed$"
    r"|quantise_unfused|dequantised_product|(?:corpus/)?\banalyse\b(?=[`,\"' |.]|$)"
    r"|colours?\.js|\bcolours\b(?=[`\"']|$)|centre-borelli"
)
PATTERN = re.compile("|".join(f"(?:{each})" for each in FORBIDDEN), re.IGNORECASE)


def strings_of(path: Path) -> Iterator[str]:
    """The string literals of a module, without its docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    bare = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


def found_in(text: str) -> list[str]:
    """What of a text is forbidden, each with some words around it."""
    flat = NAMES.sub("", " ".join(text.split()))
    return [flat[max(0, m.start() - 30) : m.end() + 20] for m in PATTERN.finditer(flat)]


def texts() -> dict[str, list[str]]:
    """The texts by the file that they are in."""
    read: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        read[str(path.relative_to(ROOT))] = list(strings_of(path))
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), ROOT / "README.md",
             ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *ROOT.glob("notebooks/*.ipynb"),
             *PACKAGE.rglob("*.html"), PACKAGE / "core/knowledge/kb.yaml"]  # fmt: skip
    for path in sorted(pages):
        read[str(path.relative_to(ROOT))] = [path.read_text("utf-8")]
    for path in sorted((ROOT / "cpp/traceap").rglob("*.cpp")):
        if path.parent.name == "bindings":
            continue  # what only developers read
        code = "\n".join(
            line for line in path.read_text("utf-8").splitlines() if "#include" not in line
        )
        joined = re.sub(r'"\s*\n\s*"', "", code)  # a text over several lines
        read[str(path.relative_to(ROOT))] = re.findall(r'"((?:[^"\\\n]|\\.)*)"', joined)
    return read


TEXTS = texts()


@pytest.mark.parametrize("name", TEXTS)
def test_no_forbidden_word(name: str) -> None:
    assert [found for text in TEXTS[name] for found in found_in(text)] == []


@pytest.mark.parametrize(
    "text",
    ["416 ms in all.", "It runs beside compute.", "The host sits in a copy.", "an optimiser's step",
     "less than steps vary (simulated)", "the traces of one\nrank", "Labelled runs",
     "To be saved"],
)  # fmt: skip
def test_what_is_forbidden_is_found(text: str) -> None:
    assert found_in(text)


@pytest.mark.parametrize(
    "text", ["in all layers", "in `beside communication`", "instead of one", "an optimizer"]
)
def test_what_only_looks_like_it_is_not(text: str) -> None:
    assert not found_in(text)
