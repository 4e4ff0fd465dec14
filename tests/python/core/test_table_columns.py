"""What each kind of column holds in each way out, absent values first of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from torchtraceap.core.columns import TextCodes, encode_json, encode_texts, recode, unique_texts
from torchtraceap.core.table import ColumnTable, stack_ranks

NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture
def table() -> ColumnTable:
    """The second row is absent in all columns that can say so."""
    absent = [False, True, False]
    return ColumnTable(
        {
            "count": np.array([1, 2, 3]),
            "number": np.ma.array([10, 99, -30], mask=absent),
            "flag": np.ma.array([True, True, False], mask=absent),
            "share": np.array([0.5, NAN, INFINITY]),
            "rate": np.ma.array([1.5, 99.0, 2.5], mask=absent),
            "whole": np.array([True, False, True]),
            "name": TextCodes(np.array([1, -1, 0], dtype=np.int32), ["b", "a", "unused"]),
            "parts": encode_json([[1, 2], None, {"x": "y"}]),
        },
        shown=("count", "name"),
        facts={"sum": 6},
        notes=["A note."],
    )


PLAIN: dict[str, list[Any]] = {
    "count": [1, 2, 3],
    "number": [10, None, -30],
    "flag": [True, None, False],
    "share": [0.5, None, None],
    "rate": [1.5, None, 2.5],
    "whole": [True, False, True],
    "name": ["a", None, "b"],
    "parts": [[1, 2], None, {"x": "y"}],
}


def test_plain_values(table: ColumnTable) -> None:
    assert {name: table.to_list(name) for name in table.columns} == PLAIN
    assert table.records()[1] == {"count": 2, "whole": False} | dict.fromkeys(
        ("number", "flag", "share", "rate", "name", "parts")
    )
    assert (list(table), len(table), table.num_rows) == (list(PLAIN), 3, 3)
    assert table["name"].tolist() == ["a", None, "b"]
    document = table.to_dict()
    assert document["rows"][2] == [3, -30, False, None, 2.5, True, "b", {"x": "y"}]
    assert (document["sum"], document["notes"]) == (6, ["A note."])


def test_values_in_pandas(table: ColumnTable) -> None:
    frame = table.to_pandas()
    assert frame["number"].dtype == pd.Int64Dtype()
    assert frame["number"].isna().tolist() == [False, True, False]
    assert frame["number"].dropna().tolist() == [10, -30]
    assert frame["rate"].isna().tolist() == [False, True, False]
    assert frame["rate"].dropna().tolist() == [1.5, 2.5]
    assert frame["share"].tolist()[::2] == [0.5, INFINITY]
    assert frame["name"].isna().tolist() == [False, True, False]
    assert frame["name"].dropna().tolist() == ["a", "b"]
    assert frame["parts"].dropna().tolist() == ["[1,2]", '{"x":"y"}']
    assert frame["whole"].tolist() == [True, False, True]


def test_pandas_does_not_share_the_mask(table: ColumnTable) -> None:
    frame = table.to_pandas()
    frame.loc[1, "number"] = 5
    assert table.to_list("number") == PLAIN["number"]


def test_values_in_arrow_and_parquet(table: ColumnTable, tmp_path: Path) -> None:
    arrow = pa.table(table)
    texts = {"name": ["a", None, "b"], "parts": ["[1,2]", None, '{"x":"y"}']}
    expected = PLAIN | texts | {"share": [0.5, None, INFINITY]}
    for name in ("count", "number", "share", "rate", "name", "parts"):
        assert arrow[name].to_pylist() == expected[name], name
    assert [None if v is None else bool(v) for v in arrow["flag"].to_pylist()] == PLAIN["flag"]
    assert arrow["count"].null_count == 0
    table.to_parquet(tmp_path / "t.parquet")
    assert parquet.read_table(tmp_path / "t.parquet").to_pylist() == arrow.to_pylist()


def test_values_in_csv(table: ColumnTable, tmp_path: Path) -> None:
    table.to_csv(tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text(encoding="utf-8").split("\n") == [
        "count,number,flag,share,rate,whole,name,parts",
        '1,10,1.0,0.5,1.5,True,a,"[1,2]"',
        "2,,,,,False,,",
        '3,-30,0.0,inf,2.5,True,b,"{""x"":""y""}"',
        "",
    ]


def test_some_rows(table: ColumnTable) -> None:
    taken = table.take(np.array([2, 0]))
    assert taken.to_list("number") == [-30, 10]
    assert taken.to_list("name") == ["b", "a"]
    assert (taken.shown, taken.facts, taken.notes) == (table.shown, table.facts, table.notes)
    assert table.take(slice(1, 3)).to_list("count") == [2, 3]


# ------------------------------------------------------------------------------------ ranks


def test_what_a_rank_lacks_is_absent(table: ColumnTable) -> None:
    other = ColumnTable({"count": np.array([7]), "more": np.array([0.25])}, facts={"extra": 1})
    stacked = stack_ranks([(3, table), (None, other)])
    assert stacked.to_list("rank") == [3, 3, 3, None]
    assert stacked.to_list("more") == [None, None, None, 0.25]
    for name, values in PLAIN.items():
        assert stacked.to_list(name) == [*values, 7 if name == "count" else None], name
    assert stacked.facts == {"sum": [6, None], "extra": [None, 1]}
    assert stacked.notes == ("rank 3: A note.",)
    assert stacked.shown == ("rank", "count", "name")
    assert "unused" not in stacked.column("name").texts  # type: ignore[union-attr]


def test_notes_that_all_ranks_share_are_said_once(table: ColumnTable) -> None:
    assert stack_ranks([(0, table), (1, table)]).notes == ("A note.",)


def test_the_shown_columns_are_of_a_rank_with_rows(table: ColumnTable) -> None:
    empty = ColumnTable({"count": np.zeros(0, dtype=np.int64)}, shown=("count",))
    assert stack_ranks([(0, empty), (1, table)]).shown == ("rank", "count", "name")
    assert stack_ranks([(0, empty), (1, table)]).to_list("rank") == [1, 1, 1]


# ------------------------------------------------------------------------------------ texts


def test_texts_are_coded_in_order_of_first_use() -> None:
    column = encode_texts(["b", None, "a", "b"])
    assert (column.codes.tolist(), list(column.texts)) == ([0, -1, 1, 0], ["b", "a"])
    again = recode(np.array([0, 2, 1]), ["x", "y", "x"])
    assert (again.codes.tolist(), list(again.texts)) == ([0, 0, 1], ["x", "y"])


def test_texts_that_look_the_same_are_one_for_pandas() -> None:
    column = TextCodes(np.array([0, 1, 2, -1], dtype=np.int32), ["x", "y", "x"])
    unique = unique_texts(column)
    assert (unique.codes.tolist(), list(unique.texts)) == ([0, 1, 0, -1], ["x", "y"])
    plain = encode_texts(["x", "y"])
    assert unique_texts(plain) is plain
    assert ColumnTable({"t": column}).to_pandas()["t"].tolist()[:3] == ["x", "y", "x"]


def test_what_is_no_json_stays_text() -> None:
    column = encode_json([1, "a", [None], None])
    assert column.to_list() == [1, "a", [None], None]
    broken = type(column)(np.array([0, 1, 2, -1]), ["[1", "NaN", "[1]"])
    assert broken.to_list() == ["[1", "NaN", [1], None]
