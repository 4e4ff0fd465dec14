"""Sums of regression trees, evaluated with NumPy; they are fitted elsewhere.

The text form is a JSON object: trees one after the other, nodes in pre-order (a node, its left
part, its right part). A node that splits holds the number of its feature and of one of that
feature's cuts; a leaf holds -1 and its value in units of `unit`. The two lists of numbers are
8-bit and 16-bit integers, compressed with zlib and written in base64.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap.core.records import dataclass

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
        roots, right, depth = _shape(leaf)
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


def _shape(leaf: npt.NDArray[np.bool_]) -> tuple[IntArray, IntArray, int]:
    """Roots, right children (a leaf's is itself) and the longest way down, from pre-order."""
    # Nodes whose right child is still to come, before each node: it grows by one at a node that has
    # children, and falls by one at a leaf; a tree ends with the leaf that finds none.
    change = np.where(leaf, -1, 1)
    waiting = np.cumsum(change) - change
    ends = np.flatnonzero(np.diff(np.minimum.accumulate(np.append(0, np.cumsum(change)))))
    roots = np.append(0, ends[:-1] + 1) if len(ends) else np.zeros(0, dtype=np.int64)
    tree = np.searchsorted(ends, np.arange(leaf.size), side="left")
    # The right child comes where as many are waiting again for the first time.
    order = np.lexsort((waiting, tree))
    behind = np.empty(leaf.size, dtype=np.int64)
    behind[order] = np.append(order[1:], 0)[: leaf.size]
    right = np.where(leaf, np.arange(leaf.size), behind)
    depth, level = 0, roots[~leaf[roots]]
    while len(level):
        below = np.concatenate([level + 1, right[level]])
        depth, level = depth + 1, below[~leaf[below]]
    return roots.astype(np.int32), right.astype(np.int32), depth


def _unpacked(text: str, dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=dtype)
