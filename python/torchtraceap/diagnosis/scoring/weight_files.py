"""Files of weights: safetensors, which hold arrays and text and run no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.records import dataclass
from torchtraceap.core.stored import check_file, parse_json
from torchtraceap.errors import MissingDependencyError, SchemaError

__all__ = ["Weights", "read_weights", "shipped", "write_weights"]

_ABOUT = "torchtraceap"
"""Key of our metadata, as JSON."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Arrays by name, and their description."""

    path: str
    arrays: dict[str, Array]
    about: dict[str, Any]

    def array(self, name: str, dtype: type) -> Array:
        """Return an array of one dimension.

        Raises:
            SchemaError: It is missing, or of another type or number of dimensions.
        """
        found = self.arrays.get(name)
        if found is None or found.dtype != dtype or found.ndim != 1:
            raise SchemaError(
                f"{self.path}: {name} is not there as {np.dtype(dtype)} of 1 dimensions"
            )
        return found

    def finite(self, name: str, count: int) -> Array:
        """Return a float64 array `[count]` of finite numbers; raises SchemaError otherwise."""
        found = self.array(name, np.float64)
        if len(found) != count or not np.isfinite(found).all():
            raise SchemaError(f"{self.path}: {name} are not {count} finite numbers")
        return found

    def entry(self, key: str, kind: type) -> Any:
        """Return a value of the description.

        Raises:
            SchemaError: It is missing, or of another kind.
        """
        found = self.about.get(key)
        if not isinstance(found, kind):
            raise SchemaError(f"{self.path}: it does not say {key!r} as {kind.__name__}")
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts; raises SchemaError otherwise."""
        found = self.entry(key, list)
        if not all(isinstance(text, str) for text in found):
            raise SchemaError(f"{self.path}: {key!r} is no list of texts")
        return tuple(found)


def shipped(name: str) -> Path:
    """Return the path of the weights of a scorer that come with the package."""
    return Path(__file__).parent / "weights" / f"{name}.safetensors"


def read_weights(path: PathLike) -> Weights:
    """Read a file of weights.

    Raises:
        MissingDependencyError: safetensors is not installed.
        MissingFileError: There is no such file.
        SchemaError: It is damaged.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise MissingDependencyError(
            "learned scorers need safetensors: pip install safetensors"
        ) from None
    check_file(path)
    try:
        with safe_open(str(path), framework="np") as file:
            text = (file.metadata() or {}).get(_ABOUT, "null")
            arrays = {name: _widened(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise SchemaError(f"{path}: these weights can't be read ({error})") from None
    if text == "null":
        raise SchemaError(f"{path}: these weights do not say what they are")
    return Weights(str(path), arrays, parse_json(text, f"{path}: {_ABOUT}"))


def _widened(array: Array) -> Array:
    """Return float16 as float32: networks are stored in half of their size and compute in whole."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def write_weights(path: PathLike, arrays: Mapping[str, Array], about: Mapping[str, Any]) -> None:
    """Write a file of weights; the same arrays give the same bytes."""
    from safetensors.numpy import save

    from torchtraceap.core.writing import replacing_stream

    whole = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
    data = save(whole, {_ABOUT: json.dumps(about, sort_keys=True)})
    with replacing_stream(path) as stream:
        stream.write(data)
