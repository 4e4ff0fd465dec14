"""Statistics of comparisons: pure functions on arrays. docs/comparing.md has the formulas."""

from __future__ import annotations

from typing import Any

from torchtraceap.errors import MissingDependencyError


def scipy_stats() -> Any:
    """Return the module `scipy.stats`, which takes long to import.

    Raises:
        MissingDependencyError: SciPy is not installed.
    """
    try:
        from scipy import stats
    except ImportError:
        raise MissingDependencyError(
            "statistics of runs need SciPy: pip install 'torchtraceap[bench]'"
        ) from None
    return stats
