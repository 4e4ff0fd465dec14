"""Language models."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtraceap.lab.workloads.declaration import workload
from torchtraceap.lab.workloads.suite.layers import (
    Attention,
    Block,
    Made,
    adam,
    classes,
    perceptron,
    pick,
    supervised,
    trained,
)  # fmt: skip


def _next_token_loss(output: Tensor, words: Tensor) -> Tensor:
    """Return the next-token loss."""
    return functional.cross_entropy(output[:, :-1].flatten(0, 1), words[:, 1:].flatten())


class _Gpt(nn.Module):
    """A decoder whose output layer shares the token embedding."""

    def __init__(self, words: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(0.1)
        self.layers = nn.ModuleList(Block(width, heads, causal=True) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.words(x) + self.places(torch.arange(x.shape[1], device=x.device)))
        for layer in self.layers:
            y = layer(y)
        return functional.linear(self.norm(y), self.words.weight)


@workload(
    task="language modelling",
    domain="language",
    exercises="Causal attention, a shared embedding, cross-entropy over a vocabulary.",
)
def gpt(batch: int = 4, size: str = "tiny") -> Made:
    """GPT-2 small in full."""
    words, length, width, depth, heads = pick(
        size, (1000, 48, 64, 2, 4), (50257, 1024, 768, 12, 12)
    )
    text = classes(batch, words, length)
    return supervised(_Gpt(words, length, width, depth, heads), text, text, _next_token_loss)


class _Rotary(nn.Module):
    """A decoder layer with grouped queries, rotary positions, a gated perceptron and RMS norms."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.each = heads, groups, width // heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.mixed = nn.Linear(width, (heads + 2 * groups) * self.each, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.down = (
            nn.Linear(width, 6 * width, False),
            nn.Linear(3 * width, width, False),
        )

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        parts = self.mixed(self.norms[0](x)).unflatten(-1, (-1, self.each)).transpose(1, 2)
        query, key, value = parts.split([self.heads, self.groups, self.groups], 1)
        query, key = _rotate(query, turn), _rotate(key, turn)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gate(self.norms[1](x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


def _rotate(x: Tensor, turn: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


class _Llama(nn.Module):
    def __init__(self, words: int, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
        self.layers = nn.ModuleList(_Rotary(width, heads, heads // 2) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)
        rates = 10000.0 ** -torch.arange(0, 1, 2 * heads / width)
        angles = torch.outer(torch.arange(length), rates)
        self.register_buffer("turn", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor) -> Tensor:
        y = self.words(x)
        for layer in self.layers:
            y = layer(y, self.turn)
        return self.head(self.norm(y))


@workload(
    task="language modelling",
    domain="language",
    exercises="Rotary places by complex numbers, grouped queries, RMSNorm, SwiGLU.",
)
def llama(batch: int = 4, size: str = "tiny") -> Made:
    """Layers of Llama (arXiv 2302.13971); some 200 million weights in full."""
    words, width, depth, heads, length = pick(
        size, (1000, 64, 2, 4, 48), (32000, 1024, 12, 16, 1024)
    )
    text = classes(batch, words, length)
    net = _Llama(words, width, depth, heads, length)
    return supervised(
        net, text, text, _next_token_loss,
        lambda weights: torch.optim.AdamW(weights, lr=3e-4, betas=(0.9, 0.95), fused=True),
    )  # fmt: skip


class _Bert(nn.Module):
    def __init__(self, words: int, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.places, self.kinds = nn.Embedding(length, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        places = self.places.weight[: x.shape[1]]
        y = self.norm(self.words(x) + places + self.kinds(kinds))
        return self.head(self.layers(y, src_key_padding_mask=x == 0))


def _masked_words_loss(output: Tensor, target: Tensor) -> Tensor:
    hidden = target >= 0
    return functional.cross_entropy(output[hidden], target[hidden])


@workload(
    task="masked language modelling",
    domain="language",
    exercises="nn.TransformerEncoder with a padding mask; the loss picks places by a mask.",
)
def bert(batch: int = 4, size: str = "tiny") -> Made:
    """BERT base in full (arXiv 1810.04805)."""
    words, width, depth, heads, length = pick(size, (1000, 64, 2, 4, 48), (30522, 768, 12, 12, 512))
    text = classes(batch, words - 1, length) + 1
    text[:, -length // 8 :] = 0
    target = text.masked_fill(torch.rand(batch, length) > 0.15, -1)
    target[:, 0] = text[:, 0]
    inputs = (text.masked_fill(target >= 0, 1), classes(batch, 2, length))
    return supervised(_Bert(words, width, depth, heads, length), inputs, target, _masked_words_loss)


class _T5(nn.Module):
    """An encoder and a decoder with a bias for relative positions."""

    def __init__(self, words: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.words, self.apart = nn.Embedding(words, width), nn.Embedding(32, 2 * heads)
        self.encoder = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.decoder = nn.ModuleList(Block(width, heads, cross=True) for _ in range(depth))
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        to_all, _ = self._bias(source.shape[1]).chunk(2)
        _, backwards = self._bias(target.shape[1]).chunk(2)
        ahead = torch.ones(backwards.shape[1:], dtype=torch.bool, device=source.device).triu(1)
        x, y = self.words(source), self.words(target)
        for layer in self.encoder:
            x = layer(x, bias=to_all)
        for layer in self.decoder:
            y = layer(y, x, backwards.masked_fill(ahead, float("-inf")))
        return functional.linear(y, self.words.weight)

    def _bias(self, length: int) -> Tensor:
        at = torch.arange(length, device=self.words.weight.device)
        apart = at - at[:, None]
        far = 8 + (apart.abs().clamp(min=8) / 8).log2() * 2
        bucket = torch.where(apart.abs() < 8, apart.abs().float(), far).long().clamp(max=15)
        return self.apart(bucket + 16 * (apart > 0)).permute(2, 0, 1)


@workload(
    task="translation",
    domain="language",
    exercises="Encoder and decoder, relative biases by buckets, a triangular mask; Adagrad.",
)
def t5(batch: int = 4, size: str = "tiny") -> Made:
    """A network after T5 (arXiv 1910.10683), with layer norms."""
    words, width, depth, heads, length = pick(size, (1000, 48, 2, 4, 32), (32128, 512, 6, 8, 512))
    source, target = classes(batch, words, length), classes(batch, words, length)
    return supervised(
        _T5(words, width, depth, heads), (source, target), target, _next_token_loss,
        lambda weights: torch.optim.Adagrad(weights, lr=0.01),
    )  # fmt: skip


class _Recurrent(nn.Module):
    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.LSTM(width, width, depth, batch_first=True, dropout=0.2)
        self.head = nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.words(x))[0])


@workload(
    task="language modelling",
    domain="language",
    exercises="A stacked LSTM (cuDNN's on a GPU) with dropout between its layers.",
)
def lstm_lm(batch: int = 8, size: str = "tiny") -> Made:
    """A recurrent language model (arXiv 1409.2329)."""
    words, width, depth, length = pick(size, (1000, 64, 2, 24), (33278, 1024, 2, 256))
    text = classes(batch, words, length)
    return supervised(
        _Recurrent(words, width, depth), text, text, _next_token_loss,
        lambda weights: torch.optim.SGD(weights, lr=1.0),
    )  # fmt: skip


class _Tagger(nn.Module):
    """A recurrent layer over packed sentences, with transition scores of tags."""

    def __init__(self, words: int, width: int, tags: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layer = nn.LSTM(width, width, bidirectional=True, batch_first=True)
        self.tags, self.pairs = nn.Linear(2 * width, tags), nn.Parameter(torch.randn(tags, tags))

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        pack, pad = nn.utils.rnn.pack_padded_sequence, nn.utils.rnn.pad_packed_sequence
        packed = pack(self.words(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
        seen = pad(self.layer(packed)[0], batch_first=True, total_length=x.shape[1])[0]
        return self.tags(seen), self.pairs


def _crf_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the negative log likelihood of the tags by the forward algorithm."""
    scores, pairs = (each.float() for each in output)
    total = scores[:, 0]
    for place in range(1, scores.shape[1]):
        total = torch.logsumexp(total[:, :, None] + pairs, 1) + scores[:, place]
    chosen = scores.gather(2, target[..., None]).sum((1, 2))
    steps = pairs[target[:, :-1], target[:, 1:]].sum(1)
    return (torch.logsumexp(total, 1) - chosen - steps).mean()


@workload(
    task="tagging",
    domain="language",
    exercises="Packed sequences (lengths go to the host), a loop of logsumexp over places.",
)
def crf_tagger(batch: int = 8, size: str = "tiny") -> Made:
    """BiLSTM-CRF (arXiv 1508.01991)."""
    words, width, tags, length = pick(size, (1000, 32, 9, 24), (30000, 256, 32, 128))
    lengths = torch.randint(length // 2, length + 1, (batch,))
    net = _Tagger(words, width, tags)
    return supervised(
        net, (classes(batch, words, length), lengths), classes(batch, tags, length), _crf_loss
    )


class _Translator(nn.Module):
    """A recurrent decoder with attention to the source at each word."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.cell, self.head = nn.GRUCell(2 * width, width), nn.Linear(2 * width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, last = self.encoder(self.words(source))
        hidden, found = last[0], []
        for word in self.words(target).unbind(1):
            share = torch.bmm(memory, hidden[..., None]).softmax(1)
            looked = (share * memory).sum(1)
            hidden = self.cell(
                torch.cat([word.to(hidden.dtype), looked.to(hidden.dtype)], -1), hidden
            )
            found.append(torch.cat([hidden, looked], -1))
        return self.head(torch.stack(found, 1))


@workload(
    task="translation",
    domain="language",
    exercises="A decoder step by step: many small kernels, batched products, GRU cells.",
)
def seq2seq(batch: int = 4, size: str = "tiny") -> Made:
    """Translation with attention (arXiv 1409.0473)."""
    words, width, length = pick(size, (1000, 48, 16), (30000, 512, 64))
    source, target = classes(batch, words, length), classes(batch, words, length)
    return supervised(_Translator(words, width), (source, target), target, _next_token_loss, adam)


class _Experts(nn.Module):
    """A mixture of experts: each token goes to its two best experts."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            perceptron(width, 2 * width, width, activation=nn.SiLU) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weight, chosen = self.router(flat).float().softmax(-1).topk(2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for place, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == place)
            found = expert(flat[token]) * weight[token, rank, None]
            out.index_add_(0, token, found.to(out.dtype))
        return out.view_as(x)


class _Sparse(nn.Module):
    def __init__(self, words: int, width: int, depth: int, experts: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.looks = nn.ModuleList(Attention(width, 4, causal=True) for _ in range(depth))
        self.thinks = nn.ModuleList(_Experts(width, experts) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        y = self.words(x)
        for look, think in zip(self.looks, self.thinks, strict=True):
            y = y + look(functional.layer_norm(y, y.shape[-1:]))
            y = y + think(functional.layer_norm(y, y.shape[-1:]))
        return self.head(y)


@workload(
    task="language modelling",
    domain="language",
    exercises="Experts chosen by topk; where, gather and index_add of each wait for the GPU.",
)
def moe(batch: int = 4, size: str = "tiny") -> Made:
    """A sparse mixture of experts (arXiv 2401.04088), expert after expert."""
    words, width, depth, experts, length = pick(size, (500, 48, 2, 4, 32), (32000, 768, 8, 8, 512))
    text = classes(batch, words, length)
    return supervised(_Sparse(words, width, depth, experts), text, text, _next_token_loss)


class _Selective(nn.Module):
    """A selective state space layer, scanned in chunks by sums of logarithms."""

    def __init__(self, width: int, state: int) -> None:
        super().__init__()
        self.norm, self.state = nn.LayerNorm(width), state
        self.enter = nn.Linear(width, 2 * width)
        self.conv = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.step, self.told = nn.Linear(width, width), nn.Linear(width, 2 * state)
        self.decay = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(width, 1))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.enter(self.norm(x)).chunk(2, -1)
        y = functional.silu(self.conv(y.mT)[..., : x.shape[1]]).mT
        step, (into, out) = functional.softplus(self.step(y)), self.told(y).chunk(2, -1)
        kept = torch.exp(-step[..., None] * self.decay.exp())
        fed = (step * y)[..., None] * into[:, :, None]
        state, found = torch.zeros_like(fed[:, 0]), []
        for keep, feed, show in zip(kept.unbind(1), fed.unbind(1), out.unbind(1), strict=True):
            state = torch.addcmul(feed, keep, state)
            found.append(torch.einsum("bws,bs->bw", state, show.to(state.dtype)))
        return x + self.out(torch.stack(found, 1) * functional.silu(gate))


@workload(
    task="language modelling",
    domain="language",
    exercises="A selective state space, scanned token by token: hundreds of small kernels.",
)
def mamba(batch: int = 2, size: str = "tiny") -> Made:
    """Mamba (arXiv 2312.00752) without its fused scan."""
    words, width, depth, state, length = pick(size, (500, 32, 2, 8, 24), (50280, 768, 4, 16, 256))
    text = classes(batch, words, length)
    net = nn.Sequential(
        nn.Embedding(words, width), *(_Selective(width, state) for _ in range(depth)),
        nn.Linear(width, words),
    )  # fmt: skip
    return supervised(net, text, text, _next_token_loss)


class _Views(nn.Module):
    """Convolutions of several widths over words, with max pooling."""

    def __init__(self, words: int, width: int, labels: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, max_norm=1.0)
        self.views = nn.ModuleList(nn.Conv1d(width, width, by) for by in (3, 4, 5))
        self.head = nn.Sequential(nn.AlphaDropout(0.5), nn.Linear(3 * width, labels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.words(x).mT
        return self.head(torch.cat([functional.selu(view(y)).amax(2) for view in self.views], 1))


@workload(
    task="text classification",
    domain="language",
    exercises="One-dimensional convolutions, largest values, renormalised embeddings, several "
    "labels at once.",
)
def text_cnn(batch: int = 16, size: str = "tiny") -> Made:
    """A network after TextCNN (arXiv 1408.5882)."""
    words, width, length = pick(size, (2000, 48, 32), (50000, 300, 256))
    net = _Views(words, width, 20)
    return supervised(
        net, classes(batch, words, length), torch.rand(batch, 20).round(),
        functional.multilabel_soft_margin_loss,
        lambda weights: torch.optim.Adadelta(weights),
    )  # fmt: skip


class _Preferred(nn.Module):
    """A model with low-rank adapters and the frozen reference model."""

    def __init__(self, net: _Gpt, rank: int) -> None:
        super().__init__()
        self.net = net.requires_grad_(False)
        words, width = net.words.weight.shape
        self.down = nn.Parameter(0.02 * torch.randn(width, rank))
        self.up = nn.Parameter(torch.zeros(rank, words))

    def forward(self, better: Tensor, worse: Tensor) -> Tensor:
        both = torch.cat([better, worse])
        with torch.no_grad():
            hidden = self.net(both)
        seen = self.net.words(both)
        apart = _log_prob(hidden + seen @ self.down @ self.up, both) - _log_prob(hidden, both)
        good, bad = apart.chunk(2)
        return good - bad


def _log_prob(logits: Tensor, words: Tensor) -> Tensor:
    each = logits.float().log_softmax(-1)[:, :-1]
    return each.gather(2, words[:, 1:, None]).sum((1, 2))


@workload(
    task="preference tuning",
    domain="language",
    exercises="Frozen weights, added matrices of low rank, gathered log-probabilities.",
)
def dpo(batch: int = 2, size: str = "tiny") -> Made:
    """Direct preference optimization (arXiv 2305.18290) of low-rank weights of the last layer."""
    words, length, width, depth, heads = pick(size, (500, 32, 48, 2, 4), (50257, 512, 768, 12, 12))
    net = _Preferred(_Gpt(words, length, width, depth, heads), 8)
    texts = (classes(batch, words, length), classes(batch, words, length))
    return trained(net, texts, lambda apart: -functional.logsigmoid(0.1 * apart).mean())
