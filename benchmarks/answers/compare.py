"""Compares two recordings of `record.py` value by value.

    python benchmarks/answers/compare.py OLD NEW [--most N] [--only TEXT]

Prints each value that differs with its command and its path in the answer; exits with 1 if there
are any, or if one of the recordings lacks an answer of the other.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Digests = dict[str, dict[str, str]]
_ABSENT = object()


def differences(old: Any, new: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The path, old and new value of each difference between two JSON values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from differences(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{where}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        for place in range(max(len(old), len(new))):
            parts = (each[place] if place < len(each) else _ABSENT for each in (old, new))
            yield from differences(*parts, f"{where}[{place}]")
    elif type(old) is not type(new) or old != new:
        yield where, old, new


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "(absent)"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:157]}..."


def _answers(folder: Path, name: str) -> dict[str, Any]:
    raw = gzip.decompress((folder / f"{name}.answers.json.gz").read_bytes())
    answers: dict[str, Any] = json.loads(raw)["answers"]
    return answers


def _digests(folder: Path, only: str) -> Digests:
    found: Mapping[str, dict[str, str]] = json.loads((folder / "digests.json").read_text("utf-8"))
    return {name: digests for name, digests in found.items() if only in name}


def report(old: Path, new: Path, most: int, only: str) -> int:
    """Prints what differs, at most `most` values of a command; returns the exit code."""
    befores, afters = _digests(old, only), _digests(new, only)
    differing = compared = 0
    for name in dict.fromkeys([*befores, *afters]):
        before, after = befores.get(name), afters.get(name)
        if before is None or after is None:
            print(f"{name}: only in {old if after is None else new}")
            differing += 1
            continue
        compared += len(before)
        commands = [
            command
            for command in dict.fromkeys([*before, *after])
            if before.get(command) != after.get(command)
        ]
        differing += len(commands)
        if commands:
            _print_commands(name, commands, (_answers(old, name), _answers(new, name)), most)
    print(f"{compared} answers compared, {differing} differ")
    return 1 if differing or not compared else 0


def _print_commands(
    name: str, commands: list[str], answers: tuple[dict[str, Any], dict[str, Any]], most: int
) -> None:
    for command in commands:
        print(f"{name}: {command}")
        found = list(differences(*(side.get(command, _ABSENT) for side in answers)))
        for where, before, after in found[:most]:
            print(f"    {where.lstrip('.')}: {_shown(before)} -> {_shown(after)}")
        if len(found) > most:
            print(f"    and {len(found) - most} values more")
        if not found:  # JSON numbers of another type or order of keys
            print("    equal values in another order")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("--most", type=int, default=5, help="values of a command to print [5]")
    parser.add_argument("--only", default="", help="only traces whose name holds this text")
    options = parser.parse_args()
    return report(options.old, options.new, options.most, options.only)


if __name__ == "__main__":
    sys.exit(main())
