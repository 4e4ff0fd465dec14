#!/usr/bin/env python3
"""How far off the times of convolutions are, on measured ones.

    python benchmarks/simulation/convolutions.py [--traces FOLDER]

reads KernelBench's times (convolutions.csv beside this: fp32 with tf32, torch 2.5, its repository's
results/timing at 509ed99, problems as in its level1 of that version) and, with a folder of traces,
the convolutions that they hold. Old traces lack strides: a convolution of theirs is taken where the
sizes of its gradient tell them. Prints for each source and way of computing the ratio of measured
over estimated time. `fit` marks problems that the model's numbers were rounded from.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.ops.devices import load_devices
from torchtraceap.ops.durations import op_ns
from torchtraceap.ops.models.arguments import OpCall
from torchtraceap.tables.gpu.recorded_device import chosen_device
from torchtraceap.trace.ranks import RankTrace

KERNELBENCH = Path(__file__).with_name("convolutions.csv")
_WAYS = {
    "tiles on matrix": "matrix",
    "too few channels": "few channels",
    "products on vector": "vector",
    "in a lane": "depthwise",
}
# Kernels of a call, where a table of times does not say.
_KERNELS = 2


@dataclass(frozen=True)
class Measured:
    """A convolution that ran."""

    source: str
    device: str
    call: OpCall
    kernels: int
    ns: float


def _sizes(text: str, rank: int = 0) -> list[int]:
    values = [int(part) for part in text.split("x")]
    return values * rank if rank and len(values) == 1 else values


def of_kernelbench(path: Path = KERNELBENCH) -> Iterator[Measured]:
    """Each problem on H100 (or H200) and on A10."""
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        batch, channels, filters, groups = (
            int(row[name]) for name in ("batch", "channels", "filters", "groups")
        )
        image, kernel = _sizes(row["image"]), _sizes(row["kernel"])
        stride, padding, dilation = (
            str(_sizes(row[name], len(image))) for name in ("stride", "padding", "dilation")
        )
        transposed = row["transposed"] == "yes"
        output_padding = [str([0] * len(image))] if transposed else []
        values = ["", "", padding, *output_padding, stride, dilation, str(groups)]
        first, second = (channels, filters) if transposed else (filters, channels)
        dims = [[batch, channels, *image], [first, second // groups, *kernel]]
        name = "aten::cudnn_convolution" + ("_transpose" if transposed else "")
        call = _call(name, dims, [*values, "False", "False", "True"], "float")
        for device, column in ((row["h100"], "h100_ms"), ("a10", "a10_ms")):
            source = f"KernelBench {row['use']}"
            yield Measured(source, device, call, _KERNELS, 1e6 * float(row[column]))


def _call(name: str, tensors: list[list[int]], values: list[str], dtype: str) -> OpCall:
    dims: list[Any] = [*tensors, *[[] for _ in values[len(tensors) :]]]
    types = [dtype] * len(tensors) + ["Scalar"] * (len(values) - len(tensors))
    return OpCall(name, dims, types, None, values)


def of_traces(folder: Path) -> Iterator[Measured]:
    """Those of all traces of a folder, one for each kind of call."""
    for path in sorted(folder.rglob("*.json*")):
        try:
            trace = ttap.load(path)
        except ttap.errors.TraceError:
            continue
        device = chosen_device(trace.ranks[0])[0]
        if device is not None:
            yield from _of_rank(path.name.split(".")[0], trace.ranks[0], device.id)


def _of_rank(source: str, part: RankTrace, device: str) -> Iterator[Measured]:
    times, arguments, kernels = _recorded(part)
    strided = _Sizes([(key[0], json.loads(key[1]) or []) for key in times])
    for key, found in times.items():
        name, dims = key[0], json.loads(key[1])
        values, strides = arguments[key]
        if not dims:
            continue
        if values is not None:
            call: OpCall | None = OpCall(name, dims, json.loads(key[2]), strides, values)
        else:
            call = strided.call(name, dims)
        if call is not None:
            yield Measured(source, device, call, kernels[key], float(np.median(found)))


_Key = tuple[str, str, str]


def _recorded(
    part: RankTrace,
) -> tuple[dict[_Key, list[int]], dict[_Key, tuple[Any, Any]], dict[_Key, int]]:
    """GPU times, values and strides, and the number of kernels of each kind of convolution."""
    table, tree = part.table, part.tree
    by_op: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(tree.launch != _core.NO_ROW).tolist():
        op = int(tree.op[row])
        if op != _core.NO_ROW and table.name_of(op).startswith("aten::") and (
            "convolution" in table.name_of(op)
        ):  # fmt: skip
            by_op[op].append(row)
    times: dict[_Key, list[int]] = defaultdict(list)
    arguments, kernels = {}, {}
    for op, rows in by_op.items():
        args = json.loads(table.args_json(op) or "{}")
        key = (table.name_of(op), json.dumps(args.get("Input Dims")),
               json.dumps(args.get("Input type")))  # fmt: skip
        times[key].append(int(table.dur_ns[rows].sum()))
        arguments[key] = args.get("Concrete Inputs"), args.get("Input Strides")
        kernels[key] = len(rows)
    return times, arguments, kernels


class _Sizes:
    """Convolutions of a trace without concrete values, from the sizes that gradients have."""

    def __init__(self, calls: list[tuple[str, list[Any]]]) -> None:
        self._filters: dict[tuple[Any, int], list[Any]] = defaultdict(list)
        self._outputs: dict[tuple[Any, int], set[Any]] = defaultdict(set)
        for name, dims in calls:
            if name == "aten::cudnn_convolution" and dims:
                self._filters[tuple(dims[0]), dims[1][0]].append(dims[1])
            elif name.endswith("backward_weight") and dims:
                self._outputs[tuple(dims[2]), dims[1][1]].add(tuple(dims[1]))
            elif name == "aten::convolution_backward" and dims:
                self._outputs[tuple(dims[1]), dims[2][0]].add(tuple(dims[0]))

    def call(self, name: str, dims: list[Any]) -> OpCall | None:
        """None where more than one convolution has such sizes."""
        if name == "aten::cudnn_convolution":
            return self._forward(*dims[:2])
        if name == "aten::convolution_backward":
            return _backward(*dims[:3], [dims[1][1] > 3, True])
        if name.endswith("backward_weight"):
            filters = self._filters[tuple(dims[2]), dims[1][1]]
            known = len(filters) == 1
            return _backward(dims[1], dims[2], filters[0], [False, True]) if known else None
        images = [image for (image, _), filters in self._filters.items() if dims[2] in filters]
        one = name.endswith("backward_input") and len(images) == 1
        return _backward(dims[1], list(images[0]), dims[2], [True, False]) if one else None

    def _forward(self, image: list[int], filters: list[int]) -> OpCall | None:
        outputs = self._outputs[tuple(image), filters[0]]
        if len(outputs) != 1:
            return None
        stride = image[2] // next(iter(outputs))[2]
        values = ["", "", str([filters[2] // 2] * 2), str([stride] * 2), "[1, 1]", "1"]
        dims = [image, filters]
        return _call("aten::cudnn_convolution", dims, [*values, "False", "False", "True"], "float")


def _backward(
    gradient: list[int], image: list[int], filters: list[int], wanted: list[bool]
) -> OpCall:
    values = ["", "", "", "[0]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    dims = [gradient, image, filters]
    return _call("aten::convolution_backward", dims, [*values, str([*wanted, False])], "float")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path)
    options = parser.parse_args()
    rows = [*of_kernelbench(), *(of_traces(options.traces) if options.traces else ())]
    groups: dict[tuple[str, str, str], list[tuple[float, bool]]] = defaultdict(list)
    for row in rows:
        found = op_ns(row.call, load_devices()[row.device], kernels=row.kernels)
        if found is None:
            continue
        way = next((way for text, way in _WAYS.items() if text in found.source), "family")
        inside = found.low_ns <= row.ns <= found.high_ns
        groups[row.source, row.device, way].append((row.ns / found.ns, inside))
    for (source, device, way), members in sorted(groups.items()):
        ratio, inside = (np.array(column) for column in zip(*members, strict=True))
        low, middle, high = ratio.min(), np.median(ratio), ratio.max()
        error = 100 * np.median(np.abs(1 / ratio - 1))
        print(
            f"{source[:36]:<36} {device:<14} {way:<13} n {len(ratio):3}  ratio {low:5.2f} "
            f"{middle:5.2f} {high:5.2f}  median error {error:3.0f} %  holds {inside.mean():.2f}"
        )


if __name__ == "__main__":
    main()
