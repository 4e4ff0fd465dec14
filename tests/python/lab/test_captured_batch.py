"""A recorded step at another batch size is the step that would have been recorded there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import CORPUS

import torchtraceap as ttap
from torchtraceap.errors import OptionError

torch = pytest.importorskip("torch")

from test_captured_files import observed  # noqa: E402
from test_captured_profile import MODELS, launched, loss, recorded, workload  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from torchtraceap.lab.prediction.capture import (  # noqa: E402
    Capture,
    CapturedProfile,
    capture_execution_trace,
    capture_gpu_trace,
    capture_profile,
    capture_step,
)
from torchtraceap.lab.prediction.capture.batch_sizes import (  # noqa: E402
    rescaled_strides,
    resolve_sizes,
    view_shapes,
)


class Words(nn.Module):
    """As BERT: a mask of lengths, positions from a buffer, attention in products and softmax."""

    positions: torch.Tensor

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.words, self.places = nn.Embedding(50, width), nn.Embedding(16, width)
        self.register_buffer("positions", torch.arange(16).expand(1, -1))
        self.qkv = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.out, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        mask = torch.ones((batch, length))[:, None, None, :]
        bias = (1.0 - mask) * -1e9
        x = self.norm(self.words(ids) + self.places(self.positions[:, :length]))
        q, k, v = (
            layer(x).view(batch, length, self.heads, -1).permute(0, 2, 1, 3) for layer in self.qkv
        )
        scores = q @ k.transpose(-1, -2) / 4.0 + bias
        found = (scores.softmax(-1) @ v).permute(0, 2, 1, 3).contiguous().view(batch, length, -1)
        x = x + self.out(found)
        x = x + self.down(functional.gelu(self.up(x)))
        return self.head(x[:, 0])


class Patches(nn.Module):
    """As a vision transformer: a token for all images, learned positions."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, 17, width))
        self.block = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), dim=1) + self.places
        return self.head(self.block(x)[:, 0])


def digits() -> nn.Module:
    """With as many features as the batch may have rows."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
        nn.Linear(128, 10),
    )  # fmt: skip


def of(model: str, optimizer: str, batch: int) -> dict[str, Any]:
    others: dict[str, Any] = {
        "words": lambda: (Words(), torch.randint(0, 50, (batch, 12))),
        "patches": lambda: (Patches(), torch.randn(batch, 3, 16, 16)),
        "digits": lambda: (digits(), torch.randn(batch, 1, 28, 28)),
    }
    if model in others:
        made, x = others[model]()
        found: dict[str, Any] = {"model": made, "inputs": (x,)}
        if optimizer != "forward":
            found |= {"loss": loss, "optimizer": torch.optim.AdamW}
        return found
    found = workload(model, optimizer)
    (x,) = found["inputs"]
    return found | {"inputs": (x[:1].expand(batch, *x.shape[1:]).contiguous(),)}


def at_batch(path: Path, batch: int) -> Capture:
    return capture_profile(ttap.load(path).ranks[0], batch)


@pytest.mark.slow  # records models at two batch sizes
@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        *((model, "adamw") for model in (*MODELS, "words", "patches", "digits")),
        *((model, "forward") for model in ("text", "images", "words")),
    ],
)
def test_a_profile_at_another_batch_is_the_one_recorded_there(
    tmp_path: Path, model: str, optimizer: str
) -> None:
    path = recorded(tmp_path / "p.json", of(model, optimizer, 6))
    expected = capture_step(lambda: of(model, optimizer, 20))
    assert launched(at_batch(path, 20)) == launched(expected)


@pytest.mark.parametrize("to", [3, 64])
def test_batches_grow_and_shrink(tmp_path: Path, to: int) -> None:
    path = recorded(tmp_path / "p.json", of("words", "adamw", 8))
    expected = capture_step(lambda: of("words", "adamw", to))
    assert launched(at_batch(path, to)) == launched(expected)


@pytest.mark.parametrize("batch", [4, 12])
def test_a_batch_as_large_as_heads_or_words_is_told(tmp_path: Path, batch: int) -> None:
    path = recorded(tmp_path / "p.json", of("words", "adamw", batch))
    expected = capture_step(lambda: of("words", "adamw", 7))
    assert launched(at_batch(path, 7)) == launched(expected)


def test_a_batch_as_large_as_a_layer_is_told_by_use(tmp_path: Path) -> None:
    path = recorded(tmp_path / "p.json", of("digits", "adamw", 128))
    capture = at_batch(path, 64)
    assert launched(capture) == launched(capture_step(lambda: of("digits", "adamw", 64)))
    assert any("(128, 128)" in note for note in capture.notes)


def test_the_same_batch_changes_nothing(tmp_path: Path) -> None:
    path = recorded(tmp_path / "p.json", of("images", "adamw", 6))
    assert at_batch(path, 6) == capture_profile(ttap.load(path).ranks[0])


@pytest.mark.parametrize("model", ["layers", "words"])
def test_an_execution_trace_at_another_batch(tmp_path: Path, model: str) -> None:
    path = observed(tmp_path / "et.json", of(model, "adamw", 6))
    expected = capture_step(lambda: of(model, "adamw", 20))
    assert launched(capture_execution_trace(path, 20)) == launched(expected)


def test_a_batch_of_one_that_could_be_anything_is_refused(tmp_path: Path) -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
            self.places = nn.Parameter(torch.zeros(1, 1, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x) + self.places)

    made = {"model": Adds(), "inputs": (torch.zeros(1, 5, 8),)}
    path = recorded(tmp_path / "p.json", made)
    with pytest.raises(OptionError, match=r"batch of 1 is not clear: aten::add of .*1x1x8"):
        at_batch(path, 4)


def test_a_loop_over_the_batch_is_refused(tmp_path: Path) -> None:
    class Loops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([self.layer(row) for row in x.unbind(0)])

    path = recorded(tmp_path / "p.json", {"model": Loops(), "inputs": (torch.zeros(4, 8),)})
    with pytest.raises(OptionError, match="batch"):
        at_batch(path, 8)


def real(name: str) -> CapturedProfile:
    path = CORPUS / name
    if not path.exists():
        pytest.skip(f"no {path}; set TORCHTRACEAP_CORPUS")
    return capture_gpu_trace(ttap.load(path).ranks[0], 8)


def test_a_trace_of_a_gpu_at_another_batch() -> None:
    found = real("tracelens/h100/vit_nsfw_inference.json.gz")
    assert found.changed is not None
    pairs = list(zip(found.capture.calls, found.changed.calls, strict=True))
    assert len(pairs) == 151
    for before, after in pairs:
        assert before.name == after.name
        for name, given in before.inputs.items():
            tensor, other = before.tensor(name), after.tensor(name)
            if tensor is None or other is None:
                continue
            scales = tensor.shape[0] in (4, 4 * 197)
            first = 2 * tensor.shape[0] if scales else tensor.shape[0]
            assert other.shape == (first, *tensor.shape[1:]), (before.name, name, given)


def test_sizes_of_views() -> None:
    assert resolve_sizes((2, -1, 3), 24) == (2, 4, 3)
    assert resolve_sizes((-1, 5), 24) is None
    (found,) = view_shapes((4, 12, 64), (8, 12, 64), (48, 64), 4, {})
    assert found == ((96, 64), {48: 12})
    (found,) = view_shapes((48, 64), (96, 64), (4, 12, 64), 4, {48: {12}})
    assert found[0] == (8, 12, 64)
    (found,) = view_shapes((48, 64), (96, 64), (12, 4, 64), 4, {48: {1}})
    assert found[0] == (12, 8, 64)
    assert list(view_shapes((16, 3), (8, 3), (4, 4, 3), 16, {})) == []  # the batch itself is cut


def test_strides_grow_with_what_lies_between_rows() -> None:
    assert rescaled_strides((4, 12, 64), (768, 64, 1), (8, 12, 64)) == (768, 64, 1)
    assert rescaled_strides((12, 4, 64), (256, 64, 1), (12, 8, 64)) == (512, 64, 1)
    assert rescaled_strides((12, 4, 64), (64, 768, 1), (12, 8, 64)) == (64, 768, 1)
    assert rescaled_strides((4, 1), (0, 1), (8, 1)) == (0, 1)
