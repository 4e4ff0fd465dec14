"""Asking for durations as a person does: types and names as found, sizes, arrays, calibration."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchtraceap as ttap
from torchtraceap.errors import AmbiguousDeviceError, OptionError
from torchtraceap.ops import durations
from torchtraceap.ops.durations import Calibration, Estimate, Estimates, UnknownDurationError
from torchtraceap.ops.durations.calibration import TAIL, KindTimes, fit_calibration, kernel_class
from torchtraceap.ops.durations.inputs import (
    checked_sizes,
    collective_kernel,
    collective_named,
    copy_named,
    dtype_label,
)
from torchtraceap.ops.durations.model_chain import Question, vectorize
from torchtraceap.ops.models import OpCall

A100, H100 = "A100-SXM4-80GB", "H100 SXM"


class LikeTorch:
    """What a `torch.dtype` prints as, without torch."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __str__(self) -> str:
        return f"torch.{self._name}"


def test_the_package_has_them() -> None:
    assert ttap.durations is durations
    assert "durations" in ttap.__all__
    assert set(durations.__all__) == set(dir(durations))
    for name in durations.__all__:
        assert getattr(durations, name) is getattr(durations, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = durations.nothing


@pytest.mark.parametrize(
    ("dtype", "label"),
    [
        ("bf16", "bf16"), ("torch.bfloat16", "bf16"), ("c10::BFloat16", "bf16"),
        ("__nv_bfloat16", "bf16"), (LikeTorch("bfloat16"), "bf16"), (LikeTorch("half"), "fp16"),
        ("float", "fp32"), ("c10::Half", "fp16"), ("tf32", "tf32"), ("torch.float8_e4m3fn", "fp8"),
        ("TF32", "tf32"), (np.dtype("float64"), "fp64"), ("long int", "int64"),
    ],
)  # fmt: skip
def test_types_in_any_spelling(dtype: object, label: str) -> None:
    assert dtype_label(dtype) == label


@pytest.mark.parametrize(
    ("kernel", "kind", "dtype"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "all_reduce", "bf16"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce", "fp32"),
        ("ncclKernel_AllReduce_TREE_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)",
         "all_reduce", "fp16"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum___nv_bfloat16(ncclWorkElem)",
         "reduce_scatter", "bf16"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "send_recv", "int8"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather", ""),
        ("void ncclDevKernel_ReduceScatter_SumPostDiv_u32_RING_LL", "reduce_scatter", "int32"),
        ("ncclDevKernel_AllReduce_Sum_f8e4m3_TREE_LL", "all_reduce", "fp8"),
        ("c10d::allreduce_", "all_reduce", ""),
        ("c10d::_allgather_base_", "all_gather", ""),
        ("nccl:_reduce_scatter_base", "reduce_scatter", ""),
        ("_c10d_functional::all_gather_into_tensor", "all_gather", ""),
    ],
)  # fmt: skip
def test_collectives_by_the_names_of_their_kernels(kernel: str, kind: str, dtype: str) -> None:
    name, said = collective_named(kernel)
    assert (durations.collective_kind(name), said) == (kind, dtype)
    plain = durations.collective_ns(kind, 1 << 24, 8, H100, dtype=dtype)
    assert durations.collective_ns(kernel, 1 << 24, 8, H100) == plain


@pytest.mark.parametrize("kind", ["all_reduce", "reduce", "reduce_scatter", "all_gather",
                                  "broadcast", "send_recv", "all_to_all"])  # fmt: skip
@pytest.mark.parametrize(("dtype", "label"), [("bfloat16", "bf16"), ("int64", "int64"),
                                              ("bool", "uint8")])  # fmt: skip
def test_the_name_of_a_kernel_says_what_it_is_of(kind: str, dtype: str, label: str) -> None:
    name, said = collective_named(collective_kernel(kind, dtype))
    exchanged = "send_recv" if kind == "all_to_all" else kind
    assert durations.collective_kind(name) == exchanged
    assert said == (label if "reduce" in kind else "")


@pytest.mark.parametrize(
    ("name", "direction", "pinned"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "HtoD", True),
        ("Memcpy DtoH (Device -> Pageable)", "DtoH", False),
        ("Memcpy DtoD (Device -> Device)", "DtoD", None),
        ("HtoD", "HtoD", None),
        ("host to device", "HtoD", None),
        ("Device_To_Host", "DtoH", None),
        ("d2h", "DtoH", None),
        ("sideways", "sideways", None),
    ],
)
def test_copies_by_the_names_of_their_events(
    name: str, direction: str, pinned: bool | None
) -> None:
    assert copy_named(name) == (direction, pinned)


def test_a_pinned_copy_says_so_itself() -> None:
    told = durations.copy_ns(1 << 24, "Memcpy HtoD (Pinned -> Device)", None, A100)
    assert told == durations.copy_ns(1 << 24, "HtoD", True, A100) is not None


# Devices and sizes ------------------------------------------------------------------------------


def test_a_name_that_several_devices_have_lists_them() -> None:
    for ask in (
        lambda: durations.gemm_ns(64, 64, 64, "bf16", "A100"),
        lambda: durations.collective_ns("all_reduce", 1 << 20, 8, "A100"),
        lambda: durations.copy_ns(1 << 20, "HtoD", True, "A100"),
        lambda: durations.elementwise_ns("add", 1 << 20, "fp32", "A100"),
    ):
        with pytest.raises(AmbiguousDeviceError, match=r"a100_sxm_40gb.*a100_sxm_80gb") as caught:
            ask()
        assert isinstance(caught.value, OptionError)


WRONG: list[Any] = [0, -1, 1.5, math.nan, math.inf, -math.inf, 10**30, "12", None, True, 1j]


@pytest.mark.parametrize("wrong", WRONG)
def test_sizes_are_checked(wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"^m (must be|is beyond)"):
        durations.gemm_ns(wrong, 64, 64, "bf16", H100)
    with pytest.raises(OptionError, match=r"^ranks "):
        durations.collective_ns("all_reduce", 1 << 20, wrong, H100)
    with pytest.raises(OptionError, match=r"^head_size "):
        durations.attention_ns(1, 1, 1, 1, wrong, "bf16", H100)
    with pytest.raises(OptionError, match=r"^batch "):
        durations.embedding_bag_ns([durations.EmbeddingTable(10, 4, 2)], wrong, H100)
    if wrong is not True:  # NumPy makes a 1 of it
        with pytest.raises(OptionError, match=r"^m "):
            durations.gemm_ns([64, wrong], 64, 64, "bf16", H100)
    with pytest.raises(OptionError, match=r"^rows "):
        durations.embedding_bag_ns([durations.EmbeddingTable(wrong, 4, 2)], 8, H100)
    if wrong != 1.5:
        with pytest.raises(OptionError, match=r"^size "):
            durations.copy_ns(wrong, "HtoD", True, H100)


def test_arrays_that_do_not_go_together_are_told() -> None:
    with pytest.raises(OptionError, match="one length"):
        durations.gemm_ns([64, 64], [64, 64, 64], 64, "bf16", H100)
    with pytest.raises(OptionError, match="one dimension"):
        durations.gemm_ns(np.ones((2, 2)), 64, 64, "bf16", H100)


# Many at once -----------------------------------------------------------------------------------


def test_arrays_in_arrays_out() -> None:
    m = np.array([4096, 64, 4096])
    many = durations.gemm_ns(m, 4096, 4096, "bf16", H100)
    assert isinstance(many, Estimates) and len(many) == 3
    for at, rows in enumerate(m.tolist()):
        one = durations.gemm_ns(rows, 4096, 4096, "bf16", H100)
        assert many[at] == one
    none: list[int] = []
    assert len(durations.gemm_ns(none, 4096, 4096, "bf16", H100)) == 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda n, **more: durations.gemm_ns(n, n, n, "bf16", H100, **more),
        lambda n, **more: durations.attention_ns(n, 8, n, n, 64, "bf16", H100, **more),
        lambda n, **more: durations.elementwise_ns("add", n, "int64", H100, **more),
        lambda n, **more: durations.softmax_ns(n, n, "fp32", H100, **more),
        lambda n, **more: durations.layer_norm_ns(n, n, "bf16", H100, **more),
        lambda n, **more: durations.copy_ns(n, "HtoD", True, H100, **more),
        lambda n, **more: durations.collective_ns("broadcast", n, 8, H100, **more),
        lambda n, **more: durations.embedding_bag_ns(
            [durations.EmbeddingTable(n, 1, 2)], 4, H100, **more
        ),
    ],
)
def test_what_a_device_cannot_hold_has_no_answer(ask: Any) -> None:
    assert ask(1024) is not None and ask(10**12) is None
    with pytest.raises(UnknownDurationError, match="more bytes than H100 SXM5 80 GB has memory"):
        ask(10**12, strict=True)


def test_types_that_no_product_was_measured_in_go_by_their_work() -> None:
    int8 = durations.gemm_ns(4096, 4096, 4096, "int8", H100, strict=True)
    fp4 = durations.gemm_ns(4096, 4096, 4096, "fp4", "B200", strict=True)
    fp16 = durations.gemm_ns(4096, 4096, 4096, "fp16", H100, strict=True)
    assert int8 is not None and fp4 is not None and fp16 is not None
    assert fp4.ns < int8.ns < fp16.ns and "work over the peaks" in int8.source
    with pytest.raises(UnknownDurationError, match="int64"):
        durations.gemm_ns(8, 8, 8, "int64", H100, strict=True)
    longs = durations.elementwise_ns("add", 1e8, "int64", H100, strict=True)
    floats = durations.elementwise_ns("add", 1e8, "fp32", H100, strict=True)
    assert longs is not None and floats is not None and 1.5 < longs.ns / floats.ns < 2.5


def small(size: float) -> Estimate:
    if size > 100:
        raise UnknownDurationError(f"{size} is not small")
    return Estimate.within_factor(size, 2.0, "small ones")


def middling(size: float) -> Estimate:
    if size > 1000:
        raise UnknownDurationError(f"{size} is not middling")
    return Estimate.within_factor(size, 4.0, "middling ones")


def test_models_answer_in_their_order_and_what_has_no_answer_is_nan() -> None:
    models = vectorize(small), vectorize(middling)

    def ask(size: Any, **more: Any) -> Any:
        sizes = checked_sizes(size=(size, True))
        held = np.zeros(np.shape(size))
        return Question(sizes, models, "any", H100, held, **more).answer()

    many = ask([5000, 50, 500])
    assert isinstance(many, Estimates)
    assert many[1] == small(50) and many[2] == middling(500)
    assert all(math.isnan(value) for value in many[0][:3])
    assert many[0].source == "5000 is not small"
    with pytest.raises(UnknownDurationError, match="5000 is not small"):
        ask([5000, 50, 500], strict=True)
    assert [ask(50), ask(500), ask(5000)] == [small(50), middling(500), None]


def test_many_of_an_unknown_type_have_no_answer() -> None:
    many = durations.gemm_ns([64, 128], 64, 64, "int7", H100)
    assert np.isnan(many.ns).all() and many[0].source == "no type is called 'int7'"


@pytest.mark.parametrize(
    "ask",
    [
        lambda n: durations.copy_ns(n * 1000.0, "HtoD", True, A100),
        lambda n: durations.copy_ns(n * 1000.0, "DtoD", None, A100),
        lambda n: durations.elementwise_ns("add", n * 1000.0, "bf16", H100),
        lambda n: durations.softmax_ns(n, 512, "fp32", A100),
        lambda n: durations.layer_norm_ns(n, 512, "bf16", H100),
        lambda n: durations.attention_ns(n, 8, 512, 512, 64, "fp16", A100),
        lambda n: durations.collective_ns("all_gather", n * 1000.0, 8, A100),
        lambda n: durations.embedding_bag_ns([durations.EmbeddingTable(10**6, 64, 20)], n, H100),
    ],
)
def test_every_question_takes_arrays_and_more_never_takes_less(ask: Any) -> None:
    sizes = np.array([1, 3, 10, 100, 1000, 10_000])
    many = ask(sizes)
    assert np.isfinite(many.ns).all()
    assert (many.low_ns <= many.ns).all() and (many.ns <= many.high_ns).all()
    assert (np.diff(many.ns) >= 0).all()
    one = ask(1)
    assert isinstance(one, Estimate) and one == many[0]


def test_tables_of_embedding_bags_in_arrays() -> None:
    skewed = durations.ReuseHistogram.from_indices(np.arange(1000) ** 2 % 37)
    rows, lookups, bags = np.array([10**6, 500]), np.array([20, 1.5]), np.array([4096, 7])
    for histogram in (None, skewed):
        tables = [durations.EmbeddingTable(rows, 64, lookups, histogram),
                  durations.EmbeddingTable(1000, 16, 3, histogram)]  # fmt: skip
        many = durations.embedding_bag_ns(tables, bags, H100, backward=True)
        for at in range(2):
            own = [durations.EmbeddingTable(rows[at], 64, lookups[at], histogram), tables[1]]
            one = durations.embedding_bag_ns(own, int(bags[at]), H100, backward=True)
            assert one == many[at]
    with pytest.raises(OptionError, match="only where batch is one"):
        durations.embedding_bag_ns(tables, 4096, H100)
    with pytest.raises(OptionError, match="must have one length"):
        durations.embedding_bag_ns(tables, [1, 2, 3], H100)
    with pytest.raises(OptionError, match="rows of table 2 must be a whole number"):
        durations.embedding_bag_ns([tables[1], durations.EmbeddingTable(0, 1, 1)], 4, H100)
    with pytest.raises(OptionError, match="needs a table"):
        durations.embedding_bag_ns([], 4, H100)


DEVICES = ("V100-SXM2-32GB", A100, H100, "H200", "L4", "T4", "MI300X")
TYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(*[st.integers(1, 20_000)] * 3),
    st.integers(2, 8),
    st.integers(0, 2),
    st.sampled_from(DEVICES),
    st.sampled_from(TYPES),
)
def test_a_larger_product_is_no_faster_than_the_interval_allows(
    shape: tuple[int, int, int], times: int, grown: int, device: str, dtype: str
) -> None:
    larger = list(shape)
    larger[grown] *= times
    less = durations.gemm_ns(*shape, dtype, device)
    more = durations.gemm_ns(*larger, dtype, device)
    assert (less is None) == (more is None)
    if less is not None and more is not None:
        assert 0 < less.low_ns <= less.ns <= less.high_ns < math.inf
        assert more.high_ns >= less.low_ns


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.text(max_size=5))
def test_no_size_whatever_ends_in_another_error(size: Any) -> None:
    try:
        found = durations.elementwise_ns("add", size, "bf16", H100)
    except OptionError:
        return
    if found is None:
        assert 2.0 * size > 80e9  # bytes that an H100 cannot hold
    else:
        assert 0 < found.low_ns <= found.ns <= found.high_ns < math.inf


def test_any_operator_by_the_arguments_that_a_trace_records() -> None:
    half = ["c10::BFloat16"] * 2
    product = OpCall("aten::mm", [[512, 1024], [1024, 4096]], half)
    assert durations.op_ns(product, H100) == durations.gemm_ns(512, 4096, 1024, "bf16", H100)
    gelu = OpCall("aten::gelu", [[8192, 4096]], half[:1])
    told = durations.op_ns(gelu, H100, strict=True)
    assert told is not None and "work over the peaks" in told.source
    assert told.ns > 0.8e9 * 2 * 2 * 8192 * 4096 / 3.35e12
    several = durations.op_ns(gelu, H100, kernels=4)
    assert several is not None and several.ns > told.ns
    assert durations.op_ns(OpCall("my::op", [[2]], ["float"]), H100) is None
    with pytest.raises(UnknownDurationError, match="no model for my::op"):
        durations.op_ns(OpCall("my::op", [[2]], ["float"]), H100, strict=True)
    with pytest.raises(OptionError, match="kernels must be"):
        durations.op_ns(gelu, H100, kernels=0)
    large = OpCall("aten::mm", [[4096, 2048], [2048, 4096]], half)  # as long as what was measured
    seen = fit_calibration(times_of([1.5] * 20))
    ratios = []
    for call in (large, product):
        own, plain = durations.op_ns(call, H100, calibration=seen), durations.op_ns(call, H100)
        assert own is not None and plain is not None
        ratios.append(own.ns / plain.ns)
    assert ratios[0] > 1.4 and 1.05 < ratios[1] < 1.3  # less is known of what is far shorter


# Calibration ------------------------------------------------------------------------------------


def times_of(
    ratios: list[float], factor: float = 2.0, calls: int = 10, spread: float = 0.02
) -> KindTimes:
    """Kinds of one class that take `ratios` of the 100 us that a model says."""
    count = len(ratios)
    return KindTimes(
        kinds=[("kind", at) for at in range(count)],
        classes=["gemm bf16"] * count,
        measured_ns=1e5 * np.array(ratios, dtype=np.float64),
        spread=np.full(count, spread),
        calls=np.full(count, calls),
        estimates=Estimates.within_factor(np.full(count, 1e5), factor, "a model"),
    )


MODEL = Estimate.within_factor(1e5, 2.0, "a model")


def width(estimate: Estimate) -> float:
    return math.log(estimate.high_ns / estimate.low_ns) / 2


def test_many_kinds_that_agree_decide_the_ratio_and_narrow_the_interval() -> None:
    calibration = fit_calibration(times_of([1.3] * 40))
    (ratio,) = calibration.classes.values()
    assert (ratio.kinds, ratio.calls, ratio.is_few) == (40, 400, False)
    assert ratio.median == pytest.approx(1.3)
    applied = calibration.apply(MODEL, "gemm bf16")
    assert applied.ns == pytest.approx(1.3e5, rel=0.01)
    assert width(applied) < width(MODEL) / 2
    assert "40 kinds of this trace's gemm bf16" in applied.source


def test_few_kinds_move_a_model_a_little() -> None:
    one = fit_calibration(times_of([1.5]))
    assert one.classes["gemm bf16"].is_few
    applied = one.apply(MODEL, "gemm bf16")
    assert 1e5 < applied.ns < 1.35e5
    assert 0.6 * width(MODEL) < width(applied) <= width(MODEL)
    assert "few" in str(one)


def test_large_kernels_say_little_of_small_ones_and_other_programs_less() -> None:
    large = times_of([1.6] * 30)
    own, other = (fit_calibration(large, for_other_program=one) for one in (False, True))
    small = Estimate.within_factor(3e3, 2.0, "a model")
    assert own.apply(MODEL, "gemm bf16").ns > 1.5e5
    assert 1.0 < own.apply(small, "gemm bf16").ns / 3e3 < 1.2
    assert 1.15e5 < other.apply(MODEL, "gemm bf16").ns < 1.4e5
    assert width(other.apply(MODEL, "gemm bf16")) > width(own.apply(MODEL, "gemm bf16"))


def test_kernels_of_one_operator_are_more_alike() -> None:
    times = replace(times_of([0.6] * 8 + [1.6] * 8), names=["aten::add"] * 8 + ["aten::mul"] * 8)
    calibration = fit_calibration(times)
    told = [calibration.apply(MODEL, "gemm bf16", op=f"aten::{op}").ns for op in ("add", "mul")]
    assert told[0] < 0.9e5 < 1.1e5 < told[1]
    assert told[0] < calibration.apply(MODEL, "gemm bf16").ns < told[1]


def test_kinds_that_differ_keep_the_interval_wide() -> None:
    ratios = np.exp(np.random.default_rng(0).normal(0, 0.8, 200)).tolist()
    applied = fit_calibration(times_of(ratios)).apply(MODEL, "gemm bf16")
    assert width(applied) == pytest.approx(TAIL * 0.8, rel=0.2)


@pytest.mark.parametrize("count", [1, 2, 5, 20, 100])
@pytest.mark.parametrize(("common", "own"), [(0.38, 0.38), (0.0, 0.3), (0.2, 0.5)])
def test_four_of_five_new_kinds_lie_inside(count: int, common: float, own: float) -> None:
    """Classes whose spread is about what the model says (a deviation of 0.54)."""
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(40 if count == 100 else 200):  # a fit takes as long as count squared
        ratios = np.exp(rng.normal(0, common) + rng.normal(0, own, count + 200))
        seen, unseen = ratios[:count].tolist(), 1e5 * ratios[count:]
        applied = fit_calibration(times_of(seen)).apply(MODEL, "gemm bf16")
        inside.append(np.mean((unseen >= applied.low_ns) & (unseen <= applied.high_ns)))
    assert 0.7 < np.mean(inside) < 0.96


def test_the_very_kind_is_known_better_than_its_class() -> None:
    calibration = fit_calibration(times_of([0.7, 1.0, 1.5, 2.0, 1.2, 0.9]))
    of_class = calibration.apply(MODEL, "gemm bf16")
    own = calibration.apply(MODEL, "gemm bf16", ("kind", 3))
    assert own.ns == pytest.approx(2e5, rel=0.03)
    assert width(own) < width(of_class) / 3
    assert "this very call" in own.source


def test_a_kind_that_several_ranks_have_is_one_kind() -> None:
    ranks = [times_of([1.0, 2.0, 3.0]), times_of([1.2, 2.2, 3.2]), times_of([1.1, 2.1])]
    pooled = KindTimes.merge(ranks)
    assert pooled.kinds == [("kind", at) for at in range(3)]
    assert pooled.calls.tolist() == [30, 30, 20]
    assert pooled.measured_ns == pytest.approx([1.1e5, 2.1e5, 3.1e5])
    assert fit_calibration(pooled).classes["gemm bf16"].kinds == 3
    nobody = KindTimes.merge([])
    assert nobody.kinds == [] and len(nobody.estimates) == 0
    assert fit_calibration(nobody).classes == {}


def test_what_the_trace_has_not_stays_as_it_is() -> None:
    calibration = fit_calibration(times_of([1.3]))
    assert calibration.apply(MODEL, "softmax") is MODEL
    nothing = Estimate(math.nan, math.nan, math.nan, "no")
    assert calibration.apply(nothing, "gemm bf16") is nothing
    empty = fit_calibration(times_of([]))
    assert empty.classes == {} and "no kernels" in str(empty)


def test_kinds_without_a_time_or_an_estimate_are_left_out() -> None:
    times = times_of([1.0, 0.0, 1.0])
    times.estimates.ns[2] = math.nan
    assert fit_calibration(times).classes["gemm bf16"].kinds == 1


def test_questions_take_a_calibration() -> None:
    times = times_of([0.8] * 30)
    calibration = fit_calibration(times)
    plain = durations.gemm_ns(4096, 4096, 4096, "bf16", H100)
    told = durations.gemm_ns(4096, 4096, 4096, "torch.bfloat16", H100, calibration=calibration)
    assert plain is not None and told is not None
    assert told.ns == pytest.approx(0.8 * plain.ns, rel=0.05)
    many = durations.gemm_ns([4096], 4096, 4096, "bf16", H100, calibration=calibration)
    assert many[0] == told
    other = durations.gemm_ns(4096, 4096, 4096, "fp32", H100, calibration=calibration)
    assert other == durations.gemm_ns(4096, 4096, 4096, "fp32", H100)


def test_ratios_are_shown_as_plain_values() -> None:
    calibration = fit_calibration(times_of([1.3] * 6))
    assert isinstance(calibration, Calibration)
    (row,) = calibration.to_dict().values()
    assert row["kinds"] == 6 and row["calls"] == 60 and row["is_few"] is False
    assert kernel_class("gemm", "bf16") == "gemm bf16"
    assert kernel_class("softmax", "bf16") == "softmax"


def test_rows_of_halves_that_begin_anywhere_take_as_long_as_singles() -> None:
    def time(length: int, dtype: str) -> float:
        shapes = [[8, 12, length, length], [], []]
        call = OpCall("aten::_softmax", shapes, [dtype, "Scalar", "Scalar"], None, ["", "-1", ""])
        found = durations.op_ns(call, "H100 SXM")
        assert found is not None and found.low_ns < found.ns < found.high_ns
        return found.ns / length**2

    even, odd = time(3136, "c10::BFloat16"), time(3137, "c10::BFloat16")
    assert odd > 1.5 * even
    assert time(1001, "c10::BFloat16") < odd  # a warp reads single elements anyway
    assert abs(time(3137, "float") / time(3136, "float") - 1) < 0.01
