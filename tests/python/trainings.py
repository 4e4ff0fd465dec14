"""Tiny trainings on the CPU, and how their traces are read."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def torch_on_one_thread() -> Any:
    """torch, or the test is skipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch without NumPy warns, as do its own uses of itself
        torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return torch


def library(name: str) -> Any:
    """A training library, or the test is skipped; what it warns of at its import is its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed")


def slow_optimizer_step(torch: Any, width: int = 64) -> Callable[[], None]:
    """A step of which the optimizer takes much, one parameter at a time."""
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(12)])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    batch = torch.randn(8, width)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()

    return step


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def names(path: Path, start: str) -> list[str]:
    """The names of events that begin so, in the order of time."""
    found = [e for e in events(path) if e.get("name", "").startswith(start) and "ts" in e]
    return [e["name"] for e in sorted(found, key=lambda e: e["ts"])]


def traces(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*_rank*.json.gz"))
