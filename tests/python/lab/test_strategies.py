"""What each rank of a job does, captured in one process, is what torch does among many."""

from __future__ import annotations

import functools
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest

from torchtraceap.errors import OptionError
from torchtraceap.ops.devices import device_named

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from torchtraceap.lab.prediction.capture import Call, Capture, Phase  # noqa: E402
from torchtraceap.lab.prediction.capture.calls import Collective, tensors_in  # noqa: E402
from torchtraceap.lab.prediction.parallel import (  # noqa: E402
    Strategy,
    capture_ranks,
    parse_strategy,
)
from torchtraceap.lab.prediction.parallel.data import model_blocks  # noqa: E402
from torchtraceap.lab.prediction.predictor import lower_steps  # noqa: E402
from torchtraceap.lab.prediction.timeline import schedule_steps  # noqa: E402
from torchtraceap.lab.workloads.workload import find_workload  # noqa: E402

Make = Callable[[], dict[str, Any]]


@functools.cache
def trained(model: Callable[[], nn.Module], *shape: int) -> Make:
    def make() -> dict[str, Any]:
        return {
            "model": model(),
            "inputs": (torch.randn(*shape),),
            "loss": lambda out: out.square().mean(),
            "optimizer": torch.optim.AdamW,
        }

    return make


def layers() -> nn.Module:
    wide = nn.Sequential(nn.Linear(256, 512), nn.BatchNorm1d(512), nn.GELU(), nn.Linear(512, 512))
    return nn.Sequential(wide, nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096))


ranks_of = functools.cache(capture_ranks)


def one_of(make: Make, text: str | None, world_size: int) -> Capture:
    """The step of rank 0."""
    return ranks_of(make, parse_strategy(text, world_size)).of_rank(0)


def exchanges(capture: Capture, kind: str = "") -> list[Collective]:
    found = [call.collective for call in capture.calls if call.collective is not None]
    return [each for each in found if kind in ("", each.kind)]


def sizes(model: nn.Module) -> list[int]:
    return [parameter.numel() for parameter in model.parameters()]


# ------------------------------------------------------------------------------- strategies


@pytest.mark.parametrize(
    ("text", "world_size", "expected"),
    [
        (None, 1, ()),
        ("ddp", 8, (("dp", 8),)),
        ("FSDP2", 4, (("fsdp", 4),)),
        ("pp=4, dp=2", 8, (("pp", 4), ("dp", 2))),
        ("pp=2,dp,tp=2", 16, (("pp", 2), ("dp", 4), ("tp", 2))),
    ],
)
def test_a_strategy_is_a_grid_of_ranks(text: str | None, world_size: int, expected: Any) -> None:
    strategy = parse_strategy(text, world_size)
    assert strategy.dimensions == expected
    assert strategy.world_size == world_size


@pytest.mark.parametrize(
    ("text", "world_size", "reason"),
    [
        (None, 8, "8 ranks need a strategy"),
        ("ddp", 0, "1 to 65,536 ranks, not 0"),
        ("ddp", 100_000, "not 100,000"),
        ("zero", 8, "'zero' is none of"),
        ("pp=4,dp=4", 8, "is for 16 ranks, not 8"),
        ("tp=3,dp", 8, "a multiple of 3 ranks, not 8"),
        ("dp,tp", 8, "only one of dp, tp may lack a size"),
        ("ddp,dp=2", 8, "twice"),
        ("tp=0", 8, "from 1"),
        ("dp=8,microbatches=4", 8, "there is no pp"),
        ("", 2, "need a strategy"),
        ("dp=", 2, "is none of"),
    ],
)
def test_an_impossible_strategy_is_refused(text: str | None, world_size: int, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        parse_strategy(text, world_size)


def test_the_last_coordinate_is_the_fastest() -> None:
    strategy = parse_strategy("pp=2,dp=3,tp=2", 12)
    assert strategy.coordinates(7) == (1, 0, 1)
    assert [strategy.rank_at(strategy.coordinates(rank)) for rank in range(12)] == [*range(12)]
    mesh = torch.arange(12).view(2, 3, 2)
    assert strategy.coordinate(9, "dp") == int((mesh == 9).nonzero()[0][1])
    # What is one stage further for rank 1 is so for rank 4.
    assert strategy.seen_from(4, (7,), example=1) == (10,)
    assert strategy.seen_from(9, (0, 2, 4), example=0) == (7, 9, 11)


def test_one_rank_exchanges_nothing() -> None:
    found = ranks_of(trained(layers, 32, 256), parse_strategy(None, 1))
    assert found.kind_of_rank == (0,)
    assert not exchanges(found.captures[0])


# ------------------------------------------------------------------------------- copies (DDP)


def test_buckets_are_those_of_torch() -> None:
    from torch.distributed import _compute_bucket_assignment_by_size

    capture = one_of(trained(layers, 32, 256), "ddp", 4)
    reduced = exchanges(capture, "allreduce")
    # Gradients of a layer are ready bias first, layers from the last to the first.
    ready = [*reversed([*layers().parameters()])]
    buckets, _ = _compute_bucket_assignment_by_size(
        ready, [1 << 20, 25 << 20], [False] * len(ready)
    )
    assert [each.elements_in for each in reduced] == [
        sum(ready[index].numel() for index in bucket) for bucket in buckets
    ]
    assert len(reduced) > 1
    assert sum(each.elements_in for each in reduced) == sum(sizes(layers()))
    assert {each.dtype.name for each in reduced} == {"float32"}
    assert {each.group for each in reduced} == {(0, 1, 2, 3)}


def test_a_bucket_goes_once_its_gradients_are_there() -> None:
    capture = one_of(trained(layers, 32, 256), "ddp", 2)
    backward = [call for call in capture.calls if call.phase is Phase.BACKWARD]
    copied = 0
    for call in backward:
        if call.name == "aten::mul" and call.overload == "out":
            copied += call.outputs[0].elements  # type: ignore[union-attr]
        if call.collective is not None:
            assert call.collective.elements_in == copied
            copied = 0
    first = next(index for index, call in enumerate(backward) if call.collective is not None)
    after = [call.name for call in backward[first:]]
    assert "aten::mm" in after  # the backward pass goes on beside it
    waits = [call for call in backward if call.waits_for is not None]
    assert [call.waits_for for call in waits] == [
        each.id for each in exchanges(capture, "allreduce")
    ]
    assert {call.name for call in waits} == {"aten::copy_"}
    assert all(capture.calls[each.id].collective == each for each in exchanges(capture))


def test_statistics_of_a_batch_are_sent_before_the_forward_pass() -> None:
    capture = one_of(trained(layers, 32, 256), "ddp", 2)
    assert [each.elements_in for each in exchanges(capture, "broadcast")] == [1024, 1]
    first_layer = next(i for i, call in enumerate(capture.calls) if call.name == "aten::addmm")
    assert all(each.id < first_layer for each in exchanges(capture, "broadcast"))


def test_each_rank_has_groups_of_its_own() -> None:
    strategy = Strategy((("pp", 1), ("dp", 2), ("tp", 1)))
    found = ranks_of(trained(layers, 32, 256), strategy)
    assert found.kind_of_rank == (0, 0)
    assert {each.group for each in exchanges(found.of_rank(1))} == {(0, 1)}


def test_nothing_to_train_is_refused() -> None:
    def frozen() -> nn.Module:
        return layers().requires_grad_(False)

    with pytest.raises(OptionError, match="no parameter of the model"):
        one_of(trained(frozen, 32, 256), "ddp", 2)


class Partly(nn.Module):
    """Uses one of its two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, given: Any) -> Any:
        return self.used(given)


def test_parameters_without_gradient_are_found() -> None:
    capture = one_of(trained(Partly, 32, 256), "ddp", 2)
    (note,) = capture.notes
    assert "find_unused_parameters=True" in note
    *gradients, used = exchanges(capture, "allreduce")
    assert sum(each.elements_in for each in gradients) == sum(sizes(Partly()))
    assert (used.elements_in, used.dtype.name) == (4, "int32")  # which parameters were used


@pytest.mark.parametrize("text", ["fsdp2", "tp", "pp=2"])
def test_a_model_that_is_there_is_left_as_it_was(text: str) -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    made = {
        "model": model,
        "inputs": (torch.ones(8, 16, 64),),
        "loss": lambda out: out.sum(),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, 0.1),
    }
    before = [(name, type(module)) for name, module in model.named_modules()]
    held = [(name, id(value)) for name, value in model.named_parameters()]
    first, second = (
        capture_ranks(lambda: made, parse_strategy(text, 2)).captures for _ in range(2)
    )
    assert [len(each.calls) for each in first] == [len(each.calls) for each in second]
    assert [(name, type(module)) for name, module in model.named_modules()] == before
    assert [(name, id(value)) for name, value in model.named_parameters()] == held
    assert model(torch.ones(1, 4, 64)).isfinite().all()


def test_a_process_group_of_the_caller_is_left_alone() -> None:
    from torch import distributed

    one_of(trained(layers, 32, 256), "ddp", 2)
    assert not distributed.is_initialized()


# ------------------------------------------------------------------------------- shards (FSDP2)


def blocks(width: int = 256, count: int = 3) -> nn.Module:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    return nn.Sequential(nn.Sequential(*(block() for _ in range(count))), nn.Linear(width, 8))


def test_blocks_are_the_outermost_that_recur() -> None:
    assert list(model_blocks(blocks())) == ["0.0", "0.1", "0.2"]
    assert list(model_blocks(layers())) == ["0", "1", "3"]
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, batch_first=True), 2)
    assert list(model_blocks(encoder)) == ["layers.0", "layers.1"]
    encoder._no_split_modules = ["TransformerEncoderLayer"]  # type: ignore[assignment]
    assert list(model_blocks(encoder)) == ["layers.0", "layers.1"]
    assert model_blocks(nn.Linear(2, 2)) == {}


def test_parameters_are_gathered_by_block_and_gradients_scattered() -> None:
    capture = one_of(trained(blocks, 32, 256), "fsdp2", 4)
    block, head = sum(sizes(blocks()[0][0])), sum(sizes(blocks()[1]))  # type: ignore[index]
    gathered = exchanges(capture, "_allgather_base")
    # Forward: the root's own, then each block. Backward: blocks again, the root kept its own.
    assert [each.elements_out for each in gathered] == [head] + [block] * 6
    assert all(each.elements_in * 4 == each.elements_out for each in gathered)
    scattered = exchanges(capture, "_reduce_scatter_base")
    # The input of the first block has no gradient: it is done at the end, after the root.
    assert [each.elements_in for each in scattered] == [block, block, head, block]
    assert all(each.elements_out * 4 == each.elements_in for each in scattered)


def test_the_next_block_is_gathered_beside_this_one() -> None:
    capture = one_of(trained(blocks, 32, 256), "fsdp2", 4)
    calls = capture.calls
    gathers = [i for i, call in enumerate(calls) if call.name == "c10d::_allgather_base_"]
    assert {calls[index].stream for index in gathers} == {"all_gather"}
    products = [i for i, call in enumerate(calls) if call.name == "aten::addmm"]
    for index in gathers[2:]:
        waits = {calls[index].waits_for, *calls[index].after}
        assert not waits & set(products)  # else it would begin after the block before
    copies = [call for call in calls if call.name == "fsdp::split_with_sizes_copy"]
    assert [call.waits_for for call in copies] == gathers
    assert {call.stream for call in copies} == {"compute"}


def test_the_first_gather_waits_for_the_optimizer_of_the_step_before() -> None:
    calls = one_of(trained(blocks, 32, 256), "fsdp2", 4).calls
    first = next(call for call in calls if call.name == "fsdp::all_gather_copy_in")
    assert all(-len(calls) <= index for call in calls for index in call.after)
    assert "aten::_foreach_addcdiv_" in [calls[index].name for index in first.after if index < 0]


def test_the_optimizer_has_its_shard_once_all_gradients_are_there() -> None:
    capture = one_of(trained(blocks, 32, 256), "fsdp2", 4)
    updates = [call for call in capture.calls if call.phase is Phase.OPTIMIZER]
    last = exchanges(capture, "_reduce_scatter_base")[-1]
    assert last.id in [call.waits_for for call in updates]
    (update,) = [call for call in updates if call.name == "aten::_foreach_addcdiv_"]
    kept = sum(tensor.elements for tensor in update.inputs["self"])  # type: ignore
    assert kept == sum(sizes(blocks())) // 4


def test_ranks_with_other_shards_are_of_another_kind() -> None:
    # 8 rows of the head among 3 ranks: 3, 3 and 2.
    found = ranks_of(trained(lambda: blocks(240), 32, 240), parse_strategy("fsdp2", 3))
    assert found.kind_of_rank == (0, 0, 1)
    states = [
        next(call for call in capture.calls if call.name == "aten::_foreach_addcdiv_")
        for capture in found.captures
    ]
    rows = [state.inputs["self"][-2].shape[0] for state in states]  # type: ignore
    assert rows == [3, 2]


def test_copies_of_shards_are_summed_among_the_copies() -> None:
    found = ranks_of(trained(blocks, 32, 256), parse_strategy("dp=2,fsdp2=4", 8))
    step = found.of_rank(6)
    assert {each.group for each in exchanges(step, "_reduce_scatter_base")} == {(4, 5, 6, 7)}
    assert {each.group for each in exchanges(step, "allreduce")} == {(2, 6)}
    assert {each.group_name for each in exchanges(step, "allreduce")} == {"mesh_dp"}
    total = sum(each.elements_in for each in exchanges(step, "allreduce"))
    assert total == sum(sizes(blocks())) // 4


def test_memory_of_gathered_parameters_is_given_back() -> None:
    alone = _most_memory(ranks_of(trained(wide, 2, 512), parse_strategy(None, 1)).captures[0])
    shared = _most_memory(one_of(trained(wide, 2, 512), "fsdp2", 8))
    whole = 4 * sum(sizes(wide()))
    assert alone > 4 * whole  # parameters, gradients and two moments
    assert shared < 1.5 * whole  # an eighth of that, and two of ten blocks with their gradients


def wide() -> nn.Module:
    return blocks(512, 10)


def _most_memory(capture: Capture) -> int:
    held = capture.storages
    assert held is not None
    frees = dict.fromkeys(range(len(capture.calls) + 1), 0)
    for index, storage in held.freed:
        frees[index] += held.bytes[storage]
    alive = set(held.at_begin)
    now = most = sum(held.bytes[storage] for storage in alive)
    for index, call in enumerate(capture.calls):
        for tensor in tensors_in((*call.inputs.values(), *call.outputs)):
            if tensor.storage not in alive:
                alive.add(tensor.storage)
                now += held.bytes[tensor.storage]
        most = max(most, now)
        now -= frees[index + 1]
    return most


# ------------------------------------------------------------------------------- parts of layers


class Attention(nn.Module):
    """As in transformers: widths come from the layers, heads from their width."""

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, key_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, key_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, width, bias=False)

    def forward(self, given: Any) -> Any:
        batch, length, _ = given.shape
        split = (batch, length, -1, self.head_dim)
        query, key, value = (
            layer(given).view(split).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        attend = nn.functional.scaled_dot_product_attention
        found = attend(query, key, value, is_causal=True, enable_gqa=True)
        return self.o_proj(found.transpose(1, 2).reshape(batch, length, -1))


class Fused(nn.Module):
    """As in small examples: takes the width of all heads from what goes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.n_head = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, given: Any) -> Any:
        batch, length, width = given.shape
        parts = self.c_attn(given).split(width, dim=2)
        split = (batch, length, self.n_head, width // self.n_head)
        query, key, value = (part.view(split).transpose(1, 2) for part in parts)
        found = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.c_proj(found.transpose(1, 2).contiguous().view(batch, length, width))


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, 4 * width, bias=False)
        self.up_proj = nn.Linear(width, 4 * width, bias=False)
        self.down_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, given: Any) -> Any:
        return self.down_proj(nn.functional.silu(self.gate_proj(given)) * self.up_proj(given))


class Layer(nn.Module):
    def __init__(self, attention: nn.Module, width: int) -> None:
        super().__init__()
        self.attention, self.mlp, self.norm = attention, Gated(width), nn.LayerNorm(width)

    def forward(self, given: Any) -> Any:
        given = given + self.attention(self.norm(given))
        return given + self.mlp(given)


def decoder() -> nn.Module:
    return nn.Sequential(*(Layer(Attention(256, 8, 4), 256) for _ in range(2)))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def products(capture: Capture) -> int:
    """Multiplications of matrices with weights, and of attention."""
    total = 0
    for call in capture.calls:
        if call.name in ("aten::mm", "aten::addmm"):
            left, right = [*tensors_in(call.inputs.values())][-2:]
            total += left.elements * right.shape[-1]
        if call.name == "aten::scaled_dot_product_attention":
            query, key = call.inputs["query"], call.inputs["key"]
            total += query.elements * key.shape[-2]  # type: ignore[union-attr]
    return total


@pytest.mark.parametrize("model", [decoder, encoder])
def test_each_rank_has_its_part_of_the_work(model: Callable[[], nn.Module]) -> None:
    alone = one_of(trained(model, 4, 64, 256), None, 1)
    for parts in (2, 4):
        assert products(one_of(trained(model, 4, 64, 256), f"tp={parts}", parts)) == (
            products(alone) // parts
        )


@pytest.mark.parametrize(
    ("model", "backward"),
    # Three layers take the input of attention, two that of the perceptron. In torch's own it is one
    # each, and what goes into the first has no gradient.
    [(decoder, 2 * (3 + 2)), (encoder, 2 * (1 + 1) - 1)],
)
def test_sums_after_rows_and_of_gradients_before_columns(
    model: Callable[[], nn.Module], backward: int
) -> None:
    capture = one_of(trained(model, 4, 64, 256), "tp", 4)
    found = {
        phase: [c.collective for c in capture.calls if c.collective and c.phase is phase]
        for phase in Phase
    }
    assert len(found[Phase.FORWARD]) == 2 * 2
    assert len(found[Phase.BACKWARD]) == backward
    assert {each.elements_in for each in exchanges(capture)} == {4 * 64 * 256}
    assert {each.kind for each in exchanges(capture)} == {"allreduce"}


def test_a_rank_keeps_its_part_of_parameters() -> None:
    capture = one_of(trained(decoder, 4, 64, 256), "tp", 4)
    update = next(call for call in capture.calls if call.name == "aten::_foreach_addcdiv_")
    kept = sum(tensor.elements for tensor in tensors_in([update.inputs["self"]]))
    norms = 2 * 2 * 256
    assert kept == (sum(sizes(decoder())) - norms) // 4 + norms


def test_attention_that_can_not_be_split_stays_whole() -> None:
    def model() -> nn.Module:
        return nn.Sequential(*(Layer(Fused(256, 8), 256) for _ in range(2)))

    capture = one_of(trained(model, 4, 64, 256), "tp", 4)
    assert len(exchanges(capture)) == 2 * (1 + 2)  # those of the perceptrons
    (note,) = capture.notes
    assert "attention is whole on every rank" in note


@pytest.mark.parametrize(
    ("model", "text", "reason"),
    [
        (decoder, "tp=8", "does not divide the 4 heads of 0.attention"),
        (encoder, "tp=16", "does not divide the 8 heads of layers.0.self_attn"),
        (
            lambda: nn.Sequential(nn.Linear(256, 99), nn.ReLU(), nn.Linear(99, 256)),
            "tp=2",
            "the 99",
        ),
        (lambda: nn.Linear(256, 256), "tp=2", "finds none"),
    ],
)
def test_parts_that_do_not_fit_are_refused(model: Any, text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        one_of(trained(model, 4, 64, 256), text, int(text[3:]))


def test_parts_of_copies_are_averaged_among_the_copies() -> None:
    found = ranks_of(trained(decoder, 4, 64, 256), parse_strategy("dp=2,tp=4", 8))
    step = found.of_rank(5)
    groups = {(each.group_name, each.group) for each in exchanges(step)}
    assert groups == {("mesh_tp", (4, 5, 6, 7)), ("mesh_dp", (1, 5))}
    norms = 2 * 2 * 256
    averaged = sum(each.elements_in for each in exchanges(step) if each.group_name == "mesh_dp")
    assert averaged == (sum(sizes(decoder())) - norms) // 4 + norms


# ------------------------------------------------------------------------------- pipelines


def tower() -> nn.Module:
    """Eight layers and a head that costs as much as two."""
    layer = [nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(8)]
    return nn.Sequential(nn.Sequential(*layer), nn.Linear(128, 256))


def test_stages_share_the_work_of_the_model() -> None:
    alone = one_of(trained(tower, 32, 128), None, 1)
    found = ranks_of(trained(tower, 32, 128), parse_strategy("pp=5,microbatches=8", 5))
    assert found.kind_of_rank == (0, 1, 2, 3, 4)
    work = [products(capture) for capture in found.captures]
    assert sum(work) == products(alone)
    kept = [updated(capture) for capture in found.captures]
    assert sum(kept) == sum(sizes(tower()))
    # The last one has the head, and a layer at least: no other has more than the work of three.
    assert max(work) == 3 * 3 * 32 * 128 * 128


def test_as_many_parts_as_fit() -> None:
    (note,) = one_of(trained(tower, 20, 128), "pp=2", 2).notes
    assert note == "the batch goes through the pipeline in 5 parts"


def updated(capture: Capture) -> int:
    update = next(call for call in capture.calls if call.name == "aten::_foreach_addcdiv_")
    return sum(tensor.elements for tensor in tensors_in([update.inputs["self"]]))


@pytest.mark.parametrize("text", ["pp=4", "pp=3,microbatches=3", "pp=2,microbatches=16"])
def test_what_a_stage_sends_another_receives(text: str) -> None:
    stages = int(text[3])
    found = ranks_of(trained(tower, 48, 128), parse_strategy(text, stages))
    for rank in range(stages - 1):
        for kinds in (("send", "recv"), ("recv", "send")):
            here, there = (
                [
                    (each.elements_in, each.dtype)
                    for each in exchanges(found.of_rank(own), kind)
                    if each.peer == peer
                ]
                for own, peer, kind in zip((rank, rank + 1), (rank + 1, rank), kinds, strict=True)
            )
            assert here == there != []
    assert all_are_served([found.of_rank(rank) for rank in range(stages)])


def all_are_served(ranks: list[Capture]) -> bool:
    """Whether all exchanges take place, if a rank does one launch after the other and a send takes
    place while both ranks are at it."""
    todo = [launches(capture) for capture in ranks]
    while any(todo):
        met = next(meetings(todo), None)
        if met is None:
            return False
        for rank, exchange in met:
            todo[rank][0].remove(exchange)
        todo = [[launch for launch in own if launch] for own in todo]
    return True


def meetings(todo: list[list[list[Collective]]]) -> Iterator[list[tuple[int, Collective]]]:
    now = [(rank, each) for rank, own in enumerate(todo) if own for each in own[0]]
    for (rank, own), (peer, other) in itertools.combinations(now, 2):
        if (own.peer, other.peer) == (peer, rank) and {own.kind, other.kind} == {"send", "recv"}:
            yield [(rank, own), (peer, other)]


def launches(capture: Capture) -> list[list[Collective]]:
    found: dict[int | None, list[Collective]] = {}
    for each in exchanges(capture):
        found.setdefault(each.batch, []).append(each)
    return list(found.values())


def test_forward_and_backward_passes_take_turns() -> None:
    found = ranks_of(trained(tower, 32, 128), parse_strategy("pp=4,microbatches=8", 4))
    for stage, capture in enumerate(found.captures):
        passes = [
            call.phase.value[0]
            for call in capture.calls
            if call.name in ("aten::relu", "aten::threshold_backward")
        ]
        layers_of_stage = passes.count("f") // 8
        passes = passes[::layers_of_stage]
        begun = 4 - stage
        assert "".join(passes) == "f" * begun + "bf" * (8 - begun) + "b" * begun


def test_a_stage_begins_when_it_has_received() -> None:
    found = ranks_of(trained(tower, 32, 128), parse_strategy("pp=2,microbatches=4", 2))
    lowered = lower_steps(found.captures, device_named("H100-SXM"))
    ranks = schedule_steps(lowered, found.kind_of_rank, count=2)
    first, second = (
        [index for index, work in enumerate(step.works()) if not work.collectives]
        for step in lowered
    )
    sends = [index for index, work in enumerate(lowered[0].works()) if work.collectives]
    met = [len(work.collectives) for work in lowered[0].works() if work.collectives]
    # One alone, three with a gradient that comes back, and what is left of those.
    assert met == [1, 2, 2, 2, 1]
    begins, ends = ranks[1].work_begin[0], ranks[0].work_end[0]
    assert begins[second[0]] >= ends[sends[0]] > ends[first[0]]


def test_a_pipeline_of_copies() -> None:
    found = ranks_of(trained(tower, 32, 128), parse_strategy("pp=2,dp=2", 4))
    assert found.kind_of_rank == (0, 0, 1, 1)
    for rank, groups in ((1, {(1, 3), (0, 1)}), (2, {(0, 2), (2, 3)})):
        step = found.of_rank(rank)
        assert {each.group for each in exchanges(step)} == groups
        assert {each.peer for each in exchanges(step, "send")} == {(rank + 2) % 4}
        averaged = exchanges(step, "allreduce")
        assert sum(each.elements_in for each in averaged) == updated(step)
        backward = [
            i for i, call in enumerate(step.calls) if call.name == "aten::threshold_backward"
        ]
        assert all(each.id > backward[-5] for each in averaged)  # in the last pass alone


def test_parts_of_a_model_in_a_pipeline() -> None:
    found = ranks_of(trained(decoder, 8, 64, 256), parse_strategy("pp=2,tp=2", 4))
    assert sum(products(found.captures[kind]) for kind in (0, 1)) * 2 == (
        products(one_of(trained(decoder, 8, 64, 256), None, 1))
    )
    assert {each.group for each in exchanges(found.of_rank(3), "allreduce")} == {(2, 3)}


def test_a_pipeline_that_is_not_trained() -> None:
    def make() -> dict[str, Any]:
        return {"model": tower(), "inputs": (torch.randn(32, 128),)}

    found = ranks_of(make, parse_strategy("pp=4,microbatches=4", 4))
    sent = [[(each.kind, each.peer) for each in exchanges(c)] for c in found.captures]
    assert sent[0] == [("send", 1)] * 4
    assert sent[1] == [("recv", 0), ("send", 2)] * 4
    assert sum(map(products, found.captures)) == products(ranks_of(make, Strategy()).captures[0])


def test_a_loss_has_its_part_of_the_targets() -> None:
    def make() -> dict[str, Any]:
        targets = torch.zeros(32, dtype=torch.long)
        return {
            "model": tower(),
            "inputs": (torch.randn(32, 128),),
            "loss": lambda out: nn.functional.cross_entropy(out, targets),
        }

    found = ranks_of(make, parse_strategy("pp=2,microbatches=4", 2))
    losses = [call for call in found.captures[1].calls if call.name == "aten::nll_loss_forward"]
    assert [call.inputs["target"].shape for call in losses] == [(8,)] * 4  # type: ignore[union-attr]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(2))

    def forward(self, given: Any) -> Any:
        for layer in [*self.layers, *self.layers]:
            given = layer(given)
        return given


class Across(nn.Module):
    """Each layer takes what the first one gave, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(128, 128)
        self.layers = nn.ModuleList(nn.Bilinear(128, 128, 128) for _ in range(3))

    def forward(self, given: Any) -> Any:
        first = given = self.first(given)
        for layer in self.layers:
            given = layer(given * 2, first)
        return given


@pytest.mark.parametrize(
    ("model", "text", "reason"),
    [
        (tower, "pp=9", "needs 9 blocks or more, and the model has 8"),
        (tower, "pp=4,microbatches=2", "needs 4 microbatches or more"),
        (tower, "pp=2,microbatches=7", "a batch of 32 has no 7 equal parts"),
        (Twice, "pp=2", "layers.0 runs again"),
        (Across, "pp=2", "layers.0 takes more"),
        (tower, "pp=2,fsdp2=2", "has copies"),
    ],
)
def test_a_model_that_is_no_pipeline_is_refused(model: Any, text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        one_of(trained(model, 32, 128), text, 4 if "fsdp" in text else int(text[3]))


# ------------------------------------------------------------------------------- a real job


_WORKLOAD = """
import torch
from torch import nn

def make():
    wide = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.GELU(), nn.Linear(256, 512))
    return {
        "model": nn.Sequential(wide, nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)),
        "inputs": (torch.randn(32, 64),),
        "loss": torch.sum,
        "optimizer": torch.optim.AdamW,
    }
"""
_JOB = """
import sys, torch
from torch import distributed, nn
from torch.profiler import profile, ProfilerActivity
from model import make

rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
made = make()
model = nn.parallel.DistributedDataParallel(made["model"])
optimizer = made["optimizer"](model.parameters())

def step():
    optimizer.zero_grad()
    made["loss"](model(*made["inputs"])).backward()
    optimizer.step()

for _ in range(3):
    step()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
    step()
recorded.export_chrome_trace(out)
distributed.destroy_process_group()
"""
_ALIKE = ("aten::mul", "aten::mm", "aten::addmm")


_PIPELINE = """
import sys, torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.profiler import profile, ProfilerActivity
from model import make

rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
made = make()
module = nn.Sequential(*made["model"][2 * rank : 2 * rank + 2])
stage = PipelineStage(module, rank, 2, torch.device("cpu"))
schedule = Schedule1F1B(stage, 4, loss_fn=lambda output, _: output.sum())

def step():
    module.zero_grad()
    if rank == 0:
        schedule.step(*made["inputs"])
    else:
        schedule.step(target=torch.zeros(32))

for _ in range(2):
    step()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
    step()
recorded.export_chrome_trace(out)
distributed.destroy_process_group()
"""
_SHARDS = """
import sys, torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.profiler import profile, ProfilerActivity
from model import make

rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
made = make()
model = made["model"]
mesh = distributed.init_device_mesh("cpu", (2,))
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
model.set_force_sum_reduction_for_comms(True)  # gloo has no mean

def step():
    model.zero_grad()
    made["loss"](model(*made["inputs"])).backward()

for _ in range(2):
    step()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
    step()
recorded.export_chrome_trace(out)
distributed.destroy_process_group()
"""
_TOWER = """
import torch
from torch import nn

def make():
    layers = [nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(4)]
    return {"model": nn.Sequential(*layers), "inputs": (torch.randn(32, 64),), "loss": torch.sum}
"""


def run_job(tmp_path: Path, workload: str, job: str) -> list[Path]:
    """Traces of two processes."""
    (tmp_path / "model.py").write_text(workload)
    (tmp_path / "job.py").write_text(job)
    outs = [tmp_path / f"{rank}.json" for rank in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, "job.py", str(rank), str(tmp_path / "store"), str(out)], cwd=tmp_path
        )
        for rank, out in enumerate(outs)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    return outs


@pytest.mark.slow  # starts processes that import torch
def test_two_processes_shard_the_same(tmp_path: Path) -> None:
    outs = run_job(tmp_path, _TOWER, _SHARDS)
    make = find_workload(f"{tmp_path / 'model.py'}:make")
    found = one_of(make, "fsdp2", 2)
    copies = ("all_gather_copy_in", "split_with_sizes_copy", "chunk_cat")
    alike = (*_ALIKE, "aten::threshold_backward", *(f"fsdp::{name}" for name in copies))
    expected = [
        (call.name, _written(call))
        for call in found.calls
        if call.collective is not None or call.name in alike
    ]
    for out in outs:
        assert _recorded(out, alike) == expected


def _written(call: Call) -> list[int]:
    """A collective of a trace has its output first."""
    return [] if call.collective is None else [call.collective.elements_out]


@pytest.mark.slow  # starts processes that import torch
def test_two_stages_do_the_same(tmp_path: Path) -> None:
    outs = run_job(tmp_path, _TOWER, _PIPELINE)
    make = find_workload(f"{tmp_path / 'model.py'}:make")
    found = ranks_of(make, parse_strategy("pp=2,microbatches=4", 2))
    alike = (*_ALIKE, "aten::add_", "aten::div_", "aten::threshold_backward")
    for out, capture in zip(outs, found.captures, strict=True):
        expected = [
            (call.name, _sent(call))
            for call in capture.calls
            if call.collective is not None or call.name in alike
        ]
        assert _recorded(out, alike) == expected


@pytest.mark.slow  # starts processes that import torch
def test_two_processes_exchange_the_same(tmp_path: Path) -> None:
    outs = run_job(tmp_path, _WORKLOAD, _JOB)
    found = one_of(find_workload(f"{tmp_path / 'model.py'}:make"), "ddp", 2)
    expected = [
        (call.name, _sent(call))
        for call in found.calls
        if call.collective is not None or call.name in _ALIKE
    ]
    assert len([name for name, _ in expected if name == "c10d::allreduce_"]) == 2
    for out in outs:
        assert _recorded(out) == expected


def _sent(call: Call) -> list[int]:
    return [] if call.collective is None else [call.collective.elements_in]


def _elements(dims: list[Any]) -> int:
    """Of a tensor, or of the first of a list."""
    return prod(dims[0] if dims and isinstance(dims[0], list) else dims)


def _recorded(trace: Path, alike: Sequence[str] = _ALIKE) -> list[tuple[str, list[int]]]:
    """Products, copies into buckets and collectives, these with their sizes."""
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("cat") == "cpu_op"]
    return [
        (
            event["name"],
            [_elements(event["args"]["Input Dims"][0])] if "c10d" in event["name"] else [],
        )
        for event in sorted(events, key=lambda event: event["ts"])
        if "c10d" in event["name"] or event["name"] in alike
    ]
