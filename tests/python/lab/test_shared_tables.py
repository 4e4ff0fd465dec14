"""Embedding tables shared among ranks: what each rank looks up, sends and keeps."""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import CORPUS

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.errors import MissingFileError, OptionError, SchemaError
from torchtraceap.lab.prediction.parallel.placement import (
    Lookup,
    Piece,
    Placement,
    Plan,
    place_lookups,
    read_plan,
)
from torchtraceap.lab.sharding import choose_sharding

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from torchtraceap.lab.prediction.capture import Capture  # noqa: E402
from torchtraceap.lab.prediction.capture.calls import COMPUTE, Collective, tensors_in  # noqa: E402
from torchtraceap.lab.prediction.lowering.kernels import _RULES  # noqa: E402
from torchtraceap.lab.prediction.parallel import (  # noqa: E402
    RankCaptures,
    capture_ranks,
    parse_strategy,
    place_tables,
)
from torchtraceap.lab.prediction.predictor import lower_steps  # noqa: E402
from torchtraceap.lab.prediction.result import memory_need  # noqa: E402
from torchtraceap.ops.devices import device_named  # noqa: E402

DEVICE = "H100 SXM"
BATCH, DIM, BAG = 64, 32, 4
ROWS = (1000, 2000, 3000, 4000, 5000, 6000)


class Recommender(nn.Module):
    """A DLRM: dense features, tables, products of all pairs."""

    def __init__(self, rows: tuple[int, ...], dim: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(each, dim, mode="sum") for each in rows)
        self.below = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, dim))
        self.above = nn.Linear((len(rows) + 1) ** 2, 1)

    def forward(self, dense: Any, indices: Any, offsets: Any) -> Any:
        below = self.below(dense)
        looked_up = [
            table(each, own) for table, each, own in zip(self.tables, indices, offsets, strict=True)
        ]
        stacked = torch.stack([below, *looked_up], 1)
        return self.above(torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1))


def workload(
    rows: tuple[int, ...] = ROWS, optimizer: Any = torch.optim.SGD, per_bag: int = BAG
) -> dict[str, Any]:
    indices = [torch.zeros(BATCH * per_bag, dtype=torch.long) for _ in rows]
    offsets = [torch.arange(0, BATCH * per_bag, per_bag) for _ in rows]
    return {
        "model": Recommender(rows, DIM),
        "inputs": (torch.randn(BATCH, 13), indices, offsets),
        "loss": torch.sum,
        "optimizer": lambda parameters: optimizer(parameters, 0.1),
    }


DEALT: Plan = {f"tables.{each}": each % 2 for each in range(len(ROWS))}


def shared(plan: Plan | None, world_size: int, make: Any = workload) -> RankCaptures:
    placement = place_tables(make, world_size, DEVICE, plan)
    return capture_ranks(make, parse_strategy("embedding", world_size), placement)


@functools.cache
def dealt() -> RankCaptures:
    """Three of six tables on each of two ranks."""
    return shared(DEALT, 2)


def exchanges(capture: Capture, kind: str = "") -> list[Collective]:
    found = [call.collective for call in capture.calls if call.collective is not None]
    return [each for each in found if kind in ("", each.kind)]


def named(capture: Capture, name: str) -> list[Any]:
    return [call for call in capture.calls if name in call.name]


# ------------------------------------------------------------------------------- exchanges


def test_indices_go_to_the_tables_and_rows_come_back() -> None:
    for rank in range(2):
        capture = dealt().of_rank(rank)
        sizes, lengths, indices, rows, gradients = exchanges(capture, "all_to_all") + exchanges(
            capture, "all_to_allv"
        )
        assert sizes.dtype.name == "int64"
        # Of the samples of this rank for all tables, of all samples for its own.
        assert (lengths.elements_in, lengths.elements_out) == (6 * BATCH, 3 * 2 * BATCH)
        assert (indices.elements_in, indices.elements_out) == (6 * BATCH * BAG, 6 * BATCH * BAG)
        assert (rows.elements_in, rows.elements_out) == (3 * DIM * 2 * BATCH, 6 * DIM * BATCH)
        assert (gradients.elements_in, gradients.elements_out) == (rows.elements_out,
                                                                   rows.elements_in)  # fmt: skip
        assert {each.group for each in exchanges(capture)} == {(0, 1)}
        assert (sum(rows.sent), sum(rows.received)) == (rows.elements_in, rows.elements_out)
        assert (len(rows.sent), gradients.sent) == (2, rows.received)


def test_tables_have_no_gradients_and_the_dense_part_is_averaged() -> None:
    capture = dealt().of_rank(1)
    dense = [p.numel() for n, p in workload()["model"].named_parameters() if "tables" not in n]
    assert sum(each.elements_in for each in exchanges(capture, "allreduce")) == sum(dense)
    held = memory_need(capture)
    assert held is not None
    own = sum(ROWS[1::2]) * DIM * 4
    assert own <= held.parameters < own + 4 * sum(dense) + 20 * 512
    assert held.gradients < 4 * sum(dense) + 20 * 512


def test_the_host_waits_for_the_sizes_of_what_comes() -> None:
    capture = dealt().of_rank(0)
    names = [call.name for call in capture.calls]
    read = names.index("aten::_local_scalar_dense")
    first, second = (
        i for i, name in enumerate(names[: read + 3]) if name == "c10d::alltoall_base_"
    )
    assert first < read < second
    assert capture.calls[read].waits_for == first


def test_a_lookup_waits_for_its_indices_and_the_model_for_its_rows() -> None:
    capture = dealt().of_rank(0)
    calls = capture.calls
    *_, indices, rows, gradients = [e.id for e in exchanges(capture) if "to_all" in e.kind]
    (lookup,) = [i for i, call in enumerate(calls) if "codegen_forward" in call.name]
    waited = [call.waits_for for call in calls[:lookup]]
    assert indices in waited
    assert rows > lookup
    after = next(i for i, call in enumerate(calls) if call.waits_for == rows)
    assert calls[after].name == "aten::cat"
    (update,) = [i for i, call in enumerate(calls) if "codegen_sgd" in call.name]
    assert gradients in [call.waits_for for call in calls[: update + 1]]
    assert {call.stream for call in calls} == {COMPUTE}


def test_ranks_with_other_tables_are_of_other_kinds() -> None:
    assert dealt().kind_of_rank == (0, 1)
    rows = [named(capture, "codegen_forward")[0].inputs["rows"] for capture in dealt().captures]
    assert rows == [ROWS[::2], ROWS[1::2]]
    alike = {f"tables.{each}": [0, 1] for each in range(len(ROWS))}
    assert shared(alike, 2).kind_of_rank == (0, 0)


def test_columns_of_a_table_come_together_again() -> None:
    plan: Plan = {"tables.0": [0, 1, 2], "tables.*": 1}
    captures = shared(plan, 3)
    widths = [
        [c for call in named(captures.of_rank(rank), "codegen_forward")
         for c in call.inputs["columns"]]
        for rank in range(3)
    ]  # fmt: skip
    assert widths == [[11], [11, *[32] * 5], [10]]
    # Everything that is looked up is sent once, a table's indices to each of its parts.
    _, _, indices, rows, _ = (e for e in exchanges(captures.of_rank(0)) if "to_all" in e.kind)
    assert rows.elements_out == 6 * DIM * BATCH
    assert indices.elements_in == (5 + 3) * BATCH * BAG
    assert indices.elements_out == 3 * BATCH * BAG


def test_rows_of_a_table_are_summed_over_ranks() -> None:
    captures = shared({"tables.*": "row_wise"}, 4)
    assert set(captures.kind_of_rank) == {0}
    capture = captures.captures[0]
    (summed,), (gathered,) = (
        exchanges(capture, kind) for kind in ("_reduce_scatter_base", "_allgather_base")
    )
    assert (summed.elements_in, summed.elements_out) == (4 * 6 * DIM * BATCH, 6 * DIM * BATCH)
    assert (gathered.elements_in, gathered.elements_out) == (6 * DIM * BATCH, 4 * 6 * DIM * BATCH)
    (lookup,) = named(capture, "codegen_forward")
    assert lookup.inputs["rows"] == tuple(rows // 4 for rows in ROWS)
    assert sum(lookup.inputs["lookups"]) == 6 * BATCH * BAG  # a quarter of those of four ranks


def test_copies_of_a_table_are_averaged_with_the_dense_part() -> None:
    capture = shared({"tables.0": "data_parallel", **dict.fromkeys(("tables.1",), 0)}, 2).of_rank(0)
    averaged = sum(each.elements_in for each in exchanges(capture, "allreduce"))
    assert averaged > ROWS[0] * DIM
    assert named(capture, "aten::_embedding_bag_backward")


@pytest.mark.parametrize(
    ("optimizer", "name", "state"),
    [
        (torch.optim.SGD, "sgd", 0),
        (torch.optim.Adagrad, "adagrad", DIM),
        (torch.optim.AdamW, "adam", 2 * DIM),
        (torch.optim.RMSprop, "rowwise_adagrad", 1),
    ],
)
def test_tables_are_updated_by_the_optimizer_of_the_workload(
    optimizer: Any, name: str, state: int
) -> None:
    make = functools.partial(workload, optimizer=optimizer)
    capture = shared(DEALT, 2, make).of_rank(0)
    (update,) = named(capture, f"backward_codegen_{name}_")
    kept = [value for key, value in update.inputs.items() if key.startswith("momentum")]
    assert sum(tensor.elements for tensor in tensors_in(kept)) == state * sum(ROWS[::2])


class Words(nn.Module):
    """One table for two features, another for sequences, and a third that is nobody's alone."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(1000, 16), nn.Embedding(2000, 16)
        self.tied, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.tied.weight

    def forward(self, user: Any, friend: Any, items: Any) -> Any:
        both = self.users(user) + self.users(friend)
        return self.head(self.items(items).sum(1) + both + self.tied(user))


def test_tables_that_are_asked_twice_or_for_sequences() -> None:
    def make() -> dict[str, Any]:
        ids = torch.zeros(8, dtype=torch.long)
        return {"model": Words(), "inputs": (ids, ids, torch.zeros(8, 5, dtype=torch.long)),
                "loss": torch.sum}  # fmt: skip

    capture = shared({"users": 0, "items": 1}, 2, make).of_rank(0)
    (lookup,) = named(capture, "codegen_forward")
    assert lookup.inputs["rows"] == (1000, 1000)
    sent = {
        (each.elements_in, each.elements_out)
        for each in exchanges(capture)
        if each.dtype.name == "float32" and "to_all" in each.kind
    }
    users, items = 2 * 16 * 8, 16 * 8 * 5
    # Pooled rows, those of sequences, and their gradients.
    assert sent == {(2 * users, users), (users, 2 * users), (0, items), (items, 0)}
    assert any(each.elements_in == 50 * 16 for each in exchanges(capture, "allreduce"))


def test_a_step_without_a_loss_looks_up_alone() -> None:
    def make() -> dict[str, Any]:
        return {key: value for key, value in workload().items() if key in ("model", "inputs")}

    capture = shared(DEALT, 2, make).of_rank(0)
    assert len(exchanges(capture)) == 4
    assert not named(capture, "backward")


@pytest.mark.slow  # starts processes that import torch
def test_the_exchanges_are_those_of_a_real_job() -> None:
    """TorchRec on 8 GPUs: 24 tables of 16 columns shared, 3 on each rank, batch 16."""
    path = CORPUS / "param" / "dlrm_8ranks" / "rank0.json"
    if not path.exists():
        pytest.skip("the corpus has no DLRM of 8 ranks")
    events = json.loads(path.read_text())["traceEvents"]
    recorded = [
        event["args"]["Input Dims"][:2]
        for event in sorted((e for e in events if e.get("cat") == "cpu_op"), key=lambda e: e["ts"])
        if event["name"] == "c10d::alltoall_base_"
    ]
    per_rank, batch, dim = 3, 16, 16

    def make() -> dict[str, Any]:
        counts = (
            [32] * 3 + [160] * 20 + [3392 - 3 * 32 - 20 * 160]
        )  # rank 0's are known, the sum is
        return {
            "model": Recommender((1000,) * 24, dim),
            "inputs": (
                torch.randn(batch, 13),
                [torch.zeros(count, dtype=torch.long) for count in counts],
                [torch.zeros(batch, dtype=torch.long) for _ in counts],
            ),
            "loss": torch.sum,
        }

    plan = {f"tables.{each}": each // per_rank for each in range(24)}
    capture = shared(plan, 8, make).of_rank(0)
    found = [
        [[each.elements_out], [each.elements_in]]
        for each in exchanges(capture)
        if "to_all" in each.kind
    ]
    # The trace begins amid a step, whose rows come back first.
    assert Counter(map(str, found)) == Counter(map(str, recorded))


# ------------------------------------------------------------------------------- choices


def lookup(name: str, rows: int, columns: int = 64, indices: int = 4096 * 4) -> Lookup:
    return Lookup(name, rows, columns, "float32", 4096, indices)


TABLES = tuple(lookup(f"t{each}", 100_000 * (each + 1)) for each in range(12))


def test_what_nobody_says_is_chosen() -> None:
    found = place_lookups(TABLES, 4, DEVICE)
    assert set(found.pieces) == {each.table for each in TABLES}
    assert {piece.rank for own in found.pieces.values() for piece in own} == {0, 1, 2, 3}
    fixed = place_lookups(TABLES, 4, DEVICE, {"t3": 2, "t1?": "row_wise"})
    assert fixed.pieces["t3"] == (Piece(2, 64),)
    assert fixed.by_rows == {"t10", "t11"}


def test_a_table_that_no_gpu_holds_is_shared_by_rows() -> None:
    found = place_lookups((*TABLES, lookup("huge", 500_000_000)), 4, DEVICE)
    assert found.by_rows == {"huge"}
    assert "no GPU holds huge" in found.notes[0]


def test_a_sharding_and_its_document_are_plans(tmp_path: Path) -> None:
    tables = [
        {"name": each.table, "rows": each.rows, "dim": each.columns, "pooling_factor": 4}
        for each in TABLES[:3]
    ]
    chosen = choose_sharding(tables, {"device": DEVICE, "ranks": 4}, column_wise=True)
    found = place_lookups(TABLES[:3], 4, DEVICE, chosen)
    assert found == place_lookups(TABLES[:3], 4, DEVICE, chosen.best)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(chosen.to_dict()))
    assert place_lookups(TABLES[:3], 4, DEVICE, read_plan(str(path))) == found
    own = [part for load in chosen.best.ranks for part in load.parts if part.table == "t2"]
    assert sorted(piece.columns for piece in found.pieces["t2"]) == sorted(p.columns for p in own)
    path.write_text('{"t0": [0, 1], "t1": "row_wise", "t2": 3}')
    assert place_lookups(TABLES[:3], 4, DEVICE, read_plan(str(path))).by_rows == {"t1"}


def test_many_ranks_are_of_few_kinds() -> None:
    tables = tuple(lookup(f"t{each}", 1000 + each, indices=100 + each) for each in range(64))
    found = place_lookups(tables, 64, DEVICE, {each.table: at for at, each in enumerate(tables)})
    assert len(set(found.kinds)) <= 8
    assert found.kinds.count(found.kinds[63]) == 1  # the one with the most to look up


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"t0": 4}, "there is no rank 4 among 4"),
        ({"t0": -1}, "there is no rank -1"),
        ({"t0": True}, "a rank, a list of ranks"),
        ({"t0": []}, "a rank, a list of ranks"),
        ({"t0": "column_wise"}, "a rank, a list of ranks"),
        ({"t0": [0] * 65}, "has 64 columns, too few"),
        ({"t0": (Piece(0, 32), Piece(1, 16))}, "48 columns of table t0, and the model 64"),
        ({"user": 0}, "has a table 'user', and the model has small, t0"),
        ({"small": "row_wise"}, "has 3 rows, too few for 4 ranks"),
        ([1, 2], "a plan is a mapping"),
    ],
)
def test_an_impossible_plan_is_refused(plan: Any, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        place_lookups((*TABLES, lookup("small", 3)), 4, DEVICE, plan)


def test_tables_that_can_not_be_shared_are_refused() -> None:
    with pytest.raises(OptionError, match="looks up none"):
        place_lookups((), 4, DEVICE)
    with pytest.raises(OptionError, match="go to 1 of 8 ranks"):
        place_lookups((lookup("t", 100, columns=4, indices=4096),), 8, DEVICE)
    with pytest.raises(OptionError, match="don't hold"):
        place_lookups((lookup("t", 10_000_000_000),), 2, DEVICE)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"mode": "max"}, "the largest of a bag"), ({"max_norm": 1.0}, "max_norm")],
)
def test_lookups_that_can_not_be_shared_are_refused(options: Any, reason: str) -> None:
    def make() -> dict[str, Any]:
        return {"model": nn.EmbeddingBag(100, 8, **options),
                "inputs": (torch.zeros(4, 2, dtype=torch.long),)}  # fmt: skip

    with pytest.raises(OptionError, match=reason):
        place_tables(make, 2, DEVICE)


@pytest.mark.parametrize("text", ["embedding=2,dp=2", "pp=2,embedding", "embedding=2,tp=2"])
def test_tables_are_shared_by_all_ranks(text: str) -> None:
    with pytest.raises(OptionError, match="goes with no other"):
        parse_strategy(text, 4)


def test_places_are_needed() -> None:
    with pytest.raises(OptionError, match="needs the places"):
        capture_ranks(workload, parse_strategy("embedding", 2), Placement(4))


def test_files_that_are_no_plan(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        read_plan(str(tmp_path / "none.json"))
    for text, error in (("{", SchemaError), ("[]", SchemaError), ('{"ranking": []}', OptionError)):
        path = tmp_path / "plan.json"
        path.write_text(text)
        with pytest.raises(error):
            read_plan(str(path))


# ------------------------------------------------------------------------------- predictions


def test_shared_tables_in_time() -> None:
    captures = dealt().captures
    steps = lower_steps(captures, device_named(DEVICE))
    for step in steps:
        ops = {op.op.name: op for op in step.ops()}
        fused = [name for name in ops if name.startswith("fbgemm::")]
        assert len(fused) == 5
        assert set(fused) <= set(_RULES)
        assert all(op.time.is_known for name, op in ops.items() if "split_embedding" in name)
    found = ttap.predict(workload, device=DEVICE, world_size=2, strategy="embedding",
                         sharding=DEALT)  # fmt: skip
    assert "rank 0 tables.0, tables.2, tables.4; rank 1 tables.1" in found.notes[0]
    assert len(found.trace.ranks) == 2
    assert found.gpu.exposed_communication_ns > 0
    names = [op.name for op in found.ops]
    assert "fbgemm::split_embedding_codegen_forward_unweighted_cuda" in names


def test_a_plan_is_for_shared_tables() -> None:
    with pytest.raises(OptionError, match="for the strategy embedding"):
        ttap.predict(workload, device=DEVICE, world_size=2, strategy="ddp", sharding=DEALT)


def test_a_plan_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, plan = tmp_path / "model.py", tmp_path / "plan.json"
    model.write_text(
        "import torch\n"
        "def make():\n"
        "    ids = torch.zeros(32, 4, dtype=torch.long)\n"
        "    return {'model': torch.nn.EmbeddingBag(1000, 32), 'inputs': (ids,),\n"
        "            'loss': torch.sum, 'optimizer': lambda p: torch.optim.SGD(p, 0.1)}\n"
    )
    plan.write_text('{"*": "row_wise"}')
    arguments = ["predict", f"{model}:make", "--device", DEVICE, "--world-size", "2"]
    shared_out = ["--strategy", "embedding", "--sharding", str(plan)]
    assert main([*arguments, *shared_out, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "by rows on all" in document["notes"][0]
    assert main([*arguments, "--strategy", "ddp", *shared_out]) == 0
    assert "embedding" in capsys.readouterr().out
    assert main([*arguments, "--sharding", str(plan)]) == 2
    assert "--sharding is for --strategy embedding" in capsys.readouterr().err
    arguments[-1] = "4"
    assert main([*arguments, "--strategy", "embedding"]) == 2
    assert "go to 2 of 4 ranks" in capsys.readouterr().err
