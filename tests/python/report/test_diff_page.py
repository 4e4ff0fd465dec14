"""The page that compares two traces: what it says equals the tables, and no name is markup."""

from __future__ import annotations

import base64
import gzip
import json
from itertools import pairwise
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
from torchtraceap.core.columns import encode_texts
from torchtraceap.core.table import ColumnTable
from torchtraceap.report import diff_page
from torchtraceap.report.charts import MAX_DELTAS, waterfall
from torchtraceap.report.diff_page import render_diff, write_diff_page


def load(maker: samples.TraceMaker, path: Path) -> ttap.Trace:
    return ttap.load(maker.write(path))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[ttap.Trace, ttap.Trace]:
    folder = tmp_path_factory.mktemp("pair")
    return load(samples.slow_loader(), folder / "a.json"), load(
        samples.healthy(), folder / "b.json"
    )


@pytest.mark.parametrize(
    ("view", "by"), list(enumerate(["op", "kernel", "ancestor", "cause", "finding"]))
)
def test_rows_are_those_of_the_table_and_sum(
    pair: tuple[ttap.Trace, ttap.Trace], view: int, by: str
) -> None:
    table = ttap.diff(*pair, by=by)
    shown = tables_of(Page(render_diff(*pair)))["changes"][view][0]
    for name in ("before_ns", "after_ns", "delta_ns"):
        assert column_of(shown, name) == table.to_list(name)
    difference = table.facts["difference_ns"]
    assert sum(column_of(shown, "delta_ns")) == difference
    chart = shown["chart"]
    assert sum(delta for _, delta, _ in chart["rows"]) == difference
    assert chart["after"] - chart["before"] == difference


def test_the_head_tells_what_made_the_difference(pair: tuple[ttap.Trace, ttap.Trace]) -> None:
    page = Page(render_diff(*pair))
    table = ttap.diff(*pair)
    told = page.data()["texts"]["top"]
    assert 0 < len(told) <= 5
    names = table.to_list("name")
    assert told[0]["name"] == names[0]
    assert [row["name"] for row in told] == [name for name in names if name in _names(told)]
    text = render_diff(*pair)
    assert "Both take the same time" in text  # 100 ms each, spent on different things
    assert "The training process loads its own data" in text


def _names(told: list[dict[str, str]]) -> set[str]:
    return {row["name"] for row in told}


def test_a_trace_and_itself_differ_by_nothing(pair: tuple[ttap.Trace, ttap.Trace]) -> None:
    text = render_diff(pair[0], pair[0])
    page = Page(text)
    assert page.data()["texts"]["top"] == []
    assert "Both take the same time" in text
    assert "None: both sides have the same findings." in text
    tree = tables_of(page)["tree"][0][0]
    assert tree["before"] == tree["after"]


def test_the_tree_has_both_sides(pair: tuple[ttap.Trace, ttap.Trace]) -> None:
    table = ttap.diff(*pair, by="tree")
    tree = tables_of(Page(render_diff(*pair)))["tree"][0][0]
    assert tree["rows"] == tree["total"] == table.num_rows
    assert tree["depth"] == table.to_list("depth")
    assert [tree["names"][i] for i in tree["name"]] == table.to_list("name")
    for when in ("before", "after"):
        rows, times = table.to_list(f"{when}_row"), table.to_list(f"{when}_gpu_ns")
        expected = [None if row is None else time for row, time in zip(rows, times, strict=True)]
        assert tree[when] == expected


def test_a_large_tree_keeps_the_longest_calls_and_their_parents(
    pair: tuple[ttap.Trace, ttap.Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff_page, "MAX_NODES", 4)
    tree = tables_of(Page(render_diff(*pair)))["tree"][0][0]
    assert 0 < tree["rows"] <= 4 < tree["total"]
    depth = tree["depth"]
    assert depth[0] == 0
    assert all(b <= a + 1 for a, b in pairwise(depth))


def test_the_page_is_self_contained(pair: tuple[ttap.Trace, ttap.Trace], tmp_path: Path) -> None:
    write_diff_page(*pair, tmp_path / "diff.html")
    text = (tmp_path / "diff.html").read_text(encoding="utf-8")
    assert text == render_diff(*pair)
    page = Page(text)
    for tag, attributes in page.elements:
        assert "src" not in attributes
        assert tag == "a" or "href" not in attributes
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    policy = next(a["content"] for t, a in page.elements if "http-equiv" in a)
    assert (policy or "").startswith("default-src 'none'; script-src 'sha256-")


def test_names_never_become_markup(tmp_path: Path) -> None:
    hostile = load(samples.hostile_calls(), tmp_path / "a.json")
    plain = load(samples.slow_loader(), tmp_path / "b.json")
    for sides in ((hostile, plain), (plain, hostile)):
        text = render_diff(*sides)
        for name in samples.HOSTILE[:3]:
            assert name not in text
        page = Page(text)
        kinds = [a.get("type") for tag, a in page.elements if tag == "script"]
        assert kinds == ["application/json", "application/octet-stream", None]


@pytest.mark.parametrize("other", ["host_only", "without_places", "several", "slow_loader"])
def test_any_two_traces_have_a_page(other: str, tmp_path: Path) -> None:
    first = load(samples.slow_loader(), tmp_path / "a.json")
    if other == "several":
        (tmp_path / "b").mkdir()
        for rank in range(2):
            samples.slow_loader(rank=rank, world_size=2).write(tmp_path / "b" / f"rank{rank}.json")
        second = ttap.load(tmp_path / "b")
    else:
        second = load(getattr(samples, other)(), tmp_path / "b.json")
    for sides in ((first, second), (second, first), (second, second)):
        page = Page(render_diff(*sides))
        chart = tables_of(page)["changes"][0][0]["chart"]
        assert sum(d for _, d, _ in chart["rows"]) == chart["after"] - chart["before"]


@given(st.lists(st.integers(-(2**40), 2**40), max_size=30))
def test_a_waterfall_sums_exactly(deltas: list[int]) -> None:
    total = sum(deltas)
    table = ColumnTable(
        {
            "name": encode_texts(f"row {i}" for i in range(len(deltas))),
            "delta_ns": np.array(deltas, dtype=np.int64),
        },
        facts={"before_step_ns": 5, "after_step_ns": 5 + total},
    )
    chart: dict[str, Any] = waterfall(table, ["compute"] * len(deltas))
    assert sum(row[1] for row in chart["rows"]) == total
    assert len(chart["rows"]) <= MAX_DELTAS + 1
    assert json.dumps(chart)


def test_the_blob_is_plain_json(pair: tuple[ttap.Trace, ttap.Trace]) -> None:
    packed = base64.b64decode(Page(render_diff(*pair)).script("tables"))
    assert set(json.loads(gzip.decompress(packed))) == {"changes", "tree"}
