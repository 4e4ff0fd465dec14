"""Public names of a package that are imported on first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    A package assigns them in the `else` of an `if TYPE_CHECKING` whose imports say the same to type
    checkers. A name must not be that of a module of the package: importing the module would put it
    in the place of the name.

    Args:
        package: Its `__name__`.
        names: The names by module; a module that begins with a dot is of the package.
    """
    modules = {name: module for module, group in names.items() for name in group}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name], package), name)

    exported = sorted(modules)
    return find, lambda: exported, exported
