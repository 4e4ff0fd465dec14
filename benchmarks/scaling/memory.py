"""Peak memory and time of commands against the size of the JSON: a share of it, and linear.

    python benchmarks/scaling/memory.py [--gigabytes 0.25 0.5 1 2 4] [--traces SMALL...]
        [--commands diagnose "diagnose --json" summary ...] [--folder DIR] [--output FILE]

Each trace is repeated to each size by `make_large.py` (gzip, level 1; kept in DIR). A command runs
in a process of its own, interpreter and libraries included: its peak resident memory over the bytes
of its JSON text, and its seconds.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import DEMO_TRACE, ROOT, write_results
from make_large import pieces

PACKAGE = str(ROOT / "python")


def make(trace: Path, gigabytes: float, folder: Path) -> tuple[Path, int]:
    """The large trace, and the bytes of its text.

    Made in a process of its own: a child's peak begins with what its parent holds at that moment.
    """
    path = folder / f"{trace.name.partition('.')[0]}-{gigabytes:g}GB.json.gz"
    size = path.with_suffix(".size")
    if not size.exists():
        with get_context("spawn").Pool(1) as pool:
            size.write_text(str(pool.apply(_repeat, (trace, gigabytes, path))))
    return path, int(size.read_text())


def _repeat(trace: Path, gigabytes: float, path: Path) -> int:
    data = trace.read_bytes()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    written = 0
    with gzip.open(path, "wb", compresslevel=1) as output:
        for piece in pieces(text, int(gigabytes * 1e9)):
            written += output.write(piece.encode())
    return written


def run(command: list[str], path: Path, folder: Path) -> dict[str, Any]:
    """Seconds, peak and exit code of `torchtraceap COMMAND PATH OPTIONS`."""
    name, *options = (text.replace("{folder}", str(folder)) for text in command)
    environment = os.environ | {"PYTHONPATH": PACKAGE}
    call = [sys.executable, "-m", "torchtraceap", name, str(path), *options]
    begin = time.perf_counter()
    with subprocess.Popen(call, stdout=subprocess.DEVNULL, env=environment) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "seconds": round(time.perf_counter() - begin, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mb": round(usage.ru_maxrss * 1024 / 1e6),
        "exit": process.returncode,
    }


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    rows = []
    for trace in options.traces:
        for gigabytes in options.gigabytes:
            path, size = make(trace, gigabytes, folder)
            for command in options.commands:
                row = {"trace": trace.name, "command": command, "json_mb": round(size / 1e6)}
                row |= run(command.split(), path, folder)
                row["share"] = round(row["peak_mb"] * 1e6 / size, 3)
                rows.append(row)
                print(
                    f"{row['trace']:45.45} {command:20} {row['json_mb']:6} MB: peak "
                    f"{row['peak_mb']:6} MB = {row['share']:.2f} of it, {row['seconds']:7.2f} s "
                    f"({row['cpu_seconds']:.2f} s of processor), exit {row['exit']}",
                    flush=True,
                )
            if not options.keep:
                path.unlink()
                path.with_suffix(".size").unlink()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.25, 0.5, 1, 2, 4])
    parser.add_argument("--traces", type=Path, nargs="+", default=[DEMO_TRACE])
    parser.add_argument("--commands", nargs="+", default=["diagnose", "diagnose --json"])
    parser.add_argument("--folder", type=Path, help="where the large traces are, or go")
    parser.add_argument("--keep", action="store_true", help="keep them")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure(options, options.folder or Path(scratch))
    if options.output:
        write_results(options.output, results=rows)


if __name__ == "__main__":
    main()
