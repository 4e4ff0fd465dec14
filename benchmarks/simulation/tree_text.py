"""Writes fitted trees in the form that `torchtraceap.ops.durations.trees` reads and describes."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Node", "encode_trees"]


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a tree to be written; a leaf has no children."""

    value: float = 0.0
    feature: int = -1
    cut: float = 0.0
    left: Node | None = None
    """Where the feature is at most the cut."""
    right: Node | None = None


def encode_trees(trees: Sequence[Node], base: float, features: int) -> dict[str, Any]:
    """The JSON form; leaf values are rounded to a 32,000th of the largest.

    Args:
        trees: Their roots.
        base: What every row starts from.
        features: How many there are, 127 at most.
    """
    nodes = [node for tree in trees for node in _pre_order(tree)]
    unit = max((abs(node.value) for node in nodes if node.left is None), default=1.0) / 32000
    unit = float(f"{unit or 1.0:.6g}")
    cuts = [sorted({n.cut for n in nodes if n.feature == index}) for index in range(features)]
    place = [{cut: at for at, cut in enumerate(of_feature)} for of_feature in cuts]
    numbers = [
        round(node.value / unit) if node.left is None else place[node.feature][node.cut]
        for node in nodes
    ]
    return {
        "base": base,
        "unit": unit,
        "cuts": [[float(f"{cut:.12g}") for cut in of_feature] for of_feature in cuts],
        "feature": _packed([node.feature for node in nodes], "i1"),
        "number": _packed(numbers, "<i2"),
    }


def _packed(numbers: Sequence[int], dtype: str) -> str:
    raw = np.array(numbers).astype(dtype, casting="unsafe").tobytes()
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def _pre_order(root: Node) -> list[Node]:
    found, stack = [], [root]
    while stack:
        node = stack.pop()
        found.append(node)
        if node.left is not None and node.right is not None:
            stack += [node.right, node.left]
    return found
