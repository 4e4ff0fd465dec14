#!/usr/bin/env python3
"""Kernels that `kernels_of` gives the operators of real traces, against those that ran.

    python benchmarks/prediction/kernels.py [--corpus DIR] [--part seen|held-out|all] [--ops]
        [--output FILE]

For each trace with shapes, over the ATen operators that launched something (copies between host
and device and collectives left out, which a capture has not, and copies in traces without strides,
which decide about them):

- *kernels*: how many are predicted, over how many ran, minus one; *with memsets* counts memsets
  and copies on the device too;
- *ops right*: operators for which the number of kernels is right;
- *family*: operators whose kernels' families are right, all of them; *main* that of the longest;
- *kernel*: operators whose longest kernel has the right canonical name;
- *grid*: of those, the share with the right grid.

Traces are held out by a hash of their path (one of three); the rules were written with the others.
Of a job's ranks each file is a trace.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import write_results
from traced_ops import Event, TracedOp, traced_ops

import torchtraceap as ttap
from torchtraceap.errors import TraceError
from torchtraceap.lab.prediction.lowering import Libraries, OpTime, kernels_of
from torchtraceap.lab.prediction.lowering.step import GpuWork, WorkKind
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations import Estimate
from torchtraceap.ops.kernel_names import canonical_name
from torchtraceap.ops.models import family_of
from torchtraceap.tables.gpu.recorded_device import plausible_devices

_ROOT = Path(__file__).resolve().parents[2]
_TIME = OpTime(Estimate.within_factor(1e4, 2.0, "any"), is_known=True)
_MISSES = 12
_MARKS_OF_2_7 = ("elementwise_kernel<8, ", "elementwise_kernel_manual", "SoftMaxForwardReg")
_COPIES = ("aten::copy_", "aten::_to_copy", "aten::to")
_BETWEEN = ("Memcpy HtoD", "Memcpy DtoH", "Memcpy PtoP", "CopyHostToDevice", "CopyDeviceToHost")


@dataclass
class Score:
    """Sums over operators."""

    ops: int = 0
    ran: int = 0
    predicted: int = 0
    ran_all: int = 0
    predicted_all: int = 0
    count_right: int = 0
    family_right: int = 0
    main_right: int = 0
    kernel_right: int = 0
    grids: int = 0
    grid_right: int = 0
    misses: Counter[str] = field(default_factory=Counter)

    def add(self, traced: TracedOp, works: tuple[GpuWork, ...]) -> None:
        real = [each for each in traced.events if not _is_transfer(each.name)]
        made = [each for each in works if each.kind is WorkKind.KERNEL]
        self.ops += 1
        self.ran += len(real)
        self.predicted += len(made)
        self.ran_all += len(traced.events)
        self.predicted_all += len(works)
        self.count_right += len(real) == len(made)
        families = Counter(_family(each.name) for each in real)
        self.family_right += families == Counter(_family(each.name) for each in made)
        longest = max(traced.events, key=lambda each: each.ns)
        main = max(works, key=lambda each: each.estimate.ns)
        self.main_right += _family(longest.name) == _family(main.name)
        same = canonical_name(longest.name) == canonical_name(main.name)
        self.kernel_right += same
        if same and longest.grid:
            self.grids += 1
            self.grid_right += longest.grid == main.grid and longest.block == main.block
        if len(real) != len(made) or families != Counter(_family(each.name) for each in made):
            self.misses[_miss(real, made)] += 1

    def join(self, other: Score) -> None:
        """Takes another's operators in."""
        for name, value in vars(other).items():
            own = getattr(self, name)
            setattr(self, name, own + value)

    def row(self) -> dict[str, Any]:
        return {
            "ops": self.ops,
            "kernels": self.ran,
            "kernels_error": self.predicted / max(1, self.ran) - 1,
            "with_memsets": self.ran_all,
            "with_memsets_error": self.predicted_all / max(1, self.ran_all) - 1,
            "ops_right": self.count_right / self.ops,
            "family": self.family_right / self.ops,
            "main": self.main_right / self.ops,
            "kernel": self.kernel_right / self.ops,
            "grid": self.grid_right / self.grids if self.grids else None,
        }


def _is_transfer(name: str) -> bool:
    return name.lower().startswith(("memcpy", "memset"))


def _family(name: str) -> str:
    return family_of("", [name])


def _miss(real: list[Event], made: list[GpuWork]) -> str:
    ran = " + ".join(canonical_name(each.name)[:40] for each in real)
    return f"{ran}  not  {' + '.join(canonical_name(each.name)[:40] for each in made)}"


def _is_asked(traced: TracedOp) -> bool:
    """An operator of ATen; no transfer between host and device, no collective, and no copy of
    which nobody knows how its tensors lie."""
    names = [each.name for each in traced.events]
    if not traced.op.name.startswith("aten::"):
        return False
    if any("nccl" in name.lower() or name.startswith("triton_") for name in names):
        return False
    if traced.op.name in _COPIES:
        return traced.has_strides and not any(name.startswith(_BETWEEN) for name in names)
    return True


def device_of(trace: ttap.Trace) -> Device:
    """The one recorded first, or one like it."""
    return plausible_devices(trace.ranks[0].table)[0]


def libraries_of(trace: ttap.Trace, device: Device) -> Libraries:
    """A build as old as the trace's: kernels' names tell, traces seldom say."""
    names = trace.ranks[0].table.strings
    if any("at::detail::Array<" in name for name in names):
        torch = (2, 4)
    elif any(mark in name for name in names for mark in _MARKS_OF_2_7):
        torch = (2, 7)
    else:
        torch = (2, 6)
    return Libraries("miopen" if device.vendor == "amd" else "cudnn", torch)


def measured(trace: ttap.Trace, device: Device, libraries: Libraries) -> dict[str, Score]:
    """By operator; all of them under the empty name."""
    scores: dict[str, Score] = defaultdict(Score)
    known: dict[Any, tuple[GpuWork, ...]] = {}
    for traced in traced_ops(trace):
        if _is_asked(traced):
            key = traced.op.name, traced.op.inputs
            if key not in known:
                known[key] = kernels_of(traced.op, device, libraries, _TIME)
            for name in ("", traced.op.name):
                scores[name].add(traced, known[key])
    return scores


def default_corpus() -> Path:
    """`TORCHTRACEAP_CORPUS`, or where the tests look for it."""
    return Path(os.environ.get("TORCHTRACEAP_CORPUS", _ROOT.parent / "shared" / "traces"))


def is_held_out(name: str) -> bool:
    """One file of three, by its path."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


def reports(corpus: Path, part: str, only: str) -> Iterator[tuple[str, dict[str, Score]]]:
    """Scores of each trace that has what is asked."""
    files = [*corpus.rglob("*.json"), *corpus.rglob("*.json.gz")]
    for path in sorted(file for file in files if "_reference" not in str(file)):
        name = str(path.relative_to(corpus))
        if only not in name:
            continue
        if part != "all" and is_held_out(name) is not (part == "held-out"):
            continue
        try:
            trace = ttap.load(path)
        except TraceError:
            continue
        device = device_of(trace)
        found = measured(trace, device, libraries_of(trace, device))
        if found:
            yield name, found


def line(name: str, row: dict[str, Any]) -> str:
    shares = "  ".join(f"{row[key]:.3f}" for key in ("ops_right", "family", "main", "kernel"))
    grid = "     " if row["grid"] is None else f"{row['grid']:.3f}"
    errors = "  ".join(
        f"{100 * row[key]:+6.1f} %" for key in ("kernels_error", "with_memsets_error")
    )
    return f"{name[-46:]:<46} {row['ops']:6} {row['kernels']:6}  {errors}  {shares}  {grid}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--corpus", type=Path, default=default_corpus())
    parser.add_argument("--part", choices=("seen", "held-out", "all"), default="all")
    parser.add_argument("--ops", action="store_true", help="operators and what is missed, too")
    parser.add_argument("--only", default="", help="traces whose path has this")
    parser.add_argument("--output", type=Path, help="write the figures here too")
    options = parser.parse_args()
    print(f"{'':46} {'ops':>6} {'ran':>6}  kernels  with sets  count  family main   kernel grid")
    written: list[dict[str, Any]] = []
    by_op: dict[str, dict[str, Score]] = {key: defaultdict(Score) for key in ("seen", "held_out")}
    for name, found in reports(options.corpus, options.part, options.only):
        row = found.pop("").row()
        print(line(name, row))
        written.append({"trace": name, "held_out": is_held_out(name), **row})
        for op, score in found.items():
            by_op["held_out" if is_held_out(name) else "seen"][op].join(score)
        for op, score in sorted(found.items()) if options.ops else ():
            print(line(f"    {op}", score.row()))
            for miss, times in score.misses.most_common(_MISSES):
                print(f"        {times} x {miss}")
    if options.output:
        told = {
            part: {op: score.row() for op, score in sorted(scores.items())}
            for part, scores in by_op.items()
        }
        write_results(options.output, traces=written, ops=told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
