"""The original trace with what was found drawn over it, for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchtraceap.aliases import PathLike
from torchtraceap.diagnose import build_diagnosis
from torchtraceap.errors import OptionError
from torchtraceap.overlay.chrome import write_chrome
from torchtraceap.overlay.protobuf import write_protobuf
from torchtraceap.overlay.tracks import Counter, Slices, build_counters, build_slices

if TYPE_CHECKING:
    from torchtraceap.trace import Trace

__all__ = ["Counter", "Slices", "annotate", "build_counters", "build_slices"]

PROTOBUF_SUFFIXES = (".pftrace", ".perfetto-trace")


def annotate(trace: Trace, path: PathLike, *, rank: int | None = None) -> None:
    """Writes one rank with findings, idle causes, critical path and counters as further tracks.

    Args:
        trace: Where from.
        path: `.json` or `.json.gz` (Chrome's format), `.pftrace` or `.perfetto-trace` (Perfetto's
            own; needs the package `perfetto`).
        rank: Which rank; may be left out where there is only one.

    Raises:
        OptionError: Another ending, or several ranks and none chosen.
        MissingDependencyError: Perfetto's format without its package.
    """
    if rank is None and len(trace.ranks) > 1:
        raise OptionError(f"choose one of {len(trace.ranks)} ranks (merge puts them in one file)")
    target = Path(path)
    name = target.name.lower()
    diagnosis = build_diagnosis(trace)
    slices, counters = build_slices(diagnosis, rank), build_counters(diagnosis, rank)
    if name.endswith((".json", ".json.gz")):
        write_chrome(trace.rank(rank), slices, counters, target)
    elif name.endswith(PROTOBUF_SUFFIXES):
        write_protobuf(trace.rank(rank), slices, counters, target)
    else:
        raise OptionError(f"{target}: the name must end in .json, .json.gz or .pftrace")
