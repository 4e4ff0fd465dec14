"""The HTML report: self-contained, bounded, and deaf to what names in a trace say."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_samples as samples
from hypothesis import given
from hypothesis import strategies as st
from page_reading import Page, column_of, tables_of

pytest.importorskip("torchtraceap._core", reason="torchtraceap._core is not built")

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.core.columns import encode_texts
from torchtraceap.core.formatting import display_width
from torchtraceap.core.intervals import union
from torchtraceap.core.table import ColumnTable
from torchtraceap.report import timeline_data as packing
from torchtraceap.report.document import script_json, table_data
from torchtraceap.report.page import _path_lane, render_html
from torchtraceap.report.terminal import MAX_LINES, render_text

CORPUS = Path(
    os.environ.get("TORCHTRACEAP_CORPUS", Path(__file__).parents[4] / "shared" / "traces")
)


def corpus_names() -> list[str]:
    """Files of the corpus and folders of ranks, relative to it; empty where it is absent."""
    files = [*CORPUS.rglob("*.json"), *CORPUS.rglob("*.json.gz")]
    names = [path.relative_to(CORPUS) for path in files]
    folders = {path.parent for path in names if "rank" in path.parent.name}
    return sorted(str(path) for path in {*names, *folders} if "_reference" not in str(path))


DEMO = Path(__file__).parents[3] / "examples/traces/resnet50_num_workers_0.json.gz"


def unpack(blob: bytes) -> tuple[dict[str, Any], list[dict[str, np.ndarray]]]:
    """The inverse of the packing, written from its description."""
    packed = gzip.decompress(blob)
    size = int.from_bytes(packed[:4], "little")
    header = json.loads(packed[4 : 4 + size])
    lanes = []
    for lane in header["lanes"]:
        columns = {}
        for key, (offset, planes) in lane["columns"].items():
            values = np.zeros(lane["count"], np.int64)
            for plane in range(planes):
                begin = 4 + size + offset + plane * lane["count"]
                piece = np.frombuffer(packed, np.uint8, lane["count"], begin)
                values += piece.astype(np.int64) << (8 * plane)
            columns[key] = values
        columns["start"] = np.cumsum(columns["start"])
        lanes.append(columns)
    return header, lanes


def diagnose(maker: samples.TraceMaker, folder: Path) -> ttap.Diagnosis:
    return ttap.diagnose(maker.write(folder / "trace.json"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> ttap.Diagnosis:
    return diagnose(samples.slow_loader(), tmp_path_factory.mktemp("slow"))


@pytest.fixture(scope="module")
def demo() -> ttap.Diagnosis:
    return ttap.diagnose(DEMO)


def test_the_page_does_not_depend_on_the_threads_that_read_the_trace() -> None:
    one, two = (render_html(ttap.load(DEMO, threads=threads).diagnose()) for threads in (1, 2))
    assert one == two


def test_the_demo_page_is_small_and_needs_no_network(demo: ttap.Diagnosis) -> None:
    text = render_html(demo)
    assert len(text.encode()) < 1_500_000
    page = Page(text)
    for tag, attributes in page.elements:
        assert "src" not in attributes
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        if "href" in attributes:
            assert tag == "a"
    styles = "".join(text for tag, _, text in page.raw if tag == "style")
    assert "url(" not in styles
    assert "@import" not in styles


def test_the_page_allows_its_own_script_and_style_only(slow: ttap.Diagnosis) -> None:
    page = Page(render_html(slow))
    policy = next(
        a["content"] or ""
        for tag, a in page.elements
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        text = "".join(t for name, a, t in page.raw if name == tag and not a)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    kinds = [a.get("type") for tag, a in page.elements if tag == "script"]
    assert kinds == ["application/json", *["application/octet-stream"] * 2, None]


def test_the_verdict_comes_first_then_timeline_and_findings(slow: ttap.Diagnosis) -> None:
    text = render_html(slow)
    ids = ("verdict", "timeline", "findings", "idle", "steps", "unchecked", "quality", "details")
    places = [text.index(f'id="{name}"') for name in ids]
    assert places == sorted(places)
    assert slow.findings[0].title in text[: text.index('id="timeline"')]
    assert "no lone score" not in text


def test_rendering_is_pure(slow: ttap.Diagnosis, tmp_path: Path) -> None:
    assert slow.to_html(tmp_path / "page.html") == render_html(slow)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == render_html(slow)


def test_names_never_become_markup(tmp_path: Path) -> None:
    diagnosis = diagnose(samples.hostile(), tmp_path)
    assert any(samples.HOSTILE[0] in e.name for f in diagnosis.findings for e in f.evidence)
    text = render_html(diagnosis)
    for name in samples.HOSTILE[:3]:
        assert name not in text
    assert "\u2028" not in text
    # The fourth holds nothing that JSON has to escape; it is no part of the markup either.
    assert samples.HOSTILE[3] not in re.sub("<script.*?</script>", "", text, flags=re.DOTALL)
    page = Page(text)
    assert [a.get("type") for tag, a in page.elements if tag == "script"][-1] is None
    assert sum(tag == "script" for tag, _ in page.elements) == 4
    assert not any(tag == "img" for tag, _ in page.elements)
    names = [e["name"] for finding in page.data()["findings"] for e in finding["evidence"]]
    assert any("</script>" in name for name in names)


def test_the_timeline_holds_every_event(slow: ttap.Diagnosis) -> None:
    page = Page(render_html(slow))
    header, lanes = unpack(base64.b64decode(page.script("timeline-0")))
    kinds = [lane["kind"] for lane in header["lanes"]]
    assert kinds == ["step", "finding", "idle", "path", "gpu", "host"]
    rank = slow.trace.ranks[0]
    table, tree = rank.table, rank.tree
    gpu = lanes[kinds.index("gpu")]
    rows = tree.gpu_rows
    low = int(table.ts_ns.min())
    assert (gpu["start"] + low).tolist() == table.ts_ns[rows].tolist()
    assert gpu["dur"].tolist() == table.dur_ns[rows].tolist()
    names = [header["names"][i] for i in gpu["name"]]
    assert names == [table.name_of(int(row)) for row in rows]
    delays = table.ts_ns[rows] - table.ts_ns[tree.launch[rows]]
    assert (gpu["delay"] - 1).tolist() == delays.tolist()
    host = lanes[kinds.index("host")]
    assert len(host["start"]) == len(tree.host_rows)
    finding = lanes[kinds.index("finding")]
    spans = np.concatenate([f.intervals for f in slow.findings])
    assert sorted((finding["start"] + low).tolist()) == sorted(spans[:, 0].tolist())
    idle = lanes[kinds.index("idle")]
    assert int(idle["dur"].sum()) == sum(slow.idle_ns.values())
    assert header["profiled"] == [at - low for at in tree.profiled]


def test_several_ranks_can_be_chosen(tmp_path: Path) -> None:
    for rank in range(10):
        samples.slow_loader(steps=1, rank=rank, world_size=10).write(tmp_path / f"rank{rank}.json")
    page = Page(render_html(ttap.diagnose(tmp_path)))
    data = page.data()
    assert len(data["ranks"]) == 8
    assert len(data["rankRows"]) == 10
    for number in range(8):
        header, _ = unpack(base64.b64decode(page.script(f"timeline-{number}")))
        assert header["lanes"]
    assert any(a.get("id") == "rank-select" for _, a in page.elements)


def test_traces_without_gpu_or_steps_have_a_page(tmp_path: Path) -> None:
    page = Page(render_html(diagnose(samples.host_only(), tmp_path)))
    header, _ = unpack(base64.b64decode(page.script("timeline-0")))
    assert [lane["kind"] for lane in header["lanes"] if lane["count"]] == ["path", "host"]


def test_streams_without_a_number_are_drawn(tmp_path: Path) -> None:
    page = Page(render_html(diagnose(samples.without_places(), tmp_path)))
    header, _ = unpack(base64.b64decode(page.script("timeline-0")))
    assert [e["label"] for e in header["lanes"] if e["kind"] == "gpu"] == ["stream ?"]


@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus of traces at {CORPUS}")
@pytest.mark.parametrize("name", corpus_names())
def test_real_traces_have_both_reports(name: str) -> None:
    diagnosis = ttap.diagnose(CORPUS / name)
    assert len(render_html(diagnosis)) < 1_500_000
    lines = render_text(diagnosis).splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(display_width, lines)) <= 100


def test_a_healthy_page_says_so(tmp_path: Path) -> None:
    text = render_html(diagnose(samples.healthy(), tmp_path))
    assert "Healthy: the GPU is busy" in text
    assert "Nothing to change" in text


def test_a_large_trace_is_thinned_and_says_so(demo: ttap.Diagnosis) -> None:
    rank = demo.trace.ranks[0]
    blob, notes = packing.pack_timeline(
        rank.table,
        rank.tree,
        kind_names=_core.kind_names(),
        inputs=[],
        gpu=_core.gpu_intervals(rank.table, rank.tree),
        max_bytes=60_000,
    )
    assert len(blob) <= 60_000
    header, _ = unpack(blob)
    shown = sum(lane["count"] for lane in header["lanes"] if lane["kind"] in ("gpu", "host"))
    said = re.fullmatch(r"The timeline shows the ([\d,]+) longest of ([\d,]+) events\.", notes[0])
    assert said is not None
    assert 0 < shown < int(said[2].replace(",", ""))
    assert said[1] == f"{shown:,}"


def test_a_stray_time_stamp_does_not_shrink_the_rest(tmp_path: Path) -> None:
    maker = samples.slow_loader()
    maker.host("cpu_op", "stray", 0.0, 1.0)
    maker.host("cpu_op", "stray", 9e15, 1.0)
    page = Page(render_html(diagnose(maker, tmp_path)))
    header, _ = unpack(base64.b64decode(page.script("timeline-0")))
    first, last = header["profiled"]
    assert header["length"] <= 21 * (last - first)


def test_findings_without_intervals_or_evidence_have_a_page(slow: ttap.Diagnosis) -> None:
    bare = dataclasses.replace(
        slow.findings[0],
        saving=None,
        evidence=(),
        evidence_count=0,
        intervals=np.zeros((0, 2), np.int64),
        interval_ranks=(),
        missing_signals=("this & <that>",),
    )
    text = render_html(dataclasses.replace(slow, findings=(bare,)))
    assert "<that>" not in text
    assert "saving not estimated" in text


@given(values=st.lists(st.integers(0, 2**63 - 1), max_size=50))
def test_planes_hold_every_integer(values: list[int]) -> None:
    data, planes = packing.split_planes(np.array(values, dtype=np.uint64))
    assert len(data) == planes * len(values)
    for i, value in enumerate(values):
        assert sum(data[p * len(values) + i] << (8 * p) for p in range(planes)) == value


@given(
    times=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30),
    origin=st.integers(-(2**63), 2**63 - 1),
)
def test_distances_survive_any_time_stamp(times: list[int], origin: int) -> None:
    found = packing.distance_after(np.array(times, dtype=np.int64), origin).tolist()
    assert found == [max(0, time - origin) for time in times]


@given(durations=st.lists(st.integers(0, 20), max_size=60), limit=st.integers(0, 70))
def test_the_longest_are_kept(durations: list[int], limit: int) -> None:
    mask = packing.keep_longest(np.array(durations, dtype=np.int64), limit)
    kept = [d for d, keep in zip(durations, mask, strict=True) if keep]
    assert sorted(kept) == sorted(durations)[len(durations) - min(limit, len(durations)) :]


@given(
    pairs=st.lists(st.tuples(st.integers(0, 999), st.integers(1, 400)), max_size=30),
    buckets=st.integers(1, 40),
)
def test_bucket_shares_conserve_time(pairs: list[tuple[int, int]], buckets: int) -> None:
    spans = np.array([(a, a + n) for a, n in pairs], dtype=np.int64).reshape(-1, 2)
    merged = union([spans])
    shares = packing.bucket_shares(merged, 0, 1000, buckets)
    covered = {t for a, b in spans.tolist() for t in range(a, min(b, 1000))}
    assert float(shares.sum()) * 1000 / buckets == pytest.approx(len(covered))
    assert (shares >= 0).all() and (shares <= 1).all()


@given(value=st.recursive(st.text() | st.integers() | st.none(), st.lists, max_leaves=8))
def test_script_json_cannot_leave_its_element(value: Any) -> None:
    text = script_json(value)
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == value


# ---------------------------------------------------------------------------------- sections

# (section, place of the view in it, what it shows)
SHOWN = [
    ("operators", 0, lambda trace: trace.ops()),
    ("operators", 1, lambda trace: trace.ops(by="category")),
    ("operators", 2, lambda trace: trace.ops(by="args")),
    ("modules", 0, lambda trace: trace.modules()),
    ("kernels", 0, lambda trace: trace.kernels(by="canonical")),
    ("kernels", 1, lambda trace: trace.kernels()),
    ("kernels", 2, lambda trace: trace.short_kernels()),
    ("kernels", 3, lambda trace: trace.sequences()),
    ("roofline", 0, lambda trace: trace.roofline()),
    ("roofline", 1, lambda trace: trace.roofline(by="family")),
    ("launches", 0, lambda trace: trace.launches()),
    ("launches", 2, lambda trace: trace.launches(by="stream")),
    ("memory", 0, lambda trace: trace.memory()),
    ("host", 0, lambda trace: trace.host()),
    ("host", 1, lambda trace: trace.host(by="op")),
    ("steps", 0, lambda trace: trace.steps()),
    ("path", 0, lambda trace: trace.critical_path()),
    ("path", 1, lambda trace: trace.critical_path(by="name")),
]


@pytest.fixture(scope="module")
def demo_tables(demo: ttap.Diagnosis) -> dict[str, Any]:
    return tables_of(Page(render_html(demo)))


@pytest.mark.parametrize(("section", "view", "build"), SHOWN)
def test_the_page_shows_the_numbers_of_the_tables(
    demo: ttap.Diagnosis, demo_tables: dict[str, Any], section: str, view: int, build: Any
) -> None:
    table, shown = build(demo.trace), demo_tables[section][view][0]
    assert shown["total"] == table.num_rows > 0
    assert len(shown["notes"]) == len(table.notes)
    origin = demo.trace.ranks[0].tree.profiled[0]
    names = [column["name"] for column in shown["columns"]]
    assert [name for name in table.shown if name in names] == names[: shown["shown"]]
    for column in shown["columns"]:
        expected = table.to_list(column["name"])[: shown["rows"]]
        found = column_of(shown, column["name"])
        rounding = 0.5 if column["unit"] in ("ns", "bytes") else 0.0
        if column["unit"] == "at":
            found = [value + origin for value in found]
        for value, true in zip(found, expected, strict=True):
            if isinstance(true, float) and true == true:
                assert value == pytest.approx(true, rel=1e-5, abs=rounding)
            elif isinstance(true, (int, type(None))):
                assert value == true
    # What is left out holds no value at all.
    for name in set(table.columns) - set(names):
        assert not any(value is not None for value in table.to_list(name))


def test_sections_without_rows_say_why(tmp_path: Path) -> None:
    data = Page(render_html(diagnose(samples.host_only(), tmp_path))).data()
    absent = {entry["title"]: entry["why"] for entry in data["absent"]}
    assert {"Kernels", "Roofline", "Collectives", "Step times"} <= set(absent)
    assert all(absent.values())
    keys = [section["key"] for section in data["sections"]]
    assert keys[0] == "operators"
    assert "ranks" not in keys


def test_every_rank_shown_has_its_tables(tmp_path: Path) -> None:
    for rank in range(3):
        samples.slow_loader(steps=2 + rank, rank=rank, world_size=3).write(
            tmp_path / f"rank{rank}.json"
        )
    diagnosis = ttap.diagnose(tmp_path)
    page = Page(render_html(diagnosis))
    tables = tables_of(page)
    for number, rank in enumerate((0, 1, 2)):
        counts = column_of(tables["operators"][0][number], "count")
        assert counts == diagnosis.trace.ops(rank=rank).to_list("count")
        assert tables["steps"][0][number]["rows"] == 2 + rank
    heads = {head["key"]: head for head in page.data()["sections"]}
    assert len(heads["operators"]["leads"]) == 3
    assert column_of(tables["ranks"][0][0], "rank") == [0, 1, 2]
    assert len(tables["path"][0]) == 1


def test_the_critical_path_has_a_lane_without_gaps(slow: ttap.Diagnosis) -> None:
    header, lanes = unpack(base64.b64decode(Page(render_html(slow)).script("timeline-0")))
    lane = lanes[[entry["kind"] for entry in header["lanes"]].index("path")]
    total = sum(slow.trace.critical_path().to_list("time_ns"))
    assert int(lane["dur"].sum()) == total == slow.profiled_ns
    assert (lane["start"][1:] == (lane["start"] + lane["dur"])[:-1]).all()
    # Neighbours of one cause are one piece.
    assert (lane["code"][1:] != lane["code"][:-1]).all()


def test_the_path_of_several_ranks_is_split_among_their_lanes(tmp_path: Path) -> None:
    for rank in range(2):
        samples.slow_loader(steps=2, rank=rank, world_size=2).write(tmp_path / f"rank{rank}.json")
    diagnosis = ttap.diagnose(tmp_path)
    page = Page(render_html(diagnosis))
    drawn = 0
    for number in range(2):
        header, lanes = unpack(base64.b64decode(page.script(f"timeline-{number}")))
        kinds = [entry["kind"] for entry in header["lanes"]]
        drawn += int(lanes[kinds.index("path")]["dur"].sum())
    assert drawn == sum(diagnosis.trace.critical_path().to_list("time_ns"))


@pytest.mark.parametrize("shift", [-7_000_000_007, 0, 12_345])
def test_a_path_on_the_common_clock_is_drawn_on_that_of_its_rank(
    tmp_path: Path, shift: int
) -> None:
    trace = ttap.load(samples.slow_loader(rank=3, world_size=8).write(tmp_path / "trace.json"))
    path, rank = trace.critical_path(by="event"), trace.ranks[0]
    columns: dict[str, Any] = {name: path.column(name) for name in path.columns}
    columns["rank"] = np.full(path.num_rows, 3)
    for name in ("start_ns", "end_ns"):
        columns[name] = np.asarray(path[name], np.int64) + shift
    lane = _path_lane(rank, ColumnTable(columns), alone=False)
    assert (int(lane.start_ns[0]), int(lane.end_ns[-1])) == rank.tree.profiled


def test_large_tables_are_cut_and_say_so() -> None:
    table = ColumnTable({"name": encode_texts(map(str, range(90))), "time_ns": np.arange(90)})
    data = table_data(table, most_rows=50)
    assert (data["rows"], data["total"]) == (50, 90)
    assert column_of(data, "time_ns") == list(range(50))
    assert column_of(data, "name") == [str(i) for i in range(50)]


def test_instants_become_distances_that_javascript_can_hold() -> None:
    start = np.array([2**62 + 7, 2**62 + 9], dtype=np.int64)
    data = table_data(ColumnTable({"start_ns": start}), most_rows=9, origin_ns=2**62)
    assert data["columns"][0]["unit"] == "at"
    assert column_of(data, "start_ns") == [7, 9]


def test_absent_values_are_null_and_empty_columns_left_out() -> None:
    table = ColumnTable(
        {
            "name": encode_texts(["  inner", None, "x" * 999]),
            "ratio": np.array([1.23456789, np.nan, np.inf]),
            "mean_ns": np.array([1.4, 2.6, np.nan]),
            "row": np.ma.array([1, 2, 3], mask=[True, False, False]),
            "outlier": np.array([True, False, True]),
            "none": np.array([np.nan] * 3),
            "nothing": encode_texts([None] * 3),
        }
    )
    data = table_data(table, most_rows=9)
    assert [c["name"] for c in data["columns"]] == ["name", "ratio", "mean_ns", "row", "outlier"]
    first, second, third = column_of(data, "name")
    assert (first, second) == ("  inner", None)
    assert len(third) == 300
    assert column_of(data, "ratio") == [1.23457, None, None]
    assert column_of(data, "mean_ns") == [1, 3, None]
    assert column_of(data, "row") == [None, 2, 3]
    assert column_of(data, "outlier") == [True, False, True]
    json.dumps(data, allow_nan=False)


@given(st.lists(st.floats(width=64), max_size=30))
def test_numbers_of_any_size_reach_the_page(values: list[float]) -> None:
    data = table_data(ColumnTable({"rate": np.array(values, dtype=float)}), most_rows=99)
    json.dumps(data, allow_nan=False)
    found = column_of(data, "rate") if data["columns"] else [None] * len(values)
    for value, true in zip(found, values, strict=True):
        if np.isfinite(true):
            assert value == pytest.approx(true, rel=1e-5, abs=1e-200)
        else:
            assert value is None


def test_unknown_devices_have_points_without_roofs(tmp_path: Path) -> None:
    maker = samples.products(device="No Such Device 9000")
    diagnosis = diagnose(maker, tmp_path)
    chart = tables_of(Page(render_html(diagnosis)))["roofline"][0][0]["chart"]
    assert chart["points"]
    assert not chart["known"]
    known = diagnose(samples.products(device="NVIDIA H100 80GB HBM3"), tmp_path)
    table = tables_of(Page(render_html(known)))["roofline"][0][0]
    chart = table["chart"]
    assert chart["known"]
    assert chart["roofs"]
    for row, intensity, rate, share in chart["points"]:
        assert column_of(table, "intensity")[row] == pytest.approx(intensity, rel=1e-4)
        assert column_of(table, "tflops")[row] == pytest.approx(rate, rel=1e-4)
        assert 0 < share <= 1
