"""Sums of regression trees, evaluated with NumPy; they are fitted elsewhere.

The text form is a JSON object: trees one after the other, nodes in pre-order (a node, its left
part, its right part). A node that splits holds the number of its feature and of one of that
feature's cuts; a leaf holds -1 and its value in units of `unit`. The two lists of numbers are
8-bit and 16-bit integers, compressed with zlib and written in base64.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BoostedTrees"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

_AT_ONCE = 1 << 21


@dataclass(frozen=True, slots=True)
class BoostedTrees:
    """Value of a row = base + the sum of the leaf values that it falls into."""

    base: float
    roots: IntArray
    feature: IntArray
    """Of each node; a leaf asks feature 0 and stays where it is."""
    cut: FloatArray
    left: IntArray
    """Node to go to where the feature is at most the cut; of a leaf itself."""
    right: IntArray
    value: FloatArray
    """Of leaves, else 0."""
    depth: int

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> BoostedTrees:
        """Reads the text form."""
        feature = _unpacked(text["feature"], "i1").astype(np.int32)
        number = _unpacked(text["number"], "<i2").astype(np.int64)
        leaf = feature < 0
        cut = np.full(feature.size, np.inf)
        for index, cuts in enumerate(text["cuts"]):
            rows = feature == index
            cut[rows] = np.array(cuts, dtype=np.float64)[number[rows]]
        roots, right, depth = _shape(leaf.tolist())
        return cls(
            base=float(text["base"]),
            roots=roots,
            feature=np.where(leaf, 0, feature).astype(np.int32),
            cut=cut,
            left=np.where(leaf, np.arange(leaf.size), np.arange(1, leaf.size + 1)).astype(np.int32),
            right=right,
            value=np.where(leaf, number * float(text["unit"]), 0.0),
            depth=depth,
        )

    def predict(self, rows: FloatArray) -> FloatArray:
        """One value per row; columns are the features in the order of fitting."""
        step = max(1, _AT_ONCE // max(1, self.roots.size))
        parts = [self._predict(rows[at : at + step]) for at in range(0, len(rows), step)]
        return np.concatenate(parts) if parts else np.empty(0)

    def _predict(self, rows: FloatArray) -> FloatArray:
        node = np.broadcast_to(self.roots, (len(rows), self.roots.size))
        which = np.arange(len(rows))[:, None]
        for _ in range(self.depth):
            left = rows[which, self.feature[node]] <= self.cut[node]
            node = np.where(left, self.left[node], self.right[node])
        return np.asarray(self.base + self.value[node].sum(axis=1))


def _shape(leaf: Sequence[bool]) -> tuple[IntArray, IntArray, int]:
    """Roots, right children (a leaf's is itself) and the longest way down, from pre-order."""
    right = list(range(len(leaf)))
    roots: list[int] = []
    waiting: list[tuple[int, int]] = []  # nodes whose right child is still to come, their depth
    depth, level, fresh = 0, 0, True
    for node, is_leaf in enumerate(leaf):
        if fresh:
            roots.append(node)
            level, fresh = 0, False
        depth = max(depth, level)
        if not is_leaf:
            waiting.append((node, level))
            level += 1
        elif waiting:
            parent, above = waiting.pop()
            right[parent] = node + 1
            level = above + 1
        else:
            fresh = True
    return np.array(roots, np.int32), np.array(right, np.int32), depth


def _unpacked(text: str, dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=dtype)
