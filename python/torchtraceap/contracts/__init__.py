"""Performance contracts: limits on what a trace may hold, checked in tests and on stored traces.

`Limit` and `Contract` say what may be, `check` says what is (`CheckResult`), `file.py` reads and
writes contract files, `output/` writes results for other programs. Importing this package, limits
and contracts loads no NumPy; checking does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtraceap.contracts.checker import check
    from torchtraceap.contracts.file import ContractFile, read_contracts
    from torchtraceap.contracts.limits import Contract, Limit
    from torchtraceap.contracts.result import CheckResult, KeyResult

__all__ = [
    "CheckResult",
    "Contract",
    "ContractFile",
    "KeyResult",
    "Limit",
    "check",
    "read_contracts",
]

_MODULES = {
    "CheckResult": "result",
    "Contract": "limits",
    "ContractFile": "file",
    "KeyResult": "result",
    "Limit": "limits",
    "check": "checker",
    "read_contracts": "file",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
