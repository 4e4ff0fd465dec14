"""Hand-made traces of a few events and the documents that they give.

`python tests/golden/test_golden.py` rewrites expected.json; read the difference before you keep it.
"""

from __future__ import annotations

import json
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
    assert all((HERE / case / "README").read_text().strip() for case in CASES)


if __name__ == "__main__":
    for name in CASES:
        text = json.dumps(documents(name), indent=1) + "\n"
        (HERE / name / "expected.json").write_text(text)
