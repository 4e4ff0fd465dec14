"""How good the second stage is, on labelled data: what judges name, and what doubts change.

`naming` and `parts` write documents of scores for `torchtraceap evaluate`, which alone computes
metrics; `loop` counts what scoring again changes. docs/benchmark.md says how each is read.
"""

from __future__ import annotations

__all__: list[str] = []
