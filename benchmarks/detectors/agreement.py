"""How far two passes over the public traces agree: Cohen's kappa of traces and of windows.

python benchmarks/detectors/agreement.py CORPUS [--output FILE]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import torchtraceap as ttap
from torchtraceap.core.results import PAPER_TYPES
from torchtraceap.datasets.labels import POSITIVE, covered_share

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

from public_labels import ANY, RealLabels, cohen_kappa, read_real_labels

LABELS = Path(__file__).with_name("real_labels")


def windows_of(labels: RealLabels, corpus: Path, count: int) -> dict[str, list[np.ndarray]]:
    """bool `[2, W]` of each trace by type: what each pass calls positive."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in (*PAPER_TYPES, ANY)}
    for path, both in labels.traces.items():
        trace = ttap.load(corpus / path)
        table = trace.ranks[0].table
        bounds_ns = trace.windows(count=count).bounds_ns - table.ts_ns[table.complete].min()
        for name, positives in found.items():
            shares = [covered_share(of.intervals_of(name), bounds_ns) for of in both]
            positives.append(np.stack(shares) >= POSITIVE)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    labels = read_real_labels(LABELS)
    by_trace = labels.kappa()
    windows = windows_of(labels, options.corpus, 100)
    rows = []
    for name, positives in windows.items():
        first, second = np.concatenate(positives, axis=1)
        kappa = cohen_kappa(first, second)
        rows.append(
            {
                "type": name,
                "kappa_traces": by_trace[name],
                "kappa_windows": kappa,
                "positive_windows": [int(first.sum()), int(second.sum())],
            }
        )
        print(rows[-1])
    if options.output:
        write_results(options.output, traces=len(labels.traces), sha256=labels.sha256, types=rows)


if __name__ == "__main__":
    main()
