"""The options, the time and the result file that the stages of `all.py` share.

A stage is a program that is started as

    python benchmarks/device/STAGE.py --out FOLDER [--device cuda|cpu] [--seconds N] [--tiny]

and writes `FOLDER/result.json` after each item that it has finished, so that what was measured
before a time-out stays, and another call goes on behind it. Exit code: 0 everything is done, 1
something is wrong, 2 there is nothing here to try it on, 3 the time was over and something is left
to do, 4 everything was tried and some items could not be measured (`left_out` says why).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
for _place in (ROOT / "benchmarks/wins", ROOT / "benchmarks"):
    sys.path.insert(0, str(_place))

SCHEMA = "torchtraceap.device/1"
DONE, WRONG, NOTHING_HERE, UNFINISHED, PARTLY = range(5)
RESULT = "result.json"

Item = TypeVar("Item")


class NothingHereError(Exception):
    """The machine lacks what the stage needs; the message says what."""


@dataclass
class Stage:
    """One run of a stage."""

    device: str
    """cuda or cpu."""
    tiny: bool
    """Sizes that a CPU finishes in seconds; the figures mean nothing."""
    out: Path
    ends: float
    """The end of the time, in seconds of `time.monotonic()`."""
    found: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """Sentences that name what was not measured, and why."""
    failed: bool = False
    """A check does not hold."""
    unfinished: bool = False
    partly: bool = False
    """An item could not be measured."""

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def size(self) -> str:
        """The size of the suite's workloads."""
        return "tiny" if self.tiny else "full"

    def left_s(self) -> float:
        return self.ends - time.monotonic()

    def keep(self, **found: Any) -> None:
        """Adds to what was found and writes the result file."""
        self.found.update(found)
        document = {
            "schema": SCHEMA,
            "stage": self.out.name,
            "device": device_name(self.device),
            "tiny": self.tiny,
            "found": self.found,
            "left_out": self.left_out,
        }
        partial = self.out / f"{RESULT}.part"
        partial.write_text(json.dumps(document, indent=1, default=str) + "\n", "utf-8")
        partial.replace(self.out / RESULT)

    def rows(self, key: str) -> list[dict[str, Any]]:
        """Return what an earlier call found under a key, to be added to."""
        return list(self.found.get(key, []))

    def each(self, items: Iterable[Item], least_s: float = 5.0) -> Iterator[Item]:
        """Yields items as long as there is time for another one; tiny ones always."""
        listed: Sequence[Item] = list(items)
        for place, item in enumerate(listed):
            if self.left_s() < least_s and not self.tiny:
                self.unfinished = True
                rest = ", ".join(str(getattr(each, "name", each)) for each in listed[place:])
                self.left_out.append(f"no time was left for {rest}")
                return
            yield item

    def attempt(self, what: str, work: Callable[[], Any]) -> Any:
        """Runs one item; returns None where it fails, which is noted, and the rest goes on."""
        began = time.monotonic()
        try:
            found = work()
        except Exception as error:
            traceback.print_exc()
            first = (str(error).strip() or "no reason given").splitlines()[0][:300]
            self.left_out.append(f"{what}: {type(error).__name__}: {first}")
            self.partly = True
            return None
        print(f"{what}: {time.monotonic() - began:.1f} s", flush=True)
        return found


def device_name(device: str) -> str:
    """The GPU's name as its driver reports it, or "cpu"."""
    if device == "cpu":
        return "cpu"
    import torch

    return torch.cuda.get_device_name()


def run_stage(document: str | None, work: Callable[[Stage], None]) -> int:
    """Reads the options, runs `work`, and writes the result file whatever happens.

    Args:
        document: The module's docstring, for `--help`.
        work: Measures and calls `Stage.keep`.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(description=(document or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the result file")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=120.0, help="time for everything")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the way on a CPU")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    ends = time.monotonic() + options.seconds
    stage = Stage(options.device, options.tiny, options.out, ends, _found_before(options.out))
    if stage.on_gpu:
        import torch

        if not torch.cuda.is_available():
            print("PyTorch sees no GPU here", file=sys.stderr)
            return NOTHING_HERE
    try:
        work(stage)
    except NothingHereError as reason:
        stage.left_out.append(str(reason))
        stage.keep()
        print(reason, file=sys.stderr)
        return NOTHING_HERE
    except Exception as error:
        traceback.print_exc()
        stage.failed = True
        stage.left_out.append(f"{type(error).__name__}: {error}")
    stage.keep()
    for reason in stage.left_out:
        print(f"left out: {reason}", flush=True)
    if stage.failed:
        return WRONG
    if stage.unfinished:
        return UNFINISHED
    return PARTLY if stage.partly else DONE


def _found_before(out: Path) -> dict[str, Any]:
    """Return what an earlier call of this stage found."""
    path = out / RESULT
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))["found"]
    return found
