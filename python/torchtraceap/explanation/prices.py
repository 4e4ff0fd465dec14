"""Prices of tokens, from a file of the user: none are built in, as they change every month.

gpt-4.1:
  input: 2.00    # US dollars per million tokens of prompts
  output: 8.00   # the same of answers
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.records import dataclass
from torchtraceap.errors import OptionError

__all__ = ["Price", "read_prices"]

_MOST_BYTES = 1 << 20
_NAMES = {"input", "output"}


@dataclass(frozen=True, slots=True)
class Price:
    """Price of one model in US dollars per million tokens."""

    input: float
    output: float

    def cost_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        return (self.input * prompt_tokens + self.output * completion_tokens) / 1e6


def read_prices(path: PathLike) -> Mapping[str, Price]:
    """Prices by model, from YAML or JSON.

    Raises:
        OptionError: It can't be read, or holds something else.
    """
    document = _document(Path(path))
    if not isinstance(document, dict):
        raise OptionError(f"{path}: prices are a table of models, each with input and output")
    return {str(model): _price(path, model, entry) for model, entry in document.items()}


def _document(path: Path) -> Any:
    import yaml

    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise OptionError(f"{path}: can't be read: {error.strerror or error}") from None
    if len(content) > _MOST_BYTES:
        raise OptionError(f"{path}: is too large for a file of prices")
    try:
        return yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        raise OptionError(f"{path}: is neither YAML nor JSON") from None


def _price(path: PathLike, model: object, entry: object) -> Price:
    if not isinstance(entry, dict) or set(entry) != _NAMES:
        raise OptionError(f"{path}: {model}: input and output are needed, and nothing else")
    values = [entry["input"], entry["output"]]
    if not all(_is_amount(value) for value in values):
        raise OptionError(f"{path}: {model}: prices are numbers of dollars, at least 0")
    return Price(float(values[0]), float(values[1]))


def _is_amount(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 <= value <= 1e9 and math.isfinite(value)
