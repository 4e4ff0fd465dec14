"""Batches in predictions: torch's loader, its workers, copies of the inputs to the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap.core.dtypes import parse_dtype
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import Capture, TensorInfo
from torchtraceap.lab.prediction.lowering.host import HostModel
from torchtraceap.lab.prediction.lowering.loop import Loading, with_loading
from torchtraceap.lab.prediction.lowering.lower import lower
from torchtraceap.lab.prediction.lowering.step import LoweredStep
from torchtraceap.lab.prediction.timeline import schedule_steps, with_steady_loader
from torchtraceap.ops.devices import device_named

GPU = "A100 SXM 40GB"


def loaded(loading: Loading, size: int = 38_535_168) -> LoweredStep:
    """Nothing but the loop around a step with one input of so many floats."""
    dtype = parse_dtype("float32")
    assert dtype is not None
    tensor = TensorInfo((size,), dtype, (1,), 1)
    capture, device = Capture((), inputs=(tensor,)), device_named(GPU)
    host = HostModel(device)
    return with_loading(lower(capture, device, host=host), capture, loading, host, device)


def held_ns(loading: Loading, size: int = 38_535_168) -> int:
    """How long the copy holds the host."""
    (times,) = schedule_steps([loaded(loading, size)], count=1)
    return int(times.wait_end[0, 0] - times.launch_begin[0, 0])


def test_a_copy_holds_the_host_unless_it_is_pinned() -> None:
    # pytorch/benchmark's pair of traces: 32.3 ms and 5 us for 154 MB on an A100
    assert 32.3e6 / 2 < held_ns(Loading()) < 32.3e6 * 2
    assert 2_500 < held_ns(Loading("pinned")) < 10_000
    assert held_ns(Loading(), 1_024) < 20_000


def length_ns(loading: Loading) -> int:
    (times,) = schedule_steps(with_steady_loader([loaded(loading)]), count=4)
    return times.step_length_ns()


def test_the_slower_of_loader_and_step_decides() -> None:
    alone = length_ns(Loading("pinned"))
    assert length_ns(Loading("pinned", 1e9, 4)) == 250_000_000
    assert length_ns(Loading("pinned", 1e9, 10)) == 100_000_000
    in_time = length_ns(Loading("pinned", alone * 0.9, 1))
    assert alone <= in_time < alone + 1e6
    without_workers = length_ns(Loading("pinned", 50e6))
    assert without_workers - 50e6 < alone


def test_batches_that_come_in_time_are_not_waited_for() -> None:
    step = loaded(Loading("pageable", 30e6, 2))
    (times,) = schedule_steps(with_steady_loader([step]), count=3)
    assert times.fetch_begin is not None and times.fetch_end is not None
    fetch = step.loop.fetch
    assert fetch is not None
    assert np.abs(times.fetch_end - times.fetch_begin - fetch.host_ns).max() <= 1


def test_what_makes_no_sense_is_refused() -> None:
    for options in ({"memory": "disk"}, {"batch_ns": float("nan")}, {"workers": -1}):
        with pytest.raises(OptionError):
            Loading(**options)
    device = device_named(GPU)
    host = HostModel(device)
    nothing = Capture(())
    with pytest.raises(OptionError, match="inputs"):
        with_loading(lower(nothing, device), nothing, Loading(), host, device)


# --------------------------------------------------------------------------- whole predictions

torch = pytest.importorskip("torch", reason="a prediction runs the model")


def training() -> dict[str, Any]:
    return {
        "model": torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]),
        "inputs": (torch.randn(8192, 2048),),
        "loss": lambda out: out.square().mean(),
        "optimizer": torch.optim.SGD,
    }


def predicted(loading: Loading | None, **options: Any) -> ttap.Prediction:
    return ttap.predict(training, device="H100-SXM", loading=loading, **options)


def rules(found: ttap.Prediction) -> set[str]:
    return {each["type"] for each in found.diagnose().to_dict()["findings"]}


def test_a_loader_that_is_too_slow_is_seen_in_the_trace() -> None:
    free = predicted(None)
    slow = predicted(Loading("pinned", 40.0 * free.step.predicted_ns, 10))
    assert slow.step.predicted_ns == pytest.approx(4 * free.step.predicted_ns, rel=0.02)
    assert slow.bound_by == "data"
    assert "worker_starvation" in rules(slow)
    alone = predicted(Loading("pinned", 3.0 * free.step.predicted_ns))
    assert alone.bound_by == "data"
    assert "single_process_data_loading" in rules(alone)
    summary = alone.trace.summary()
    assert summary.step is not None
    assert summary.step.measured_ns == alone.step.predicted_ns
    assert summary.step.measured_ns == pytest.approx(summary.step.median_ns, rel=0.01)


def test_pageable_inputs_are_seen_in_the_trace() -> None:
    pageable, pinned = predicted(Loading("pageable")), predicted(Loading("pinned"))
    size = 4 * 8192 * 2048
    assert pageable.sequence[0] == pinned.sequence[0] == "aten::copy_"
    assert pageable.step.predicted_ns > pinned.step.predicted_ns > 0
    assert pageable.gpu.memcpy_ns == pytest.approx(size / 6, rel=0.02)  # 6 GB/s, docs/durations.md
    assert "no_memory_pin" in rules(pageable) - rules(pinned)
    assert "aten::to" in pageable.trace.ranks[0].table.strings


def test_a_loader_that_keeps_up_costs_next_to_nothing() -> None:
    free = predicted(None)
    kept = predicted(Loading("pinned", free.step.predicted_ns, 4), steps=2)
    copied = kept.gpu.memcpy_ns
    assert kept.step.predicted_ns - copied == pytest.approx(free.step.predicted_ns, rel=0.02)
    assert kept.bound_by == free.bound_by == "gpu"
    assert not {"worker_starvation", "single_process_data_loading"} & rules(kept)


def test_idle_workers_change_nothing() -> None:
    """Whatever they are and make in time, for a step that the GPU decides."""
    alone = predicted(Loading("pinned"))
    step_ns, rng = alone.unprofiled.predicted_ns, np.random.default_rng(3)
    for share, workers in zip(
        rng.uniform(0.0, 0.9, 4), (1, 4, *rng.integers(2, 64, 2).tolist()), strict=True
    ):
        idle = predicted(Loading("pinned", share * step_ns * workers, int(workers)))
        for name in ("step", "unprofiled", "gpu", "bound_by"):
            assert getattr(idle, name) == getattr(alone, name), (share, workers, name)


def test_workers_of_a_host_bound_step_cost_what_taking_a_batch_does() -> None:
    def small(loading: Loading) -> ttap.Prediction:
        return ttap.predict(training, device="H100-SXM", batch=8, loading=loading)

    alone, few, many = (small(Loading("pinned", 0.0, count)) for count in (0, 2, 16))
    assert alone.bound_by == few.bound_by == "host"
    assert few.step == many.step and few.unprofiled == many.unprofiled
    taken = few.host_ns - alone.host_ns
    assert few.step.predicted_ns - alone.step.predicted_ns == pytest.approx(taken, abs=2)


def test_of_a_recorded_step_the_inputs_are_not_known(tmp_path: Any) -> None:
    (path,) = predicted(None).write_trace(tmp_path / "recorded.json.gz")
    with pytest.raises(OptionError, match="not known"):
        ttap.predict(path, device="H100-SXM", loading=Loading())
