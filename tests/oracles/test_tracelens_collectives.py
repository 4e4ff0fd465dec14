"""TraceLens's report of the collectives of all ranks against its rules, written with pandas as it
does, on the corpus's runs of several ranks and on pairs made of one rank and its disturbed copy.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.compat.tracelens import collective_sheets
from torchtraceap.compat.tracelens.sheets import csv_text

from .conftest import CORPUS
from .tracelens_reference import equal, read_rows
from .tracelens_rules import is_communication, read_events

pd = pytest.importorskip("pandas", reason="pandas is not installed")

RUNS = ("param/dlrm_8ranks", "tokenomics", "torchrec_4ranks_late_rank")
SINGLE = (
    "hta/nccl_a100_rank_of_2.json.gz",
    "modded_nanogpt/overlap_before.json.gz",
    "modded_nanogpt/overlap_hook.json.gz",
    "tracelens/mi300/resnet_ddp_act_checkpoint_training.json.gz",
)
GROUP, IN, OUT = "Process Group Name", "In msg size (MB)", "Out msg size (MB)"
FIELDS = [
    "Process Group Name",
    "Process Group Ranks",
    "Collective name",
    "Group size",
    "dtype",
    "In msg nelems",
    "Out msg nelems",
    "In split size",
    "Out split size",
    "stream",
]
BYTES = {"Float": 4, "Int": 4, "Long": 8, "BFloat16": 2, "Bool": 1, "Byte": 1, "Half": 2}
FACTORS = {
    "allreduce": 2,
    "allreduce_coalesced": 2,
    **dict.fromkeys(
        ("reducescatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"), 1
    ),
    **dict.fromkeys(("allgather", "all_gather", "_allgather_base", "all_to_all"), 1),
    "all_gather_into_tensor_coalesced": 1,
    "allgather_into_tensor_coalesced": 1,
}
METRICS = ["mean", "median", "min", "max"]


def long_table(files: list[Path]) -> Any:
    rows = []
    for rank, path in enumerate(files):
        for event in read_events(path):
            args = event.get("args", {})
            linked = {"correlation", "External id"} & args.keys()
            if event.get("cat") != "kernel" or not is_communication(event["name"]) or not linked:
                continue
            row = {"rank": rank, "ts": event["ts"], "dur": event["dur"]}
            row |= {key: args.get(key) for key in FIELDS}
            size = BYTES.get(row["dtype"])
            for way in ("In", "Out"):
                known = size and row["In msg nelems"] is not None
                row[f"{way} msg size (MB)"] = (
                    row[f"{way} msg nelems"] * size / 2**20 if known else None
                )
            rows.append(row)
    table = pd.DataFrame(rows)
    lonely = table.groupby("rank")["stream"].nunique().max() <= 1
    if table[GROUP].isna().all() and lonely:
        table[GROUP] = "all"
        keys, prefix = ["rank"], ""
    else:
        table[GROUP] = table[GROUP].fillna("Unknown_Group")
        keys, prefix = ["rank", GROUP], table[GROUP] + "_"
    table["index_in_group"] = table.groupby(keys)["ts"].rank(method="first").astype(int) - 1
    table["collective_id"] = prefix + table["index_in_group"].astype(str)
    return table


def matched(table: Any) -> Any:
    rows = []
    for number, ranks in table.groupby("collective_id", sort=False):
        first = ranks.iloc[0]
        factor = FACTORS.get(first["Collective name"])
        by_order = first[GROUP] == "all"
        if first["Collective name"] == "all_to_allv" or (factor is None and not by_order):
            continue
        ends, waits = ranks["ts"] + ranks["dur"], ranks["ts"].max() - ranks["ts"]
        row = {"collective_id": number, **{key: first[key] for key in [*FIELDS[:7], IN, OUT]}}
        full = first[OUT] if "gather" in str(first["Collective name"]) else first[IN]
        latency = ranks["dur"].min()
        row["Full msg size (MB)"] = full if factor else None
        row["comm_latency"] = latency
        row["skew in start time"] = waits.max()
        row["earliest arrival rank"] = ranks["rank"][waits == waits.max()].max()
        row["avg_wait_time"] = waits.mean()
        row["skew in end time"] = ends.max() - ends.min()
        if factor and latency and full is not None:
            row["algo bw (GB/s)"] = full / 1024 / latency * 1e6
            size = first["Group size"]
            row["bus bw (GB/s)"] = row["algo bw (GB/s)"] * factor * (size - 1) / size
        for (_, part), wait in zip(ranks.iterrows(), waits, strict=True):
            row[f"rank_{part['rank']}_ts"] = part["ts"]
            row[f"rank_{part['rank']}_dur"] = part["dur"]
            row[f"rank_{part['rank']}_wait_time"] = wait
        rows.append(row)
    return pd.DataFrame(rows)


def summary(table: Any) -> Any:
    keys = ["Collective name", "dtype", "In msg nelems"]
    known = [c for c in ("algo bw (GB/s)", "bus bw (GB/s)") if c in table]
    named = table.assign(**{key: table[key].astype(object).fillna("Unknown") for key in keys})
    columns = ["comm_latency", "skew in start time", "skew in end time", *known]
    groups = named.groupby(keys)
    found = groups[columns].agg(METRICS)
    found.columns = ["_".join(pair) for pair in found.columns]
    for column in (GROUP, "Group size", "Full msg size (MB)"):
        found[column] = groups[column].first()
    found["count"] = groups.size()
    found["Total comm latency (ms)"] = groups["comm_latency"].sum() / 1000
    return found.reset_index()


def stragglers(table: Any, long: Any) -> Any:
    waits = table[[c for c in table if c.endswith("wait_time") and c.startswith("rank_")]]
    late = waits.idxmin(axis=1)
    rows = []
    for column in waits:
        rank = int(column.split("_")[1])
        rows.append(
            {
                "rank": rank,
                "total_wait_time_us": round(waits[column].sum(), 1),
                "mean_wait_time_us": round(waits[column].mean(), 1),
                "times_arrived_last": (late == column).sum(),
                "times_arrived_first": (table["earliest arrival rank"] == rank).sum(),
                "pct_arrived_last": round(100 * (late == column).mean(), 1),
                "num_collectives": len(table),
                "total_nccl_dur_us": round(long["dur"][long["rank"] == rank].sum(), 1),
            }
        )
    return pd.DataFrame(rows)


def long_summary(table: Any) -> Any:
    groups = table.groupby(["rank", *FIELDS])
    found = groups["dur"].agg(["sum", "mean", "std", "min", "max"]).add_prefix("dur_")
    for size in (IN, OUT):
        found[f"{size}_first"] = groups[size].first()
    found["operation_count"] = groups.size()
    return found.reset_index()


def check(files: list[Path]) -> None:
    ours = collective_sheets(ttap.load(files).ranks)
    long = long_table(files)
    together = matched(long)
    theirs = {
        "nccl_long": (long, ["rank", "collective_id"]),
        "nccl_summary_long": (long_summary(long), ["rank", *FIELDS]),
        "nccl_implicit_sync": (together, ["collective_id"]),
        "nccl_summary_implicit_sync": (
            summary(together),
            ["Collective name", "dtype", "In msg nelems"],
        ),
        "straggler_summary": (stragglers(together, long), ["rank"]),
    }
    assert ours.keys() == theirs.keys()
    for name, (table, keys) in theirs.items():
        rows = [{c: r[c] for c in table} for r in read_rows(csv_text(ours[name]))]
        wanted = read_rows(table.to_csv(index=False))
        assert len(rows) == len(wanted), name

        def key(row: Any, keys: Any = keys) -> list[str]:
            return [str(float(v)) if isinstance(v, int) else str(v) for v in map(row.get, keys)]

        for mine, other in zip(sorted(rows, key=key), sorted(wanted, key=key), strict=True):
            for column, value in other.items():
                assert equal(mine[column], value), (name, column, mine, other)


@pytest.mark.parametrize("folder", RUNS)
def test_runs_of_several_ranks(folder: str) -> None:
    files = sorted((CORPUS / folder).glob("*.json*"))
    if not files:
        pytest.skip(f"{folder} is not there")
    check(files)


@pytest.mark.parametrize("name", SINGLE)
def test_a_rank_and_its_disturbed_copy(name: str, tmp_path: Path) -> None:
    source = CORPUS / name
    if not source.exists():
        pytest.skip(f"{name} is not there")
    chance = random.Random(1)
    document = json.loads(gzip.decompress(source.read_bytes()))
    files = []
    for rank in range(3):
        told = document.get("distributedInfo", {}) | {"rank": rank, "world_size": 3}
        files.append(tmp_path / f"rank{rank}.json")
        files[-1].write_text(json.dumps(document | {"distributedInfo": told}))
        for event in document["traceEvents"]:
            if event.get("cat") == "kernel" and is_communication(event["name"]):
                event["ts"] = round(float(event["ts"]) + chance.randrange(50) / 8, 3)
                event["dur"] = round(float(event["dur"]) + chance.randrange(50) / 8, 3)
    check(files)
