"""Decision trees over window features, as they lie in a file of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.diagnosis.scoring.weight_files import Weights
from torchtraceap.errors import SchemaError

__all__ = ["Z", "columns_of", "trees_of"]

Z = " z"
"""Behind the name of a feature: its z-score."""
_PARTS: Mapping[str, type] = {
    "feature": np.int32, "threshold": np.float64, "left": np.int32, "right": np.int32,
    "leaf": np.float64, "root": np.int32, "output": np.int32,
}  # fmt: skip


def trees_of(weights: Weights, prefix: str, columns: int, outputs: int) -> _core.Trees:
    """The trees `prefix`.

    Raises:
        SchemaError: They are missing or damaged.
    """
    parts = {part: weights.array(f"{prefix}.{part}", kind) for part, kind in _PARTS.items()}
    try:
        return _core.Trees(**parts, columns=columns, outputs=outputs)
    except SchemaError as error:
        raise SchemaError(f"{weights.path}: {prefix}: {error}") from None


def columns_of(
    wanted: Sequence[str], names: Sequence[str], values: Array, zscores: Array
) -> npt.NDArray[np.float64]:
    """float64 `[windows, columns]`: chosen features, in the precision that trees were trained with.

    Args:
        wanted: Names of features, with `Z` behind them for their z-scores.
        names: Of all features.
        values: `[windows, features]`.
        zscores: The same.

    Raises:
        SchemaError: There is no such feature: the weights belong to another version.
    """
    places = {name: place for place, name in enumerate((*names, *(name + Z for name in names)))}
    missing = [name for name in wanted if name not in places]
    if missing:
        raise SchemaError(f"these weights want features that there are not: {', '.join(missing)}")
    every = np.concatenate([values, zscores], axis=1, dtype=np.float32)
    chosen = every[:, [places[name] for name in wanted]]
    return np.ascontiguousarray(chosen, dtype=np.float64)
