"""Nothing of a user's own names reaches a model, and what it says of them comes back."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from torchtraceap.explanation.pack import Pack, pack_text
from torchtraceap.explanation.redaction import (
    KNOWN_NAMES,
    Redaction,
    known_form,
    read_sections,
    redact,
)

from .packs_by_hand import KERNEL, SECRET, any_text, make_pack, packs

STEM = "at::native::reduce_kernel"
PLACEHOLDER = re.compile(r"name_[0-9]+")


@pytest.mark.parametrize(
    "name",
    [
        "aten::mm",
        "aten::cudnn_convolution_backward",
        "c10d::allreduce_",
        "_c10d_functional::wait_tensor",
        "nccl:all_reduce",
        "nccl:send 0->1",
        "gloo:broadcast",
        "cudaLaunchKernel",
        "cudaStreamGetCaptureInfo_v2",
        "cudaMemcpyAsync_ptsz",
        "cuLaunchKernelEx",
        "hipExtModuleLaunchKernel",
        "ProfilerStep#12",
        "Optimizer.step#AdamW.step",
        "Optimizer.zero_grad#SGD.zero_grad",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "autograd::engine::evaluate_function: AddmmBackward0",
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
        "MaxPool2DWithIndicesBackward0",
        "TBackward",
        "Torch-Compiled Region: 8/3",
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_relu_f2f_stages_32x5_tn",
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_execute_kernel",
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_64x3_tn_align8",
        "nvjet_tst_192x192_64x3_2x1_v_bz_coopB_NNN",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "pytorch_flash::flash_fwd_kernel",
        "triton_poi_fused__to_copy_add_mul_3",
        "MIOpenBatchNormFwdTrainSpatial",
        "Cijk_Alik_Bljk_BBS_BH_MT64x64x64",
        "communication",
        "host_wait",
        "-",
        KERNEL,
    ],
)
def test_public_names_pass(name: str) -> None:
    assert known_form(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "aten::my secret client",
        "aten::mm secret",
        "aten::mm\nsecret",
        "aten::acme_mm",
        "ATEN::mm",
        " aten::mm",
        "c10d::acme",
        "nccl:acme",
        "nccl:all_reduce acme",
        "nccl:send 0->acme",
        "cudaAcmeLaunch",
        "cudaLaunchKernel_acme",
        "cudaLaunchKernel(acme)",
        "ProfilerStep#acme",
        "ProfilerStep#12 acme",
        "ProfilerStep#5551234567890",
        "ProfilerStep#\u0663",
        "Optimizer.step#AcmeAdam.step",
        "Optimizer.step#Adam.step.acme",
        "Optimizer.step#Adam.zero_grad",
        "enumerate(DataLoader)#_AcmeDataLoaderIter.__next__",
        "autograd::engine::evaluate_function: AcmeBackward",
        "autograd::engine::evaluate_function: AddmmBackward0 acme",
        "AcmeBackward0",
        "Torch-Compiled Region: acme",
        "Memcpy HtoD (Acme -> Device)",
        "Memset (Acme)",
        "ampere_acme_128x64_tn",
        "sm80_xmma_acme",
        "cutlass_80_tensorop_acme",
        "nvjet_acme_192x192",
        "ncclDevKernel_Acme",
        "triton_poi_fused_acme_3",
        "triton_acme_kernel_0",
        "add_kernel",
        "fused_attention_kernel",
        "acme::at::native::mm",
        "at::native::acme_kernel",
        "at::native::Bill",
        "at::train the user",
        "at::train user segment",
        "at::native::copy/home/acme",
        "at::native::\u0430dd",
        "Cijk_ACME_Bljk_MT64x64x64",
        "MIOpenAcme",
        "/home/acme/train.py(12): step",
        "nn.Module: AcmeHead_0",
        "acme.example.com",
        "name_1",
        "kernel_3",
        "12345678",
    ],
)
def test_other_names_do_not(name: str) -> None:
    assert known_form(name) is None


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("void at::native::reduce_kernel<4, acme::Op<float>>(acme::Op<float>)", STEM),
        ("void at::native::reduce_kernel<5551234567>()", STEM),
        ("_ZN2at6native13reduce_kernelILi4EN4acme2OpEEEvT_", STEM),
        ("void cutlass::Kernel<acme_gemm>(acme_gemm::Params)", None),
    ],
)
def test_unknown_arguments_are_left_out(name: str, shown: str | None) -> None:
    assert known_form(name) == shown


def test_lists_of_names_hold_names_alone() -> None:
    known = read_sections(KNOWN_NAMES)
    assert set(known) == {"operators", "nodes", "optimizers", "calls"}
    assert (
        known["optimizers"] >= {"Adam", "AdamW", "SGD"} and "Optimizer" not in known["optimizers"]
    )
    for names in known.values():
        assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_:]*", name) for name in names)


def test_placeholders_are_numbered_in_order_of_first_sight() -> None:
    redaction = Redaction()
    assert [redaction.shown(name) for name in ("acme", "aten::mm", "b corp", "acme")] == [
        "name_1",
        "aten::mm",
        "name_2",
        "name_1",
    ]
    assert redaction.restore("name_2 waits for name_1's end, (name_2)") == (
        "b corp waits for acme's end, (b corp)"
    )


def test_packs_of_a_run_share_placeholders() -> None:
    redaction = Redaction()
    first = redact(make_pack((SECRET, "other")), redaction)
    second = redact(make_pack(("new", "other")), redaction)
    assert [line.names[0] for line in first.tables[0].lines] == ["name_1", "name_2"]
    assert [line.names[0] for line in second.tables[0].lines] == ["name_3", "name_2"]


def test_what_looks_like_a_placeholder_stands_for_itself() -> None:
    redaction = Redaction()
    shown = [redaction.shown(name) for name in ("name_2", "name_1", "name_3 name_1")]
    assert shown == ["name_1", "name_2", "name_3"]
    assert redaction.restore("name_1 name_2 name_3") == "name_2 name_1 name_3 name_1"


def test_what_stands_for_nothing_stays() -> None:
    redaction = Redaction()
    redaction.shown("acme")
    text = "name_2 name_01 name_1x xname_1 name_ name_999999999999 name_0 Name_1"
    assert redaction.restore(text) == text


@given(st.lists(any_text, unique=True, max_size=8))
def test_names_come_back_exactly(names: list[str]) -> None:
    redaction = Redaction()
    shown = [redaction.shown(name) for name in names]
    for name, placeholder in zip(names, shown, strict=True):
        if PLACEHOLDER.fullmatch(placeholder):
            assert redaction.restore(placeholder) == name
            assert redaction.restore(f"the {placeholder}, then") == f"the {name}, then"
    assert len({text for text in shown if PLACEHOLDER.fullmatch(text)}) == sum(
        known_form(name) is None for name in names
    )


@given(packs())
def test_a_redacted_pack_has_known_names_and_placeholders_alone(pack: Pack) -> None:
    redacted = redact(pack, Redaction())
    for name in redacted.names():
        assert PLACEHOLDER.fullmatch(name) or known_form(name) == name
    assert redacted.every_metric() == pack.every_metric()
    assert [(key, event.row) for key, event in redacted.rows.items()] == [
        (key, event.row) for key, event in pack.rows.items()
    ]


# Letters that few words have, so that a piece of a secret is nowhere by chance.
secrets = st.text(st.sampled_from("qzxjkwvyQZXJKWVY"), min_size=4, max_size=20)
FRAMES = (
    "{}",
    "aten::{}",
    "aten::mm {}",
    "aten::mm::{}",
    "aten::mm<{}>",
    "{}::mm",
    "c10d::{}",
    "nccl:{}",
    "nccl:all_reduce_{}",
    "cuda{}",
    "cudaLaunchKernel{}",
    "hip{}",
    "ProfilerStep#{}",
    "Optimizer.step#{}.step",
    "Optimizer.step#Adam.step{}",
    "autograd::engine::evaluate_function: {}",
    "autograd::engine::evaluate_function: {}Backward0",
    "{}Backward0",
    "Memcpy HtoD ({} -> Device)",
    "void at::native::reduce_kernel<{}>(float)",
    "void at::native::{}<float>(float)",
    "at::native::reduce_kernel{}",
    "void at::native::reduce_kernel<4>({}::T)",
    "at::native::(anonymous namespace)::{}",
    "ampere_sgemm_{}_tn",
    "ampere_{}",
    "cutlass::Kernel<{}>",
    "cutlass::Kernel2<cutlass_80_{}>",
    "cutlass_80_tensorop_{}",
    "sm80_xmma_{}",
    "nvjet_{}",
    "nvjet_tst_{}_TNT",
    "ncclDevKernel_{}",
    "Cijk_{}_MT64x64x64",
    "Cijk_Ailk_Bljk_{}_MT64x64x64",
    "MIOpen{}",
    "triton_poi_fused_{}_0",
    "triton_{}",
    "_ZN2at6native9{}E",
    "gemv{}_kernel",
    "/home/{}/train.py(3): f",
    "nn.Module: {}_0",
    "[pl]{}",
    "enumerate(DataLoader)#_{}",
    "Torch-Compiled Region: {}",
    "## {} ##",
    "host-{}.example.com",
    "at::native::add\n{}",
)


@given(st.lists(st.tuples(st.sampled_from(FRAMES), secrets), min_size=1, max_size=6))
def test_no_piece_of_a_secret_is_shown(pairs: list[tuple[str, str]]) -> None:
    names = [frame.format(secret) for frame, secret in pairs]
    allowed = pack_text(redact(make_pack(("aten::mm",)), Redaction())).lower()
    shown = pack_text(redact(make_pack(names, names), Redaction())).lower()
    for _, secret in pairs:
        pieces = {secret[place : place + 4].lower() for place in range(len(secret) - 3)}
        assume(not any(piece in allowed for piece in pieces))
        assert not [piece for piece in pieces if piece in shown]
