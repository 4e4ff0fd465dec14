"""Twins with a known truth: every edit against programs that run with the fault and without it.

    python benchmarks/simulation/twins.py [--seeds 20] [--twins NAME ...] [--output FILE]

A job (`made_training.py`) is drawn at random and run on a machine of its own
(`made_machine.py`): with the fault, recorded as a trace, and twice with the fix. The edit is asked
for its prediction from that trace alone; what the runs with the fix took is the truth. Ranges of
everything that a trace can't say (how much slower workers are than one process, what a graph's node
costs, what share of a peak another type reaches) stand in this file beside their reason, and were
set before any prediction was looked at.

Note [Two truths]: one run with the fix has the random numbers of the recorded one, so that
operators and kernels that both have take the same time in both: what is left is the error of the
edit. The other has its own, as any run that a person starts after the fix. An interval speaks of
that one: it says by how much the mean of so many steps varies, too.

Note [Whole rounds]: several workers that began together hand over their batches together, so that
one step in so many waits for all of them. The truth is the mean over whole rounds, at least as many
steps as were recorded.

Note [What is counted]: `error` is predicted over true time of a step, minus 1, with the same random
numbers. `covered`: the time with numbers of its own lies in the interval, which should hold for 75
to 90 % of an interval of 80 %; beside it the same with the same numbers. `sign`: the edit promises
a gain or a loss of more than 1 % of the step, and the other comes true. `refused`: there is no
prediction, and a reason.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import torchtraceap as ttap
from made_machine import Link, Machine, Noise
from made_training import CHIPS, Chip, Comm, Job, Layer, Loader, Upload, record

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

__all__ = [
    "TWINS",
    "Outcome",
    "Pair",
    "Summary",
    "in_whole_rounds",
    "judge",
    "load_machine",
    "made_pair",
    "summarise",
]


@dataclass(frozen=True)
class Pair:
    """An edit, and the job with and without what it mends."""

    edit: str
    fault: Job
    fixed: Job


@dataclass(frozen=True)
class Outcome:
    """A prediction beside the truth; times of a step in us."""

    twin: str
    edit: str
    seed: int
    steps: int
    before_us: float
    after_us: float
    """With the same random numbers."""
    rerun_us: float
    """With numbers of its own. See Note [Two truths]."""
    shown_us: float
    """What is said to be measured."""
    predicted_us: float | None
    low_us: float | None
    high_us: float | None
    note: str

    @property
    def refused(self) -> bool:
        return self.predicted_us is None

    @property
    def error(self) -> float:
        assert self.predicted_us is not None
        return self.predicted_us / self.after_us - 1

    @property
    def covered(self) -> bool:
        return self._holds(self.rerun_us)

    @property
    def covered_alike(self) -> bool:
        return self._holds(self.after_us)

    def _holds(self, us: float) -> bool:
        assert self.low_us is not None and self.high_us is not None
        return self.low_us <= us <= self.high_us

    @property
    def gain(self) -> float:
        """True share of the step that the fix saves."""
        return 1 - self.after_us / self.before_us

    @property
    def wrong_sign(self) -> bool:
        assert self.predicted_us is not None
        promised = 1 - self.predicted_us / self.shown_us
        return min(abs(promised), abs(self.gain)) > 0.01 and promised * self.gain < 0


# ------------------------------------------------------------------------- jobs at random


def among(rng: random.Random, low: float, high: float) -> float:
    """Between two bounds, evenly over orders of magnitude."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def draw_job(rng: random.Random, **more: Any) -> Job:
    """A loop without a fault: from tens of small kernels to products of milliseconds, the host
    between twice as fast as PyTorch's eager operators usually are (5 to 10 us) and three times
    slower."""
    widths = [rng.choice((512, 1024, 2048, 4096)) for _ in range(rng.randint(4, 12) + 1)]
    shares = rng.uniform(0.55, 0.9), rng.uniform(0.4, 0.8), rng.uniform(0.65, 0.9)
    layers = tuple(
        Layer(n, k, rng.randint(1, 4), *(min(0.95, s * rng.uniform(0.9, 1.1)) for s in shares))
        for k, n in pairwise(widths)
    )
    job = Job(
        chip=rng.choice([*CHIPS.values()]),
        steps=rng.choice((1, 2, 3, 4, 6, 8)),
        rows=rng.choice((256, 1024, 4096)),
        layers=layers,
        op_us=among(rng, 4, 25),
        python_us=among(rng, 3, 40),
        tail_us=among(rng, 30, 1_000),
        reads_loss=rng.random() < 0.6,
        optimizer=rng.choice(("foreach", "fused")),
        shapes=rng.random() < 0.8,
        stack=rng.random() < 0.3,
        idle_threads=rng.choice((0, 0, 2)),
    )
    return replace(job, **more)


def draw_machine(rng: random.Random, job: Job) -> dict[str, Any]:
    """How the machine behaves: launch calls of 3 to 8 us, kernels 1 us apart, computation up to
    1.3 times slower beside collectives (as published for NCCL), variation of host work up to 20 %
    and of kernels up to 4 %."""
    return {
        "noise": Noise(rng.uniform(0.03, 0.2), rng.uniform(0.005, 0.04), among(rng, 1e-4, 5e-3)),
        "link": Link(
            launch_us=among(rng, 3, 8),
            latency_us=among(rng, 1, 5),
            gap_us=rng.uniform(0.6, 1.5),
            return_us=among(rng, 3, 12),
            beside_collectives=rng.uniform(1.0, 1.3),
        ),
        "clock_offsets_us": tuple(rng.uniform(-400, 400) for _ in range(job.ranks)),
        "keeps_unlaunched": rng.random() < 0.5,
    }


# ------------------------------------------------------------------------- faults with their fix


def pinning(rng: random.Random) -> Pair:
    """Pageable copies run at 2 to 8 GB/s, pinned ones at 70 to 90 % of PCIe; the training process
    moves batches at 3 to 10 GB/s, where it has to do so itself."""
    base = draw_job(rng)
    upload = Upload(
        size=int(among(rng, 1e6, 2e8)),
        pinned=False,
        pageable_rate=among(rng, 2_000, 8_000),
        pinned_rate=1_000 * base.chip.pcie * rng.uniform(0.7, 0.9),
        by_hand_rate=among(rng, 3_000, 10_000),
    )
    made = among(rng, 500, 20_000)
    loader = rng.choice((Loader(), Loader(made), Loader(made, workers=4)))
    fault = replace(base, upload=upload, loader=loader)
    return Pair("pin_memory", fault, replace(fault, upload=replace(upload, pinned=True)))


def no_workers(rng: random.Random) -> Pair:
    """Four workers beside each other take up to 1.4 times as long for a batch as one process, the
    training process up to 1.12 times as long; taking a batch costs 0.1 to 2.5 ms."""
    fault = draw_job(rng, loader=Loader(among(rng, 2_000, 300_000), rng.uniform(0.03, 0.3)))
    fixed = replace(
        fault.loader,
        workers=4,
        worker_slow=rng.uniform(1.0, 1.4),
        host_slow=rng.uniform(1.0, 1.12),
        take_us=among(rng, 100, 2_500),
    )
    return Pair("loader_workers=4", fault, replace(fault, loader=fixed))


def few_workers(rng: random.Random) -> Pair:
    """One to four workers that are too few; eight take up to 1.3 times as long for each batch."""
    loader = Loader(
        among(rng, 20_000, 400_000),
        rng.uniform(0.03, 0.3),
        workers=rng.randint(1, 4),
        take_us=among(rng, 100, 2_500),
    )
    fault = draw_job(rng, loader=loader)
    slower = rng.uniform(1.0, 1.3)
    fixed = replace(loader, workers=8, worker_slow=slower, host_slow=rng.uniform(1.0, 1.05))
    return Pair("loader_workers=8", fault, replace(fault, loader=fixed))


def reading(rng: random.Random) -> Pair:
    fault = draw_job(rng, reads=rng.randint(0, 6), synchronizes=rng.random() < 0.4)
    if not fault.reads and not fault.synchronizes:
        fault = replace(fault, reads=1)
    fixed = replace(fault, reads=0, reads_loss=False, synchronizes=False)
    return Pair("remove_host_sync", fault, fixed)


def launching(rng: random.Random) -> Pair:
    """A graph is launched in 8 to 20 us and up to 0.7 us for each kernel; kernels in it follow
    each other within 0.5 to 1.3 us. `torch.compile` leaves the optimizer out, a graph made by hand
    need not."""
    fault = draw_job(rng, rows=rng.choice((64, 256, 1024)))
    fixed = replace(
        fault,
        graph=rng.choice(("model", "all")),
        graph_call_us=rng.uniform(8, 20),
        graph_node_us=rng.uniform(0.0, 0.7),
        graph_gap_us=rng.uniform(0.5, 1.3),
    )
    return Pair("cuda_graph", fault, fixed)


def updating(rng: random.Random) -> Pair:
    fault = draw_job(rng, optimizer="loop")
    fixed = replace(fault, optimizer=rng.choice(("foreach", "fused")))
    return Pair("fused_optimizer", fault, fixed)


def pointwise(rng: random.Random) -> Pair:
    """Each further operator adds 5 to 35 % of its own time to the fused kernel: it may read one
    more tensor of three."""
    base = draw_job(rng)
    layers = tuple(replace(layer, pointwise=rng.randint(2, 6)) for layer in base.layers)
    fault = replace(base, layers=layers)
    fixed = replace(fault, fused=True, fused_share=rng.uniform(0.05, 0.35))
    return Pair("fuse_pointwise", fault, fixed)


def in_fp32(rng: random.Random) -> Pair:
    """Products in bf16 reach 40 to 80 % of the peak, or the bandwidth; autocast converts the
    weights of every layer in every step."""
    fault = draw_job(rng)
    edit = "mixed_precision" if fault.chip.major < 8 else "mixed_precision=bf16"
    return Pair(edit, fault, replace(fault, half=True))


def converting(rng: random.Random) -> Pair:
    base = draw_job(rng)
    fault = replace(base, conversions=rng.randint(1, len(base.layers)))
    return Pair("channels_last", fault, replace(fault, conversions=0))


def allocating(rng: random.Random) -> Pair:
    fault = draw_job(rng, allocations=rng.randint(1, 12), malloc_us=among(rng, 60, 1_000))
    fault = replace(fault, steps=max(fault.steps, 4))
    return Pair("no_allocator_calls", fault, replace(fault, allocations=0))


def breaking(rng: random.Random) -> Pair:
    fault = draw_job(
        rng,
        compiled=True,
        breaks=rng.randint(1, 4),
        break_us=among(rng, 100, 3_000),
        break_op=rng.random() < 0.5,
    )
    stays = fault.break_op and rng.random() < 0.5
    return Pair("merge_compiled_regions", fault, replace(fault, breaks=0, break_op_stays=stays))


def zeroing(rng: random.Random) -> Pair:
    fault = draw_job(rng, zero_grad="zero")
    return Pair("zero_grad_to_none", fault, replace(fault, zero_grad="none"))


def compiling(rng: random.Random) -> Pair:
    base = draw_job(rng)
    steps = max(base.steps, 4)
    again = tuple(sorted(rng.sample(range(1, steps), rng.randint(1, 2))))
    fault = replace(base, steps=steps, compiles_in=again, compile_us=among(rng, 30_000, 2e6))
    return Pair("no_recompilation", fault, replace(fault, compiles_in=()))


def draw_spread(rng: random.Random, **more: Any) -> Job:
    """A loop of two to four ranks: collectives start in 12 to 40 us and move 10 to 200 GB/s, up to
    1.2 times slower beside computation."""
    comm = Comm(
        latency_us=among(rng, 12, 40),
        rate=among(rng, 10_000, 200_000),
        contended=rng.uniform(1.0, 1.2),
    )
    return draw_job(rng, ranks=rng.choice((2, 2, 4)), comm=replace(comm, **more))


def searching(rng: random.Random) -> Pair:
    fault = draw_spread(rng, search_us=among(rng, 50, 5_000))
    fixed = replace(fault, comm=replace(fault.comm, search_us=0.0))
    return Pair("no_unused_parameter_search", fault, fixed)


def broadcasting(rng: random.Random) -> Pair:
    fault = draw_spread(rng, broadcasts=rng.randint(1, 6))
    fixed = replace(fault, comm=replace(fault.comm, broadcasts=0))
    return Pair("no_broadcast_buffers", fault, fixed)


def exposed(rng: random.Random) -> Pair:
    fixed = draw_spread(rng)
    mode = rng.choice(("blocking", "behind"))
    fault = replace(fixed, comm=replace(fixed.comm, mode=mode))
    return Pair("overlap_collectives", fault, fixed)


def many_small(rng: random.Random) -> Pair:
    fault = draw_spread(rng, small=rng.randint(4, 50))
    return Pair("merge_collectives", fault, replace(fault, comm=replace(fault.comm, small=1)))


def odd_buckets(rng: random.Random) -> Pair:
    fixed = draw_spread(rng)
    wrong = rng.choice(({"bucket_mb": 1e9}, {"mode": "per_parameter"}))
    fault = replace(fixed, comm=replace(fixed.comm, **wrong))
    return Pair("bucket_size_mb=25", fault, fixed)


def straggling(rng: random.Random) -> Pair:
    fixed = replace(draw_spread(rng), ranks=4)
    how: dict[str, Any] = {"slow_gpu": rng.uniform(1.1, 2.5)}
    if rng.random() < 0.5:
        how = {"slow_host_us": among(rng, 500, 20_000)}
    return Pair("straggler_to_median", replace(fixed, slow_rank=rng.randrange(4), **how), fixed)


def moving(rng: random.Random) -> Pair:
    """What a kernel reaches of another GPU's peaks differs by 15 % on average of a job, and by 10 %
    from kernel to kernel."""
    fault = draw_job(rng)
    others: list[Chip] = [chip for chip in CHIPS.values() if chip != fault.chip]
    job_wide = rng.lognormvariate(0, 0.15)
    reached = tuple(job_wide * rng.lognormvariate(0, 0.1) for _ in fault.layers)
    chip = rng.choice(others)
    return Pair(f"device={chip.name}", fault, replace(fault, chip=chip, efficiency=reached))


TWINS: dict[str, Callable[[random.Random], Pair]] = {
    "pin_memory": pinning,
    "loader_workers": no_workers,
    "loader_workers, starved": few_workers,
    "remove_host_sync": reading,
    "overlap_collectives": exposed,
    "merge_collectives": many_small,
    "bucket_size_mb": odd_buckets,
    "straggler_to_median": straggling,
    "cuda_graph": launching,
    "fused_optimizer": updating,
    "fuse_pointwise": pointwise,
    "mixed_precision": in_fp32,
    "channels_last": converting,
    "no_allocator_calls": allocating,
    "merge_compiled_regions": breaking,
    "zero_grad_to_none": zeroing,
    "no_unused_parameter_search": searching,
    "no_recompilation": compiling,
    "no_broadcast_buffers": broadcasting,
    "device": moving,
}


# ------------------------------------------------------------------------- prediction and truth


def made_pair(twin: str, seed: int) -> tuple[Pair, dict[str, Any]]:
    """The pair of a twin, and the machine that runs both."""
    rng = random.Random(f"{twin}/{seed}")
    pair = TWINS[twin](rng)
    return pair, {"seed": _numbers(f"{twin}/{seed}"), **draw_machine(rng, pair.fault)}


def _numbers(key: str) -> int:
    """A seed of its own for every pair and run."""
    return zlib.crc32(key.encode())


def load_machine(machine: Machine, folder: Path) -> ttap.Trace:
    """The recording of a machine, read back."""
    for rank, document in enumerate(machine.documents()):
        path = folder / f"rank{rank}.json"
        path.write_text(json.dumps(document), encoding="utf-8")
    return ttap.load(folder if machine.ranks > 1 else folder / "rank0.json")


def in_whole_rounds(job: Job) -> Job:
    """See Note [Whole rounds]."""
    workers = max(1, job.loader.workers)
    return replace(job, steps=-(-job.steps // workers) * workers)


def judge(twin: str, seed: int) -> Outcome:
    """Runs a twin both ways and asks the edit."""
    pair, how = made_pair(twin, seed)
    fixed = in_whole_rounds(pair.fixed)
    before, after = record(pair.fault, **how), record(fixed, **how)
    rerun = record(fixed, **how | {"seed": _numbers(f"{twin}/{seed}/again")})
    with tempfile.TemporaryDirectory() as folder:
        simulation = load_machine(before, Path(folder)).simulate([pair.edit])
    outcome = simulation.edits[0]
    predicted, low, high = (
        None if ns is None else ns / 1e3
        for ns in (outcome.predicted_ns, outcome.low_ns, outcome.high_ns)
    )
    return Outcome(
        twin, pair.edit, seed, pair.fault.steps, before.step_us(), after.step_us(),
        rerun.step_us(), simulation.measured_ns / 1e3, predicted, low, high, outcome.note,
    )  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """What the pairs of one twin say. See Note [What is counted]; None where all are refused."""

    twin: str
    edit: str
    pairs: int
    true_saving: float
    """Median share of the step."""
    shown_error: float
    """Median of |step shown / true step - 1| before the fix."""
    refused: float
    error: float | None
    """Median of |error|."""
    error_90: float | None
    """Nine in ten lie below."""
    covered: float | None
    covered_alike: float | None
    wrong_sign: int


def summarise(outcomes: list[Outcome]) -> list[Summary]:
    """By twin."""
    names = dict.fromkeys(outcome.twin for outcome in outcomes)
    return [_summary([outcome for outcome in outcomes if outcome.twin == n]) for n in names]


def _summary(outcomes: list[Outcome]) -> Summary:
    said = [outcome for outcome in outcomes if not outcome.refused]
    errors = np.abs([outcome.error for outcome in said])
    return Summary(
        twin=outcomes[0].twin,
        edit=outcomes[0].edit.split("=")[0],
        pairs=len(outcomes),
        true_saving=float(np.median([o.gain for o in outcomes])),
        shown_error=float(np.median([abs(o.shown_us / o.before_us - 1) for o in outcomes])),
        refused=1 - len(said) / len(outcomes),
        error=float(np.median(errors)) if said else None,
        error_90=float(np.quantile(errors, 0.9)) if said else None,
        covered=float(np.mean([o.covered for o in said])) if said else None,
        covered_alike=float(np.mean([o.covered_alike for o in said])) if said else None,
        wrong_sign=sum(o.wrong_sign for o in said),
    )


def table(summaries: list[Summary]) -> str:
    """As docs/results/simulation.md has it."""
    head = (
        "| twin | pairs | true saving | error, median | nine in ten below | covered | "
        "same numbers | wrong sign | refused |\n|---|---|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *map(_line, summaries)])


def _line(s: Summary) -> str:
    def share(value: float | None, digits: int = 0) -> str:
        return "-" if value is None else f"{value:.{digits}%}"

    cells = [s.twin, str(s.pairs), share(s.true_saving), share(s.error, 1), share(s.error_90, 1)]
    cells += [share(s.covered), share(s.covered_alike), str(s.wrong_sign), share(s.refused)]
    return f"| {' | '.join(cells)} |"


def _judged(names: list[str], seeds: range) -> Iterator[Outcome]:
    for name in names:
        for seed in seeds:
            yield judge(name, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=20, help="pairs of each twin")
    parser.add_argument("--first", type=int, default=0, help="seed of the first pair")
    parser.add_argument("--twins", nargs="*", default=[*TWINS])
    parser.add_argument("--each", action="store_true", help="a line for each pair")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    outcomes = []
    for outcome in _judged(options.twins, range(options.first, options.first + options.seeds)):
        outcomes.append(outcome)
        if options.each:
            print(outcome)
    summaries = summarise(outcomes)
    print(table(summaries))
    if options.output:
        write_results(options.output, twins=[asdict(summary) for summary in summaries])


if __name__ == "__main__":
    main()
