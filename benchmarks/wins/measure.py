"""Five wins of TorchBench's paper as pairs (examples/wins): found, gated by a contract, priced?

    python benchmarks/wins/measure.py [--device H100-SXM] [--run-on cpu|cuda ...] [--only WIN ...]
                                      [--traces FOLDER] [--output FILE]

Each side is predicted for a GPU and, on each device of `--run-on` (the CPU by default), run and
recorded in a fresh process. On every trace the contract is checked; on those of a GPU `diagnose`
looks for the type. `saving`: what the replay of the bad side's trace, or the bound of the rule,
says that a fix of the finding saves per step, with its interval. `true`: the median step of the bad
side minus that of the good one, both profiled. On a CPU the batch is smaller (counts are the same),
and times are told of nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torchtraceap as ttap
from torchtraceap.contracts.checker import check
from torchtraceap.contracts.file import read_contracts
from torchtraceap.lab.bench.processes.programs import trace_program
from torchtraceap.lab.bench.runs.child import Spec
from torchtraceap.tables.steps.iterations import step_time

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

ROOT = Path(__file__).resolve().parents[2]
WINS = ROOT / "examples/wins"
SIDES = ("bad", "good")


@dataclass(frozen=True)
class Win:
    """A pair of examples/wins."""

    name: str
    finding: str
    """The type that is in the bad side and not in the good one."""
    section: str
    """Of the paper."""
    trained: bool
    cpu_batch: int | None
    """None where the number of samples is what counts."""

    def source(self, side: str) -> str:
        """The workload, by name."""
        return f"{WINS / self.name}.py:{side}"


ALL = (
    Win("zero_grad", "zero_grad_not_none", "4.1", True, 8),
    Win("scalar_copy", "small_copies", "4.1", False, 1),
    Win("offload", "high_memcpy", "4.1", False, 8),
    Win("host_work", "for_loop_indexing", "4.1", False, None),
    Win("checks", "host_sync_in_loop", "4.2", True, 8),
)


@dataclass(frozen=True)
class Judged:
    """A trace of one side."""

    step_ns: int | None
    passed: bool
    broken: dict[str, Any]
    """Keys of the contract that failed, with what was measured."""
    open: tuple[str, ...]
    """Keys that this trace says nothing of."""
    measured: dict[str, Any]
    first_event: str
    """Of the first key that failed."""
    found: bool
    """The type is present."""
    cost_share: float
    saving_ns: tuple[int, int, int] | None
    """Low, best and high, per step."""
    saving_method: str


@dataclass(frozen=True)
class Row:
    """A pair on one device."""

    win: str
    section: str
    finding: str
    made: str
    """"predicted" or "recorded"."""
    device: str
    bad: Judged
    good: Judged

    @property
    def true_ns(self) -> int | None:
        """Per step; None where nothing is timed."""
        if self.bad.step_ns is None or self.good.step_ns is None:
            return None
        return self.bad.step_ns - self.good.step_ns


def predicted(win: Win, device: str, folder: Path) -> list[Path]:
    """Traces of both sides, as `torchtraceap predict --trace` writes them."""
    paths = []
    for side in SIDES:
        target = folder / f"{win.name}_{side}_predicted.json.gz"
        ttap.predict(win.source(side), device=device).write_trace(target)
        paths.append(target)
    return paths


def recorded(win: Win, device: str, folder: Path) -> list[Path]:
    """Traces of both sides, each run in a fresh process."""
    paths = []
    for side in SIDES:
        spec = Spec(
            workload=win.source(side),
            mode="train" if win.trained else "eval",
            device=device,
            batch=win.cpu_batch if device == "cpu" else None,
        )
        target = folder / f"{win.name}_{side}_{device}.json.gz"
        path = trace_program(spec.command(), target=target, timeout_s=600)
        assert path is not None  # the child's loop is `measured`
        paths.append(path)
    return paths


def judge(win: Win, path: Path, *, timed: bool) -> Judged:
    """Contract and diagnosis of one trace."""
    trace = ttap.load(path)
    contract = read_contracts(WINS / "contract.yaml").contract(win.name)
    result = check(trace, contract, price=False)
    failed = [each for each in result.results if each.status == "failed"]
    events = (each.first_event.name for each in failed if each.first_event is not None)
    diagnosis = trace.diagnose().to_dict()
    found = next((each for each in diagnosis["findings"] if each["type"] == win.finding), None)
    saving = None if found is None else found["saving"]
    step = step_time(trace.ranks)
    return Judged(
        step_ns=step.measured_ns if timed and step is not None else None,
        passed=result.passed,
        broken={each.key: each.measured for each in failed},
        open=tuple(each.key for each in result.results if each.status == "inconclusive"),
        measured={each.key: each.measured for each in result.results},
        first_event=next(events, ""),
        found=found is not None,
        cost_share=0.0 if found is None else found["cost_share"],
        saving_ns=None if saving is None else tuple(
            saving[key] for key in ("low_ns", "best_ns", "high_ns")
        ),
        saving_method="" if saving is None else saving["method"],
    )  # fmt: skip


def measure(win: Win, made: str, device: str, folder: Path) -> Row:
    """One pair on one device."""
    make = predicted if made == "predicted" else recorded
    timed = made == "predicted" or device != "cpu"
    bad, good = (judge(win, path, timed=timed) for path in make(win, device, folder))
    return Row(win.name, win.section, win.finding, made, device, bad, good)


# ------------------------------------------------------------------------------------ the table


def table(rows: Iterable[Row]) -> str:
    """As Markdown."""
    head = (
        "win", "on", "finding, of bad's time", "in good", "broken by bad: measured, good's", "good",
        "saving, ms", "true, ms",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(row))} |" for row in rows)])


def _cells(row: Row) -> list[str]:
    bad, good = row.bad, row.good
    told = "not told" if "findings" in bad.open else "not found"
    share = f"{bad.cost_share:.1%}" if bad.found else told
    broken = [
        f"{key} {_short(value)}, {_short(good.measured[key])}"
        for key, value in bad.broken.items()
        if key != "findings"
    ]
    saving = "" if bad.saving_ns is None or row.true_ns is None else _saving(bad)
    return [
        row.win,
        f"{row.device}, {row.made}",
        f"`{row.finding}` {share}",
        "yes" if good.found else "no",
        "; ".join(broken) or ("findings" if bad.broken else f"nothing; open: {_listed(bad)}"),
        "passes" if good.passed else f"fails: {', '.join(good.broken)}",
        saving,
        "" if row.true_ns is None else _ms(row.true_ns),
    ]


def _listed(judged: Judged) -> str:
    return ", ".join(judged.open) or "nothing"


def _saving(bad: Judged) -> str:
    assert bad.saving_ns is not None
    low, best, high = map(_ms, bad.saving_ns)
    return f"{best} ({low} to {high}), {bad.saving_method}"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3g}"


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def measure_all(wins: Sequence[Win], device: str, run_on: Sequence[str], folder: Path) -> list[Row]:
    """All pairs, predicted and recorded."""
    rows = [measure(win, "predicted", device, folder) for win in wins]
    return rows + [measure(win, "recorded", each, folder) for each in run_on for win in wins]


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="H100-SXM", help="that is predicted")
    parser.add_argument("--run-on", nargs="*", default=["cpu"], choices=("cpu", "cuda"))
    parser.add_argument("--only", nargs="*", default=[], choices=[win.name for win in ALL])
    parser.add_argument("--traces", type=Path, help="keep them in this folder")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    wins = [win for win in ALL if not options.only or win.name in options.only]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.traces or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = measure_all(wins, options.device, options.run_on, folder)
    print(table(rows))
    if options.output is not None:
        found = [{**dataclasses.asdict(row), "true_ns": row.true_ns} for row in rows]
        write_results(options.output, rows=found)


if __name__ == "__main__":
    main()
