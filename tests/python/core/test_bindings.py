"""The compiled module says what its functions do and what they take."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from torchtraceap import _core


def callables() -> Iterator[tuple[str, str]]:
    """Names of the public functions and methods, with their docstrings."""
    classes = [cls for _, cls in inspect.getmembers(_core, inspect.isclass)]
    for owner in (_core, *classes):
        for name, member in vars(owner).items():
            if inspect.isroutine(member) and not name.startswith("_"):
                yield f"{owner.__name__}.{name}", str(member.__doc__)


def test_everything_public_is_documented() -> None:
    documented = dict(callables())
    assert len(documented) > 50
    # pybind11 puts the signature on the first line.
    assert [name for name, doc in documented.items() if len(doc.splitlines()) < 2] == []


def test_every_argument_has_a_name() -> None:
    assert [name for name, doc in callables() if re.search(r"\barg\d+:", doc)] == []
