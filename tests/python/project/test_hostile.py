"""Traces that no profiler should write: every command answers, in bounded time, in clear words."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_traces import GpuTrace
from rank_samples import ALL_REDUCE, Job, describe

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.core.columns import encode_texts
from torchtraceap.core.table import ColumnTable, stack_ranks
from torchtraceap.errors import ParseError
from torchtraceap.ops.models.families import family_of
from torchtraceap.tables.catalog import TABLES, table_spec
from torchtraceap.tables.matching import match_collectives


def commands_of(name: str) -> Iterator[str]:
    """A table's command with each view, flag and choice."""
    spec = table_spec(name)
    yield from (f"{name} --by {view}" for view in spec.views)
    if not spec.views:
        yield name
    for option in spec.options:
        if option.kind in ("flag", "no_flag"):
            yield f"{name} {option.flag}"
        yield from (f"{name} {option.flag} {choice}" for choice in option.choices or ())


COMMANDS = [*chain.from_iterable(map(commands_of, TABLES)), "diagnose", "summary"]


def documents(path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[str, Any]]:
    """What every command says of a trace, as strict JSON."""
    for command in COMMANDS:
        name, *options = command.split()
        code = main([name, str(path), *options, "--json"])
        out, err = capsys.readouterr()
        assert "internal error" not in err, (command, err)
        if code == 2 and {"--compat", "--no-launch-edges"} & set(options):
            continue  # of the graph of another tool, which may need what the trace lacks
        assert code in (0, 1), (command, err)
        yield command, json.loads(out, parse_constant=_refuse)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def check(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command, document in documents(path, capsys):
        if "rows" not in document:
            continue
        columns = dict(zip(document["columns"], zip(*document["rows"], strict=True), strict=False))
        if command.startswith(("ops", "kernels --by")):
            name = "exclusive_gpu_ns" if command.startswith("ops") else "exclusive_ns"
            busy = document["busy_ns"]
            assert sum(columns.get(name, ())) == (sum(busy) if isinstance(busy, list) else busy)
        for share in ("busy_share", "cumulative_share", "time_share", "wait_share"):
            values = [value for value in columns.get(share, ()) if value is not None]
            assert all(0 <= value <= 1 + 1e-9 for value in values), (command, share)


def write(folder: Path, *events: dict[str, Any]) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return path


GARBAGE: list[Any] = [
    "x", None, -1, 2**63, 2**200, 1e308, [], [[]], [[-1, 4]], [["a"]], [[2**62, 2**62]] * 2,
    [[1e308, 2]], [[0, 0]] * 3, {"a": 1}, "[0, 1", "[1e99]", "0,1", True, [None, None],
]  # fmt: skip
ARGUMENTS = (
    "Input Dims", "Input type", "Input Strides", "Concrete Inputs", "Sequence number",
    "Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size",
    "Process Group Name", "Process Group Ranks", "In split size", "Seq", "bytes", "grid", "block",
    "registers per thread", "est. achieved occupancy %", "Bytes", "Total Allocated", "Device Id",
    "hlo_op", "Trace name",
)  # fmt: skip


@pytest.mark.parametrize("value", GARBAGE, ids=lambda value: repr(value)[:24])
def test_garbage_in_every_argument(
    value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = GpuTrace()
    args = dict.fromkeys(ARGUMENTS, value)
    trace.host("user_annotation", "ProfilerStep#1", 0, 400, **args)
    for at, name in enumerate(("aten::mm", "aten::convolution", "aten::sum", "record_param_comms")):
        trace.op(name, 100 * at, 90, **args)
        trace.launch("gemm", (100 * at + 5, 5), (100 * at + 20, 9), **args)
        trace.launch(
            "Memcpy HtoD", (100 * at + 11, 5), (100 * at + 30, 9), cat="gpu_memcpy", **args
        )
        trace.launch(ALL_REDUCE, (100 * at + 17, 5), (100 * at + 40, 9), stream=20, **args)
    trace.raw({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1,
               "ts": 50, "args": args})  # fmt: skip
    check(write(tmp_path, *trace.events), capsys)


@pytest.mark.parametrize(
    "text",
    ["9" * 5000, "[" + "9" * 5000 + ", 1, 1]", '"[' + "9" * 5000 + ']"', "-0", "1e999999",
     '"\\ud800"', '{"a":' * 2000 + "1" + "}" * 2000, "[1, " + "[" * 990 + "]" * 990 + ", 1]"],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_any_json_anywhere(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In every argument, and for what stands beside the events, whole and in its parts."""
    trace = GpuTrace().host("user_annotation", "ProfilerStep#1", 0, 400)
    args = dict.fromkeys(ARGUMENTS, "@")
    for at, name in enumerate(("aten::mm", "record_param_comms")):
        trace.op(name, 100 * at, 90, **args)
        trace.launch("gemm", (100 * at + 5, 5), (100 * at + 20, 9), **args)
        trace.launch(ALL_REDUCE, (100 * at + 17, 5), (100 * at + 40, 9), stream=20, **args)
    device = dict.fromkeys(("id", "name", "numSms", "totalGlobalMem", "computeMajor"), "@")
    job = dict.fromkeys(("pg_config", "rank", "world_size", "backend"), "@")
    path = tmp_path / "trace.json"
    for head in ({"distributedInfo": "@", "deviceProperties": "@"},
                 {"distributedInfo": job, "deviceProperties": [device]}):  # fmt: skip
        document = json.dumps(head | {"traceEvents": trace.events})
        path.write_text(document.replace('"@"', text), encoding="utf-8")
        check(path, capsys)


def test_an_event_that_python_cannot_hold(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    text = json.dumps({"traceEvents": GpuTrace().op("aten::mm", 0, 50, n="@").events})
    path.write_text(text.replace('"@"', "9" * 5000), encoding="utf-8")
    with pytest.raises(ParseError, match="row 0: Exceeds the limit"):
        ttap.load(path).event(0)


@pytest.mark.parametrize("depth", [980, 100_000])
def test_arguments_nested_deeper_than_python_reads(
    depth: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = GpuTrace().op("aten::mm", 0, 50, **{"Input Dims": "@"})
    trace.launch("gemm", (5, 5), (20, 9))
    text = json.dumps({"traceEvents": trace.events}).replace('"@"', "[" * depth + "]" * depth)
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    check(path, capsys)


def test_a_rank_without_gpu_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its roofline has other columns: what a rank's table lacks is absent."""
    job = Job(2).all_reduce([100, None], 200).host(1, "load", 0, 300)
    job.load(tmp_path / "job")
    check(tmp_path / "job", capsys)


def test_tables_with_other_columns_stack() -> None:
    one = ColumnTable({"a": np.array([1]), "t": encode_texts(["x"])}, facts={"f": 1})
    two = ColumnTable({"b": np.array([2.5]), "t": encode_texts(["y"])}, facts={"g": 2})
    both = stack_ranks([(0, one), (1, two)])
    assert both.to_dict()["rows"] == [[0, 1, "x", None], [1, None, "y", 2.5]]
    assert both.facts == {"f": [1, None], "g": [None, 2]}


def test_zero_length_and_wholly_overlapping_kernels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for length in (0, 500):
        trace = GpuTrace()
        for i in range(20):
            trace.gpu(f"k{i % 3}", 100, length)
        check(write(tmp_path, *trace.events), capsys)


@pytest.mark.parametrize("origin_us", [-2.2e15, 2.2e15, 1.7e15])
def test_times_at_the_ends_of_the_clock(
    origin_us: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = GpuTrace().host("user_annotation", "ProfilerStep#1", origin_us, 400)
    trace.op("aten::mm", origin_us + 1, 90).launch("gemm", (origin_us + 5, 5), (origin_us + 20, 9))
    trace.gpu("orphan", origin_us + 40, 20)
    check(write(tmp_path, *trace.events), capsys)


def test_work_beyond_any_machine_is_no_work(tmp_path: Path) -> None:
    sizes = [[2**60, 2**60], [2**60, 10**300]]
    args = {"Input Dims": sizes, "Input type": ["float", "float"]}
    trace = GpuTrace().op("aten::mm", 0, 50, **args).launch("gemm", (5, 5), (20, 9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for compat in (None, "tracelens"):
            (row,) = trace.load(tmp_path).roofline(compat=compat).records()
            assert row["tflops"] is None


def test_a_copy_larger_than_any_memory_has_no_size(tmp_path: Path) -> None:
    trace = GpuTrace()
    for i, size in enumerate((2**62, -1, 4096)):
        name = "Memcpy HtoD (Pageable -> Device)"
        trace.gpu(name, 10 * i, 4, cat="gpu_memcpy", bytes=size)
    (row,) = trace.load(tmp_path).memory().records()
    assert (row["count"], row["total_bytes"]) == (3, 4096)


def test_lists_of_the_core_are_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are new lists each time: a look-up by collective would take quadratic time."""
    job = Job(2)
    for i in range(30):
        group = describe("allreduce", 1, [0, 1], **{"Process Group Name": str(i)})
        job.all_reduce([100 * i + 10, 100 * i + 20], 100 * i + 60, **group)
    matched = match_collectives(job.load(tmp_path / "job"))
    assert matched.groups is matched.groups
    assert len(matched.groups) == 30
    assert matched.clocks is matched.clocks


def test_names_of_kilobytes_keep_their_family() -> None:
    assert family_of("aten::mm" + "_" * 100_000, ("gemm" + "x" * 100_000,)) == "gemm"


def test_markup_and_control_characters_in_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [
        "<script>alert(1)</script>",
        "\x1b[2J\x00",
        "\u202e",
        "a\nb",
        "'; DROP TABLE ops;--",
        "",
    ]
    trace = GpuTrace()
    for i, name in enumerate(names):
        trace.op(name, 100 * i, 90).launch(name, (100 * i + 5, 5), (100 * i + 20, 9))
        trace.host("user_annotation", name, 100 * i, 95)
    path = write(tmp_path, *trace.events)
    check(path, capsys)
    for command in ("ops", "kernels", "host", "diagnose"):
        assert main([command, str(path), "--no-color"]) in (0, 1)
        assert "\x1b" not in capsys.readouterr().out
    page = ttap.load(path).diagnose().to_html()
    assert "<script>alert(1)" not in page


def test_perfetto_s_format_begins_at_zero(tmp_path: Path) -> None:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = GpuTrace().op("aten::mm", -1000, 90).launch("gemm", (-990, 5), (-900, 100))
    trace.load(tmp_path).annotate(tmp_path / "out.pftrace")
    written = protos.Trace()
    written.ParseFromString((tmp_path / "out.pftrace").read_bytes())
    times = [packet.timestamp for packet in written.packet if packet.HasField("track_event")]
    assert min(times) == 0
    assert max(times) >= 200_000


def test_options_beyond_sense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path, *GpuTrace().gpu("k", 0, 5).events))
    for value in ("nan", "inf", "-1", "1e300", "x"):
        assert main(["kernels", path, "--short", "--below-us", value]) == 2
        assert "internal error" not in capsys.readouterr().err
    assert main(["kernels", path, "--short", "--below-us", "5.001", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["short_kernels"] == 1


def test_more_threads_than_any_machine_has(tmp_path: Path) -> None:
    path = write(tmp_path, *GpuTrace().gpu("k", 0, 5).events)
    assert ttap.load(path, threads=10**8).rank().table.total_objects == 1


def test_an_event_nested_too_deeply_is_refused_in_words(tmp_path: Path) -> None:
    deep = "[" * 50_000 + "]" * 50_000
    path = tmp_path / "deep.json"
    path.write_text(
        '{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1,'
        f'"args":{{"x":{deep}}}}}]}}'
    )
    with pytest.raises(ttap.errors.ParseError, match="row 0"):
        ttap.load(path).event(0)


def test_a_version_nested_too_deeply_is_none(tmp_path: Path) -> None:
    from torchtraceap.lab.prediction.timeline.profilers import (
        PROFILERS,
        detect_profiler,
        rewrite_for_profiler,
    )

    deep = "[" * 50_000 + "]" * 50_000
    path = tmp_path / "deep.json"
    path.write_text(
        f'{{"baseTimeNanoseconds":1,"cuda_runtime_version":{deep},"traceEvents":['
        f'{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1}}]}}'
    )
    table = ttap.load(path).ranks[0].table
    assert detect_profiler(table) is PROFILERS["2.6"]
    with pytest.raises(ttap.errors.ParseError, match="nested too deeply"):
        rewrite_for_profiler(table, PROFILERS["2.1"])
