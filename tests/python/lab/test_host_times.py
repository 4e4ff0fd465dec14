"""Host times of captured calls, and what traces tell of them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import CORPUS

import torchtraceap as ttap
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import Call, Capture, Phase
from torchtraceap.lab.prediction.lowering import recorded_host
from torchtraceap.lab.prediction.lowering.host import HostModel, HostTimes
from torchtraceap.lab.prediction.lowering.loop import step_parts
from torchtraceap.lab.prediction.lowering.recorded_host import (
    RecordedCalls,
    call_contexts,
    call_name,
    probe,
    recorded_calls,
)
from torchtraceap.lab.prediction.lowering.step import HostTime
from torchtraceap.ops.devices import device_named

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "prediction"))
from host_data import recorded_parts


def call(name: str, modules: tuple[str, ...] = (), phase: Phase = Phase.FORWARD) -> Call:
    return Call(f"aten::{name}", "default", {}, (), phase, modules, name in ("view", "t"))


LINEAR = ("Model", "Linear")
STEP = (
    call("t", LINEAR),
    call("addmm", LINEAR),
    call("relu", ("Model", "ReLU")),
    replace(call("threshold_backward", phase=Phase.BACKWARD), node="ReluBackward0", sequence=1),
    replace(call("t", phase=Phase.BACKWARD), node="AddmmBackward0", sequence=0),
    replace(call("mm", phase=Phase.BACKWARD), node="AddmmBackward0", sequence=0),
    call("_foreach_add_", phase=Phase.OPTIMIZER),
)
LAUNCHES = (0, 1, 1, 1, 0, 1, 2)


def whole(time: HostTime) -> float:
    gaps = time.between * max(len(time.launches) - 1, 0)
    return time.before + time.to_launch + sum(time.launches) + gaps + time.after


def test_every_call_has_times_and_as_many_launches_as_it_makes() -> None:
    times = HostModel().times(Capture(STEP), LAUNCHES)
    assert tuple(len(time.launches) for time in times.calls) == LAUNCHES
    assert times.calls[0].before == 0
    assert all(time.before > 0 for time in times.calls[1:])
    assert all(time.to_launch > 0 for time in times.calls)
    assert all((time.after > 0) == bool(time.launches) for time in times.calls)
    assert times.calls[-1].between > 0 == times.calls[1].between
    assert times.total_ns == pytest.approx(sum(map(whole, times.calls)))
    assert 0 < times.range[0] < 1 < times.range[1]


def test_modules_and_nodes_take_time_between_calls() -> None:
    found = list(call_contexts(STEP))
    assert [each.crossing for each in found] == [
        "modules 2",
        "modules 0",
        "modules 2",
        "begin",
        "node",
        "same node",
        "begin",
    ]
    times = HostModel().times(Capture(STEP), LAUNCHES).calls
    assert times[2].before > times[1].before
    assert times[4].before > times[5].before


def test_an_unknown_operator_takes_what_its_family_takes() -> None:
    known, unknown = (
        HostModel().times(Capture((call("addmm"), call(name))), (1, 1)).calls[1]
        for name in ("mm", "never_seen")
    )
    assert unknown.to_launch > 0 and unknown.after > 0
    assert unknown.to_launch != known.to_launch


def test_foreach_operators_take_longer_for_more_tensors() -> None:
    def step(tensors: int, launches: int) -> HostTime:
        each = call("_foreach_add_", phase=Phase.OPTIMIZER)
        each = replace(each, inputs={"self": (None,) * tensors})
        return HostModel().times(Capture((call("mm"), each)), (1, launches)).calls[1]

    few, many = step(10, 1), step(300, 1)
    assert many.before > 3 * few.before and many.to_launch > 3 * few.to_launch
    assert many.after == few.after
    # counts of steps are updated on the host, one after the other
    on_host = step(300, 0)
    assert on_host.to_launch == pytest.approx(300 * step(1, 0).to_launch)
    assert on_host.to_launch > 100_000


def test_a_loop_of_one_operator_has_short_gaps() -> None:
    loop = [call(name, phase=Phase.OPTIMIZER) for name in ("zero_", "add_", "add_", "add_")]
    times = HostModel().times(Capture((call("mm"), *loop)), (1,) * 5).calls
    assert times[3].before == times[4].before < times[2].before


@pytest.mark.parametrize("launches", [(1,), (1,) * 8, (-1,) * 7])
def test_wrong_numbers_of_launches_are_refused(launches: tuple[int, ...]) -> None:
    with pytest.raises(OptionError, match="launch"):
        HostModel().times(Capture(STEP), launches)


def test_a_step_without_calls_takes_no_time() -> None:
    times: HostTimes = HostModel().times(Capture(()), ())
    assert times.total_ns == 0 and times.calls == ()


def recorded(factor: float, capture: tuple[Call, ...] = STEP * 20) -> RecordedCalls:
    """A trace of a machine on which everything takes `factor` times the means."""
    base = HostModel()
    base.factors = np.zeros(3)
    times = base.times(Capture(capture), LAUNCHES * 20).calls
    return RecordedCalls(
        np.arange(len(capture)),
        tuple(call_contexts(capture)),
        np.array([time.before for time in times]) * factor,
        np.array([time.to_launch for time in times]) * factor,
        tuple(tuple(each * factor for each in time.launches) for time in times),
        np.array([time.between for time in times]) * factor,
        np.array([time.after for time in times]) * factor,
    )


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_a_trace_of_the_machine_settles_its_factor(factor: float) -> None:
    unknown, calls = HostModel(), recorded(factor)
    known = unknown.calibrated([calls])
    before, after = (model.times(Capture(STEP), LAUNCHES) for model in (unknown, known))
    expected = calls.total_ns / 20
    assert after.range[0] < 1 < after.range[1] < before.range[1]
    assert abs(np.log(after.total_ns / expected)) < 0.35
    assert abs(np.log(after.total_ns / expected)) <= abs(np.log(before.total_ns / expected)) + 0.1


def test_what_is_not_known_of_a_machine_is_more_likely_to_slow_it_down() -> None:
    unknown = HostModel(device_named("H100 SXM")).times(Capture(STEP), LAUNCHES)
    assert np.log(unknown.range[1]) > -1.1 * np.log(unknown.range[0])
    known = HostModel(device_named("H100 SXM")).calibrated([recorded(1.0)])
    times = known.times(Capture(STEP), LAUNCHES)
    assert np.log(times.range[1]) == pytest.approx(-np.log(times.range[0]))


def test_a_trace_without_operators_changes_nothing() -> None:
    model = HostModel()
    assert model.calibrated([]) is model


def test_profilers_slow_the_host_down() -> None:
    device = device_named("H100 SXM")
    sums = [
        HostModel(device, profiler).times(Capture(STEP), LAUNCHES).total_ns
        for profiler in ("none", "plain", "stack", "full")
    ]
    assert sums == sorted(sums) and sums[-1] > 1.3 * sums[0]
    with pytest.raises(OptionError, match="there are: none"):
        HostModel(device, "nsight")


def test_processors_beside_recent_gpus_are_faster() -> None:
    new, old = (HostModel(device_named(name)) for name in ("H100 SXM", "V100 SXM2 32GB"))
    assert new.times(Capture(STEP), LAUNCHES).total_ns < old.times(Capture(STEP), LAUNCHES).total_ns


# ------------------------------------------------------------------------- this machine, the step


def test_a_probe_of_this_machine_narrows_the_interval() -> None:
    pytest.importorskip("torch")
    found = probe(profiler="plain")
    places, gaps = found.times("before")
    assert len(places) > 300 and (gaps >= 0).all()
    kept = {found.call_contexts[place].name for place in found.times("alone")[0].tolist()}
    assert "aten::view" in kept and not kept & {"aten::addmm", "aten::mm", "aten::copy_"}
    unknown = HostModel(profiler="plain")
    known = unknown.calibrated([found])
    assert known.covariance[0, 0] < unknown.covariance[0, 0]
    before, after = (model.times(Capture(STEP), LAUNCHES) for model in (unknown, known))
    assert after.range[1] / after.range[0] < before.range[1] / before.range[0]
    assert after.total_ns > 0


def test_what_is_of_another_machine_moves_and_narrows_less() -> None:
    unknown, calls = HostModel(), recorded(2.0)
    own, other = (unknown.calibrated([calls], deviation=each) for each in (0.0, 0.5))
    before, of_other, of_own = (
        model.times(Capture(STEP), LAUNCHES) for model in (unknown, other, own)
    )
    widths = [each.range[1] / each.range[0] for each in (of_own, of_other, before)]
    assert widths == sorted(widths)
    moved = [np.log(each.total_ns / before.total_ns) for each in (of_other, of_own)]
    assert 0 < moved[0] < moved[1]


def test_a_probe_that_can_not_be_is_refused() -> None:
    pytest.importorskip("torch")
    with pytest.raises(OptionError, match="plain, stack, full"):
        probe(profiler="none")
    with pytest.raises(OptionError, match="no operator"):
        probe(lambda: None)


def test_parts_around_a_step() -> None:
    model = HostModel(device_named("H100 SXM"))
    training = step_parts(model, parameters=100, has_loader=True)
    assert list(training) == [
        "between_steps",
        "loader",
        "begin_of_step",
        "zero_grad",
        "end_of_step",
    ]
    assert all(0 < each.low_ns < each.ns < each.high_ns for each in training.values())
    inference = step_parts(model)
    assert "zero_grad" not in inference
    with pytest.raises(OptionError, match="parameters"):
        step_parts(model, parameters=-1)


# -------------------------------------------------------------------------------------- traces


def test_names_of_calls() -> None:
    assert call_name("aten::linear") is None
    assert call_name("AddmmBackward0") is None
    assert call_name("autograd::engine::evaluate_function: AddmmBackward0") is None
    assert call_name("aten::cudnn_batch_norm") == "aten::native_batch_norm"
    flash = "aten::_scaled_dot_product_flash_attention_backward"
    assert call_name(flash) == "aten::scaled_dot_product_attention_backward"


def corpus(path: str) -> ttap.Trace:
    if not (CORPUS / path).exists():
        pytest.skip(f"no {Path(path)} in {CORPUS} (TORCHTRACEAP_CORPUS)")
    return ttap.load(CORPUS / path)


def test_calls_of_a_trace_are_those_of_a_capture() -> None:
    calls = recorded_calls(corpus("tracelens/h100/vit_nsfw_inference.json.gz").rank())
    names = [each.name for each in calls.call_contexts]
    assert names.count("aten::addmm") == 73 and names.count("aten::linear") == 0
    assert names.count("aten::scaled_dot_product_attention") == 12
    assert "aten::_flash_attention_forward" not in names
    assert sum(map(len, calls.launches)) >= 151
    usable = calls.before[np.isfinite(calls.before)]
    assert (usable >= 0).all() and len(usable) > 0.95 * len(calls)


def test_wrappers_are_what_torch_takes_apart() -> None:
    torch = pytest.importorskip("torch")
    key = "CompositeImplicitAutograd"
    for name in recorded_host._WRAPPERS:
        schemas = torch._C._jit_get_schemas_for_operator(name)
        full = [f"{name}.{each.overload_name}".rstrip(".") for each in schemas]
        assert any(torch._C._dispatch_has_kernel_for_dispatch_key(each, key) for each in full), name


def test_parts_of_a_trace() -> None:
    found = recorded_parts(corpus("hta/resnet_ddp_v100_ns_resolution.json.gz").rank())
    assert set(found) == {"between_steps", "end_of_step", "zero_grad"}
    assert 20_000 < found["between_steps"] < 60_000
    assert 500 < found["zero_grad"] < 3_000  # for each of 161 parameters


def test_a_trace_without_operators_has_no_calls() -> None:
    part = corpus("tracelens/mi210/gpu_only.json.gz").rank()
    calls = recorded_calls(part)
    assert len(calls) == 0 == calls.total_ns
    assert recorded_parts(part) == {}
    model = HostModel()
    assert model.calibrated([calls]) is model
