"""Findings whose fix an edit of the simulator stands for show what the replay saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import WriteTrace
from fix_programs import FlawedProgram
from gpu_traces import GpuTrace

import torchtraceap as ttap

POINTWISE = "void at::native::vectorized_elementwise_kernel<4, MulFunctor>"


def allocated_by_the_driver() -> GpuTrace:
    trace = GpuTrace()
    for step in range(4):
        begin = 20_000.0 * step
        trace.host("user_annotation", f"ProfilerStep#{step + 3}", begin, 20_000)
        for i in range(60):
            at, number = begin + 300.0 * i, 1_000 * step + i
            trace.op("aten::mul", at, 280)
            trace.call("cudaMalloc", at + 1, 80, correlation=10_000 + number)
            trace.launch(POINTWISE, (at + 90, 5), (at + 100, 60))
            trace.call("cudaFree", at + 165, 80, correlation=20_000 + number)
    return trace


def read_into_pageable_memory() -> GpuTrace:
    trace = GpuTrace()
    for step in range(5):
        at = 3_000.0 * step
        trace.host("user_annotation", f"ProfilerStep#{step + 3}", at, 3_000)
        trace.op("aten::mm", at + 5, 20).launch("gemm", (at + 8, 5), (at + 20, 500))
        trace.op("aten::copy_", at + 40, 1_300)
        copied = (at + 45, 1_280), (at + 520, 800)
        name = "Memcpy DtoH (Device -> Pageable)"
        trace.launch(name, *copied, call="cudaMemcpyAsync", cat="gpu_memcpy", bytes=8 << 20)
        trace.op("aten::mm", at + 1_400, 20).launch("gemm", (at + 1_405, 5), (at + 1_420, 1_500))
    return trace


def written_as_a_formula() -> GpuTrace:
    trace = GpuTrace()
    for step in range(4):
        begin = 16_400.0 * step
        trace.host("user_annotation", f"ProfilerStep#{step + 3}", begin, 16_400)
        host, gpu = begin, begin + 400
        for _ in range(20):
            trace.op("aten::mm", host, 8).launch("ampere_gemm", (host + 1, 5), (gpu, 300))
            host, gpu = host + 10, gpu + 300
            for _ in range(5):
                trace.op("aten::mul", host, 8)
                trace.launch(POINTWISE, (host + 1, 5), (gpu, 100), grid=[64, 1, 1])
                host, gpu = host + 10, gpu + 100
        trace.call("cudaDeviceSynchronize", host, gpu - host - 1, correlation=90_000 + step)
    return trace


@pytest.mark.parametrize(
    ("make", "finding_type", "edit"),
    [
        (allocated_by_the_driver, "uncached_allocator", "no_allocator_calls"),
        (read_into_pageable_memory, "pageable_readback", "pin_memory=DtoH"),
        (written_as_a_formula, "unfused_pointwise", "fuse_pointwise"),
    ],
)
def test_the_replay_prices_the_fix(
    tmp_path: Path, make: Callable[[], GpuTrace], finding_type: str, edit: str
) -> None:
    findings = make().load(tmp_path).diagnose().findings
    saving = next(finding.saving for finding in findings if finding.type == finding_type)
    assert saving is not None and saving.simulated
    assert saving.edit == edit and 0 < saving.best_ns <= saving.high_ns


def test_a_formula_saves_nearly_what_its_kernels_take(tmp_path: Path) -> None:
    findings = written_as_a_formula().load(tmp_path).diagnose().findings
    saving = next(finding.saving for finding in findings if finding.type == "unfused_pointwise")
    # 20 chains of 5 kernels in a step: at best 4 of each go.
    assert saving is not None and saving.high_ns == pytest.approx(20 * 4 * 100_000, rel=0.1)


def round_trips(*, pageable_up: float, pinned_down: float) -> GpuTrace:
    """Steps of a kernel, a small upload from pageable memory and a read into pinned memory."""
    trace = GpuTrace()
    length = 4_000 + pageable_up + pinned_down
    for step in range(5):
        at = length * step
        trace.host("user_annotation", f"ProfilerStep#{step + 3}", at, length)
        copies = (
            ("Memcpy HtoD (Pageable -> Device)", pageable_up),
            ("Memcpy DtoH (Device -> Pinned)", pinned_down),
        )
        trace.op("aten::mm", at + 5, 20).launch("gemm", (at + 8, 5), (at + 20, 3_900))
        at += 3_930
        for name, dur in copies:
            trace.op("aten::copy_", at, dur + 30)
            runs = (at + 5, dur + 10), (at + 10, dur)
            size = int(dur * 5_000)
            trace.launch(name, *runs, call="cudaMemcpyAsync", cat="gpu_memcpy", bytes=size)
            trace.call("cudaStreamSynchronize", at + dur + 18, 5)
            at += dur + 32
    return trace


def test_copies_that_pinning_hardly_touches_keep_their_bound(tmp_path: Path) -> None:
    diagnosis = round_trips(pageable_up=40, pinned_down=2_000).load(tmp_path).diagnose()
    finding = diagnosis.finding("high_memcpy")
    assert finding is not None and finding.saving is not None
    assert not finding.saving.simulated
    assert "changes a small part of it" in finding.saving.note
    assert diagnosis.lead is not None and diagnosis.lead.type == "high_memcpy"


def test_copies_that_pinning_makes_shorter_show_what_it_saves(tmp_path: Path) -> None:
    diagnosis = round_trips(pageable_up=2_000, pinned_down=40).load(tmp_path).diagnose()
    finding = diagnosis.finding("high_memcpy")
    assert finding is not None and finding.saving is not None
    assert finding.saving.simulated and finding.saving.edit == "pin_memory"


# ------------------------------------------------------------------ steps that vary by a fault


def varying(
    write_trace: WriteTrace,
    *,
    steps: int = 12,
    retries_us: Mapping[int, float] | None = None,
    pauses_us: Mapping[int, float] | None = None,
    fetches_us: Mapping[int, float] | None = None,
    slow: Mapping[int, float] | None = None,
    jitter: float = 0.01,
) -> ttap.Diagnosis:
    """Steps of 40 kernels of half a millisecond, which vary, and what some of them have beside
    that: retries of the allocator, silence of the host, a batch that takes long, slow kernels."""
    program, random = FlawedProgram(), Random(7)
    for number in range(steps):
        retry_us = (retries_us or {}).get(number, 0.0)
        factor = (1 + jitter * random.gauss(0, 1)) * (slow or {}).get(number, 1.0)
        with program.step(number + 5):
            if fetches_us:
                with program.range(FETCH, "user_annotation"):
                    program.work(fetches_us.get(number, 500.0))
            for kernel in range(40):
                with program.range("aten::mm"):
                    for name in ("cudaFree", "cudaMalloc") if kernel == 5 and retry_us else ():
                        program.synchronize(name)
                        program.events[-1]["dur"] += retry_us
                        program.work(retry_us)
                    program.launch("gemm", 500 * factor)
            program.synchronize()
            program.work((pauses_us or {}).get(number, 0.0))
    return ttap.load(write_trace(program.document())).diagnose()


RETRIES = dict.fromkeys((1, 5, 9), 6_000.0)
FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def believed_ns(diagnosis: ttap.Diagnosis, finding_type: str) -> int:
    finding = diagnosis.finding(finding_type)
    assert finding is not None and finding.saving is not None
    return finding.saving.believed_ns


@pytest.mark.parametrize(
    ("beside", "finding_type"),
    [
        ({}, "allocator_thrash"),
        ({"pauses_us": {3: 60_000, 7: 60_000}}, "host_silence"),  # a checkpoint, a collection
        ({"fetches_us": {2: 80_000, 6: 80_000, 10: 80_000}}, "single_process_data_loading"),
    ],
)
def test_what_makes_some_steps_long_hides_neither_its_own_fix_nor_another(
    write_trace: WriteTrace, beside: dict[str, Any], finding_type: str
) -> None:
    diagnosis = varying(write_trace, retries_us=RETRIES, **beside)
    assert believed_ns(diagnosis, finding_type) > 0
    assert diagnosis.lead is not None and diagnosis.lead.type == finding_type
    # Three of twelve steps lose 12 ms each.
    assert believed_ns(diagnosis, "allocator_thrash") == pytest.approx(3e6, rel=0.05)
    assert "noise" not in str(diagnosis.finding("allocator_thrash"))
    check = diagnosis.replay
    assert check is not None and check.noise_ns is not None
    if beside:
        assert check.noise_ns > 3e6  # the interval still tells how much such steps differ


def test_the_interval_keeps_what_the_fix_does_not_take_off(write_trace: WriteTrace) -> None:
    alone = varying(write_trace, retries_us=RETRIES)
    beside = varying(write_trace, retries_us=RETRIES, pauses_us={3: 60_000, 7: 60_000})
    widths = []
    for diagnosis in (alone, beside):
        finding = diagnosis.finding("allocator_thrash")
        assert finding is not None and finding.saving is not None
        widths.append(finding.saving.high_ns - finding.saving.low_ns)
    assert widths[1] > 5 * widths[0]


@pytest.mark.parametrize(
    "varies",
    [{"jitter": 0.2}, {"slow": {2: 3.0, 7: 3.0}}, {"jitter": 0.03, "slow": {4: 2.0}}],
    ids=["all steps", "two steps", "one step"],
)
def test_steps_that_vary_without_a_cause_hide_a_small_saving(
    write_trace: WriteTrace, varies: dict[str, Any]
) -> None:
    fetches = dict.fromkeys(range(12), 1_200.0)
    diagnosis = varying(write_trace, fetches_us=fetches, **varies)
    finding = diagnosis.finding("single_process_data_loading")
    assert finding is not None and finding.saving is not None
    assert finding.saving.simulated and finding.saving.best_ns == 0
    assert "lies below the steps' own noise" in finding.saving.note
    assert not diagnosis.plan
    # The same fix where nothing varies saves half a millisecond.
    assert believed_ns(
        varying(write_trace, fetches_us=fetches, jitter=0.0), "single_process_data_loading"
    ) == pytest.approx(0.5e6, rel=0.1)
