"""Turns what came back from a machine with a GPU into tables, traces, a data set and duration data.

    python benchmarks/device/read.py BACK [--docs FOLDER] [--traces FOLDER] [--dataset FOLDER]
                                     [--rows FOLDER] [--predicted FILE]

BACK is `build/device/back`, where `all.sh keep` puts it (or the work folder of a run). Unless named
otherwise:

- `docs/results/` gets a page: parity as a table, speeds of scoring, the error and the coverage of
  the predictions, the wins, how far the duration models are off on the kernel times, and the rest;
- `examples/device_traces/` gets traces of at most 2 MB in all, with `index.json`;
- `build/device/dataset/` gets the recorded pairs, as a data set whose splits are for tests alone;
- `build/device/rows/` gets the products of matrices with the columns of the public measurements
  that `benchmarks/simulation/fit_durations.py` reads. The page is written first, so the errors on
  it are those of the models that have not seen these rows.

Nothing that a stage left out is guessed: the page says what is missing and why.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stage import ROOT

Row = dict[str, Any]
TRACES_BYTES = 2_000_000
"""The most bytes that all traces which become examples may have."""
_VALUE = ("served_", "win_", "model_*_graph", "model_*_compiled", "model_")
"""The beginnings of names of the traces that are chosen first."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("back", type=Path)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs/results")
    parser.add_argument("--traces", type=Path, default=ROOT / "examples/device_traces")
    parser.add_argument("--dataset", type=Path, default=ROOT / "build/device/dataset")
    parser.add_argument("--rows", type=Path, default=ROOT / "build/device/rows")
    parser.add_argument(
        "--predicted", type=Path, default=Path(__file__).with_name("predicted.json")
    )
    options = parser.parse_args()
    back = Back(options.back)
    options.docs.mkdir(parents=True, exist_ok=True)
    page = options.docs / f"device-{back.slug}.md"
    page.write_text(page_of(back, json.loads(options.predicted.read_text("utf-8"))), "utf-8")
    print(page)
    print(f"{copy_traces(back, options.traces)} traces in {options.traces}")
    print(f"{write_dataset(back, options.dataset)} traces in {options.dataset}")
    print(f"{write_products(back, options.rows)} products in {options.rows}")
    return 0


class Back:
    """The returned folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state: Row = json.loads((folder / "state.json").read_text("utf-8"))

    def result(self, stage: str) -> Row:
        """Return what a stage found; empty where it has no result."""
        path = self.folder / stage / "result.json"
        document: Row = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        found: Row = document.get("found", document)
        return found

    @property
    def device(self) -> str:
        """The GPU's name as its driver reports it, or "cpu"."""
        gpu = self.state["machine"]["gpu"]
        return "cpu" if self.state["device"] == "cpu" or not gpu else str(gpu).split(",")[0]

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.device.lower()).strip("-")

    def csv_rows(self, part: str) -> list[dict[str, str]]:
        path = self.folder / "kernel_times" / f"{part}.csv"
        if not path.is_file():
            return []
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))


# ------------------------------------------------------------------------- the page


def page_of(back: Back, predicted: Row) -> str:
    """The page as Markdown."""
    machine = back.state["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["libraries"].items() if v)
    lines = [
        f"# Results on {back.device}",
        "",
        "<!-- begin measured: by benchmarks/device/read.py -->",
        "Written by `python benchmarks/device/read.py` from a run of `benchmarks/device/all.sh`.",
        "",
        f"- GPU, driver, memory, clock, power limit: {machine['gpu'] or 'none'}",
        f"- Python {machine['python']}, {versions}; {machine['cores']} cores",
        f"- commit {back.state['commit']}",
    ]
    if back.state["tiny"]:
        lines.append(
            "- **sizes are tiny: this page shows that the way works, and no figure counts**"
        )
    lines += ["", "| stage | status | seconds |", "|---|---|---|"]
    for name, stage in back.state["stages"].items():
        lines.append(f"| {name} | {stage['status']} | {stage.get('seconds', '')} |")
    for title, section in SECTIONS:
        body = list(section(back, predicted))
        lines += ["", f"## {title}", "", *(body or ["There is no result."])]
    lines.append("<!-- end measured -->")
    return "\n".join(lines) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Rows as a Markdown table; nothing where there are none."""
    body = [f"| {' | '.join(_cell(each) for each in row)} |" for row in rows]
    if not body:
        return []
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *body]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def parity(back: Back, _: Row) -> Iterator[str]:
    rows = back.result("kernels_parity").get("rows", [])
    yield from table(
        ("kernel", "case", "to the bit", "largest difference", "us", "GB/s"),
        (
            (r["kernel"], r["case"],
             "NO" if r["verdict"] != "equal" else "within 1e-5" if r["difference"] else "yes",
             r["difference"], r["us"], r["gb_per_s"])
            for r in rows
        ),
    )  # fmt: skip
    checks = back.result("emulated").get("checks", {})
    yield ""
    yield from table(
        ("emulated collectives", "right", "collectives good, bad"),
        (
            (name, "yes" if each["right"] else "NO",
             f"{each['collectives_good']}, {each['collectives_bad']}"
             if "collectives_good" in each else "")
            for name, each in checks.items()
        ),
    )  # fmt: skip
    found = back.result("nccl_two_ranks")
    if found:
        words = {True: "ran", False: "did not run", None: "were not tried"}
        yield ""
        yield f"Two ranks on one device {words[found['works']]}: {found['why']}."


def scoring(back: Back, _: Row) -> Iterator[str]:
    yield from table(
        ("way", "precision", "traces at once", "traces/s", "ms a trace", "share of the bound",
         "largest difference of scores"),
        (
            (r["way"], r["precision"], r["together"], r["traces_per_s"], r["ms_per_trace"],
             r["share_of_bound"], r["largest_difference"])
            for r in back.result("scoring").get("rows", [])
        ),
    )  # fmt: skip


def predictions(back: Back, predicted: Row) -> Iterator[str]:
    """Error and coverage: a step's time, its GPU time, its operators' times, its memory."""
    pairs = list(compared(back, predicted))
    yield (
        f"Predicted at commit `{predicted['commit'][:10]}` on {predicted['date']}, before the run. "
        "A prediction is of the profiled step; the interval is to hold 9 of 10 steps, those of "
        "operators 8 of 10."
    )
    yield ""
    yield from table(
        ("model", "type", "predicted ms", "profiled ms", "inside", "without profiler: fenced",
         "free", "GPU busy predicted", "measured", "peak GB predicted", "measured",
         "operators inside, by GPU time"),
        (
            (m["model"], m["precision"], _ms(p["step_ns"]), _ms(m["profiled_step_ns"]),
             "yes" if _inside(p, m["profiled_step_ns"]) else "no", _ms(m["fenced_step_ns"]),
             _ms(m["free_step_ns"]), _ms(p["gpu_busy_ns"]), _ms(m["gpu_busy_ns"]),
             (p["peak_bytes"] or 0) / 1e9, m["peak_bytes"] and m["peak_bytes"] / 1e9,
             _share_inside(p, m))
            for p, m in pairs
        ),
    )  # fmt: skip
    if pairs:
        yield ""
        yield from _summed(pairs)
    device = back.device
    if not pairs:
        yield f"No prediction is of {device}, or no step was measured."


def compared(back: Back, predicted: Row) -> Iterator[tuple[Row, Row]]:
    """Predictions for the device of the run with what was measured of them."""
    from torchtraceap.ops.devices import find_device

    here = find_device(back.device)
    asked = {
        (row["model"], row["precision"]): row
        for row in predicted["rows"]
        if "step_ns" in row and here is not None and find_device(row["device"]) is here
    }
    for measured in back.result("predictions").get("rows", []):
        found = asked.get((measured["model"], measured["precision"]))
        if found is not None:
            yield found, measured


def _inside(predicted: Row, ns: float) -> bool:
    return bool(predicted["low_ns"] <= ns <= predicted["high_ns"])


def _share_inside(predicted: Row, measured: Row) -> float | None:
    """Return the part of the GPU time of common operators that lies in its interval."""
    known = {row["name"]: row for row in predicted["ops"]}
    both = [(known[row["name"]], row["gpu_ns"]) for row in measured["ops"] if row["name"] in known]
    total = sum(ns for _, ns in both)
    return sum(ns for row, ns in both if _inside(row, ns)) / total if total else None


def _summed(pairs: list[tuple[Row, Row]]) -> Iterator[str]:
    errors = [abs(p["step_ns"] / m["profiled_step_ns"] - 1) for p, m in pairs]
    busy = [abs(p["gpu_busy_ns"] / m["gpu_busy_ns"] - 1) for p, m in pairs if m["gpu_busy_ns"]]
    inside = sum(_inside(p, m["profiled_step_ns"]) for p, m in pairs)
    peaks = [abs(p["peak_bytes"] / m["peak_bytes"] - 1) for p, m in pairs
             if p["peak_bytes"] and m["peak_bytes"]]  # fmt: skip
    yield f"- step: median error {statistics.median(errors):.1%}, {inside} of {len(pairs)} inside"
    if busy:
        yield f"- GPU busy: median error {statistics.median(busy):.1%}"
    if peaks:
        yield f"- peak memory: median error {statistics.median(peaks):.1%}"


def recordings(back: Back, _: Row) -> Iterator[str]:
    found = back.result("runs")
    yield from table(
        ("win", "found in bad", "in good", "contract broken by bad", "good passes", "saving ms",
         "true ms, recorded", "true ms, by the clock"),
        (
            (w["win"], "yes" if w["bad"]["found"] else "no", "yes" if w["good"]["found"] else "no",
             ", ".join(w["bad"]["broken"]), "yes" if w["good"]["passed"] else "no",
             w["bad"]["saving_ns"] and _ms(w["bad"]["saving_ns"][1]), _ms(w["true_ns"]),
             _ms(w["clock_saving_ns"]))
            for w in found.get("wins", [])
        ),
    )  # fmt: skip
    yield ""
    yield from table(
        ("model", "way", "step ms", "kernels with a node", "findings"),
        (
            (m["model"], m["way"], _ms(m["step_ns"]), m["kernels_with_graph_node"],
             ", ".join(f"{name} {share:.1%}" for name, share in m["findings"].items()))
            for m in found.get("models", [])
        ),
    )  # fmt: skip
    if served := found.get("served"):
        way = "a CUDA graph" if served["graph"] else "eager steps"
        yield ""
        yield f"Decode loop, {way}: {_ms(served['decode_step_ns']):.3g} ms a step."
    pairs = back.result("pairs")
    if pairs:
        yield ""
        yield (
            f"Pairs: {pairs['accepted']} accepted, {pairs['benign']} benign, {pairs['decoys']} "
            f"decoys, {pairs['left_out_pairs']} left out; {pairs['to_do']} of {pairs['pairs']} are "
            "still to do."
        )


def kernel_times(back: Back, _: Row) -> Iterator[str]:
    """How far the shipped models are off on the rows that they have not seen."""
    if back.device == "cpu":
        yield "The rows are of a CPU: no model answers them."
    yield from table(
        ("part", "kind", "rows", "answered", "median measured/estimated", "p10", "p90",
         "median error", "inside (8 of 10 wanted)"),
        (
            (part, kind, len(rows), len(known), *_ratios(known))
            for (part, kind), rows in sorted(_by_kind(back).items())
            for known in [[row for row in rows if row[1] is not None]]
        ),
    )  # fmt: skip
    clocks = [row for part in ESTIMATES for row in back.csv_rows(part) if row.get("sm_mhz")]
    if clocks:
        speed = [float(row["sm_mhz"]) for row in clocks]
        power = [float(row["watts"]) for row in clocks]
        yield ""
        yield (
            f"Clock while kernels ran: {min(speed):.0f} to {max(speed):.0f} MHz; power: "
            f"{min(power):.0f} to {max(power):.0f} W."
        )


def _by_kind(back: Back) -> dict[tuple[str, str], list[tuple[float, Any]]]:
    """(measured ns, estimate) by part and by operator and type."""
    from torchtraceap.ops.devices import find_device

    found: dict[tuple[str, str], list[tuple[float, Any]]] = defaultdict(list)
    device = find_device(back.device)
    for part, ask in ESTIMATES.items():
        for row in back.csv_rows(part):
            kind = " ".join(str(row[k]) for k in ("op", "pass", "dtype", "direction") if row.get(k))
            estimate = None if device is None else _asked(ask, row, device)
            found[part, kind].append((float(row["ns"]), estimate))
    return found


def _asked(ask: Callable[[Row, Any], Any], row: Row, device: Any) -> Any:
    from torchtraceap.errors import TraceError

    try:
        return ask(row, device)
    except TraceError:  # no model knows such a kernel
        return None


def _ratios(rows: list[tuple[float, Any]]) -> tuple[float | None, ...]:
    if not rows:
        return (None,) * 5
    import numpy as np

    ratio = np.array([ns / estimate.ns for ns, estimate in rows])
    inside = np.mean([estimate.low_ns <= ns <= estimate.high_ns for ns, estimate in rows])
    low, middle, high = (float(np.quantile(ratio, q)) for q in (0.1, 0.5, 0.9))
    return middle, low, high, float(np.median(np.abs(1 / ratio - 1))), float(inside)


def _product(row: Row, device: Any) -> Any:
    from torchtraceap import durations

    sizes = (int(row[key]) for key in ("m", "n", "k"))
    return durations.gemm_ns(*sizes, row["dtype"], device, batch=int(row.get("batch") or 1))


def _of_rows(row: Row, device: Any) -> Any:
    from torchtraceap import durations

    count, columns, op = int(row["rows"]), int(row["columns"]), row["op"]
    if op == "attention":
        sizes = (int(row["batch"]), int(row["heads"]), count, count, columns)
        return durations.attention_ns(*sizes, row["dtype"], device, causal=row["causal"] == "1")
    if op == "softmax_backward":
        shapes, kinds = [[count, columns]] * 2, [_TYPES[row["dtype"]]] * 2
        return _operator("_softmax_backward_data", shapes, kinds, ["-1", "6"], device)
    ask = {"softmax": durations.softmax_ns, "layer_norm": durations.layer_norm_ns}.get(op)
    return None if ask is None else ask(count, columns, row["dtype"], device)


def _elementwise(row: Row, device: Any) -> Any:
    from torchtraceap import durations

    return durations.elementwise_ns(row["op"], int(row["elements"]), row["dtype"], device)


def _copy(row: Row, device: Any) -> Any:
    from torchtraceap import durations

    pinned = row["pinned"] == "1"
    return durations.copy_ns(int(row["bytes"]), row["direction"], pinned, device)


def _embedding(row: Row, device: Any) -> Any:
    from torchtraceap import durations

    sizes = (int(row[key]) for key in ("rows", "columns", "lookups"))
    of_table = durations.EmbeddingTable(*sizes)
    back = row["backward"] == "1"
    return durations.embedding_bag_ns([of_table], int(row["batch"]), device, backward=back)


_TYPES = {"fp32": "float", "tf32": "float", "bf16": "c10::BFloat16", "fp16": "c10::Half"}


def _operator(
    name: str,
    shapes: list[Any],
    types: list[str],
    values: list[str],
    device: Any,
    last: tuple[Any, str] | None = None,
) -> Any:
    """An operator whose arguments are tensors, values and perhaps one more tensor at the end."""
    from torchtraceap import durations
    from torchtraceap.ops.models import OpCall

    behind, kinds = ([last[0]], [last[1]]) if last else ([], [])
    call = OpCall(
        f"aten::{name}",
        [*shapes, *([[]] * len(values)), *behind],
        [*types, *([""] * len(values)), *kinds],
        None,
        [*([""] * len(shapes)), *values, *([""] * len(behind))],
    )
    return durations.op_ns(call, device)


def _backward(row: Row, device: Any) -> Any:
    batch, channels, side = (int(row[key]) for key in ("batch", "channels", "side"))
    x, kind, op = [batch, channels, side, side], _TYPES[row["dtype"]], row["op"]
    if op == "batch_norm_backward":
        shapes = [x, x, *([[channels]] * 5)]
        kinds = [kind, kind, *(["float"] * 5)]
        values = ["True", "1e-05", "[True, True, True]"]
        return _operator("native_batch_norm_backward", shapes, kinds, values, device)
    half = [batch, channels, (side + 1) // 2, (side + 1) // 2]
    if op == "max_pool_backward":
        values = ["[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"]
        name, kinds = "max_pool2d_with_indices_backward", [kind] * 2
        return _operator(name, [half, x], kinds, values, device, (half, "long int"))
    if op == "avg_pool_backward":
        half = [batch, channels, side // 2, side // 2]
        values = ["[2, 2]", "[2, 2]", "[0, 0]", "False", "True", ""]
        return _operator("avg_pool2d_backward", [half, x], [kind] * 2, values, device)
    one = [batch, channels, 1, 1]
    return _operator("_adaptive_avg_pool2d_backward", [one, x], [kind] * 2, [], device)


def _convolution(row: Row, device: Any) -> Any:
    names = ("batch", "inputs", "outputs", "kernel", "stride", "side")
    batch, inputs, outputs, kernel, stride, side = (int(row[key]) for key in names)
    pad = 0 if kernel == stride else kernel // 2
    out = (side + 2 * pad - kernel) // stride + 1
    x, weight = [batch, inputs, side, side], [outputs, inputs, kernel, kernel]
    kind = _TYPES[row["dtype"]]
    layout = [f"[{stride}, {stride}]", f"[{pad}, {pad}]", "[1, 1]", "False", "[0, 0]", "1"]
    if row["pass"] == "forward":
        values = ["", *layout, "False", "False", "True", str(row["dtype"] == "tf32")]
        return _operator("_convolution", [x, weight], [kind] * 2, values, device)
    mask = f"[{inputs != 3}, True, False]"
    shapes = [[batch, outputs, out, out], x, weight]
    return _operator("convolution_backward", shapes, [kind] * 3, ["[]", *layout, mask], device)


ESTIMATES: dict[str, Callable[[Row, Any], Any]] = {
    "gemm": _product,
    "tiny_products": _product,
    "precisions": _product,
    "rows": _of_rows,
    "softmax": _of_rows,
    "elementwise": _elementwise,
    "copies": _copy,
    "embedding_bag": _embedding,
    "backward": _backward,
    "convolutions": _convolution,
}
"""The functions that estimate a row with the duration models, by part."""


def own_parts(back: Back, _: Row) -> Iterator[str]:
    found = back.result("products")
    yield from table(
        ("operator, replayed", "recorded us", "replayed us", "quartiles apart"),
        (
            (r["op"], r["recorded_ns"] / 1e3, r["time_ns"] / 1e3, r["iqr_ns"] / 1e3)
            for r in found.get("replays", {}).get("rows", [])
        ),
    )
    yield ""
    rows = [
        (part, way, _ms(each["step_ns"]))
        for part in ("contracts", "watching")
        for way, each in found.get(part, {}).get("times", {}).items()
    ]
    yield from table(("part", "way", "step ms"), rows)
    if watching := found.get("watching"):
        yield ""
        yield f"`watch` takes {watching['share_by_clock']:.2%} of the time by the clock."
    if planted := found.get("contracts", {}).get("one_item_a_step"):
        yield ""
        yield f"A step with one `.item()`, limit 0: {json.dumps(planted)}."
    yield ""
    yield from table(
        ("workload", "fenced ms", "free ms", "lost overlap"),
        (
            (r["workload"], _ms(r["step_ns"]["median"]), _ms(r["free_step_ns"]["mean"]),
             r["lost_overlap_share"])
            for r in found.get("fences", [])
        ),
    )  # fmt: skip


def training(back: Back, _: Row) -> Iterator[str]:
    path = back.folder / "training/figures.json"
    runs = json.loads(path.read_text("utf-8"))["runs"] if path.is_file() else {}
    yield from table(
        ("run", "epoch", "seconds", "pooled", "bad only", "per trace"),
        (
            (name, f["epoch"], f["seconds"], f["pooled"], f["bad_only"], f["per_trace"])
            for name, f in runs.items()
        ),
    )
    if not runs:
        yield "No run was finished."


def missing(back: Back, _: Row) -> Iterator[str]:
    for name in back.state["stages"]:
        path = back.folder / name / "result.json"
        document = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        for reason in document.get("left_out", []):
            yield f"- {name}: {_cell(reason)}"
    for path in back.state.get("left_behind", []):
        yield f"- did not fit into what comes back: {path}"


SECTIONS: tuple[tuple[str, Callable[[Back, Row], Iterator[str]]], ...] = (
    ("Parity", parity),
    ("Scoring", scoring),
    ("Predictions against measurements", predictions),
    ("Recordings", recordings),
    ("Duration models on kernel times that they have not seen", kernel_times),
    ("Replay, contracts, watch, fences", own_parts),
    ("Training at full size", training),
    ("Left out", missing),
)


# ------------------------------------------------------------------------- files


def copy_traces(back: Back, target: Path) -> int:
    """Copies the most telling traces, up to `TRACES_BYTES` in all; returns how many."""
    chosen: list[Path] = []
    size = 0
    for pattern in _VALUE:
        found = (back.folder / "runs").glob(f"{pattern}*.json.gz")
        for path in sorted(found, key=lambda path: (path.stat().st_size, path.name)):
            bytes_ = path.stat().st_size
            if path not in chosen and size + bytes_ <= TRACES_BYTES:
                chosen.append(path)
                size += bytes_
    if not chosen:
        return 0
    target.mkdir(parents=True, exist_ok=True)
    found = back.result("runs")
    index = {
        "device": back.device,
        "tiny": back.state["tiny"],
        "commit": back.state["commit"],
        "traces": sorted(path.name for path in chosen),
        "wins": {w["win"]: {"finding": w["finding"]} for w in found.get("wins", [])},
        "models": found.get("models", []),
        "served": found.get("served"),
    }
    for path in chosen:
        shutil.copyfile(path, target / path.name)
    (target / "index.json").write_text(json.dumps(index, indent=1) + "\n", "utf-8")
    return len(chosen)


def write_dataset(back: Back, target: Path) -> int:
    """Adds the recorded pairs to a data set; returns how many traces it has."""
    folder = back.folder / "pairs/traces"
    labels = folder / "labels.jsonl"
    if not labels.is_file() or not labels.read_text("utf-8").strip():
        return 0
    from torchtraceap.cli import main as command_line

    for line in labels.read_text("utf-8").splitlines():
        label = json.loads(line)
        if label["split"] == "train":
            raise ValueError(f"{label['id']} is of the split train: recordings are for tests")
    if target.exists():
        shutil.rmtree(target)
    code = command_line(["dataset", "add", str(target), str(folder)])
    if code:
        raise RuntimeError(f"dataset add ended with {code}")
    return len(labels.read_text("utf-8").splitlines())


def write_products(back: Back, target: Path) -> int:
    """Writes products of matrices with the columns of `gemm_aiconfigurator/`; returns how many."""
    types = {"bf16": "bfloat16", "fp16": "float16"}
    rows = [row for part in ("gemm", "tiny_products", "precisions") for row in back.csv_rows(part)]
    by_type: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        if int(row.get("batch") or 1) == 1 and row["dtype"] in types:
            by_type[types[row["dtype"]]].append(row)
    columns = ("framework", "version", "device", "op_name", "kernel_source", "gemm_dtype", "m", "n",
               "k", "latency")  # fmt: skip
    torch = back.state["machine"]["libraries"]["torch"]
    count = 0
    for dtype, found in by_type.items():
        folder = target / "gemm_aiconfigurator"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"gemm_{dtype}_{back.slug}.csv.gz"
        with gzip.open(path, "wt", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            for row in found:
                shape = (row["m"], row["n"], row["k"], float(row["ns"]) / 1e6)
                writer.writerow(
                    ("PyTorch", torch, back.device, "gemm", "torch.matmul", dtype, *shape)
                )
                count += 1
    return count


if __name__ == "__main__":
    sys.exit(main())
