"""Tables in the terminal: widths, units, order, and what is left out where there is no room."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import report_samples as samples

from torchtraceap import load
from torchtraceap.core.columns import encode_texts
from torchtraceap.core.formatting import display_width
from torchtraceap.core.table import ColumnTable
from torchtraceap.report.tables import cut_apart, render_table, table_for_reading
from torchtraceap.tables.catalog import TABLES, table_spec


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return samples.slow_loader().write(tmp_path_factory.mktemp("traces") / "slow.json")


def kernels(rows: int = 4) -> ColumnTable:
    """Names that differ late, times of all sizes, and more columns than fit."""
    names = [f"void at::native::elementwise_kernel<128, 4, functor_{i}>(int)" for i in range(rows)]
    return ColumnTable(
        {
            "row": np.arange(rows),
            "name": encode_texts(names),
            "grid": encode_texts(["[1, 1, 1]"] * rows),
            "count": np.arange(rows) * 1000,
            "sum_ns": np.array([80_800_000, 1_250_000, 4_000, 0])[:rows],
            "busy_share": np.array([0.5, 0.25, 0.0001, np.nan])[:rows],
            "moved_bytes": np.arange(rows) * 1024,
        },
        first=("name", "sum_ns", "busy_share"),
        notes=["What the table rests on, in a sentence longer than most terminals are wide."],
    )


@pytest.mark.parametrize("width", [40, 60, 80, 100, 0])
def test_a_table_keeps_to_the_width_and_says_what_it_leaves_out(width: int) -> None:
    shown = table_for_reading(kernels())
    lines = render_table(shown, width=width).splitlines()
    assert not width or all(display_width(line) <= width for line in lines)
    text = " ".join(" ".join(lines).split())
    said = text.partition("left out at this width: ")[2]
    for heading in shown.columns:
        assert (heading in said) or all(word in text for word in heading.split())
    assert ("left out" in text) == (0 < width < 80)
    if width >= 60:
        assert "sum (ms)" not in said and "name" not in said.split(", ")
        assert all(f"functor_{i}" in text for i in range(4))  # rows can be told apart


def test_every_column_is_shown_where_all_are_asked_for() -> None:
    text = render_table(table_for_reading(kernels(), every_column=True), width=60)
    assert "left out" not in text
    assert all(word in text for word in ("grid", "moved", "(B)", "busy"))


def test_units_stand_in_the_headings() -> None:
    table = table_for_reading(kernels())
    columns = dict(zip(table.columns, zip(*table.rows, strict=True), strict=True))
    assert columns["sum (ms)"] == ("80.80", "1.25", "<0.01", "0.00")
    assert columns["busy (%)"] == ("50.0", "25.0", "<0.1", "—")
    assert columns["moved (B)"] == ("0", "1024", "2048", "3072")


def test_columns_that_are_compared_have_one_unit() -> None:
    table = ColumnTable({"before_ns": np.array([61_000_000]), "after_ns": np.array([3_000])})
    assert table_for_reading(table).columns == ("before (ms)", "after (ms)")


def test_texts_that_begin_alike_are_cut_where_they_differ() -> None:
    texts = {f"{'a' * 50}{i}{'b' * 50}" for i in range(5)} | {"short"}
    short = cut_apart(texts, 20)
    assert len(set(short.values())) == 6
    assert max(map(display_width, short.values())) <= 20
    ends = {f"aten::convolution_backward_{end}" for end in ("input", "weight", "bias")}
    assert len(set(cut_apart(ends, 16).values())) == 3
    assert cut_apart({"漢" * 30, "漢" * 31}, 16).keys() == {"漢" * 30, "漢" * 31}


def test_rows_are_sorted_stably_with_absent_values_last() -> None:
    table = ColumnTable(
        {
            "place": np.arange(6),
            "ns": np.ma.array([3, 1, 3, 0, 2, 1], mask=[0, 0, 0, 1, 0, 0]),
            "share": np.array([0.5, np.nan, 0.1, 0.5, 0.2, 0.2]),
            "name": encode_texts(["b", None, "a", "c", "b", "a"]),
        }
    )
    places = {
        ("ns", None): [0, 2, 4, 1, 5, 3],
        ("ns", False): [1, 5, 4, 0, 2, 3],
        ("share", None): [0, 3, 4, 5, 2, 1],
        ("name", None): [2, 5, 0, 4, 3, 1],
        ("name", True): [3, 0, 4, 2, 5, 1],
    }
    for (name, descending), expected in places.items():
        assert table.sort(name, descending=descending)["place"].tolist() == expected
    with pytest.raises(KeyError):
        table.sort("nothing")


def test_every_view_of_every_table_says_what_matters(slow: Path) -> None:
    """What a narrow terminal keeps first are columns that the view has."""
    trace = load(slow)
    for name in TABLES:
        spec = table_spec(name)
        for view in spec.views or (None,):
            table = spec.make(trace, **({"by": view} if view else {}))
            assert table.first, (name, view)
            assert set(table.first) <= set(table.columns)
            lines = render_table(table_for_reading(table, limit=5), width=60).splitlines()
            head = lines[: 1 + next(i for i, line in enumerate(lines) if line)]
            assert all(display_width(line) <= 60 for line in head), (name, view)
