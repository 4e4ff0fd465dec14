"""TraceLens's comparison of the two qwen_inference traces (H100 first, then MI300X) with ours.

A row that the baseline lacks has no place in an order by the baseline's sums: such rows are
compared as a set, as rows of equal sums are.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

import torchtraceap as ttap
from torchtraceap.compat.tracelens import tracelens_sheets
from torchtraceap.compat.tracelens.compare import compare_sheets
from torchtraceap.compat.tracelens.sheets import Sheet

from .conftest import CORPUS
from .tracelens_reference import differences

FOLDER = "tracelens/compare_h100_mi300_qwen_reference"


def reference_files() -> list[str]:
    return [str(path.relative_to(CORPUS)) for path in sorted((CORPUS / FOLDER).glob("*.csv"))]


@lru_cache(maxsize=1)
def compared(folder: Path) -> dict[str, Sheet]:
    names = ("h100", "mi300")
    traces = [ttap.load(folder / name / "qwen_inference.json.gz") for name in names]
    return compare_sheets([tracelens_sheets(trace.ranks[0]) for trace in traces], names)


@pytest.mark.parametrize("corpus_file", reference_files(), indirect=True)
def test_sheet(corpus_file: Path) -> None:
    sheets = compared(corpus_file.parent.parent)
    found = list(differences(sheets[corpus_file.stem], corpus_file, None))
    assert not found, "\n".join(found[:10])


def test_no_other_sheet(corpus: Path) -> None:
    if not (corpus / FOLDER).is_dir():
        pytest.skip(f"{FOLDER} is not in this corpus")
    assert set(compared(corpus / "tracelens")) == {Path(f).stem for f in reference_files()}
