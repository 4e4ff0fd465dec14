"""What stragglers cost in published operator traces, beside two trivial answers.

python benchmarks/simulation/stragglers.py [FOLDER]

FOLDER has `trace-NAME.csv.gz` and `result-NAME.json` of ByteDance-Seed/StragglerAnalysis, by
default ../shared/oracles/bytedance_straggler. Prints a Markdown table.

Baselines: *sum* takes the work of the busiest worker, as recorded over as in the ideal;
*subtraction* takes its excess over the mean worker away from the measured step.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from torchtraceap.lab.jobs import (
    OperatorTrace,
    Schedule,
    build_schedule,
    ideal_work,
    read_operator_trace,
    what_if_stragglers,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT.parent / "shared" / "oracles" / "bytedance_straggler"


def work_by_worker(trace: OperatorTrace, work_ns: np.ndarray) -> np.ndarray:
    """float64 `[steps, workers]`."""
    _, step = np.unique(trace.step, return_inverse=True)
    workers, worker = np.unique(trace.rank, return_inverse=True)
    place = step * len(workers) + worker
    total = np.bincount(place, weights=work_ns, minlength=(int(step.max()) + 1) * len(workers))
    return total.reshape(-1, len(workers))


def baselines(schedule: Schedule) -> tuple[float, float]:
    """S by the sum of the busiest worker's work, and by subtraction of its excess."""
    recorded = work_by_worker(schedule.trace, schedule.work_ns)
    ideal = work_by_worker(schedule.trace, ideal_work(schedule))
    step_ns = schedule.measured_step_ns
    excess = recorded.max(axis=1) - recorded.mean(axis=1)
    return (
        float(recorded.max(axis=1).mean() / ideal.max(axis=1).mean()),
        float(step_ns.mean() / (step_ns - excess).mean()),
    )


def row(trace_path: Path) -> list[str]:
    name = trace_path.name.split("-", 1)[1].split(".")[0]
    published = json.loads((trace_path.parent / f"result-{name}.json").read_text())
    truth = published["blocking_slowdown"]
    begin = time.perf_counter()
    trace = read_operator_trace(trace_path)
    report = what_if_stragglers(trace)
    seconds = time.perf_counter() - begin
    schedule = build_schedule(trace)
    noise = schedule.measured_step_ns.std() / schedule.measured_step_ns.mean()
    by_sum, by_subtraction = baselines(schedule)
    return [
        name,
        f"{len(np.unique(trace.rank))}",
        f"{len(schedule.steps)}",
        f"{len(trace):,}",
        f"{noise:.1%}",
        f"{report.delay_slowdown - 1:.2%}",
        f"{truth:.4f}",
        f"{report.slowdown:.4f} ({report.slowdown / truth - 1:+.4%})",
        f"{by_sum:.3f} ({by_sum / truth - 1:+.1%})",
        f"{by_subtraction:.3f} ({by_subtraction / truth - 1:+.1%})",
        f"{seconds:.2f}",
    ]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    paths = sorted(folder.glob("trace-*.csv.gz"))
    if not paths:
        sys.exit(f"{folder}: no trace-NAME.csv.gz in it")
    print(
        "| job | workers | steps | operators | step CV | replay error | S published | S here "
        "| S by sum | S by subtraction | seconds |"
    )
    print("|---" * 11 + "|")
    for path in paths:
        print(f"| {' | '.join(row(path))} |")


if __name__ == "__main__":
    main()
