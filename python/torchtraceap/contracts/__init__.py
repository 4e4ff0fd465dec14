"""Performance contracts: limits on what a trace may hold, checked in tests and on stored traces.

`Limit` and `Contract` say what may be, `check` says what is (`CheckResult`), `file.py` reads and
writes contract files, `output/` writes results for other programs. Importing this package, limits
and contracts loads no NumPy; checking does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.contracts.checker import check as check
    from torchtraceap.contracts.file import ContractFile as ContractFile
    from torchtraceap.contracts.file import read_contracts as read_contracts
    from torchtraceap.contracts.limits import Contract as Contract
    from torchtraceap.contracts.limits import Limit as Limit
    from torchtraceap.contracts.measures import MEASURES as MEASURES
    from torchtraceap.contracts.measures import counts as counts
    from torchtraceap.contracts.measures import measure as measure
    from torchtraceap.contracts.output import annotation_lines as annotation_lines
    from torchtraceap.contracts.output import junit_of as junit_of
    from torchtraceap.contracts.output import markdown_of as markdown_of
    from torchtraceap.contracts.output import sarif_of as sarif_of
    from torchtraceap.contracts.result import CheckResult as CheckResult
    from torchtraceap.contracts.result import KeyResult as KeyResult
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".checker": ("check",),
            ".file": ("ContractFile", "read_contracts"),
            ".limits": ("Contract", "Limit"),
            ".measures": ("MEASURES", "counts", "measure"),
            ".output": ("annotation_lines", "junit_of", "markdown_of", "sarif_of"),
            ".result": ("CheckResult", "KeyResult"),
        },
    )
