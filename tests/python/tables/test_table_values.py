"""What every table holds is what leaves it: pandas, CSV, Parquet, JSON and stacked ranks."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from full_job import full_job

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.core.columns import Column, JsonCodes, TextCodes
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.catalog import TABLES, table_spec

NEEDED = {"launch_edges": (("compat", "hta"),)}
"""Options that another option must stand beside."""


def cases() -> Iterator[tuple[str, tuple[tuple[str, Any], ...]]]:
    """Every table with its views, flags and choices."""
    for name in TABLES:
        spec = table_spec(name)
        yield from ((name, (("by", view),)) for view in spec.views)
        if not spec.views:
            yield name, ()
        for option in spec.options:
            if option.kind in ("flag", "no_flag"):
                needed = NEEDED.get(option.keyword, ())
                yield name, ((option.keyword, option.kind == "flag"), *needed)
            yield from ((name, ((option.keyword, choice),)) for choice in option.choices or ())
    yield "events", (("with_args", True),)


def named(value: Any) -> str:
    return value if isinstance(value, str) else " ".join(f"{k}={v}" for k, v in value) or "plain"


every_table = pytest.mark.parametrize(("name", "options"), list(cases()), ids=named)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ttap.Trace:
    return full_job(tmp_path_factory.mktemp("job"))


def plain(column: Column) -> list[Any]:
    """The values as they are kept, None where absent; read without what is tested here."""
    if isinstance(column, TextCodes):
        return [None if code < 0 else column.texts[code] for code in column.codes.tolist()]
    values, gone = np.ma.getdata(column).tolist(), np.ma.getmaskarray(column).tolist()
    return [None if absent or v != v else v for v, absent in zip(values, gone, strict=True)]


def make(job: ttap.Trace, name: str, options: Any, **more: Any) -> ColumnTable:
    return table_spec(name).make(job, **dict(options), **more)


@every_table
def test_pandas_has_the_values(job: ttap.Trace, name: str, options: Any) -> None:
    pd = pytest.importorskip("pandas")
    table = make(job, name, options)
    frame = table.to_pandas()
    # A recording that is fine has no faults, and training no layers of a served model.
    assert table.num_rows > 0 or name in ("quality", "serving")
    assert list(frame.columns) == list(table.columns)
    for column in table.columns:
        found = [None if pd.isna(value) else value for value in frame[column].tolist()]
        assert found == plain(table.column(column)), column


@every_table
def test_csv_has_the_values(job: ttap.Trace, name: str, options: Any, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    table = make(job, name, options)
    table.to_csv(tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == table.num_rows
    for column in table.columns:
        for row, value in zip(rows, plain(table.column(column)), strict=True):
            assert read_cell(row[column], value) == value, column


def read_cell(text: str, like: Any) -> Any:
    if text == "":
        return like if like == "" else None
    if isinstance(like, float):
        return float(text)
    return text if isinstance(like, str) else json.loads(text.lower())


@every_table
def test_parquet_has_the_values(job: ttap.Trace, name: str, options: Any, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = make(job, name, options)
    table.to_parquet(tmp_path / "table.parquet")
    read = parquet.read_table(tmp_path / "table.parquet").to_pydict()
    assert list(read) == list(table.columns)
    for column in table.columns:
        assert read[column] == plain(table.column(column)), column


@every_table
def test_json_has_the_values(job: ttap.Trace, name: str, options: Any) -> None:
    table = make(job, name, options)
    document = json.loads(table.to_json())
    assert document == json.loads(json.dumps(table.to_dict()))
    assert document["notes"] == list(table.notes)
    columns = zip(*document["rows"], strict=True) if table.num_rows else [()] * len(table.columns)
    for column, values in zip(document["columns"], columns, strict=True):
        kept = table.column(column)
        expected = plain(kept)
        if isinstance(kept, JsonCodes):
            expected = [None if text is None else json.loads(text) for text in expected]
        elif not isinstance(kept, TextCodes) and kept.dtype.kind == "f":
            expected = [None if v is None or math.isinf(v) else v for v in expected]
        assert list(values) == expected, column


@every_table
def test_ranks_stand_below_each_other(job: ttap.Trace, name: str, options: Any) -> None:
    if not table_spec(name).per_rank:
        pytest.skip("one table for all ranks")
    stacked = make(job, name, options)
    assert stacked.columns[0] == "rank"
    for rank in (0, 1):
        one = make(job, name, options, rank=rank)
        its = stacked.take(np.flatnonzero(stacked["rank"] == rank))
        assert its.num_rows == one.num_rows
        for column in stacked.columns[1:]:
            kept = one.column(column) if column in one else np.full(one.num_rows, np.nan)
            assert sorted(map(repr, plain(its.column(column)))) == sorted(map(repr, plain(kept)))


def test_some_integers_are_absent_and_some_are_not(job: ttap.Trace) -> None:
    """Else the tests above could not tell a mask from its inverse."""
    mixed = set()
    for name, options in cases():
        table = make(job, name, options)
        for column in table.columns:
            kept = table.column(column)
            if not isinstance(kept, TextCodes) and kept.dtype.kind == "i":
                gone = np.ma.getmaskarray(kept)
                mixed |= {name} if gone.any() and not gone.all() else set()
    assert mixed >= {"events", "tree", "kernels"}


@pytest.mark.parametrize("name", TABLES)
def test_the_command_writes_what_python_gives(
    job: ttap.Trace, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas")
    folder = str(Path(job.ranks[0].path).parent)
    assert main([name, folder, "--csv", str(tmp_path / "command.csv")]) == 0
    make(job, name, ()).to_csv(tmp_path / "python.csv")
    assert (tmp_path / "command.csv").read_bytes() == (tmp_path / "python.csv").read_bytes()
    capsys.readouterr()
    assert main([name, folder, "--limit", "3", "--all-columns", "--no-color"]) == 0
    shown = capsys.readouterr().out
    assert all(column.split("_")[0] in shown for column in make(job, name, ()).columns)
