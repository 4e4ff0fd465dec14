"""How much of a step hangs on each kernel, operator or family of operators.

A kernel may fill a tenth of a step that would be no shorter without it, because the host is behind
it, and another may hold up everything. So each group of GPU work is replayed a tenth shorter and a
tenth longer, with everything else as it was: the step's relative change over that of the work.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import OptionError
from torchtraceap.ops.kernel_names import canonical_name
from torchtraceap.simulation.edits.asked import computing_rows
from torchtraceap.simulation.edits.gpu_work import families_of
from torchtraceap.simulation.edits.view import RankView, views
from torchtraceap.simulation.run import SimulatedRun

__all__ = ["GROUPS", "step_shares"]

GROUPS = ("kernel", "operator", "family")
_SCALE = 0.1
_MOST = 20
"""Groups that are replayed, those with the most GPU time."""


def step_shares(run: SimulatedRun, by: str = "kernel") -> ColumnTable:
    """Return the groups with the most GPU time, those first that the step follows most.

    Args:
        run: A run.
        by: kernel (by canonical name), operator (that launched it) or family.

    Raises:
        OptionError: Another word.
    """
    if by not in GROUPS:
        raise OptionError(f"shares are by {', '.join(GROUPS)}, not {by!r}")
    edges: dict[str, list[Array]] = defaultdict(list)
    count: dict[str, int] = defaultdict(int)
    for view in views(run):
        rows = computing_rows(view)
        own = view.duration_edges(rows)
        rows, own = rows[own >= 0], own[own >= 0]
        names = _names_of(view, rows, by)
        for name in set(names.tolist()):
            chosen = own[names == name]
            edges[name].append(chosen)
            count[name] += len(chosen)
    whole = {name: np.concatenate(parts) for name, parts in edges.items()}
    spent = {name: int(run.cost_ns[own].sum()) for name, own in whole.items()}
    largest = sorted(whole, key=lambda name: -spent[name])[:_MOST]
    shorter, longer = _follows(run, [whole[name] for name in largest])
    order = sorted(
        range(len(largest)), key=lambda place: (-shorter[place], -longer[place], largest[place])
    )
    total = max(sum(spent.values()), 1)
    ordered = [largest[place] for place in order]
    left = len(whole) - len(largest)
    return ColumnTable(
        {
            by: np.array(ordered) if ordered else np.zeros(0, dtype=object),
            "count": np.array([count[name] for name in ordered], dtype=np.int64),
            "gpu_ns": np.array([spent[name] for name in ordered], dtype=np.int64),
            "gpu_share": np.array([spent[name] / total for name in ordered], dtype=np.float64),
            "shorter_share": shorter[order],
            "longer_share": longer[order],
        },
        shown=(by, "count", "gpu_ns", "gpu_share", "shorter_share", "longer_share"),
        first=(by, "shorter_share", "gpu_share"),
        notes=(
            "shorter_share: 31 % says that this work takes 1 % less and the step 0.31 % less; "
            "longer_share: the same of more. Collectives are left out.",
            *([f"{left} more with less GPU time were not replayed."] if left else []),
        ),
    )


def _names_of(view: RankView, rows: Array, by: str) -> Array:
    """Return the group of each GPU row."""
    if by == "family":
        return families_of(view, rows)
    if by == "kernel":
        named = {
            name: canonical_name(view.names[name]) for name in set(view.table.name[rows].tolist())
        }
        return np.array([named[name] for name in view.table.name[rows].tolist()], dtype=object)
    calls = view.launch_of(rows)
    operator = np.where(calls >= 0, view.tree.op[np.maximum(calls, 0)], _core.NO_ROW)
    return np.array(
        [
            "(no operator)" if row == _core.NO_ROW else view.table.name_of(row)
            for row in operator.tolist()
        ],
        dtype=object,
    )


def _follows(run: SimulatedRun, groups: list[Array]) -> Array:
    """Return the step's relative change over that of each group, float64 `[2, groups]`: of shorter
    and of longer work."""
    measured = float(run.mean_ns(run.measured_ns))
    found = np.zeros((2, len(groups)))
    if not groups or not measured:
        return found
    before = float(run.mean_ns(run.lengths_ns())[0])
    for place, edges in enumerate(groups):
        deltas = []
        for scale in (1 - _SCALE, 1 + _SCALE):
            deltas.append(_core.GraphDelta())
            deltas[-1].set_lags(edges, np.rint(run.cost_ns[edges] * scale).astype(np.int64))
        short, long = run.mean_ns(run.lengths_ns(deltas)).tolist()
        found[:, place] = max(before - short, 0.0), max(long - before, 0.0)
    return found / (_SCALE * measured)
