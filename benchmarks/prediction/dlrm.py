#!/usr/bin/env python3
"""Recommendation models: the public 8-rank DLRM set predicted from its execution traces, and the
choice of a sharding on a machine with a known truth.

    python benchmarks/prediction/dlrm.py ORACLES TRACES [--output FILE]

ORACLES holds dlrm_8xV100_param/ (facebookresearch/param) and dlrm_datasets/ (histograms of
facebookresearch/dlrm_datasets), TRACES what host_data.py names.

Steps are predicted without any time of a kernel or collective of the set: GPU times are those of
durations/ for the V100. Which operator launches how many kernels is taken from the set's Kineto
traces, by name, since an execution trace does not say. Host times are, in this order:

- ours, others' hosts: the package's host model, fitted without the set's machine;
- ours, this machine's host: calibrated by the Kineto traces of ranks 0, 3 and 6 of the set, so that
  ranks 1, 2, 4, 5 and 7 are predicted;
- source: T1 to T5 from the Kineto traces of the other seven ranks, less what the source takes off
  for profiling; and with nothing taken off, since the measured run was profiled.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import fit_host_times
import host_data
import numpy as np
import sharding_choice
from dlrm_replay import replay
from lin2024 import (
    launches_by_name,
    measure_overheads,
    ops_of_ranks,
    simulate,
)

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.lab.prediction.lowering.host import HostModel
from torchtraceap.ops.devices import load_devices
from torchtraceap.trace.execution.reader import NodeFile, read_nodes
from torchtraceap.trace.ranks import RankTrace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import write_results

RANKS = 8
DEVICE = "v100_sxm2_32gb"
MACHINE = "v100-dlrm"
UNSEEN = (1, 2, 4, 5, 7)
"""Ranks that gave no host times to the fit with the machine."""
OUT = Path(__file__).resolve().parent.parent / "results" / "2026-11-23-dlrm.json"


@dataclass(frozen=True)
class Measured:
    """One rank's step."""

    begin_ns: int
    step_ns: int
    """With what it waits for ranks that begin later."""
    gpu_compute_ns: int
    """Kernels and copies that were launched in it, but for NCCL's."""


def read_set(folder: Path) -> tuple[list[RankTrace], list[NodeFile]]:
    """Kineto and execution traces of all ranks."""
    with tempfile.TemporaryDirectory() as unpacked:
        for kind in ("kineto", "pytorch_et"):
            _unpack(folder / f"dlrm_{kind}.tar.gz", Path(unpacked) / kind)
        trace = ttap.load(Path(unpacked) / "kineto")
        parts = [trace.rank(rank) for rank in range(RANKS)]
        files = [
            read_nodes(Path(unpacked) / "pytorch_et" / f"dlrm_eg_{rank}.json", with_arguments=True)
            for rank in range(RANKS)
        ]
    return parts, files


def _unpack(archive: Path, folder: Path) -> None:
    """The JSON files of an archive, by their names alone."""
    folder.mkdir()
    with tarfile.open(archive) as files:
        for member in files:
            content = files.extractfile(member) if member.isfile() else None
            name = Path(member.name).name
            if content is not None and name.endswith(".json") and not name.startswith("."):
                (folder / name).write_bytes(content.read())


def measured(part: RankTrace) -> Measured:
    """The marked step, and what the GPU computed in it."""
    table, tree = part.table, part.tree
    (step,) = (
        row for row in tree.host_rows.tolist()
        if table.strings[table.name[row]].startswith("ProfilerStep#")
    )  # fmt: skip
    launched = [row for row in tree.gpu_rows.tolist() if tree.launch[row] != _core.NO_ROW]
    computing = [row for row in launched if "nccl" not in table.strings[table.name[row]]]
    begin = int(table.ts_ns[step])
    return Measured(begin, int(table.dur_ns[step]), int(table.dur_ns[computing].sum()))


def errors(predicted: list[float], truth: list[float]) -> dict[str, float]:
    """Relative errors over ranks."""
    ratio = np.array(predicted) / np.array(truth) - 1.0
    return {
        "mean": float(ratio.mean()),
        "mean_absolute": float(np.abs(ratio).mean()),
        "largest": float(ratio[np.abs(ratio).argmax()]),
    }


def predict_set(oracles: Path, traces: Path) -> dict[str, object]:
    """Steps of all ranks by every method, beside the measured ones.

    Ranks begin up to 7 ms apart, for reasons that lie before the step; those that begin early wait.
    So all are told when each begins; `together` is the step of ranks that begin at one time, beside
    the time from the begin of the last to the end.
    """
    parts, files = read_set(oracles / "dlrm_8xV100_param")
    truth = [measured(part) for part in parts]
    first = min(one.begin_ns for one in truth)
    apart = [float(one.begin_ns - first) for one in truth]
    launches = launches_by_name(parts)
    device = load_devices()[DEVICE]
    ops = ops_of_ranks(files, device, launches)
    overheads = {
        name: [
            measure_overheads([part for part in parts if part is not own], **options)
            for own in parts
        ]
        for name, options in (
            ("source", {}),
            ("source, profiled", {"event_ns": 0.0, "launch_event_ns": 0.0}),
        )
    }
    methods: dict[str, dict[str, list[float]]] = {}
    for name, host in _hosts(traces).items():
        told, same = (replay(files, device, launches, host, begins)
                      for begins in (apart, [0.0] * RANKS))  # fmt: skip
        methods[name] = {
            "step_ns": [one.step_ns for one in told],
            "together_ns": [one.step_ns for one in same],
            "together_low_ns": [one.low_ns for one in same],
            "together_high_ns": [one.high_ns for one in same],
            "gpu_compute_ns": [one.gpu_compute_ns for one in told],
        }
    for name, times in overheads.items():
        told, same = (simulate(ops, times, begins) for begins in (apart, None))
        methods[name] = {
            "step_ns": [one.step_ns for one in told],
            "together_ns": [one.step_ns for one in same],
            "gpu_compute_ns": [one.gpu_active_ns - one.exposed_communication_ns for one in told],
        }
    kernels = methods["source"]["gpu_compute_ns"]
    methods["sum of kernels"] = dict.fromkeys(("step_ns", "together_ns", "gpu_compute_ns"), kernels)
    last = max(one.begin_ns for one in truth)
    real = {
        "step_ns": [float(one.step_ns) for one in truth],
        "together_ns": [float(one.begin_ns + one.step_ns - last) for one in truth],
        "gpu_compute_ns": [float(one.gpu_compute_ns) for one in truth],
    }
    return {
        "measured": real,
        "begins_ns": apart,
        "methods": {
            name: {**pairs, "errors": {key: _errors_of(name, pairs, real, key) for key in real}}
            for name, pairs in methods.items()
        },
    }


def _errors_of(
    name: str, predicted: dict[str, list[float]], real: dict[str, list[float]], key: str
) -> dict[str, float]:
    ranks = UNSEEN if name == "ours, this machine's host" else range(RANKS)
    return errors([predicted[key][rank] for rank in ranks], [real[key][rank] for rank in ranks])


def _hosts(traces: Path) -> dict[str, HostModel]:
    data = host_data.load_sources(traces)
    others = [one for one in data if one.source.machine != MACHINE]
    own = [one.calls for one in data if one.source.machine == MACHINE]
    without = HostModel(table=fit_host_times.fit(others)[0])
    return {"ours, others' hosts": without, "ours, this machine's host": without.calibrated(own)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("oracles", type=Path)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--output", type=Path, default=OUT)
    parser.add_argument("--only-set", action="store_true", help="no choice of sharding")
    options = parser.parse_args()
    found: dict[str, object] = {"set": predict_set(options.oracles, options.traces)}
    print_set(found["set"])
    if options.only_set:
        return
    for name, drawn in (("published", False), ("drawn", True)):
        choices = sharding_choice.measure(options.oracles / "dlrm_datasets", drawn=drawn)
        found[f"sharding_{name}"] = {
            "summary": sharding_choice.summary(choices),
            "tasks": sharding_choice.as_records(choices),
        }
        print(name, sharding_choice.summary(choices))
    write_results(options.output, indent=None, **found)


def print_set(found: dict) -> None:
    """A row for each method."""
    means = {key: np.mean(values) / 1e6 for key, values in found["measured"].items()}
    print(", ".join(f"measured {key}: {mean:.3f} ms" for key, mean in means.items()))
    for name, one in found["methods"].items():
        cells = [
            f"{key} {np.mean(one[key]) / 1e6:.3f} ms, mean {error['mean']:+.1%}, "
            f"absolute {error['mean_absolute']:.1%}, largest {error['largest']:+.1%}"
            for key, error in one["errors"].items()
        ]
        if "together_low_ns" in one:
            low, high = (np.mean(one[f"together_{end}_ns"]) / 1e6 for end in ("low", "high"))
            cells.append(f"interval of the step together: {low:.1f} to {high:.1f} ms")
        print(f"{name}\n  " + "\n  ".join(cells))


if __name__ == "__main__":
    main()
