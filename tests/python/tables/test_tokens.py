"""Events of windows as arrays: what Python adds to the core."""

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.errors import OptionError
from torchtraceap.tables.windows import Tokens, build_tokens


def event(cat, name, ts, dur, tid, **args):
    return {
        "ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid,
        "args": args,
    }  # fmt: skip


@pytest.fixture
def trace(write_trace):
    events = [
        event("cpu_op", "aten::add", 0, 20, 1),
        event("cuda_runtime", "cudaLaunchKernel", 2, 4, 1, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 8, 4, 1, correlation=2),
        event("kernel", "void add<float>(int)", 10, 5, 7, device=0, stream=7, correlation=1),
        event("kernel", "void add<double>(int)", 20, 80, 7, device=0, stream=7, correlation=2),
        event("kernel", "größer", 90, 4, 8, device=0, stream=8, correlation=77),
    ]
    return ttap.load(write_trace({"traceEvents": events}))


def test_names_are_canonical_and_each_there_once(trace):
    tokens = build_tokens(trace.rank(), windows=1, gaps=False, host=False)
    assert [tokens.names[i] for i in tokens.name] == ["add", "add", "größer"]
    assert [tokens.names[i] for i in tokens.cpu_name] == ["aten::add", "aten::add", "[no launch]"]
    assert len(set(tokens.names)) == len(tokens.names)
    assert tokens.delay_code[2] == 256


def test_windows_may_be_given(trace):
    windows = trace.windows(count=4)
    tokens = build_tokens(trace.rank(), windows=windows, gaps=False)
    assert tokens.window_count == 4 and tokens.offsets[-1] == len(tokens)
    assert _core.TokenKind.KERNEL in tokens.kind


def test_arrays_make_the_same_tokens(trace):
    tokens = build_tokens(trace.rank(), windows=3)
    again = Tokens.of_arrays(tokens.arrays())
    assert again.names == tokens.names
    for name, column in tokens.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], column)


def test_a_number_that_makes_no_sense(trace):
    for options in ({"cap": 0}, {"cap": 10**6}, {"windows": 0}):
        with pytest.raises(OptionError):
            build_tokens(trace.rank(), **options)


def test_a_trace_without_gpu_events_has_windows_without_tokens(write_trace):
    trace = ttap.load(write_trace({"traceEvents": [event("cpu_op", "aten::add", 0, 20, 1)]}))
    tokens = build_tokens(trace.rank(), windows=5, gaps=False)
    assert len(tokens) == 0 and tokens.offsets.tolist() == [0] * 6
