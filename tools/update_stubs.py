#!/usr/bin/env python3
"""Writes python/torchtraceap/_core.pyi from the compiled module, or checks that it is up to date.

Usage: PYTHONPATH=python tools/update_stubs.py [--check]
Needs pybind11-stubgen and ruff (the extra `lint`) and a built `_core`.
"""

from __future__ import annotations

import difflib
import enum
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "python/torchtraceap/_core.pyi"
HEADER = '"""Types of the C++ core. Written by tools/update_stubs.py: do not edit."""\n\n'


def generate() -> str:
    """The stub as pybind11-stubgen writes it, with our heading and format."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pybind11_stubgen", "torchtraceap._core", "-o", folder]
        subprocess.run([*command, "--exit-code"], check=True, capture_output=True)
        text = (Path(folder) / "torchtraceap/_core.pyi").read_text("utf-8")
    text = re.sub(r'\A"""(.|\n)*?"""\n', "", text)
    text = text.replace("os.PathLike |", "os.PathLike[str] |")
    text = with_plain_enums(text)
    # A pointer that may be None; the generator does not say so.
    text = re.sub(r"(\w+): (\w+) = None", r"\1: \2 | None = None", text)
    return format_stub(HEADER + text)


def with_plain_enums(text: str) -> str:
    """Enums as people write them: the generator shows their inside instead."""
    from torchtraceap import _core

    for name, kind in vars(_core).items():
        if isinstance(kind, type) and issubclass(kind, enum.IntEnum):
            lines = [f'class {name}(enum.IntEnum):\n    """{kind.__doc__}"""\n']
            lines += [f"    {member.name} = {member.value}" for member in kind]
            inside = rf"class {name}\(enum\.IntEnum\):\n(?:(?: .*)?\n)+"
            text = re.sub(inside, "\n".join(lines) + "\n\n", text)
    return text.replace("import builtins\n", "")


def format_stub(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(STUB), "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return done.stdout


def main(arguments: list[str]) -> int:
    fresh = generate()
    if "--check" not in arguments:
        STUB.write_text(fresh, "utf-8")
        print(f"wrote {STUB.relative_to(ROOT)}")
        return 0
    committed = STUB.read_text("utf-8")
    diff = difflib.unified_diff(committed.splitlines(), fresh.splitlines(), "committed", "live")
    lines = list(diff)
    print("\n".join(lines) if lines else "the stub is up to date")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
