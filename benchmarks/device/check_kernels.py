"""The CUDA kernels of `cpp/traceap/cuda/` against their twins on the host, by `cuda_parity`.

The program compares integers and copies to the bit and sines to 1e-5, and times each kernel. On a
CPU only its answer that there is no device is checked: the twins on the host have tests of their
own (`tests/cpp/cuda/`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from stage import ROOT, NothingHereError, Stage, run_stage

_LINE = re.compile(
    r"\s+(?P<kernel>\w+)\s+(?P<verdict>equal|WRONG)\s+largest difference\s+(?P<difference>\S+)"
    r"\s+(?P<us>\S+) us\s+(?P<gb_per_s>\S+) GB/s"
)
_NO_DEVICE = 4


def check(stage: Stage) -> None:
    program = Path(os.environ.get("CUDA_PARITY", ROOT / "build/device/pack/cuda_parity"))
    if not program.is_file():
        raise NothingHereError(f"{program} is missing: `benchmarks/device/all.sh pack` builds it")
    done = subprocess.run([program], capture_output=True, text=True, timeout=stage.left_s())
    print(done.stdout, done.stderr, flush=True)
    rows, case = [], ""
    for line in done.stdout.splitlines():
        if found := _LINE.match(line):
            numbers = {key: float(found[key]) for key in ("difference", "us", "gb_per_s")}
            rows.append({"case": case, **found.groupdict(), **numbers})
        else:
            case = line.strip()
    stage.keep(rows=rows, exit_code=done.returncode, said=done.stdout.splitlines()[-1:])
    if done.returncode == _NO_DEVICE and not stage.on_gpu:
        stage.left_out.append("the kernels did not run: there is no GPU")
    elif done.returncode:
        stage.failed = True
    else:
        peer = [sys.executable, str(ROOT / "benchmarks/device/tokens_by_torch.py")]
        by_torch = subprocess.run(peer, capture_output=True, text=True, timeout=stage.left_s())
        stage.keep(by_torch=by_torch.stdout.splitlines(), by_torch_exit_code=by_torch.returncode)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, check))
