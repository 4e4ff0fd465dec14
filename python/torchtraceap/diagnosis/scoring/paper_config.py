"""What a network of the paper consists of, and the file that holds it: safetensors with this
configuration as metadata. Neither torch nor pickle is involved."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap.core.aliases import PathLike
from torchtraceap.diagnosis.scoring.text_encoders import ENCODERS
from torchtraceap.errors import MissingDependencyError, MissingFileError, OptionError, SchemaError

__all__ = ["CELLS", "UNKNOWN_PLATFORM", "PaperConfig", "Weights", "read_paper_weights"]

Weights = dict[str, npt.NDArray[np.float32]]
UNKNOWN_PLATFORM = "unknown"
_FORMAT = "torchtraceap.paper/1"
_NEEDED = "weights of networks need safetensors: pip install safetensors"


@dataclass(frozen=True)
class PaperConfig:
    """Sizes, parts and readings; docs/detectors.md says what each stands for in the paper."""

    text_encoder: str = "hash"
    """One of `text_encoders.ENCODERS`."""
    text_width: int = 384
    """Of its vectors."""
    width: int = 128
    """d; tokens and windows have 2d."""
    layers: int = 6
    heads: int = 8
    feed_forward: int = 1024
    platforms: tuple[str, ...] = (UNKNOWN_PLATFORM,)
    """Names of devices as `devices/` has them; what is not among them is the first."""
    platform_tokens: int = 4
    adapter: bool = True
    """Else names pass a fixed projection (Table 5)."""
    transformer: bool = True
    """Else a window is the mean of its tokens."""
    relation: bool = True
    """Else windows don't see each other."""
    position: str = "clamped"
    """`literal`: Eq. 6 as printed, min(0, start - window), which is 0 for every event."""
    cap: int = 1024
    """Most events of a window."""

    def __post_init__(self) -> None:
        sizes = (self.text_width, self.width, self.layers, self.heads, self.feed_forward)
        if min(*sizes, self.platform_tokens, self.cap, len(self.platforms)) < 1:
            raise OptionError("sizes of the network must be positive")
        if self.width % (2 * self.heads) or self.width % 4:
            raise OptionError("width must be a multiple of twice the heads and of 4")
        if self.position not in ("clamped", "literal"):
            raise OptionError(f"position is clamped or literal, not {self.position!r}")
        if self.text_encoder not in ENCODERS:
            raise OptionError(f"text_encoder is one of {', '.join(ENCODERS)}")

    @property
    def network(self) -> dict[str, Any]:
        """What `_model.native.PaperConfig` takes."""
        names = "text_width width layers heads feed_forward platform_tokens adapter transformer"
        sizes = {name: getattr(self, name) for name in [*names.split(), "relation"]}
        return {**sizes, "platforms": len(self.platforms)}

    def platform_code(self, name: str | None) -> int:
        """Where a device is among the platforms; 0 where it is not."""
        return self.platforms.index(name) if name in self.platforms else 0

    def metadata(self) -> dict[str, str]:
        """Of a safetensors file."""
        return {"format": _FORMAT, "config": json.dumps(dataclasses.asdict(self), sort_keys=True)}

    @classmethod
    def of_metadata(cls, metadata: dict[str, str] | None) -> PaperConfig:
        """The reverse.

        Raises:
            SchemaError: The file is of something else, or of another version.
        """
        found = metadata or {}
        if found.get("format") != _FORMAT:
            raise SchemaError(f"weights: not of the format {_FORMAT}")
        try:
            fields = json.loads(found["config"])
            return cls(**{**fields, "platforms": tuple(fields["platforms"])})
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"weights: their configuration can't be read: {error}") from error


CELLS: dict[str, dict[str, bool]] = {
    "+".join(part for part, there in zip(("adapter", "transformer", "relation"), cell, strict=True)
             if there) or "none":
    dict(zip(("adapter", "transformer", "relation"), cell, strict=True))
    for cell in [(a, t, r) for a in (False, True) for t in (False, True) for r in (False, True)]
}  # fmt: skip
"""Table 5: parts of the network by the name of the cell."""


def read_paper_weights(path: PathLike) -> tuple[PaperConfig, Weights]:
    """Configuration and arrays of a file.

    Raises:
        MissingFileError: There is no such file.
        MissingDependencyError: safetensors is not installed.
        SchemaError: It holds something else. Shapes are checked by the network.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingDependencyError(_NEEDED) from error
    try:
        with safe_open(path, framework="np") as file:
            config = PaperConfig.of_metadata(file.metadata())
            arrays = {name: np.asarray(file.get_tensor(name), np.float32) for name in _names(file)}
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: no such file of weights") from error
    except (SafetensorError, OSError) as error:
        raise SchemaError(f"{path}: not a file of weights: {error}") from error
    return config, arrays


def _names(file: Any) -> list[str]:
    return list(file.keys())
