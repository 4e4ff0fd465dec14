"""Every command and every block of Python in the documentation runs as it stands.

What they read lies under the names that the pages use. A synopsis, such as `[--by name|event]`, is
run once without its options and once with each of their values.
"""

from __future__ import annotations

import gzip
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_samples as samples
from pipeline_job import Job
from served_model import Served
from test_execution_trace import CALLS, ROOTS, flat
from test_recordings import make_truth, write_perfetto, write_xplane

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.cli import main
from torchtraceap.simulation.trust import trust_of

ROOT = Path(__file__).resolve().parents[3]
TRACES = ROOT / "examples/traces"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
WHAT_IT_NEEDS = {"tracelens-xlsx": "openpyxl", ".pftrace": "perfetto", "--parquet": "pyarrow",
                 "--run": "torch", "predict ": "torch", "generate ": "torch",
                 "dataset ": "pyarrow", "evaluate ": "sklearn", "judge ": "pyarrow"}  # fmt: skip
# Blocks that show where a call goes in a program that is not ours, or leave a part to the reader.
FRAGMENTS = {"formats.md": ("jax.profiler",), "prediction.md": ("...,", "profile.json"),
             "labeled_data.md": ("minutes=10", "emulated."),
             "scorers.md": ("out/weights", 'train("v2"'),
             "integrations.md": ("ttap.integrations.",), "README.md": ("perf_contract",),
             "comparing.md": ("before.json.gz",)}  # fmt: skip
# What takes minutes, or waits for a client; other tests do the same with less.
LONG = ("dataset build ", " train ", " collect ", "--report docs/", " compare ", " calibrate ",
        " bisect ", " ci ", "bench history", "bench run ", " mcp ")  # fmt: skip
WORKLOAD = """
import torch

def workload():
    return {"model": torch.nn.Linear(64, 64), "inputs": (torch.randn(8, 64),)}
"""


def page_text(page: Path) -> str:
    return page.read_text("utf-8")


# ---------------------------------------------------------------------------------- commands


def commands() -> Iterator[tuple[str, str]]:
    """Page and command, each once: lines of blocks, and inline ones that name what they read."""
    seen = set()
    for page in PAGES:
        text = page_text(page)
        blocks = re.findall(r"```(?:\w*)\n(.*?)```", text, re.S)
        lines = [line for block in blocks for line in block.splitlines()]
        inline = re.findall(r"`(torchtraceap [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
        found = [line for line in lines if line.startswith("torchtraceap ")]
        found += [line for line in inline if re.search(r" (PATH|FOLDER|FILE|runs/|A B)\b", line)]
        for line in found:
            for command in variants(" ".join(re.sub(r"\s+# .*", "", line).split())):
                long = any(words in command for words in LONG)
                if command not in seen and "|" not in command and not long:
                    seen.add(command)
                    yield page.name, command


def variants(synopsis: str) -> list[str]:
    """What a synopsis stands for: nothing optional, then each optional thing alone."""
    optional = re.findall(r"\s\[(--[^\[\]]*(?:\[[^\[\]]*\])?)\]", synopsis)
    plain = re.sub(r"\s\[--[^\[\]]*(?:\[[^\[\]]*\])?\]", "", synopsis)
    found = [plain]
    for group in optional:
        group = re.sub(r" \[.*", "", group)
        flag, _, values = group.partition(" ")
        ways = group.split(" | ") if " | " in group else [f"{flag} {v}" for v in values.split("|")]
        found += [f"{plain} {way}".strip() for way in ways]
    return found


COMMANDS = sorted(set(commands()))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages speak of."""
    folder = tmp_path_factory.mktemp("desk")
    one, other = (TRACES / f"resnet50_num_workers_{number}.json.gz" for number in (0, 4))
    (folder / "model.py").write_text(WORKLOAD)
    (folder / "contract.yaml").write_text("syncs_per_step: 2\n")
    for name in ("trace.json.gz", "measured.json.gz", "PATH", "A", "a.json.gz", "b.json.gz"):
        shutil.copy(one, folder / name)
    for name in ("dataset", "DATASET"):
        shutil.copytree(ROOT / "examples/mini_dataset", folder / name)
    (folder / "labels.json").write_text(json.dumps({"intervals": []}))
    shutil.copy(other, folder / "B")
    make = runpy.run_path(str(ROOT / "examples/make_ranks.py"))["write_ranks"]
    for name in ("runs", "FOLDER", "DIR", "ranks", "steps/step_100", "traces/vision/run_1"):
        (folder / name).mkdir(parents=True)
        make(folder / name)
    (folder / "big.json").write_bytes(gzip.decompress(one.read_bytes()))
    assert main(["convert", str(one), str(folder / "trace.arrow")]) == 0
    write_perfetto(make_truth(1), folder / "trace.pftrace")
    write_xplane(make_truth(1), folder / "host.xplane.pb")
    (folder / "served.json").write_text(json.dumps(Served().trace()))
    (folder / "FILE").write_text(json.dumps([[0, 1, 8, 0]]))
    (folder / "execution_trace.json").write_text(json.dumps(flat([*ROOTS, *CALLS])))
    samples.slow_loader().write(folder / "kineto.json")
    job = Job(stages=4, replicas=2, microbatches=8, steps=3)
    job.frame.to_csv(folder / "trace.csv.gz", index=False)
    return folder


def test_the_pages_have_commands() -> None:
    assert len(COMMANDS) > 50


@pytest.mark.slow  # runs every command of the documentation
@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_commands_of_the_documentation_run(
    page: str, command: str, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for word, module in WHAT_IT_NEEDS.items():
        if word in command:
            pytest.importorskip(module)
    monkeypatch.chdir(desk)
    words = shlex.split(command.replace("NAME[=VALUE]", "loader_workers=4"))[1:]
    words = ["cpu" if word == "cuda" else word for word in words]  # where there may be no GPU
    given = [value_of(words, place) for place in range(len(words))]
    fails = given[-1] == "--gate"  # as it should: the trace has findings
    assert main(given) == (1 if fails else 0)


def value_of(words: list[str], place: int) -> str:
    """A word of a command; names of files to write and numbers where the page has a letter."""
    word, before = words[place], words[place - 1]
    targets = {"--html": "page.html", "--csv": "table.csv", "--parquet": "table.parquet",
               "--tracelens-csv": "tables", "--tracelens-xlsx": "tables.xlsx"}  # fmt: skip
    if word in ("FILE", "DIR", "OUT") and (before in targets or word == "OUT"):
        return targets.get(before, "out.json.gz")
    if word == "runs/step_100/":
        return "steps/step_100/"
    return {"N": "4", "PERCENT": "1000"}.get(word, word)


# ---------------------------------------------------------------------------------- Python


def blocks() -> Iterator[tuple[str, int, str]]:
    for page in PAGES:
        found = re.findall(r"```python\n(.*?)```", page_text(page), re.S)
        for place, block in enumerate(found):
            if not any(word in block for word in FRAGMENTS.get(page.name, ())):
                yield page.name, place, block


BLOCKS = list(blocks())


@pytest.fixture(scope="module")
def names(desk: Path) -> dict[str, Any]:
    """What blocks take for granted: `import torchtraceap as ttap`, and a trace."""
    before, after = ttap.load(desk / "A"), ttap.load(desk / "B")
    return {
        "ttap": ttap,
        "torchtraceap": ttap,
        "trace": before,
        "before": before,
        "after": after,
        "path": "trace.json.gz",
        "delta": _core.GraphDelta(),
        "deltas": [_core.GraphDelta()],
        "trust_of": trust_of,
    }


def test_the_pages_have_blocks_of_python() -> None:
    assert len(BLOCKS) > 18


@pytest.mark.slow  # runs every example of the documentation
@pytest.mark.parametrize(
    ("page", "place", "block"), BLOCKS, ids=[f"{page}-{place}" for page, place, _ in BLOCKS]
)
def test_blocks_of_the_documentation_run(
    page: str,
    place: int,
    block: str,
    desk: Path,
    names: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block = block.replace('device="cuda"', 'device="cpu"')  # where there may be no GPU
    monkeypatch.chdir(desk)
    if "as_prof" in "_".join(block.split()) or "ttap.profile" in block or "ttap.watch" in block:
        record(block)
        return
    if any(word in block for word in ("replay(trace", "prediction", "generate(", "import torch\n")):
        pytest.importorskip("torch")
    exec(compile(block, f"{page}-{place}", "exec"), dict(names))


RECORDING = """
import torch
import torchtraceap as ttap

loader = [torch.ones(8, 8)] * 12
train = train_step = lambda batch: batch @ batch
validate = lambda: None
"""


def record(block: str) -> None:
    """Runs a block that records, in a process of its own: a profiler is one for each."""
    pytest.importorskip("torch")
    command = [sys.executable, "-c", RECORDING + block]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
