#!/usr/bin/env python3
"""The scorer `paper` beside the paper's recipe in plain PyTorch: the same weights and answers.

The recipe is the text read literally: the text encoder runs on the name of every event, windows are
padded to the longest one, and every layer sees all of it. Ours embeds each distinct name once,
packs windows without padding, and computes of the last layer what is asked for.

    python benchmarks/detectors/recipe.py [TRACE] [--encoder hash|minilm] [--json FILE]

Both begin with the file and end with scores. Weights are random: that changes no time. With `hash`
the recipe's names cost next to nothing; with `minilm` they cost what the paper's would, or less
(RoBERTa has eight times the arithmetic). Reported are medians of wall time, and of processor time,
which other programs on the machine change less.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from torchtraceap.diagnosis.scoring import common_bounds
from torchtraceap.diagnosis.scoring.paper import PaperConfig, PaperScorer, paper_tokens
from torchtraceap.diagnosis.scoring.text_encoders import LanguageModel, TextEncoder, text_encoder
from torchtraceap.lab.training.paper_net import PaperNet
from torchtraceap.trace.loader import load

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples/traces/resnet50_num_workers_0.json.gz"
WINDOWS = 100
_TEXTS_AT_ONCE = 256


class Recipe:
    """Equations 1 to 9 on padded windows."""

    def __init__(self, module: PaperNet, encoder: TextEncoder) -> None:
        self.module, self.config, self.encoder = module.eval(), module.config, encoder

    def score(self, path: Path) -> np.ndarray:
        trace = load([path])
        found = paper_tokens(trace.rank(), common_bounds(trace, WINDOWS), self.config)
        tokens = found.tokens
        lengths = torch.from_numpy(np.diff(tokens.offsets.astype(np.int64)))
        with torch.inference_mode():
            gpu = self._texts([tokens.names[i] for i in tokens.name])
            cpu = self._texts([tokens.names[i] for i in tokens.cpu_name])
            columns = [gpu, cpu, *(
                torch.from_numpy(column.astype(kind)) for column, kind in (
                    (tokens.delay_code, np.int64), (tokens.duration_code, np.int64),
                    (tokens.position, np.float32), (tokens.stream, np.float32),
                )
            )]  # fmt: skip
            padded = [self._pad(column, lengths) for column in columns]
            there = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
            windows = self._encode(self._tokens(padded, there), there)
            return self._relate(windows, self.config.platform_code(found.platform)).numpy()

    def _texts(self, names: Sequence[str]) -> Tensor:
        """The text encoder on every occurrence of a name."""
        parts = []
        for start in range(0, len(names), _TEXTS_AT_ONCE):
            chunk = names[start : start + _TEXTS_AT_ONCE]
            if isinstance(self.encoder, LanguageModel):
                parts.append(self.encoder.embed(chunk))
            else:
                parts.append(self.encoder.vectors(chunk))
        return torch.from_numpy(np.concatenate(parts))

    @staticmethod
    def _pad(column: Tensor, lengths: Tensor) -> Tensor:
        parts = torch.split(column, lengths.tolist())
        return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)

    def _tokens(self, columns: Sequence[Tensor], there: Tensor) -> Tensor:
        m = self.module
        gpu, cpu, delay, duration, position, stream = columns
        fused = torch.cat([
            F.relu(m.name_adapter(gpu)),
            F.relu(m.cpu_adapter(cpu)),
            F.relu(m.delay_fc(m.delay_norm(m.delay_table(delay)))),
            F.relu(m.duration_fc(m.duration_norm(m.duration_table(duration)))),
        ], 2)  # fmt: skip
        x = m.neck_norm1(m.neck1(fused.transpose(1, 2)).transpose(1, 2))
        x = m.neck_norm2(m.neck2((x * there.unsqueeze(2)).transpose(1, 2)).transpose(1, 2))
        place = [_waves(position, self.config.width), _waves(stream, self.config.width)]
        return x + torch.cat(place, 2)

    def _encode(self, x: Tensor, there: Tensor) -> Tensor:
        m, heads = self.module, self.config.heads
        count, _, wide = x.shape
        x = torch.cat([m.cls.expand(count, 1, wide), x], 1)
        seen = torch.cat([torch.ones(count, 1, dtype=torch.bool), there], 1)[:, None, None]
        for layer in m.encoder.layers:
            q, k, v = layer.qkv(layer.norm1(x)).view(count, -1, 3, heads, wide // heads).unbind(2)
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            x = x + layer.out(mixed.transpose(1, 2).flatten(2))
            x = x + layer.fc2(F.gelu(layer.fc1(layer.norm2(x))))
        return m.encoder.norm(x)[:, 0]

    def _relate(self, windows: Tensor, platform_code: int) -> Tensor:
        m = self.module
        features = m._trace(windows, platform_code)
        return torch.sigmoid(m.head2(F.relu(m.head1(features)))).squeeze(1)


def _waves(values: Tensor, width: int) -> Tensor:
    half = width // 2
    angles = values.unsqueeze(-1) * torch.exp(torch.arange(half) * (-math.log(10000.0) / half))
    return torch.cat([angles.sin(), angles.cos()], -1)


def times(run: Callable[[], np.ndarray], repeats: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Scores, and medians in seconds."""
    wall, processor = [], []
    for _ in range(repeats):
        before, used = time.perf_counter(), time.process_time()
        scores = run()
        wall.append(time.perf_counter() - before)
        processor.append(time.process_time() - used)
    return scores, {
        "wall_s": round(statistics.median(wall), 3),
        "processor_s": round(statistics.median(processor), 3),
        "wall_runs_s": [round(t, 3) for t in wall],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="?", type=Path, default=DEMO)
    parser.add_argument("--encoder", choices=("hash", "minilm"), default="hash")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    encoder = text_encoder(options.encoder)
    module = PaperNet(PaperConfig(text_encoder=options.encoder)).eval()
    recipe = Recipe(module, encoder)
    found: dict[str, Any] = {}
    ours = {}
    for precision in ("float32", "bfloat16"):
        scorer = PaperScorer(module.config, module.arrays(), encoder=encoder, precision=precision)
        ours[precision], found[f"ours_{precision}"] = times(
            lambda scorer=scorer: scorer.score(load([options.trace]), WINDOWS).scores,
            options.repeats,
        )
    # Long enough for one run to tell.
    expected, found["recipe"] = times(lambda: recipe.score(options.trace), 1)
    differences = {name: float(np.abs(scores - expected).max()) for name, scores in ours.items()}
    document = {
        "trace": options.trace.name,
        "encoder": options.encoder,
        "threads": options.threads,
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "date": date.today().isoformat(),
        **found,
        "largest_difference": differences,
        "times_as_fast_wall": round(found["recipe"]["wall_s"] / found["ours_float32"]["wall_s"], 2),
        "times_as_fast_processor": round(
            found["recipe"]["processor_s"] / found["ours_float32"]["processor_s"], 2
        ),
    }
    text = json.dumps(document, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    if differences["float32"] > 1e-5:
        raise SystemExit("the answers are not equal")


if __name__ == "__main__":
    main()
