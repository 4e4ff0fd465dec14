"""Iteration times of jobs that nobody ran: vTrain's and NeuSight's published times.

python benchmarks/simulation/compositions.py [FOLDER]

FOLDER has vtrain/ and neusight/; by default ../shared/oracles. Prints Markdown tables. Splits are
by group or, for the small calibrations, random with seeds or chosen by shapes alone. Baselines:
floating point operations at the median efficiency of the calibration, and a power law in all sizes.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torchtraceap.pipelines import (
    Machine,
    TrainingJob,
    calibrate,
    choose_measurements,
)

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(10)
SHARE = 0.05
Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


def read_vtrain(path: Path) -> tuple[list[TrainingJob], Array]:
    """Jobs and their times in ns."""
    jobs, times = [], []
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in list(csv.reader(file))[1:]:
            _, batch, micro, hidden, _, layers, sequence, tensor, data, pipeline = map(
                int, row[:-1]
            )
            jobs.append(TrainingJob(batch, micro, hidden, layers, sequence, tensor, data, pipeline))
            times.append(float(row[-1]) * 1e6)
    return jobs, np.array(times)


def operations(jobs: Iterable[TrainingJob]) -> Array:
    """Floating point operations of a step for each GPU."""
    return np.array([_operations(job) / job.gpus for job in jobs])


def _operations(job: TrainingJob) -> float:
    parameters = 12 * job.hidden**2 * job.layers + job.vocabulary * job.hidden
    return 6.0 * job.global_batch * job.sequence * parameters


def by_operations(jobs: list[TrainingJob], times: Array, train: Rows) -> Array:
    work = operations(jobs)
    return work * np.median(times[train] / work[train])


def by_power_law(jobs: list[TrainingJob], times: Array, train: Rows) -> Array:
    sizes = [
        [j.global_batch, j.micro_batch, j.hidden, j.layers, j.tensor, j.data, j.pipeline]
        for j in jobs
    ]
    terms = np.c_[np.ones(len(jobs)), np.log(np.array(sizes, dtype=float))]
    exponents = np.linalg.lstsq(terms[train], np.log(times[train]), rcond=None)[0]
    return np.exp(terms @ exponents)


def by_composition(machine: Machine) -> Callable[[list[TrainingJob], Array, Rows], Array]:
    def predict(jobs: list[TrainingJob], times: Array, train: Rows) -> Array:
        return calibrate(machine, [jobs[i] for i in train], times[train]).predict(jobs)[0]

    return predict


def splits(jobs: list[TrainingJob], machine: Machine) -> Iterable[tuple[str, list[Rows]]]:
    """Name and the calibration rows of each repetition; all other rows are tested."""
    rows = np.arange(len(jobs))
    count = int(SHARE * len(jobs))
    yield (
        f"{SHARE:.0%} at random, {len(SEEDS)} seeds",
        [np.random.default_rng(seed).choice(rows, count, replace=False) for seed in SEEDS],
    )
    for share in (SHARE / 2, SHARE):
        chosen = choose_measurements(machine, jobs, int(share * len(jobs)))
        yield f"{share:.1%} chosen by shape", [np.array(chosen)]
    groups: dict[str, Array] = {
        "GPUs": np.array([j.gpus for j in jobs]),
        "hidden": np.array([j.hidden for j in jobs]),
        "tensor": np.array([j.tensor for j in jobs]),
        "micro batch": np.array([j.micro_batch for j in jobs]),
        "layers": np.array([j.layers for j in jobs]),
    }
    for name, values in groups.items():
        for value in np.unique(values):
            if (values != value).any():
                yield f"without {name} = {value:.0f}", [np.flatnonzero(values != value)]


def regrets(jobs: list[TrainingJob], times: Array, predicted: Array, tested: Rows) -> list[float]:
    """What the predicted fastest way to train a model costs over the fastest, by group.

    Groups have the same model, batch and GPUs; those without a tested job are left out.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, job in enumerate(jobs):
        key = (job.gpus, job.global_batch, job.hidden, job.layers)
        groups.setdefault(key, []).append(row)
    wanted = set(tested.tolist())
    return [
        float(times[rows[int(predicted[rows].argmin())]] / times[rows].min() - 1)
        for rows in groups.values()
        if len(rows) > 1 and wanted & set(rows)
    ]


def vtrain(folder: Path) -> None:
    jobs, times = read_vtrain(folder / "vtrain" / "ground_truth_single.csv")
    machine = Machine.of("a100_sxm_40gb")
    predictors = (by_composition(machine), by_operations, by_power_law)
    print(f"vTrain, {len(jobs)} jobs on 2 to 8 A100\n")
    print("| calibration | jobs | tested | MAPE | median | p95 | max | fastest, regret "
          "| by operations | power law |")  # fmt: skip
    print("|---" * 10 + "|")
    for name, repetitions in splits(jobs, machine):
        errors: list[list[Array]] = [[] for _ in predictors]
        picks: list[float] = []
        for train in repetitions:
            tested = np.setdiff1d(np.arange(len(jobs)), train)
            for place, predictor in enumerate(predictors):
                predicted = predictor(jobs, times, train)
                errors[place].append(np.abs(predicted / times - 1)[tested])
                if not place:
                    picks += regrets(jobs, times, predicted, tested)
        picked = "-"
        if picks:
            picked = f"{np.mean(np.array(picks) < 1e-9):.0%} of {len(picks)}, {np.mean(picks):.2%}"
        ours, operations_only, power_law = (np.concatenate(part) for part in errors)
        print(
            f"| {name} | {len(train)} | {len(tested)} | {ours.mean():.2%} | {np.median(ours):.2%} "
            f"| {np.quantile(ours, 0.95):.1%} | {ours.max():.1%} | {picked} "
            f"| {operations_only.mean():.0%} | {power_law.mean():.0%} |"
        )


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


def neusight(folder: Path) -> None:
    """4-GPU times from one GPU's: no fit, no knowledge of the 4-GPU times."""
    machine = Machine.of("h100_sxm")
    labels = folder / "neusight" / "label_e2e"
    print("\nNeuSight, 4 H100\n")
    print("| job | measured ms | here ms | error | from |")
    print("|---" * 5 + "|")
    errors = []
    for path in sorted(labels.glob("NVIDIA_H100_80GB_HBM3__*-train-*-*[dtp]p4*.json")):
        model, _, sequence, batch, kind = path.stem.split("__")[1].split("-")
        measured = float(json.loads(path.read_text())["e2e_latency"])
        found = four_gpus(folder, machine, model, sequence, int(batch), kind[:2])
        if found is None:
            print(f"| {path.stem} | {measured:.1f} | - | - | no time of one GPU |")
            continue
        predicted, source = found
        errors.append(abs(predicted / measured - 1))
        name = f"{model} {kind[:2]} batch {batch}"
        print(f"| {name} | {measured:.1f} | {predicted:.1f} | {predicted / measured - 1:+.1%} "
              f"| {source} |")  # fmt: skip
    print(f"\nMean error {np.mean(errors):.1%} of {len(errors)}")


def four_gpus(
    folder: Path, machine: Machine, model: str, sequence: str, batch: int, kind: str
) -> tuple[float, str] | None:
    """Milliseconds and what they were made of."""
    parameters, layers, hidden, length = MODELS[model]
    if kind == "dp":
        alone = one_gpu_ms(folder, model, sequence, batch // 4)
        exchange = machine.all_reduce_ns(SINGLE * parameters, 4) / 1e6
        return alone and (alone[0] + exchange, f"{alone[1]}, all-reduce of the gradients")
    alone = one_gpu_ms(folder, model, sequence, batch)
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


def one_gpu_ms(folder: Path, model: str, sequence: str, batch: int) -> tuple[float, str] | None:
    """Of the largest measured batch that divides the wanted one, as often as needed."""
    for parts in (1, 2, 4, 8, 16):
        path = (
            folder
            / "neusight/label_e2e"
            / f"NVIDIA_H100_80GB_HBM3__{model}-train-{sequence}-{batch // parts}.json"
        )
        if batch % parts == 0 and path.exists():
            alone = float(json.loads(path.read_text())["e2e_latency"])
            return parts * alone, f"{parts} x batch {batch // parts} on one GPU"
    return None


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared" / "oracles"
    if not (folder / "vtrain").is_dir():
        sys.exit(f"{folder}: no vtrain/ in it")
    vtrain(folder)
    neusight(folder)


if __name__ == "__main__":
    main()
