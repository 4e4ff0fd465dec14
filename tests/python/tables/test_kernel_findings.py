"""Findings about the kernels of served models: each with what resembles it and is none."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from served_model import Served
from served_ranks import ServedRanks

import torchtraceap as ttap

TYPES = (
    "all_reduce_unfused",
    "dequantised_product",
    "exchange_exposed",
    "expert_imbalance",
    "kv_copies",
    "quantise_unfused",
)

Kernel = tuple[str, float]
"""Name and length in microseconds."""

NORM: Kernel = ("vllm::rms_norm_kernel<bf16>", 4)
PRODUCT: Kernel = ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", 20)
FP8: Kernel = ("deep_gemm::fp8_gemm_kernel<4096, 7168>", 20)
ATTENTION: Kernel = ("flash::flash_fwd_splitkv_kernel<128>", 20)
ADD: Kernel = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
    3,
)
REDUCE: Kernel = ("vllm::cross_device_reduce_1stage<bf16, 8>", 12)
QUANT: Kernel = ("vllm::dynamic_per_token_scaled_fp8_quant_kernel<bf16>", 4)
SILU: Kernel = ("vllm::act_and_mul_kernel<bf16, silu>", 5)
DISPATCH: Kernel = ("deep_ep::internode_ll::dispatch<true, 7168>", 30)
COMBINE: Kernel = ("deep_ep::internode_ll::combine<7168, 9, 4>", 50)
CAT: Kernel = ("void at::native::CatArrayBatchedCopy<at::native::OpaqueType<2u>>", 30)
EXPERTS: Kernel = ("deep_gemm::m_grouped_gemm_kernel<4096, 7168>", 60)


def decode(
    layer: list[Kernel],
    *,
    layers: int = 8,
    replays: int = 4,
    annotation: str = "step[DECODE bs=16]",
    beside: tuple[Kernel, ...] = (),
    device: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return replays of a graph of equal layers; `beside` runs on a second stream from the begin of
    each layer."""
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, start: float, length: float, **args: Any) -> None:
        host = category in ("user_annotation", "cuda_runtime")
        events.append({"ph": "X", "cat": category, "name": name, "pid": 1 if host else 0,
                       "tid": 1 if host else args["stream"], "ts": round(start, 3),
                       "dur": length, "args": args})  # fmt: skip

    now = 1000.0
    for replay in range(replays):
        add("user_annotation", annotation, now, 40)
        add("cuda_runtime", "cudaGraphLaunch", now + 2, 30, correlation=replay + 1)
        now += 40
        for _ in range(layers):
            start = now
            for name, length in layer:
                add("kernel", name, now, length, correlation=replay + 1, device=0, stream=7)
                now += length + 0.5
            other = start
            for name, length in beside:
                add("kernel", name, other, length, correlation=replay + 1, device=0, stream=9)
                other += length
    return {"traceEvents": events, "deviceProperties": [device or {"id": 0, "name": "NVIDIA H200"}]}


def found(trace: dict[str, Any], folder: Path) -> dict[str, Any]:
    path = folder / "trace.json"
    path.write_text(json.dumps(trace))
    diagnosis = ttap.load(path).diagnose()
    return {each.type: each for each in diagnosis.findings if each.type in TYPES}


def test_an_all_reduce_an_addition_and_a_norm_are_one_kernel_too_many(tmp_path: Path) -> None:
    findings = found(decode([NORM, PRODUCT, REDUCE, ADD, NORM, PRODUCT]), tmp_path)
    assert list(findings) == ["all_reduce_unfused"]
    cost = findings["all_reduce_unfused"]
    assert cost.cost_ns == 32 * (3 + 4 + 2 * 0.5) * 1000
    assert {each.name for each in cost.evidence} == {ADD[0], NORM[0]}


@pytest.mark.parametrize(
    ("reduce", "add", "norm"),
    [
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)",
            "residual_add_kernel",
            "RMSNormKernel",
        ),
        (
            "one_shot_all_reduce_kernel<bf16>",
            "triton_poi_fused_add_3",
            "triton_red_fused_mean_mul_pow_rsqrt_4",
        ),
    ],
)
def test_the_three_are_told_by_other_names_too(
    reduce: str, add: str, norm: str, tmp_path: Path
) -> None:
    layer = [PRODUCT, (reduce, 12), (add, 3), (norm, 4)]
    assert list(found(decode(layer), tmp_path)) == ["all_reduce_unfused"]


@pytest.mark.parametrize(
    "layer",
    [
        [PRODUCT, REDUCE, ("vllm::fused_add_rms_norm_kernel<bf16>", 5), PRODUCT],
        [PRODUCT, ("trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot<8>", 15), PRODUCT],
        [PRODUCT, REDUCE, ADD, PRODUCT, NORM],
        [PRODUCT, REDUCE, PRODUCT, ADD, NORM],
    ],
)
def test_fused_norms_and_other_orders_are_fine(layer: list[Kernel], tmp_path: Path) -> None:
    assert not found(decode(layer), tmp_path)


def test_training_is_not_told_to_fuse_like_serving(tmp_path: Path) -> None:
    layer = [PRODUCT, REDUCE, ADD, NORM, ("flash::flash_bwd_kernel<128>", 20), QUANT, FP8]
    assert not found(decode(layer, annotation="train"), tmp_path)


@pytest.mark.parametrize("before", [NORM, SILU, ("vllm::fused_add_rms_norm_kernel<bf16>", 5)])
def test_a_kernel_that_only_quantizes_could_be_part_of_the_one_before(
    before: Kernel, tmp_path: Path
) -> None:
    findings = found(decode([before, QUANT, FP8, ATTENTION, PRODUCT]), tmp_path)
    assert list(findings) == ["quantise_unfused"]
    assert findings["quantise_unfused"].cost_ns == 32 * 4000


@pytest.mark.parametrize(
    "layer",
    [
        [("vllm::rms_norm_dynamic_per_token_quant_kernel<bf16>", 5), FP8, ATTENTION],
        [("vllm::silu_mul_fp8_quant_kernel", 5), FP8, ATTENTION],
        [ATTENTION, QUANT, FP8],
        [NORM, QUANT, ATTENTION, PRODUCT],
    ],
)
def test_fused_and_needed_quantization_is_fine(layer: list[Kernel], tmp_path: Path) -> None:
    assert not found(decode(layer), tmp_path)


DEQUANT: Kernel = ("weight_dequant_kernel", 12)


def test_fp8_weights_are_multiplied_in_bf16(tmp_path: Path) -> None:
    findings = found(decode([NORM, DEQUANT, PRODUCT, ATTENTION]), tmp_path)
    assert list(findings) == ["dequantised_product"]
    assert findings["dequantised_product"].cost_ns == 32 * (12 + 20) * 1000


@pytest.mark.parametrize(
    "layer",
    [
        [NORM, ("vllm::awq::dequantize_weights", 12), PRODUCT, ATTENTION],
        [NORM, DEQUANT, FP8, ATTENTION],
        [NORM, DEQUANT, ATTENTION, PRODUCT],
        [NORM, ("gather_and_maybe_dequant_cache<bf16>", 1), PRODUCT, ATTENTION],
    ],
)
def test_four_bits_caches_and_fp8_products_are_fine(layer: list[Kernel], tmp_path: Path) -> None:
    assert "dequantised_product" not in found(decode(layer), tmp_path)


def test_a_device_without_fp8_has_no_choice(tmp_path: Path) -> None:
    device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}
    assert not found(decode([NORM, DEQUANT, PRODUCT, ATTENTION], device=device), tmp_path)


def test_a_cache_that_is_joined_in_every_layer(tmp_path: Path) -> None:
    findings = found(decode([NORM, PRODUCT, CAT, CAT, ATTENTION, PRODUCT]), tmp_path)
    assert list(findings) == ["kv_copies"]
    assert findings["kv_copies"].cost_ns == 32 * 2 * 30_000


def test_blocks_that_are_moved(tmp_path: Path) -> None:
    layer = [NORM, PRODUCT, ("vllm::copy_blocks_kernel<bf16, long>", 15), ATTENTION]
    assert list(found(decode(layer), tmp_path)) == ["kv_copies"]


@pytest.mark.parametrize(
    "layer",
    [
        [NORM, PRODUCT, ("vllm::reshape_and_cache_kernel<bf16>", 5), ATTENTION, PRODUCT],
        [NORM, PRODUCT, (CAT[0], 4), ATTENTION, PRODUCT],  # joins parts of the query
        [NORM, PRODUCT, CAT, PRODUCT, ATTENTION],
    ],
)
def test_writing_the_cache_and_joining_queries_is_fine(layer: list[Kernel], tmp_path: Path) -> None:
    assert not found(decode(layer), tmp_path)


MOE: list[Kernel] = [NORM, PRODUCT, ATTENTION, DISPATCH, EXPERTS, SILU, EXPERTS, COMBINE]


def test_an_exchange_without_compute_beside_it(tmp_path: Path) -> None:
    findings = found(decode(MOE), tmp_path)
    assert list(findings) == ["exchange_exposed"]
    assert findings["exchange_exposed"].cost_ns == 32 * (30 + 50) * 1000


def test_halves_of_a_batch_that_take_turns_hide_it(tmp_path: Path) -> None:
    length = sum(length + 0.5 for _, length in MOE)
    assert not found(decode(MOE, beside=((EXPERTS[0], length),)), tmp_path)


def test_one_request_cannot_be_split(tmp_path: Path) -> None:
    assert not found(decode(MOE, annotation="step[DECODE bs=1]"), tmp_path)


def test_a_short_exchange_is_not_worth_two_halves(tmp_path: Path) -> None:
    short = [(name, 6.0) if (name, length) in (DISPATCH, COMBINE) else (name, length)
             for name, length in MOE]  # fmt: skip
    assert not found(decode(short), tmp_path)


def test_ranks_that_wait_for_experts(tmp_path: Path) -> None:
    late = {(3, layer): 60.0 for layer in range(1, 7)}
    trace = ttap.load(ServedRanks(expert_us=late).write(tmp_path))
    finding = next(each for each in trace.diagnose().findings if each.type == "expert_imbalance")
    # Each of seven ranks waits in six layers of five iterations.
    assert finding.cost_ns == 7 * 6 * 5 * 60_000
    assert finding.ranks == (0, 1, 2, 4, 5, 6, 7)
    # With even shares each of eight ranks would compute an eighth of it.
    saved_ns = 6 * (60_000 - 60_000 // 8)
    assert finding.saving.low_ns <= saved_ns <= finding.saving.high_ns


def test_one_rank_alone_sees_its_waits_and_what_an_even_exchange_saves(tmp_path: Path) -> None:
    late = {(3, layer): 60.0 for layer in (2, 4)}
    trace = ServedRanks(served=Served(dense=1, experts=6, iterations=8), expert_us=late).traces()
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(trace[0]))
    loaded = ttap.load(path)
    finding = next(each for each in loaded.diagnose().findings if each.type == "expert_imbalance")
    assert finding.cost_ns == 2 * 8 * 60_000
    (edit,) = loaded.simulate(["balance_exchange"]).to_dict()["edits"]
    measured_ns = loaded.simulate([]).to_dict()["measured_ns"]
    assert measured_ns - edit["predicted_ns"] == pytest.approx(2 * 60_000, rel=0.05)
    assert edit["low_ns"] <= edit["predicted_ns"] <= edit["high_ns"]


@pytest.mark.parametrize(
    "job",
    [
        ServedRanks(jitter_us=1.5),
        ServedRanks(late_us={4: 900.0}),
        ServedRanks(served=Served(dense=8, experts=0, iterations=5), jitter_us=1.5),
    ],
)
def test_ranks_that_are_even_or_late_for_other_reasons(job: ServedRanks, tmp_path: Path) -> None:
    diagnosis = ttap.load(job.write(tmp_path)).diagnose()
    assert "expert_imbalance" not in [each.type for each in diagnosis.findings]


@pytest.mark.parametrize("seed", range(20))
def test_healthy_decoding_has_none_of_them(seed: int, tmp_path: Path) -> None:
    """Dense models and models with experts, of one to four streams."""
    rng = random.Random(seed)
    served = Served(
        dense=rng.choice((1, 3, 12, 36, 61)),
        experts=rng.choice((0, 0, 8, 24)),
        batch=rng.choice((1, 16, 64, 256)),
        iterations=rng.randint(3, 6),
        streams=rng.randint(1, 4),
        annotation=rng.choice(("step[DECODE bs={batch}]", Served.annotation)),
        seed=seed,
    )
    assert not found(served.trace(), tmp_path)
