"""Can generated traces be told from recorded ones by simple features?

    python benchmarks/generation/real_or_generated.py CORPUS [--bases 24] [--seed 1] [--keep FOLDER]
                                                      [--output FILE]

Needs scikit-learn (the extra `peers`). A sample is a slice of 128 launches of a trace in a row,
with the operators and calls of the host in between and the GPU work that they launch; at most 8 of
a trace, evenly spread. Recorded: the public traces of networks that run without compilation
(`RECORDED`). Generated, mode B: pairs on predicted runs, each on a base of its own; mode A: pairs
on those of the recorded traces that can be bases.

What belongs together is a cluster: traces of one model or job, all ranks of it, traces on one base,
and in mode A a base and what was made of it. No cluster is on both sides of a fold, each cluster
weighs the same, and intervals are of a bootstrap over clusters. The greater of two classifiers'
areas under the curve counts: logistic regression and boosted trees. `form`: keys, ids, digits of
times, what the file says beside its events. `content`: shares of names and kinds. `times`:
quantiles, tails and noise of durations, gaps and delays.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer

from torchtraceap.datasets.labels import TASKS
from torchtraceap.errors import TraceError
from torchtraceap.lab.generation.generate import generate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

RECORDED = (
    "kineto/resnet50_num_workers_0.json.gz",
    "kineto/resnet50_num_workers_4.json.gz",
    "hta/resnet_ddp_v100_ns_resolution.json.gz",
    "hta/ddp_a100_rank_of_8_control.json.gz",
    "hta/nccl_a100_rank_of_2.json.gz",
    "param/linear_training_2080ti.json.gz",
    "param/dlrm_8ranks/rank0.json",
    "param/dlrm_8ranks/rank1.json",
    "param/dlrm_8ranks/rank2.json",
    "param/dlrm_8ranks/rank3.json",
    "segment_anything_fast/amg_baseline.json.gz",
    "tokenomics/llama_tp2_rank0.json",
    "tokenomics/llama_tp2_rank1.json",
    "torchrec_4ranks_late_rank/rank0.json.gz",
    "torchrec_4ranks_late_rank/rank2.json.gz",
    "tracelens/b200/eager_training_rank.json.gz",
    "tracelens/h100/qwen_inference.json.gz",
    "tracelens/h100/timesformer_inference.json.gz",
    "tracelens/h100/vit_nsfw_inference.json.gz",
    "tracelens/mi300/qwen_inference.json.gz",
    "tracelens/mi300/resnet_ddp_act_checkpoint_training.json.gz",
    "tracelens/mi300/timesformer_inference.json.gz",
)
"""Networks, without compilation, with 128 launches or more."""
_LAUNCHES, _SLICES = 128, 8
_FOLDS, _BOOTSTRAPS, _SHOWN = 5, 300, 12


# ------------------------------------------------------------------------- samples


@dataclass(frozen=True)
class Sample:
    """A slice of a trace."""

    cluster: str
    is_generated: bool
    features: dict[str, float]


def samples_of(path: Path, cluster: str, is_generated: bool) -> list[Sample]:
    """The slices of a trace."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    file = json.loads(text)
    events = Events(file["traceEvents"])
    head = head_features(file, events)
    starts = np.arange(0, len(events.launches) - _LAUNCHES + 1, _LAUNCHES)
    starts = starts[np.unique(np.linspace(0, len(starts) - 1, _SLICES).round().astype(int))]
    return [
        Sample(cluster, is_generated, head | slice_features(events, start))
        for start in starts.tolist()
    ]


class Events:
    """Complete events of a trace by what they are, in order of time."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        whole = [e for e in events if e.get("ph") == "X" and "dur" in e]
        whole.sort(key=lambda e: (float(e["ts"]), -float(e["dur"])))
        by_kind: dict[str, list[dict[str, Any]]] = {}
        for event in whole:
            by_kind.setdefault(_kind(event), []).append(event)
        self.ops = by_kind.get("op", [])
        self.calls = by_kind.get("call", [])
        self.ranges = by_kind.get("range", [])
        self.work = {e["args"].get("correlation"): e for e in by_kind.get("work", [])}
        self.launches = [
            call for call in self.calls if call["args"].get("correlation") in self.work
        ]
        self.op_starts = _column(self.ops, "ts")
        self.call_starts = _column(self.calls, "ts")
        self.range_starts = _column(self.ranges, "ts")
        self.arrows = [e for e in events if e.get("cat") == "fwdbwd" and e.get("ph") == "s"]
        self.others = Counter(str(e.get("cat")) for e in events if e.get("ph") != "X")
        self.kinds = Counter(str(e.get("cat")) for e in whole)


def _kind(event: dict[str, Any]) -> str:
    category = str(event.get("cat", "")).lower()
    if category in ("cpu_op", "operator"):
        return "op"
    if category in ("cuda_runtime", "cuda_driver", "runtime"):
        return "call"
    if category in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"):
        return "work"
    return "range" if category == "user_annotation" else "other"


def _column(events: Sequence[dict[str, Any]], key: str) -> np.ndarray:
    return np.array([float(event[key]) for event in events])


def _ids(events: Sequence[dict[str, Any]], *keys: str) -> np.ndarray:
    found = [next((e["args"][k] for k in keys if k in e.get("args", {})), None) for e in events]
    return np.array([float(each) for each in found if each is not None])


# ------------------------------------------------------------------------- features


def head_features(file: dict[str, Any], events: Events) -> dict[str, float]:
    """What the file says beside its events, and what all events share."""
    keys = ("schemaVersion", "deviceProperties", "traceName", "displayTimeUnit", "trace_id",
            "baseTimeNanoseconds", "record_shapes", "cuda_runtime_version", "cupti_version",
            "cuda_driver_version", "distributedInfo")  # fmt: skip
    found = {f"form: has {key}": float(key in file) for key in keys}
    devices = file.get("deviceProperties") or [{}]
    base = float(file.get("baseTimeNanoseconds", 0))
    work = [*events.work.values()]
    memory = float(devices[0].get("totalGlobalMem", 0))
    found |= {
        "form: base time": np.log10(1 + base),
        "form: devices": float(len(devices)),
        "form: properties of a device": float(len(devices[0])),
        "form: memory is round": float(memory % 1e6 == 0),
        "form: process": float(next((e["pid"] for e in events.ops if _is_int(e["pid"])), 0)),
        "form: threads": float(len({str(e["tid"]) for e in events.ops})),
        "form: streams": float(len({e["args"].get("stream") for e in work})),
        "form: last stream": max((float(e["args"].get("stream", 0)) for e in work), default=0.0),
        "form: profiler's span": float(events.kinds.get("Trace", 0)),
        "form: ranges on the GPU": float(events.kinds.get("gpu_user_annotation", 0) > 0),
        "form: metadata": float(events.others.get("None", 0) > 2),
        "form: arrows' first id": float(min((float(e["id"]) for e in events.arrows), default=-1)),
        "form: clock": np.log10(1 + float(events.op_starts[0])),
    }
    return found


def _is_int(value: Any) -> bool:
    return isinstance(value, int)


def slice_features(events: Events, start: int) -> dict[str, float]:
    """Of 128 launches from one on."""
    launches = events.launches[start : start + _LAUNCHES]
    first, last = float(launches[0]["ts"]), float(launches[-1]["ts"])

    def between(what: Sequence[dict[str, Any]], starts: np.ndarray) -> list[dict[str, Any]]:
        low, high = np.searchsorted(starts, [first, last])
        return list(what[low:high])

    ops = between(events.ops, events.op_starts)
    calls = between(events.calls, events.call_starts)
    ranges = between(events.ranges, events.range_starts)
    work = [events.work[call["args"]["correlation"]] for call in launches]
    return {
        **_form(ops, calls, work),
        **_content(ops, calls, work, ranges),
        **_times(ops, launches, calls, work),
    }


def _form(ops: Any, calls: Any, work: Any) -> dict[str, float]:
    kernels = [each for each in work if _is_kernel(each)]
    copies = [each for each in work if not _is_kernel(each)]
    found: dict[str, float] = {}
    for name, events, keys in (
        ("op", ops, ("Ev Idx", "Record function id", "Input Dims", "Input Strides",
                     "Concrete Inputs", "Sequence number", "Fwd thread id")),
        ("call", calls, ("cbid", "External id")),
        ("kernel", kernels, ("External id", "context", "queued", "blocks per SM",
                             "est. achieved occupancy %")),
        ("copy", copies, ("memory bandwidth (GB/s)", "bytes")),
    ):  # fmt: skip
        for key in keys:
            has = [key in e.get("args", {}) or key.lower() in e.get("args", {}) for e in events]
            found[f"form: {name} has {key}"] = float(np.mean(has)) if has else np.nan
    for name, ids in (
        ("External id", _ids(ops, "External id", "external id")),
        ("correlation", _ids(calls, "correlation")),
        ("Ev Idx", _ids(ops, "Ev Idx")),
    ):
        steps = np.diff(ids)
        found[f"form: {name} goes up by one"] = _mean(steps == 1)
        found[f"form: {name} goes down"] = _mean(steps < 0)
        found[f"form: {name} mean step"] = _mean(np.clip(steps, 0, 50))
    for name, events in (("op", ops), ("call", calls), ("work", work)):
        for key in ("ts", "dur"):
            ns = np.array([round(float(e[key]) * 1000) for e in events], dtype=np.int64)
            for unit in (10, 32, 100, 1000):
                off = np.minimum(ns % unit, (-ns) % unit)
                found[f"form: {name} {key} of {unit} ns"] = _mean(off <= (unit == 32))
    return found


def _is_kernel(event: dict[str, Any]) -> bool:
    return str(event.get("cat", "")).lower() == "kernel"


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else np.nan


def _entropy(names: Sequence[str]) -> float:
    if not names:
        return np.nan
    shares = np.array([*Counter(names).values()]) / len(names)
    return float(-(shares * np.log2(shares)).sum())


def _content(ops: Any, calls: Any, work: Any, ranges: Any) -> dict[str, float]:
    names = [str(e["name"]) for e in ops]
    kernels = [str(e["name"]) for e in work if _is_kernel(e)]
    call_names = [re.sub("^(cuda|hip|cu)", "", str(e["name"])) for e in calls]
    threads = Counter(str(e["tid"]) for e in ops)
    found = {
        "content: ops for each launch": len(ops) / _LAUNCHES,
        "content: calls for each launch": len(calls) / _LAUNCHES,
        "content: ranges for each launch": len(ranges) / _LAUNCHES,
        "content: entropy of ops": _entropy(names),
        "content: entropy of kernels": _entropy(kernels),
        "content: entropy of calls": _entropy(call_names),
        "content: main thread's share of ops": max(threads.values(), default=0) / max(len(ops), 1),
        "content: length of kernels' names": _mean(np.array([len(n) for n in kernels])),
        "content: copies": _mean(np.array(["emcpy" in str(e["name"]) for e in work])),
        "content: memsets": _mean(np.array(["emset" in str(e["name"]) for e in work])),
        "content: blocks": _mean(np.log(1 + _grid(work, "grid"))),
        "content: threads of a block": _mean(_grid(work, "block")),
    }
    for name in ("autograd::engine", "aten::view", "aten::empty", "aten::copy_", "aten::as_strided",
                 "aten::add", "aten::to", "Backward0", "aten::detach", "aten::item"):  # fmt: skip
        found[f"content: ops named {name}"] = _mean(np.array([name in each for each in names]))
    return found


def _grid(work: Any, key: str) -> np.ndarray:
    return np.array([float(np.prod(e["args"][key])) for e in work if key in e["args"]])


def _times(ops: Any, launches: Any, calls: Any, work: Any) -> dict[str, float]:
    begin, length = _column(work, "ts"), _column(work, "dur")
    order = np.argsort(begin)
    gaps = begin[order][1:] - (begin + length)[order][:-1]
    called, took = _column(launches, "ts"), _column(launches, "dur")
    by_thread: dict[str, list[Any]] = {}
    for op in ops:
        by_thread.setdefault(str(op["tid"]), []).append(op)
    between = [np.diff(_column(events, "ts")) for events in by_thread.values() if len(events) > 1]
    columns = {
        "work": length,
        "gap": np.maximum(gaps, 0.1),
        "launch to start": np.maximum(begin - called, 0.1),
        "launch": took,
        "between launches": np.maximum(np.diff(called), 0.1),
        "op": np.maximum(_column(ops, "dur"), 0.1),
        "between ops": np.maximum(np.concatenate([*between, []]), 0.1) if between else [],
    }
    found: dict[str, float] = {}
    for name, values in columns.items():
        if len(values) < 8:
            continue
        logs = np.log10(np.maximum(values, 1e-3))
        low, middle, high, tail = np.quantile(logs, (0.1, 0.5, 0.9, 0.98))
        found |= {
            f"times: {name} median": middle,
            f"times: {name} spread": high - low,
            f"times: {name} tail": tail - middle,
            f"times: {name} least": logs.min() - middle,
        }
    found |= {
        "times: noise of work alike": _noise(work, lambda e: (e["name"], _shape(e))),
        "times: noise of ops alike": _noise(ops, lambda e: e["name"]),
        "times: noise of launches alike": _noise(launches, lambda e: e["name"]),
        "times: gaps touch": _mean(gaps <= 1.5),
        "times: busy": float(length.sum() / max(1e-3, (begin + length).max() - begin.min())),
    }
    return found


def _shape(event: dict[str, Any]) -> str:
    return str((event["args"].get("grid"), event["args"].get("bytes")))


def _noise(events: Any, alike: Any) -> float:
    """The variation within names, mean over those that come four times or more."""
    groups: dict[Any, list[float]] = {}
    for event in events:
        groups.setdefault(alike(event), []).append(max(float(event["dur"]), 1e-3))
    found = [np.std(np.log(values)) for values in groups.values() if len(values) >= 4]
    return float(np.mean(found)) if found else np.nan


# ------------------------------------------------------------------------- sets


def cluster_of(path: str) -> str:
    """Traces of one model or job: the name without numbers, of ranks the folder."""
    stem = re.sub(r"[_\d]+$|_rank.*", "", Path(path).name.split(".")[0])
    return Path(path).parent.name if stem.startswith("rank") else stem


def recorded(corpus: Path) -> list[Sample]:
    """Of all public traces."""
    found: list[Sample] = []
    for name in RECORDED:
        found += samples_of(corpus / name, cluster_of(name), False)
    return found


def on_predicted_runs(folder: Path, bases: int, seed: int) -> list[Sample]:
    """Mode B: one pair on each base."""
    found: list[Sample] = []
    for number in range(bases):
        task = TASKS[number % len(TASKS)]
        out = folder / f"b{number}"
        generate(out, 2, seed=1_000 * seed + number, tasks=[task])
        for path in sorted(out.glob("*.json.gz")):
            found += samples_of(path, f"base {number}", True)
    return found


def on_recorded_runs(folder: Path, corpus: Path, seed: int) -> tuple[list[Sample], list[str]]:
    """Mode A: two pairs on each recorded trace that can be a base; and those that can't."""
    found: list[Sample] = []
    refused = []
    for number, name in enumerate(RECORDED):
        out = folder / f"a{number}"
        try:
            generate(out, 4, seed=seed, bases=[str(corpus / name)])
        except TraceError as error:
            refused.append(f"{name}: {error}")
            continue
        for path in sorted(out.glob("*.json.gz")):
            found += samples_of(path, cluster_of(name), True)
    return found, refused


# ------------------------------------------------------------------------- classifiers


@dataclass(frozen=True)
class Told:
    """How well they are told apart."""

    auc: float
    low: float
    high: float
    classifier: str
    features: int


class Table:
    """All samples as arrays."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.names = sorted({name for sample in samples for name in sample.features})
        rows = [[s.features.get(name, np.nan) for name in self.names] for s in samples]
        self.values = np.array(rows, dtype=np.float64)
        self.is_generated = np.array([s.is_generated for s in samples])
        self.cluster = np.array([s.cluster for s in samples])
        sides = [f"{s.cluster}/{s.is_generated}" for s in samples]
        counts = Counter(sides)
        weights = np.array([1 / counts[side] for side in sides])
        for side in (False, True):
            weights[self.is_generated == side] /= weights[self.is_generated == side].sum()
        self.weight = weights * len(samples) / 2

    def told(self, family: str) -> Told:
        """By the features of a family, out of fold."""
        columns = [i for i, name in enumerate(self.names) if name.startswith(family)]
        best = None
        for name, model in _models().items():
            scores = self._scores(model, columns)
            auc = self._auc(scores, np.arange(len(scores)))
            if best is None or auc > best[0]:
                best = auc, name, scores
        assert best is not None
        low, high = self._interval(best[2])
        return Told(round(best[0], 3), low, high, best[1], len(columns))

    def _scores(self, model: Any, columns: Sequence[int]) -> np.ndarray:
        x, y = self.values[:, columns], self.is_generated
        scores = np.zeros(len(y))
        repeats = np.zeros(len(y))
        for seed in range(3):
            folds = StratifiedGroupKFold(_FOLDS, shuffle=True, random_state=seed)
            for train, test in folds.split(x, y, self.cluster):
                if len(set(y[train])) < 2:
                    continue
                step = model.steps[-1][0] + "__sample_weight"
                fitted = model.fit(_filled(x, train), y[train], **{step: self.weight[train]})
                chance = fitted.predict_proba(_filled(x, test, train))[:, 1]
                scores[test] += np.log(chance + 1e-4) - np.log(1 - chance + 1e-4)
                repeats[test] += 1
        return scores / np.maximum(repeats, 1)

    def _auc(self, scores: np.ndarray, rows: np.ndarray) -> float:
        y = self.is_generated[rows]
        return float(roc_auc_score(y, scores[rows], sample_weight=self.weight[rows]))

    def _interval(self, scores: np.ndarray) -> tuple[float, float]:
        """80 % of bootstraps over clusters."""
        rng = np.random.default_rng(0)
        sides = [np.unique(self.cluster[self.is_generated == side]) for side in (False, True)]
        found = []
        for _ in range(_BOOTSTRAPS):
            rows = []
            for side, clusters in zip((False, True), sides, strict=True):
                for cluster in rng.choice(clusters, len(clusters)):
                    same = (self.cluster == cluster) & (self.is_generated == side)
                    rows.append(np.flatnonzero(same))
            found.append(self._auc(scores, np.concatenate(rows)))
        low, high = np.quantile(found, (0.025, 0.975))
        return round(float(low), 3), round(float(high), 3)

    def alone(self) -> list[dict[str, Any]]:
        """The features that tell most by themselves, with the medians of both sides."""
        found = []
        for place, name in enumerate(self.names):
            values = self.values[:, place]
            filled = np.where(np.isnan(values), np.nanmin(values, initial=0) - 1, values)
            auc = self._auc(filled, np.arange(len(filled)))
            sides = [float(np.median(filled[self.is_generated == side])) for side in (False, True)]
            found.append(
                {
                    "feature": name,
                    "auc": round(max(auc, 1 - auc), 3),
                    "recorded": round(sides[0], 3),
                    "generated": round(sides[1], 3),
                }
            )
        return sorted(found, key=lambda each: -each["auc"])


def _filled(x: np.ndarray, rows: np.ndarray, of: np.ndarray | None = None) -> np.ndarray:
    """What is missing is the median of the rows that are learned from."""
    middle = np.nanmedian(np.where(np.isnan(x), np.nan, x)[rows if of is None else of], axis=0)
    middle = np.nan_to_num(middle)
    return np.where(np.isnan(x[rows]), middle, x[rows])


def _models() -> dict[str, Any]:
    uniform = QuantileTransformer(n_quantiles=50, output_distribution="normal")
    return {
        "logistic regression": make_pipeline(uniform, LogisticRegression(C=0.1, max_iter=2_000)),
        "boosted trees": make_pipeline(
            HistGradientBoostingClassifier(
                max_iter=80, max_leaf_nodes=6, learning_rate=0.1, min_samples_leaf=10,
                random_state=0,
            )
        ),
    }  # fmt: skip


def compared(samples: Iterable[Sample]) -> dict[str, Any]:
    """One mode."""
    import warnings

    warnings.simplefilter("ignore")
    table = Table([*samples])
    found: dict[str, Any] = {
        "samples": [int((~table.is_generated).sum()), int(table.is_generated.sum())],
        "clusters": [len(set(table.cluster[table.is_generated == side])) for side in (False, True)],
    }
    for family in ("form", "content", "times", ""):
        found[family or "all"] = vars(table.told(family))
    alone = table.alone()
    found["alone"] = {
        family: [each for each in alone if each["feature"].startswith(family)][:_SHOWN]
        for family in ("form", "content", "times")
    }
    return found


def show(mode: str, found: dict[str, Any]) -> None:
    print(f"\n## {mode}: {found['samples']} samples of {found['clusters']} clusters\n")
    for family in ("form", "content", "times", "all"):
        told = found[family]
        print(f"| {family} | {told['auc']:.2f} ({told['low']:.2f} to {told['high']:.2f}) |"
              f" {told['classifier']} |")  # fmt: skip
    for alone in found["alone"].values():
        print()
        for each in alone:
            print(f"  {each['auc']:.2f} {each['feature']}: {each['recorded']}, {each['generated']}")


def main() -> None:
    parser = argparse.ArgumentParser(description="recorded or generated?")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--bases", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the traces")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        real = recorded(options.corpus)
        lifted = on_predicted_runs(folder, options.bases, options.seed)
        edited, refused = on_recorded_runs(folder, options.corpus, options.seed)
    bases = {sample.cluster for sample in edited}
    results = {
        "B": compared([*real, *lifted]),
        "A": compared([*(each for each in real if each.cluster in bases), *edited]),
    }
    for mode, found in results.items():
        show(mode, found)
    print("\nno base:", *refused, sep="\n  ")
    if options.output:
        more = {"bases": options.bases, "seed": options.seed, "no_base": refused}
        write_results(options.output, indent=None, **more, modes=results)


if __name__ == "__main__":
    main()
