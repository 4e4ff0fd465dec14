"""`tools/fuzz`: what counts as a run, as a finding, and as a target that sees nothing."""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

import torchtraceap as ttap
from torchtraceap.errors import ParseError

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tools" / "fuzz"))
sys.path.append(str(ROOT / "tests" / "python" / "fuzz"))

import json_mutator  # noqa: E402
from count import Count, run_count  # noqa: E402
from runner import TARGETS, Fuzzer, FuzzError, Target  # noqa: E402

PROGRAM = """
import sys
print("#5 INITED cov: {coverage} ft: 9")
print("#90 DONE cov: {coverage} ft: 11")
if {fails}:
    print("Test unit written to /tmp/crash-1")
print("stat::number_of_executed_units: {runs}")
print([a for a in sys.argv if a.startswith("-")])
sys.exit({fails})
"""


@dataclass(frozen=True)
class Fake(Target):
    """A program that says what libFuzzer would say."""

    coverage: int = 5000
    fails: int = 0
    runs: int = 90

    def command(self, build: Path) -> list[str]:
        text = PROGRAM.format(coverage=self.coverage, fails=self.fails, runs=self.runs)
        return [sys.executable, "-c", text]


def fake(tmp_path: Path, name: str = "fake", share: float = 1.0, **given: int) -> Fuzzer:
    return Fuzzer(Fake(name, 100, share, tmp_path, **given), tmp_path / "build")


def test_runs_and_coverage(tmp_path: Path) -> None:
    outcome = fake(tmp_path).run(1, 7, [])
    assert (outcome.runs, outcome.coverage) == (90, 5000)
    options = (tmp_path / "build/fuzz/fake-0.log").read_text("utf-8")
    assert all(text in options for text in ("-seed=7", "-timeout=", "-rss_limit_mb=", "-max_len="))


def test_a_target_that_covers_only_itself_fails(tmp_path: Path) -> None:
    with pytest.raises(FuzzError, match="covers 40 edges, where at least 100") as failure:
        fake(tmp_path, coverage=40).run(1, 1, [])
    assert failure.value.artifact is None


def test_a_finding_says_how_to_repeat_it(tmp_path: Path) -> None:
    with pytest.raises(FuzzError, match=r"To repeat it:\n(.|\n)*crash-1") as failure:
        fake(tmp_path, fails=1).run(1, 1, [])
    assert failure.value.artifact == "/tmp/crash-1"


def test_a_count_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    path = tmp_path / "count.json"
    fuzzers = [fake(tmp_path, "a", 0.75), fake(tmp_path, "b", 0.25)]
    run_count(fuzzers, Count(path, 200), 1, [])
    assert json.loads(path.read_text("utf-8"))["totals"] == {"a": 180, "b": 90}
    run_count(fuzzers, Count(path, 400), 1, [])
    document = json.loads(path.read_text("utf-8"))
    assert document["totals"] == {"a": 360, "b": 180}
    assert sum(part["runs"] for part in document["slices"]) == 540
    assert document["findings"] == []


def test_a_finding_ends_a_count_and_stays_in_it(tmp_path: Path) -> None:
    path = tmp_path / "count.json"
    with pytest.raises(FuzzError):
        run_count([fake(tmp_path, fails=1)], Count(path, 100), 1, [])
    [finding] = json.loads(path.read_text("utf-8"))["findings"]
    assert (finding["target"], finding["input"]) == ("fake", "crash-1")


def test_the_shares_of_a_count_are_all_of_it() -> None:
    assert sum(target.share for target in TARGETS) == pytest.approx(1)
    assert all(any(target.seeds.iterdir()) for target in TARGETS)


def test_seeds_of_recordings_are_read_or_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from made_files import made_file

    path = tmp_path / "recording"
    refused = set()
    for seed in (ROOT / "tests/python/fuzz/recordings").iterdir():
        path.write_bytes(made_file(seed.read_bytes()))
        try:
            assert ttap.load(path).ranks[0].table
        except ParseError as error:
            assert "\n" not in str(error)
            refused.add(seed.name)
    assert refused == {"packed_other_types.json"}


def test_mutated_documents_share_nothing() -> None:
    before = deepcopy([json_mutator.VALUES, json_mutator.TENSOR])
    document = b'{"nodes": [[1, 2], []], "attrs": {}}'
    for seed in range(3000):
        document = json_mutator.mutate(document, 2000, Random(seed), lambda data, _: data)
    assert str([json_mutator.VALUES, json_mutator.TENSOR]) == str(before)
