"""NeuSight's own test rows: sums over the kernels of whole models, by kind of kernel.

`summary_summary.csv` holds, for a model, batch and GPU, the measured sum of all products with
weights (FC), batched products (BMM), element-wise kernels (EW), softmax and layer norm, and
NeuSight's predictions; the published errors are means over the rows marked OOD. The kernels of the
GPT, OPT and BERT rows follow from the models' shapes; tests/oracles holds the list against the
roofline sums that the same file gives. The mixture-of-experts rows (Switch) are left out: which
expert gets which token isn't in the file.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import duration_data
from torchtraceap.ops.devices import Device

# Layers, width, heads, vocabulary.
MODELS = {
    "gpt2_large": (36, 1280, 20, 50257),
    "gpt3_xl": (24, 3072, 24, 50257),
    "gpt3_27": (32, 2560, 32, 50257),
    "opt_13": (24, 2048, 32, 50272),
    "bert_large": (24, 1024, 16, 30522),
}
LABELS = {"FC": "Linear", "BMM": "BMM", "EW": "VEC", "softmax": "VECsoftmax", "LN": "VECln"}
PUBLISHED = {"FC": 13.9, "BMM": 13.8, "EW": 19.3, "softmax": 13.9, "LN": 56.7}
_FP32 = 4.0


@dataclass(frozen=True, slots=True)
class Kernel:
    """`count` equal kernels of a model's forward pass."""

    kind: str
    op: str
    count: int
    bytes: float
    flops: float = 0.0
    columns: float = 1.0
    backward: float = 0.0
    """Bytes that the backward pass of an element-wise kernel moves."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model on one GPU."""

    model: str
    batch: int
    length: int
    device: Device
    train: bool
    held_out: bool
    """NeuSight was not trained on this GPU or model."""
    measured: dict[str, float]
    """ms by kind; forward, with the backward pass for training."""
    forward: dict[str, float]
    theirs: dict[str, float]
    rooflines: dict[str, float]
    kernels: list[Kernel]


def kernels_of(model: str, batch: int, length: int, with_head: bool) -> list[Kernel]:
    """The kernels of the forward pass in fp32."""
    layers, width, heads, vocabulary = MODELS[model]
    tokens = batch * length
    hidden = _FP32 * tokens * width
    scores = _FP32 * batch * heads * length * length
    found = [
        Kernel("LN", "layer_norm", _norms(model, layers), 2 * hidden, columns=width),
        Kernel("softmax", "softmax", layers, 2 * scores, columns=length),
        Kernel("BMM", "bmm", 2 * layers, 2 * hidden + scores, 2.0 * scores / _FP32 * width / heads),
    ]
    found += [_product(tokens, n, k, layers * count) for n, k, count in _weights(model, width)]
    if with_head:
        found.append(_product(tokens, vocabulary, width, 1))
    return found + _elementwise(model, layers, hidden, scores)


def products_of(row: Row, kind: str) -> np.ndarray:
    """Rows of batch, m, n, k and how often, of a kind of products, FC or BMM; training too."""
    layers, width, heads, vocabulary = MODELS[row.model]
    tokens, part = row.batch * row.length, width // heads
    if kind == "BMM":
        batch = row.batch * heads
        square = (row.length, row.length, part)
        tall = (row.length, part, row.length)
        listed = [(batch, *square, layers), (batch, *tall, layers)]
        # Each has two backward products: one with the other's sizes, one of its own kind.
        return np.array(listed + 2 * listed if row.train else listed, dtype=np.float64)
    found = []
    weights = [(n, k, layers * count) for n, k, count in _weights(row.model, width)]
    if any(kernel.kind == "FC" and kernel.count == 1 for kernel in row.kernels):
        weights.append((vocabulary, width, 1))
    for n, k, count in weights:
        found.append((1, tokens, n, k, count))
        if row.train:
            found += [(1, tokens, k, n, count), (1, n, k, tokens, count)]
    return np.array(found, dtype=np.float64)


def asks_matmul(row: Row) -> bool:
    """Whether the model multiplies heads by `torch.matmul`, which takes them as they lie; OPT
    makes them contiguous first and asks `torch.bmm`."""
    return not row.model.startswith("opt")


def copied_bytes(row: Row, kind: str) -> float:
    """Bytes read and written within calls of a kind to make operands contiguous.

    Queries, keys and values lie as (batch, length, heads, part), so that `torch.matmul` copies all
    three in each layer of the forward pass; of a single sequence it takes them as they are.
    """
    if kind != "BMM" or row.batch == 1 or not asks_matmul(row):
        return 0.0
    layers, width, *_ = MODELS[row.model]
    return 3 * layers * 2 * _FP32 * row.batch * row.length * width


def _norms(model: str, layers: int) -> int:
    return 2 * layers + 1


def _product(m: int, n: int, k: int, count: int) -> Kernel:
    return Kernel("FC", "linear", count, _FP32 * (m * k + k * n + m * n), 2.0 * m * n * k)


def _weights(model: str, width: int) -> list[tuple[int, int, int]]:
    """Output, input and number of the weights of a layer."""
    wide = [(4 * width, width, 1), (width, 4 * width, 1)]
    if model.startswith("gpt"):
        return [(3 * width, width, 1), (width, width, 1), *wide]
    return [(width, width, 4), *wide]


def _elementwise(model: str, layers: int, hidden: float, scores: float) -> list[Kernel]:
    wide = 4 * hidden

    def kernel(op: str, size: float, tensors: int, backward: int, count: int = 1) -> Kernel:
        return Kernel("EW", op, layers * count, tensors * size, backward=backward * size)

    residuals = kernel("add", hidden, 3, 0, count=2)
    if model.startswith("gpt"):
        return [
            residuals,
            kernel("divu", scores, 2, 2),
            kernel("mulu", wide, 2, 2, count=3),
            kernel("powu", wide, 2, 7),
            kernel("add", wide, 3, 0),
            kernel("tanh", wide, 2, 3),
            kernel("addu", wide, 2, 0),
            kernel("mul", wide, 3, 6),
        ]
    mask = kernel("addu", scores, 2, 0)
    if model.startswith("opt"):
        return [residuals, mask, kernel("mulu", hidden, 2, 2), kernel("relu", wide, 2, 3)]
    return [residuals, mask, kernel("divu", scores, 2, 2), kernel("gelu", wide, 2, 3)]


def test_rows(folder: Path) -> list[Row]:
    """The rows whose kernels are known; none where the folder lacks the file."""
    path = folder / "neusight" / "summary_summary.csv"
    if not path.exists():
        return []
    devices = {
        file.stem: _device(json.loads(file.read_text()))
        for file in (folder / "neusight" / "device_configs").glob("*.json")
    }
    rows = [row for row in duration_data.rows_of(path) if row["model_name"] in MODELS]
    return [_row(row, devices) for row in rows if _usable(row, devices)]


def _usable(row: dict[str, str], devices: dict[str, Device | None]) -> bool:
    return not row["option"] and bool(row["label_VEC_fw_latency"]) and bool(devices[row["device"]])


def _device(config: dict[str, float | str]) -> Device | None:
    """With the peaks that NeuSight measured, and our id where the database has the GPU."""
    if "SingleFLOPs" not in config:
        return None
    known = duration_data.device_of(str(config["Device"]))
    return Device(
        name=str(config["Device"]),
        id=known.id if known else "",
        bandwidth=known.bandwidth if known else float(config["Mem_Bw"]) * 1e9,
        vector={"fp32": float(config["SingleFLOPs"]) * 1e9},
        multiprocessors=int(config["Num_Sm"]),
        l2_bytes=int(float(config["L2Cache"]) * 2**20),
    )


def _row(row: dict[str, str], devices: dict[str, Device]) -> Row:
    train = row["mode"] == "train"

    def values(who: str, part: str) -> dict[str, float]:
        return {
            kind: float(row[f"{who}_{label}_{part}_latency"] or "nan")
            for kind, label in LABELS.items()
        }

    part = "e2e" if train else "fw"
    with_head = train or row["model_name"] != "bert_large"
    return Row(
        model=row["model_name"],
        batch=int(row["batch"]),
        length=int(row["seqlen"]),
        device=devices[row["device"]],
        train=train,
        held_out=row["OOD"] == "True",
        measured=values("label", part),
        forward=values("label", "fw"),
        theirs=values("neusight", part),
        rooflines=values("roofline", "fw"),
        kernels=kernels_of(row["model_name"], int(row["batch"]), int(row["seqlen"]), with_head),
    )


def published_errors(folder: Path) -> dict[str, float]:
    """Mean absolute errors in % of NeuSight on the rows marked OOD, as its paper has them."""
    with (folder / "neusight" / "summary_perop.csv").open() as file:
        rows = list(csv.reader(file))
    names = {"EW": "EW", "Softmax": "softmax", "LN": "LN", "FC": "FC", "BMM": "BMM"}
    last = {row[0]: row for row in rows}["NeuSight"]
    return {names[name]: float(last[6 + at]) for at, name in enumerate(rows[1][6:11])}
