"""Edits of work that somebody names, several at once, and how much of a step hangs on what."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fix_programs import NCCL, FlawedProgram

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits.base import default_edits, make_edit

WriteTrace = Callable[..., Path]
GEMM = "void cutlass::Kernel2<gemm_tn>(Params)"
SOFTMAX = "void softmax_forward<float, 4>(float*)"


def training(p: FlawedProgram) -> None:
    """The GPU takes 30 + 10 + 8 ms of 54, and the host waits for it; 6 ms are a validation."""
    with p.range("aten::mm"):
        p.launch(GEMM, 30_000)
    with p.range("aten::softmax"):
        p.launch(SOFTMAX, 10_000)
    with p.range("aten::mm"):
        p.launch("reduce_splitk", 8_000)
    p.synchronize()
    with p.range("validation", "user_annotation"):
        p.work(3_000)
        with p.range("aten::argmax"):
            p.launch("argmax", 3_000)
        p.synchronize()


@pytest.fixture
def trace(write_trace: WriteTrace) -> ttap.Trace:
    program = FlawedProgram()
    for number in range(5):
        with program.step(number + 5):
            training(program)
    return ttap.load(write_trace(program.document()))


@pytest.mark.parametrize(
    ("edit", "saved_us"),
    [
        (f"kernel={GEMM}:0.5", 15_000),  # the whole name
        ("kernel=gemm_tn:0.5", 15_000),  # a part of it
        ("kernel=GEMM_TN:0", 30_000),
        ("kernel=softmax:0.1", 9_000),
        ("operator=aten::mm:0.5", 19_000),
        ("operator=aten::softmax:0.5", 5_000),
        ("stream=7:0.5", 25_500),
        ("kernel=softmax:1.5", -5_000),
        ("remove=validation", 6_000),
        ("remove=aten::argmax", 3_000),
    ],
)
def test_a_named_part_saves_what_it_took(trace: ttap.Trace, edit: str, saved_us: float) -> None:
    simulation = trace.simulate([edit])
    (outcome,) = simulation.edits
    assert outcome.predicted_ns is not None, outcome.note
    assert simulation.measured_ns - outcome.predicted_ns == pytest.approx(1e3 * saved_us, rel=0.02)


def test_a_family_is_that_of_the_kernels_table(trace: ttap.Trace) -> None:
    (outcome,) = trace.simulate(["family=gemm:0.5"]).edits
    measured = trace.simulate(["family=gemm:1"]).measured_ns
    assert outcome.predicted_ns is not None
    # Both kernels of the products: 30 and 8 ms.
    assert measured - outcome.predicted_ns == pytest.approx(19e6, rel=0.02)


def test_several_at_once_are_replayed_together(trace: ttap.Trace) -> None:
    edits = ["kernel=gemm_tn:0.5", "remove=validation", "kernel=softmax:0.5"]
    simulation = trace.simulate(edits)
    together = simulation.together()
    assert together.edit == " + ".join(edits)
    assert together.predicted_ns is not None
    assert simulation.measured_ns - together.predicted_ns == pytest.approx(26e6, rel=0.02)
    # Half of a half is a quarter.
    twice = trace.simulate(["kernel=gemm_tn:0.5", "operator=aten::mm:0.5"]).together()
    assert twice.predicted_ns is not None
    assert simulation.measured_ns - twice.predicted_ns == pytest.approx(26.5e6, rel=0.02)


def test_work_that_hides_behind_the_host_saves_nothing(write_trace: WriteTrace) -> None:
    program = FlawedProgram()
    for number in range(5):
        with program.step(number + 5), program.range("aten::mm"):
            program.launch("gemm", 5_000)
            program.work(30_000)
    simulation = ttap.load(write_trace(program.document())).simulate(["kernel=gemm:0.1"])
    (outcome,) = simulation.edits
    assert outcome.predicted_ns == simulation.measured_ns
    (row,) = simulation.shares("kernel").records()
    assert row["gpu_share"] == 1.0 and row["shorter_share"] == row["longer_share"] == 0.0


def test_collectives_keep_their_times(write_trace: WriteTrace) -> None:
    program = FlawedProgram()
    for number in range(5):
        with program.step(number + 5):
            program.launch("gemm", 5_000)
            program.launch(NCCL, 5_000, stream=9)
            program.synchronize()
    trace = ttap.load(write_trace(program.document()))
    for edit in ("kernel=ncclDevKernel:0.5", "stream=9:0.5"):
        (outcome,) = trace.simulate([edit]).edits
        assert outcome.predicted_ns is None and "collectives" in outcome.note


@pytest.mark.parametrize(
    "edit",
    ["kernel", "kernel=", "kernel=gemm", "kernel=gemm:", "kernel=gemm:-1", "kernel=gemm:nan",
     "kernel=gemm:inf", "kernel=:0.5", "family=gemm:half", "stream=seven:0.5", "remove", "remove="],
)  # fmt: skip
def test_edits_without_sense_get_words(edit: str) -> None:
    with pytest.raises(OptionError, match=edit.partition("=")[0]):
        make_edit(edit)


def test_what_is_not_there_is_said(trace: ttap.Trace) -> None:
    names = ["kernel=conv:0.5", "operator=aten::conv2d:0.5", "stream=8:0.5", "family=attention:1",
             "remove=checkpoint"]  # fmt: skip
    for outcome in trace.simulate(names).edits:
        assert outcome.predicted_ns is None
        assert outcome.edit.partition("=")[2].rpartition(":")[0] in outcome.note
    assert not any(name.partition("=")[0] in ("kernel", "remove") for name in default_edits())


@pytest.mark.parametrize("by", ["kernel", "operator", "family"])
def test_shares_say_what_the_step_hangs_on(trace: ttap.Trace, by: str) -> None:
    simulation = trace.simulate([])
    rows = simulation.shares(by).records()
    step = simulation.measured_ns
    assert sum(row["gpu_share"] for row in rows) == pytest.approx(1.0)
    for row in rows:
        # The host waits for all of it: the step follows each by its share.
        own = row["gpu_ns"] / 5 / step
        assert row["shorter_share"] == pytest.approx(own, rel=0.03)
        assert row["longer_share"] == pytest.approx(own, rel=0.03)
    shares = [row["shorter_share"] for row in rows]
    assert shares == sorted(shares, reverse=True)
    with pytest.raises(OptionError, match="kernel, operator, family"):
        simulation.shares("color")


def test_the_command(write_trace: WriteTrace, capsys: pytest.CaptureFixture[str]) -> None:
    program = FlawedProgram()
    for number in range(5):
        with program.step(number + 5):
            training(program)
    path = str(write_trace(program.document()))
    edits = ["--edit", "kernel=gemm_tn:0.5", "--edit", "remove=validation"]
    assert main(["simulate", path, *edits, "--together", "--shares", "operator", "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["together"]["edit"] == "kernel=gemm_tn:0.5 + remove=validation"
    assert len(document["edits"]) == 2
    assert document["shares"]["columns"][0] == "operator"
    assert main(["simulate", path, *edits, "--together", "--shares", "kernel"]) == 0
    printed = capsys.readouterr().out
    assert "kernel=gemm_tn:0.5 + remove=validation" in printed and "softmax" in printed
    assert main(["simulate", path, "--edit", "kernel=conv:0.5", "--together", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["together"] is None and "conv" in document["edits"][0]["note"]
