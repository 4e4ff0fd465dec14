"""choose_sharding: tables are conserved, memory holds, the search is never worse, times add up."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.errors import OptionError, SchemaError
from torchtraceap.lab.sharding import (
    SHARDERS,
    Candidate,
    Cluster,
    Sharding,
    Table,
    choose_sharding,
    read_tables,
)
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations import EmbeddingTable, ReuseHistogram
from torchtraceap.ops.durations.collectives import estimate_collective
from torchtraceap.ops.durations.embedding import START_NS, estimate_embedding_bags

SKEWED = ReuseHistogram((0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.02, *([0.0] * 10)))


def some_tables(seed: int, count: int = 40) -> list[Table]:
    random = np.random.default_rng(seed)
    return [
        Table(
            f"t{number}",
            int(10 ** random.uniform(3, 6.5)),
            int(random.choice([32, 64, 128])),
            float(random.integers(1, 60)),
            SKEWED if random.random() < 0.5 else None,
            str(random.choice(["fp32", "fp16"])),
        )
        for number in range(count)
    ]


def columns_of(candidate: Candidate) -> dict[str, list[tuple[int, int]]]:
    """Column ranges of each table, over all ranks, in order."""
    found: dict[str, list[tuple[int, int]]] = {}
    for load in candidate.ranks:
        for part in load.parts:
            end = part.first_column + part.columns
            found.setdefault(part.table, []).append((part.first_column, end))
    return {name: sorted(ranges) for name, ranges in found.items()}


def assert_conserved(found: Sharding, tables: list[Table]) -> None:
    """Every column of every table lies on one rank."""
    for candidate in found.ranking:
        columns = columns_of(candidate)
        assert columns.keys() == {table.name for table in tables}
        for table in tables:
            ranges = columns[table.name]
            assert ranges[0][0] == 0
            assert ranges[-1][1] == table.dim
            assert all(a[1] == b[0] for a, b in pairwise(ranges))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("column_wise", [False, True])
def test_conserved_ordered_and_search_first(seed: int, column_wise: bool) -> None:
    tables = some_tables(seed)
    found = choose_sharding(tables, Cluster("V100 SXM2 32GB", 4), batch=512,
                            column_wise=column_wise)  # fmt: skip
    assert_conserved(found, tables)
    assert {one.sharder for one in found.ranking} == set(SHARDERS)
    times = [one.step_ns for one in found.ranking]
    assert times == sorted(times)
    assert found.best.sharder == "search"
    for one in found.ranking:
        assert one.low_ns < one.step_ns < one.high_ns
        slowest = max(load.forward_ns + load.backward_ns for load in one.ranks)
        assert one.step_ns == pytest.approx(slowest + one.all_to_all_ns)


@pytest.mark.parametrize("seed", range(6))
def test_search_is_never_worse_even_from_bad_starts(seed: int) -> None:
    tables = some_tables(100 + seed, 5 + 7 * seed)
    for name in ("random", "naive_chunk"):
        found = choose_sharding(
            tables, Cluster("A100 SXM 80GB", 8), batch=256, sharders=(name, "search"), seed=seed
        )
        by_name = {one.sharder: one.step_ns for one in found.ranking}
        assert by_name["search"] <= by_name[name]


def test_a_tiny_case_by_hand() -> None:
    """Two equal heavy tables and two equal light ones on two ranks: one of each is best."""
    heavy = [Table(f"heavy{n}", 10**6, 64, 50.0) for n in range(2)]
    light = [Table(f"light{n}", 10**6, 64, 2.0) for n in range(2)]
    found = choose_sharding([*heavy, *light], Cluster("H100 SXM", 2), batch=1024, dense_ns=5_000)
    assert {frozenset(p.table[:5] for p in r.parts) for r in found.best.ranks} == {
        frozenset({"heavy", "light"})
    }
    bags = 2 * 1024

    def lookups(table: Table, backward: bool) -> float:
        asked = EmbeddingTable(table.rows, table.dim, table.pooling_factor)
        (ns,) = estimate_embedding_bags(
            [asked], [bags], "H100 SXM", backward=backward, at_once=2
        ).ns
        return float(ns) - START_NS

    rank = sum(lookups(table, way) for table in (heavy[0], light[0]) for way in (False, True))
    # Each rank sends the other 1,024 samples x 128 columns x 4 bytes; the buffer of an all-to-all
    # in equal parts holds as much for itself.
    exchange = estimate_collective("all_to_all", 2 * 1024 * 128 * 4, 2, "H100 SXM")
    assert found.best.step_ns == pytest.approx(rank + 2 * START_NS + 2 * exchange.ns + 5_000)
    chunk = next(one for one in found.ranking if one.sharder == "naive_chunk")
    assert [p.table for p in chunk.ranks[0].parts] == ["heavy0", "heavy1"]
    assert chunk.lookup_ns == pytest.approx(
        2 * sum(lookups(heavy[0], way) for way in (False, True)) + 2 * START_NS
    )


def test_an_exchange_waits_for_the_widest_rank() -> None:
    """max over ranks of what one sends or receives; the same table volume, spread unevenly."""
    tables = [Table(f"t{n}", 1000, 64) for n in range(4)]
    found = choose_sharding(tables, Cluster("H100 SXM", 4), batch=4096, sharders=("naive",))
    expected = estimate_collective("all_to_all", 4 * 4096 * 64 * 4, 4, "H100 SXM")
    assert found.best.all_to_all_ns == pytest.approx(2 * expected.ns)
    alone = choose_sharding(tables[:1], Cluster("H100 SXM", 4), batch=4096, sharders=("naive",))
    assert alone.best.all_to_all_ns == pytest.approx(found.best.all_to_all_ns)


def test_indices_are_exchanged_where_ranks_read_their_own() -> None:
    """One table of 100 lookups and three of one, all as wide: rows are even, indices are not."""
    tables = [Table("many", 1000, 64, 100.0), *(Table(f"t{n}", 1000, 64) for n in range(3))]
    cluster = Cluster("H100 SXM", 4)
    plain = choose_sharding(tables, cluster, batch=4096, sharders=("naive",))
    found = choose_sharding(tables, cluster, batch=4096, sharders=("naive",), exchange_indices=True)
    indices = estimate_collective("all_to_all", 4 * 4096 * 100 * 8, 4, "H100 SXM")
    assert found.best.all_to_all_ns == pytest.approx(plain.best.all_to_all_ns + indices.ns)
    assert found.best.lookup_ns == plain.best.lookup_ns
    searched = choose_sharding(some_tables(9), cluster, batch=512, exchange_indices=True)
    assert searched.best.sharder == "search"


def test_one_rank_exchanges_nothing() -> None:
    found = choose_sharding(some_tables(1, 5), Cluster("T4", 1), batch=128)
    assert found.best.all_to_all_ns == 0
    assert len(found.best.ranks[0].parts) == 5


def test_what_the_sharders_do() -> None:
    tables = [Table("a", 10**6, 64, 1.0), Table("b", 1000, 64, 30.0), Table("c", 10**5, 64, 20.0),
              Table("d", 10, 16, 1.0), Table("e", 2000, 16, 8.0)]  # fmt: skip
    found = choose_sharding(tables, Cluster("H100 SXM", 2), batch=64)
    placed = {
        one.sharder: [{p.table for p in load.parts} for load in one.ranks] for one in found.ranking
    }
    assert placed["naive"] == [{"a", "c", "e"}, {"b", "d"}]
    assert placed["naive_chunk"] == [{"a", "b", "c"}, {"d", "e"}]
    assert placed["size_greedy"] == [{"a"}, {"b", "c", "d", "e"}]
    # Lookups x columns: b 1920, c 1280, e 128, a 64, d 16.
    assert placed["lookup_greedy"] == [{"b"}, {"c", "e", "a", "d"}]
    # b looks up nearly all of its 1,000 rows some four times, c each row about once.
    assert placed["norm_lookup_greedy"][0] == {"c"}


def test_memory_holds() -> None:
    tables = [Table(f"t{n}", 10**6, 64) for n in range(6)]  # 244 MiB each
    cluster = Cluster("H100 SXM", 3, memory_bytes=600 << 20)
    found = choose_sharding(tables, cluster, batch=64)
    for one in found.ranking:
        assert all(load.memory_bytes <= 600 << 20 for load in one.ranks)
    assert_conserved(found, tables)
    uneven = [Table("big", 2 * 10**6, 64), *tables[:4]]
    found = choose_sharding(uneven, cluster, batch=64)
    assert "naive_chunk" in found.refused
    assert "GiB" in found.refused["naive_chunk"]
    assert found.best.sharder == "search"


def test_state_of_the_optimizer_takes_memory() -> None:
    tables = [Table("t", 10**6, 64)]
    held = {
        name: choose_sharding(tables, Cluster("H100 SXM", 1), batch=64, optimizer=name)
        .best.ranks[0].memory_bytes
        for name in ("sgd", "rowwise_adagrad", "adagrad", "adam")
    }  # fmt: skip
    rows = 10**6
    assert held["rowwise_adagrad"] - held["sgd"] == 4 * rows
    assert held["adagrad"] - held["sgd"] == 4 * 64 * rows
    assert held["adam"] - held["sgd"] == 8 * 64 * rows


def test_impossible_ones_are_refused_with_the_reason() -> None:
    large = [Table("large", 10**7, 128), Table("small", 1000, 64)]  # 4.8 GiB
    with pytest.raises(OptionError, match=r"take 4\.8 GiB, 2 GPUs have 1\.9 GiB"):
        choose_sharding(large, Cluster("H100 SXM", 2, memory_bytes=10**9), batch=64)
    with pytest.raises(OptionError, match=r"table large takes 4\.8 GiB.*column_wise"):
        choose_sharding(large, Cluster("H100 SXM", 4, memory_bytes=2 * 10**9), batch=64)
    found = choose_sharding(
        large, Cluster("H100 SXM", 4, memory_bytes=2 * 10**9), batch=64, column_wise=True
    )
    assert_conserved(found, large)
    assert any("large" in note for note in found.notes)
    three = [Table(f"t{n}", 10**6, 64) for n in range(3)]
    with pytest.raises(OptionError, match="no assignment was found that fits"):
        choose_sharding(three, Cluster("H100 SXM", 2, memory_bytes=400 << 20), batch=64)


def test_columns_are_split_where_that_gains() -> None:
    tables = [Table("hot", 10**6, 128, 80.0), Table("cold", 10**6, 64, 1.0)]
    cluster = Cluster("H100 SXM", 4)
    whole = choose_sharding(tables, cluster, batch=4096)
    split = choose_sharding(tables, cluster, batch=4096, column_wise=True)
    assert split.best.step_ns < 0.7 * whole.best.step_ns
    assert_conserved(split, tables)
    parts = [part for load in split.best.ranks for part in load.parts if part.table == "hot"]
    assert len(parts) >= 3
    assert not any(part.is_whole for part in parts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "batch must be"),
        ({"batch": True}, "batch must be"),
        ({"dense_ns": float("nan")}, "dense_ns"),
        ({"optimizer": "lion"}, "one of sgd"),
        ({"sharders": ("greedy",)}, "sharders are some of"),
        ({"sharders": ()}, "sharders are some of"),
        ({"seed": -1}, "seed"),
    ],
)
def test_options_out_of_range(change: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        choose_sharding([Table("t", 1000, 64)], Cluster("H100 SXM", 2), **change)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"rows": 0, "dim": 64}, "rows must be"),
        ({"rows": 10, "dim": 6.5}, "dim must be"),
        ({"rows": 10}, "dim must be given"),
        ({"rows": 10, "dim": 4, "pooling_factor": float("nan")}, "pooling_factor"),
        ({"rows": 10, "dim": 4, "pooling_factor": "many"}, "pooling_factor"),
        ({"rows": 10, "dim": 4, "dtype": "words"}, "no type is called"),
        ({"rows": 10, "dim": 4, "dtype": "int64"}, "int64"),
        ({"rows": 10, "dim": 4, "reuse": [1.0]}, "17 shares"),
        ({"rows": 10, "dim": 4, "reuse": "often"}, "list of numbers"),
        ({"rows": 10, "dim": 4, "mean_reuse": 2}, "without reuse"),
        ({"rows": 10, "dim": 4, "colums": 4}, "there is no colums"),
        (7, "is no object"),
    ],
)
def test_tables_that_cannot_be(entry: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        choose_sharding([entry], Cluster("H100 SXM", 2))


def test_other_bad_input() -> None:
    table = Table("t", 1000, 64)
    with pytest.raises(OptionError, match="two tables are called 't'"):
        choose_sharding([table, table], Cluster("H100 SXM", 2))
    with pytest.raises(OptionError, match="no table"):
        choose_sharding([], Cluster("H100 SXM", 2))
    with pytest.raises(OptionError, match="no device of that name"):
        choose_sharding([table], Cluster("Z9000", 2))
    with pytest.raises(OptionError, match="cache"):
        choose_sharding([table], Cluster(Device("own", 1e12, memory_bytes=10**10), 2))
    with pytest.raises(OptionError, match="exchange"):
        choose_sharding([table], Cluster("H100 SXM", 64, nodes=8))
    for ranks in (0, 1.5, True):
        with pytest.raises(OptionError, match="ranks must be"):
            Cluster("H100 SXM", ranks)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="memory_bytes"):
        Cluster("H100 SXM", 2, memory_bytes=float("nan"))


def test_file_and_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tables.json"
    entry = {"name": "user", "rows": 10**6, "dim": 64, "pooling_factor": 12.5, "dtype": "fp16",
             "reuse": list(SKEWED.shares), "mean_reuse": 2.5}  # fmt: skip
    path.write_text(json.dumps({"tables": [entry, {"rows": 1e3, "dim": 32}]}))
    user, other = read_tables(path)
    assert user.histogram == ReuseHistogram(SKEWED.shares, 2.5)
    assert (other.name, other.pooling_factor, other.element_bytes) == ("table_1", 1.0, 4)
    given = ["shard", str(path), "--device", "H100 SXM", "--ranks", "2", "--batch", "512"]
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "torchtraceap.sharding/1"
    assert found == json.loads(
        json.dumps(choose_sharding([user, other], Cluster("H100 SXM", 2), batch=512).to_dict())
    )
    assert main(given) == 0
    assert "Chosen: " in capsys.readouterr().out
    assert main([*given, "--memory", "1MB"]) == 2
    assert "GiB" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "\ud800", '{"tables": 3}', "[" * 10_000, '"x"'])
def test_files_that_hold_no_tables(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tables.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises((OptionError, SchemaError)):
        read_tables(path)


def test_public_name_and_text() -> None:
    found = ttap.choose_sharding(some_tables(3, 6), Cluster("H100 SXM", 2), batch=64)
    assert "search" in str(found)
    assert "rank" in found._repr_html_()


def test_other_forms_of_tables_and_clusters() -> None:
    tables = [EmbeddingTable(10**6, 64, 12.5, SKEWED, 2), EmbeddingTable(1000.0, 32, 1)]
    same = [Table("table_0", 10**6, 64, 12.5, SKEWED, "fp16"), Table("table_1", 1000, 32)]
    found = choose_sharding(tables, {"device": "H100 SXM", "ranks": 2}, batch=64)
    assert found == choose_sharding(same, Cluster("H100 SXM", 2), batch=64)
    cluster = Cluster("H100 SXM", 2)
    for wrong, message in (
        (EmbeddingTable(np.array([10, 20]), 64, 1.0), "single numbers"),
        (EmbeddingTable(10.5, 64, 1.0), "rows must be"),
        (EmbeddingTable(float("nan"), 64, 1.0), "rows must be"),
        (EmbeddingTable(10, 64, 1.0, None, 3), "no type"),
    ):
        with pytest.raises(OptionError, match=message):
            choose_sharding([wrong], cluster)
    for given in ({"device": "H100 SXM"}, {"device": "H100 SXM", "ranks": 2, "gpus": 2}, 8,
                  {"device": 100, "ranks": 2},
                  {"device": "H100 SXM", "ranks": 2, "memory_bytes": "80GB"}):  # fmt: skip
        with pytest.raises(OptionError):
            choose_sharding(same, given)  # type: ignore[arg-type]


def test_a_network_between_machines() -> None:
    """Of 16 GPUs on 2 machines half of what each exchanges goes over its eighth of the network."""
    tables = [{"rows": 100_000, "dim": 64} for _ in range(16)]

    def exchange(bandwidth: float | None) -> float:
        cluster = Cluster("H100 SXM", 16, 2, node_bandwidth=bandwidth)
        return choose_sharding(tables, cluster, batch=65_536).best.all_to_all_ns

    with pytest.raises(OptionError, match="node_bandwidth tells"):
        exchange(None)
    sent = 16 * 65_536 * 64 * 4
    slow = exchange(8e9)
    assert slow == pytest.approx(2 * (sent / 2 / 1e9 * 1e9), rel=0.01)
    assert exchange(16e9) == pytest.approx(slow / 2, rel=0.01)
    # Beyond the links within a machine the network matters no more.
    assert exchange(1e15) > slow / 1000
    with pytest.raises(OptionError, match="evenly by 3"):
        Cluster("H100 SXM", 16, 3, node_bandwidth=1e9)
    with pytest.raises(OptionError, match="node_bandwidth must be"):
        Cluster("H100 SXM", 16, 2, node_bandwidth=0)


@pytest.mark.parametrize("device", ["H100 SXM", "H100 NVL", "A100 PCIe 40GB", "MI300X"])
def test_what_tells_the_exchanges_is_said(device: str) -> None:
    tables = [{"rows": 100_000, "dim": 64} for _ in range(8)]
    found = choose_sharding(tables, Cluster(device, 4))
    (note,) = found.notes
    assert note.startswith("all-to-alls: ")
    assert len(note) > len("all-to-alls: ")
    assert choose_sharding(tables, Cluster(device, 1)).notes == ()
    network = Cluster("H100 SXM", 16, 2, node_bandwidth=50e9)
    assert "rate of the network" in choose_sharding(tables, network).notes[0]
