"""Trees of LightGBM and scikit-learn as the flat arrays that the core walks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array

__all__ = ["Seeing", "TreeWriter", "boosted_trees", "isolation_trees"]


class TreeWriter:
    """Collects splits and leaves; every child is written behind its parent."""

    def __init__(self) -> None:
        self._splits: list[list[float]] = []
        self._leaves: list[float] = []
        self._roots: list[tuple[int, int]] = []

    def add_leaf(self, value: float) -> int:
        self._leaves.append(value)
        return ~(len(self._leaves) - 1)

    def add_split(self, feature: int, threshold: float) -> int:
        self._splits.append([feature, threshold, 0, 0])
        return len(self._splits) - 1

    def join(self, split: int, left: int, right: int) -> None:
        self._splits[split][2:] = left, right

    def add_tree(self, root: int, output: int) -> None:
        self._roots.append((root, output))

    def arrays(self) -> dict[str, Array]:
        """What `scoring.trees` reads."""
        splits = np.array(self._splits, dtype=np.float64).reshape(-1, 4)
        roots = np.array(self._roots, dtype=np.int32).reshape(-1, 2)
        return {
            "feature": splits[:, 0].astype(np.int32),
            "threshold": splits[:, 1].copy(),
            "left": splits[:, 2].astype(np.int32),
            "right": splits[:, 3].astype(np.int32),
            "leaf": np.array(self._leaves, dtype=np.float64),
            "root": roots[:, 0].copy(),
            "output": roots[:, 1].copy(),
        }


@dataclass(frozen=True)
class Seeing:
    """A booster of LightGBM, and which columns it sees."""

    booster: Any
    columns: Array
    """int `[n]`."""

    def predict(self, columns: Array) -> Array:
        """float64 `[rows]` or `[rows, classes]`: raw scores."""
        return np.asarray(self.booster.predict(columns[:, self.columns], raw_score=True))


def boosted_trees(boosters: Iterable[Seeing], outputs: int) -> dict[str, Array]:
    """Trees of boosters; several are averaged.

    Args:
        boosters: Trained without missing values and without categories.
        outputs: Trees of one round, which take turns.
    """
    chosen = list(boosters)
    writer = TreeWriter()
    for seeing in chosen:
        for place, tree in enumerate(seeing.booster.dump_model()["tree_info"]):
            weight = 1.0 / len(chosen)
            root = _add_boosted(writer, tree["tree_structure"], seeing.columns, weight)
            writer.add_tree(root, place % outputs)
    return writer.arrays()


def _add_boosted(writer: TreeWriter, node: dict[str, Any], columns: Array, weight: float) -> int:
    if "leaf_value" in node:
        return writer.add_leaf(node["leaf_value"] * weight)
    if node["decision_type"] != "<=" or node["missing_type"] not in ("None", "NaN"):
        raise ValueError(f"a split of another kind: {node['decision_type']}")
    split = writer.add_split(int(columns[node["split_feature"]]), node["threshold"])
    left, right = (
        _add_boosted(writer, node[side], columns, weight) for side in ("left_child", "right_child")
    )
    writer.join(split, left, right)
    return split


def isolation_trees(forest: Any) -> dict[str, Array]:
    """Trees of an isolation forest of scikit-learn. 2 to the power of minus their sum is how
    strange a row is, as Liu, Ting and Zhou define it (2008)."""
    writer = TreeWriter()
    scale = 1.0 / (len(forest.estimators_) * mean_depth(int(forest.max_samples_)))
    for estimator, columns in zip(forest.estimators_, forest.estimators_features_, strict=True):
        writer.add_tree(_add_isolation(writer, estimator.tree_, columns, scale), 0)
    return writer.arrays()


def _add_isolation(writer: TreeWriter, tree: Any, columns: Array, scale: float) -> int:
    """Walks from the root, so that children come behind their parents."""

    def add(node: int, depth: int) -> int:
        left, right = int(tree.children_left[node]), int(tree.children_right[node])
        if left < 0:
            return writer.add_leaf(scale * (depth + mean_depth(int(tree.n_node_samples[node]))))
        split = writer.add_split(int(columns[tree.feature[node]]), float(tree.threshold[node]))
        writer.join(split, add(left, depth + 1), add(right, depth + 1))
        return split

    return add(0, 0)


def mean_depth(rows: int) -> float:
    """Of an unsuccessful search in a binary tree of so many rows."""
    if rows <= 1:
        return 0.0
    if rows == 2:
        return 1.0
    return 2.0 * (math.log(rows - 1.0) + np.euler_gamma) - 2.0 * (rows - 1.0) / rows
