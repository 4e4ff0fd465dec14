"""`tools/mutation`: the changes it makes, the sample it draws, and whom it asks."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tools" / "mutation"))

from mutants import Mutant, draw, mutants_of, mutated  # noqa: E402
from tests_of_lines import Chooser, LineMap  # noqa: E402

SOURCE = '''"""Text."""
LIMIT = 3
HALF = 0.5


def chosen(values: list[int], *, strict: bool = False) -> list[int]:
    """More text."""
    kept = [v for v in values if v < LIMIT and not strict]
    if not kept:
        raise ValueError(f"none of {len(values) + 1}")
    kept.sort()
    return kept[1:]
'''


@pytest.fixture
def mutants(tmp_path: Path) -> list[Mutant]:
    path = tmp_path / "example.py"
    path.write_text(SOURCE, encoding="utf-8")
    return mutants_of(path, Path("example.py"))


def test_the_changes_of_a_source(mutants: list[Mutant]) -> None:
    assert [(m.operator, m.change) for m in mutants] == [
        ("constant", "LIMIT = 3 -> LIMIT = 6"),
        ("constant", "LIMIT = 3 -> LIMIT = 1"),
        ("constant", "HALF = 0.5 -> HALF = 1.0"),
        ("constant", "HALF = 0.5 -> HALF = 0.25"),
        ("constant", "values: list[int], *, strict: bool=False -> "
                     "values: list[int], *, strict: bool=True"),
        ("condition", "for v in values if v < LIMIT and (not strict) -> "
                      "for v in values if not (v < LIMIT and (not strict))"),
        ("and/or", "for v in values if v < LIMIT and (not strict) -> "
                   "for v in values if v < LIMIT or not strict"),
        ("compare", "v < LIMIT and (not strict) -> v <= LIMIT and (not strict)"),
        ("condition", "v < LIMIT and (not strict) -> v < LIMIT and strict"),
        ("condition", "not kept -> kept"),
        ("delete", "raise ValueError(f'none of {len(values) + 1}') -> pass"),
        ("delete", "kept.sort() -> pass"),
        ("return", "return kept[1:] -> return None"),
        ("slice", "kept[1:] -> kept[1 + 1:]"),
        ("constant", "1: -> 2:"),
    ]  # fmt: skip


def test_each_change_is_one_and_runs(mutants: list[Mutant]) -> None:
    texts = {ast.unparse(mutated(SOURCE, mutant.index)) for mutant in mutants}
    assert ast.unparse(ast.parse(SOURCE)) not in texts
    assert len(texts) == len(mutants)
    for text in texts:
        compile(text, "example.py", "exec")


def test_a_sample_stays_when_lines_move(mutants: list[Mutant], tmp_path: Path) -> None:
    drawn = draw(mutants, 5, seed=3)
    assert len(drawn) == 5
    assert draw(mutants, 5, seed=4) != drawn
    moved = tmp_path / "example.py"
    moved.write_text(SOURCE.replace("LIMIT = 3", "# why\n\n\nLIMIT = 3"), encoding="utf-8")
    again = draw(mutants_of(moved, Path("example.py")), 5, seed=3)
    assert [m.key for m in again] == [m.key for m in drawn]
    assert [m.line for m in again] == [m.line + 3 for m in drawn]


def test_a_mutant_meets_the_tests_of_its_line_the_short_ones_first() -> None:
    recorded = LineMap(
        hashes={},
        seconds={"a.py::slow": 9.0, "a.py::fast": 1.0, "test_example.py::own": 2.0, "b.py::c": 1.0},
        lines={
            "a.py::slow": {"example.py": [4, 5]},
            "a.py::fast": {"example.py": [5]},
            "test_example.py::own": {"example.py": [5]},
            "b.py::c": {"example.py": [6]},
        },
    )
    mutant = Mutant(Path("example.py"), 0, 5, (5,), (), "f", "compare", "")
    chooser = Chooser(recorded)
    own = ["test_example.py::own"]
    assert chooser.batches(mutant, 60) == [own, ["a.py::fast", "a.py::slow"]]
    assert chooser.batches(mutant, 4) == [own, ["a.py::fast"]]
    assert chooser.batches(Mutant(Path("example.py"), 0, 9, (9,), (), "f", "", ""), 60) == []
