"""The HTML report: self-contained, bounded, and deaf to what names in a trace say."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_samples as samples
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torchtraceap._core", reason="torchtraceap._core is not built")

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.report import timeline_data as packing
from torchtraceap.report.document import script_json
from torchtraceap.report.html import render_html
from torchtraceap.report.terminal import MAX_LINES, render_text
from torchtraceap.report.words import cells

CORPUS = Path(
    os.environ.get("TORCHTRACEAP_CORPUS", Path(__file__).parents[3] / "shared" / "traces")
)


def corpus_names() -> list[str]:
    """Files of the corpus and folders of ranks, relative to it; empty where it is absent."""
    files = [*CORPUS.rglob("*.json"), *CORPUS.rglob("*.json.gz")]
    names = [path.relative_to(CORPUS) for path in files]
    folders = {path.parent for path in names if "rank" in path.parent.name}
    return sorted(str(path) for path in {*names, *folders} if "_reference" not in str(path))


DEMO = Path(__file__).parents[2] / "examples/traces/resnet50_num_workers_0.json.gz"


class Page(HTMLParser):
    """Elements, and the text of script and style elements."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, dict[str, str | None], str]] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside in ("script", "style"):
            self.raw.append((self.inside, self.elements[-1][1], data))

    def script(self, name: str | None) -> str:
        return "".join(text for tag, a, text in self.raw if tag == "script" and a.get("id") == name)

    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.script("report-data"))
        return found


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
    assert max(map(cells, lines)) <= 100


def test_a_healthy_page_says_so(tmp_path: Path) -> None:
    text = render_html(diagnose(samples.healthy(), tmp_path))
    assert "Nothing to fix found" in text
    assert "Nothing to change" in text


def test_a_large_trace_is_thinned_and_says_so(demo: ttap.Diagnosis) -> None:
    rank = demo.trace.ranks[0]
    blob = packing.pack_timeline(
        rank.table,
        rank.tree,
        kind_names=_core.kind_names(),
        inputs=[],
        gpu=_core.gpu_intervals(rank.table, rank.tree),
        max_bytes=60_000,
    )
    assert len(blob.data) <= 60_000
    assert 0 < blob.events_shown < blob.events_total
    assert f"{blob.events_shown:,} longest of {blob.events_total:,}" in blob.notes[0]
    header, _ = unpack(blob.data)
    assert sum(lane["count"] for lane in header["lanes"] if lane["kind"] in ("gpu", "host")) == (
        blob.events_shown
    )


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
    found = packing.after(np.array(times, dtype=np.int64), origin).tolist()
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
    merged = packing.merge_intervals(spans)
    shares = packing.bucket_shares(merged, 0, 1000, buckets)
    covered = {t for a, b in spans.tolist() for t in range(a, min(b, 1000))}
    assert float(shares.sum()) * 1000 / buckets == pytest.approx(len(covered))
    assert (shares >= 0).all() and (shares <= 1).all()


@given(value=st.recursive(st.text() | st.integers() | st.none(), st.lists, max_leaves=8))
def test_script_json_cannot_leave_its_element(value: Any) -> None:
    text = script_json(value)
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == value
