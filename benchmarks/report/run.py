"""The whole set of tables: python benchmarks/report/run.py [TRACE...]

`traceap` makes every table that it has. `traceap_as_tracelens` and `traceap_as_hta` make what the
other tool makes, so that their ratios compare equal answers.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness

HTA_ROUNDS = "HTA rounds to whole microseconds and counts synchronisation rows"
TRACELENS_LINKS = "TraceLens adds doubles, and leaves out events without a launch"


def allowed(competitor: str, answer: str) -> tuple[str, float]:
    """Why a competitor may differ by its own definitions, and up to which share."""
    if competitor == "hta":
        return HTA_ROUNDS, 0.15
    if competitor == "tracelens":
        return TRACELENS_LINKS, 0.02
    return "", 0


if __name__ == "__main__":
    harness.main(Path(__file__).resolve().parent, allowed)
