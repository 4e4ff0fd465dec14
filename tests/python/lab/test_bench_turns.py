"""Two programs whose measured steps take turns."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from torchtraceap.lab.bench.comparison.pairs import Pairs
from torchtraceap.lab.bench.comparison.sides import ProgramSide, sides_can_take_turns, take_turns
from torchtraceap.lab.bench.processes.programs import ProgramError, run_program

STEPS = """
import json, sys, time
import torchtraceap as ttap
spans = []
for i in ttap.measured(range({count}), warmup={warmup}):
    began = time.perf_counter_ns()
    sum(number * number for number in range({work}))
    {more}
    spans.append((began, time.perf_counter_ns()))
open({target!r}, "w").write(json.dumps(spans))
"""


def program(
    folder: Path, name: str, *, count: int = 12, warmup: int = 2, work: int = 4000, more: str = ""
) -> ProgramSide:
    text = STEPS.format(
        count=count, warmup=warmup, work=work, more=more, target=str(folder / f"{name}.json")
    )
    script = folder / f"{name}.py"
    script.write_text(text, "utf-8")
    return ProgramSide(name, [sys.executable, str(script)], timeout_s=120)


def spans(folder: Path, name: str) -> np.ndarray:
    return np.array(json.loads((folder / f"{name}.json").read_text("utf-8")), np.int64)


def test_steps_take_turns_and_never_overlap(tmp_path: Path) -> None:
    a, b = program(tmp_path, "a"), program(tmp_path, "b", work=12_000)
    ratio, exchanges = take_turns(a, b, seed=3)
    assert exchanges == 10  # behind the warm-up
    assert ratio > np.log(1.5)  # three times the work
    both = np.concatenate([spans(tmp_path, "a"), spans(tmp_path, "b")])
    both = both[np.argsort(both[:, 0])]
    assert np.all(both[1:, 0] >= both[:-1, 1])
    sides = np.array([0] * 12 + [1] * 12)
    began = np.concatenate([spans(tmp_path, "a"), spans(tmp_path, "b")])[:, 0]
    order = sides[np.argsort(began)].reshape(-1, 2)
    assert np.all(order.sum(axis=1) == 1)  # each exchange has a step of both
    assert len({tuple(each) for each in order.tolist()}) == 2  # and either goes first at times


def test_the_longer_side_ends_alone(tmp_path: Path) -> None:
    a, b = program(tmp_path, "a", count=5, warmup=1), program(tmp_path, "b", count=9)
    _, exchanges = take_turns(a, b, seed=0)
    assert exchanges == 3  # of five, behind the longer warm-up
    assert a.last is not None and len(a.last.all_step_ns) == 5
    assert b.last is not None and len(b.last.all_step_ns) == 9


def test_a_side_that_fails_is_told(tmp_path: Path) -> None:
    a = program(tmp_path, "a")
    b = program(tmp_path, "b", more="if i == 4: sys.exit('lost')")
    with pytest.raises(ProgramError, match="lost"):
        take_turns(a, b, seed=0)


def test_a_program_without_steps_runs_alone(tmp_path: Path) -> None:
    a = program(tmp_path, "a")
    b = ProgramSide("b", [sys.executable, "-c", "pass"])
    assert not sides_can_take_turns(a, b)
    a.run()
    b.run()
    assert not sides_can_take_turns(a, b)
    with pytest.raises(ProgramError, match="could not take turns"):
        take_turns(a, b, seed=0)


def test_without_a_referee_the_loop_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHTRACEAP_TURNS", str(tmp_path / "nobody"))
    script = tmp_path / "program.py"
    script.write_text("import torchtraceap as ttap\nfor _ in ttap.measured(range(6)): pass\n")
    # `run_program` takes the variable away from programs that are measured by themselves.
    assert len(run_program([sys.executable, str(script)]).all_step_ns) == 6
    env = {"TORCHTRACEAP_TURNS": str(tmp_path / "nobody"), "TORCHTRACEAP_STEPS": None}
    assert run_program([sys.executable, str(script)], env=env).wall_ns > 0


def test_pairs_take_turns_once_both_sides_have_told_of_steps(tmp_path: Path) -> None:
    a, b = program(tmp_path, "a"), program(tmp_path, "b", work=8000)
    kept = tmp_path / "pairs.jsonl"
    ratios = Pairs(a, b, most=4, seed=1, kept=kept).until(2)
    again = Pairs(a, b, most=4, seed=1, kept=kept)
    assert again.resumed == 2
    assert again.until(2).tolist() == ratios.tolist()
    assert [pair.exchanges for pair in again.pairs] == [10, 10]
    assert np.all(ratios > 0)
