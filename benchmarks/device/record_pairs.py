#!/usr/bin/env python3
"""Records good and bad twins of five performance anti-patterns as labelled traces.

For ten small workloads, one cause at a time is planted at a known place, and three steps of the
bad and of the good twin (same seed, same data, random order) are profiled. Every trace comes with a
label: the cause, its place and its cost as intervals in the trace's own clock, and both step times.
A bad twin whose step is not at least 1.10 times as long as the good one's is labelled `benign`.

On a machine with a GPU, from the root of the repository (PyTorch is all it needs; call it again and
it goes on where it stopped):

    python3 benchmarks/device/record_pairs.py --device cuda --minutes 9 --out tests/data/h200

Then `--check` tells how the rules judge what was recorded (this needs torchtraceap):

    python3 benchmarks/device/record_pairs.py --check --out tests/data/h200
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import hashlib
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import pair_traces

SCHEMA = "torchtraceap.pairs/1"
# By workload; a form's class says which type it is. What takes long (compiling) stands last.
PLAN: dict[str, tuple[str, ...]] = {
    "resnet": ("decode_in_main", "pageable_workers", "activation_log", "unfused_optimizer"),
    "gpt": ("python_between", "host_average", "host_log"),
    "detector": ("host_matching", "piecewise_upload", "per_sample_metrics"),
    "vit": ("collate_in_main", "activation_log", "data_dependent_branch"),
    "dlrm": ("resident_pageable", "decode_in_main", "per_tensor_average"),
    "mixer": ("collate_in_main", "explicit_break"),
    "unet": ("host_average", "resident_pageable"),
    "bert": ("unfused_optimizer", "data_dependent_branch"),
    "segmenter": ("decode_in_main", "pageable_workers"),
    "bottleneck": ("python_between", "pageable_workers"),
}
ACCEPTED_RATIO = 1.10  # research protocol: a smaller difference is no anti-pattern
WANTED_RATIO = 1.20  # a cause is doubled until it costs so much, to stay clear of the border
# Without a GPU there are no such copies, whatever the clock says.
NEEDS_GPU = frozenset({"no_memory_pin", "high_memcpy"})
WARM_STEPS, TIMED_BLOCKS, BLOCK_STEPS = 6, 3, 5
ACTIVE_STEPS = 3
# Share of a step for which the host launches: below it the GPU always has work waiting, also under
# the profiler, which makes launching roughly half as slow again.
LOOSE_SHARE, TIGHT_SHARE = 0.5, 0.85
LONGEST_STEP_S = 0.06
LARGEST_BATCH_BYTES = 96 << 20
MARGIN_S = 20.0  # of the time allowed, for writing and leaving
# What a pair may take; a pair is not begun with less time left. Compiling takes most of it.
PAIR_SECONDS, COMPILED_PAIR_SECONDS = 20.0, 90.0


@dataclasses.dataclass
class Options:
    """The command line."""

    out: Path
    device: str
    minutes: float
    only: list[str]
    seed: int
    scale: str
    workers: int
    max_file_kb: float
    max_total_mb: float
    compile_backend: str
    in_process: bool
    force: bool
    check: bool
    end: float

    @property
    def time_left(self) -> float:
        return self.end - time.time()


def parse_options(arguments: list[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of traces and labels.json")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--minutes", type=float, default=10.0, help="stops cleanly before")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORKLOAD[:FORM]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", choices=("tiny", "full"), help="full on a GPU, else tiny")
    parser.add_argument("--workers", type=int, default=0, help="of a DataLoader; by the CPUs")
    parser.add_argument("--max-file-kb", type=float, default=300.0)
    parser.add_argument("--max-total-mb", type=float, default=6.0)
    parser.add_argument("--compile-backend", default="", help="inductor on a GPU, else aot_eager")
    parser.add_argument("--in-process", action="store_true", help="no process per workload")
    parser.add_argument("--force", action="store_true", help="record again what is there")
    parser.add_argument("--check", action="store_true", help="judge what is there, record nothing")
    parser.add_argument("--end", type=float, default=0.0, help=argparse.SUPPRESS)
    options = Options(**vars(parser.parse_args(arguments)))
    on_gpu = options.device == "cuda"
    options.scale = options.scale or ("full" if on_gpu else "tiny")
    options.compile_backend = options.compile_backend or ("inductor" if on_gpu else "aot_eager")
    options.workers = options.workers or min(8, max(1, (os.cpu_count() or 2) - 2))
    options.end = options.end or time.time() + 60 * options.minutes - MARGIN_S
    unknown = {name.split(":")[0] for name in options.only} - set(PLAN)
    if unknown:
        parser.error(f"unknown workloads {sorted(unknown)}; there are {', '.join(PLAN)}")
    return options


def planned_pairs(options: Options) -> list[tuple[str, str]]:
    pairs = [(workload, form) for workload, forms in PLAN.items() for form in forms]
    if not options.only:
        return pairs
    return [p for p in pairs if p[0] in options.only or f"{p[0]}:{p[1]}" in options.only]


# -- the label file ----------------------------------------------------------------------------


class Labels:
    """labels.json: what was recorded, what was not and why; written after every pair."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "labels.json"
        self.document: dict[str, Any] = {
            "schema": SCHEMA,
            "clock": "intervals are integer ns = 1000 * ts of the trace file",
            "traces": [],
            "missing": [],
        }
        if self.path.exists():
            self.document = json.loads(self.path.read_text())

    @property
    def traces(self) -> list[dict[str, Any]]:
        traces: list[dict[str, Any]] = self.document["traces"]
        return traces

    def entries(self, workload: str, form: str) -> list[dict[str, Any]]:
        return [t for t in self.traces if (t["workload"], t["form"]) == (workload, form)]

    def has(self, workload: str, form: str) -> bool:
        """Whether both twins are there, unchanged."""
        entries = self.entries(workload, form)
        return len(entries) == 2 and all(self.is_intact(entry) for entry in entries)

    def is_intact(self, entry: dict[str, Any]) -> bool:
        path = self.folder / entry["file"]
        return path.exists() and sha256(path.read_bytes()) == str(entry["sha256"])

    def total_bytes(self) -> int:
        return sum(entry["bytes"] for entry in self.traces)

    def put(self, workload: str, form: str, entries: list[dict[str, Any]]) -> None:
        others = [t for t in self.traces if (t["workload"], t["form"]) != (workload, form)]
        self.document["traces"] = [*others, *entries]
        self.forget_missing(workload, form)
        self.write()

    def put_missing(self, workload: str, form: str, reason: str) -> None:
        self.forget_missing(workload, form)
        missing = {"workload": workload, "form": form, "reason": reason}
        self.document["missing"].append(missing)
        self.write()

    def forget_missing(self, workload: str, form: str) -> None:
        self.document["missing"] = [
            m for m in self.document["missing"] if (m["workload"], m["form"]) != (workload, form)
        ]

    def write(self) -> None:
        self.document["traces"].sort(key=lambda t: t["file"])
        self.document["missing"].sort(key=lambda m: (m["workload"], m["form"]))
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.document, indent=1) + "\n")
        partial.replace(self.path)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- running a twin ------------------------------------------------------------------------------


@dataclasses.dataclass
class Run:
    """One twin: how long its steps take, and its raw trace."""

    bad: bool
    step_ns: int
    trace: dict[str, Any]


def synchronize(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()


def time_steps(twin: Any) -> int:
    """Median over blocks of the time per step, in ns, without a profiler."""
    device = twin.context.device
    times = []
    for _ in range(TIMED_BLOCKS):
        synchronize(device)
        start = time.perf_counter_ns()
        for _ in range(BLOCK_STEPS):
            twin.step()
        synchronize(device)
        times.append((time.perf_counter_ns() - start) // BLOCK_STEPS)
    return int(statistics.median(times))


def profile_steps(twin: Any) -> dict[str, Any]:
    """The raw trace of three steps."""
    import torch
    from torch.profiler import ProfilerActivity

    activities = [ProfilerActivity.CPU]
    if twin.context.on_gpu:
        activities.append(ProfilerActivity.CUDA)
    wait, warmup = 1, 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with torch.profiler.profile(
            activities=activities,
            record_shapes=True,
            schedule=torch.profiler.schedule(
                wait=wait, warmup=warmup, active=ACTIVE_STEPS, repeat=1
            ),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        ) as profiler:
            for step in range(wait + warmup + ACTIVE_STEPS):
                twin.step()
                if step == wait + warmup - 1:
                    # Work launched before the recording would be kernels without a launch in it.
                    synchronize(twin.context.device)
                profiler.step()
        return pair_traces.read_trace(path)


def run_twin(form: str, context: Any, *, bad: bool, level: int, profiled: bool) -> Run:
    from pair_causes import make_twin

    twin = make_twin(form, context, bad=bad, level=level)
    try:
        for _ in range(WARM_STEPS):
            twin.step()
        gc.collect()
        gc.disable()
        return Run(bad, time_steps(twin), profile_steps(twin) if profiled else {})
    finally:
        gc.enable()
        twin.close()


# -- sizing --------------------------------------------------------------------------------------


def launch_share(context: Any) -> tuple[float, float]:
    """Share of a step for which the host launches, and the step's seconds (healthy twin)."""
    from pair_causes import Twin

    twin = Twin(context, False)
    shares, seconds = [], []
    for step in range(6):
        synchronize(context.device)
        twin.finished.clear()
        start = time.perf_counter()
        twin.step()
        launched = time.perf_counter()
        synchronize(context.device)
        if step >= 2:
            seconds.append(time.perf_counter() - start)
            shares.append((launched - start) / seconds[-1])
    return statistics.median(shares), statistics.median(seconds)


def batch_bytes(context: Any) -> int:
    batch = context.make_batches()[0]
    return sum(value.numel() * value.element_size() for value in batch.values())


@functools.cache
def fit_batch(context: Any, share: float) -> tuple[Any, float]:
    """Enlarges the batch until the GPU is the bottleneck of the healthy twin."""
    measured, seconds = launch_share(context)
    growth = 1.25 if share > LOOSE_SHARE else 1.5
    while measured > share and seconds < LONGEST_STEP_S:
        size = dataclasses.replace(context.size, batch=int(context.size.batch * growth) + 1)
        larger = dataclasses.replace(context, size=size)
        if batch_bytes(larger) > LARGEST_BATCH_BYTES:
            break
        context = larger
        measured, seconds = launch_share(context)
    return context, seconds


def fit_context(form: str, context: Any) -> Any:
    """Chooses batch and strength so that the cause, and only it, is what hurts."""
    from pair_causes import FORMS, measure_decoding

    twin = FORMS[form]
    if not context.on_gpu:
        return context
    if twin.kind == "graph_break":
        return context  # the small batch: with a large one the GPU hides what a break costs
    context, seconds = fit_batch(context, TIGHT_SHARE if twin.tight else LOOSE_SHARE)
    passes = max(1, round(0.7 * seconds / measure_decoding(context)))
    work_s = max(0.0005, 0.7 * seconds / 4)
    return dataclasses.replace(context, decode_passes=passes, host_work_s=work_s)


def fit_level(form: str, context: Any) -> int:
    """Doubles the cause until it costs enough, as far as the form allows."""
    from pair_causes import FORMS

    strongest = 1 << (FORMS[form].levels - 1)
    if strongest == 1 or not context.on_gpu:
        return 1
    good = run_twin(form, context, bad=False, level=1, profiled=False).step_ns
    level = 1
    while level < strongest:
        bad = run_twin(form, context, bad=True, level=level, profiled=False).step_ns
        if bad >= WANTED_RATIO * good:
            break
        level *= 2
    return level


# -- a pair --------------------------------------------------------------------------------------


class TooLargeError(Exception):
    """The files of a pair do not fit into the limits."""


def record_pair(workload: str, form: str, options: Options, labels: Labels) -> None:
    """Records, labels and writes both twins.

    Raises:
        TooLargeError: they do not fit into the limits on size.
    """
    context = fit_context(form, make_context(workload, options))
    level = fit_level(form, context)
    order = [False, True]
    random.Random(f"{options.seed}/{workload}/{form}").shuffle(order)
    runs = [run_twin(form, context, bad=bad, level=level, profiled=True) for bad in order]
    runs.sort(key=lambda run: run.bad)
    entries, files = [], {}
    for run in runs:
        data, facts = finish_trace(run, form, options)
        name = f"{workload}-{form}-{'bad' if run.bad else 'good'}.json.gz"
        entry = {"file": name, "workload": workload, "form": form, **facts}
        entries.append({**entry, "bytes": len(data), "sha256": sha256(data)})
        files[name] = data
    judge(entries, context, level, order)
    replaced = sum(entry["bytes"] for entry in labels.entries(workload, form))
    total = labels.total_bytes() - replaced + sum(map(len, files.values()))
    if total > options.max_total_mb * 1e6:
        raise TooLargeError(f"the folder would hold {total / 1e6:.1f} MB")
    for name, data in files.items():
        (options.out / name).write_bytes(data)
    labels.put(workload, form, entries)


def make_context(workload: str, options: Options) -> Any:
    import torch
    from pair_causes import Context
    from pair_workloads import WORKLOADS

    kind = WORKLOADS[workload]
    return Context(
        workload=workload,
        size=kind.full if options.scale == "full" else kind.tiny,
        device=torch.device(options.device),
        seed=options.seed,
        workers=options.workers,
        compile_backend=options.compile_backend,
    )


def finish_trace(run: Run, form: str, options: Options) -> tuple[bytes, dict[str, Any]]:
    """The cleaned file and what is known of it."""
    from pair_causes import FORMS

    twin = FORMS[form]
    pair_traces.use_nanoseconds(run.trace)
    recorded = pair_traces.understand(run.trace)
    cost = pair_traces.compute_cost(twin.kind, recorded)
    copies = [e for e in recorded.gpu if e.category == "gpu_memcpy"]
    profiled_ns = recorded.bounds[1] - recorded.bounds[0]
    facts = {
        "type": twin.kind,
        "twin": "bad" if run.bad else "good",
        "cause": twin.cause if run.bad else "",
        "place": twin.site,
        "basis": "gpu" if recorded.gpu else "host",
        "intervals": cost,
        "cost_ns": pair_traces.length(cost),
        "profiled_ns": profiled_ns,
        "cost_share": round(pair_traces.length(cost) / profiled_ns, 4),
        "marked": recorded.marks,
        "steps": [{"name": n, "start_ns": s, "end_ns": e} for n, s, e in recorded.steps],
        "step_ns": run.step_ns,
        "profiled_step_ns": profiled_ns // len(recorded.steps),
        "gpu_events": len(recorded.gpu),
        "gpu_busy_share": round(pair_traces.length(recorded.busy) / profiled_ns, 4),
        "pageable_bytes": sum(e.size_bytes for e in copies if "Pageable" in e.name),
        "compiled_runs": len(recorded.compiled),
    }
    return fit_file(run.trace, options), facts


def fit_file(document: dict[str, Any], options: Options) -> bytes:
    """The file's bytes; without flow arrows where it takes more than its part with them."""
    part = options.max_total_mb * 1e6 / (2 * sum(map(len, PLAN.values())))
    text = json.dumps(document, default=pair_traces.plain_number)  # cleaning changes the events
    private = private_words()
    data = pair_traces.dump_trace(pair_traces.clean_trace(document), private)
    if len(data) > min(part, options.max_file_kb * 1000):
        bare = pair_traces.clean_trace(json.loads(text), keep_flows=False)
        data = pair_traces.dump_trace(bare, private)
    if len(data) > options.max_file_kb * 1000:
        raise TooLargeError(f"a trace takes {len(data) / 1000:.0f} kB")
    return data


def private_words() -> list[str]:
    """Names of this machine's folders and of itself, which no trace may hold."""
    folders = [Path.cwd(), Path.home(), Path(tempfile.gettempdir()), Path(sys.prefix)]
    words = [str(folder) for folder in folders if len(folder.parts) > 1]
    # A short host name, such as "gpu", may be a word of its own in a trace.
    host = socket.gethostname()
    return [*words, host] if len(host) >= 8 else words


def judge(entries: list[dict[str, Any]], context: Any, level: int, order: list[bool]) -> None:
    """Labels both twins by the ratio of their step times."""
    good, bad = entries
    ratio = bad["step_ns"] / good["step_ns"]
    shared = {
        "ratio": round(ratio, 3),
        "profiled_ratio": round(bad["profiled_step_ns"] / good["profiled_step_ns"], 3),
        "level": level,
        "batch": context.size.batch,
        "seed": context.seed,
        "recorded_first": "bad" if order[0] else "good",
        "environment": environment(context.device),
    }
    for entry in entries:
        entry.update(shared)
    good["label"] = "good"
    possible = bad["basis"] == "gpu" or bad["type"] not in NEEDS_GPU
    bad["label"] = bad["type"] if possible and ratio >= ACCEPTED_RATIO else "benign"


def environment(device: Any) -> dict[str, Any]:
    import torch

    on_gpu = device.type == "cuda"
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "cuda": torch.version.cuda if on_gpu else None,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "cpus": os.cpu_count(),
    }


# -- the whole -----------------------------------------------------------------------------------


def record_workload(workload: str, forms: list[str], options: Options) -> None:
    """Records the pairs of one workload in this process."""
    prepare_torch(options)
    labels = Labels(options.out)
    for form in forms:
        start = time.time()
        if labels.has(workload, form) and not options.force:
            print(f"{workload} {form}: there already")
            continue
        reason = record_or_say_why(workload, form, options, labels)
        if reason:
            labels.put_missing(workload, form, reason)
            print(f"{workload} {form}: not recorded, {reason}")
        else:
            good, bad = sorted(labels.entries(workload, form), key=lambda e: e["twin"] == "bad")
            print(
                f"{workload} {form}: {bad['label']}, step {good['step_ns'] / 1e6:.2f} -> "
                f"{bad['step_ns'] / 1e6:.2f} ms, cost {bad['cost_share']:.1%} of the profile, "
                f"{(good['bytes'] + bad['bytes']) / 1000:.0f} kB, {time.time() - start:.1f} s"
            )
        sys.stdout.flush()


def record_or_say_why(workload: str, form: str, options: Options, labels: Labels) -> str:
    """Empty when the pair was recorded."""
    from pair_causes import FORMS

    compiled = FORMS[form].kind == "graph_break" and options.compile_backend == "inductor"
    if options.time_left < (COMPILED_PAIR_SECONDS if compiled else PAIR_SECONDS):
        return "no time left"
    try:
        record_pair(workload, form, options, labels)
    except TooLargeError as error:
        return f"too large: {error}"
    except Exception as error:
        traceback.print_exc()
        return f"failed: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return ""


def prepare_torch(options: Options) -> None:
    import torch

    torch.set_float32_matmul_precision("high")  # tensor cores: slow arithmetic is not the subject
    if options.device == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("no CUDA device; --device cpu tries the script out")
        torch.backends.cudnn.allow_tf32 = True
        # The first profile of a process starts the tracing library, which takes long.
        with torch.profiler.profile():
            torch.ones(8, device="cuda").sum().item()


def spawn_workload(workload: str, forms: list[str], options: Options) -> None:
    """Records a workload in a process of its own: one that hangs or crashes loses itself only."""
    command = [sys.executable, str(Path(__file__).resolve()), "--in-process"]
    command += ["--only", *(f"{workload}:{form}" for form in forms), "--end", str(options.end)]
    for name in ("out", "device", "seed", "scale", "workers", "max_file_kb", "max_total_mb"):
        command += ["--" + name.replace("_", "-"), str(getattr(options, name))]
    command += ["--compile-backend", options.compile_backend, *(["--force"] * options.force)]
    try:
        result = subprocess.run(command, timeout=max(1.0, options.time_left + MARGIN_S / 2))
    except subprocess.TimeoutExpired:
        print(f"{workload}: stopped, the time is over")
        return
    if result.returncode:
        print(f"{workload}: its process ended with {result.returncode}")


def record_all(options: Options) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    pairs = planned_pairs(options)
    for workload in dict.fromkeys(workload for workload, _ in pairs):
        forms = [form for name, form in pairs if name == workload]
        if options.in_process:
            record_workload(workload, forms, options)
        elif options.time_left > PAIR_SECONDS:
            spawn_workload(workload, forms, options)
    if not options.in_process:
        tell_totals(Labels(options.out), pairs)


def tell_totals(labels: Labels, pairs: list[tuple[str, str]]) -> None:
    there = [pair for pair in pairs if labels.has(*pair)]
    accepted = [t for t in labels.traces if t["label"] not in ("good", "benign")]
    print(
        f"{len(there)} of {len(pairs)} pairs, {len(accepted)} with a cause that costs; "
        f"{labels.total_bytes() / 1e6:.2f} MB in {labels.folder}"
    )


def check_all(options: Options) -> int:
    """Prints how torchtraceap judges each trace, and how much of the labelled cost it finds."""
    import torchtraceap as ttap

    labels = Labels(options.out)
    surprises = 0
    for entry in labels.traces:
        diagnosis = ttap.diagnose(ttap.load(options.out / entry["file"]))
        verdict = diagnosis.verdicts[entry["type"]]
        finding = diagnosis.finding(entry["type"])
        found = [] if finding is None else [(int(s), int(e)) for s, e in finding.intervals]
        shared = pair_traces.length(pair_traces.intersect(found, map(tuple, entry["intervals"])))
        covered = shared / entry["cost_ns"] if entry["cost_ns"] else 0.0
        expected = "present" if entry["label"] == entry["type"] else "absent"
        # Without GPU events a rule that needs them has to abstain.
        right = verdict == expected or (verdict == "unknown" and entry["basis"] == "host")
        surprises += not right
        note = "" if right else f"  <- {expected} expected"
        print(f"{entry['file']:48} {entry['label']:28} {verdict:8} covers {covered:4.0%}{note}")
    print(f"{len(labels.traces)} traces, {surprises} judged otherwise than labelled")
    return 1 if surprises else 0


def main(arguments: list[str] | None = None) -> int:
    options = parse_options(arguments)
    if options.check:
        return check_all(options)
    record_all(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
