"""Predictions of models whose GPU traces are public, against these traces (V15).

    PYTHONPATH=python PYTHON benchmarks/prediction/public_models.py CORPUS [--out RESULTS.json]

PYTHON has torch and transformers 4.49.0, the version in the traces' metadata: another one calls
other operators. A model is predicted twice: with nothing but the name of the device, and corrected
by the traces of the *other* models on that device. What is compared are the operators that both
have, in order: the program around a model (copies of inputs, reading results) is not captured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.lab.prediction.capture import capture_step
from torchtraceap.lab.prediction.lowering.step import LoweredStep
from torchtraceap.lab.prediction.predictor import lower_steps, predict
from torchtraceap.ops.devices import device_named
from torchtraceap.ops.models.families import family_of
from torchtraceap.trace.ranks import RankTrace

Make = Callable[[], dict[str, Any]]
BF16 = torch.bfloat16


def vit() -> dict[str, Any]:
    """ViT base with two labels, four images."""
    model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=2))
    return {"model": model.to(BF16), "inputs": (torch.randn(4, 3, 224, 224, dtype=BF16),)}


def qwen() -> dict[str, Any]:
    """Qwen1.5 of half a billion parameters, 16 sequences of 559 tokens."""
    config = transformers.Qwen2Config(
        vocab_size=151_936, hidden_size=1024, intermediate_size=2816, num_hidden_layers=24,
        num_attention_heads=16, num_key_value_heads=16, max_position_embeddings=32_768,
        rope_theta=1e6,
    )  # fmt: skip
    ones = torch.ones(16, 559, dtype=torch.long)
    model = transformers.Qwen2Model(config).to(BF16)
    return {"model": model, "inputs": {"input_ids": ones, "attention_mask": ones}}


def timesformer() -> dict[str, Any]:
    """TimeSformer with divided attention, trained on 8 frames, one clip of 128."""
    config = transformers.TimesformerConfig(num_frames=8, num_labels=400)
    model = transformers.TimesformerForVideoClassification(config)
    return {"model": model.to(BF16), "inputs": (torch.randn(1, 128, 3, 224, 224, dtype=BF16),)}


def bert() -> dict[str, Any]:
    """BERT of four layers with a head for words, one sequence of 141 tokens."""
    config = transformers.BertConfig(
        hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048
    )
    ones = torch.ones(1, 141, dtype=torch.long)
    model = transformers.BertLMHeadModel(config).to(BF16)
    return {"model": model, "inputs": {"input_ids": ones, "attention_mask": ones}}


MODELS: dict[str, tuple[Make, str]] = {
    "tracelens/h100/vit_nsfw_inference.json.gz": (vit, "h100_sxm"),
    "tracelens/h100/qwen_inference.json.gz": (qwen, "h100_sxm"),
    "tracelens/h100/timesformer_inference.json.gz": (timesformer, "h100_sxm"),
    "tracelens/mi300/bert_inference.json.gz": (bert, "mi300x"),
    "tracelens/mi300/qwen_inference.json.gz": (qwen, "mi300x"),
    "tracelens/mi300/timesformer_inference.json.gz": (timesformer, "mi300x"),
}


@dataclass(frozen=True)
class Recorded:
    """A launching operator of a trace."""

    name: str
    shapes: str
    kernels: int
    memsets: int
    gpu_ns: int
    family: str
    begin_ns: int
    end_ns: int


def recorded(part: RankTrace) -> list[Recorded]:
    """The innermost operators above launches, by start."""
    table, tree = part.table, part.tree
    by_op: dict[int, list[int]] = {}
    for row in np.flatnonzero(tree.launch != _core.NO_ROW).tolist():
        op = int(tree.op[row])
        if op != _core.NO_ROW:
            by_op.setdefault(op, []).append(row)
    found = []
    for op, rows in by_op.items():
        names = [table.name_of(row) for row in rows]
        is_set = ["memset" in name.lower() for name in names]
        dims = json.loads(table.args_json(op) or "{}").get("Input Dims", [])
        found.append(
            Recorded(
                table.name_of(op),
                str([shape for each in dims for shape in _plain(each)]),
                len(rows) - sum(is_set),
                sum(is_set),
                int(table.dur_ns[rows].sum()),
                family_of(
                    table.name_of(op), [n for n, s in zip(names, is_set, strict=True) if not s]
                ),
                int(table.ts_ns[op]),
                int((table.ts_ns[rows] + table.dur_ns[rows]).max()),
            )
        )
    return sorted(found, key=lambda op: op.begin_ns)


def _plain(dims: list[Any]) -> list[list[int]]:
    """Shapes of an argument: its own, or those of a list of tensors."""
    if not dims:
        return []
    return [each for each in dims if each] if isinstance(dims[0], list) else [dims]


@dataclass(frozen=True)
class Lowered:
    """The same of a prediction."""

    name: str
    shapes: str
    kernels: int
    memsets: int
    gpu_ns: float
    low_ns: float
    high_ns: float
    family: str


def lowered(step: LoweredStep) -> list[Lowered]:
    """Launching operators of a lowered step."""
    found = []
    for op in step.ops():
        works = op.works
        if not works:
            continue
        sets = sum(work.kind.name == "MEMSET" for work in works)
        kernels = [work.name for work in works if work.kind.name != "MEMSET"]
        found.append(
            Lowered(
                op.op.name,
                str([list(tensor.shape) for tensor in op.op.tensors if tensor.shape]),
                len(works) - sets,
                sets,
                sum(work.estimate.ns for work in works),
                sum(work.estimate.low_ns for work in works),
                sum(work.estimate.high_ns for work in works),
                family_of(op.op.name, kernels),
            )
        )
    return found


def aligned(ours: Sequence[Lowered], theirs: Sequence[Recorded]) -> list[tuple[int, int]]:
    """Pairs of places of operators of one name, in order."""
    matcher = SequenceMatcher(
        None, [op.name for op in ours], [op.name for op in theirs], autojunk=False
    )
    return [
        (block.a + k, block.b + k)
        for block in matcher.get_matching_blocks()
        for k in range(block.size)
    ]


def compared(path: str, corpus: Path, others: Sequence[ttap.Trace]) -> dict[str, Any]:
    """All figures of one model on one device."""
    make, device = MODELS[path]
    trace = ttap.load(corpus / path)
    theirs = recorded(trace.ranks[0])
    row: dict[str, Any] = {"trace": path, "device": device}
    for name, traces in (("alone", ()), ("calibrated", tuple(others))):
        prediction = predict(make, device=device, calibrate=traces)
        (step,) = lower_steps([capture_step(make)], device_named(device), traces)
        ours = lowered(step)
        pairs = aligned(ours, theirs)
        mine, real = [ours[a] for a, _ in pairs], [theirs[b] for _, b in pairs]
        measured = sum(op.gpu_ns for op in real)
        errors = [abs(a.gpu_ns / b.gpu_ns - 1) for a, b in zip(mine, real, strict=True) if b.gpu_ns]
        begin, end = real[0].begin_ns, max(op.end_ns for op in real)
        step_of_gpu = prediction.step
        row[name] = {
            "gpu_error": sum(op.gpu_ns for op in mine) / measured - 1,
            "op_error_median": float(np.median(errors)),
            "op_intervals_hold": float(
                np.mean(
                    [a.low_ns <= b.gpu_ns <= a.high_ns for a, b in zip(mine, real, strict=True)]
                )
            ),
            "wall_error": step_of_gpu.predicted_ns / (end - begin) - 1,
            "wall_interval_holds": step_of_gpu.low_ns <= end - begin <= step_of_gpu.high_ns,
            "wall_interval_width": step_of_gpu.high_ns / step_of_gpu.low_ns,
            "bound_by": prediction.bound_by,
        }
    row |= {
        "ops_recorded": len(theirs),
        "ops_lifted": len(ours),
        "ops_aligned": len(pairs),
        "same_shapes": sum(ours[a].shapes == theirs[b].shapes for a, b in pairs),
        "kernels_recorded": sum(op.kernels for op in real),
        "kernels_lifted": sum(op.kernels for op in mine),
        "memsets_recorded": sum(op.memsets for op in real),
        "memsets_lifted": sum(op.memsets for op in mine),
        "family_right": float(
            np.mean([a.family == b.family for a, b in zip(mine, real, strict=True)])
        ),
        "gpu_ms": measured / 1e6,
        "wall_ms": (end - begin) / 1e6,
        "busy": measured / (end - begin),
    }
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for path, (_, device) in MODELS.items():
        others = [
            ttap.load(options.corpus / other)
            for other, (_, same) in MODELS.items()
            if same == device and other != path
        ]
        rows.append(compared(path, options.corpus, others))
        print(json.dumps(rows[-1]))
    if options.out:
        document = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "rows": rows,
        }
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
