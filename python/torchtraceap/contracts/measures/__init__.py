"""Counts and times of a trace by one vocabulary, for contracts and benchmarks.

`vocabulary.py` says what there is, `measurement.py` measures it; the facts come from the tree and
the analyses, one module here for each kind of question. Importing this package loads no NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.contracts.measures.measurement import Measurement as Measurement
    from torchtraceap.contracts.measures.measurement import counts as counts
    from torchtraceap.contracts.measures.measurement import measure as measure
    from torchtraceap.contracts.measures.vocabulary import MEASURES as MEASURES
    from torchtraceap.contracts.measures.vocabulary import Measure as Measure
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".measurement": ("Measurement", "counts", "measure"),
            ".vocabulary": ("MEASURES", "Measure"),
        },
    )
