#!/usr/bin/env python3
"""Writes known_names.txt of torchtraceap.explanation: names of PyTorch, of CUDA and HIP calls.

    PYTHONPATH=python tools/update_known_names.py [HEADERS...]

Headers are those of CUPTI that enumerate calls (cupti_runtime_cbid.h, cupti_driver_cbid.h), which
name more of them. Needs torch. Names of the file stay, as earlier releases used them.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils.hipify import cuda_to_hip_mappings

from torchtraceap.explanation.redaction import KNOWN_NAMES, read_sections

NAMESPACES = frozenset(
    ["_c10d_functional", "aten", "c10d", "inductor", "mkldnn", "onednn", "prims", "quantized",
     "sparse", "symm_mem"]
)  # fmt: skip
CALL = re.compile(r"(?:cuda|cu|hip)[A-Z]\w+")
CALLBACK = re.compile(r"CBID_(cu[A-Za-z]\w*?)(?:_v\d+)?(?:_pt\w+)?(?= |,|=)")
MORE_CALLS = frozenset(
    ["hipCtxGetCurrent", "hipExtLaunchKernel", "hipExtModuleLaunchKernel", "hipMemcpyWithStream",
     "hipStreamGetDevice", "hipPointerGetAttribute", "hipStreamGetCaptureInfo"]
)  # fmt: skip
"""Of HIP, which the maps lack."""
EARLIER = frozenset(
    ["aten::_cat", "aten::cudnn_convolution_backward", "aten::cudnn_convolution_backward_input",
     "aten::cudnn_convolution_backward_weight", "c10d_functional::all_gather_into_tensor",
     "c10d_functional::all_reduce", "c10d_functional::all_to_all_single",
     "c10d_functional::reduce_scatter_tensor", "c10d_functional::wait_tensor"]
)  # fmt: skip
"""Operators of earlier releases."""
HEADING = """\
# Names that are PyTorch's, CUDA's or HIP's own, so that they tell nothing of a user's program.
# Written by tools/update_known_names.py from PyTorch (BSD-3-Clause): its registry of operators, its
# backward nodes without their numbers, its optimisers, and the calls in torch/utils/hipify; more
# calls from the enumerations of CUPTI's headers.
"""


def operators() -> set[str]:
    """Without overloads, and with those of earlier releases."""
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    return {name for name in names if name.partition("::")[0] in NAMESPACES} | EARLIER


def nodes() -> set[str]:
    """Backward nodes, without the number of the variant."""
    names = (name for name in dir(torch._C._functions) if name[0].isupper())
    return {name.rstrip("0123456789") for name in names}


def optimizers() -> set[str]:
    kinds = vars(torch.optim).items()
    return {name for name, kind in kinds if isinstance(kind, type)} - {"Optimizer"}


def calls(headers: Sequence[str]) -> set[str]:
    """Functions of CUDA and HIP, which the maps mix with types."""
    texts = [Path(header).read_text("utf-8") for header in headers]
    listed = {name for text in texts for name in CALLBACK.findall(text)}
    maps = vars(cuda_to_hip_mappings).values()
    pairs = (pair for each in maps if isinstance(each, dict) for pair in each.items())
    names = {name for old, new in pairs for name in (old, *_names(new)) if isinstance(name, str)}
    names |= listed | MORE_CALLS
    return {name for name in names if CALL.fullmatch(name) and not name.endswith("_t")}


def _names(entry: object) -> tuple[object, ...]:
    return entry if isinstance(entry, tuple) else (entry,)


def main() -> None:
    old = read_sections(KNOWN_NAMES)
    new = {
        "operators": operators(),
        "nodes": nodes(),
        "optimizers": optimizers(),
        "calls": calls(sys.argv[1:]),
    }
    parts = [HEADING]
    for title, names in new.items():
        lines = textwrap.wrap(
            " ".join(sorted(names | old.get(title, frozenset()))),
            100,
            break_long_words=False,
            break_on_hyphens=False,
        )
        parts.append("\n".join([f"[{title}]", *lines]) + "\n")
    KNOWN_NAMES.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
