"""Figures of the suite, of comparisons and of the five wins on a GPU, in some minutes.

    python benchmarks/device/bench_suite.py [--device cuda] [--minutes 9] [--parts PART ...]
                                            [--out FOLDER] [--quick]

Parts, in this order: `wins` (the pairs of examples/wins, recorded and predicted, with findings,
contracts and savings), `suite` (workloads eager in fp32, TF32 and bf16 and compiled, with latency,
memory and breakdowns), `verdicts` (`bench compare` of each pair), `calibration` (`bench calibrate`:
false alarms of A against A on this machine), `watch` (what watching takes from a training). Each
has a share of the time that is left when it begins, and leaves out what no longer fits. What there
is is written behind each part (`bench_suite.json`), with what was left out and why: a part whose
libraries are missing (pyarrow for the store of runs, PyYAML for contract files) does what it can
without. `--quick` makes everything small, for a try without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "wins"))
from harness import write_results

ROOT = Path(__file__).resolve().parents[2]

WORKLOADS = (
    "resnet", "gpt", "dlrm", "sac", "conformer", "bert", "unet", "vit", "detr", "vgg", "llama",
    "moe", "mobilenet", "wav2vec", "swin", "deepfm", "ppo", "gcn", "hf_bert", "hf_gpt2",
)  # fmt: skip
"""Of all six domains, the first of each early: what no longer fits is left out from the end."""
SMALL = ("dlrm", "sac")
"""For a try."""
COMPILED = ("resnet", "gpt", "dlrm", "conformer", "sac", "bert", "vit")
_COMPILED_S = 60.0
"""What a compiled workload takes at least: it is not begun with less time left."""
_LEAST_S = 15.0


@dataclass
class Machine:
    """Where and how it runs."""

    device: str
    quick: bool
    out: Path
    ends: float
    left_out: list[str] = field(default_factory=list)
    """What was not done, and why."""

    def left_s(self) -> float:
        """Until it has to be over."""
        return self.ends - time.monotonic()

    def within(self, share: float) -> Machine:
        """The same with a part of the time that is left."""
        ends = time.monotonic() + max(self.left_s(), 0.0) * share
        return dataclasses.replace(self, ends=ends)

    def fits(self, items: Sequence[Any], least_s: float = _LEAST_S) -> Iterator[Any]:
        """Items as long as there is time for another."""
        for place, item in enumerate(items):
            if self.left_s() < least_s:
                left = ", ".join(str(getattr(each, "name", each)) for each in items[place:])
                self.left_out.append(f"no time left for {left}")
                return
            yield item


# ------------------------------------------------------------------------- parts


def wins(machine: Machine) -> dict[str, Any]:
    """The pairs, run here and predicted."""
    from measure import ALL, Row, measure, table

    if importlib.util.find_spec("yaml") is None:
        raise ModuleNotFoundError("contracts are read by PyYAML, which is not installed")
    folder = machine.out / "wins"
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for win in machine.fits(ALL[-2:] if machine.quick else ALL, 30.0):
        rows.append(measure(win, "recorded", machine.device, folder))
        print(table(rows[-1:]), flush=True)
    if not machine.quick:
        for win in machine.fits(ALL):
            rows.append(measure(win, "predicted", "H100-SXM", folder))
    print(table(rows), flush=True)
    return {"rows": [{**dataclasses.asdict(row), "true_ns": row.true_ns} for row in rows]}


def suite(machine: Machine) -> dict[str, Any]:
    """Workloads, each with its figures and the breakdown of its trace."""
    from torchtraceap.lab.bench.runs.config import Asked

    names = SMALL if machine.quick else WORKLOADS
    size = "tiny" if machine.quick else "full"
    on_gpu = machine.device != "cpu"
    precisions = ("fp32", "tf32", "bf16") if on_gpu else ("fp32", "bf16")

    def asked(name: str, precision: str, compiled: bool = False) -> Asked:
        threads = None if on_gpu else 1
        return Asked(name, "train", machine.device, precision, compiled, size=size, threads=threads)

    eager = machine.within(0.6)
    found = [
        # The paper's precision is the one that is explained by a trace.
        _measured(eager, asked(name, precision), trace=precision == precisions[-2])
        for name in eager.fits(names)
        for precision in precisions
    ]
    if not machine.quick:
        found += [
            _measured(machine, asked(name, "tf32" if on_gpu else "fp32", compiled=True))
            for name in machine.fits(COMPILED, _COMPILED_S)
        ]
    runs = [run for run in found if run is not None]
    return {"runs": runs, "eager_over_compiled": _ratios(runs), "tables": _tables(machine)}


def _measured(machine: Machine, asked: Any, *, trace: bool = True) -> dict[str, Any] | None:
    """A run as plain values; kept in the store where pyarrow is there to write it."""
    import tempfile

    from torchtraceap.lab.bench.runs.config import Protocol
    from torchtraceap.lab.bench.runs.run import WorkloadError, measure
    from torchtraceap.lab.bench.store.breakdown import break_down
    from torchtraceap.trace.load import load

    steps = 5 if machine.quick else 20
    protocol = Protocol(processes=1, steps=steps, trace=trace, timeout_s=180.0)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = measure(asked, protocol, Path(folder))
            if _has_parquet():
                _store(machine).save(run)
            parts = None if run.trace is None else break_down(load(run.trace))
    except WorkloadError as failure:
        machine.left_out.append(f"{asked.label}: {failure.kind}: {failure}")
        return None
    step_ms = run.metrics["step_ns"]["median"] / 1e6
    print(f"{asked.label}: {step_ms:.3g} ms", flush=True)
    findings = (run.diagnosis or {}).get("findings", [])
    return {
        "workload": asked.workload,
        "label": asked.label,
        "config": run.config,
        "metrics": run.metrics,
        "counts": run.counts,
        "findings": {each["type"]: each["cost_share"] for each in findings},
        "breakdown": None if parts is None else parts.to_dict(),
    }


def _has_parquet() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def _store(machine: Machine) -> Any:
    from torchtraceap.lab.bench.store.run_store import Store

    return Store(machine.out / "store")


def _ratios(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Eager over compiled time of a step, by workload."""
    step = {
        (run["workload"], run["config"]["precision"], run["config"]["compiled"]): run["metrics"][
            "step_ns"
        ]["median"]
        for run in runs
    }
    return {
        name: step[name, precision, False] / ns
        for (name, precision, compiled), ns in step.items()
        if compiled and (name, precision, False) in step
    }


def _tables(machine: Machine) -> dict[str, Any]:
    """Those of the command line, of what the store has."""
    if not _has_parquet():
        machine.left_out.append("no tables of the store: pyarrow is not installed")
        return {}
    store = ("--store", str(machine.out / "store"), "--json")
    return {
        "eager-compiled": _asked(machine, "bench", "table", "eager-compiled", *store),
        "breakdown": _asked(machine, "bench", "breakdown", *store),
    }


def verdicts(machine: Machine) -> dict[str, Any]:
    """`bench compare` of the good side against the bad one."""
    from measure import ALL

    pairs = "10" if not machine.quick else "4"
    found = {}
    wins = ALL[-1:] if machine.quick else sorted(ALL, key=lambda win: not win.trained)
    for win in machine.fits(wins, 5.0 if machine.quick else 90.0):
        words = [machine.device, "steps=10", "warmup=3", *(() if win.trained else ("eval",))]
        if machine.device == "cpu":
            words += ["threads=1", *((f"batch={win.cpu_batch}",) if win.cpu_batch else ())]
        sides = [f"workload:{win.source(side)},{','.join(words)}" for side in ("good", "bad")]
        answer = _asked(machine, "bench", "compare", *sides, "--pairs", pairs, "--json")
        found[win.name] = answer
        if answer is not None:
            change = answer["change"]["best"] if answer.get("change") else None
            print(f"{win.name}: {answer['verdict']}, {change}", flush=True)
    return found


def calibration(machine: Machine) -> dict[str, Any]:
    """False alarms of a workload against itself; a run takes some 7 s, most of it its start."""
    runs = 20 if machine.quick else int(min(max(machine.left_s() / 7, 20), 80))
    if machine.left_s() < 4 * runs:
        machine.left_out.append(f"no time left for {runs} runs")
        return {}
    word = f"workload:{SMALL[0]},{machine.device},steps=10"
    more = ("--pairs", "10", "--comparisons", "50" if machine.quick else "400", "--json")
    return _asked(machine, "bench", "calibrate", word, "--runs", str(runs), *more) or {}


def watch(machine: Machine) -> dict[str, Any]:
    """Steps of a training with `ttap.watch` and without, by turns in one process."""
    import tempfile

    from torchtraceap.lab.workloads.steps import make_step
    from torchtraceap.record.watch import watch as watched

    size = "tiny" if machine.quick else "full"
    seconds = 4.0 if machine.quick else min(machine.left_s() / 4, 40.0)
    blocks: dict[str, list[float]] = {"plain": [], "watched": []}
    shares = []
    with make_step("gpt", device=machine.device, size=size) as step:
        _timed(step, lambda: None, 2.0)
        for _ in machine.fits(range(2), seconds):
            blocks["plain"].append(_timed(step, lambda: None, seconds / 2))
            with tempfile.TemporaryDirectory() as folder, watched(folder, every=5.0) as guest:
                blocks["watched"].append(_timed(step, guest.step, seconds / 2))
            shares.append(guest.overhead_share)
    means = {name: statistics.fmean(each) if each else None for name, each in blocks.items()}
    return {"step_s": blocks, "mean_step_s": means, "own_count_of_the_share": shares}


def _timed(step: Any, then: Callable[[], Any], seconds: float) -> float:
    """Mean time of a step, s; the device is waited for at the end."""
    step.synchronize()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(5):
            step.step()
            then()
            count += 1
        step.synchronize()
    return (time.perf_counter() - began) / count


def _asked(machine: Machine, *words: str) -> Any:
    """What a command prints as JSON; None where it fails or takes too long, which is told."""
    command = [sys.executable, "-W", "ignore", "-m", "torchtraceap", *words]
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False,
            timeout=max(machine.left_s(), 30.0), env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        machine.left_out.append(f"{' '.join(words[:3])}: its time was over")
        return None
    try:
        return json.loads(done.stdout)
    except ValueError:
        said = (done.stderr.strip() or "it printed nothing").splitlines()[-1]
        machine.left_out.append(f"{' '.join(words[:3])}: {said}")
        return None


PARTS: dict[str, tuple[Callable[[Machine], dict[str, Any]], float]] = {
    "wins": (wins, 0.3),
    "suite": (suite, 0.5),
    "verdicts": (verdicts, 0.6),
    "calibration": (calibration, 0.6),
    "watch": (watch, 0.9),
}
"""With the share that each has of the time that is left when it begins."""


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a try")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--parts", nargs="*", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--out", type=Path, default=ROOT / "build/device")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    whole = Machine(
        options.device, options.quick, options.out, time.monotonic() + 60 * options.minutes
    )
    found: dict[str, Any] = {"gpu": _gpu(options.device)}
    for name in options.parts:
        part, share = PARTS[name]
        began = time.monotonic()
        machine = whole.within(share if name != options.parts[-1] else 1.0)
        machine.left_out = []
        print(f"==> {name}: {machine.left_s():.0f} s at most", flush=True)
        try:
            found[name] = part(machine)
        except Exception as error:  # the other parts still count
            traceback.print_exc()
            machine.left_out.append(f"{type(error).__name__}: {error}")
        found.setdefault("left_out", {})[name] = machine.left_out
        found.setdefault("seconds", {})[name] = round(time.monotonic() - began, 1)
        write_results(options.out / "bench_suite.json", **found)
    for name, reasons in found.get("left_out", {}).items():
        for reason in reasons:
            print(f"left out of {name}: {reason}")


def _gpu(device: str) -> dict[str, Any] | None:
    import torch

    if device == "cpu":
        return None
    about = torch.cuda.get_device_properties(0)
    return {"name": about.name, "memory_bytes": about.total_memory, "torch": torch.__version__}


if __name__ == "__main__":
    main()
