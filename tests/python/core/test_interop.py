"""NumPy, pandas and Arrow: what leaves, without copies, and comes in elsewhere unchanged."""

from __future__ import annotations

import gc
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_samples as samples
from conftest import WriteTrace

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.core.columns import JsonCodes, TextCodes, encode_texts
from torchtraceap.core.table import ColumnTable, stack_ranks

pa = pytest.importorskip("pyarrow", reason="pyarrow reads the Arrow streams in these tests")


@pytest.fixture
def trace(write_trace: WriteTrace) -> ttap.Trace:
    return ttap.load(samples.slow_loader(steps=2).write(write_trace([])))


@pytest.fixture
def ranks(tmp_path: Path) -> ttap.Trace:
    for rank in (0, 3):
        maker = samples.slow_loader(steps=1 + rank, rank=rank, world_size=4)
        maker.write(tmp_path / f"{rank}.json")
    return ttap.load(tmp_path)


# --- NumPy ---


def test_columns_are_read_only_views_of_the_core(trace: ttap.Trace) -> None:
    table = trace.rank().table
    for name in ("ts_ns", "dur_ns", "name", "kind", "phase", "track"):
        column = getattr(table, name)
        assert column.base is table
        assert not column.flags.writeable
        assert not column.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0
    for name in ("category", "device", "stream", "correlation", "external_id"):
        column = getattr(table, name)  # widened, so it is made anew
        assert not column.flags.writeable
        assert np.array_equal(column, getattr(table, name))
    again = table.ts_ns
    assert again.__array_interface__["data"] == table.ts_ns.__array_interface__["data"]
    assert trace.events()["ts_ns"].__array_interface__["data"] == again.__array_interface__["data"]


def test_views_outlive_the_trace(write_trace: WriteTrace) -> None:
    trace = ttap.load(samples.slow_loader().write(write_trace([])))
    table, tree = trace.rank().table, trace.rank().tree
    views = [table.ts_ns, tree.parent, trace.idle()["start_ns"], trace.windows().bounds_ns]
    before = [view.copy() for view in views]
    del trace, table, tree
    gc.collect()
    for view, copy in zip(views, before, strict=True):
        assert np.array_equal(view, copy)


def test_events_of_a_graph_name_it_and_its_node(write_trace: WriteTrace) -> None:
    def kernel(start: int, **args: int) -> dict[str, object]:
        return {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": start,
                "dur": 5, "args": {"device": 0, "stream": 7, **args}}  # fmt: skip

    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 1, "tid": 1,
            "ts": 1, "dur": 2, "args": {"graph id": 9}}  # fmt: skip
    events = [call, kernel(10, **{"graph id": 3, "graph node id": 2**40}), kernel(20)]
    table = ttap.load(write_trace(events)).events()
    assert table.to_list("graph_id") == [None, 3, None]
    assert table.to_list("graph_node_id") == [None, 2**40, None]
    assert ttap.load(write_trace(events)).events(kind="kernel").to_list("graph_id") == [3, None]


def test_phase_and_kind_are_codes_with_names(trace: ttap.Trace) -> None:
    table = trace.rank().table
    assert bytes(np.unique(table.phase)) == b"X"
    kinds = np.asarray(_core.kind_names())[table.kind]
    assert list(trace.events()["kind"]) == list(kinds)
    assert set(kinds) == {"cpu_op", "kernel", "runtime", "user_annotation"}


def test_arguments_by_name(trace: ttap.Trace) -> None:
    events = trace.events()
    values, there = events.int_arg("correlation")
    assert there.dtype == np.bool_
    correlation = events["correlation"]
    assert np.array_equal(values[there], correlation[there])
    assert np.array_equal(there, ~np.ma.getmaskarray(correlation))
    streams = events.arg("stream")
    assert set(streams) == {None, "7"}
    assert len(streams) == events.num_rows


def test_arguments_of_chosen_events_follow_their_order(ranks: ttap.Trace) -> None:
    longest = ranks.events(longest=True)
    assert sorted(longest["dur_ns"].tolist(), reverse=True) == longest["dur_ns"].tolist()
    values, there = longest.int_arg("correlation")
    correlation = longest["correlation"]
    assert np.array_equal(there, ~np.ma.getmaskarray(correlation))
    assert np.array_equal(values[there], correlation[there])
    expected = [str(v) if yes else None for v, yes in zip(values, there, strict=True)]
    assert longest.arg("correlation") == expected
    kernels = ranks.events(3, kind="kernel")
    assert set(kernels.arg("stream")) == {"7"}
    assert set(kernels["kind"]) == {"kernel"}


def test_row_numbers_are_checked(trace: ttap.Trace) -> None:
    table = trace.rank().table
    for row in (-1, len(table), 2**40):
        with pytest.raises(IndexError, match="row"):
            table.name_of(row)
        with pytest.raises(IndexError):
            trace.args(row)


def test_trees_and_windows_of_another_trace_are_refused(write_trace: WriteTrace) -> None:
    one, two = (
        ttap.load(samples.slow_loader().write(write_trace([], name))).rank()
        for name in ("a.json", "b.json")
    )
    with pytest.raises(ttap.errors.SchemaError, match="another table"):
        _core.timeline(one.table, two.tree)
    with pytest.raises(ttap.errors.SchemaError, match="another table"):
        _core.detect(one.table, two.tree)
    windows = _core.build_windows(two.table, two.tree)
    with pytest.raises(ttap.errors.SchemaError, match="another tree"):
        _core.build_features(one.table, one.tree, windows)


# --- Arrow ---


def test_events_reach_arrow_with_types_and_nulls(trace: ttap.Trace) -> None:
    table = pa.table(trace.events())
    table.validate(full=True)
    assert table.num_rows == trace.events().num_rows
    assert table.column_names == list(trace.events().columns)
    types = {field.name: field.type for field in table.schema}
    assert types["ts_ns"] == types["dur_ns"] == types["correlation"] == pa.int64()
    assert types["name"] == pa.dictionary(pa.int32(), pa.large_string())
    events = trace.events()
    for name in ("ts_ns", "dur_ns", "name", "category", "kind", "phase", "pid", "tid"):
        assert table[name].to_pylist() == events[name].tolist(), name
    stream = events["stream"].tolist()
    assert table["stream"].to_pylist() == stream
    assert table["stream"].null_count == stream.count(None) > 0
    assert stream == [None if v == _core.NO_ID else v for v in trace.rank().table.stream.tolist()]
    device = [None if value < 0 else value for value in trace.rank().table.device.tolist()]
    assert table["device"].to_pylist() == events["device"].tolist() == device


def test_int64_columns_reach_arrow_without_a_copy(trace: ttap.Trace) -> None:
    table = pa.table(trace.events())
    for name in ("ts_ns", "dur_ns", "name"):
        buffer = table[name].chunk(0).buffers()[1]
        column = getattr(trace.rank().table, name)
        assert buffer.address == column.__array_interface__["data"][0]


def test_arrow_outlives_the_trace(write_trace: WriteTrace) -> None:
    trace = ttap.load(samples.slow_loader().write(write_trace([])))
    expected = trace.events()["ts_ns"].tolist()
    table, idle = pa.table(trace.events()), pa.table(trace.idle())
    starts = trace.idle()["start_ns"].tolist()
    del trace
    gc.collect()
    assert table["ts_ns"].to_pylist() == expected
    assert idle["start_ns"].to_pylist() == starts


def test_each_call_gives_a_fresh_stream(trace: ttap.Trace) -> None:
    events = trace.events()
    capsules = [events.__arrow_c_stream__() for _ in range(3)]
    assert len({id(capsule) for capsule in capsules}) == 3
    del capsules  # streams that nobody read are released
    first, second = pa.table(events), pa.table(events)
    assert first.equals(second)
    assert pa.schema(events) == first.schema


def test_unread_and_half_read_streams_are_released(trace: ttap.Trace) -> None:
    for _ in range(50):
        trace.events().__arrow_c_stream__()
        reader = pa.RecordBatchReader.from_stream(trace.events())
        batch = reader.read_next_batch()
        column = batch.column(batch.schema.get_field_index("name"))
        del reader, batch
        assert len(column.dictionary) > 0


def test_ranks_become_batches_with_a_rank_column(ranks: ttap.Trace) -> None:
    table = pa.table(ranks.events())
    table.validate(full=True)
    assert table.column_names[0] == "rank"
    assert set(table["rank"].to_pylist()) == {0, 3}
    assert table.num_rows == sum(len(rank.table) for rank in ranks.ranks)
    assert [chunk.buffers()[1].address for chunk in table["ts_ns"].chunks] == [
        rank.table.ts_ns.__array_interface__["data"][0] for rank in ranks.ranks
    ]
    assert table["name"].to_pylist() == ranks.events()["name"].tolist()


def test_texts_that_are_no_utf8_are_valid_in_arrow(tmp_path: Path) -> None:
    names = [
        b"\\ud800",
        b"\xff\xfe",
        b"ok \xc3\xa9",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\\u0000",
    ]
    events = b",".join(
        b'{"ph":"X","cat":"cpu_op","name":"%s","pid":1,"tid":1,"ts":%d,"dur":1}' % (name, i)
        for i, name in enumerate(names)
    )
    path = tmp_path / "odd.json"
    path.write_bytes(b'{"traceEvents":[' + events + b"]}")
    trace = ttap.load(path)
    table = pa.table(trace.events())
    table.validate(full=True)
    assert trace.events().num_rows == len(names)
    assert table["name"].to_pylist()[2] == "ok é"
    assert len(trace.events().to_pandas()) == len(names)


def test_polars_and_duckdb_read_events(trace: ttap.Trace, ranks: ttap.Trace) -> None:
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    for events in (trace.events(), ranks.events()):
        frame = polars.DataFrame(events)
        assert frame["dur_ns"].sum() == int(events["dur_ns"].sum())
        assert frame["name"].cast(polars.String).to_list() == events["name"].tolist()
        query = "select name::varchar, count(*) from events group by 1 order by 1"
        counted = duckdb.sql(query).fetchall()
        names, counts = np.unique(events["name"].astype(str), return_counts=True)
        assert counted == list(zip(names.tolist(), counts.tolist(), strict=True))


def test_other_tables_reach_arrow(trace: ttap.Trace) -> None:
    idle = pa.table(trace.idle())
    assert idle["cause"].to_pylist() == trace.idle()["cause"].tolist()
    features = pa.table(trace.features(count=50))
    assert features.num_rows == 50
    assert features.column_names[2:] == trace.features(count=50).names


def test_column_tables_check_what_they_export() -> None:
    good = ColumnTable({"a": np.arange(4), "b": TextCodes(np.array([0, 1, 1, 0]), ["x", "y"])})
    table = pa.table(good)
    assert table.to_pydict() == {"a": [0, 1, 2, 3], "b": ["x", "y", "y", "x"]}
    strided = ColumnTable({"a": np.arange(10)[::3]})
    assert pa.table(strided)["a"].to_pylist() == [0, 3, 6, 9]
    uneven = ColumnTable({"a": np.arange(4), "b": np.arange(3)})
    with pytest.raises(ttap.errors.SchemaError, match="one length"):
        uneven.__arrow_c_stream__()
    with pytest.raises(ttap.errors.SchemaError, match="same columns"):
        ColumnTable({}, batches=[good, strided]).__arrow_c_stream__()
    with pytest.raises(ttap.errors.SchemaError, match="dtype"):
        ColumnTable({"a": np.zeros(2, dtype=complex)}).__arrow_c_stream__()


# --- pandas ---


def test_events_as_a_data_frame(trace: ttap.Trace) -> None:
    frame = trace.events().to_pandas()
    events = trace.events()
    assert list(frame.columns) == list(events.columns)
    assert frame["ts_ns"].tolist() == events["ts_ns"].tolist()
    assert frame["name"].astype(str).tolist() == events["name"].tolist()
    assert frame["stream"].dtype == "Int64"
    assert frame["stream"].dropna().unique().tolist() == [7]
    assert frame["pid"].cat.categories.tolist() == ["0", "100"]  # tracks are sorted by name
    by_kind = frame.groupby("kind", observed=True)["dur_ns"].sum()
    assert by_kind["kernel"] == 2 * 8 * 6_590_000
    some = events.take(events["dur_ns"] > 1_000_000).to_pandas()
    assert (some["dur_ns"] > 1_000_000).all()
    assert len(some) < len(frame)


def test_several_ranks_as_a_data_frame(ranks: ttap.Trace) -> None:
    frame = ranks.events().to_pandas()
    assert frame["rank"].unique().tolist() == [0, 3]
    assert frame["name"].dtype == "category"
    assert frame["name"].astype(str).tolist() == ranks.events()["name"].tolist()
    assert ranks.events(3).columns[0] == "row"
    assert ranks.events().take(slice(0, 3)).to_pandas()["row"].tolist() == [0, 1, 2]


def test_other_tables_as_data_frames(trace: ttap.Trace) -> None:
    idle = trace.idle().to_pandas()
    assert (idle["end_ns"] - idle["start_ns"]).sum() == trace.timeline().idle_ns
    features = trace.features(count=50)
    assert features.to_pandas().shape == (50, 2 + len(features.names))
    assert features.zscores.shape == features.values_matrix.shape == (50, len(features.names))


def test_a_diagnosis_and_files_need_neither_pandas_nor_scipy(
    write_trace: WriteTrace, tmp_path: Path
) -> None:
    trace_file = samples.slow_loader(steps=2).write(write_trace([]))
    code = f"""
import sys
for name in ("pandas", "scipy"):
    sys.modules[name] = None  # importing it fails
import torchtraceap as ttap
from torchtraceap.lab.bench.statistics.sequential import q_values
from torchtraceap.lab.jobs.op_trace import read_operator_trace
trace = ttap.load({str(trace_file)!r})
print(trace.diagnose())
trace.ops().to_csv({str(tmp_path / "ops.csv")!r})
table = {str(tmp_path / "ops.csv")!r}
for call in (trace.ops().to_pandas, lambda: read_operator_trace(table), lambda: q_values([0.1])):
    try:
        call()
    except ttap.errors.MissingDependencyError as error:
        print("needs:", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("needs:")] == [
        "needs: a DataFrame needs pandas: pip install 'torchtraceap[pandas]'",
        "needs: a CSV table of operators needs pandas: pip install 'torchtraceap[pandas]'",
        "needs: statistics of runs need SciPy: pip install 'torchtraceap[bench]'",
    ]
    assert (tmp_path / "ops.csv").read_text("utf-8").startswith("name,")


@pytest.mark.parametrize("spreadsheet", [False, True])
def test_csv_holds_what_pandas_would_write(tmp_path: Path, spreadsheet: bool) -> None:
    table = ColumnTable(
        {
            "float": np.array([1.5, np.nan, np.inf, 1e16, 1e-7]),
            "integer": np.ma.array([1, 2, 3, 4, 2**62], mask=[1, 0, 0, 0, 0]),
            "yes": np.array([True, False, True, True, False]),
            "text": TextCodes(np.array([0, -1, 1, 2, 3]), ["x", 'a,"b"', "", "ä\nb"]),
        }
    )
    table.to_csv(tmp_path / "a.csv", spreadsheet=spreadsheet)
    table.to_pandas().to_csv(tmp_path / "b.csv", index=False, lineterminator="\n")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    table.to_csv(tmp_path / "a.csv.gz")
    with gzip.open(tmp_path / "a.csv.gz") as stream:
        assert stream.read() == (tmp_path / "b.csv").read_bytes()


# --- imports ---


def test_importing_the_package_is_light() -> None:
    heavy = ("torch", "pandas", "pyarrow", "rich", "typer", "jinja2", "yaml", "IPython")
    code = f"import sys, torchtraceap\nprint([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_real_trace_reaches_arrow_and_pandas(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    events: Any = trace.events()
    table = pa.table(events)
    table.validate(full=True)
    assert table["ts_ns"].to_numpy().tolist() == events["ts_ns"].tolist()
    frame = events.to_pandas()
    assert frame["name"].isna().sum() == 0
    assert int(frame["dur_ns"].sum()) == int(events["dur_ns"].sum())


def test_json_columns_take_what_a_trace_may_hold() -> None:
    column = JsonCodes(np.array([0, 1, 2, -1], dtype=np.int32), ["[1, 2]", "no json", "NaN"])
    table = ColumnTable({"dims": column})
    assert table.to_list("dims") == [[1, 2], "no json", "NaN", None]
    assert json.loads(table.to_json())["rows"] == [[[1, 2]], ["no json"], ["NaN"], [None]]


def test_notes_of_ranks_are_said_once_or_name_their_rank() -> None:
    parts = [
        (rank, ColumnTable({"a": np.arange(2)}, facts={"n": rank}, notes=["same", note]))
        for rank, note in [(0, "one"), (3, "other")]
    ]
    stacked = stack_ranks(parts)
    assert stacked.to_list("rank") == [0, 0, 3, 3]
    assert stacked.facts == {"n": [0, 3]}
    assert stacked.notes == ("same", "rank 0: one", "rank 3: other")


def test_absent_values_leave_as_null() -> None:
    table = ColumnTable(
        {
            "count": np.ma.array([1, 2], mask=[False, True]),
            "share": np.array([np.nan, 0.5]),
            "name": encode_texts([None, "x"]),
            "whole": np.array([True, False]),
        }
    )
    read = pa.table(table).to_pydict()
    assert read == {
        "count": [1, None],
        "share": [None, 0.5],
        "name": [None, "x"],
        "whole": [1, 0],
    }


def test_absent_numbers_of_every_type_leave_through_pandas() -> None:
    gone = [False, True]
    table = ColumnTable(
        {
            "count": np.ma.array([1, 2], mask=gone),
            "small": np.ma.array(np.array([3, 4], dtype=np.int32), mask=gone),
            "time": np.ma.array([0.5, 1.5], mask=gone),
            "whole": np.ma.array([True, False], mask=gone),
        }
    )
    frame = table.to_pandas()
    assert [frame[name].isna().tolist() for name in frame] == [gone] * 4
    assert [frame[name][0] for name in frame] == [1, 3, 0.5, True]


def test_columns_are_made_when_they_are_asked_for() -> None:
    made: list[str] = []

    def make(name: str) -> Any:
        made.append(name)
        return np.arange(3)

    table = ColumnTable({"a": np.arange(3), "b": lambda: make("b"), "c": lambda: make("c")})
    few = table.take(slice(0, 2))
    assert (table.num_rows, few.num_rows, made) == (3, 2, [])
    assert few["b"].tolist() == [0, 1]
    assert (table["b"].tolist(), made) == ([0, 1, 2], ["b"])


def test_only_texts_in_use_leave_a_column() -> None:
    column = TextCodes(np.array([5, -1, 5], dtype=np.int32), [f"text {i}" for i in range(1000)])
    assert column.compact().texts == ["text 5"]
    assert column.to_list() == ["text 5", None, "text 5"]
    table = ColumnTable({"name": column})
    assert pa.table(table)["name"].chunk(0).dictionary.to_pylist() == ["text 5"]
    assert list(table.to_pandas()["name"].cat.categories) == ["text 5"]


def test_a_long_table_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtraceap.core.table.ROWS_AT_ONCE", 2)
    table = ColumnTable({"a": np.arange(5)}, facts={"n": 1}, notes=["x"])
    assert json.loads(table.to_json()) == json.loads(json.dumps(table.to_dict()))


def test_a_table_shows_itself_with_units_and_nothing_of_it_is_markup() -> None:
    table = ColumnTable(
        {"name": encode_texts(["<b>x</b>"] * 30), "gpu_ns": np.full(30, 1500)}, notes=["a < b"]
    )
    page = table._repr_html_()
    assert "gpu (ns)" in page and "1500" in page
    assert "<b>" not in page and "&lt;b&gt;x" in page
    assert "<p>a &lt; b</p>" in page and "10 more rows" in page
