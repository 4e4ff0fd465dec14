"""`load`: files, folders, lists, ranks, progress and errors."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_samples as samples
import zstandard
from conftest import WriteTrace

import torchtraceap as ttap
from torchtraceap import errors
from torchtraceap.core.results import TraceFile
from torchtraceap.trace import files
from torchtraceap.trace.files import assign_ranks, natural_key

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}


def document(rank: int | None = None, world_size: int | None = None) -> dict[str, Any]:
    top: dict[str, Any] = {"traceEvents": [EVENT]}
    if rank is not None:
        top["distributedInfo"] = {"rank": rank, "world_size": world_size}
    return top


def codes(trace: ttap.Trace) -> dict[str, int]:
    return {entry.code: entry.count for entry in trace.diagnostics}


def test_containers_are_told_apart_by_content(write_trace: WriteTrace, tmp_path: Path) -> None:
    text = write_trace(samples.slow_loader(steps=2).events).read_bytes()
    contents = {
        "plain.bin": text,
        "gzip.json": gzip.compress(text[:100]) + gzip.compress(text[100:]),
        "zstd.json.gz": zstandard.ZstdCompressor().compress(text),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    tables = [ttap.load(tmp_path / name).rank().table for name in contents]
    for table in tables[1:]:
        assert np.array_equal(table.ts_ns, tables[0].ts_ns)
        assert table.strings == tables[0].strings
    assert len(tables[0]) == len(samples.slow_loader(steps=2).events)


def test_path_types_are_interchangeable(write_trace: WriteTrace) -> None:
    path = write_trace([EVENT])
    for given in (path, str(path), [path], (str(path),)):
        assert len(ttap.load(given).ranks) == 1


def test_a_path_that_is_no_utf8_can_be_read(tmp_path: Path) -> None:
    path = Path(str(tmp_path).encode().decode() + "/tr\udcffce.json")
    try:
        path.write_text(json.dumps({"traceEvents": [EVENT]}))
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert ttap.load(path).events().num_rows == 1


def test_a_missing_path_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(errors.MissingFileError, match=r"nowhere\.json: no such file"):
        ttap.load(tmp_path / "nowhere.json")
    with pytest.raises(FileNotFoundError):
        ttap.load([tmp_path / "nowhere.json"])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"traceEvents": []}', "hello", "\x00\x01"])
def test_a_file_without_an_event_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "empty.json"
    path.write_text(text)
    with pytest.raises(errors.ParseError, match=r"empty\.json") as caught:
        ttap.load(path)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_options_out_of_range_are_errors(write_trace: WriteTrace) -> None:
    with pytest.raises(errors.OptionError, match="threads"):
        ttap.load(write_trace([EVENT]), threads=-1)
    with pytest.raises(errors.ParseError, match="no path"):
        ttap.load([])


def test_thread_counts_give_equal_tables(bundled: Path) -> None:
    one, four = (ttap.load(bundled, threads=n).rank().table for n in (1, 4))
    for column in ("ts_ns", "dur_ns", "track", "correlation", "kind"):
        assert np.array_equal(getattr(one, column), getattr(four, column))


def test_progress_is_reported_up_to_the_size(bundled: Path, write_trace: WriteTrace) -> None:
    small = write_trace([EVENT])
    total = bundled.stat().st_size + small.stat().st_size
    seen: list[tuple[int, int]] = []
    ttap.load([bundled, small], progress=lambda done, of: seen.append((done, of)))
    assert {of for _, of in seen} == {total}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (total, total)


def test_an_error_in_progress_stops_reading(bundled: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ttap.load(bundled, progress=stop)


# --- folders and ranks ---


def test_a_folder_is_one_trace_ranked_by_distributed_info(write_trace: WriteTrace) -> None:
    for rank, name in ((2, "a.json"), (0, "b.json"), (1, "c.json")):
        folder = write_trace(document(rank, 3), f"run/{name}").parent
    trace = ttap.load(folder)
    assert [(rank.rank, Path(rank.path).name) for rank in trace.ranks] == [
        (0, "b.json"),
        (1, "c.json"),
        (2, "a.json"),
    ]
    assert [rank.world_size for rank in trace.ranks] == [3, 3, 3]
    assert codes(trace) == {}


def test_ranks_come_from_file_names_when_nothing_else_says(write_trace: WriteTrace) -> None:
    for name in ("rank10.json", "rank2.json", "step-5_RANK_3.json"):
        folder = write_trace(document(), f"run/{name}").parent
    trace = ttap.load(folder)
    assert [rank.rank for rank in trace.ranks] == [2, 3, 10]
    assert codes(trace) == {"rank_from_file_name": 3}


def test_ranks_come_from_the_order_as_a_last_resort(write_trace: WriteTrace) -> None:
    for name in ("t_10.json", "t_2.json"):
        folder = write_trace(document(), f"run/{name}").parent
    trace = ttap.load(folder)
    assert [(rank.rank, Path(rank.path).name) for rank in trace.ranks] == [
        (0, "t_2.json"),
        (1, "t_10.json"),
    ]
    assert codes(trace) == {"rank_from_order": 2}


def test_missing_ranks_are_counted(write_trace: WriteTrace) -> None:
    paths = [write_trace(document(rank, 8), f"{rank}.json") for rank in (0, 5)]
    trace = ttap.load(paths)
    missing = next(entry for entry in trace.diagnostics if entry.code == "missing_ranks")
    assert missing.count == 6
    assert "first is 1" in missing.message


def test_a_lone_rank_of_many_misses_nothing(write_trace: WriteTrace) -> None:
    trace = ttap.load(write_trace(document(3, 8)))
    assert (trace.ranks[0].rank, trace.ranks[0].world_size) == (3, 8)
    assert codes(trace) == {}


def test_a_lone_file_without_a_rank_has_none(write_trace: WriteTrace) -> None:
    trace = ttap.load(write_trace(document()))
    assert trace.ranks[0].rank is None
    assert codes(trace) == {}


def test_repeated_ranks_fall_back_to_the_names(write_trace: WriteTrace) -> None:
    paths = [write_trace(document(0, 2), f"rank{rank}.json") for rank in (1, 0)]
    trace = ttap.load(paths)
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert codes(trace) == {"rank_from_file_name": 1}


def test_repeated_ranks_without_names_are_numbered() -> None:
    claims = [TraceFile(name, 0, 2) for name in ("a.json", "b.json")]
    ranks, diagnostics = assign_ranks(claims)
    assert ranks == [0, 1]
    assert [entry.code for entry in diagnostics] == ["duplicate_rank"]


def test_an_absurd_world_size_costs_nothing() -> None:
    claims = [TraceFile("a.json", 2**62, 2**63 - 1), TraceFile("b.json", -5, None)]
    ranks, diagnostics = assign_ranks(claims)
    assert ranks == [2**62, -5]
    assert diagnostics[-1].count == 2**63 - 2


def test_what_is_no_trace_in_a_folder_is_skipped(write_trace: WriteTrace) -> None:
    folder = write_trace(document(0, 1), "run/rank0.json").parent
    (folder / "config.json").write_text('{"lr": 0.1}')
    (folder / "notes.txt").write_text("no trace")
    (folder / ".hidden.json").write_text("[]")
    (folder / "inner").mkdir()
    trace = ttap.load(folder)
    assert len(trace.ranks) == 1
    skipped = next(entry for entry in trace.diagnostics if entry.code == "skipped_file")
    assert skipped.count == 1
    assert "config.json" in skipped.message


def test_a_trace_with_an_unusual_name_is_found_by_content(write_trace: WriteTrace) -> None:
    folder = write_trace(document(0, 1), "run/worker.trace").parent
    assert len(ttap.load(folder).ranks) == 1


@pytest.mark.parametrize("first", [0x50, 0x5F])
def test_zstd_that_begins_with_a_skippable_frame_is_a_trace(tmp_path: Path, first: int) -> None:
    skippable = bytes([first]) + b"\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    content = skippable + zstandard.ZstdCompressor().compress(json.dumps(document()).encode())
    (tmp_path / "archived").write_bytes(content + skippable)
    assert ttap.load(tmp_path / "archived").events().num_rows == 1
    assert ttap.load(tmp_path).events().num_rows == 1
    assert not codes(ttap.load(tmp_path))


def test_a_window_above_the_limit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "long.json.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd\x00\xa0\x09\x00\x00x")  # a window of 1 GiB
    with pytest.raises(errors.ParseError, match="window of 1073741824 bytes is above the limit"):
        ttap.load(path)
    whole = zstandard.ZstdCompressor().compress(json.dumps(document()).encode())
    path.write_bytes(whole + path.read_bytes())
    (diagnostic,) = ttap.load(path).diagnostics
    assert diagnostic.code == "damaged_stream"
    assert "above the limit of 134217728" in diagnostic.message


@pytest.mark.parametrize("content", [None, "README.md", "broken.json"])
def test_a_folder_without_any_trace_is_an_error(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / content).write_text("nothing")
    with pytest.raises(errors.ParseError, match=str(tmp_path)):
        ttap.load(tmp_path)


def write_ranks_in_folders(root: Path, ranks: dict[str, int | None]) -> Path:
    """A trace in each folder, which says the given rank."""
    for name, rank in ranks.items():
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "trace.json").write_text(json.dumps(document(rank, 4)))
    return root


def test_a_folder_of_folders_of_ranks_is_one_trace(tmp_path: Path) -> None:
    nodes = {"node0/a": 0, "node0/b": 1, "node1/a": 2, "node1/b": 3, "node1/.hidden": 0}
    trace = ttap.load(write_ranks_in_folders(tmp_path, nodes))
    assert [rank.rank for rank in trace.ranks] == [0, 1, 2, 3]
    assert trace.diagnostics == ()


def test_folders_may_be_named_after_the_ranks(tmp_path: Path) -> None:
    folders = {f"rank{number}": None for number in (10, 9)}
    trace = ttap.load(write_ranks_in_folders(tmp_path, folders))
    assert [rank.rank for rank in trace.ranks] == [9, 10]
    assert codes(trace) == {"rank_from_file_name": 2}


def test_settings_beside_the_folders_are_no_trace(tmp_path: Path) -> None:
    write_ranks_in_folders(tmp_path, {"a": 0, "b": 1})
    (tmp_path / "config.json").write_text("{}")
    trace = ttap.load(tmp_path)
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert codes(trace) == {"missing_ranks": 2, "skipped_file": 1}


def test_links_in_circles_are_not_followed(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).symlink_to(".")
    with pytest.raises(errors.ParseError, match="no trace file"):
        ttap.load(tmp_path)
    write_ranks_in_folders(tmp_path, {"c": 0})
    (tmp_path / "c" / "again").symlink_to(tmp_path)
    assert len(ttap.load(tmp_path).ranks) == 1


def test_what_is_no_file_in_a_folder_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "device.json").symlink_to("/dev/zero")
    (tmp_path / "nothing.json").symlink_to(tmp_path / "gone")
    (tmp_path / "itself.json").symlink_to("itself.json")
    write_ranks_in_folders(tmp_path, {"run": 0})
    assert len(ttap.load(tmp_path).ranks) == 1


@pytest.mark.parametrize("deep", [False, True])
def test_a_large_tree_is_given_up_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deep: bool
) -> None:
    monkeypatch.setattr(files, "MOST_ENTRIES", 50)
    for number in range(60):
        (tmp_path / (f"{number // 8}/{number}" if deep else str(number))).mkdir(parents=True)
    with pytest.raises(errors.ParseError, match="more than 50 files and folders"):
        ttap.load(tmp_path)


@pytest.mark.parametrize("rank", [0, None])
def test_folders_that_are_several_runs_are_not_mixed(tmp_path: Path, rank: int | None) -> None:
    write_ranks_in_folders(tmp_path, {f"run_{letter}": rank for letter in "abcdefghij"})
    with pytest.raises(errors.ParseError, match=r"give one of them: .*run_a, .*and 2 more"):
        ttap.load(tmp_path)
    assert len(ttap.load(tmp_path / "run_a").ranks) == 1
    assert len(ttap.load(sorted(tmp_path.glob("*/trace.json"))).ranks) == 10  # as it is asked for


def test_a_listed_file_that_is_no_trace_is_an_error(write_trace: WriteTrace) -> None:
    good, bad = write_trace([EVENT]), write_trace({}, "bad.json")
    with pytest.raises(errors.ParseError, match=r"bad\.json"):
        ttap.load([good, bad])


def test_natural_order() -> None:
    names = ["rank10", "rank9", "a", "rank9b", "2"]
    ordered = [str(path) for path in sorted(map(Path, names), key=natural_key)]
    assert ordered == ["2", "a", "rank9", "rank9b", "rank10"]


def test_every_real_trace_loads(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    table = trace.rank().table
    assert len(table) > 0
    assert table.total_objects >= len(table)
    assert np.all(np.diff(table.ts_ns) >= 0)
    assert np.all(table.dur_ns >= 0)
