"""Nine faults planted into public traces: do the scores of their windows stand above the others?

    python benchmarks/detectors/planted.py CORPUS --why TEXT [--scorer NAME ...] [--output FILE]

Each fault (`lab/generation/event_faults.py`) stands at two places of a trace and costs 12 % of
its time in all; those that a trace has by itself are left out. For each trace with a fault this
gives the AUC of its windows: those of which the fault takes a tenth or more against those of which
it takes less than a fiftieth (`all`). What the trace loses by itself counts as a window without a
fault there, so 1.0 cannot be expected of traces that lose much; in `own_left_out` windows that one
of the two passes of labels gives to another fault (docs/evaluation.md) are left out. The traces
are for tests alone: a look is logged.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

import torchtraceap as ttap
from torchtraceap.core.results import Windows
from torchtraceap.datasets.labels import NEGATIVE, POSITIVE, covered_share
from torchtraceap.lab.evaluation.judged_traces import log_look
from torchtraceap.lab.generation.event_faults import FILLS
from torchtraceap.lab.generation.event_injection import Recording, inject

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

from public_labels import ANY, Pass, read_real_labels

TRACES = (
    "hta/mi250_minitoy_training.json.gz",
    "hta/nccl_a100_rank_of_2.json.gz",
    "hta/resnet_ddp_v100_ns_resolution.json.gz",
    "luatil/compiled_training_cudagraph.json.gz",
    "modded_nanogpt/overlap_hook.json.gz",
    "param/linear_training_2080ti.json.gz",
    "segment_anything_fast/amg_fast.json.gz",
    "tokenomics/llama_tp2_rank0.json",
    "tracelens/b200/eager_training_rank.json.gz",
    "tracelens/h100/qwen_inference.json.gz",
    "tracelens/h100/timesformer_inference.json.gz",
    "tracelens/h100/vit_nsfw_inference.json.gz",
)
PLANTED = (
    "cpu_bound",
    "graph_break",
    "high_memcpy",
    "host_silence",
    "no_memory_pin",
    "pageable_readback",
    "single_process_data_loading",
    "small_nccl_kernels",
    "synchronous_memset",
)
SHARE, PLACES = 0.12, 2
OTHERS = ("all", "own_left_out")
"""Which windows the planted ones are compared with."""
LABELS = Path(__file__).parent / "real_labels"


@dataclass(frozen=True)
class Planted:
    """A trace with a fault. Intervals are int64 `[n, 2]`, ns."""

    fault: str
    trace: ttap.Trace
    truth: np.ndarray
    own: np.ndarray
    """What it lost before, in the eyes of either pass."""


def planted(path: Path, passes: Sequence[Pass], folder: Path) -> Iterator[Planted]:
    """One for each fault."""
    data = path.read_bytes()
    recording = Recording(json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))
    present = {finding.type for finding in ttap.load(path).diagnose().findings}
    lost = np.concatenate([each for of in passes for each in (of.intervals_of(ANY), of.doubtful)])
    lost = lost + round(recording.events[0]["ts"] * 1e3)
    us = recording.span_us() * SHARE / PLACES
    for fault in (name for name in PLANTED if name not in present):
        faulty, truth, own, later = recording.copy(), [], lost.copy(), 0.0
        for at, thread in faulty.places(PLACES):
            fill = FILLS[fault]
            new, shift = inject(
                faulty, (at + later, thread), lambda b, fill=fill: fill(b, us), True
            )
            truth += new
            own[lost >= at * 1e3] += round(shift * 1e3)
            later += shift
        place = folder / "trace.json"
        place.write_text(json.dumps(faulty.write()), encoding="utf-8")
        intervals = np.rint(np.array(truth) * 1e3).astype(np.int64)
        yield Planted(fault, ttap.load(place), intervals, own)


def aucs(scores: Windows, of: Planted) -> dict[str, float]:
    """Of the windows that the fault takes against those that it does not."""
    bounds_ns = np.array(scores.bounds_ns, dtype=np.int64)
    share, own = (covered_share(each, bounds_ns) for each in (of.truth, of.own))
    positive = share >= POSITIVE
    others = {"all": share < NEGATIVE, "own_left_out": (share < NEGATIVE) & (own < NEGATIVE)}
    return {
        name: float(roc_auc_score(positive[used], scores.scores[used]))
        for name, used in ((name, positive | negative) for name, negative in others.items())
        if not positive[used].all()
    }


def summary(rows: list[dict[str, Any]], scorer: str, others: str) -> dict[str, Any]:
    """Means, over all and by fault and trace."""
    rows = [row for row in rows if others in row[scorer]]
    values = np.array([row[scorer][others] for row in rows])
    found: dict[str, Any] = {"mean": values.mean(), "at_least_95": (values >= 0.95).mean()}
    for key in ("fault", "trace"):
        names = sorted({row[key] for row in rows})
        found[key] = {
            name: values[[row[key] == name for row in rows]].mean().round(3) for name in names
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--scorer", action="append", default=[])
    parser.add_argument("--why", required=True, help="what the look at test data is for")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    scorers = options.scorer or ["evidence", "structural", "fused"]
    log_look("benchmarks/detectors/planted.py", ["real"], scorers, options.why)
    labels = read_real_labels(LABELS)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in TRACES:
            passes = labels.traces[name]
            for of in planted(options.corpus / name, passes, Path(folder)):
                said = {s: aucs(ttap.score(of.trace, scorer=s, windows=100), of) for s in scorers}
                rows.append({"trace": name, "fault": of.fault, **said})
    found = {
        others: {scorer: summary(rows, scorer, others) for scorer in scorers} for others in OTHERS
    }
    print(json.dumps(found, indent=1))
    if options.output:
        write_results(options.output, windows=100, summary=found, rows=rows)


if __name__ == "__main__":
    main()
