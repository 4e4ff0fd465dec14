"""Hand-made traces of a few events and the documents that they give.

`python tests/golden/test_golden.py` rewrites expected.json; read the difference before you keep it.
What a case's README works out by hand from its events holds whatever stands there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap

HERE = Path(__file__).parent
CASES = sorted(path.parent.name for path in HERE.glob("*/trace.json"))


def documents(case: str) -> dict[str, Any]:
    """Summary and diagnosis without what differs from place to place or is prose."""
    trace = ttap.load(HERE / case / "trace.json")
    summary = trace.summary().to_dict()
    diagnosis = trace.diagnose(windows=50).to_dict()
    for file in summary["files"]:
        file["path"] = Path(file["path"]).name
    prose = ("title", "why", "fix", "code", "doc_url")
    for finding in diagnosis["findings"]:
        for key in prose:
            finding.pop(key, None)
        if finding["saving"]:
            del finding["saving"]["note"]
    keep = ("schema", "profiled_ns", "verdicts", "findings", "abstained", "scorer")
    documents = {"summary": summary, "diagnosis": {key: diagnosis[key] for key in keep}}
    plain: dict[str, Any] = json.loads(json.dumps(documents))
    return plain


@pytest.mark.parametrize("case", CASES)
def test_documents(case: str) -> None:
    expected = json.loads((HERE / case / "expected.json").read_text())
    assert documents(case) == expected


def test_every_case_says_what_it_is() -> None:
    assert CASES
    assert all((HERE / case / "README").read_text().partition("\n")[0] for case in CASES)


def by_hand(case: str) -> dict[str, int]:
    """The numbers of the README: lines `    name = number: how it comes about`."""
    lines = re.findall(r"^    ([\w.]+) = (\d+): .+$", (HERE / case / "README").read_text(), re.M)
    return {name: int(number) for name, number in lines}


def measured(case: str, name: str) -> int:
    """The number of that name: of the timeline, `events.<which>`, `cost_ns.<finding>`, ..."""
    trace = ttap.load(HERE / case / "trace.json")
    summary, diagnosis = trace.summary().to_dict(), trace.diagnose().to_dict()
    what, _, which = name.partition(".")
    of_type = [finding for finding in diagnosis["findings"] if finding["type"] == which]
    numbers: dict[str, Callable[[], int]] = {
        "events": lambda: reduce(getitem, which.split("."), summary["events"]),
        "cost_ns": lambda: of_type[0]["cost_ns"],
        "evidence": lambda: of_type[0]["evidence_count"],
        "findings": lambda: len(diagnosis["findings"]),
        "steps": lambda: len(summary["steps"]),
        "unknown": lambda: [*diagnosis["verdicts"].values()].count("unknown"),
    }
    return numbers.get(what, lambda: summary["timeline"][name])()


@pytest.mark.parametrize("case", CASES)
def test_numbers_worked_out_by_hand(case: str) -> None:
    expected = by_hand(case)
    assert len(expected) >= 3, "the README works out three numbers from the events"
    assert {name: measured(case, name) for name in expected} == expected


if __name__ == "__main__":
    for name in CASES:
        text = json.dumps(documents(name), indent=1) + "\n"
        (HERE / name / "expected.json").write_text(text)
