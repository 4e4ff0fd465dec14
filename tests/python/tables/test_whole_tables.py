"""Every table of a job made by hand, whole: each column, fact and note.

The numbers of the job are worked out in the tests below from what `made_job` writes, so that they
stand on their own. The rest is compared with `tests/golden/tables`. `python
tests/python/tables/test_whole_tables.py` rewrites these files; read the difference before you
keep it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from math import isclose
from pathlib import Path
from typing import Any

import pytest
from made_job import load_job
from rank_samples import Job, describe

import torchtraceap as ttap
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.compare.diff import VIEWS as DIFF_VIEWS
from torchtraceap.tables.compare.diff import build_diff

EXPECTED = Path(__file__).resolve().parents[2] / "golden" / "tables"
US = 1000
RANK_VIEWS = ("rank", "op", "alltoall", "clock")

Tables = dict[str, Callable[["Jobs"], ColumnTable]]


class Jobs:
    """The job, and the same with a slower product without the ReLU and with more Python."""

    def __init__(self, folder: Path) -> None:
        self.trace = load_job(folder / "before")
        self.exchange = exchange(folder / "exchange")
        self.other = load_job(folder / "after", gemm_us=230, relu=False, think_us=500)


def exchange(folder: Path) -> ttap.Trace:
    """Three ranks; rank 1 has most of each all-to-all, and the last broadcast is without rank 2."""
    job = Job(3, world_size=4)
    parts = {
        0: ([10, 30, 5], [10, 50, 2]),
        1: ([50, 10, 8], [30, 10, 40]),
        2: ([2, 40, 1], [5, 8, 1]),
    }
    kinds = ("all_to_allv", "allgather", "reduce_scatter", "broadcast", "send", "all_to_allv")
    for number, kind in enumerate(kinds):
        at = 1_000.0 * number + 100
        job.step(number, at, 1_000)
        for rank, (sent, received) in parts.items():
            start = at + 100 + 40 * rank * (number % 3)
            job.kernel(rank, at + 20, 60)
            if (kind == "broadcast" and rank == 2) or (kind == "send" and rank == 1):
                continue
            args = describe(kind, 64, [0, 1, 2])
            if kind == "all_to_allv":
                args |= {"In msg nelems": sum(sent), "Out msg nelems": sum(received)}
                args |= {"In split size": str(sent), "Out split size": str(received)}
            name = "ncclDevKernel_SendRecv(ncclDevComm*)"
            job.ranks[rank].gpu("kernel", name, start, at + 500 - start, launch=at + 85, **args)
    return job.load(folder)


def of(name: str, job: str = "trace", **options: Any) -> Callable[[Jobs], ColumnTable]:
    return lambda jobs: getattr(getattr(jobs, job), name)(**options)


def difference(by: str) -> Callable[[Jobs], ColumnTable]:
    return lambda jobs: build_diff(jobs.trace, jobs.other, by=by)


TABLES: Tables = {
    **{f"ops_{by}": of("ops", by=by) for by in ("name", "category", "args")},
    "ops_call": of("ops", by="call", rank=0),
    "modules": of("modules"),
    **{f"kernels_{by}": of("kernels", by=by) for by in ("name", "canonical", "overlap")},
    "kernels_event": of("kernels", by="event", rank=1),
    "short_kernels": of("short_kernels"),
    "sequences": of("sequences"),
    "sequences_of_two": of("sequences", length=2, rank=0),
    **{
        f"launches_{by}": of("launches", by=by) for by in ("call", "kernel", "op", "stream", "idle")
    },
    "launches_event": of("launches", by="event", rank=1),
    "launches_queue": of("launches", by="queue", rank=1),
    **{f"roofline_{by}": of("roofline", by=by) for by in ("args", "family")},
    "roofline_call": of("roofline", by="call", rank=0),
    "roofline_a100": of("roofline", device="A100 SXM4 40 GB", rank=0),
    **{f"memory_{by}": of("memory", by=by) for by in ("direction", "allocator", "timeline")},
    "memory_copy": of("memory", by="copy", rank=0),
    **{f"memory_{by}": of("memory", by=by, rank=0) for by in ("bandwidth", "counter")},
    **{f"host_{by}": of("host", by=by) for by in ("thread", "op", "frame")},
    "steps": of("steps"),
    "collectives": of("collectives"),
    **{f"ranks_{by}": of("ranks_table", by=by) for by in RANK_VIEWS},
    **{f"critical_path_{by}": of("critical_path", by=by) for by in ("cause", "name")},
    "critical_path_event": of("critical_path", by="event", step=2),
    **{
        f"critical_path_hta_{by}": of("critical_path", compat="hta", step=1, by=by)
        for by in ("cause", "name", "event")
    },
    **{f"exchange_{by}": of("ranks_table", job="exchange", by=by) for by in RANK_VIEWS},
    "exchange_collectives": of("collectives", job="exchange"),
    "exchange_path": of("critical_path", job="exchange"),
    "idle": of("idle", rank=1, profiled=True),
    **{f"diff_{by}": difference(by) for by in DIFF_VIEWS},
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs(tmp_path_factory.mktemp("jobs"))


def document(table: ColumnTable) -> dict[str, Any]:
    """A table as JSON with a list for each column."""
    rows = table.records()
    columns = {name: [row[name] for row in rows] for name in table.columns}
    content = {"columns": columns, "shown": table.shown, "facts": table.facts, "notes": table.notes}
    plain: dict[str, Any] = json.loads(json.dumps(content, default=str))
    return plain


def differences(got: Any, expected: Any, where: str = "") -> list[str]:
    """Places where two documents differ; floats within 1e-9 of each other are equal."""
    if isinstance(got, dict) and isinstance(expected, dict):
        lines = [f"{where}: keys {set(got) ^ set(expected)}"] if set(got) != set(expected) else []
        for key in got.keys() & expected.keys():
            lines += differences(got[key], expected[key], f"{where}.{key}")
        return lines
    if isinstance(got, list) and isinstance(expected, list) and len(got) == len(expected):
        pairs = enumerate(zip(got, expected, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{where}[{i}]")]
    if isinstance(got, float) and isinstance(expected, float):
        return [] if isclose(got, expected, rel_tol=1e-9) else [f"{where}: {got} != {expected}"]
    same = got == expected and type(got) is type(expected)
    return [] if same else [f"{where}: {got!r} != {expected!r}"]


def by_name(table: ColumnTable, column: str, rank: int = 0) -> dict[str, Any]:
    """A column of one rank by the name of its rows; the first row of a name counts."""
    rows = [row for row in table.records() if row.get("rank", rank) == rank]
    return {row["name"]: row[column] for row in reversed(rows)}


# ------------------------------------------------------------------------- worked out by hand


def test_what_the_gpu_does(jobs: Jobs) -> None:
    """In each step a copy of 40 us, a memset and a read of 4, a ReLU of 8, a foreach of 30, two
    additions of 3, products and a collective."""
    others = 40 + 4 + 4 + 8 + 30 + 2 * 3
    products, waits = 3 * 200, 450 - 30  # rank 0 waits for rank 1
    steps, left_over = 6, 20
    busy_us = steps * (others + products + waits) + left_over
    # Rank 1's first product is 200 us longer, and its part of the collective as much shorter.
    assert jobs.trace.kernels().facts["busy_ns"] == [busy_us * US] * 2
    assert by_name(jobs.trace.ops(), "own_gpu_ns")["aten::mm"] == steps * 2 * 200 * US
    assert by_name(jobs.trace.ops(), "own_gpu_ns", rank=1)["aten::addmm"] == steps * 400 * US
    assert by_name(jobs.trace.modules(), "gpu_ns")["Linear_0"] == steps * products * US


def test_steps_and_the_one_that_is_unusual(jobs: Jobs) -> None:
    """The whole steps take 3004, 3008, 3016 and 4500 us: median 3012, median deviation 6."""
    table = jobs.trace.steps(rank=0)
    assert [ns // US for ns in table["duration_ns"]] == [3000, 3008, 4500, 3004, 3016, 3000]
    assert table["z"][2] == pytest.approx(1488 / (1.4826 * 6), rel=1e-4)
    assert table["outlier"].tolist() == [False, False, True, False, False, False]
    assert table.facts["jitter"]["p95_ns"] == round((3016 + 0.85 * 1484) * US)


def test_waits_for_the_slower_rank(jobs: Jobs) -> None:
    table = jobs.trace.collectives()
    assert table.to_list("wait_ns") == [[200 * US, 0]] * 6
    assert set(table["transfer_ns"]) == {(450 - 230) * US}
    assert set(table["bytes"]) == {8192 * 4}
    ranks = jobs.trace.ranks_table()
    assert ranks["lateness_ns"].tolist() == [0, 1200 * US]
    assert ranks["offset_ns"].tolist() == [0, 50 * US]


def test_work_of_the_products(jobs: Jobs) -> None:
    table = jobs.trace.roofline(rank=0)
    assert by_name(table, "flops")["aten::mm"] == 2 * 32 * 64 * 128
    bytes_of_mm = (128 * 32 + 32 * 64 + 128 * 64) * 4
    assert by_name(table, "bytes")["aten::mm"] == bytes_of_mm
    assert by_name(table, "tflops")["aten::mm"] == pytest.approx(524_288 / 200e-6 / 1e12)


def test_copies_and_memory(jobs: Jobs) -> None:
    copies = jobs.trace.memory(rank=0).records()
    upload = next(row for row in copies if row["direction"] == "HtoD")
    assert upload["total_bytes"] == 6 * 8_192_000
    assert upload["bandwidth_gb_per_s"] == pytest.approx(8_192_000 / 40e-6 / 1e9)
    (allocation,) = jobs.trace.memory(by="allocator", rank=0).records()
    assert (allocation["count"], allocation["sum_ns"]) == (1, 50 * US)


def test_uneven_parts_of_an_exchange(jobs: Jobs) -> None:
    """Two exchanges of floats; ranks 1 and 2 come up to 80 us behind rank 0, in every third not."""
    table = jobs.exchange.ranks_table(by="alltoall")
    assert table.facts["matrix_bytes"] == [[80, 240, 40], [400, 80, 64], [16, 320, 8]]
    received = [496, 640, 112]
    assert table.facts["received_imbalance"] == pytest.approx(640 / (sum(received) / 3))
    waits = jobs.exchange.collectives().to_list("wait_ns")
    assert waits[:3] == [[0, 0, 0], [80 * US, 40 * US, 0], [160 * US, 80 * US, 0]]


def test_the_critical_path_covers_the_steps(jobs: Jobs) -> None:
    """All steps together, of which the fetches are 90 us each and what some take longer."""
    table = jobs.trace.critical_path()
    assert table.facts["total_ns"] == sum(table["time_ns"]) == (6 * 3000 + 1528) * US
    by_cause = {row["cause"]: row["time_ns"] for row in table.records()}
    assert by_cause["data_loading"] == (6 * 90 + 1528) * US
    assert by_cause["allocator"] == 50 * US


def test_the_difference_is_that_of_the_steps(jobs: Jobs) -> None:
    """500 us of Python more, three products of 30 us more, no ReLU of 8 us."""
    table = build_diff(jobs.trace, jobs.other)
    assert table.facts["difference_ns"] == sum(table["delta_ns"]) == 500 * US
    deltas = by_name(table, "delta_ns")
    assert (deltas["aten::addmm"], deltas["aten::mm"]) == (30 * US, 30 * US)
    assert deltas["aten::clamp_min"] == -8 * US


# -------------------------------------------------------------------------------- the whole


@pytest.mark.parametrize("name", TABLES)
def test_whole_table(name: str, jobs: Jobs) -> None:
    expected = json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))
    assert not differences(document(TABLES[name](jobs)), expected)


def test_every_file_is_of_a_table() -> None:
    assert {path.stem for path in EXPECTED.glob("*.json")} == set(TABLES)


def write(folder: Path) -> None:
    """Writes all tables anew, a line for each column."""
    jobs = Jobs(folder)
    for name, make in TABLES.items():
        content = document(make(jobs))
        lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in content.pop("columns").items()]
        rest = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in content.items()]
        text = ",\n".join([' "columns": {\n' + ",\n".join(lines) + "\n }", *rest])
        (EXPECTED / f"{name}.json").write_text("{\n" + text + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    EXPECTED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        write(Path(made))
