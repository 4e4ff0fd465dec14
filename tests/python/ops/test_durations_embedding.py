"""Hit rates of embedding bags against an exact simulation of an LRU cache."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtraceap.ops.durations import UnknownDurationError, embedding_bag_ns
from torchtraceap.ops.durations.embedding import (
    EmbeddingTable,
    ReuseHistogram,
    che_hits,
    estimate_embedding_bags,
    traffic,
    uniform_hit_rate,
)


def lru_hits(stream: list[int], capacity: int) -> int:
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row in stream:
        if row in held:
            held.move_to_end(row)
            hits += 1
            continue
        held[row] = None
        if len(held) > capacity:
            held.popitem(last=False)
    return hits


def zipf_stream(exponent: float, length: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.permutation(np.minimum(rng.zipf(exponent, length), 20_000))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("exponent", [1.05, 1.3, 2.0])
@pytest.mark.parametrize("capacity", [20, 200, 2000, 10_000])
def test_che_is_within_half_a_point_of_the_exact_cache(
    exponent: float, capacity: int, seed: int
) -> None:
    stream = zipf_stream(exponent, 50_000, seed)
    _, counts = np.unique(stream, return_counts=True)
    exact = lru_hits(stream.tolist(), capacity) / stream.size
    approximate = che_hits(counts, np.ones(counts.size), capacity) / stream.size
    assert approximate == pytest.approx(exact, abs=0.005)


@pytest.mark.parametrize("capacity", [500, 2000, 8000])
def test_the_histogram_loses_little(capacity: int) -> None:
    stream = zipf_stream(1.2, 100_000, 3)
    histogram = ReuseHistogram.from_indices(stream)
    counts, shares = histogram.counts()
    unique = np.unique(stream).size
    exact = lru_hits(stream.tolist(), capacity) / stream.size
    assert che_hits(counts, shares * unique, capacity) / stream.size == pytest.approx(
        exact, abs=0.02
    )


def test_uniform_indices_agree_with_the_older_rule() -> None:
    rng = np.random.default_rng(0)
    stream = rng.integers(0, 5000, 60_000)
    _, counts = np.unique(stream, return_counts=True)
    ours = che_hits(counts, np.ones(counts.size), 1000) / stream.size
    exact = lru_hits(stream.tolist(), 1000) / stream.size
    assert ours == pytest.approx(exact, abs=0.01)
    assert uniform_hit_rate(5000, stream.size, 1000) == pytest.approx(exact, abs=0.02)
    # For skewed indices that rule is far off, ours is not.
    skewed = zipf_stream(1.3, 60_000, 1)
    true = lru_hits(skewed.tolist(), 100) / skewed.size
    assert abs(uniform_hit_rate(20_000, skewed.size, 100) - true) > 0.3


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=200),
    st.integers(1, 500),
)
@settings(deadline=None)
def test_hits_are_bounded_and_grow_with_the_cache(counts: list[int], capacity: int) -> None:
    rows = np.ones(len(counts))
    hits = che_hits(counts, rows, capacity)
    assert 0 <= hits <= sum(counts) - len(counts) + 1e-6
    assert hits <= che_hits(counts, rows, capacity + 1) + 1e-6 * sum(counts)
    assert che_hits(counts, rows, len(counts)) == pytest.approx(sum(counts) - len(counts))


def test_a_histogram_has_seventeen_bins() -> None:
    histogram = ReuseHistogram.from_indices([7, 7, 7, 1, 2, 2])
    assert histogram.shares[:3] == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert histogram.mean == 2.0
    counts, shares = histogram.counts()
    assert (counts * shares).sum() == pytest.approx(2.0, rel=0.2)
    for bad in ((0.5,), (-1.0, *[0.1] * 16), (0.0,) * 17):
        with pytest.raises(ValueError, match="shares"):
            ReuseHistogram(bad)
    with pytest.raises(ValueError, match="no indices"):
        ReuseHistogram.from_indices([])


def test_the_known_mean_moves_the_counts() -> None:
    shares = (0.5, 0.2, 0.2, 0.1, *[0.0] * 13)
    for mean in (2.0, 2.4):
        counts, share = ReuseHistogram(shares, mean).counts()
        assert (counts * share).sum() == pytest.approx(mean, rel=0.05)


def test_traffic_counts_whole_sectors_and_unique_rows() -> None:
    stream = zipf_stream(1.2, 32_768, 0)
    table = EmbeddingTable(20_000, 20, 8, ReuseHistogram.from_indices(stream))
    assert table.row_bytes == 96  # 80 bytes in sectors of 32
    moved = traffic(table, 4096, 1 << 30)
    assert moved.lookups - moved.hits == pytest.approx(np.unique(stream).size, rel=0.01)
    assert traffic(table, 4096, 1 << 30, "simple").missed_bytes == moved.rows_bytes
    assert traffic(table, 0, 1 << 20).rows_bytes == 0
    with pytest.raises(ValueError, match="no method"):
        traffic(table, 1, 1, "guess")


def test_skew_and_a_larger_cache_save_time() -> None:
    skewed = EmbeddingTable(
        10**7, 128, 64, ReuseHistogram.from_indices(zipf_stream(1.2, 262_144, 0))
    )
    flat = EmbeddingTable(10**7, 128, 64)
    fast = embedding_bag_ns([skewed], 4096, "V100-SXM2-32GB", strict=True)
    slow = embedding_bag_ns([flat], 4096, "V100-SXM2-32GB", strict=True)
    update = embedding_bag_ns([flat], 4096, "V100-SXM2-32GB", backward=True, strict=True)
    assert fast is not None and slow is not None and update is not None
    assert fast.ns < slow.ns < update.ns < 5 * slow.ns
    assert embedding_bag_ns([flat], 4096, "no such GPU") is None
    with pytest.raises(UnknownDurationError, match="no device of that name"):
        embedding_bag_ns([flat], 4096, "no such GPU", strict=True)


def test_a_run_in_a_public_trace() -> None:
    """hta/ddp_a100_rank_of_8: 122 tables, 8,192 bags, by the shapes of its lookups; kernels of six
    steps took 2.53 ms forward and 9.3 ms backward. The backward model was fitted to it."""
    table = EmbeddingTable(rows=90_837 / 122, columns=8816 / 122, lookups_per_bag=15.8e6 / 999_424)
    forward = estimate_embedding_bags([table] * 122, [8192], "A100 SXM 40GB")
    assert forward[0].ns == pytest.approx(2.53e6, rel=0.15)
    backward = estimate_embedding_bags([table] * 122, [8192], "A100 SXM 40GB", backward=True)
    assert backward[0].ns == pytest.approx(9.3e6, rel=0.15)
