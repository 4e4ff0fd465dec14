"""Copies, allocator calls, `[memory]` events and files of export_memory_timeline."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_traces import GpuTrace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torchtraceap as ttap
from torchtraceap.errors import MissingFileError, OptionError, ParseError
from torchtraceap.tables.gpu.memory_timeline import CATEGORIES, read_memory_timeline

VIEWS = ("direction", "copy", "bandwidth", "counter", "allocator", "timeline")
MIB = 2**20

# (name, category, `kind` of the event) -> (direction, host memory)
COPIES: dict[tuple[str, str, str], tuple[str, str | None]] = {
    ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", ""): ("HtoD", "Pageable"),
    ("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", ""): ("DtoH", "Pinned"),
    ("Memcpy HtoD (Managed -> Device)", "gpu_memcpy", ""): ("HtoD", "Managed"),
    ("Memcpy DtoD (Device -> Device)", "gpu_memcpy", ""): ("DtoD", None),
    ("Memcpy PtoP (Device -> Device)", "gpu_memcpy", ""): ("PtoP", None),
    ("Memcpy HtoH (Pinned -> Pinned)", "gpu_memcpy", ""): ("HtoH", "Pinned"),
    ("Memcpy HtoD (Host -> Device)", "gpu_memcpy", "HtoD"): ("HtoD", "Host"),
    ("Memset (Device)", "gpu_memset", ""): ("memset", None),
    ("hipMemset", "gpu_memset", ""): ("memset", None),
    ("CopyHostToDevice", "gpu_memcpy", ""): ("HtoD", "Host"),
    ("CopyDeviceToHost", "gpu_memcpy", ""): ("DtoH", "Host"),
    ("MEMORY_COPY_DEVICE_TO_DEVICE", "kernel", ""): ("DtoD", None),
    ("hipMemcpyAsync", "gpu_memcpy", "HostToDevice"): ("HtoD", "Host"),
    ("MemcpyD2H", "gpu_memcpy", ""): ("DtoH", "Host"),
    ("__amd_rocclr_copyBuffer", "kernel", ""): ("unknown", None),
    ("__amd_rocclr_copyBuffer", "kernel", "DeviceToHost"): ("DtoH", "Host"),
    ("Memcpy", "gpu_memcpy", ""): ("unknown", None),
    ("x" * 100_000 + "(" * 100_000, "gpu_memcpy", ""): ("unknown", None),
}


@pytest.mark.parametrize(("name", "cat", "kind"), COPIES)
def test_direction_and_host_memory(tmp_path: Path, name: str, cat: str, kind: str) -> None:
    said = {"kind": kind} if kind else {}
    table = GpuTrace().gpu(name, 0, 10, cat=cat, **said).load(tmp_path).memory(by="copy")
    found = (table.to_list("direction"), table.to_list("host_memory"))
    direction, memory = COPIES[name, cat, kind]
    assert found == ([direction], [memory])


@pytest.fixture
def copies(tmp_path: Path) -> ttap.Trace:
    """Two uploads from pageable memory, one pinned download hidden by a kernel, one memset."""
    trace = GpuTrace().op("aten::copy_", 0, 500)
    upload = {"call": "cudaMemcpyAsync", "cat": "gpu_memcpy"}
    for i in range(2):
        trace.launch(
            "Memcpy HtoD (Pageable -> Device)", (100.0 * i, 90), (100.0 * i + 10, 50),
            bytes=500_000, **{"memory bandwidth (GB/s)": 10.5}, **upload,
        )  # fmt: skip
    trace.launch("gemm", (200, 5), (210, 100))
    trace.launch(
        "Memcpy DtoH (Device -> Pinned)", (205, 5), (220, 20), bytes=40_000, stream=8, **upload
    )
    trace.launch("Memset (Device)", (300, 5), (320, 0), cat="gpu_memset", bytes=64)
    return trace.load(tmp_path)


def test_by_direction(copies: ttap.Trace) -> None:
    table = copies.memory()
    upload, download, memset = table.records()
    assert (upload["direction"], upload["host_memory"]) == ("HtoD", "Pageable")
    assert (upload["count"], upload["total_bytes"], upload["time_ns"]) == (2, 1_000_000, 100_000)
    assert upload["bandwidth_gb_per_s"] == pytest.approx(10)
    assert upload["recorded_gb_per_s"] == pytest.approx(10.5)
    assert upload["exposed_ns"] == 100_000
    assert (upload["mean_bytes"], upload["op"]) == (500_000, "aten::copy_")
    assert (download["direction"], download["host_memory"]) == ("DtoH", "Pinned")
    assert download["exposed_ns"] == 0  # a kernel runs all the time
    assert download["recorded_gb_per_s"] is None
    assert (memset["direction"], memset["total_bytes"]) == ("memset", 64)
    assert memset["bandwidth_gb_per_s"] is None  # no length
    assert {(s["direction"], s["from_bytes"], s["to_bytes"]) for s in table.facts["sizes"]} == {
        ("HtoD", 2**18, 2**19), ("DtoH", 2**15, 2**16), ("memset", 64, 128),
    }  # fmt: skip


def test_every_copy(copies: ttap.Trace) -> None:
    table = copies.memory(by="copy")
    assert table.to_list("size_bytes") == [500_000, 500_000, 40_000, 64]
    assert table.to_list("bandwidth_gb_per_s") == [10.0, 10.0, 2.0, None]
    assert set(table.to_list("call")) == {"cudaMemcpyAsync", "cudaLaunchKernel"}
    assert table.to_list("call_ns")[0] == 90_000


def test_bandwidth_over_time(copies: ttap.Trace) -> None:
    table = copies.memory(by="bandwidth")
    assert table.num_rows == 300
    for direction, size, count in (("HtoD", 1_000_000, 2), ("DtoH", 40_000, 1)):
        rows = table["direction"] == direction
        assert table["moved_bytes"][rows].sum() == pytest.approx(size, abs=100)
        assert table["copies"][rows].sum() == count
    uploads = table["direction"] == "HtoD"
    rates = table["bandwidth_while_copying_gb_per_s"][uploads]
    assert rates[~np.isnan(rates)] == pytest.approx(10)
    assert np.nanmax(table["bandwidth_gb_per_s"][uploads]) == pytest.approx(10)


def test_the_bandwidth_as_a_counter(tmp_path: Path) -> None:
    trace = GpuTrace()

    def copy(name: str, ts: float, dur: float, size: int | None = None, **args: Any) -> None:
        said = {} if size is None else {"bytes": size}
        trace.gpu(name, ts, dur, cat="gpu_memcpy", **said, **args)

    up = "Memcpy HtoD (Pinned -> Device)"
    copy(up, 0, 10, 100_000)  # 10 GB/s
    copy(up, 5, 10, 200_000, stream=8)  # 20 GB/s beside it
    copy(up, 15, 5, 50_000)  # begins as that ends
    copy(up, 17, 1)  # doesn't say its size
    copy(up, 30, 0, 8)  # without length
    copy("Memcpy DtoH (Device -> Pinned)", 2, 10, 30_000)
    copy(up, 2, 4, 4_000, device=1)
    table = trace.load(tmp_path).memory(by="counter")
    counters: dict[tuple[str, int], list[tuple[int, int, float]]] = {}
    for r in table.records():
        series = counters.setdefault((r["direction"], r["device"]), [])
        series.append((r["since_first_ns"] // 1000, r["copies"], r["bandwidth_gb_per_s"]))
    assert counters == {
        ("HtoD", 0): [
            (0, 1, 10), (5, 2, 30), (10, 1, 20), (15, 1, 10), (17, 2, 10), (18, 1, 10), (20, 0, 0),
        ],
        ("HtoD", 1): [(2, 1, 1), (6, 0, 0)],
        ("DtoH", 0): [(2, 1, 3), (12, 0, 0)],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lasts", "size", "recorded", "said"),
    [
        (1, 1000, 0.6, "whole microseconds"),  # 1.67 us, cut to 1
        (2, 1000, 0.4, "whole microseconds"),
        (1, 1000, 0.96, ""),
        (1.5, 1000, 0.4, "no rounding explains"),  # 2.5 us, where ns were recorded
        (10, 1000, 0.01, "no rounding explains"),
        (10, 1000, 0, "no rounding explains"),
        (10, None, 5, ""),
        (10, 1000, None, ""),
    ],
)
def test_a_recorded_rate_that_contradicts_bytes_over_time_is_noted(
    tmp_path: Path, lasts: float, size: int | None, recorded: float | None, said: str
) -> None:
    args = {"bytes": size, "memory bandwidth (GB/s)": recorded}
    known = {key: value for key, value in args.items() if value is not None}
    trace = GpuTrace().gpu("Memcpy DtoD (Device -> Device)", 0, lasts, cat="gpu_memcpy", **known)
    loaded = trace.load(tmp_path)
    for by in ("direction", "copy"):
        notes = " ".join(note for note in loaded.memory(by=by).notes if "recorded_gb" in note)
        assert (said in notes) if said else not notes


def test_rocm_sizes_come_from_the_call(tmp_path: Path) -> None:
    trace = GpuTrace().call("hipMemcpyWithStream", 0, 20, correlation=1, size="2560", kind="1")
    trace.gpu("Memcpy HtoD (Host -> Device)", 5, 10, cat="gpu_memcpy", correlation=1, kind="HtoD")
    trace.call("hipMemcpyAsync", 30, 2, correlation=2)
    trace.gpu("CopyDeviceToHost", 35, 10, cat="gpu_memcpy", correlation=2)
    table = trace.load(tmp_path).memory()
    first, second = table.records()
    assert (first["total_bytes"], first["host_memory"]) == (2560, "Host")
    assert second["total_bytes"] is None
    assert second["bandwidth_gb_per_s"] is None
    assert any("1 of 2" in note for note in table.notes)
    assert any("pinned" in note for note in table.notes)


def test_copy_kernels_count_as_copies(tmp_path: Path) -> None:
    trace = GpuTrace().launch("__amd_rocclr_copyBuffer", (0, 5), (10, 5), call="hipMemcpyAsync")
    assert trace.load(tmp_path).memory().to_list("direction") == ["unknown"]


copies_of = st.lists(
    st.tuples(st.integers(0, 900), st.integers(0, 80), st.integers(0, 10**7)), min_size=1,
    max_size=20,
)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(copies_of)
def test_no_byte_is_lost_over_time(tmp_path: Path, events: list[tuple[int, int, int]]) -> None:
    trace = GpuTrace()
    for start, lasts, size in events:
        trace.gpu("Memcpy DtoD (Device -> Device)", start, lasts, cat="gpu_memcpy", bytes=size)
    loaded = trace.load(tmp_path)
    total = sum(size for _, _, size in events)
    table = loaded.memory(by="bandwidth")
    assert table["moved_bytes"].sum() == pytest.approx(total, abs=len(table["moved_bytes"]))
    assert (table["moved_bytes"] >= 0).all()
    assert table["copies"].sum() == len(events)
    assert table["copying_ns"].sum() == pytest.approx(1000 * sum(d for _, d, _ in events), abs=100)
    by_direction = loaded.memory()
    assert by_direction["total_bytes"].sum() == total
    assert by_direction["exposed_ns"].sum() == loaded.timeline().busy_ns
    assert sum(size["count"] for size in by_direction.facts["sizes"]) == len(events)


# --------------------------------------------------------------------------------- the allocator


def test_allocator_calls(tmp_path: Path) -> None:
    trace = GpuTrace()
    for i in range(3):
        trace.host("user_annotation", f"ProfilerStep#{i}", 100.0 * i, 90)
    trace.op("aten::empty", 105, 50).call("cudaMalloc", 110, 10).call("cudaMalloc", 130, 20)
    trace.call("cudaFree", 170, 5).call("hipHostMalloc", 210, 5, size=4096)
    trace.call("cuMemCreate", 220, 5).call("cudaMemcpyAsync", 230, 5).call("cudaMemGetInfo", 240, 5)
    table = trace.load(tmp_path).memory(by="allocator")
    assert table.to_list("call") == ["cudaMalloc", "cudaFree", "hipHostMalloc", "cuMemCreate"]
    assert table.to_list("kind") == ["allocate", "free", "host", "allocate"]
    assert table.to_list("step") == [f"ProfilerStep#{i}" for i in (1, 1, 2, 2)]
    malloc = table.records()[0]
    assert (malloc["count"], malloc["sum_ns"], malloc["max_ns"]) == (2, 30_000, 20_000)
    assert malloc["op"] == "aten::empty"
    assert table.to_list("total_bytes") == [None, None, 4096, None]
    assert table.facts["calls"] == 5
    assert any("inside of steps" in note for note in table.notes)
    assert any("profile_memory=True" in note for note in table.notes)


def memory_trace(totals: bool = True) -> GpuTrace:
    trace = GpuTrace().op("aten::conv2d", 0, 50).op("aten::empty", 10, 10)
    held = 0
    for at, change in ((15, 4 * MIB), (40, 2 * MIB), (60, -4 * MIB), (70, MIB)):
        held += change
        said = {"Total Allocated": MIB + held, "Total Reserved": 20 * MIB} if totals else {}
        device = {"Device Id": 0, "Device Type": 1, "Addr": 4096}
        trace.memory(at, change, **device, **said)
    return trace


def test_memory_events(tmp_path: Path) -> None:
    table = memory_trace().load(tmp_path).memory(by="timeline")
    assert table.to_list("change_bytes") == [4 * MIB, 2 * MIB, -4 * MIB, MIB]
    assert table.to_list("allocated_bytes") == [5 * MIB, 7 * MIB, 3 * MIB, 4 * MIB]
    assert table.to_list("net_bytes") == [4 * MIB, 6 * MIB, 2 * MIB, 3 * MIB]
    assert table.to_list("op") == ["aten::empty", "aten::conv2d", None, None]
    (peak,) = table.facts["peaks"]
    assert (peak["device_type"], peak["device"]) == ("cuda", 0)
    assert (peak["peak_allocated_bytes"], peak["peak_time_ns"]) == (7 * MIB, 40_000)
    assert peak["peak_reserved_bytes"] == 20 * MIB
    assert "7.00 MiB" in table.notes[0]


def test_memory_events_without_totals(tmp_path: Path) -> None:
    table = memory_trace(totals=False).load(tmp_path).memory(by="timeline")
    (peak,) = table.facts["peaks"]
    assert (peak["peak_allocated_bytes"], peak["peak_growth_bytes"]) == (None, 6 * MIB)
    assert "grows by at most 6.00 MiB" in table.notes[0]
    assert table.to_list("allocated_bytes") == [None] * 4


def test_allocator_totals(tmp_path: Path) -> None:
    facts = memory_trace().load(tmp_path).memory(by="allocator").facts
    assert (facts["allocations"], facts["allocated_bytes"]) == (3, 7 * MIB)
    assert (facts["frees"], facts["freed_bytes"]) == (1, 4 * MIB)


@pytest.mark.parametrize("by", VIEWS)
def test_shown_columns_exist_once(copies: ttap.Trace, by: str) -> None:
    table = copies.memory(by=by)
    assert set(table.shown) <= set(table.columns)
    assert len(set(table.shown)) == len(table.shown)


@pytest.mark.parametrize("by", VIEWS)
def test_nothing_recorded(tmp_path: Path, by: str) -> None:
    table = GpuTrace().op("aten::add", 0, 5).load(tmp_path).memory(by=by)
    assert table.num_rows == 0
    assert table.notes
    json.loads(table.to_json())


def test_wrong_view(copies: ttap.Trace) -> None:
    with pytest.raises(OptionError, match="by must be one of direction"):
        copies.memory(by="colour")


# ------------------------------------------------------------------------ export_memory_timeline

RAW = [
    [-1, 1, 100, 0],  # a parameter from before
    [1000, 2, 50, 4],  # an activation
    [1000, 3, -50, 4],  # becomes a gradient
    [1000, 3, 50, 5],
    [3000, 4, -50, 5],
    [2000, 2, 10, 7],
]


def write(path: Path, content: Any) -> Path:
    text = json.dumps(content)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["m.raw.json.gz", "m.json"])
def test_raw_file(tmp_path: Path, name: str) -> None:
    table = read_memory_timeline(write(tmp_path / name, RAW))
    assert table.facts["format"] == "raw"
    assert table.to_list("time_ns") == [1000, 2000, 3000]
    assert table.to_list("parameter_bytes") == [100, 100, 100]
    assert table.to_list("activation_bytes") == [0, 0, 0]
    assert table.to_list("gradient_bytes") == [50, 50, 0]
    assert table.to_list("unknown_bytes") == [0, 10, 10]
    assert table.to_list("total_bytes") == [150, 160, 110]
    assert (table.facts["peak_bytes"], table.facts["peak_time_ns"]) == (160, 2000)
    assert table.facts["peak_by_category_bytes"]["gradient"] == 50


def test_sizes_file(tmp_path: Path) -> None:
    sizes = [[0, 100, 0, 0, 0, 0, 0, 0, 0], [0, 100, 0, 0, 0, 50, 0, 0, 0]]
    table = read_memory_timeline(write(tmp_path / "m.json.gz", [[7, 9], sizes]))
    assert table.facts["format"] == "sizes"
    assert table.to_list("time_ns") == [7000, 9000]
    assert table.to_list("total_bytes") == [100, 150]
    assert table.to_list("activation_bytes") == [0, 50]


def test_sizes_are_rows_by_time(tmp_path: Path) -> None:
    sizes = [[0, size, 0, 0, 0, 0, 0, 0, 0] for size in (1, 2, 3, 4)]
    table = read_memory_timeline(write(tmp_path / "m.json", [[9, 2, 9, 7], sizes]))
    assert table.to_list("time_ns") == [2000, 7000, 9000]
    assert table.to_list("total_bytes") == [2, 4, 3]


def test_two_raw_events_are_no_sizes(tmp_path: Path) -> None:
    table = read_memory_timeline(write(tmp_path / "m.json", RAW[:2]))
    assert table.facts["format"] == "raw"


@pytest.mark.parametrize("content", [[], [[], []]])
def test_file_without_events(tmp_path: Path, content: Any) -> None:
    table = read_memory_timeline(write(tmp_path / "m.json", content))
    assert table.num_rows == 0
    assert "no memory events" in table.notes[0]


BAD = {
    "trace": {"traceEvents": []},
    "number": 5,
    "ragged": [[1, 2, 3, 4], [1, 2]],
    "text": [["a", 1, 2, 3]],
    "action": [[1, 9, 2, 3]],
    "category": [[1, 1, 2, 8]],
    "negative category": [[1, 1, 2, -1]],
    "nested": [[[1], 1, 2, 3]],
    "null": [[None, 1, 2, 3]],
    "huge": [[2**70, 1, 2, 3]],
    "unsigned": [[2**63, 1, 2, 3]],
    "counts": [[1, 2], [[0] * 9]],
    "width": [[1], [[0] * 5]],
    "infinite": [[1e400, 1, 2, 3]],
    "late": [[2**60], [[0] * 9]],
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_bad_file_is_said(tmp_path: Path, content: Any) -> None:
    path = write(tmp_path / "m.json", content)
    with pytest.raises(ParseError, match=r"m\.json: expected a file of export_memory_timeline"):
        read_memory_timeline(path)


def test_damaged_files_are_said(tmp_path: Path) -> None:
    path = tmp_path / "m.raw.json.gz"
    whole = gzip.compress(json.dumps(RAW * 1000).encode())
    for data in (whole[: len(whole) // 2], whole[:40] + b"\0" * 20 + whole[60:]):
        path.write_bytes(data)
        with pytest.raises(ParseError, match=r"m\.raw\.json\.gz"):
            read_memory_timeline(path)
    for text in ("[[", "[" * 100_000, "\xff\xfe", ""):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(ParseError, match="expected a file of export_memory_timeline"):
            read_memory_timeline(path)
    with pytest.raises(MissingFileError, match="no such file"):
        read_memory_timeline(tmp_path / "missing.json")
    with pytest.raises(ParseError):
        read_memory_timeline(tmp_path)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_files_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch to record")
    from torch.profiler import ProfilerActivity, _memory_profiler, profile

    # The numbers of categories are not part of torch's interface: notice when they change.
    numbers = _memory_profiler._CATEGORY_TO_INDEX
    names = {("unknown" if c is None else c.name.lower()): i for c, i in numbers.items()}
    assert [names[name] for name in CATEGORIES] == list(range(len(CATEGORIES)))

    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters())
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True
    ) as profiler:
        for _ in range(2):
            model(torch.randn(8, 16)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    tables = {}
    for name in ("m.json", "m.json.gz", "m.raw.json.gz"):
        profiler.export_memory_timeline(str(tmp_path / name), device="cpu")
        tables[name] = read_memory_timeline(tmp_path / name)
    raw, sizes = tables["m.raw.json.gz"], tables["m.json"]
    assert sizes.to_dict() == tables["m.json.gz"].to_dict()
    assert raw.facts["peak_by_category_bytes"] == sizes.facts["peak_by_category_bytes"]
    assert raw.to_list("total_bytes")[-1] == sizes.to_list("total_bytes")[-1]
    weights = sum(p.numel() for p in model.parameters())
    assert raw.facts["peak_by_category_bytes"]["parameter"] >= 4 * weights
    assert raw.facts["peak_by_category_bytes"]["optimizer_state"] >= 8 * weights

    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    timeline = ttap.load(tmp_path / "trace.json").memory(by="timeline")
    assert timeline.num_rows > 20
    assert "aten::linear" in timeline.to_list("op") or "aten::addmm" in timeline.to_list("op")


def test_the_command_prints_a_memory_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchtraceap import cli

    path = write(tmp_path / "m.raw.json.gz", RAW)
    assert cli.main(["memory-timeline", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"] == read_memory_timeline(path).to_dict()["rows"]
    assert cli.main(["memory-timeline", str(tmp_path / "absent.json")]) == 2


@pytest.mark.parametrize(("letters", "shown"), [(58, 60), (59, 60)])
def test_what_was_found_instead_is_shown_up_to_sixty_letters(
    tmp_path: Path, letters: int, shown: int
) -> None:
    path = write(tmp_path / "m.json", "x" * letters)
    with pytest.raises(ParseError) as error:
        read_memory_timeline(path)
    found = str(error.value).rpartition("found ")[2]
    assert len(found) == shown
    assert found.endswith("..." if letters == 59 else 'x"')


def test_fractions_are_rounded_and_what_is_held_is_listed_largest_first(tmp_path: Path) -> None:
    sizes = [[0, 100.4, 0, 2048.6, 0, 0, 0, 0, 0], [0, 7, 0, 0, 0, 0, 0, 0, 0]]
    table = read_memory_timeline(write(tmp_path / "m.json", [[6.6, 9.4], sizes]))
    assert table.to_list("time_ns") == [7000, 9000]
    assert table.to_list("total_bytes") == [2149, 7]
    assert table.notes == ("Most memory: 2.10 KiB (input 2.00 KiB, parameter 100 B).",)
