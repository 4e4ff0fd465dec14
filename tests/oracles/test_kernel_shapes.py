"""Bounds by names and grids of kernels against the shapes that eager operators recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap.ops.models.kernel_shapes import KernelLaunch, counts_threads, product_of_kernel
from torchtraceap.tables.ops.calls import Calls, GpuCalls

ROOT = Path(__file__).parents[2]
CORPUS = Path(os.environ.get("TORCHTRACEAP_CORPUS", ROOT.parent / "shared" / "traces"))
FILES = [
    "hta/ddp_a100_rank_of_8_control.json.gz",
    "hta/sampled_rank_1_of_128.json.gz",
    "segment_anything_fast/amg_baseline.json.gz",
    "segment_anything_fast/amg_fast.json.gz",
    "param/dlrm_8ranks/rank0.json",
    "tracelens/mi300/bert_inference.json.gz",
    "tracelens/mi300/qwen_inference.json.gz",
    "tracelens/mi300/timesformer_inference.json.gz",
    "tracelens/b200/eager_training_rank.json.gz",
    "tracelens/h100/qwen_inference.json.gz",
    "modded_nanogpt/overlap_before.json.gz",
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CORPUS.is_dir(), reason="no real traces"),
]
OPERANDS = {
    "aten::mm": 0,
    "aten::_scaled_mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::baddbmm": 1,
}


def products(path: Path) -> list[tuple[KernelLaunch, int, int]]:
    """Return launches of operators that ran one kernel that is named as a product, with the rows
    and columns of their result."""
    part = ttap.load(path).ranks[0]
    calls = Calls(part)
    on_gpu = GpuCalls(part, calls)
    texts = {key: part.table.text_codes(key, on_gpu.events) for key in ("grid", "block")}
    names = [part.table.strings[code] for code in part.table.name[on_gpu.events].tolist()]
    is_product = np.array(
        [any(w in n for w in ("gemm", "Cijk_", "nvjet")) and "Gemv" not in n for n in names]
    )
    counts = np.bincount(on_gpu.event_call[is_product], minlength=len(on_gpu.rows))
    found = []
    for event in np.flatnonzero(is_product & (counts[on_gpu.event_call] == 1)).tolist():
        row = int(on_gpu.rows[on_gpu.event_call[event]])
        kind = calls.kind_of(row) if row < len(part.table) and calls.has_work[row] else None
        shape: dict[str, Any] = {
            key: column[codes[event]] for key, (codes, column) in texts.items() if codes[event] >= 0
        }
        if kind is None or kind.name not in OPERANDS or not kind.texts[0] or len(shape) < 2:
            continue
        first = OPERANDS[kind.name]
        a, b = json.loads(kind.texts[0])[first : first + 2]
        sizes = {key: tuple(json.loads(text)) for key, text in shape.items()}
        found.append((KernelLaunch(names[event], **sizes), a[-2], b[-1]))
    return found


@pytest.mark.parametrize("name", FILES)
def test_bounds_hold_the_truth(name: str) -> None:
    if not (CORPUS / name).exists():
        pytest.skip("the trace is absent")
    launches = products(CORPUS / name)
    threads = counts_threads([launch for launch, _, _ in launches])
    known = 0
    for launch, rows, columns in launches:
        full = KernelLaunch(launch.name, launch.grid, launch.block, 132, threads)
        for given in (None, rows):
            product = product_of_kernel(full, given)
            if product is None:
                continue
            known += given is None
            assert product.rows[0] <= rows <= product.rows[1], (full, rows, columns)
            assert product.n[0] <= columns <= product.n[1], (full, rows, columns)
    print(f"{name}: {known} of {len(launches)} launches are bounded")
    # Their kernels fill the device.
    loops = any(word in name for word in ("h100", "b200", "nanogpt"))
    assert loops or known > 0.9 * len(launches)
