"""Sequence parallelism and split vocabularies exchange what torch's own parallelize_module does."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.errors import OptionError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from torchtraceap.lab.prediction.capture import Capture  # noqa: E402
from torchtraceap.lab.prediction.capture.calls import tensors_in  # noqa: E402
from torchtraceap.lab.prediction.parallel import capture_ranks, parse_strategy  # noqa: E402
from torchtraceap.lab.prediction.result import memory_need  # noqa: E402

RANKS, BATCH, TOKENS, WIDTH, HEADS, WORDS, BLOCKS = 4, 2, 32, 64, 8, 1024, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head_dim = WIDTH // HEADS
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, given: Any) -> Any:
        batch, tokens, _ = given.shape
        query, key, value = (
            layer(given).view(batch, tokens, -1, self.head_dim).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(found.transpose(1, 2).reshape(batch, tokens, -1))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.up_proj = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down_proj = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, given: Any) -> Any:
        return self.down_proj(nn.functional.silu(self.gate_proj(given)) * self.up_proj(given))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(), Gated()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, given: Any) -> Any:
        given = given + self.attention(self.norm1(given))
        return given + self.mlp(self.norm2(given))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Any) -> Any:
        given = self.words(words)
        for block in self.blocks:
            given = block(given)
        return self.head(self.norm(given))


_JOB = f"""
import sys
import torch
from torch import distributed, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import *
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from test_split_more import Language

by_sequence, by_words, splits_loss = (flag == "1" for flag in sys.argv[1:])
distributed.init_process_group("fake", rank=0, world_size={RANKS}, store=FakeStore())
mesh = distributed.init_device_mesh("cpu", ({RANKS},))


class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(each.__module__.startswith("torch.distributed") for each in types):
            return NotImplemented
        found = func(*args, **(kwargs or {{}}))
        name = func._schema.name.partition("_c10d_functional::")[2]
        if name and not name.startswith(("wait", "_wrap")):
            print(phase, name, args[0].numel(), found.numel())
        return found


model, phase = Language(), "forward"
columns, rows = ColwiseParallel, RowwiseParallel
around = Shard(1) if by_sequence else Replicate()
plan = {{}}
if by_words:
    plan["words"] = rows(input_layouts=Replicate(), output_layouts=around)
    logits = Shard(-1) if splits_loss else Replicate()
    plan["head"] = columns(input_layouts=around, output_layouts=logits,
                           use_local_output=not splits_loss)
    if by_sequence:
        plan["norm"] = SequenceParallel()
parallelize_module(model, mesh, plan)
plan = {{f"attention.{{name}}_proj": columns() for name in "qkv"}}
plan |= {{"mlp.gate_proj": columns(), "mlp.up_proj": columns()}}
plan |= dict.fromkeys(("attention.o_proj", "mlp.down_proj"))
plan |= {{name: rows(output_layouts=around) for name, way in plan.items() if way is None}}
if by_sequence:
    gathered = {{"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}}
    plan |= {{"attention": PrepareModuleInput(**gathered), "mlp": PrepareModuleInput(**gathered)}}
    plan |= {{"norm1": SequenceParallel(), "norm2": SequenceParallel()}}
for block in model.blocks:
    parallelize_module(block, mesh, plan)
words = torch.zeros({BATCH}, {TOKENS}, dtype=torch.long)
with Seen(), loss_parallel() if splits_loss else torch.enable_grad():
    out = model(words)
    loss = nn.functional.cross_entropy(out.view(-1, {WORDS}), words.view(-1))
    phase = "backward"
    loss.backward()
"""
_KINDS = {
    "all_reduce": "allreduce",
    "all_gather_into_tensor": "_allgather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
}


def workload(model: Callable[[], nn.Module] | None = None) -> dict[str, Any]:
    words = torch.zeros(BATCH, TOKENS, dtype=torch.long)

    def loss(out: Any) -> Any:
        return nn.functional.cross_entropy(out.view(-1, WORDS), words.view(-1))

    return {"model": (model or Language)(), "inputs": (words,), "loss": loss,
            "optimizer": torch.optim.AdamW}  # fmt: skip


@functools.cache
def captured(text: str, model: Callable[[], nn.Module] | None = None) -> Capture:
    make = functools.partial(workload, model)
    return capture_ranks(make, parse_strategy(text, RANKS)).captures[0]


def exchanged(capture: Capture) -> Counter[tuple[str, str, int, int]]:
    return Counter(
        (call.phase.value, each.kind, each.elements_in, each.elements_out)
        for call in capture.calls
        if (each := call.collective) is not None
    )


@pytest.mark.slow  # starts processes that import torch
@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("tp,vocabulary", (False, True, True)),
        ("tp,sequence,vocabulary", (True, True, True)),
    ],
)
def test_exchanges_are_those_of_torch(text: str, flags: tuple[bool, ...], tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(_JOB)
    arguments = [str(int(flag)) for flag in flags]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    told = subprocess.run(
        [sys.executable, "job.py", *arguments], cwd=tmp_path, check=True, capture_output=True,
        text=True, timeout=300, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    expected = Counter(
        (phase, _KINDS[name], int(given), int(made))
        for phase, name, given, made in map(str.split, told.stdout.splitlines())
    )
    found = exchanged(captured(text))
    # Sums of the norms' gradients, which torch makes when the optimiser asks for them.
    norms = found.pop(("backward", "allreduce", WIDTH, WIDTH), 0)
    assert norms == (2 * (2 * BLOCKS + 1) if flags[0] else 0)
    assert found == expected
    assert sum(expected.values()) > 4 * BLOCKS


def test_a_part_of_the_words_is_on_each_rank() -> None:
    split, whole = captured("tp,sequence,vocabulary"), captured("tp")
    kept = [_updated(capture) for capture in (split, whole)]
    assert kept[1] - kept[0] == 2 * (WORDS - WORDS // RANKS) * WIDTH
    logits = [
        call.outputs[0].elements  # type: ignore[union-attr]
        for call in split.calls
        if call.name in ("aten::mm", "aten::addmm") and call.outputs[0].shape[-1] == WORDS // RANKS  # type: ignore[union-attr]
    ]
    assert BATCH * TOKENS * WORDS // RANKS in logits
    assert not any(
        tensor.elements == BATCH * TOKENS * WORDS
        for call in split.calls
        for tensor in tensors_in(call.outputs)
    )


def _updated(capture: Capture) -> int:
    (update,) = [call for call in capture.calls if call.name == "aten::_foreach_addcdiv_"]
    return sum(tensor.elements for tensor in tensors_in([update.inputs["self"]]))


def test_between_split_layers_there_are_some_of_the_tokens() -> None:
    for text, tokens in (("tp", TOKENS), ("tp,sequence,vocabulary", TOKENS // RANKS)):
        norms = [
            call.inputs["input"].shape  # type: ignore[union-attr]
            for call in captured(text).calls
            if call.name == "aten::native_layer_norm"
        ]
        assert norms == [(BATCH, tokens, WIDTH)] * (2 * BLOCKS + 1)
    needs = [memory_need(captured(text)) for text in ("tp", "tp,sequence,vocabulary")]
    assert needs[1].activations < needs[0].activations  # type: ignore[union-attr]


class Tied(nn.Module):
    """With positions, torch's own layers, and one matrix for words and head."""

    def __init__(self, words: int = WORDS, *, batch_first: bool = True) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, WIDTH), nn.Embedding(TOKENS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, BLOCKS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, words, bias=False)
        self.head.weight = self.words.weight
        self.batch_first = batch_first

    def forward(self, words: Any) -> Any:
        given = self.words(words) + self.positions.weight
        if not self.batch_first:
            given = given.transpose(0, 1)
        found = self.encoder(given)
        return self.head(found if self.batch_first else found.transpose(0, 1))


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_own_layers_with_tied_words(batch_first: bool) -> None:
    capture = captured("tp,sequence,vocabulary", functools.partial(Tied, batch_first=batch_first))
    part, whole = BATCH * TOKENS * WIDTH // RANKS, BATCH * TOKENS * WIDTH
    found = exchanged(capture)
    # Two pairs in each block; the head's own, where it takes what the last block gives.
    assert found["forward", "_allgather_base", part, whole] == 2 * BLOCKS + 1
    assert found["forward", "_reduce_scatter_base", whole, part] == 2 * BLOCKS
    assert found["forward", "allreduce", whole, whole] == 1  # words meet positions as a whole
    norms = [c for c in capture.calls if c.name == "aten::native_layer_norm"]
    assert {c.inputs["input"].elements for c in norms} == {part}  # type: ignore[union-attr]
    assert _updated(capture) < _updated(captured("tp", Tied))


def test_words_that_are_no_multiple_are_filled_up() -> None:
    capture = captured("tp,vocabulary", functools.partial(Odd, WORDS - 2))
    assert capture.notes == ()
    found = exchanged(capture)
    rows = BATCH * TOKENS
    assert found["forward", "_allgather_base", rows * WORDS // RANKS, rows * WORDS] == 1


class Odd(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, WIDTH), nn.Linear(WIDTH, words)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, words: Any) -> Any:
        found = self.head(self.mlp(self.words(words)))
        return nn.functional.pad(found, (0, WORDS - found.shape[-1]))


class Stranger(Odd):
    """Adds something of its own to the logits of all words."""

    def __init__(self, words: int) -> None:
        super().__init__(words)
        self.more = nn.Parameter(torch.zeros(words))

    def forward(self, words: Any) -> Any:
        return self.head(self.mlp(self.words(words))) + self.more


def test_a_loss_that_needs_all_words_gets_them() -> None:
    capture = captured("tp,vocabulary", functools.partial(Stranger, WORDS))
    (note,) = capture.notes
    assert "logits of all words are gathered" in note
    rows = BATCH * TOKENS
    assert exchanged(capture)["forward", "_allgather_base", rows * WORDS // RANKS, rows * WORDS]


def test_copies_of_split_models() -> None:
    found = capture_ranks(workload, parse_strategy("dp=2,tp=4,sequence,vocabulary", 8))
    groups = {
        (call.collective.group_name, call.collective.group)
        for call in found.of_rank(5).calls
        if call.collective is not None
    }
    assert groups == {("mesh_tp", (4, 5, 6, 7)), ("mesh_dp", (1, 5))}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ddp,sequence", "sequence is of tensor"),
        ("fsdp2,vocabulary", "vocabulary is of tensor"),
        ("pp=2,tp=2,sequence", "not with pp or fsdp2"),
        ("tp,sequenze", "'sequenze' is none of"),
    ],
)
def test_what_can_not_be_split_is_refused(text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        parse_strategy(text, RANKS)


def test_models_that_can_not_be_split_are_refused() -> None:
    pair = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))

    def make() -> dict[str, Any]:
        return {"model": pair, "inputs": (torch.randn(8, 64),), "loss": torch.sum}

    with pytest.raises(OptionError, match="and the model has none"):
        capture_ranks(make, parse_strategy("tp,vocabulary", 2))

    def odd() -> dict[str, Any]:
        return {**workload(), "inputs": (torch.zeros(2, 30, dtype=torch.long),), "loss": torch.sum}

    with pytest.raises(OptionError, match="30 tokens, no multiple of 4"):
        capture_ranks(odd, parse_strategy("tp,sequence", 4))


def test_a_prediction_of_each() -> None:
    steps = [
        ttap.predict(workload, device="H100-SXM", world_size=RANKS, strategy=text)
        for text in ("tp", "tp,sequence,vocabulary")
    ]
    assert steps[1].memory_bytes.peak < steps[0].memory_bytes.peak  # type: ignore[union-attr]
    assert all(step.gpu.exposed_communication_ns > 0 for step in steps)
