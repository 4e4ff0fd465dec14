"""Integrations that record from inside of training libraries, for as long as a training runs.

Each library has a module, which imports it when it is imported itself or used, and no other one.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = ("accelerate", "deepspeed", "lightning", "transformers")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
