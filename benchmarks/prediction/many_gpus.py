"""Iteration times of jobs that nobody ran, on 2 to 512 GPUs: published times, left out in turn.

python benchmarks/prediction/many_gpus.py [FOLDER] [--fit] [--json FILE]

FOLDER has vtrain/, neusight/ and megatron_table5/; by default ../shared/oracles. vTrain's jobs on
many nodes lie beside this file (VIA-Research/vTrain at f8dda84, data/ground_truth_multi.csv, MIT).
Prints Markdown tables. Nothing is fitted on the jobs that it is tested on. Splits are by group or,
for the small calibrations, random with seeds or chosen by shapes alone. Baselines: floating point
operations at the median efficiency of the calibration, and a power law in all sizes.

--fit writes what the package ships (pipelines/data/training.json), fitted on all of these jobs.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap.lab.jobs import (
    CalibratedJobs,
    Coefficients,
    Deviations,
    Machine,
    TrainingJob,
    calibrate,
    choose_measurements,
)
from torchtraceap.lab.jobs.terms import COEFFICIENTS

ROOT = Path(__file__).resolve().parents[2]
MANY_NODES = Path(__file__).with_name("vtrain_many_nodes.csv")
SHIPPED = ROOT / "python/torchtraceap/lab/jobs/data/training.json"
SEEDS = range(5)
SHARE = 0.05
Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Jobs = Sequence[TrainingJob]


@dataclass(frozen=True, slots=True)
class Measured:
    """Jobs of one program on one kind of machine, and what they took."""

    name: str
    machine: Machine
    jobs: list[TrainingJob]
    ns: Array

    def part(self, rows: Rows) -> tuple[list[TrainingJob], Array]:
        return [self.jobs[row] for row in rows], self.ns[rows]

    def calibrated(self, rows: Rows, start: Coefficients | None) -> CalibratedJobs:
        return calibrate(self.machine, *self.part(rows), start=start)


def one_node(folder: Path) -> Measured:
    """vTrain's jobs on 2 to 8 GPUs: nothing is computed again."""
    path = folder / "vtrain" / "ground_truth_single.csv"
    return _vtrain("one node", "a100_sxm_40gb", path, 0, "none")


def many_nodes() -> Measured:
    """vTrain's jobs on 64 to 512 GPUs: whole layers are computed again (its configurations)."""
    return _vtrain("many nodes", "a100_sxm_80gb", MANY_NODES, 1, "full")


def _vtrain(name: str, device: str, path: Path, skipped: int, recompute: str) -> Measured:
    jobs, times = [], []
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in list(csv.reader(file))[1:]:
            _, batch, micro, hidden, heads, layers, sequence, tensor, data, pipeline = map(
                int, row[skipped:-1]
            )
            jobs.append(
                TrainingJob(
                    batch, micro, hidden, layers, sequence, tensor, data, pipeline,
                    heads=heads, recompute=recompute,
                )
            )  # fmt: skip
            times.append(float(row[-1]) * 1e6)
    return Measured(name, Machine.of(device), jobs, np.array(times))


# Hidden size, heads, layers, stages, chunks, batch, micro-batch; tensor parallelism is 8
# (Korthikanti et al., 2022, table 3).
MEGATRON = {
    "megatron-22B": (6144, 64, 48, 1, 1, 4, 4),
    "gpt3-175B": (12288, 96, 96, 8, 3, 64, 1),
    "turing-530B": (20480, 128, 105, 35, 3, 280, 1),
    "megatron-1T": (25600, 160, 128, 64, 1, 512, 1),
}


def megatron(folder: Path) -> tuple[Measured, list[str], Array]:
    """The eight points of table 5, the model of each, and Calculon's times in ns.

    "full" computes layers again; "seqsel" the attention core, with sequence parallelism.
    """
    jobs, times, names, calculon = [], [], [], []
    with (folder / "megatron_table5" / "measured_iteration_s.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            hidden, heads, layers, stages, chunks, batch, micro = MEGATRON[row["model"]]
            selective = row["recompute"] == "seqsel"
            jobs.append(
                TrainingJob(
                    batch, micro, hidden, layers, 2048, 8, 1, stages, heads=heads, chunks=chunks,
                    recompute="selective" if selective else "full", sequence_parallel=selective,
                )
            )  # fmt: skip
            names.append(row["model"])
            times.append(float(row["measured_s"]) * 1e9)
            calculon.append(float(row["calculon_s"]) * 1e9)
    machine = Machine.of("a100_sxm_80gb")
    return Measured("Megatron", machine, jobs, np.array(times)), names, np.array(calculon)


def operations(jobs: Iterable[TrainingJob]) -> Array:
    """Floating point operations of a step for each GPU."""
    return np.array([_operations(job) / job.gpus for job in jobs])


def _operations(job: TrainingJob) -> float:
    parameters = 12 * job.hidden**2 * job.layers + job.vocabulary * job.hidden
    return 6.0 * job.global_batch * job.sequence * parameters


def by_operations(jobs: Jobs, times: Array, train: Rows) -> Array:
    work = operations(jobs)
    return work * np.median(times[train] / work[train])


def by_power_law(jobs: Jobs, times: Array, train: Rows) -> Array:
    sizes = [
        [j.global_batch, j.micro_batch, j.hidden, j.layers, j.tensor, j.data, j.pipeline]
        for j in jobs
    ]
    terms = np.c_[np.ones(len(jobs)), np.log(np.array(sizes, dtype=float))]
    exponents = np.linalg.lstsq(terms[train], np.log(times[train]), rcond=None)[0]
    return np.exp(terms @ exponents)


@dataclass(slots=True)
class Errors:
    """What came of one split, over its repetitions."""

    relative: list[Array]
    held: list[Array]
    """Whether the interval that should hold 8 of 10 does."""
    wide: list[Array]
    """Half of the interval's width over the time."""
    new: list[Array]
    """Whether no job of the shape was learned from."""
    picks: list[float]
    sigmas: list[Array]

    @classmethod
    def none(cls) -> Errors:
        return cls([], [], [], [], [], [])

    def add(self, model: CalibratedJobs, jobs: Jobs, measured: Array) -> None:
        times, low, high = model.interval(jobs)
        self.relative.append(times / measured - 1)
        self.held.append((low <= measured) & (measured <= high))
        self.wide.append(np.sqrt(high / low) - 1)
        self.new.append(np.array([not model.has_measured(job) for job in jobs]))

    def figures(self) -> dict[str, Any]:
        relative = np.concatenate(self.relative)
        error, held = np.abs(relative), np.concatenate(self.held)
        new = np.concatenate(self.new)
        found: dict[str, Any] = {
            "tested": len(error),
            "mape": float(error.mean()),
            "median": float(np.median(error)),
            "p95": float(np.quantile(error, 0.95)),
            "max": float(error.max()),
            "bias": float(relative.mean()),
            "scaled": _scaled(relative),
            "held": float(held.mean()),
            "width": float(np.median(np.concatenate(self.wide))),
        }
        if new.any():
            found["held_new_shapes"] = float(held[new].mean())
            found["mape_new_shapes"] = float(error[new].mean())
        if self.picks:
            picks = np.array(self.picks)
            found |= {
                "groups": len(picks),
                "fastest_found": float((picks < 1e-9).mean()),
                "regret": float(picks.mean()),
            }
        return found


def _scaled(relative: Array) -> float:
    """Mean error if all were multiplied by the one factor that suits them best: what is left when
    only their order of size is wrong. It has seen what it is tested on."""
    ratios = 1 + relative
    order = np.argsort(1 / ratios)
    half = np.searchsorted(np.cumsum(ratios[order]), ratios.sum() / 2)
    factor = 1 / ratios[order[half]]
    return float(np.abs(factor * ratios - 1).mean())


def regrets(measured: Measured, predicted: Array, tested: Rows) -> list[float]:
    """What the predicted fastest way to train a model costs over the fastest, by group.

    Groups have the same model, batch and GPUs; those without a tested job are left out.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, job in enumerate(measured.jobs):
        key = (job.gpus, job.global_batch, job.hidden, job.layers)
        groups.setdefault(key, []).append(row)
    wanted = set(tested.tolist())
    times = measured.ns
    return [
        float(times[rows[int(predicted[rows].argmin())]] / times[rows].min() - 1)
        for rows in groups.values()
        if len(rows) > 1 and wanted & set(rows)
    ]


def left_out(
    measured: Measured, trains: Iterable[Rows], start: Coefficients | None
) -> dict[str, Any]:
    """Figures of what is not in each calibration."""
    errors, simple = Errors.none(), ([], [])
    every = np.arange(len(measured.jobs))
    for train in trains:
        tested = np.setdiff1d(every, train)
        model = measured.calibrated(train, start)
        errors.add(model, *measured.part(tested))
        errors.picks += regrets(measured, model.predict(measured.jobs)[0], tested)
        for place, predictor in enumerate((by_operations, by_power_law)):
            predicted = predictor(measured.jobs, measured.ns, train)
            simple[place].append(np.abs(predicted / measured.ns - 1)[tested])
    found = errors.figures()
    found["by_operations"], found["by_power_law"] = (
        float(np.concatenate(part).mean()) for part in simple
    )
    return found


def by_value(jobs: Jobs, field: str) -> dict[int, Rows]:
    """Rows without each value of a size."""
    values = np.array([getattr(job, field) for job in jobs])
    return {int(value): np.flatnonzero(values != value) for value in np.unique(values)}


def small_calibrations(measured: Measured) -> dict[str, list[Rows]]:
    """Few jobs at random, and chosen by shape."""
    rows = np.arange(len(measured.jobs))
    count = int(SHARE * len(rows))
    found = {
        f"{SHARE:.0%} at random, {len(SEEDS)} seeds": [
            np.random.default_rng(seed).choice(rows, count, replace=False) for seed in SEEDS
        ]
    }
    for share in (SHARE / 2, SHARE):
        chosen = choose_measurements(measured.machine, measured.jobs, int(share * len(rows)))
        found[f"{share:.1%} chosen by shape"] = [np.array(chosen)]
    return found


HEAD = (
    "| left out | tested | MAPE | median | p95 | max | interval holds | half width | "
    "fastest, regret | by operations | power law |"
)


def show(name: str, figures: Mapping[str, Any]) -> None:
    picked = "-"
    if "groups" in figures:
        picked = f"{figures['fastest_found']:.0%} of {figures['groups']}, {figures['regret']:.2%}"
    print(
        f"| {name} | {figures['tested']} | {figures['mape']:.2%} | {figures['median']:.2%} "
        f"| {figures['p95']:.1%} | {figures['max']:.1%} | {figures['held']:.0%} "
        f"| {figures['width']:.1%} | {picked} | {figures['by_operations']:.0%} "
        f"| {figures['by_power_law']:.0%} |",
        flush=True,
    )


def vtrain(measured: Measured, fields: Sequence[str], start: Coefficients | None) -> dict[str, Any]:
    """Each value of each size left out; prints a table."""
    print(f"\nvTrain, {measured.name}: {len(measured.jobs)} jobs\n\n{HEAD}\n{'|---' * 11}|")
    found: dict[str, Any] = {}
    for field in fields:
        parts = by_value(measured.jobs, field)
        for value, train in parts.items():
            found[f"{field} = {value}"] = left_out(measured, [train], start)
            show(f"{field} = {value}", found[f"{field} = {value}"])
        found[f"every {field}"] = left_out(measured, list(parts.values()), start)
        show(f"**every {field}, in turn**", found[f"every {field}"])
    return found


def megatron_points(
    folder: Path, start: Coefficients, deviations: CalibratedJobs
) -> dict[str, Any]:
    """Untouched, and one model left out in turn."""
    measured, names, calculon = megatron(folder)
    model = CalibratedJobs(measured.machine, [], start, deviations.deviations)
    times, low, high = model.interval(measured.jobs)
    rows = np.arange(len(names))
    left = np.zeros((3, len(names)))
    for name in MEGATRON:
        here = np.array([one == name for one in names])
        other = measured.calibrated(rows[~here], start)
        left[:, here] = other.interval([job for job, is_it in zip(measured.jobs, here, strict=True)
                                        if is_it])  # fmt: skip
    print("\nMegatron, table 5\n")
    print("| job | measured s | from vTrain's jobs alone | error | other models measured | error "
          "| Calculon |")  # fmt: skip
    print("|---" * 7 + "|")
    for row in rows:
        job, second = measured.jobs[row], measured.ns[row] / 1e9
        print(
            f"| {names[row]}, {job.recompute} | {second:.2f} | {times[row] / 1e9:.2f} "
            f"| {times[row] / measured.ns[row] - 1:+.1%} | {left[0, row] / 1e9:.2f} "
            f"| {left[0, row] / measured.ns[row] - 1:+.1%} "
            f"| {calculon[row] / measured.ns[row] - 1:+.1%} |"
        )
    held = (low <= measured.ns) & (measured.ns <= high)
    held_left = (left[1] <= measured.ns) & (measured.ns <= left[2])
    figures = {
        "untouched": {
            "mape": float(np.abs(times / measured.ns - 1).mean()),
            "max": float(np.abs(times / measured.ns - 1).max()),
            "held": float(held.mean()),
        },
        "model left out": {
            "mape": float(np.abs(left[0] / measured.ns - 1).mean()),
            "max": float(np.abs(left[0] / measured.ns - 1).max()),
            "held": float(held_left.mean()),
        },
        "calculon": {"mape": float(np.abs(calculon / measured.ns - 1).mean())},
    }
    print(
        "\n" + "\n".join(f"{name}: mean error {part['mape']:.2%}" for name, part in figures.items())
    )
    return figures


def layer_shares(path: Path) -> tuple[float, float]:
    """Of a layer's measured time: what tensor parallelism divides, and what every rank does."""
    divided = replicated = 0.0
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name, latency = row["target"], float(row["latency"] or 0)
            if name.startswith(("transformer.w", "transformer.d", "transformer.ln_f", "lm_head")):
                continue
            if ".ln_" in name or (name.endswith("dropout") and "attn_dropout" not in name):
                replicated += latency
            else:
                divided += latency
    return divided, replicated


MODELS = {  # parameters, layers, hidden size, sequence (NeuSight's configurations)
    "gpt2_large": (774e6, 36, 1280, 1024),
    "gpt3_xl": (2.7e9, 24, 3072, 2048),
}
SINGLE = 4
"""Bytes of a number: NeuSight measures in single precision."""


# GPU of the 4-GPU times, GPU of the times of one, and ours whose all-reduces were measured. The
# two A100 have the same peak in single precision, which these jobs are bound by.
NEUSIGHT_GPUS = (
    ("NVIDIA_A100-SXM4-40GB", "NVIDIA_A100_80GB_PCIe", "a100_sxm_40gb"),
    ("NVIDIA_H100_80GB_HBM3", "NVIDIA_H100_80GB_HBM3", "h100_sxm"),
)


def neusight(folder: Path) -> dict[str, Any]:
    """4-GPU times from one GPU's: no fit, no knowledge of the 4-GPU times."""
    labels = folder / "neusight" / "label_e2e"
    print("\nNeuSight, 4 GPUs\n")
    print("| job | measured ms | here ms | error | from |")
    print("|---" * 5 + "|")
    errors: dict[str, float] = {}
    for four, one, device in NEUSIGHT_GPUS:
        machine = Machine.of(device)
        for path in sorted(labels.glob(f"{four}__*-train-*-*[dtp]p4*.json")):
            model, _, sequence, batch, kind = path.stem.split("__")[1].split("-")
            measured = float(json.loads(path.read_text())["e2e_latency"])
            found = four_gpus(folder, machine, (one, model, sequence), int(batch), kind[:2])
            if found is None:
                raise SystemExit(f"{path.stem}: no time of one GPU")
            predicted, source = found
            name = f"{four.split('-')[0].split('_')[1]} {model} {kind[:2]} batch {batch}"
            errors[name] = predicted / measured - 1
            print(f"| {name} | {measured:.1f} | {predicted:.1f} | {errors[name]:+.1%} "
                  f"| {source} |")  # fmt: skip
    mean = float(np.mean(np.abs(list(errors.values()))))
    print(f"\nMean error {mean:.2%} of {len(errors)}")
    return {"mape": mean, "errors": errors}


def four_gpus(
    folder: Path, machine: Machine, alone_on: tuple[str, str, str], batch: int, kind: str
) -> tuple[float, str] | None:
    """Milliseconds and what they were made of."""
    model = alone_on[1]
    parameters, layers, hidden, length = MODELS[model]
    if kind == "dp":
        alone = one_gpu_ms(folder, alone_on, batch // 4)
        exchange = machine.all_reduce_ns(SINGLE * parameters, 4) / 1e6
        return alone and (alone[0] + exchange, f"{alone[1]}, all-reduce of the gradients")
    alone = one_gpu_ms(folder, alone_on, batch)
    if alone is None:
        return None
    if kind == "pp":
        return alone[0], f"{alone[1]}: one micro-batch passes all stages"
    shares = [
        layer_shares(path)
        for path in sorted((folder / "neusight/label_ops_h100").glob(f"{model}-train-*.csv.gz"))
    ]
    divided, replicated = shares[-1]
    share = (divided / 4 + replicated) / (divided + replicated)
    exchange = 4 * layers * machine.all_reduce_ns(SINGLE * batch * length * hidden, 4) / 1e6
    return alone[0] * share + exchange, f"{alone[1]}, divided; 4 all-reduces a layer"


def one_gpu_ms(
    folder: Path, alone_on: tuple[str, str, str], batch: int
) -> tuple[float, str] | None:
    """Of the largest measured batch that divides the wanted one, as often as needed."""
    device, model, sequence = alone_on
    for parts in (1, 2, 4, 8, 16):
        name = f"{device}__{model}-train-{sequence}-{batch // parts}.json"
        path = folder / "neusight/label_e2e" / name
        if batch % parts == 0 and path.exists():
            alone = float(json.loads(path.read_text())["e2e_latency"])
            return parts * alone, f"{parts} x batch {batch // parts} on one GPU"
    return None


def write_fit(folder: Path, single: Measured, many: Measured) -> None:
    """What the package ships: each program learned after the other."""
    points, _, _ = megatron(folder)
    start: Coefficients | None = None
    models: list[CalibratedJobs] = []
    for measured in (single, many, points):
        models.append(calibrate(measured.machine, measured.jobs, measured.ns, start=start))
        start = models[-1].coefficients.for_another_program()
    # Of each kind of deviation the largest that any of the programs showed.
    widest = np.max([model.deviations for model in models], axis=0)
    jobs = [*single.jobs, *many.jobs, *points.jobs]
    sizes = ("hidden", "sequence", "tensor", "micro_batch", "pipeline", "gpus")
    ranges = {
        name: [min(getattr(job, name) for job in jobs), max(getattr(job, name) for job in jobs)]
        for name in sizes
    }
    known = models[-1].coefficients
    document: dict[str, Any] = {
        "source": "fitted on published times of A100: 1,189 of vTrain (2 to 512), 8 of Megatron",
        "sources": [
            {"repository": "VIA-Research/vTrain", "commit": "f8dda84", "licence": "MIT"},
            {"repository": "calculon-ai/calculon", "commit": "caa4b11", "licence": "Apache-2.0"},
        ],
        "devices": ["a100_sxm_40gb", "a100_sxm_80gb"],
        "ranges": ranges,
        "deviations": Deviations(*widest.tolist())._asdict(),
        "coefficients": {
            name: float(f"{value:.5g}")
            for name, value in zip(COEFFICIENTS, np.exp(known.mean), strict=True)
        },
        "covariance": [[float(f"{value:.4g}") for value in row] for row in known.covariance],
    }
    rows = ",\n  ".join(json.dumps(row) for row in document.pop("covariance"))
    text = json.dumps(document, indent=1).removesuffix("\n}")
    SHIPPED.write_text(f'{text},\n "covariance": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
    print(f"wrote {SHIPPED}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Many GPUs against published times.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT.parent / "shared" / "oracles")
    parser.add_argument("--fit", action="store_true", help="write what the package ships")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if not (options.folder / "vtrain").is_dir():
        sys.exit(f"{options.folder}: no vtrain/ in it")
    return options


def commit() -> str:
    """Of the code that ran."""
    found = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def main() -> None:
    options = arguments()
    folder = options.folder
    single, many = one_node(folder), many_nodes()
    if options.fit:
        write_fit(folder, single, many)
        return
    found: dict[str, Any] = {"commit": commit()}
    found["one node"] = vtrain(single, ("tensor", "hidden", "micro_batch", "gpus", "layers"), None)
    for name, trains in small_calibrations(single).items():
        found["one node"][name] = left_out(single, trains, None)
        show(name, found["one node"][name])
    learned = single.calibrated(np.arange(len(single.jobs)), None)
    start = learned.coefficients.for_another_program()
    found["many nodes"] = vtrain(many, ("hidden", "tensor", "pipeline"), start)
    errors = Errors.none()
    carried = CalibratedJobs(many.machine, [], start, learned.deviations)
    errors.add(carried, many.jobs, many.ns)
    errors.picks += regrets(many, carried.predict(many.jobs)[0], np.arange(len(many.jobs)))
    found["many nodes"]["all, from one node alone"] = errors.figures()
    print(f"\nFrom one node alone: {errors.figures()}")
    both = many.calibrated(np.arange(len(many.jobs)), start)
    found["megatron"] = megatron_points(folder, both.coefficients.for_another_program(), both)
    found["neusight"] = neusight(folder)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
