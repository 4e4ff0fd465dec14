"""Sums of regression trees, evaluated with NumPy; fit_durations.py in benchmarks/ fits them.

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
    """Boosted regression trees: the value of a row is `base` plus the values of its leaves."""

    base: float
    roots: IntArray
    feature: IntArray
    """Feature that each node compares; 0 for leaves, which lead back to themselves."""
    cut: FloatArray
    left: IntArray
    """Next node if the feature is at most the cut; the node itself for leaves."""
    right: IntArray
    value: FloatArray
    """Values of leaves; 0 for other nodes."""
    depth: int

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> BoostedTrees:
        """Read the JSON form."""
        feature = _unpack(text["feature"], "i1").astype(np.int32)
        number = _unpack(text["number"], "<i2").astype(np.int64)
        leaf = feature < 0
        cut = np.full(feature.size, np.inf)
        for index, cuts in enumerate(text["cuts"]):
            rows = feature == index
            cut[rows] = np.array(cuts, dtype=np.float64)[number[rows]]
        roots, right, depth = _links_of_preorder(leaf)
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
        """Return float64 `[n]` for `[n, features]` with the features in the order of fitting."""
        step = max(1, _AT_ONCE // max(1, self.roots.size))
        values = np.empty(len(rows))
        for begin in range(0, len(rows), step):
            part = rows[begin : begin + step]
            node = np.broadcast_to(self.roots, (len(part), self.roots.size))
            which = np.arange(len(part))[:, None]
            for _ in range(self.depth):
                left = part[which, self.feature[node]] <= self.cut[node]
                node = np.where(left, self.left[node], self.right[node])
            values[begin : begin + step] = self.base + self.value[node].sum(axis=1)
        return values


def _links_of_preorder(leaf: npt.NDArray[np.bool_]) -> tuple[IntArray, IntArray, int]:
    """Return the roots, the right children (leaves point to themselves) and the depth of the trees.

    `leaf` marks the leaves among the nodes in pre-order.
    """
    # Number of nodes that wait for their right child, before each node. It grows by one at an inner
    # node and falls by one at a leaf; a tree ends at the leaf that finds none waiting.
    change = np.where(leaf, -1, 1)
    waiting = np.cumsum(change) - change
    ends = np.flatnonzero(np.diff(np.minimum.accumulate(np.append(0, np.cumsum(change)))))
    roots = np.append(0, ends[:-1] + 1) if len(ends) else np.zeros(0, dtype=np.int64)
    tree = np.searchsorted(ends, np.arange(leaf.size), side="left")
    # The right child is the first later node at which as many are waiting as at the node itself.
    order = np.lexsort((waiting, tree))
    behind = np.empty(leaf.size, dtype=np.int64)
    behind[order] = np.append(order[1:], 0)[: leaf.size]
    right = np.where(leaf, np.arange(leaf.size), behind)
    depth, level = 0, roots[~leaf[roots]]
    while len(level):
        below = np.concatenate([level + 1, right[level]])
        depth, level = depth + 1, below[~leaf[below]]
    return roots.astype(np.int32), right.astype(np.int32), depth


def _unpack(text: str, dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=dtype)
