"""The networks in LibTorch. Built where torch is installed; without it nothing else is missing.

`native` uses torch's C++ libraries, and not its Python part, which takes a second to import.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from torchtraceap.errors import MissingDependencyError

__all__ = ["native"]

_HOW = (
    "install torch and build torchtraceap next to it: "
    "pip install torch scikit-build-core pybind11, then pip install --no-build-isolation ."
)


def _load() -> ModuleType:
    try:
        found = version("torch")
    except PackageNotFoundError:
        raise MissingDependencyError(f"the networks need torch, which is absent: {_HOW}") from None
    try:
        module = import_module("torchtraceap._model.native")
    except ModuleNotFoundError:
        raise MissingDependencyError(f"this build is without the networks: {_HOW}") from None
    except ImportError as error:  # it was linked with libraries of another torch
        raise MissingDependencyError(
            f"the networks don't fit torch {found}: {_HOW} ({error})"
        ) from None
    if found.split(".")[:2] != module.TORCH_VERSION.split("."):
        raise MissingDependencyError(
            f"the networks were built with torch {module.TORCH_VERSION}, here is {found}: {_HOW}"
        )
    return module


native = _load()
