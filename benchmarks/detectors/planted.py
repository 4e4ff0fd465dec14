"""Nine faults planted into public traces: do the scores of their windows stand above the others?

    python benchmarks/detectors/planted.py CORPUS --why TEXT [--scorer NAME ...] [--output FILE]

Each fault (`generation/injected_forms.py`) stands at two places of a trace and costs 12 % of its
time in all; those that a trace has by itself are left out. For each trace with a fault this gives
the AUC of its windows: those of which the fault takes a tenth or more against those of which it
takes less than a fiftieth. What the trace loses by itself counts as a window without a fault, so
1.0 cannot be expected of traces that lose much. The traces are for tests alone: a look is logged.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

import torchtraceap as ttap
from torchtraceap.datasets.labels import NEGATIVE, POSITIVE, covered_share
from torchtraceap.evaluation.looks import log_look
from torchtraceap.generation.injected_forms import FAULTS
from torchtraceap.generation.injection import Recording, plant

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

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


def planted(path: Path, folder: Path) -> Iterator[tuple[str, ttap.Trace, np.ndarray]]:
    """A trace for each fault, with the fault's intervals: int64 `[n, 2]`, ns."""
    data = path.read_bytes()
    recording = Recording(json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))
    own = {finding.type for finding in ttap.load(path).diagnose().findings}
    us = recording.span_us() * SHARE / PLACES
    for fault in (name for name in PLANTED if name not in own):
        faulty, truth, later = recording.copy(), [], 0.0
        for at, thread in faulty.places(PLACES):
            fill = FAULTS[fault]
            new, shift = plant(faulty, (at + later, thread), lambda b, fill=fill: fill(b, us), True)
            truth += new
            later += shift
        place = folder / "trace.json"
        place.write_text(json.dumps(faulty.write()), encoding="utf-8")
        yield fault, ttap.load(place), np.rint(np.array(truth) * 1e3).astype(np.int64)


def auc(scores: ttap.results.Windows, truth: np.ndarray) -> float:
    """Of the windows that the fault takes against those that it does not."""
    share = covered_share(truth, np.array(scores.bounds_ns, dtype=np.int64))
    used = (share >= POSITIVE) | (share < NEGATIVE)
    return float(roc_auc_score(share[used] >= POSITIVE, scores.scores[used]))


def summary(rows: list[dict[str, Any]], scorer: str) -> dict[str, Any]:
    """Means, over all and by fault and trace."""
    values = np.array([row[scorer] for row in rows])
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
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in TRACES:
            for fault, trace, truth in planted(options.corpus / name, Path(folder)):
                said = {s: auc(ttap.score(trace, scorer=s, windows=100), truth) for s in scorers}
                rows.append({"trace": name, "fault": fault, **said})
    found = {scorer: summary(rows, scorer) for scorer in scorers}
    print(json.dumps(found, indent=1))
    if options.output:
        write_results(options.output, windows=100, summary=found, rows=rows)


if __name__ == "__main__":
    main()
