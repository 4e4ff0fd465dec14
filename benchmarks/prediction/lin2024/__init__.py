"""The source's own algorithm, to stand beside ours in tables.

Lin et al., "Towards Universal Performance Modeling for Machine Learning Training on Multi-GPU
Platforms" (IEEE TPDS 2024), written from its description: per rank one clock for the host and the
fronts of two streams, host overheads T1 to T5, and two rules of synchronisation. Kernel times are
not the source's (its nets and tables are not public) but those of durations/.
"""

from lin2024.execution import ops_of_ranks
from lin2024.overheads import (
    Overheads,
    launches_by_name,
    measure_overheads,
)
from lin2024.simulate import (
    BaselineOp,
    BaselineTimes,
    Piece,
    simulate,
)

__all__ = [
    "BaselineOp",
    "BaselineTimes",
    "Overheads",
    "Piece",
    "launches_by_name",
    "measure_overheads",
    "ops_of_ranks",
    "simulate",
]
