"""Times and sizes at the ends of what a trace may claim: sums stop there, and nothing wraps."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_traces import GpuTrace
from hypothesis import given
from hypothesis import strategies as st
from rank_samples import ALL_REDUCE
from test_hostile import COMMANDS

import torchtraceap as ttap
from torchtraceap import cli
from torchtraceap.core import sums
from torchtraceap.core.formatting import exact_us, format_ns
from torchtraceap.report.annotate import build_slices

LONGEST_US = 2_299_999_999_999_999  # of an event; the reader takes nothing longer
LARGEST = 2**63 - 1
SIGNED = ("start", "end", "since", "delay", "offset", "drift", "difference", "delta", "change",
          "saved", "saving", "gain", "z_", "trend", "slope", "lateness", "at_ns", "error",
          "ts_ns", "net_", "correction", "row", "bounds_ns", "peak_time_ns")  # fmt: skip
"""Parts of names of what may be negative: times, and differences."""
TIMES = {
    "memory --by timeline": {"time_ns"},
    "memory --by counter": {"time_ns"},
    "launches --by queue": {"time_ns"},
}
"""Further names of times, by command."""


def job(start: Callable[[int], float], length: Callable[[int], float], rank: int = 0) -> GpuTrace:
    """Every kind of event, several times: the i-th one begins and lasts as the functions say."""
    trace = GpuTrace()
    counter = iter(range(10_000))

    def when() -> tuple[float, float]:
        i = next(counter)
        return start(i), length(i)

    shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"],
              "Input Strides": [[64, 1], [64, 1]], "Concrete Inputs": ["", ""]}  # fmt: skip
    group = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 2**40,
             "Out msg nelems": 2**40, "Group size": 2, "Process Group Name": "0",
             "Process Group Ranks": "[0, 1]"}  # fmt: skip
    for step in range(3):
        trace.host("user_annotation", f"ProfilerStep#{step}", *when())
        trace.host("python_function", "nn.Module: Net_0", *when())
        trace.host("user_annotation", "enumerate(DataLoader)#x.__next__", *when())
        for _ in range(5):
            trace.op("aten::mm", *when(), **shapes)
            trace.launch("gemm", when(), when(), grid=[1024, 1, 1], block=[1024, 1, 1])
            trace.launch("Memcpy HtoD (Pageable -> Device)", when(), when(), cat="gpu_memcpy",
                         bytes=2**59, call="cudaMemcpyAsync")  # fmt: skip
            trace.op("record_param_comms", *when(), Seq=step, **group)
            trace.launch(ALL_REDUCE, when(), when(), stream=20, Seq=step, **group)
            trace.call("cudaMalloc", *when()).call("cudaStreamSynchronize", *when())
            trace.gpu("orphan", *when(), stream=9)
            trace.memory(when()[0], 2**62, **{"Total Allocated": 2**62, "Device Id": 0})
    return trace


def spread(i: int) -> float:
    return (-1.0 if i % 2 else 1.0) * (2.2e15 - i)


FAMILY: dict[str, tuple[Callable[[int], float], Callable[[int], float]]] = {
    "all as long as can be": (lambda i: float(i), lambda i: 2e15),
    "one after the other": (lambda i: -2.2e15 + 1e13 * i, lambda i: 1e13),
    "at both ends, short": (spread, lambda i: 5.0),
    "at both ends, long": (spread, lambda i: 2e15),
    "at the beginning, long": (lambda i: -2.2e15, lambda i: 2.2e15 - i),
    "before zero": (lambda i: -1000.0 + 7.5 * i, lambda i: 0.125 * (i % 9)),
    "nothing lasts": (lambda i: 0.0, lambda i: 0.0),
    "no time at all": (lambda i: (1e300, -1e300, 9.2e18, 1.5, -9.3e15)[i % 5],
                       lambda i: (1e300, 5.0, 9.2e18, -1.0, 2e15)[i % 5]),
    "fractions": (lambda i: 1e9 + i / 3, lambda i: i / 7),
}  # fmt: skip


@pytest.fixture(scope="module", params=FAMILY)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    start, length = FAMILY[request.param]
    made = tmp_path_factory.mktemp("extreme")
    for rank in range(2):
        trace = job(start, length, rank)
        document = {
            "traceEvents": trace.events,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}],
        }
        (made / f"rank{rank}.json").write_text(json.dumps(document), encoding="utf-8")
    return made


def figures(document: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a document with the names that lead to it."""
    if isinstance(document, dict):
        if "rows" in document and "columns" in document:
            for row in document["rows"]:
                for name, value in zip(document["columns"], row, strict=True):
                    yield from figures(value, f"{path}/{name}")
        for key, value in document.items():
            if key != "rows":
                yield from figures(value, f"{path}/{key}")
    elif isinstance(document, list):
        for value in document:
            yield from figures(value, path)
    elif isinstance(document, (int, float)) and not isinstance(document, bool):
        yield path, document


def wrong(command: str, document: Any) -> set[str]:
    """Names of figures that are negative and must not be, or no 64-bit integers."""
    names = set()
    for path, value in figures(document):
        name = path.rpartition("/")[2]
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            names.add(f"{path} = {value} has more than 64 bits")
        measure = name.endswith(("_ns", "_bytes", "_share", "count", "calls", "_us", "_ms"))
        signed = any(part in name for part in SIGNED) or name in TIMES.get(command, ())
        if measure and value < 0 and not signed:
            names.add(f"{path} = {value}")
    return names


EVERY = [*COMMANDS, "simulate", "simulate --plan", "explain-idle"]


@pytest.mark.parametrize("command", EVERY)
def test_no_sum_wraps(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, *options = command.split()
    for place in (folder, folder / "rank0.json"):
        with np.errstate(all="raise"), warnings.catch_warnings():
            warnings.simplefilter("error")
            code = cli.main([name, str(place), *options, "--json"])
            out, err = capsys.readouterr()
            assert "internal error" not in err, err
            if code == 2:
                continue
            assert wrong(command, json.loads(out)) == set()
            assert cli.main([name, str(place), *options]) in (0, 1)
            capsys.readouterr()


@pytest.mark.parametrize(
    "words",
    [
        ["convert", "{}/rank0.json", "out.json.gz"],
        ["convert", "{}/rank0.json", "out.parquet"],
        ["merge", "{}", "out.json"],
        ["annotate", "{}/rank0.json", "out.json"],
        ["annotate", "{}/rank0.json", "out.pftrace"],
        ["report", "{}", "--html", "out.html"],
        ["report", "{}", "--tracelens-csv", "out"],
        ["diff", "{}/rank0.json", "{}/rank1.json", "--html", "out.html"],
    ],
    ids=lambda words: f"{words[0]} {words[-1]}",
)
def test_extreme_times_can_be_exported(
    words: list[str],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for suffix, module in ((".parquet", "pyarrow"), (".pftrace", "perfetto")):
        if words[-1].endswith(suffix):
            pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        code = cli.main([word.format(folder) for word in words])
    assert code == 0, capsys.readouterr().err
    if words[0] in ("merge", "convert") and "json" in words[-1]:
        written = ttap.load(tmp_path / words[-1])
        assert "bad_start" not in {entry.code for entry in written.diagnostics}


# ------------------------------------------------------------------------------ known sums


def test_sums_of_durations_stop_at_the_end_of_64_bits(tmp_path: Path) -> None:
    trace = GpuTrace()
    for i in range(6):
        event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": i}
        trace.raw(event | {"ts": 1, "dur": 2e15})
        trace.gpu("gemm", 1 + i, 2e15)
    loaded = trace.load(tmp_path)
    (op,) = (row for row in loaded.ops().records() if row["name"] == "aten::mm")
    assert (op["host_ns"], op["self_host_ns"]) == (LARGEST, LARGEST)
    assert op["host_mean_ns"] == pytest.approx(2e18)
    (kernel,) = loaded.kernels().records()
    assert kernel["sum_ns"] == LARGEST
    assert kernel["mean_ns"] == pytest.approx(2e18)
    assert kernel["exclusive_ns"] == 2 * 10**18 + 5000
    assert loaded.kernels().facts["busy_ns"] == 2 * 10**18 + 5000


WHOLE = [0, 1, -1, 2**31, -(2**31), 2**32, 2**62, -(2**62), 2**63 - 1, -(2**63)]


@given(st.lists(st.sampled_from(WHOLE) | st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_sums_are_those_of_whole_numbers_in_64_bits(numbers: list[int]) -> None:
    def stop(value: int) -> int:
        return max(-(2**63), min(value, 2**63 - 1))

    values = np.array(numbers, dtype=np.int64)
    exact = stop(sum(numbers))
    assert sums.total(values) == exact
    assert sums.totals(values[None, :], 1).tolist() == [exact]
    assert sums.cumulative(values).tolist() == [stop(n) for n in accumulate(numbers)]
    half = len(numbers) // 2
    starts = np.array([0, half] if half else [0])
    parts = [numbers[:half], numbers[half:]] if half else [numbers]
    assert sums.sum_groups(values, starts).tolist() == [stop(sum(part)) for part in parts]
    index = np.arange(len(numbers)) % 3
    by_index = [stop(sum(numbers[i::3])) for i in range(3)]
    assert sums.sum_by_index(index, values, 3).tolist() == by_index
    twice = [stop(a + b) for a, b in zip(numbers, reversed(numbers), strict=True)]
    assert sums.add(values, values[::-1]).tolist() == twice
    masked = np.ma.array(values, mask=index == 0)
    assert sums.total(masked) == stop(sum(n for i, n in enumerate(numbers) if i % 3))


def test_floats_beyond_64_bits_stop_there() -> None:
    given = np.array([0.4, -0.6, np.nan, 1e300, -1e300, np.inf])
    assert sums.round_to_int(given).tolist()[:3] == [0, -1, 0]
    assert [n > 2**62 for n in sums.round_to_int(given).tolist()[3:]] == [True, False, True]


# ------------------------------------------------------------------------------ times below zero


@pytest.mark.parametrize("origin_us", [-1000.0, -0.5, 0.0, -1e12])
def test_times_below_zero_are_written_right(origin_us: float, tmp_path: Path) -> None:
    trace = GpuTrace()
    for i in range(12):
        at = origin_us + i * 0.125
        trace.op("aten::mm", at, 0.25).launch("gemm", (at, 0.001), (at + 0.25, 0.5))
    trace.op("aten::mm", origin_us + 5, 0.999)
    loaded = trace.load(tmp_path)
    (part,) = loaded.ranks
    wanted = sorted(zip(part.table.ts_ns.tolist(), part.table.dur_ns.tolist(), strict=True))
    first_ns = round(origin_us * 1000)
    assert wanted[0][0] == first_ns
    for name in ("copy.json", "copy.json.gz"):
        assert cli.main(["convert", str(tmp_path / "trace.json"), str(tmp_path / name)]) == 0
        (again,) = ttap.load(tmp_path / name).ranks
        assert again.table.ts_ns.tolist() == part.table.ts_ns.tolist()
        assert again.table.dur_ns.tolist() == part.table.dur_ns.tolist()
    loaded.merge(tmp_path / "merged.json")
    (merged,) = ttap.load(tmp_path / "merged.json").ranks
    kept = np.flatnonzero(merged.table.complete)
    times = zip(merged.table.ts_ns[kept].tolist(), merged.table.dur_ns[kept].tolist(), strict=True)
    assert sorted(times) == wanted
    loaded.events().to_csv(tmp_path / "events.csv")
    with (tmp_path / "events.csv").open(encoding="utf-8", newline="") as file:
        assert sorted((int(r["ts_ns"]), int(r["dur_ns"])) for r in csv.DictReader(file)) == wanted
    slices = build_slices(loaded.diagnose(), None)
    loaded.annotate(tmp_path / "drawn.json")
    drawn = json.loads((tmp_path / "drawn.json").read_text(encoding="utf-8"), parse_float=Decimal)
    ours = [e for e in drawn["traceEvents"] if e.get("cat") == "torchtraceap" and e["ph"] == "X"]
    expected = [(start, end - start) for track in slices
                for start, end in zip(track.start_ns, track.end_ns, strict=True)]  # fmt: skip
    assert [(int(1000 * e["ts"]), int(1000 * e["dur"])) for e in ours] == expected
    assert any(e["ts"] < 0 for e in ours) == (origin_us < 0)


@pytest.mark.parametrize(
    ("ns", "text"),
    [(-500, "-0.5"), (-1, "-0.001"), (-999, "-0.999"), (-1000, "-1"), (-1500, "-1.5"), (0, "0"),
     (100_000, "100"), (1_700_000_000_000_000_001, "1700000000000000.001")],
)  # fmt: skip
def test_microseconds_are_exact(ns: int, text: str) -> None:
    assert exact_us(ns) == text
    assert _signed_units(ns) == (ns < 0)


def _signed_units(ns: int) -> bool:
    return format_ns(ns).startswith("-")
