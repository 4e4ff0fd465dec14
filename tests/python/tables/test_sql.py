"""SQL over the tables of a trace."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import torchtraceap as ttap
from torchtraceap.errors import OptionError
from torchtraceap.tables import sql
from torchtraceap.tables.sql import sql_tables

pytest.importorskip("duckdb")
DEMO = Path(__file__).parents[3] / "examples/traces/resnet50_num_workers_0.json.gz"


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


@pytest.mark.parametrize(
    "query",
    [
        "set threads = 8",
        "pragma enable_progress_bar",
        "attach 'x.db'",
        "install json",
        "load json",
        "export database 'x'",
        "import database 'x'",
        "copy events to 'x.csv'",
        "copy (pivot ops on kind using count(*)) to 'x.csv'",
        "call enable_logging()",
        "create table t as select 1",
        "create table t as pivot events on kind using count(*)",
        "insert into events select * from events",
        "with x as (select 1) delete from events",
        "explain analyze select 1",
        "prepare v as select 1",
        "checkpoint",
        "vacuum",
        "use memory",
        "select 1; select 2",
        "select 1; set threads = 8",
        "/* select */ set threads = 8",
        "from enable_logging()",
        'from system.main."enable_logging" /**/ ()',
        "from enable_profiling()",
        "select * from read_text('/etc/passwd')",
        "select * from (select 1) where exists (from glob('/*'))",
        "from query('select * from duckdb_settings()')",
        "from query_table(['events'])",
        "from duckdb_secrets()",
        "from arrow_scan(1::pointer, 1::pointer, 1::pointer)",
        "from json_execute_serialized_sql('{}')",
        "pivot (from read_csv('x.csv')) on a using count(*)",
        "select getenv('HOME')",
        "select 'HOME'.getenv()",
        "select write_log('x')",
        "select current_setting('threads')",
        "select sleep_ms(1)",
        "from '/etc/passwd'",
        "from 'https://example.com/x.csv'",
        "select * from trace",
    ],
)
def test_a_query_reads_the_tables_and_nothing_else(
    trace: ttap.Trace, query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=r"^SQL: [^\n]+$"):
        trace.sql(query)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "query",
    [
        "from events limit 1",
        "-- a comment; and more\nselect ';' as a, 1 as \"read_csv\" ;;",
        "with a as (select 1 as x) select x from a",
        "pivot ops on kind using count(*)",
        "with p as (pivot ops on kind using count(*)) from p",
        "unpivot (select 1 a, 2 b) on a, b",
        "summarize ops",
        "describe events",
        "show tables",
        "values (1, 2)",
        "(select 1) union all (select 2)",
        "select * from range(3), unnest([1, 2])",
        "select 'é' as a, count(*) from events",
    ],
)
def test_queries_that_select(trace: ttap.Trace, query: str) -> None:
    assert trace.sql(query).columns


def test_values_inside_lists_and_structures(trace: ttap.Trace) -> None:
    table = trace.sql(
        "select [1.5::decimal(4, 1), null] a, {'d': date '2020-01-02'} b, ['nan'::float] c, "
        "[true] d, map {1: 'x'} e, 1 a_1, 2 a"
    )
    assert table.records() == [
        {"a": [1.5, None], "b": {"d": "2020-01-02"}, "c": [None], "d": [True], "e": {"1": "x"},
         "a_1": 1, "a_2": 2}
    ]  # fmt: skip


@pytest.mark.parametrize(
    "query",
    [
        f"select {'(' * 50_000}1{')' * 50_000}",
        f"select {'(' * 9_000}1{')' * 9_000}",
        f"select 1{'+1' * 9_000}",
        "from range(3000)",
        "select range(1000) from range(100000)",
        "select [range(200), [{'a': a.range}]] from range(100000) a, range(100000)",
    ],
)
def test_what_is_too_large_is_refused(
    trace: ttap.Trace, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "MAX_VALUES", 2000)
    with pytest.raises(OptionError, match=r"^SQL: [^\n]+$"):
        trace.sql(query)


def test_an_interrupt_stops_a_query(trace: ttap.Trace) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            trace.sql("select count(*) from range(1000000000000) a, range(1000000) b")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "query",
    [
        "select count(*) from range(1000000000000) a, range(1000000) b",
        "with recursive r as (select 1 a union all select a + 1 from r) select count(*) from r",
        "select a.range from range(1000000000) a order by hash(a.range) limit 3",
        "select regexp_matches(repeat('a', 100000 + range), '(a*)*b') from range(1000000)",
    ],
)
def test_a_query_has_a_time_limit(trace: ttap.Trace, query: str) -> None:
    begin = time.monotonic()
    with pytest.raises(OptionError, match=r"^SQL: stopped after 0\.3 s: "):
        trace.sql(query, seconds=0.3)
    assert time.monotonic() - begin < 3


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_limit_is_positive(trace: ttap.Trace, seconds: float) -> None:
    with pytest.raises(OptionError, match="positive"):
        trace.sql("select 1", seconds=seconds)


def test_a_long_query_prints_nothing(tmp_path: Path) -> None:
    """DuckDB's progress bar is for people and stands on standard output."""
    query = "select count(*) as n from range(300000) a, range(30000) b where a.range < b.range"
    command = [sys.executable, "-m", "torchtraceap", "sql", str(DEMO), query, "--json"]
    leader, follower = os.openpty()
    shown = b""
    with subprocess.Popen(command, stdout=follower) as process:
        os.close(follower)
        with contextlib.suppress(OSError):  # the end of a terminal
            while more := os.read(leader, 4096):
                shown += more
    os.close(leader)
    assert process.returncode == 0
    assert list(json.loads(shown)["rows"]) == [[449985000]]


@pytest.mark.parametrize("query", ["", "  ", ";"])
def test_an_empty_query(trace: ttap.Trace, query: str) -> None:
    with pytest.raises(OptionError, match="no rows"):
        trace.sql(query)
