"""Every operator that TraceLens models stands in the docs, with whether ours has numbers for it.

Run as a program it writes the table anew, for the operators that stand there.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchtraceap.ops.models import model_of, work_of
from torchtraceap.ops.models.tracelens.registry import MODELS, find_model

PAGE = Path(__file__).resolve().parents[3] / "docs/results/tracelens_models.md"
_ROW = re.compile(r"^\| ?`([^`]+)` ?\| ?(.+?) ?\| ?(yes|no) ?\|$")
_MADE = "no operator: TraceLens adds it to its tree"
_ABSENT = "torch has no such operator"
# Rows that TraceLens makes of kernels and modules before it looks for a model.
_PSEUDO = re.compile(r"^pseudo_|^_(?:LayerNorm)?Linear(?:Backward)?_[a-z]+_mm$")


def rows() -> dict[str, tuple[str, str]]:
    """Operators of the page: ours, compatibility mode."""
    found = map(_ROW.match, PAGE.read_text("utf-8").splitlines())
    return {row[1]: (row[2], row[3]) for row in found if row}


def status(name: str) -> tuple[str, str]:
    """What the page must say."""
    entry = model_of(name)
    compat = "yes" if find_model(name) else "no"
    if entry is None:
        return (_MADE if _PSEUDO.match(name) else _ABSENT), compat
    return ("yes" if entry.has_numbers else work_of(name, [], [])[1]), compat


def summary(names: list[str]) -> str:
    """The sentence above the table."""
    ours = [status(name)[0] for name in names]
    numbers, made, absent = (ours.count(text) for text in ("yes", _MADE, _ABSENT))
    reasons = len(ours) - numbers - made - absent
    compat = sum(status(name)[1] == "yes" for name in names)
    return (
        f"Of its {len(names)} operators {numbers} have numbers here, {reasons} a reason why not,\n"
        f"{absent} do not exist in torch, {made} TraceLens makes itself. Compatibility mode has "
        f"{compat}."
    )


def test_the_table_says_what_the_models_do() -> None:
    found = rows()
    assert len(found) > 240
    assert {name: status(name) for name in found} == found
    assert summary(list(found)) in PAGE.read_text("utf-8")


def test_every_model_of_compatibility_mode_is_an_operator_of_the_table() -> None:
    assert set(MODELS) <= set(rows())


def test_what_torch_is_said_to_lack_it_lacks() -> None:
    torch = pytest.importorskip("torch")
    for name, (ours, _) in rows().items():
        if name.startswith("aten::"):
            exists = hasattr(torch.ops.aten, name.removeprefix("aten::"))
            assert exists == (ours != _ABSENT), name
        else:
            assert ours != _ABSENT, name


def row(name: str) -> str:
    """A line of the table, without spaces where it is long."""
    line = f"| `{name}` | {' | '.join(status(name))} |"
    return line if len(line) <= 120 else line.replace(" ", "")


def written(names: list[str]) -> str:
    """The page with its table anew."""
    text = PAGE.read_text("utf-8")
    head = text[: text.index("Of its ")]
    table = "\n".join(map(row, names))
    heading = "| operator | ours | compatibility mode |\n|---|---|---|"
    return f"{head}{summary(names)}\n\n{heading}\n{table}\n"


if __name__ == "__main__":
    PAGE.write_text(written(list(rows())), "utf-8")
