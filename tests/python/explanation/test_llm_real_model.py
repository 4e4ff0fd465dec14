"""A real model, offline: what runs against the contract server runs against one that writes freely.

It is small and knows next to nothing, so nothing is said of how good its answers are: each command
ends well, asks it, and shows nothing that does not hold.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import torchtraceap as ttap
from torchtraceap.explanation.client import Client
from torchtraceap.explanation.settings import ModelSettings

from .test_llm_explaining import check_holds

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks/llm"))

from real_model import NEEDED, run, serving

MISSING = [package for module, package in NEEDED.items() if find_spec(module) is None]
pytestmark = [
    pytest.mark.slow,  # a real model reads prompts of thousands of tokens on the CPU
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]
CAPS = (2, 120, 500)
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["verdict", "sure"],
    "properties": {
        "verdict": {"type": "string", "enum": ["anti_pattern", "benign"]},
        "sure": {"type": "boolean"},
    },
}


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with serving() as url:
        yield url


def test_it_obeys_a_schema(model: str) -> None:
    settings = ModelSettings(model, "gemma", cache="off", max_answer_tokens=120, timeout_s=500)
    messages = [{"role": "user", "content": "GPU idle: 40 %. Answer in JSON."}]
    reply = Client(settings).answer(messages, SCHEMA, "verdict")
    found = json.loads(reply.text)
    assert set(found) == {"verdict", "sure"} and found["verdict"] in ("anti_pattern", "benign")


def test_explain_ends_well(model: str, bundled: Path) -> None:
    ran = run(model, *CAPS, "explain", str(bundled), "--json")
    assert ran["code"] == 0, ran["err"]
    document = json.loads(ran["out"])
    assert document["usage"]["calls"] >= 1
    assert document["source"] in ("llm", "offline_fallback")
    check_holds(document, ttap.load(bundled))


def test_a_question_with_tools_ends_well(model: str, bundled: Path) -> None:
    settings = ModelSettings(model, "gemma", cache="off", max_answer_tokens=120, timeout_s=500)
    found = ttap.diagnose(bundled).ask("What blocks the host?", model=settings)
    assert found.usage is not None and found.usage.calls >= 1
    assert found.source in ("llm", "offline_fallback") and found.text


def test_it_is_a_program_of_its_own() -> None:
    """Without the packages it says which to install."""
    script = Path(__file__).resolve().parents[3] / "benchmarks/llm/real_model.py"
    ran = subprocess.run(
        [sys.executable, str(script), "--help"], capture_output=True, text=True, check=True
    )
    assert "--calls" in ran.stdout
