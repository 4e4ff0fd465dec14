"""Faults planted into public traces: do the scores of their windows stand above the others?

    python benchmarks/detectors/planted.py CORPUS --why TEXT [--scorer NAME ...] [--output FILE]
                                           [--fit OUT]

Two injectors plant into each trace the faults that it does not have. That of the generator puts one
at two places for 12 % of its time (`lab/generation/event_faults.py`); the *other*, of
`benchmarks/findings/independent.py`, which nobody wrote for scorers, puts one at three to 24 drawn
places for 15 % and moves what waits for what. A window of which the fault takes a tenth or more is
positive, one of which it takes less than a fiftieth is not; what the trace loses by itself counts
as a window without a fault, so 1.0 can't be expected of traces that lose much.

For each scorer and injector:

- `auc`: mean over traces of the AUC of windows within a trace; and of 0.95 or more, in what part.
- `type`: the part of positive windows whose likeliest type is that of the fault.
- `excluded`: the part of windows scored 0.5 or more whose likeliest type the rules exclude.
- `ece`: expected calibration error over ten bins of windows, with the bins.
- `traces`: AUC of the highest score of a trace, with a fault against the same trace without.
- `healthy`: traces without a planted fault of which more than 2 % of windows score 0.5 or more.

With `--fit`, the stack of `fused` is fitted too: to the generator's faults in other traces and
asked of the other injector's (`unseen`); to both without the trace and without the form that it is
asked about (`crossed`), which tells how to read a score; and to all, which is written into OUT. The
traces are for tests alone: a look is logged.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

import torchtraceap as ttap
from torchtraceap.datasets.labels import covered_share, window_labels
from torchtraceap.datasets.samples import window_arrays
from torchtraceap.diagnosis.scoring import structural
from torchtraceap.diagnosis.scoring.fused import fused_inputs
from torchtraceap.errors import OptionError
from torchtraceap.lab.evaluation.judged_traces import log_look
from torchtraceap.lab.generation.event_faults import FILLS
from torchtraceap.lab.generation.event_injection import Recording, inject
from torchtraceap.lab.training.fused import fit_stack, write_stack
from torchtraceap.tables import feature_names
from torchtraceap.tables.detection import excluded_types, present_findings

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "findings"))
from harness import write_results
from independent import FORMS, Job, plant

TRACES = (
    "gpu_puzzlers/d2h_sync_fixed.json.gz",
    "gpu_puzzlers/dtoh_non_blocking.json.gz",
    "hta/alexnet_critical_path.json.gz",
    "hta/ddp_a100_rank_of_8_control.json.gz",
    "hta/mi250_minitoy_training.json.gz",
    "hta/nccl_a100_rank_of_2.json.gz",
    "hta/resnet_ddp_v100_ns_resolution.json.gz",
    "hta/sampled_rank_1_of_128.json.gz",
    "kineto/resnet50_num_workers_4.json.gz",
    "luatil/compiled_training_cudagraph.json.gz",
    "modded_nanogpt/overlap_hook.json.gz",
    "param/dlrm_8ranks/rank5.json",
    "param/linear_training_2080ti.json.gz",
    "segment_anything_fast/amg_baseline.json.gz",
    "segment_anything_fast/amg_fast.json.gz",
    "tokenomics/llama_tp2_rank0.json",
    "torchrec_4ranks_late_rank/rank2.json.gz",
    "tracelens/b200/eager_training_rank.json.gz",
    "tracelens/h100/qwen_inference.json.gz",
    "tracelens/h100/timesformer_inference.json.gz",
    "tracelens/h100/vit_nsfw_inference.json.gz",
    "tracelens/mi300/bert_inference.json.gz",
    "tracelens/mi300/resnet_ddp_act_checkpoint_training.json.gz",
)
PLANTED = (
    "cpu_bound", "created_on_host", "for_loop_indexing", "graph_break", "high_memcpy",
    "host_silence", "no_memory_pin", "pageable_readback", "single_process_data_loading",
    "small_nccl_kernels", "synchronous_memset",
)  # fmt: skip
"""Faults of the generator that lie at places; others are spread over a trace."""
GENERATOR, OTHER = INJECTORS = ("generator", "other")
SHARES = {GENERATOR: 0.12, OTHER: 0.15}
PLACES = 2
LEAST_SHARE = 0.03
"""The least part of the trace that a fault takes: below, it may be found or not."""
MARGIN_US = 5.0
"""Shorter losses are the rounding of times."""
FLAGGED, SURE, MOST_FLAGGED = 0.5, 0.8, 0.02
FOLDS = 5


@dataclass
class Planted:
    """A trace with a fault or, by "none", without; W windows."""

    trace: str
    injector: str
    fault: str
    types: tuple[str, ...]
    """Right names."""
    positive: np.ndarray
    """bool `[W]`."""
    ignore: np.ndarray
    """bool `[W]`: neither positive nor negative."""
    inputs: np.ndarray
    """float64 `[W, inputs]`, of the stack."""
    excluded: frozenset[str]
    scores: dict[str, np.ndarray] = field(default_factory=dict)
    named: dict[str, list[str]] = field(default_factory=dict)
    """The likeliest type of each window, by scorer; empty without one."""


def generator_faults(path: Path, present: set[str]) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield each fault of the generator with its names, the document and intervals in us; none for
    a trace of an old profiler, whose names the generator does not know."""
    try:
        recording = Recording(_read(path))
    except OptionError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return
    us = recording.span_us() * SHARES[GENERATOR] / PLACES
    for fault in (name for name in PLANTED if name not in present):
        faulty, truth, later = recording.copy(), [], 0.0
        for at, thread in faulty.places(PLACES):
            fill = FILLS[fault]
            new, shift = inject(
                faulty, (at + later, thread), lambda b, fill=fill: fill(b, us), True
            )
            truth += new
            later += shift
        yield fault, (fault,), (faulty.write(), truth)


def other_faults(path: Path, present: set[str]) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield the trace without a fault ("none"), then with each of the other injector."""
    job = Job(path)
    unchanged = plant(job, None)
    yield "none", (), (unchanged.document, [])
    ends = [event["ts"] + event["dur"] for event in job.gpu + job.host]
    span = max(ends) - job.host[0]["ts"]
    several = any("nccl" in str(event["name"]).lower() for event in job.gpu)
    for seed, (name, form) in enumerate(FORMS.items()):
        if not form.types or name == "late_rank" or present & set(form.types):
            continue
        job.seed = seed
        places = len(job.places(form.places))
        if not places or (form.ranks and not several):
            continue
        found = plant(job, form, max(span * SHARES[OTHER] / places, 100.0))
        longer = found.longer_us - unchanged.longer_us
        if longer / (span + longer) < LEAST_SHARE:
            continue
        least = max(MARGIN_US, longer / places / 20)
        lost = [(a, b) for a, b in [*found.windows, *found.lost] if b - a > least]
        yield name, form.types, (found.document, lost)


def judged(path: Path, name: str, scorers: Sequence[str]) -> Iterator[Planted]:
    """Yield the trace without a fault, then with each."""
    present = set(present_findings(ttap.load(path)))
    makers = {OTHER: other_faults, GENERATOR: generator_faults}
    for injector, make in makers.items():
        for fault, types, (document, lost) in make(path, present):
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder) / "trace.json"
                place.write_text(json.dumps(document), encoding="utf-8")
                trace = ttap.load(place)
                (arrays,) = window_arrays(trace, 100)
                truth = np.rint(np.array(lost).reshape(-1, 2) * 1e3).astype(np.int64)
                share = covered_share(truth, arrays["bounds_ns"])
                positive, ignore = window_labels(share[:, None])
                trees = structural.load()
                figures = trees.figures(list(feature_names()), arrays["values"], arrays["zscores"])
                found = Planted(
                    trace=name, injector=injector, fault=fault, types=types,
                    positive=positive, ignore=ignore,
                    inputs=fused_inputs(figures.logit, arrays["surprisal"]),
                    excluded=excluded_types(trace),
                )  # fmt: skip
                for scorer in scorers:
                    windows = ttap.score(trace, scorer=scorer, windows=100)
                    likely = np.stack(list(windows.types.values()))
                    kinds, best = list(windows.types), likely.argmax(axis=0)
                    found.scores[scorer] = windows.scores
                    found.named[scorer] = [
                        kinds[kind] if likely[kind, window] else ""
                        for window, kind in enumerate(best)
                    ]
            yield found


def _read(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


# ---------------------------------------------------------------------------------- figures


def window_auc(of: Planted, scores: np.ndarray) -> float:
    used = ~of.ignore
    return float(roc_auc_score(of.positive[used], scores[used]))


def has_both(of: Planted) -> bool:
    return bool(of.positive.any() and (~of.positive & ~of.ignore).any())


def calibration(rows: Sequence[Planted], scores: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return the expected calibration error over ten bins, and of each bin the mean score, the part
    that is positive and the number of windows."""
    said = np.concatenate([each[~of.ignore] for of, each in zip(rows, scores, strict=True)])
    true = np.concatenate([of.positive[~of.ignore] for of in rows])
    bins, error = [], 0.0
    for low in np.arange(10) / 10:
        inside = (said >= low) & ((said < low + 0.1) | (low == 0.9))
        if inside.any():
            mean, part, count = said[inside].mean(), true[inside].mean(), int(inside.sum())
            error += abs(mean - part) * count / len(said)
            bins.append([round(float(mean), 3), round(float(part), 3), count])
    return {"ece": round(float(error), 4), "bins": bins}


def figures_of(
    rows: Sequence[Planted], healthy: Sequence[Planted], said: dict[int, np.ndarray]
) -> dict[str, Any]:
    """Return the figures of the module's docstring but those of types.

    Args:
        rows: Traces with a fault.
        healthy: Traces without.
        said: Scores by `id` of the trace.
    """
    both = [of for of in rows if has_both(of)]
    aucs = np.array([window_auc(of, said[id(of)]) for of in both])
    everything = [*rows, *healthy]
    highest = [said[id(of)].max() for of in everything]
    flagged = [float((said[id(of)] >= FLAGGED).mean()) for of in healthy]
    by_fault = defaultdict(list)
    for of, value in zip(both, aucs, strict=True):
        by_fault[of.fault].append(value)
    return {
        "planted": len(both),
        "auc": round(float(aucs.mean()), 4),
        "at_least_95": round(float((aucs >= 0.95).mean()), 3),
        **calibration(everything, [said[id(of)] for of in everything]),
        "traces": round(float(roc_auc_score([bool(of.types) for of in everything], highest)), 3),
        "healthy": f"{sum(part > MOST_FLAGGED for part in flagged)} of {len(healthy)}",
        "by_fault": {name: round(float(np.mean(each)), 3) for name, each in by_fault.items()},
    }


def how_to_read(rows: Sequence[Planted], said: dict[int, np.ndarray]) -> str:
    """Return a sentence on what scores of 0.5 and of 0.8 or more mean.

    Args:
        rows: Traces with a fault, and without.
        said: Scores by `id` of the trace, of stacks that learned neither from it nor its form.
    """
    scores = np.concatenate([said[id(of)][~of.ignore] for of in rows])
    positive = np.concatenate([of.positive[~of.ignore] for of in rows])
    (right, false), (sure, rare) = (
        (positive[scores >= least].mean(), (scores[~positive] >= least).mean())
        for least in (FLAGGED, SURE)
    )
    return (
        f"A score of {FLAGGED} or more says where to look first: with faults planted into public "
        f"traces, {100 * right:.0f} % of such windows held the fault, and {100 * false:.0f} % of "
        f"the windows without it scored as high; at {SURE}, {100 * sure:.0f} % and "
        f"{100 * rare:.0f} %."
    )


def type_figures(rows: Sequence[Planted], scorer: str) -> dict[str, Any]:
    right, flagged, excluded = [], 0, 0
    for of in rows:
        named = np.array(of.named[scorer])
        if of.positive.any():
            right.append(np.isin(named[of.positive], of.types).mean())
        high = of.scores[scorer] >= FLAGGED
        flagged += int(high.sum())
        excluded += int(np.isin(named[high], sorted(of.excluded)).sum())
    return {
        "type": round(float(np.mean(right)), 3),
        "excluded": round(excluded / max(flagged, 1), 4),
    }


def crossed(
    asked: Sequence[Planted], learned: Sequence[Planted], *, forms: bool
) -> dict[int, np.ndarray]:
    """Return scores of traces by stacks that were fitted without the trace, and without the form
    where `forms` is set."""
    names = sorted({of.trace for of in (*asked, *learned)})
    fold = {name: place % FOLDS for place, name in enumerate(names)}
    kinds = sorted({of.fault for of in asked}) if forms else [None]
    said: dict[int, np.ndarray] = {}
    for part in range(FOLDS):
        for kind in kinds:
            chosen = [of for of in asked if fold[of.trace] == part and kind in (None, of.fault)]
            others = [
                of for of in learned
                if fold[of.trace] != part and (kind in (None, "none") or of.fault != kind)
            ]  # fmt: skip
            if chosen:
                weights = fit_stack([of.inputs for of in others], others)
                for of in chosen:
                    said[id(of)] = structural.probability(of.inputs @ weights[:-1] + weights[-1])
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--scorer", action="append", default=[])
    parser.add_argument("--why", required=True, help="what the look at test data is for")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--fit", type=Path, help="folder for the weights of the stack")
    options = parser.parse_args()
    scorers = options.scorer or ["evidence", "structural", "fused"]
    log_look("benchmarks/detectors/planted.py", ["real"], scorers, options.why)
    rows: list[Planted] = []
    for name in TRACES:
        rows += judged(options.corpus / name, name, scorers)
        print(f"{name}: {len(rows)} in all", file=sys.stderr, flush=True)
    healthy = [of for of in rows if of.fault == "none"]
    by_injector = {
        each: [of for of in rows if of.injector == each and of.types] for each in INJECTORS
    }
    found: dict[str, Any] = {}
    for injector, planted in by_injector.items():
        for scorer in scorers:
            said = {id(of): of.scores[scorer] for of in rows}
            found[f"{scorer}, {injector}"] = type_figures(planted, scorer) | figures_of(
                planted, healthy, said
            )
    if options.fit:
        generator, other = (by_injector[each] for each in INJECTORS)
        unseen = crossed([*other, *healthy], [*generator, *healthy], forms=False)
        found["stack unseen, other"] = figures_of(other, healthy, unseen)
        every = crossed(rows, rows, forms=True)
        for injector, planted in (*by_injector.items(), ("both", [*generator, *other])):
            found[f"stack crossed, {injector}"] = figures_of(planted, healthy, every)
        weights = fit_stack([of.inputs for of in rows], rows)
        about = {
            "fitted_to": f"{len(rows)} public traces with planted faults, and without",
            "reading": how_to_read(rows, every),
        }
        options.fit.mkdir(parents=True, exist_ok=True)
        write_stack(options.fit / "fused.safetensors", weights, about)
        found["weights"] = weights.round(4).tolist()
    print(json.dumps(found, indent=1))
    if options.output:
        write_results(options.output, windows=100, found=found)


if __name__ == "__main__":
    main()
