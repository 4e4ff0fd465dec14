"""Work of operators: hand-computed values for each family, and what happens without arguments."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtraceap.core.dtypes import parse_dtype
from torchtraceap.ops import durations
from torchtraceap.ops.models import OpCall, Tensor, UnknownWorkError, Work, register, work_of
from torchtraceap.ops.models import registry as registry_module
from torchtraceap.ops.models.arguments import promote
from torchtraceap.ops.models.attention import pairs, tile_padding

NONE = ([], "", "")
SCALAR_TYPES = {int: "Scalar", float: "Scalar", bool: "Scalar", list: "ScalarList", str: ""}


def call(name: str, *arguments: Any, strides: Any = None, kernels: tuple[str, ...] = ()) -> Work:
    """The work of a call: a tensor is `(type, shape)`, a list of tensors a list of shapes."""
    dims: list[Any] = []
    types: list[str] = []
    values: list[str] = []
    for argument in arguments:
        if argument is None:
            entry: tuple[Any, str, str] = NONE
        elif isinstance(argument, tuple):
            entry = (list(argument[1]), argument[0], "")
        elif isinstance(argument, list) and argument and isinstance(argument[0], list):
            entry = (argument, "TensorList", "")
        else:
            entry = ([], SCALAR_TYPES[type(argument)], str(argument))
        dims.append(entry[0])
        types.append(entry[1])
        values.append(entry[2])
    texts = [json.dumps(part) for part in (dims, types)]
    work, reason = work_of(name, *texts, strides, json.dumps(values), kernels)
    assert work is not None, reason
    return work


def f32(*shape: int) -> tuple[str, tuple[int, ...]]:
    return "float", shape


def bf16(*shape: int) -> tuple[str, tuple[int, ...]]:
    return "c10::BFloat16", shape


def i64(*shape: int) -> tuple[str, tuple[int, ...]]:
    return "long int", shape


def fp8(*shape: int) -> tuple[str, tuple[int, ...]]:
    return "c10::Float8_e4m3fn", shape


SPLIT = [True, False, True]

# name, arguments -> operations, bytes read, bytes written
EXPECTED: list[tuple[str, tuple[Any, ...], tuple[float | None, float, float]]] = [
    ("aten::mm", (f32(3, 5), f32(5, 7)), (210, 4 * (15 + 35), 4 * 21)),
    ("aten::addmm", (f32(7), f32(3, 5), f32(5, 7), 1, 1), (210, 4 * (7 + 15 + 35), 84)),
    ("aten::bmm", (bf16(2, 3, 5), bf16(2, 5, 7)), (420, 2 * (30 + 70), 2 * 42)),
    ("aten::baddbmm", (f32(2, 3, 7), f32(2, 3, 5), f32(2, 5, 7), 1, 1), (420, 4 * 142, 168)),
    ("aten::linear", (f32(4, 3, 5), f32(7, 5), f32(7)), (840, 4 * (60 + 35 + 7), 4 * 84)),
    ("aten::_int_mm", (("signed char", (3, 5)), ("signed char", (5, 7))), (210, 50, 84)),
    (
        "aten::_scaled_mm",
        (fp8(4, 16), fp8(16, 8), f32(), f32(), None, None, 15, True),
        (1024, 4 * 16 + 16 * 8 + 8, 4 * 8 * 2),
    ),
    ("aten::_grouped_mm", (bf16(6, 4), bf16(3, 4, 5), ("int", (3,)), None, None),
     (240, 2 * (24 + 60) + 12, 60)),
    ("aten::_grouped_mm", (bf16(6, 4), bf16(4, 5), ("int", (3,)), None, None),
     (240, 2 * (24 + 20) + 12, 3 * 60)),
    (
        "aten::convolution",
        (f32(2, 4, 8, 8), f32(6, 4, 3, 3), f32(6), [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
        (2 * 2 * 6 * 16 * 36, 4 * (512 + 216 + 6), 4 * 2 * 6 * 16),
    ),
    (
        "aten::cudnn_convolution",
        (f32(1, 4, 8, 8), f32(6, 2, 3, 3), [1, 1], [1, 1], [1, 1], 2, False, False, True),
        (2 * 6 * 64 * 18, 4 * (256 + 108), 4 * 6 * 64),
    ),
    (
        "aten::convolution_backward",
        (f32(2, 6, 8, 8), f32(2, 4, 8, 8), f32(6, 4, 3, 3), [6], [1, 1], [1, 1], [1, 1], False,
         [0, 0], 1, [False, True, True]),
        (2 * 768 * 36, 4 * (768 + 512), 4 * (216 + 6)),
    ),
    (
        "aten::_flash_attention_forward",
        (bf16(2, 10, 3, 8), bf16(2, 12, 1, 8), bf16(2, 12, 1, 8), None, None, 10, 12, 0.0, False,
         False, None),
        (2 * 6 * 120 * 16, 2 * (480 + 192 + 192), 2 * 480),
    ),
    (
        "aten::_scaled_dot_product_efficient_attention",
        (f32(2, 3, 10, 8), f32(2, 3, 12, 8), f32(2, 3, 12, 8), None, True, 0.0, True),
        (2 * 6 * 55 * 16, 4 * (480 + 576 + 576), 4 * 480 + 4 * 60),
    ),
    ("aten::native_layer_norm", (f32(6, 8), [8], f32(8), f32(8), 1e-5),
     (48 * 8, 4 * 64, 4 * 48 + 8 * 6)),
    (
        "aten::native_batch_norm",
        (f32(4, 3, 2, 2), f32(3), f32(3), f32(3), f32(3), True, 0.1, 1e-5),
        (48 * 8, 4 * (48 + 12), 4 * 48 + 24 + 24),
    ),
    (
        "aten::native_batch_norm",
        (f32(4, 3, 2, 2), f32(3), f32(3), f32(3), f32(3), False, 0.1, 1e-5),
        (48 * 4, 4 * (48 + 12), 4 * 48),
    ),
    (
        "aten::native_layer_norm_backward",
        (f32(6, 8), f32(6, 8), [8], f32(6, 1), f32(6, 1), f32(8), f32(8), SPLIT),
        (48 * 7, 4 * (96 + 12 + 8), 4 * (48 + 8)),
    ),
    ("aten::_softmax", (f32(4, 8), 1, False), (160, 128, 128)),
    ("aten::_softmax", (("c10::Half", (4, 8)), 1, True), (160, 64, 128)),
    ("aten::_log_softmax_backward_data", (f32(4, 8), f32(4, 8), 1, 6), (128, 256, 128)),
    ("aten::nll_loss_forward", (f32(4, 1000), i64(4), None, 1, -100), (8, 16 + 32, 8)),
    ("aten::mse_loss", (f32(4, 8), f32(4, 8), 1), (96, 256, 4)),
    ("aten::mse_loss", (f32(4, 8), f32(4, 8), 0), (96, 256, 128)),
    ("aten::add", (f32(4, 8), f32(8), 1), (32, 4 * 40, 128)),
    ("aten::add_", (bf16(4, 8), f32(8), 1), (32, 64 + 32, 64)),
    ("aten::mul", (bf16(4, 8), ("double", ())), (32, 64 + 8, 64)),
    ("aten::add", (i64(4), ("double", ()), 1), (4, 40, 16)),
    ("aten::div", (i64(4), i64(4)), (4, 64, 16)),
    ("aten::gt", (f32(4, 8), 0), (32, 128, 32)),
    ("aten::where", (("bool", (4, 8)), f32(4, 8), f32()), (32, 32 + 128 + 4, 128)),
    ("aten::addcmul_", (f32(8), f32(8), f32(8), 1), (24, 96, 32)),
    ("aten::gelu_backward", (bf16(4, 8), bf16(4, 8), None), (32, 128, 64)),
    ("aten::native_dropout", (f32(4, 8), 0.1, True), (64, 128, 128 + 32)),
    ("aten::sum", (f32(4, 8), None), (32, 128, 4)),
    ("aten::sum", (bf16(4, 8), [1], False, 6), (32, 64, 16)),
    ("aten::sum", (f32(4, 8), [-2], True, None), (32, 128, 32)),
    ("aten::mean", (f32(4, 8), None, False, None), (32, 128, 4)),
    ("aten::argmax", (f32(4, 8), 1, False), (32, 128, 32)),
    ("aten::max", (f32(4, 8), 1, False), (32, 128, 4 * 12)),
    ("aten::max", (f32(4, 8),), (32, 128, 4)),
    ("aten::max", (f32(4, 8), f32(4, 8)), (32, 256, 128)),
    ("aten::var", (f32(4, 8), [0], 1, False), (128, 128, 32)),
    ("aten::linalg_vector_norm", (bf16(4, 8), 2, [0, 1], False, 6), (64, 64, 4)),
    ("aten::topk", (f32(4, 8), 2, 1, True, True), (None, 128, 8 * 12)),
    ("aten::sort", (f32(8), 0, False), (None, 32, 8 * 12)),
    ("aten::cumsum", (i64(8), 0, None), (8, 64, 64)),
    ("aten::embedding", (f32(100, 8), i64(4, 2), -1, False, False), (0, 8 * 32 + 64, 8 * 32)),
    ("aten::embedding", (f32(3, 8), i64(4, 2), -1, False, False), (0, 3 * 32 + 64, 8 * 32)),
    ("aten::gather", (f32(4, 8), 1, i64(4, 2)), (0, 32 + 64, 32)),
    ("aten::index_select", (f32(100, 8), 0, i64(5)), (0, 160 + 40, 160)),
    ("aten::scatter_add_", (f32(10), 0, i64(4), f32(4)), (4, 32 + 16 + 16, 16)),
    (
        "aten::max_pool2d_with_indices",
        (f32(1, 2, 8, 8), [3, 3], [2, 2], [1, 1], [1, 1], False),
        (2 * 16 * 9, 512, 2 * 16 * 12),
    ),
    ("aten::_adaptive_avg_pool2d", (f32(1, 2, 8, 8), [1, 1]), (128, 512, 8)),
    ("aten::upsample_nearest1d", (f32(1, 2, 8), [16], None), (0, 64, 128)),
    ("aten::copy_", (bf16(4, 8), f32(4, 8), False), (0, 128, 64)),
    ("aten::fill_", (f32(4, 8), 0), (0, 0, 128)),
    ("aten::split_with_sizes_copy", (bf16(4, 8), [2, 6], 1, None), (0, 64, 64)),
    ("_C::fused_add_rms_norm", (bf16(4, 8), bf16(4, 8), bf16(8), 1e-5), (160, 144, 128)),
    (
        "tex_ts::te_gemm_ts",
        (fp8(6, 4), f32(1), 0, 0, True, fp8(3, 4), f32(1), 0, 0, False, bf16(3, 6)),
        (2 * 18 * 4, 24 + 12, 36),
    ),
    ("_C::cutlass_scaled_mm", (bf16(3, 7), fp8(3, 5), fp8(5, 7)), (210, 15 + 35, 42)),
    (
        "aiter::mha_fwd",
        (bf16(1, 4, 2, 8), bf16(1, 4, 2, 8), bf16(1, 4, 2, 8), 0.0, 1.0, True, -1, 0, True),
        (2 * 2 * 10 * 16, 2 * 192, 128),
    ),
    ("triton_poi_fused_add_0", (f32(4, 8), f32(4, 8), 32), (None, 256, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "expected"), EXPECTED)
def test_work_by_hand(
    name: str, arguments: tuple[Any, ...], expected: tuple[float | None, float, float]
) -> None:
    work = call(name, *arguments)
    assert (work.flops, work.bytes_read, work.bytes_written) == expected


def test_lists_of_tensors_have_the_type_of_their_kernels() -> None:
    kernels = ("multi_tensor_apply_kernel<Metadata<2>, FusedAdamMathFunctor<float, 4>, float>",)
    shapes = [[8, 4], [4]]
    work = call("aten::_fused_adamw_", shapes, shapes, shapes, shapes, None, None, kernels=kernels)
    assert (work.bytes_read, work.bytes_written) == (4 * 36 * 4, 3 * 36 * 4)
    work = call(
        "aten::cat", shapes, 0, kernels=("CatArrayBatchedCopy<at::native::OpaqueType<2u>, 3>",)
    )
    assert (work.bytes_read, work.bytes_written) == (72, 72)
    work = call("aten::_chunk_cat", [[3, 4], [2]], 0, 2, f32(2, 9), kernels=("chunk_cat<float>",))
    assert (work.bytes_read, work.bytes_written) == (14 * 4, 18 * 4)
    assert work_of("aten::cat", [shapes, []], ["TensorList", "Scalar"])[1] == (
        "the type of the tensors in a list is not in the trace"
    )


def test_a_broadcast_input_is_as_large_as_what_is_stored() -> None:
    whole = call("aten::mul", f32(64, 128), f32(64, 128))
    expanded = call("aten::mul", f32(64, 128), f32(64, 128), strides=[[128, 1], [0, 1]])
    assert whole.bytes_read - expanded.bytes_read == 4 * 63 * 128
    assert whole.bytes_written == expanded.bytes_written


def test_the_type_decides_the_unit() -> None:
    assert call("aten::mm", bf16(3, 5), bf16(5, 7)).dtype == "bf16"
    assert call("aten::mm", bf16(3, 5), bf16(5, 7)).unit == "matrix"
    # Kernels of half types compute in fp32.
    assert call("aten::add", bf16(4), bf16(4), 1).dtype == "fp32"
    assert call("aten::add", bf16(4), bf16(4), 1).unit == "vector"


def test_convolutions_say_whether_tf32_is_allowed() -> None:
    options = ([0, 0], [1, 1], [1, 1], 1, False, False)
    arguments = (f32(1, 4, 8, 8), f32(6, 4, 3, 3), *options)
    assert call("aten::cudnn_convolution", *arguments, True).allow_tf32 is True
    assert call("aten::cudnn_convolution", *arguments, False).allow_tf32 is False


@pytest.mark.parametrize(
    ("name", "dims", "types", "concrete", "reason"),
    [
        ("aten::mm", None, None, None, "no shapes"),
        ("aten::sum", [[4], [], [], []], ["float", "ScalarList", "Scalar", ""], None, "no values"),
        ("aten::nonzero", [[4]], ["bool"], [""], "depends on the data"),
        ("aten::mm", [[3, 5], [6, 7]], ["float", "float"], None, "inner sizes"),
        ("aten::cat", [[], []], ["TensorList", "Scalar"], None, "list at argument 0"),
        ("aten::index", [[4], []], ["float", ""], ["", ""], "indices are not in the trace"),
        ("mylib::nothing", [[4]], ["float"], None, "no model"),
    ],
)
def test_what_is_missing_is_said(
    name: str, dims: Any, types: Any, concrete: Any, reason: str
) -> None:
    work, why = work_of(name, dims, types, None, concrete)
    assert work is None
    assert reason in why


# ---------------------------------------------------------------------------- attention


def brute_force(queries: int, keys: int, low: Any, high: Any) -> int:
    return sum(low(i) <= j <= high(i) for i in range(queries) for j in range(keys))


sizes = st.integers(0, 12)
limits = st.integers(-1, 12)


@given(sizes, sizes, st.booleans(), st.booleans(), limits, limits)
def test_pairs_are_those_of_a_mask(
    queries: int, keys: int, causal: bool, bottom_right: bool, left: int, right: int
) -> None:
    shift = keys - queries if bottom_right else 0
    most_right = 0 if causal else (right if right >= 0 else 10**6)
    most_left = left if left >= 0 else 10**6
    expected = brute_force(
        queries, keys, lambda i: i + shift - most_left, lambda i: i + shift + most_right
    )
    found = pairs(queries, keys, causal=causal, bottom_right=bottom_right, left=left, right=right)
    assert found == expected


def varlen(total: int, count: int, longest: int) -> Work:
    q = bf16(total, 2, 8)
    lengths = ("int", (count + 1,))
    return call(
        "flash_attn::_flash_attn_varlen_forward",
        q, q, q, lengths, lengths, longest, longest, 0.0, 0.5, False, -1, -1,
    )  # fmt: skip


def test_packed_sequences_are_exact_where_the_lengths_follow() -> None:
    one, equal, open_lengths = varlen(64, 1, 64), varlen(64, 4, 16), varlen(64, 4, 20)
    assert (one.flops, one.upper_bound) == (2 * 2 * 64 * 64 * 16, False)
    assert (equal.flops, equal.upper_bound) == (2 * 2 * 4 * 16 * 16 * 16, False)
    # At most three sequences of 20 and one of 4.
    assert (open_lengths.flops, open_lengths.upper_bound) == (2 * 2 * (3 * 400 + 80) * 16, True)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_packed_sequences_never_count_less_than_there_is(lengths: list[int]) -> None:
    work = varlen(sum(lengths), len(lengths), max(lengths))
    exact = 2 * 2 * 16 * sum(length * length for length in lengths)
    assert work.flops is not None
    assert work.flops >= exact
    assert work.upper_bound or work.flops == exact


def test_causal_masks_are_aligned_as_the_back_end_does() -> None:
    """Efficient attention masks from the first key, flash attention from the last."""
    q, k = f32(1, 1, 2, 4), f32(1, 1, 5, 4)
    efficient = call(
        "aten::_scaled_dot_product_efficient_attention", q, k, k, None, False, 0.0, True
    )
    assert efficient.flops == 2 * (1 + 2) * 8
    flash = call("aten::_scaled_dot_product_flash_attention", q, k, k, 0.0, True, False)
    assert flash.flops == 2 * (4 + 5) * 8


# --------------------------------------------------------------------------- properties


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_products_move_their_operands_and_scale_with_the_depth(m: int, n: int, k: int) -> None:
    work = call("aten::mm", f32(m, k), f32(k, n))
    deeper = call("aten::mm", f32(m, 2 * k), f32(2 * k, n))
    assert work.bytes == 4 * (m * k + k * n + m * n)
    assert deeper.flops == 2 * (work.flops or 0)
    assert deeper.bytes_written == work.bytes_written


@given(st.lists(st.integers(0, 8), max_size=4), st.sampled_from(["add", "mul", "maximum"]))
def test_elementwise_work_is_that_of_the_result(shape: list[int], name: str) -> None:
    work = call(f"aten::{name}", f32(*shape), f32(*shape))
    elements = Tensor(tuple(shape), parse_dtype("float") or pytest.fail("no fp32")).elements
    assert (work.flops, work.bytes) == (elements, 12 * elements)


@given(st.permutations(["bool", "int64", "fp16", "bf16", "fp32", "fp64"]))
def test_promotion_does_not_depend_on_the_order(labels: list[str]) -> None:
    types = [dtype for label in labels if (dtype := parse_dtype(label)) is not None]
    for first, second in pairwise(types):
        assert promote([first, second]) == promote([second, first])
    assert promote(types).label == "fp64"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)
types = st.sampled_from(
    ["float", "c10::BFloat16", "c10::Half", "bool", "long int", "Scalar", "ScalarList",
     "TensorList", "GenericList", "", "c10::Float8_e4m3fn", "c10::complex<float>", "??"]
)  # fmt: skip
shapes = st.lists(st.integers(-1, 9) | st.integers(2**40, 2**70), max_size=5)
values = st.sampled_from(
    ["", "True", "False", "0", "1", "-1", "2", "[1, 1]", "[0]", "[]", "[True, False, True]",
     "0.5", "inf", "nan", "[-3, 2]", "__import__('os')", "9" * 40, "[[1]]"]
)  # fmt: skip
lists = st.lists(shapes | st.lists(shapes, max_size=3), max_size=16)
registry_module.load_models()
NAMES = sorted(registry_module._MODELS)


@pytest.mark.slow  # tries 1,500 calls
@settings(max_examples=1500)
@given(st.sampled_from(NAMES), lists, st.lists(types, max_size=16), st.lists(values, max_size=16))
def test_no_argument_makes_a_model_fail(
    name: str, dims: Any, kinds: list[str], concrete: list[str]
) -> None:
    """Only `UnknownWorkError` may come out of a model, and no negative number."""
    entry = registry_module.model_of(name)
    assert entry is not None
    try:
        work = entry.model(OpCall(name, dims, kinds, dims, concrete, ("kernel<float>",)))
    except UnknownWorkError as reason:
        assert str(reason)
        return
    assert (work.flops or 0) >= 0
    assert work.bytes_read >= 0
    assert work.bytes_written >= 0


@given(st.sampled_from(NAMES), json_values, json_values, json_values, json_values)
def test_no_text_makes_it_fail(name: str, dims: Any, kinds: Any, strides: Any, values: Any) -> None:
    texts = [json.dumps(part) for part in (dims, kinds, strides, values)]
    work, reason = work_of(name, *texts)
    assert (work is None) == bool(reason)
    assert "failed with" not in reason
    work_of(name, dims, kinds, strides, values)


def test_deep_nesting_is_no_recursion_error() -> None:
    deep = "[" * 100_000
    assert work_of("aten::mm", deep, deep)[0] is None


# ------------------------------------------------------------------------------- registry


@pytest.fixture
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry_module, "_MODELS", dict(registry_module._MODELS))
    yield


@pytest.mark.usefixtures("clean_registry")
def test_a_user_adds_a_model() -> None:
    def model(call: OpCall) -> Work:
        x = call.tensor(0)
        return Work(3 * x.elements, x.bytes, x.bytes, dtype=x.dtype.label)

    register("mylib::scale")(model)
    work = call("mylib::scale_", bf16(4, 8))
    assert (work.flops, work.bytes, work.dtype) == (96, 128, "bf16")


@pytest.mark.usefixtures("clean_registry")
def test_a_mistake_in_a_users_model_is_a_reason() -> None:
    register("mylib::broken")(lambda call: Work(1 / 0, 0, 0))
    work, reason = work_of("mylib::broken", [], [])
    assert work is None
    assert reason == "its model failed with ZeroDivisionError: division by zero"


def test_the_example_of_the_documentation_gives_its_work() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "roofline.md").read_text("utf-8")
    (block,) = (part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
                if "@register" in part)  # fmt: skip
    program = block + (
        "from torchtraceap.ops.models import work_of\n"
        'work, _ = work_of("mylib::scale", [[4, 8]], ["float"])\n'
        "print(work.flops, work.bytes)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert said.stdout.split() == [b"32", b"256"]


def test_attention_pads_its_sizes_to_tiles() -> None:
    assert tile_padding(64, 128, 32) == 1.0
    assert tile_padding(7, 4096, 16) == pytest.approx(64 / 7 * 2)
    assert tile_padding(65, 65, 80) == pytest.approx((128 / 65) ** 2 * 96 / 80)
    shapes = [[2, 8, 7, 16], [2, 8, 64, 16], [2, 8, 64, 16]]
    work, _ = work_of("aten::scaled_dot_product_attention", shapes, ["float"] * 3, None,
                      ["", "", "", "", "0.", "False"])  # fmt: skip
    assert work is not None and work.computed is not None
    assert work.flops == 4 * 2 * 8 * 7 * 64 * 16  # what is needed stays what it is
    assert work.computed == pytest.approx(work.flops * 64 / 7 * 2)


def test_sizes_beyond_any_machine_give_no_work() -> None:
    """So many that their product is no float."""
    shape = [10**12] * 60
    work, why_not = work_of("aten::add", [shape, shape], ["float", "float"])
    assert work is None and why_not == "its sizes are beyond any machine"
    assert durations.op_ns(OpCall("aten::add", [shape, shape], ["float", "float"]), "H200") is None


def test_a_range_is_counted_by_its_ends_where_its_memory_is_not_sized_yet() -> None:
    def written(dims: list[int], *ends: str) -> float | None:
        types = ["Scalar"] * 3 + ["long int"]
        work, _ = registry_module.work_of_call(
            OpCall("aten::arange", [[], [], [], dims], types, None, [*ends, ""])
        )
        return None if work is None else work.bytes

    assert written([0], "0", "14", "1") == 14 * 8
    assert written([0], "14", "0", "-4") == 4 * 8
    assert written([7], "", "", "") == 7 * 8
    assert written([0], "0", "14", "0") is None


def test_models_of_libraries_are_imported_for_their_operators_alone() -> None:
    """And a model that a user registered before stays in place of the library's own."""
    program = (
        "import sys\n"
        "from torchtraceap.ops.models import Work, model_of, register, work_of\n"
        "library = 'torchtraceap.ops.models.moe'\n"
        "own = register('aiter::rms_norm')(lambda call: Work(1, 2, 3))\n"
        "assert model_of('aten::mm') and not model_of('AddmmBackward')\n"
        "assert not model_of('torch::autograd::AccumulateGrad') and library not in sys.modules\n"
        "assert model_of('_moe_C::moe_align_block_size') or model_of('FusedRoPEFunc')\n"
        "assert library in sys.modules and model_of('aiter::rms_norm').model is own\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
