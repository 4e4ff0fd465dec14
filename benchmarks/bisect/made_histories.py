"""Git histories with a culprit whose place is known, made from a seed."""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Planted", "make_history"]

PROGRAM = """from torchtraceap.lab.bench.measured import measured

from work import Work

work = Work()
for _ in measured(range(work.steps), warmup=4):
    work.step()
"""

WORK = {
    "python": """# {comment}


class Work:
    steps = 24

    def step(self):
        total = 0
        for i in range({size}):
            total += i * i % 7
        return self.checked(total)

    def checked(self, total):
        for i in range({extra}):
            total += i * i % 7
        return total
""",
    "numpy": """# {comment}
import numpy as np


class Work:
    steps = 24

    def __init__(self):
        draw = np.random.default_rng(0)
        self.x = draw.normal(size=2048)

    def step(self):
        y = self.x
        for i in range({size}):
            y = np.sort(self.x)
        return self.normed(y)

    def normed(self, y):
        for i in range({extra}):
            y = np.sort(self.x)
        return y
""",
    "torch": """# {comment}
import torch

torch.set_num_threads(1)


class Work:
    steps = 20

    def __init__(self):
        self.x = torch.randn(64, 96)
        self.w = torch.randn(96, 96)

    def step(self):
        y = self.x
        for i in range({size}):
            y = torch.addmm(self.x, self.x, self.w)
        return self.normed(y)

    def normed(self, y):
        for i in range({extra}):
            y = torch.addmm(self.x, self.x, self.w)
        return y
""",
}
SIZES = {"python": 40_000, "numpy": 130, "torch": 120}
WORDS = (
    "Rename a variable",
    "Reword a comment",
    "Sort imports",
    "Add a note",
    "Tidy up",
    "Update the readme",
    "Adjust a constant",
    "Move a helper",
    "Simplify",
    "Fix a typo",
)


@dataclass(frozen=True)
class Planted:
    seed: int
    kind: str
    folder: Path
    commits: tuple[str, ...]
    culprit: int
    """Place in `commits`."""
    effect: float
    """What the culprit adds, as a fraction."""
    broken: int | None
    """Place of a commit that doesn't run."""


def make_history(seed: int, folder: Path) -> Planted:
    """The same commits for the same seed."""
    draw = random.Random(seed)
    # Importing torch takes a second or more in each of some hundred processes.
    kind = "torch" if seed % 20 == 9 else ("numpy", "python")[seed % 2]
    count = draw.randint(8, 24)
    culprit = draw.randint(1, count - 1)
    effect = draw.uniform(0.06, 0.20)
    free = [place for place in range(1, count - 1) if place != culprit]
    broken = draw.choice(free) if draw.random() < 0.3 else None
    size, extra = SIZES[kind], 0
    folder.mkdir(parents=True, exist_ok=True)
    _git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    commits = []
    for place in range(count):
        subject = draw.choice(WORDS)
        if place == culprit:
            extra = max(1, round(effect * size))
            subject = "Check what comes out"
        elif draw.random() < 0.4:  # an edit that changes how much is done, by too little to matter
            size += draw.choice((-1, 1)) * max(1, size // 400) * (kind != "torch")
        text = WORK[kind].format(comment=f"{subject}, {place}", size=size, extra=extra)
        if place == broken:
            text = "import a_module_that_is_missing\n" + text
        (folder / "work.py").write_text(text, encoding="utf-8")
        _git(folder, "add", "--all")
        _git(folder, "commit", "--quiet", "--message", subject, number=place)
        commits.append(_git(folder, "rev-parse", "HEAD").strip())
    real = extra / SIZES[kind]
    return Planted(seed, kind, folder, tuple(commits), culprit, real, broken)


def _git(folder: Path, *words: str, number: int = 0) -> str:
    date = f"{1_790_000_000 + 3600 * number} +0000"
    identity = {
        "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_AUTHOR_DATE": date,
        "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.org",
        "GIT_COMMITTER_DATE": date,
    }  # fmt: skip
    done = subprocess.run(
        ["git", *words], cwd=folder, env={**os.environ, **identity}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout
