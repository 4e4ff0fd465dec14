"""Fitting products on vector units to sums over whole models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import neusight_rows
import vector_fit
from torchtraceap.ops.devices import load_devices


def row(model: str, batch: int, device: str = "v100_pcie_32gb") -> neusight_rows.Row:
    kinds = dict.fromkeys(vector_fit.KINDS, 1.0)
    kernels = neusight_rows.kernels_of(model, batch, 512, with_head=False)
    return neusight_rows.Row(
        model, batch, 512, load_devices()[device], False, False, kinds, kinds, kinds, kinds, kernels
    )


def test_matmul_copies_heads_of_several_sequences() -> None:
    heads = 4 * 8 * 512 * 1024  # bytes of the queries of one layer of BERT
    assert neusight_rows.copied_bytes(row("bert_large", 8), "BMM") == 24 * 3 * 2 * heads
    assert neusight_rows.copied_bytes(row("bert_large", 1), "BMM") == 0.0
    assert neusight_rows.copied_bytes(row("bert_large", 8), "FC") == 0.0
    assert neusight_rows.copied_bytes(row("opt_13", 8), "BMM") == 0.0


def test_a_device_is_as_fast_as_its_rows_show_and_slow_ones_count_little() -> None:
    fast = np.full((2, 6), -0.3)
    assert vector_fit._deviation(fast)[0] == pytest.approx(-0.3, abs=0.06)
    slowed = np.tile([0.0, 0.0, 0.0, 0.5, 0.6], (2, 1))  # all sums of two runs alike
    assert vector_fit._deviation(slowed)[0] == pytest.approx(0.0, abs=0.03)
    assert vector_fit._deviation(np.full((2, 1), 0.3))[0] < 0.1  # one row proves little
    apart = np.stack([np.zeros(6), np.full(6, 0.4)])
    assert vector_fit._deviation(apart)[1] > vector_fit._deviation(np.zeros((2, 6)))[1] + 1.0


def test_numbers_that_made_the_sums_are_found_again() -> None:
    pytest.importorskip("scipy")
    pairs = [(model, batch) for model in neusight_rows.MODELS for batch in (1, 4)]
    devices = ("v100_pcie_32gb", "a100_pcie_80gb", "t4")
    rows = [row(model, batch, device) for model, batch in pairs for device in devices]
    true = vector_fit._model(vector_fit.BEGIN + 0.2)
    ms = {kind: true.ms(rows, kind) for kind in vector_fit.KINDS}
    made = [
        replace(one, measured={kind: float(ms[kind][at]) for kind in vector_fit.KINDS})
        for at, one in enumerate(rows)
    ]
    fitted = vector_fit.fit(made)
    for kind in vector_fit.KINDS:
        assert np.abs(fitted.ms(made, kind) / ms[kind] - 1).mean() < 0.03
    assert set(fitted.deviations) == {one.device.name for one in rows}
