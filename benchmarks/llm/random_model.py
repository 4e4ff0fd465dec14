"""The client against a real server: llama-cpp-python with a model of random weights.

A tiny model is written (two layers, 64 wide, letters and bytes as tokens), served on 127.0.0.1 and
asked for JSON of a schema. Its weights know nothing, but the server constrains what it writes: the
schema comes back filled at random. So everything between is real: HTTP, streams, usage, the
refusal of `json_schema` (a 500 there), and the fall to `json_object` with a schema.

    pip install 'llama-cpp-python[server]' gguf    # compiles for ten minutes or more
    python benchmarks/llm/random_model.py --output FILE.json

Exits 0 if everything held, 1 if something did not, 2 if a package is missing.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.explanation.client import Client
from torchtraceap.explanation.settings import ModelSettings

WIDTH, LAYERS, HEADS, INNER, CONTEXT = 64, 2, 4, 128, 4096
NEEDED = {"llama_cpp": "llama-cpp-python[server]", "gguf": "gguf", "openai": "openai"}
MODEL = "tiny"
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["verdict", "labels", "keep"],
    "properties": {
        "verdict": {"type": "string", "enum": ["anti_pattern", "benign", "misclassified"]},
        # Strings are left out: an unbounded one of random letters runs to the limit of tokens.
        "labels": {
            "type": "array",
            "maxItems": 2,
            "items": {"type": "string", "enum": ["small_kernels", "none"]},
        },
        "keep": {"type": "boolean"},
    },
}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
    "{% endfor %}assistant: "
)


def vocabulary() -> tuple[list[bytes], list[float], list[int]]:
    """Tokens, their scores and types: 3 of control, 256 bytes, the printable letters."""
    from gguf import TokenType

    tokens = [b"<unk>", b"<s>", b"</s>"]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    for byte in range(256):
        tokens.append(f"<0x{byte:02X}>".encode())
        types.append(TokenType.BYTE)
    for code in range(32, 127):
        # A sentence piece tokenizer writes a blank as U+2581.
        tokens.append("\u2581".encode() if code == 32 else bytes([code]))
        types.append(TokenType.NORMAL)
    scores = [0.0] * 259 + [-float(place) for place in range(95)]
    return tokens, scores, [int(each) for each in types]


def tensors(words: int) -> dict[str, np.ndarray]:
    """Random weights by the names that llama.cpp has for them, float32 `[out, in]`."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.1, shape).astype(np.float32)

    made = {"token_embd": weight(words, WIDTH), "output": weight(words, WIDTH)}
    made["output_norm"] = np.ones(WIDTH, np.float32)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name in ("attn_norm", "ffn_norm"):
            made[f"{block}.{name}"] = np.ones(WIDTH, np.float32)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            made[f"{block}.{name}"] = weight(WIDTH, WIDTH)
        made[f"{block}.ffn_gate"] = weight(INNER, WIDTH)
        made[f"{block}.ffn_up"] = weight(INNER, WIDTH)
        made[f"{block}.ffn_down"] = weight(WIDTH, INNER)
    return {f"{name}.weight": value for name, value in made.items()}


def write_model(path: Path) -> None:
    """A GGUF file of a Llama of random weights."""
    from gguf import GGUFWriter

    tokens, scores, types = vocabulary()
    writer = GGUFWriter(str(path), "llama")
    writer.add_name(MODEL)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, value in tensors(len(tokens)).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def serve(model: Path, port: int) -> subprocess.Popen[bytes]:
    """Starts the server; it says in `model.log` what it does."""
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(model),
               "--model_alias", MODEL, "--host", "127.0.0.1", "--port", str(port),
               "--n_ctx", str(CONTEXT)]  # fmt: skip
    with model.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def wait_until_up(server: subprocess.Popen[bytes], port: int, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the server was not up after {limit_s:g} s")


def fits(text: str) -> bool:
    """Whether an answer has what the schema asks for."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    if not isinstance(found, dict) or set(found) != set(SCHEMA["properties"]):
        return False
    labels = found["labels"]
    return (
        found["verdict"] in SCHEMA["properties"]["verdict"]["enum"]
        and isinstance(labels, list)
        and len(labels) <= 2
        and all(label in ("small_kernels", "none") for label in labels)
        and isinstance(found["keep"], bool)
    )


def ask(base_url: str, seeds: int) -> dict[str, Any]:
    """Asks once for each seed; returns what came, and what the client made of the server."""
    messages = [
        {"role": "system", "content": "You judge."},
        {"role": "user", "content": "GPU idle: 40 %."},
    ]
    began, replies, client = time.perf_counter(), [], None
    for seed in range(seeds):
        # Without a pause for retries: the server answers 500 to what it does not know.
        settings = ModelSettings(
            base_url, MODEL, retries=0, cache="off", seed=seed, max_answer_tokens=300
        )
        client = Client(settings)
        reply = client.answer(messages, SCHEMA, "verdict")
        replies.append({"text": reply.text, "finish": reply.finish, "fits": fits(reply.text)})
    return {
        "replies": replies,
        "fitting": sum(each["fits"] for each in replies),
        "asked": seeds,
        "problems": list(client.problems) if client else [],
        "usage": client.usage().to_dict() if client else None,
        "wall_s": time.perf_counter() - began,
    }


def run(seeds: int, limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, f"{MODEL}.gguf")
        write_model(model)
        port = free_port()
        server = serve(model, port)
        try:
            wait_until_up(server, port, limit_s)
            return ask(f"http://127.0.0.1:{port}/v1", seeds)
        except Exception:
            print(model.with_suffix(".log").read_text("utf-8", "replace")[-4000:], file=sys.stderr)
            raise
        finally:
            server.terminate()
            server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="answers to ask for [5]")
    parser.add_argument("--limit", type=float, default=60, help="s for the server to start [60]")
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        wanted = " ".join(f"'{package}'" for package in missing)
        print(f"not installed: {', '.join(missing)}; pip install {wanted}", file=sys.stderr)
        return 2
    found = run(options.seeds, options.limit)
    text = json.dumps(found, indent=1)
    if options.output:
        options.output.write_text(text + "\n", "utf-8")
    print(text)
    return 0 if found["fitting"] == found["asked"] else 1


if __name__ == "__main__":
    sys.exit(main())
