"""Which files of a folder are one run: kinds of folders, each with the runs that are in it."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.errors import SeveralRunsError
from torchtraceap.trace.jobs import group_runs, signs_of_head

DAY = 86_400
EPOCH = 1_790_000_000  # seconds of a calendar: September 2026
HEAD = 1 << 15


def content(
    rank: int | None = None,
    world: int | None = None,
    *,
    gpu: str = "NVIDIA H100",
    at: float = 0.0,
    seconds: float = 1.0,
    seed: int = 0,
    gpus: int = 1,
    epoch: bool = True,
    base: bool = False,
) -> bytes:
    """A trace of 40 events that begins `at` seconds after the calendar's (or the host's) start."""
    start_us = ((EPOCH if epoch else 1000) + at) * 1e6
    origin_us = EPOCH * 1e6 if base else 0.0
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::op{number}", "pid": 1, "tid": 1,
         "ts": start_us - origin_us + number * seconds * 25_000, "dur": 5 + seed + (rank or 0)}
        for number in range(40)
    ]  # fmt: skip
    top: dict[str, Any] = {"deviceProperties": [{"id": n, "name": gpu} for n in range(gpus)]}
    if rank is not None:
        top["distributedInfo"] = {"rank": rank, "world_size": world}
    if base:
        top["baseTimeNanoseconds"] = int(origin_us * 1000)
    return json.dumps({**top, "traceEvents": events}).encode()


def ranks(folder: str, world: int, only: Any = None, name: str = "rank{}", **kw: Any) -> Any:
    chosen = range(world) if only is None else only
    return {f"{folder}{name.format(r)}.json": content(r, world, **kw) for r in chosen}


def runs_of(*runs: Any) -> tuple[dict[str, bytes], list[set[str]]]:
    """Files, and the runs that they are of: each argument is a run."""
    return {n: c for run in runs for n, c in run.items()}, [set(run) for run in runs]


def put(folder: Path, files: dict[str, bytes]) -> list[Path]:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return [folder / name for name in files]


def merged(world: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder), ranks("", world))
        ttap.load(folder).merge(Path(folder, "merged.json"))
        return Path(folder, "merged.json").read_bytes()


H, A = "NVIDIA H100", "AMD Instinct MI300X"
KINDS: dict[str, tuple[dict[str, bytes], list[set[str]]]] = {
    "one file": runs_of({"t.json": content()}),
    "one rank of eight": runs_of(ranks("", 8, [3])),
    "eight ranks": runs_of(ranks("", 8)),
    "eight ranks without a calendar": runs_of(ranks("", 8, epoch=False)),
    "eight ranks of a base time": runs_of(ranks("", 8, base=True)),
    "a missing rank": runs_of(ranks("", 8, [0, 1, 2, 4, 5, 6, 7])),
    "two runs in folders": runs_of(ranks("a/", 8), ranks("b/", 8, at=2 * DAY, seed=1)),
    "two runs at one time": runs_of(ranks("a/", 8), ranks("b/", 8, seed=1)),
    "two runs in one folder": runs_of(ranks("", 8, name="a_rank{}"),
                                      ranks("", 8, name="b_rank{}", at=DAY, seed=1)),
    "two at one time in one folder": runs_of(ranks("", 4, name="a_rank{}"),
                                             ranks("", 4, name="b_rank{}", seed=1)),
    "a restart": runs_of(ranks("", 4, name="rank{}.1"),
                         ranks("", 4, name="rank{}.2", at=600, seed=1)),
    "a restart that lost a rank": runs_of(ranks("", 4, name="rank{}.1"),
                                          ranks("", 4, [0, 1, 3], name="rank{}.2", at=600, seed=1)),
    "a restart after a lost rank": runs_of(ranks("", 4, [0, 2, 3], name="rank{}.1"),
                                           ranks("", 4, name="rank{}.2", at=600, seed=1)),
    "a restart with fewer ranks": runs_of(ranks("", 8, name="rank{}.1"),
                                          ranks("", 4, name="rank{}.2", at=600, seed=1)),
    "three captures of one rank": runs_of({"r.1.json": content(0, 1)},
                                          {"r.2.json": content(0, 1, at=60, seed=1)},
                                          {"r.3.json": content(0, 1, at=120, seed=2)}),
    "captures without ranks": runs_of({"t1.json": content()}, {"t2.json": content(at=60, seed=1)}),
    "ranks by name": runs_of({f"rank{r}.json": content(seed=r) for r in range(4)}),
    "ranks by folder": runs_of({f"rank{r}/t.json": content(seed=r) for r in range(4)}),
    "two runs of ranks by folder": runs_of(
        {f"a/rank{r}/t.json": content(seed=r) for r in range(4)},
        {f"b/rank{r}/t.json": content(seed=r + 9) for r in range(4)}),
    "ranks that repeat, told by name": runs_of({f"rank{r}.json": content(0, 4, seed=r)
                                                for r in range(4)}),
    "nodes": runs_of({**ranks("node0/", 4, [0, 1]), **ranks("node1/", 4, [2, 3])}),
    "nodes of two runs": runs_of(
        {**ranks("a/node0/", 4, [0, 1]), **ranks("a/node1/", 4, [2, 3])},
        {**ranks("b/node0/", 4, [0, 1], seed=1), **ranks("b/node1/", 4, [2, 3], seed=1)}),
    "nodes whose clocks disagree": runs_of({**ranks("n0/", 4, [0, 1], epoch=False),
                                            **ranks("n1/", 4, [2, 3], epoch=False, at=90_000)}),
    "parts of jobs of two days": runs_of(ranks("a/", 8, [0]), ranks("b/", 8, [1], at=DAY)),
    "hosts in names": runs_of({f"host{r // 2}_{900 + r}.{17 + r}.pt.trace.json": content(r, 4)
                               for r in range(4)}),
    "gpus of two makers": runs_of({"a.json": content(0, 2)}, {"b.json": content(1, 2, gpu=A)}),
    "makers in two jobs": runs_of(ranks("", 2, name="x{}"),
                                  ranks("", 2, name="y{}", gpu=A, seed=1)),
    "other gpus at another time": runs_of({"a.json": content()},
                                          {"b.json": content(gpu="Tesla T4", at=3 * DAY, seed=1)}),
    "two kinds of gpus in one job": runs_of({"r0.json": content(0, 2),
                                             "r1.json": content(1, 2, gpu="NVIDIA H200")}),
    "two gpus in a file": runs_of({"t.json": content(gpus=2)}),
    "two gpus in each of two": runs_of(ranks("", 2, gpus=2)),
    "other sizes of the world": runs_of(ranks("", 2, name="a{}"), ranks("", 4, name="b{}", seed=1)),
    "silent ranks": runs_of({f"t_{n}.json": content(seed=n) for n in range(4)}),
    "silent files of other names": runs_of({"train.json": content()},
                                           {"evaluate.json": content(seed=1)}),
    "silent files in folders": runs_of({"a/t.json": content()}, {"b/t.json": content(seed=1)}),
    "a rank that does not say so": runs_of({**ranks("", 4, [0, 1, 3], name="t{}"),
                                            "t2.json": content(seed=2)}),
    "a merged file": runs_of({"merged.json": merged(4)}),
    "unrelated samples": runs_of(*({f"job{n}.json": content(n % 3, 8, at=n * DAY, seed=n)}
                                   for n in range(12))),
    "unrelated single runs": runs_of(*({f"{n}/t.json": content(0, 1, seed=n)}
                                       for n in range(12))),
    "jobs beside a sample": runs_of(ranks("a/", 4), ranks("b/", 4, seed=1),
                                    {"c/x.json": content(gpu=A)}),
    "deep folders": runs_of(ranks("team/x/2026/a/", 2), ranks("team/y/2026/a/", 2, seed=1)),
    "ten ranks in natural order": runs_of(ranks("", 12)),
}  # fmt: skip
COPIES = {
    "a copy of a rank": ({**ranks("", 2), "rank0 (copy).json": content(0, 2)}, 1),
    "a copy of a folder": ({**ranks("a/", 4), **ranks("b/", 4)}, 4),
    "a merged file beside its parts": ({**ranks("", 4), "merged.json": merged(4)}, 1),
    "a lone copy": ({"a.json": content(), "b.json": content()}, 1),
}


def grouped(folder: Path, paths: list[Path]) -> list[set[str]]:
    runs = group_runs(
        signs_of_head(path, path.read_bytes()[:HEAD], path.stat().st_size) for path in paths
    )
    return [{str(one.path.relative_to(folder)) for one in run.files} for run in runs]


@pytest.mark.parametrize("kind", KINDS)
def test_heads_tell_the_runs_of_a_folder(tmp_path: Path, kind: str) -> None:
    files, runs = KINDS[kind]
    found = grouped(tmp_path, put(tmp_path, files))
    assert sorted(map(sorted, found)) == sorted(map(sorted, runs))


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_one_run_is_read_and_any_other_refused(tmp_path: Path, kind: str) -> None:
    files, runs = KINDS[kind]
    put(tmp_path, files)
    if len(runs) == 1:
        assert {Path(one.path) for one in ttap.load(tmp_path).ranks} == {
            tmp_path / name for name in files
        }
        return
    with pytest.raises(SeveralRunsError) as caught:
        ttap.load(tmp_path)
    assert f"{len(files)} files of {len(runs)} runs" in str(caught.value)
    assert f"torchtraceap corpus build {tmp_path}" in str(caught.value)
    assert len(caught.value.runs) == len(runs)


@pytest.mark.parametrize("kind", COPIES)
def test_copies_belong_to_the_run_that_they_copy(tmp_path: Path, kind: str) -> None:
    files, count = COPIES[kind]
    paths = put(tmp_path, files)
    (run,) = group_runs(
        signs_of_head(path, path.read_bytes(), path.stat().st_size) for path in paths
    )
    assert len(run.copies) == count
    assert len(run.files) + count == len(files)
    with pytest.raises(SeveralRunsError, match="of which"):
        ttap.load(tmp_path)


def test_a_trace_beside_its_compressed_twin_is_named_by_its_file(tmp_path: Path) -> None:
    """The folder would be refused again."""
    text = content(0, 1)
    plain, packed = tmp_path / "trace.json", tmp_path / "trace.json.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    with pytest.raises(SeveralRunsError, match="1 holds what others hold") as refused:
        ttap.load(tmp_path)
    assert f"give one of them: {plain};" in str(refused.value)
    assert len(ttap.load(plain).ranks[0].table) == len(ttap.load(packed).ranks[0].table)


def test_a_large_file_is_told_by_its_head(tmp_path: Path) -> None:
    text = content(1, 4, at=7).replace(b"]}", b"," + b'{"ph": "X", "ts": 1},' * 50_000 + b"]}")
    data = gzip.compress(text)
    signs = signs_of_head(tmp_path / "a.json.gz", data[:2000], len(data))
    assert (signs.ranks, signs.world_size, signs.devices) == ((1,), 4, (H,))
    assert signs.start_ns == (EPOCH + 7) * 10**9
    assert signs.end_ns is None


def test_many_files_are_grouped_in_no_time(tmp_path: Path) -> None:
    from torchtraceap.trace.jobs import RecordedFile

    files = [
        RecordedFile(Path(f"/x/{n // 50}/rank{n % 50}.json"), (H,), 50, (EPOCH + n) * 10**9,
                     ranks=(n % 50,))
        for n in range(20_000)
    ]  # fmt: skip
    assert len(group_runs(files)) == 400
