"""SQL over the tables of a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

import torchtraceap as ttap
from torchtraceap.errors import OptionError
from torchtraceap.sql import sql_tables

pytest.importorskip("duckdb")
DEMO = Path(__file__).parents[2] / "examples/traces/resnet50_num_workers_0.json.gz"


@pytest.fixture(scope="module")
def trace() -> ttap.Trace:
    return ttap.load(DEMO)


@pytest.mark.parametrize("name", sql_tables())
def test_every_table_can_be_queried(trace: ttap.Trace, name: str) -> None:
    rows = sql_tables()[name](trace).num_rows
    assert trace.sql(f"select count(*) as n from {name}").to_list("n") == [rows]


def test_sums_are_those_of_the_timeline(trace: ttap.Trace) -> None:
    total = trace.sql("select sum(exclusive_ns)::bigint as ns from gpu_events").to_list("ns")
    assert total == [trace.timeline().busy_ns]


def test_absent_values_are_null(trace: ttap.Trace) -> None:
    counted = trace.sql("select count(*) - count(stream) as n from events").to_list("n")[0]
    on_a_stream = trace.ranks[0].table.stream != -(2**63)
    assert counted == len(on_a_stream) - int(on_a_stream.sum())


def test_values_of_all_kinds(trace: ttap.Trace) -> None:
    table = trace.sql("select 1 a, 0.5 b, 'x' c, true d, [1, 2] e, null f, 1 a, 10::hugeint g")
    assert list(table.rows()) == [(1, 0.5, "x", "true", [1, 2], None, 1, 10)]


def test_errors_are_one_sentence(trace: ttap.Trace) -> None:
    with pytest.raises(OptionError, match=r"tables: tree, events, ops"):
        trace.sql("select * from nothing")
    with pytest.raises(OptionError, match="SQL"):
        trace.sql("selec 1")


def test_files_are_out_of_reach(trace: ttap.Trace, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a\n1\n")
    with pytest.raises(OptionError, match="disabled"):
        trace.sql(f"select * from read_csv('{tmp_path / 'x.csv'}')")
    with pytest.raises(OptionError):
        trace.sql(f"copy (select 1) to '{tmp_path / 'y.csv'}'")
    assert not (tmp_path / "y.csv").exists()


@pytest.mark.parametrize("query", ["", "  ", ";"])
def test_an_empty_query(trace: ttap.Trace, query: str) -> None:
    with pytest.raises(OptionError, match="no rows"):
        trace.sql(query)
