"""The original trace with what was found drawn over it, for Perfetto."""

from __future__ import annotations

from pathlib import Path

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.writing import check_target, replacing, replacing_stream
from torchtraceap.diagnosis.diagnose import build_diagnosis
from torchtraceap.errors import OptionError
from torchtraceap.report.annotate.chrome import write_chrome
from torchtraceap.report.annotate.protobuf import write_protobuf
from torchtraceap.report.annotate.tracks import Counter, Slices, build_counters, build_slices
from torchtraceap.trace.ranks import Ranks

__all__ = ["Counter", "Slices", "annotate", "build_counters", "build_slices"]

CHROME_SUFFIXES = (".json", ".json.gz")
PROTOBUF_SUFFIXES = (".pftrace", ".perfetto-trace")


def annotate(trace: Ranks, path: PathLike, *, rank: int | None = None) -> None:
    """Writes one rank with findings, idle causes, critical path and counters as further tracks.

    Args:
        trace: Where from.
        path: `.json` or `.json.gz` (Chrome's format), `.pftrace` or `.perfetto-trace` (Perfetto's
            own; needs the package `perfetto`).
        rank: Which rank; may be left out where there is only one.

    Raises:
        OptionError: Another ending, a file that was read, or several ranks and none chosen.
        MissingDependencyError: Perfetto's format without its package.
        OutputError: The file can't be written.
    """
    if rank is None and len(trace.ranks) > 1:
        raise OptionError(f"choose one of {len(trace.ranks)} ranks (merge shows them together)")
    target = Path(path)
    name = target.name.lower()
    if not name.endswith((*CHROME_SUFFIXES, *PROTOBUF_SUFFIXES)):
        raise OptionError(f"{target}: the name must end in .json, .json.gz or .pftrace")
    inputs = [part.path for part in trace.ranks]
    check_target(target, inputs)
    diagnosis = build_diagnosis(trace)
    slices, counters = build_slices(diagnosis, rank), build_counters(diagnosis, rank)
    if name.endswith(CHROME_SUFFIXES):
        with replacing(target, inputs=inputs) as staged:
            write_chrome(trace.rank(rank), slices, counters, staged)
    else:
        with replacing_stream(target, inputs=inputs) as stream:
            write_protobuf(trace.rank(rank), slices, counters, stream)
