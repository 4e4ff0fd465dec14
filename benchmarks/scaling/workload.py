"""A model of some size, for commands that predict one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

WIDTH, LAYERS, LENGTH, BATCH = 1024, 12, 512, 8


def encoder() -> dict[str, Any]:
    """Trained on sequences of vectors."""
    layer = nn.TransformerEncoderLayer(WIDTH, WIDTH // 64, 4 * WIDTH, batch_first=True)
    return {
        "model": nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        "inputs": (torch.zeros(BATCH, LENGTH, WIDTH),),
        "loss": lambda out: out.square().mean(),
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    }
