"""Every table of TraceLens (commit 171dd747) beside a trace of the corpus against ours.

`ex_UID` is a place in `traceEvents` there and a row number here: both must name the same event.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.compat.tracelens import tracelens_sheets
from torchtraceap.compat.tracelens.sheets import Sheet

from .conftest import CORPUS
from .tracelens_reference import differences

_RECOMPUTE = "_reference_detect_recompute"


def reference_files() -> list[str]:
    files = sorted(CORPUS.rglob("*_reference*/*.csv"))
    return [
        str(path.relative_to(CORPUS))
        for path in files
        if not path.parent.name.startswith(("compare_", "tracediff_"))
    ]


def trace_of(folder: Path) -> Path:
    stem = folder.name.removesuffix(_RECOMPUTE).removesuffix("_reference")
    return folder.parent / f"{stem}.json.gz"


@lru_cache(maxsize=2)
def sheets_of(folder: Path) -> tuple[dict[str, Sheet], Callable[[int, int], bool]]:
    """Our sheets, and whether one of our rows is the event at a place of theirs."""
    path = trace_of(folder)
    trace = ttap.load(path)
    part = trace.ranks[0]
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]

    def same_event(row: Any, place: Any) -> bool:
        if place >= len(events):  # their synthetic operators stand behind the trace's events
            return True
        ours, theirs = trace.event(row), events[place]
        return all(ours.get(key) == theirs.get(key) for key in ("name", "ts", "dur", "pid", "tid"))

    sheets = tracelens_sheets(part, detect_recompute=folder.name.endswith(_RECOMPUTE))
    return sheets, same_event


@pytest.mark.parametrize("corpus_file", reference_files(), indirect=True)
def test_sheet(corpus_file: Path) -> None:
    sheets, same_event = sheets_of(corpus_file.parent)
    assert corpus_file.stem in sheets
    found = list(differences(sheets[corpus_file.stem], corpus_file, same_event))
    assert not found, "\n".join(found[:10])
