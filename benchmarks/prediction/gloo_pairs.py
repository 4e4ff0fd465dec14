"""Real training on three ranks before and after a change, against what a replay predicts.

    python benchmarks/prediction/gloo_pairs.py [--repeats 7] [--steps 8] [--output FILE]

Three processes train by DistributedDataParallel over gloo on the CPU, each with one thread. Of each
pair both sides run in turn, `--repeats` times; a side's time is the median of all its steps without
a profiler, the longer of the ranks at each step. In each repeat some steps of before are also
profiled, on both ranks; `simulate` with the edit that stands for the change tells from these how
long a step would take after it. `error`: the predicted ratio of after to before over the measured
one, minus 1, of the median of the repeats. `noise`: the interquartile range of the measured ratio
over repeats, over its median: what the machine leaves undecided.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

import torchtraceap as ttap
from torchtraceap.simulation.edits.removal import RemoveRanges

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

_RANKS, _WIDTH, _LAYERS, _BATCH = 3, 256, 4, 32
_SAMPLE_S, _PAUSE_S = 0.002, 0.05
"""What a sample takes to come from storage, and writing to it: waits, which leave a loaded machine
its cores."""


# ------------------------------------------------------------------------- what trains


class Net(nn.Module):
    """Layers with buffers that DDP may broadcast."""

    def __init__(self, buffers: int = 0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU()) for _ in range(_LAYERS))
        )
        for number in range(buffers):
            self.register_buffer(f"state{number}", torch.zeros(256, 1024))

    def forward(self, x: Tensor) -> Tensor:
        """One value for each sample."""
        out: Tensor = self.layers(x)
        return out.mean(1)


class Stored(torch.utils.data.Dataset[Tensor]):
    """Samples that take their time to come from storage."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(_SAMPLE_S)
        return torch.zeros(_WIDTH)


@dataclass
class Side:
    """One side of a pair on one rank."""

    step: Callable[[], None]


def _side(
    *,
    buffers: int = 0,
    broadcast: bool = False,
    syncs: bool = True,
    workers: int | None = None,
    pause_of: int | None = None,
    evaluate: bool = False,
    rank: int = 0,
) -> Side:
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(buffers), broadcast_buffers=broadcast)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    batches = _batches(workers)

    def step() -> None:
        x = next(batches)
        if pause_of == rank:
            time.sleep(_PAUSE_S)
        optimizer.zero_grad()
        with nullcontext() if syncs else model.no_sync():
            model(x).square().mean().backward()
        optimizer.step()
        if evaluate:
            with record_function("write_metrics"), torch.no_grad():
                time.sleep(_PAUSE_S)

    return Side(step)


def _batches(workers: int | None) -> Iterator[Tensor]:
    if workers is None:
        fixed = torch.zeros(_BATCH, _WIDTH)
        while True:
            yield fixed
    loader = torch.utils.data.DataLoader(
        Stored(), batch_size=_BATCH, num_workers=workers, prefetch_factor=4 if workers else None
    )
    yield from loader


@dataclass(frozen=True)
class PairOf:
    """A change."""

    name: str
    before: dict[str, Any]
    after: dict[str, Any]
    edit: Any


PAIRS = (
    PairOf("straggler", {"pause_of": 1}, {}, "straggler_to_median"),
    PairOf("loader", {"workers": 0}, {"workers": 2}, "loader_workers=2"),
    PairOf(
        "buffers", {"buffers": 16, "broadcast": True}, {"buffers": 16},
        RemoveRanges("broadcasts", r"^(c10d::broadcast_|gloo:broadcast)$", "broadcast of buffers"),
    ),
    PairOf(
        "no_sync", {}, {"syncs": False},
        RemoveRanges("all-reduces", r"^(c10d::allreduce_|gloo:all_reduce)$", "all-reduce"),
    ),
    PairOf(
        "metrics", {"evaluate": True}, {},
        RemoveRanges("write_metrics", r"^write_metrics$", "range write_metrics"),
    ),
)  # fmt: skip


# ------------------------------------------------------------------------- on a rank


def on_rank(rank: int, folder: str, repeats: int, steps: int) -> None:
    """Runs all pairs; writes times and traces."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), _RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=_RANKS)
    found: dict[str, dict[str, list[list[float]]]] = {}
    for number, pair in enumerate(PAIRS):
        sides = {which: _side(rank=rank, **getattr(pair, which)) for which in ("before", "after")}
        times: dict[str, list[list[float]]] = {"before": [], "after": []}
        for side in sides.values():
            _timed(side, 3)
        for repeat in range(repeats):
            order = ("before", "after") if repeat % 2 == 0 else ("after", "before")
            for which in order:
                times[which].append(_timed(sides[which], steps))
            place = Path(folder) / f"{number}-{repeat}"
            place.mkdir(exist_ok=True)
            _profiled(sides["before"], steps, place / f"rank{rank}.json")
        found[pair.name] = times
    gathered: list[Any] = [None] * _RANKS
    dist.all_gather_object(gathered, found)
    if rank == 0:
        torch.save(gathered, Path(folder) / "times.pt")
    dist.destroy_process_group()


def _timed(side: Side, steps: int) -> list[float]:
    dist.barrier()
    found = []
    for _ in range(steps):
        start = time.perf_counter()
        side.step()
        found.append(time.perf_counter() - start)
    return found


def _profiled(side: Side, steps: int, path: Path) -> None:
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as recording:
        for _ in range(steps):
            side.step()
            recording.step()
    recording.export_chrome_trace(str(path))


# ------------------------------------------------------------------------- what is compared


def compared(pair: PairOf, number: int, folder: Path, gathered: list[Any]) -> dict[str, Any]:
    """Measured and predicted ratios of one pair."""
    sides = {which: _step_times(gathered, pair.name, which) for which in ("before", "after")}
    measured = [
        statistics.median(after) / statistics.median(before)
        for before, after in zip(sides["before"], sides["after"], strict=True)
    ]
    predicted, intervals, profiled = [], [], []
    for repeat in range(len(measured)):
        found = ttap.simulate(folder / f"{number}-{repeat}", edits=[pair.edit])
        (edit,) = found.edits
        if edit.predicted_ns is None:
            return {"pair": pair.name, "refused": edit.note}
        predicted.append(edit.predicted_ns / found.measured_ns)
        intervals.append((edit.low_ns / found.measured_ns, edit.high_ns / found.measured_ns))
        profiled.append(found.measured_ns / 1e6)
    real, said = statistics.median(measured), statistics.median(predicted)
    quarters = statistics.quantiles(measured, n=4)
    low, high = (statistics.median(each) for each in zip(*intervals, strict=True))
    return {
        "pair": pair.name,
        "edit": pair.edit if isinstance(pair.edit, str) else f"RemoveRanges {pair.edit.name}",
        "before_ms": _milliseconds(sides["before"]),
        "profiled_ms": round(statistics.median(profiled), 3),
        "after_ms": _milliseconds(sides["after"]),
        "measured": round(real, 4),
        "predicted": round(said, 4),
        "interval": [round(low, 4), round(high, 4)],
        "error": round(said / real - 1, 4),
        "noise": round((quarters[2] - quarters[0]) / real, 4),
        "measured_ratios": [round(each, 4) for each in measured],
        "predicted_ratios": [round(each, 4) for each in predicted],
    }


def _step_times(gathered: list[Any], name: str, which: str) -> list[list[float]]:
    """Of each repeat the steps, each as long as on the rank where it is the longest."""
    ranks = [mine[name][which] for mine in gathered]
    return [[max(step) for step in zip(*runs, strict=True)] for runs in zip(*ranks, strict=True)]


def _milliseconds(runs: list[list[float]]) -> float:
    return round(1e3 * statistics.median(each for run in runs for each in run), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description="predicted and real effects of changes")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="folder for the traces")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with _folder(options.keep) as folder:
        mp.spawn(on_rank, (str(folder), options.repeats, options.steps), nprocs=_RANKS)
        gathered = torch.load(folder / "times.pt", weights_only=True)
        rows = [compared(pair, i, folder, gathered) for i, pair in enumerate(PAIRS)]
    for row in rows:
        print(row)
    if options.output:
        sizes = {"repeats": options.repeats, "steps": options.steps}
        write_results(options.output, indent=None, torch=torch.__version__, **sizes, rows=rows)


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
    with nullcontext(str(kept)) if kept else tempfile.TemporaryDirectory() as name:
        yield Path(name)


if __name__ == "__main__":
    main()
