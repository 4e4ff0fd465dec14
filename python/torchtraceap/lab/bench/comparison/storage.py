"""Storage of pairs, traces and verdicts of comparisons, to resume them or to look them up.

Note [Kept comparisons]: a comparison has a folder under `comparisons/` of the store, named by what
it compares: the words or commits of both sides, the contents of files that its commands name, looks
and seed. Pairs are written as they come. The verdict comes last, and a folder that has one is left
as it is: the next comparison of the same takes a new folder, so old times never mix with new ones.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.core.writing import naming, write_text
from torchtraceap.lab.bench.comparison.sides import ProgramSide, key_of

if TYPE_CHECKING:
    from torchtraceap.core.results import Result

__all__ = ["PAIRS", "keep", "make_folder", "parent_folder"]

PAIRS = "pairs.jsonl"
_VERDICT = "comparison.json"


@contextmanager
def parent_folder(store: str | None) -> Iterator[Path]:
    """Yield the folder of comparisons of a store; without a store, a temporary folder."""
    if store is not None:
        yield Path(store) / "comparisons"
        return
    with tempfile.TemporaryDirectory(prefix="ttap-compare-") as folder:
        yield Path(folder)


def make_folder(
    parent: Path, side_a: ProgramSide, side_b: ProgramSide, settings: Sequence[Any]
) -> Path:
    """Make and return the folder of an undecided comparison, which also takes its traces.

    Raises:
        OutputError: It can't be made.
    """
    key = key_of(side_a, side_b, settings)
    names = (key if number == 1 else f"{key}-{number}" for number in count(1))
    folder = next(each for each in map(parent.joinpath, names) if not (each / _VERDICT).exists())
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    side_a.target, side_b.target = folder / "before.json.gz", folder / "after.json.gz"
    return folder


def keep(folder: Path, result: Result) -> None:
    """Write the verdict of a decided comparison.

    Raises:
        OutputError: It can't be written.
    """
    write_text(folder / _VERDICT, json.dumps(result.to_dict(), allow_nan=False) + "\n")
