"""Ranks wait for the slowest of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from test_prediction_timeline import HOST, call, collective, launching

from torchtraceap.lab.prediction.estimate import add_slowest_ranks, expected_maximum
from torchtraceap.lab.prediction.lowering.step import HostTime, LoweredCall, LoweredStep
from torchtraceap.lab.prediction.timeline import schedule_steps


def step_of(ranks: int, ns: float, host_ns: float = 4_000.0) -> LoweredStep:
    """Ten kernels, and a collective of 50 us that the first one of the next step waits for."""
    host = replace(HOST, launches=(host_ns,))
    meets = collective(10, tuple(range(ranks)))
    kernels = [launching(ns, host) for _ in range(10)]
    wait = LoweredCall(call("aten::view", waits_for=10), (), HostTime(1_000.0, 1_000.0))
    return LoweredStep((*kernels, launching(50_000.0, host, collective=meets), wait))


def length_ns(ranks: int, ns: float, host_ns: float = 4_000.0) -> tuple[int, int]:
    """Of the step, and of the collective on a usual rank."""
    steps, kinds = add_slowest_ranks([step_of(ranks, ns, host_ns)], (0,) * ranks)
    usual = schedule_steps(steps, kinds, count=3)[0]
    return usual.step_length_ns(), int(usual.work_end[-1, -1] - usual.work_begin[-1, -1])


def test_the_largest_of_many_draws() -> None:
    rng = np.random.default_rng(0)
    values = rng.lognormal(0.0, 0.05, 40).tolist()
    drawn = rng.choice(values, (20_000, 8)).max(axis=1).mean()
    assert expected_maximum(values, 8) == pytest.approx(drawn, rel=0.002)
    assert expected_maximum(values, 1) == pytest.approx(np.mean(values))
    assert expected_maximum(values, 0) == 1.0
    assert expected_maximum(values, 10_000) == pytest.approx(max(values))


@pytest.mark.parametrize("ns", [1_000_000.0, 2_000.0])
def test_more_ranks_wait_longer(ns: float) -> None:
    """Whether GPU or host decide the step."""
    alone = length_ns(1, ns)
    found = [length_ns(ranks, ns) for ranks in (2, 8, 64)]
    assert alone[1] == 50_000
    for less, more in pairwise([alone, *found]):
        assert more[0] > less[0] and more[1] > less[1]
    # what the slowest takes longer the usual one waits, whose host runs ahead meanwhile
    longer = found[-1][0] - alone[0]
    assert 0.95 * longer <= found[-1][1] - alone[1] <= 3 * longer
    assert longer < 0.3 * alone[0]


def test_hosts_vary_more_than_gpus() -> None:
    def longer(ns: float) -> float:
        return length_ns(8, ns, 400_000.0)[0] / length_ns(1, ns, 400_000.0)[0] - 1

    assert longer(2_000.0) > 4 * longer(5_000_000.0) > 0


def test_ranks_that_never_meet_do_not_wait() -> None:
    step = LoweredStep((launching(1_000.0),))
    assert add_slowest_ranks([step], (0, 0, 0)) == ([step], (0, 0, 0))
    shared = step_of(4, 1_000.0)
    steps, kinds = add_slowest_ranks([shared], (0,) * 4)
    assert kinds == (0, 1, 1, 1)
    assert steps[0] is shared
    # without two of a kind in the group there is nobody to wait for beside those that are known
    pair = step_of(1, 1_000.0)
    assert add_slowest_ranks([pair], (0, 0))[1] == (0, 0)


def stages(ranks: int) -> list[LoweredStep]:
    """Two stages of a pipeline with so many ranks each; each adds up gradients of its own."""
    found = []
    for number, way in enumerate(("send", "recv")):
        peer = ranks * (1 - number)
        talks = launching(20_000.0, collective=collective(1, (0, ranks), kind=way, peer=peer))
        own = tuple(range(number * ranks, (number + 1) * ranks))
        shares = launching(50_000.0, collective=collective(2, own))
        kernels = [launching(500_000.0), talks]
        found.append(LoweredStep((*(kernels if way == "send" else reversed(kernels)), shares)))
    return found


def test_the_slowest_of_stages_talk_to_each_other() -> None:
    steps, kinds = add_slowest_ranks(stages(4), (0,) * 4 + (1,) * 4)
    assert kinds == (0, 2, 2, 2, 1, 3, 3, 3)
    ranks = schedule_steps(steps, kinds, count=2)
    assert len(ranks) == 4
    assert (ranks[0].work_end[:, 1] == ranks[1].work_end[:, 0]).all()
    assert (ranks[2].work_end[:, 1] == ranks[3].work_end[:, 0]).all()
    assert (ranks[2].work_end[:, 1] > ranks[0].work_end[:, 1]).all()
    uneven = (0, 0, 0, 1, 1)
    assert add_slowest_ranks(stages(4), uneven)[1] == uneven
