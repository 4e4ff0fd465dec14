"""Labels of public traces, made in two passes: how they are joined, and that they stay."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from public_labels import ANY, PASSES, cohen_kappa, read_real_labels
from torchtraceap.core.results import PAPER_TYPES
from torchtraceap.errors import MissingFileError, SchemaError

ROOT = Path(__file__).parents[3]
BOUNDS = np.arange(0, 1_100, 100)


def a_pass(**spans: list[list[int]]) -> dict[str, Any]:
    absent = {"present": False, "certainty": "certain", "evidence": "", "intervals_ns": []}
    types = {name: dict(absent) for name in PAPER_TYPES}
    for name, intervals in spans.items():
        types[name] |= {"present": True, "intervals_ns": intervals}
    return {"first_event_ns": 7, "types": types}


def write(folder: Path, *passes: dict[str, Any]) -> Path:
    for name, labels in zip(PASSES, passes, strict=True):
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(labels).encode()))
    return folder


def test_windows_need_both_passes(tmp_path: Path) -> None:
    one = a_pass(cpu_bound=[[0, 150], [300, 310]])
    two = a_pass(cpu_bound=[[0, 250], [300, 305], [400, 401]])
    labels = read_real_labels(write(tmp_path, {"t": one}, {"t": two}))
    expected = [1, 1, -1, -1, 0, 0, 0, 0, 0, 0]
    assert labels.windows("t", BOUNDS + 50, 50, "cpu_bound").tolist() == expected
    assert labels.windows("t", BOUNDS, 0, "high_memcpy").tolist() == [0] * 10


def test_names_may_differ_where_any_fault_is_asked_for(tmp_path: Path) -> None:
    spans = [[200, 300]]
    labels = read_real_labels(
        write(tmp_path, {"t": a_pass(cpu_bound=spans)}, {"t": a_pass(high_memcpy=spans)})
    )
    assert labels.windows("t", BOUNDS, 0, ANY)[2] == 1
    assert labels.windows("t", BOUNDS, 0, "cpu_bound")[2] == -1
    assert labels.verdict("t", "cpu_bound") is None
    assert labels.verdict("t", "graph_break") is False


def test_what_is_doubtful_is_left_out(tmp_path: Path) -> None:
    one, two = a_pass(cpu_bound=[[0, 100]]), a_pass(cpu_bound=[[0, 100]])
    one["types"]["cpu_bound"]["certainty"] = "unsure"
    two["types"]["cpu_bound"]["ambiguous_ns"] = [[500, 600]]
    labels = read_real_labels(write(tmp_path, {"t": one}, {"t": two}))
    assert labels.windows("t", BOUNDS, 0, "cpu_bound").tolist() == [-1, *[0] * 4, -1, *[0] * 4]
    assert labels.verdict("t", "cpu_bound") is None


def test_kappa_is_that_of_a_worked_example() -> None:
    # 20 and 15 agreed of 50; one says yes 25 times, the other 30: (0.7 - 0.5) / (1 - 0.5).
    one = [True] * 20 + [True] * 5 + [False] * 10 + [False] * 15
    other = [True] * 20 + [False] * 5 + [True] * 10 + [False] * 15
    assert cohen_kappa(one, other) == pytest.approx(0.4)
    assert cohen_kappa([False] * 3, [False] * 3) is None


def test_damaged_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"first\.json\.gz"):
        read_real_labels(tmp_path)
    write(tmp_path, {"t": a_pass()}, {"u": a_pass()})
    with pytest.raises(SchemaError, match="different traces"):
        read_real_labels(tmp_path)
    (tmp_path / "second.json.gz").write_bytes(b"no gzip")
    with pytest.raises(SchemaError, match=r"second\.json\.gz"):
        read_real_labels(tmp_path)


def test_the_labels_are_those_that_the_documentation_names() -> None:
    """They were made before anything was trained, and must not follow what is found."""
    labels = read_real_labels(ROOT / "benchmarks/detectors/real_labels")
    assert labels.sha256 in (ROOT / "docs/evaluation.md").read_text("utf-8")
    assert len(labels.traces) == 59
