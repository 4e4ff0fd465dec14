"""Curves of time over size, and the simpler models that they are compared with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines import (
    fit_alpha_beta,
    fit_sigmoid,
    log_log_ns,
    roofline_ns,
)
from curves import fit_curve, isotonic
from torchtraceap.ops.devices import device_named
from torchtraceap.ops.durations.collectives import Curve

SIZES = 2.0 ** np.arange(9, 30)


def alpha_beta(sizes: np.ndarray) -> np.ndarray:
    return 8_000.0 + sizes / 200.0


def test_a_curve_of_start_and_rate_is_exact_between_its_knots() -> None:
    curve = fit_curve(SIZES[::2], alpha_beta(SIZES[::2]))
    assert curve.at(SIZES[1:-1:2]) == pytest.approx(alpha_beta(SIZES[1:-1:2]), rel=1e-12)


def test_log_log_overestimates_where_the_start_ends() -> None:
    at = SIZES[1:-1:2]
    errors = log_log_ns(SIZES[::2], alpha_beta(SIZES[::2]), at) / alpha_beta(at) - 1
    assert errors.max() > 0.05


def test_beyond_the_knots_time_goes_on_at_the_last_rate_and_stays_at_the_start() -> None:
    curve = fit_curve(SIZES, alpha_beta(SIZES))
    assert float(curve.at(4 * SIZES[-1])) == pytest.approx(alpha_beta(4 * SIZES[-1]))
    assert curve.at(8) == curve.ns[0]


def test_far_outside_the_sizes_there_is_no_answer() -> None:
    large_only = fit_curve(SIZES[12:], alpha_beta(SIZES[12:]))
    asked = [1024, SIZES[12], SIZES[-1], 16 * SIZES[-1], 100 * SIZES[-1]]
    assert large_only.covers(asked).tolist() == [False, True, True, True, False]


def test_one_knot_is_a_constant() -> None:
    assert float(fit_curve([4096], [7000]).at(8192)) == pytest.approx(7000)


@pytest.mark.parametrize(("sizes", "ns"), [([], []), ([0], [5]), ([8], [0])])
def test_what_is_not_positive_is_refused(sizes: list[float], ns: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        fit_curve(sizes, ns)


def test_thinning_keeps_the_tolerance() -> None:
    sizes = np.arange(1, 1025) * 2.0**20
    ns = 20_000 + sizes / 150 + 5e4 * np.sin(sizes / 2e8)
    thin = fit_curve(sizes, ns, tolerance=0.01)
    assert thin.sizes.size < 100
    assert np.abs(thin.at(sizes) / np.exp(isotonic(np.log(ns))) - 1).max() <= 0.01


def test_medians_over_bins_calm_noise() -> None:
    rng = np.random.default_rng(0)
    sizes = np.sort(rng.uniform(2048, 2**26, 2000))
    noisy = alpha_beta(sizes) * np.exp(rng.normal(0, 0.2, 2000))
    binned = fit_curve(sizes, noisy, per_octave=8)
    asked = np.geomspace(2**18, 2**25, 50)
    assert np.abs(binned.at(asked) / alpha_beta(asked) - 1).mean() < 0.05


@given(st.lists(st.floats(1.0, 1e12), min_size=1, max_size=50))
def test_isotonic_ascends_and_keeps_the_mean(values: list[float]) -> None:
    fitted = isotonic(values)
    assert (np.diff(fitted) >= -1e-9 * abs(fitted).max()).all()
    assert fitted.mean() == pytest.approx(np.mean(values))


@given(st.lists(st.tuples(st.integers(1, 1 << 40), st.floats(1.0, 1e12)), min_size=1, max_size=40))
def test_any_measurements_give_a_curve_that_never_falls(rows: list[tuple[int, float]]) -> None:
    curve = fit_curve([row[0] for row in rows], [row[1] for row in rows])
    assert isinstance(curve, Curve)
    times = curve.at(np.geomspace(1, 1 << 42, 200))
    assert (np.diff(times) >= -1e-6 * times.max()).all()


def test_the_sigmoid_has_three_sections() -> None:
    rate = 200.0 / (1.0 + np.exp(-0.7 * (np.log2(SIZES) - 21)))
    ns = np.maximum(9_000.0, SIZES / np.maximum(rate, 1e-3))
    curve = fit_sigmoid(SIZES, ns)
    assert np.abs(curve.at(SIZES) / ns - 1).mean() < 0.1
    assert curve.at([2.0**34])[0] == pytest.approx(2.0**34 / curve.peak)
    assert curve.first_log2 < curve.last_log2


def test_alpha_beta_is_found_and_never_negative() -> None:
    fitted = fit_alpha_beta(SIZES, alpha_beta(SIZES))
    assert fitted.alpha_ns == pytest.approx(8_000)
    assert fitted.ns_per_byte == pytest.approx(1 / 200)
    rate_only = fit_alpha_beta(SIZES, np.maximum(SIZES / 200.0 - 1e3, SIZES / 400.0))
    assert rate_only.alpha_ns >= 0 and rate_only.ns_per_byte > 0
    falling = fit_alpha_beta([1.0, 10.0, 100.0], [100.0, 90.0, 10.0])
    assert falling.alpha_ns >= 0 and falling.ns_per_byte >= 0


def test_the_roofline_is_the_longer_of_computing_and_moving() -> None:
    h100 = device_named("h100_sxm")
    flops, moved = 2.0 * 8192**3, 3.0 * 2 * 8192**2
    assert roofline_ns(flops, moved, h100, "matrix bf16") == pytest.approx(
        1e9 * flops / h100.matrix["bf16"]
    )
    assert roofline_ns(1.0, 1e9, h100, "vector fp32") == pytest.approx(1e18 / h100.bandwidth)
