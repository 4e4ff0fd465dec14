"""Scorers and baselines on the public traces that were labelled by looking (docs/evaluation.md).

    python benchmarks/detectors/real.py CORPUS [DATASET] --why TEXT [--scorer NAME ...]
        [--page docs/results/evaluation.md] [--output FILE] [--scores FILE]

Baselines learn from the split "train" of DATASET, and thresholds are those of its split
"validation"; without one, the package's scorers are measured alone. `--page` writes the part
`scorers` of the page, `--output` all numbers as JSON, and `--scores` the scores and labels of every
window as NumPy arrays. The traces are for tests alone: each run is a look, and is logged.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from torchtraceap.core.writing import write_text
from torchtraceap.lab.evaluation.judged_traces import log_look
from torchtraceap.lab.evaluation.methods import METHODS, WANTED_SCORERS
from torchtraceap.lab.evaluation.tables import fill_parts

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

from public_labels import read_real_labels, read_recordings
from public_scores import RealEvaluation, evaluate_real, real_document, real_part

LABELS = Path(__file__).with_name("real_labels")


def write_scores(evaluation: RealEvaluation, path: Path) -> None:
    """scores/METHOD/TRACE, labels/TRACE (1 positive, 0 negative, -1 left out) and bounds/TRACE."""
    arrays = {}
    for sample in evaluation.samples:
        arrays[f"labels/{sample.id}"] = np.where(sample.ignore, -1, sample.positive)
        arrays[f"bounds/{sample.id}"] = sample.bounds_ns
        for name, scores in evaluation.scores.items():
            arrays[f"scores/{name}/{sample.id}"] = scores[sample.id][0]
    np.savez_compressed(path, allow_pickle=False, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("dataset", type=Path, nargs="?")
    parser.add_argument("--scorer", action="append", default=[])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--why", required=True, help="what the look at test data is for")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--scores", type=Path)
    options = parser.parse_args()
    labels, recordings = read_real_labels(LABELS), read_recordings(LABELS / "recordings.json")
    names = options.scorer or [*(METHODS if options.dataset else ()), *WANTED_SCORERS]
    log_look("benchmarks/detectors/real.py", ["real"], names, options.why)
    found = evaluate_real(
        options.corpus, labels, recordings, options.dataset, methods=names, seeds=options.seeds
    )
    text = real_part(found)
    print(text)
    if options.page:
        write_text(options.page, fill_parts(options.page.read_text("utf-8"), {"scorers": text}))
    if options.output:
        write_results(options.output, **real_document(found))
    if options.scores:
        write_scores(found, options.scores)


if __name__ == "__main__":
    main()
