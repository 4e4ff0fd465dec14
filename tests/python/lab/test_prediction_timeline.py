"""Steps laid out in time: launches, streams, queues, waits, ranks that meet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from torchtraceap.core.dtypes import DTYPES
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import Call, Collective, Phase
from torchtraceap.lab.prediction.lowering.step import (
    GpuWork,
    HostTime,
    LaunchingOp,
    LoweredCall,
    LoweredOp,
    LoweredStep,
    OpTime,
    WorkKind,
)
from torchtraceap.lab.prediction.timeline import (
    StepSchedule,
    schedule_steps,
    stream_waits,
)
from torchtraceap.ops.durations import Estimate

FLOAT = next(dtype for dtype in DTYPES if dtype.name == "float32")
HOST = HostTime(before=1_000.0, to_launch=2_000.0, launches=(4_000.0,), after=500.0)
LAUNCH_NS = 7_500
"""What the host takes for each of these calls."""


def call(name: str = "aten::relu", **more: object) -> Call:
    plain = Call(name, "default", {}, (), Phase.FORWARD, ())
    return replace(plain, **more)  # type: ignore[arg-type]


def launching(ns: float, host: HostTime = HOST, **more: object) -> LoweredCall:
    """A call with one kernel."""
    made = call(**more)  # type: ignore[arg-type]
    estimate = Estimate(ns, ns, ns, "given")
    lane = made.stream if made.collective is None else made.collective.group_name
    work = GpuWork("kernel", WorkKind.KERNEL, estimate, collective=made.collective, lane=lane)
    op = LaunchingOp(made.name, (), (), Phase.FORWARD, (), 0)
    return LoweredCall(made, (LoweredOp(op, (work,), OpTime(estimate, True)),), host)


def collective(number: int, group: tuple[int, ...] = (0, 1), **more: object) -> Collective:
    plain = Collective("allreduce", group, "default_pg", 8, 8, FLOAT, number)
    return replace(plain, **more)  # type: ignore[arg-type]


def test_a_slow_gpu_decides_the_step() -> None:
    step = LoweredStep(tuple(launching(100_000.0) for _ in range(4)))
    (times,) = schedule_steps([step])
    assert times.work_end.shape == (3, 4)
    # 1 us between pieces of work on a busy stream
    assert times.step_length_ns() == 4 * 101_000
    assert (np.diff(times.step_end) < times.step_length_ns()).all()  # the host is ahead


def test_a_slow_host_decides_the_step() -> None:
    step = LoweredStep(tuple(launching(1_000.0) for _ in range(4)))
    (times,) = schedule_steps([step])
    assert times.step_length_ns() == 4 * LAUNCH_NS + 20_000  # and what is between steps
    assert (times.work_begin - times.launch_end == 3_000).all()


def test_host_times_are_scaled() -> None:
    step = LoweredStep(tuple(launching(1_000.0) for _ in range(4)))
    (times,) = schedule_steps([step], host_factor=2.0)
    assert times.step_length_ns() == 2 * (4 * LAUNCH_NS + 20_000)


def test_times_of_work_may_be_others() -> None:
    step = LoweredStep((launching(1_000.0), launching(1_000.0)))
    (times,) = schedule_steps([step], gpu_ns=[np.array([300_000, 5_000])])
    assert (times.work_end - times.work_begin).tolist() == [[300_000, 5_000]] * 3


def test_a_full_queue_holds_the_host_up() -> None:
    step = LoweredStep(tuple(launching(50_000.0) for _ in range(2_000)))
    (times,) = schedule_steps([step], count=1)
    ahead = times.work_begin[0, :-1_021] - times.launch_end[0, 1_021:]
    assert ahead.max() <= 0  # so many launches later the work has begun
    assert times.launch_end[0, 500] - times.launch_begin[0, 500] == 4_000
    assert times.launch_end[0, 1_900] - times.launch_begin[0, 1_900] > 4_000


def test_the_host_waits_for_what_it_reads() -> None:
    step = LoweredStep((launching(500_000.0), launching(2_000.0, name="aten::_local_scalar_dense")))
    (times,) = schedule_steps([step], count=2)
    assert (times.wait_end[:, 1] > times.work_end[:, 1]).all()
    assert (times.wait_end[:, 0] == times.launch_end[:, 0]).all()
    assert (times.step_end > times.work_end.max(axis=1)).all()


def test_a_collective_runs_beside_what_comes_after_it() -> None:
    step = LoweredStep(
        (
            launching(100_000.0),
            launching(300_000.0, collective=collective(1)),
            launching(200_000.0),
            launching(50_000.0, waits_for=1),
        )
    )
    (times,) = schedule_steps([step], kind_of_rank=(0, 0), count=1)
    first, sent, beside, last = zip(times.work_begin[0], times.work_end[0], strict=True)
    assert sent[0] >= first[1]
    assert beside[0] < sent[1]
    assert last[0] >= max(sent[1], beside[1])


def test_streams_wait_for_calls_that_they_are_told_of() -> None:
    step = LoweredStep(
        (
            launching(10_000.0),
            launching(10_000.0, stream="copy"),
            launching(10_000.0, after=(1,)),
            launching(10_000.0, stream="copy", after=(-1,)),
        )
    )
    # the last waits for the last of the step before; what is first on a stream for nothing
    assert stream_waits(step) == [(1, 2), (-1, 3)]


def test_a_wait_at_the_end_holds_up_the_next_step() -> None:
    step = LoweredStep(
        (
            launching(10_000.0),
            launching(10_000.0, collective=collective(1)),
            LoweredCall(call("aten::view", waits_for=1), (), HostTime(1_000.0, 1_000.0)),
        )
    )
    assert stream_waits(step) == [(0, 1), (1, 2)]


def stage(number: int, way: str) -> LoweredStep:
    """Of a pipeline of two: computes, and sends or receives."""
    meets = collective(1, (0, 1), kind=way, peer=1 - number)
    parts = [launching(100_000.0), launching(20_000.0, collective=meets)]
    return LoweredStep(tuple(parts if way == "send" else reversed(parts)))


def test_ranks_of_two_kinds_meet() -> None:
    first, second = schedule_steps([stage(0, "send"), stage(1, "recv")], (0, 1), count=1)
    sent, received = first.work_end[0, 1], second.work_end[0, 0]
    assert sent == received
    assert sent >= first.work_end[0, 0] + 20_000  # once the sender has computed


def test_what_is_sent_has_to_be_received() -> None:
    with pytest.raises(OptionError, match="1 of 2 sides"):
        schedule_steps([stage(0, "send"), LoweredStep((launching(1_000.0),))], (0, 1))


def test_a_step_is_needed() -> None:
    with pytest.raises(OptionError, match="at least one step"):
        schedule_steps([LoweredStep((launching(1_000.0),))], count=0)


def test_a_schedule_is_replayed_with_other_times() -> None:
    """Each replay is what a schedule of its own would be, meetings and slow ranks included."""
    steps = [replace(stage(0, "send"), slowdown=(1.5, 2.0)), stage(1, "recv")]
    once = StepSchedule(steps, (0, 1), count=3)
    for host, sent_ns in ((1.0, 20_000), (3.0, 700_000), (0.5, 1)):
        gpu_ns = [np.array([50_000, sent_ns]), np.array([10, 9_000])]
        again = once.replay(gpu_ns, host)
        # As if the estimates had been these.
        lengths = iter([50_000, sent_ns, 10, 9_000])
        own = [
            replace(
                step,
                calls=tuple(
                    launching(
                        next(lengths),
                        replace(
                            HOST,
                            before=HOST.before * host,
                            to_launch=HOST.to_launch * host,
                            launches=(HOST.launches[0] * host,),
                            after=HOST.after * host,
                        ),
                        collective=each.call.collective,
                    )
                    for each in step.calls
                ),
                loop=replace(step.loop, between_ns=step.loop.between_ns * host),
            )
            for step in steps
        ]
        for found, expected in zip(again, schedule_steps(own, (0, 1)), strict=True):
            assert found.work_end.tolist() == expected.work_end.tolist()
            assert found.step_end.tolist() == expected.step_end.tolist()
