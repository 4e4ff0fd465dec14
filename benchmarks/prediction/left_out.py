"""GPU time of public models' traces by durations that have not seen their program.

    python benchmarks/prediction/left_out.py CORPUS [--out RESULTS.json]

What is shipped was fitted to public traces, those of `public_models.py` among them. Here the models
of kernel families and of products are fitted anew without the program of a trace, on any device,
and asked for the operators that the trace itself records; "by others" is corrected by the ratios of
the other programs' traces on the device to the same models. Numbers that stand in modules
(convolutions, odd rows of softmax) stay; docs/results/durations.md says what they have seen. Needs
SciPy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "simulation"))

import family_fit
import gemm_fit
import torchtraceap as ttap
import trace_kernels
from torchtraceap.ops.durations import families, gemm
from torchtraceap.ops.durations.calibration import KindTimes, fit_calibration
from torchtraceap.tables.ops.expected import Expectation

TRACES = {
    "tracelens/h100/vit_nsfw_inference.json.gz": "h100",
    "tracelens/h100/qwen_inference.json.gz": "h100",
    "tracelens/h100/timesformer_inference.json.gz": "h100",
    "tracelens/mi300/bert_inference.json.gz": "mi300",
    "tracelens/mi300/qwen_inference.json.gz": "mi300",
    "tracelens/mi300/timesformer_inference.json.gz": "mi300",
}


@contextmanager
def without(program: str, rows: trace_kernels.Kernels) -> Iterator[None]:
    """The package with models that were fitted to the other programs."""
    seen = rows.take(np.flatnonzero(rows.source != program))
    models = family_fit.fit(seen)
    fitted = family_fit.with_intervals(models, seen, *family_fit.predict(models, seen))
    shipped = gemm.load_products()
    transfer = gemm_fit.fit_transfer(gemm_fit.of_matrix_units(seen), shipped.models)
    products = gemm.Products(shipped.models, transfer, shipped.vector)
    with (
        mock.patch.object(families, "load_families", lambda: fitted),
        mock.patch.object(gemm, "load_products", lambda: products),
    ):
        yield


def error_of(own: Expectation, others: list[KindTimes]) -> dict[str, float]:
    """Of the sum over all units that a model knows, but for copies to and from the host."""
    times = own.kind_times()
    told = times.estimates.ns.copy()
    if others:
        calibration = fit_calibration(KindTimes.merge(others), for_other_program=True)
        told = np.array(
            [
                calibration.apply(times.estimates[at], times.classes[at], op=times.names[at]).ns
                for at in range(len(told))
            ]
        )
    chosen = np.array([not name.startswith("copy ") for name in times.classes]) & np.isfinite(told)
    calls, measured = times.calls[chosen], times.measured_ns[chosen]
    errors = np.repeat(np.abs(told[chosen] / measured - 1), calls)
    return {
        "gpu_error": float((told[chosen] * calls).sum() / (measured * calls).sum() - 1),
        "op_error_median": float(np.median(errors)),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = trace_kernels.kernels_of(options.corpus)
    programs: dict[str, list[str]] = defaultdict(list)
    for path in TRACES:
        programs[trace_kernels.source_of(Path(path))].append(path)
    found: dict[str, Any] = {}
    for program, paths in programs.items():
        with without(program, rows):
            parts = {path: Expectation(ttap.load(options.corpus / path).ranks[0])
                     for path in TRACES}  # fmt: skip
            for path in paths:
                others = [parts[other].kind_times() for other, device in TRACES.items()
                          if device == TRACES[path] and other not in paths]  # fmt: skip
                found[path] = {"alone": error_of(parts[path], []),
                               "calibrated": error_of(parts[path], others)}  # fmt: skip
                print(path, json.dumps(found[path]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
