"""What a duration model answers: single estimates and many at once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchtraceap.ops import durations
from torchtraceap.ops.durations import Estimate, Estimates

A100, H100 = "A100-SXM4-80GB", "H100 SXM"


def test_every_model_says_how_far_it_may_be_off() -> None:
    answers = [
        durations.collective_ns("all_reduce", 1 << 24, 8, H100),
        durations.collective_ns("all_reduce", 1 << 24, 6, A100),
        durations.gemm_ns(4096, 4096, 4096, "bf16", H100),
        durations.copy_ns(1 << 24, "HtoD", True, A100),
        durations.copy_ns(1 << 24, "DtoD", True, A100),
        durations.elementwise_ns("add", 1 << 24, "fp32", A100),
        durations.softmax_ns(4096, 1024, "fp32", "V100-PCIE-32GB"),
        durations.layer_norm_ns(4096, 1024, "fp32", A100),
        durations.attention_ns(8, 16, 1024, 1024, 64, "bf16", A100),
        durations.embedding_bag_ns([durations.EmbeddingTable(10**6, 128, 20)], 4096, H100),
    ]
    for answer in answers:
        assert answer is not None
        assert 0 < answer.low_ns <= answer.ns <= answer.high_ns < math.inf
        assert answer.low_ns < answer.high_ns
        assert answer.source


def test_an_interval_around_a_time() -> None:
    one = Estimate.within_factor(100.0, 1.25, "measured")
    assert one == (100.0, 80.0, 125.0, "measured")


def test_many_estimates_keep_their_sources() -> None:
    first = Estimates.within_factor([1.0, 2.0], 2.0, "a table")
    second = Estimates.from_list(
        [Estimate(3.0, 2.0, 5.0, "another"), Estimate.within_factor(4.0, 2.0, "a table")]
    )
    both = Estimates.concatenate([first, second])
    assert len(both) == 4
    assert both.ns.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert both[2] == Estimate(3.0, 2.0, 5.0, "another")
    assert both[3] == Estimate(4.0, 2.0, 8.0, "a table")
    assert both.sources == ("a table", "another")


@pytest.mark.parametrize("nothing", [Estimates.from_list([]), Estimates.concatenate([])])
def test_no_estimates(nothing: Estimates) -> None:
    assert len(nothing) == 0
    assert nothing.ns.dtype == np.float64 and nothing.source.dtype == np.int32
