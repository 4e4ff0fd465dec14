"""Duration models on public measurements that they were not fitted to.

The folder is `TORCHTRACEAP_ORACLES`, else ../shared/oracles beside the project. Products of
matrices need scikit-learn for fitting; what is shipped is checked without it.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

import carried_over
import duration_data
import durations as bench
import fit_durations
import neusight_rows
import trace_kernels
from torchtraceap.ops import durations
from torchtraceap.ops.durations import embedding, gemm, kernels

ROOT = Path(__file__).resolve().parents[2]
ORACLES = Path(os.environ.get("TORCHTRACEAP_ORACLES", ROOT.parent / "shared" / "oracles"))

TRACES = Path(os.environ.get("TORCHTRACEAP_CORPUS", ROOT.parent / "shared" / "traces"))

needs_sklearn = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed"
)


@pytest.fixture(scope="module")
def oracles() -> Path:
    if not ORACLES.is_dir():
        pytest.skip(f"no folder of measurements at {ORACLES}; set TORCHTRACEAP_ORACLES")
    return ORACLES


def lines_or_skip(lines: list[bench.Line], what: str) -> dict[str, bench.Line]:
    if not lines:
        pytest.skip(f"no {what} in {ORACLES}")
    return {line["rows"]: line for line in lines}


# Collectives ------------------------------------------------------------------------------------


@pytest.mark.proof
def test_nccl_tables_with_every_other_size_held_out(oracles: Path) -> None:
    lines = lines_or_skip(bench.nccl_errors(oracles), "NCCL tables")
    assert lines["all"]["n"] > 1000
    assert lines["all"]["ours GMAE"] <= 2.8
    assert lines["all"]["ours MAPE"] <= 6.3
    for file, line in lines.items():
        for simpler in ("sigmoid", "alpha-beta", "log-log"):
            assert line["ours MAPE"] < line[f"{simpler} MAPE"], file
            assert line["ours GMAE"] < line[f"{simpler} GMAE"], file


def test_vtrain_tables_from_powers_of_two(oracles: Path) -> None:
    lines = lines_or_skip(bench.vtrain_errors(oracles), "vTrain tables")
    assert lines["all"]["ours MAPE"] <= 1.0
    assert lines["all"]["ours MAPE"] < lines["all"]["sigmoid MAPE"]


def test_vidur_tables_with_every_other_size_held_out(oracles: Path) -> None:
    lines = lines_or_skip(bench.vidur_errors(oracles), "vidur tables")
    for file, line in lines.items():
        assert line["ours MAPE"] <= 6.3, file
        assert line["ours MAPE"] < line["sigmoid MAPE"], file


def test_ranks_between_measured_ones_where_a_switch_links_them(oracles: Path) -> None:
    lines = lines_or_skip(bench.rank_errors(oracles), "tables of several numbers of ranks")
    switched = [line for name, line in lines.items() if "v100" not in name]
    assert all(line["ours MAPE"] < 15 for line in switched)


def test_shipped_collectives_are_what_was_measured(oracles: Path) -> None:
    """The newest nccl-tests of a device, through the function that edits call."""
    newest: dict[tuple[str, str, int], duration_data.Series] = {}
    for one in duration_data.nccl_series(oracles):
        if one.dtype == "half" and duration_data.known(one.device):
            key = one.device, one.kind, one.ranks
            version = [int(part) for part in one.library.split(".")]
            held = newest.get(key)
            if held is None or version > [int(part) for part in held.library.split(".")]:
                newest[key] = one
    checked = 0
    for (device, kind, ranks), one in newest.items():
        sizes, ns = one.arrays()
        answers = [durations.collective_ns(kind, size, ranks, device) for size in sizes]
        if all(answers):
            told = np.array([answer.ns for answer in answers if answer])
            large = sizes >= 1 << 20  # below, tables are made to ascend
            assert bench.mape(told, ns) < 15, one.file
            assert bench.mape(told[large], ns[large]) < 1, one.file
            checked += 1
    assert checked or not newest


# Products of matrices ---------------------------------------------------------------------------


def test_shipped_products_are_near_what_was_measured(oracles: Path) -> None:
    """A check of the files and their evaluation; the fit has seen these rows."""
    shipped = {(model.device.id, model.dtype): model for model in gemm.load_products().models}
    checked = 0
    for one in duration_data.products(oracles):
        model = shipped.get((one.device.id, one.dtype))
        if model is not None:
            chosen = np.random.default_rng(0).permutation(len(one.ns))[:2000]
            assert bench.mape(model.predict(one.shapes[chosen]), one.ns[chosen]) < 3
            checked += 1
    if not checked:
        pytest.skip("no measured products of a shipped device")


@needs_sklearn
@pytest.mark.proof
@pytest.mark.parametrize(
    ("groups", "most"), [(bench.shape_families, 3.4), (bench.weight_pairs, 3.4)]
)
def test_products_of_unseen_shapes(oracles: Path, groups: object, most: float) -> None:
    """80 % fitted to. Unseen weights: 3.1 % on H200 and 3.3 % on H100 over all five folds."""
    entries = duration_data.products(oracles)
    if not entries:
        pytest.skip("no measured products")
    for one in entries:
        test = bench.folds_of(groups(one.shapes), 5, seed=0) == 0  # type: ignore[operator]
        model = fit_durations.fit_products(one.shapes[~test], one.ns[~test], one.dtype, one.device)
        error = bench.mape(model.predict(one.shapes[test]), one.ns[test])
        base = gemm.base_ns(one.shapes[test], one.dtype, one.device)
        assert error <= most, one.file
        assert error < bench.mape(base, one.ns[test]) / 3, one.file


@needs_sklearn
def test_products_from_five_hundred_samples(oracles: Path) -> None:
    for one in duration_data.products(oracles):
        assert bench.few_samples(one, seeds=1)["ours MAPE"] <= 8, one.file


# fp32 kernels -----------------------------------------------------------------------------------


def test_kernels_of_unseen_lengths_and_unseen_gpus(oracles: Path) -> None:
    lines = lines_or_skip(bench.kernel_errors(oracles), "fp32 kernels")
    for kind, known, unseen in (("EW", 1, 19.3), ("softmax", 13.9, 19), ("LN", 10, 56.7)):
        assert lines[f"{kind}: unseen lengths, GPU known"]["ours MAPE"] <= known
        ours = lines[f"{kind}: unseen GPU (each once)"]["ours MAPE"]
        assert ours <= unseen
        assert ours < lines[f"{kind}: pure roofline"]["ours MAPE"]


@pytest.mark.proof
def test_neusights_own_test_rows(oracles: Path) -> None:
    """Below the published errors but for softmax on an unseen GPU; see the docs."""
    lines = lines_or_skip(bench.neusight_errors(oracles), "NeuSight's test rows")
    for kind in ("FC", "BMM", "EW", "LN"):
        assert lines[f"{kind}: unseen GPU or model"]["ours MAPE"] < neusight_rows.PUBLISHED[kind]
    for kind in ("FC", "BMM", "EW", "softmax", "LN"):
        known = lines[f"{kind}: unseen model, GPU known"]["ours MAPE"]
        assert known < neusight_rows.PUBLISHED[kind], kind
    for kind in ("FC", "BMM"):
        assert lines[f"{kind}: each GPU left out"]["ours MAPE"] < neusight_rows.PUBLISHED[kind]
        # What is shipped has seen these sums.
        assert lines[f"{kind}: as shipped"]["ours MAPE"] < 11


def test_lengths_beyond_those_fitted_to(oracles: Path) -> None:
    lines = lines_or_skip(bench.kernel_errors(oracles), "fp32 kernels")
    for kind in ("softmax", "LN"):
        assert lines[f"{kind}: lengths above 3,072 from those below"]["ours MAPE"] <= 6
        assert lines[f"{kind}: lengths below 768 from those above"]["ours MAPE"] <= 11


@needs_sklearn
@pytest.mark.proof
def test_intervals_hold_what_was_left_out(oracles: Path) -> None:
    """In 8 of 10 cases, wherever the devices differ; at least 7 of 10 are asked for here."""
    lines = lines_or_skip(carried_over.kernel_intervals(oracles), "fp32 kernels")
    lines |= lines_or_skip(carried_over.collective_intervals(oracles), "tables of collectives")
    for name, line in lines.items():
        assert line.get("interval holds", 1.0) >= 0.75, name
    assert lines["links, each chip left out"]["median error"] < 6


@needs_sklearn
@pytest.mark.proof
def test_products_of_traces_whose_program_was_left_out(oracles: Path) -> None:
    if not TRACES.is_dir():
        pytest.skip(f"no folder of traces at {TRACES}; set TORCHTRACEAP_CORPUS")
    rows = trace_kernels.kernels_of(TRACES)
    lines = lines_or_skip(carried_over.products_of_traces(oracles, rows), "products in traces")
    for name in ("all on matrix units", "all on vector units"):
        assert lines[name]["interval holds"] >= 0.75
        assert lines[name]["median error"] < 35 < lines[name]["roofline"] / 2


@needs_sklearn
def test_ratios_between_gpus(oracles: Path) -> None:
    if not TRACES.is_dir():
        pytest.skip(f"no folder of traces at {TRACES}; set TORCHTRACEAP_CORPUS")
    lines = lines_or_skip(carried_over.ratios(oracles, TRACES), "kernels on several GPUs")
    for name, line in lines.items():
        assert line["interval holds"] >= 0.75, name
        assert line["median error"] < 35, name


def test_the_kernels_of_the_test_rows_are_those_of_neusight(oracles: Path) -> None:
    """Our list of kernels gives the roofline sums that NeuSight's file has for the same rows."""
    rows = neusight_rows.test_rows(oracles)
    if not rows:
        pytest.skip("no test rows")
    published = neusight_rows.published_errors(oracles)
    assert published["FC"] == pytest.approx(13.88, abs=0.01)
    for row in rows:
        if row.device.name == "NVIDIA L4":
            continue  # that file's peaks differ for its batched products
        peak = row.device.vector["fp32"]
        for kind in ("FC", "softmax", "LN"):
            mine = [kernel for kernel in row.kernels if kernel.kind == kind]
            moved = sum(k.count * k.bytes for k in mine) / _their_bandwidth(row)
            flops = sum(k.count * k.flops for k in mine) / peak
            assert 1e3 * max(flops, moved * (kind != "FC")) == pytest.approx(
                row.rooflines[kind], rel=0.03
            ), (row.model, kind)


def _their_bandwidth(row: neusight_rows.Row) -> float:
    """H100 has 3.43 TB/s in their file and 3.35 in the datasheet; the others agree."""
    return {"NVIDIA H100 80GB HBM3": 3.43e12}.get(row.device.name, row.device.bandwidth)


def test_shipped_kernel_factors_are_those_of_the_fit(oracles: Path) -> None:
    rows = duration_data.kernel_rows(oracles)
    shipped = kernels.load_kernels()
    for (op, name), measured in rows.items():
        device = duration_data.device_of(name)
        model = shipped.get((op, device.id)) if device else None
        if device is not None and model is not None:
            told = fit_durations.called_ns(model, measured, device)
            assert bench.mape(told, measured[:, 2]) < 7, (op, name)


# Embedding bags ---------------------------------------------------------------------------------


def test_hit_rates_of_the_public_histograms(oracles: Path) -> None:
    lines = lines_or_skip(bench.embedding_errors(oracles, seeds=1, unique=5000), "histograms")
    for line in lines.values():
        assert line["ours points"] < 0.5
        assert line["ours points"] < line["uniform points"] / 10


def test_bins_tell_the_mean_reuse_roughly(oracles: Path) -> None:
    found = duration_data.histograms(oracles)
    if not found:
        pytest.skip("no histograms")
    for name, mean, shares, _ in found:
        counts, share = embedding.ReuseHistogram(shares).counts()
        assert (counts * share).sum() == pytest.approx(mean, rel=0.3), name
        counts, share = embedding.ReuseHistogram(shares, mean).counts()
        assert (counts * share).sum() == pytest.approx(mean, rel=0.03), name
