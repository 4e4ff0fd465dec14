"""Finds the repeated blocks of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["model_blocks"]


def model_blocks(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the blocks by name in the order of the model, none nested in another.

    They are what the model says that should stay whole (`_no_split_modules` of transformers), else
    the members of its outermost lists and sequences in which a type of layer recurs.
    """
    whole = set(getattr(model, "_no_split_modules", None) or ())
    if whole:
        named = {n: m for n, m in model.named_modules() if type(m).__name__ in whole}
        if named:
            return _outermost(named)
    return _outermost(dict(_members(model)))


def _members(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    import torch

    for name, module in model.named_modules():
        if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        members = {
            child: layer
            for child, layer in module.named_children()
            if any(True for _ in layer.parameters())
        }
        types = Counter(map(type, members.values()))
        if types and types.most_common(1)[0][1] > 1:
            for child, layer in members.items():
                yield f"{name}.{child}".lstrip("."), layer


def _outermost(named: dict[str, torch.nn.Module]) -> dict[str, torch.nn.Module]:
    def is_inside(name: str) -> bool:
        parts = name.split(".")
        return any(".".join(parts[:end]) in named for end in range(1, len(parts)))

    return {name: module for name, module in named.items() if not is_inside(name)}
