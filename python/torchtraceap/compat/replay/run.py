"""Running a script on a device, and how long its call takes there."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from torchtraceap.compat.replay.schema import Operator, require_torch
from torchtraceap.core.records import dataclass
from torchtraceap.errors import OptionError

__all__ = ["Timing", "check_device", "has_kernel", "time_call"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of a call by `torch.utils.benchmark`."""

    median_ns: float
    iqr_ns: float
    """Distance of the quartiles."""
    samples: int


def check_device(device: str) -> Any:
    """The device as torch knows it.

    Raises:
        OptionError: torch has no such device here.
    """
    torch = require_torch()
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise OptionError(f"device {ascii(device)[:60]}: {_first_line(error)}") from None
    return chosen


def has_kernel(operator: Operator, device: str) -> bool:
    """Whether the operator has an implementation for the device's kind."""
    torch = require_torch()
    key = torch._C._dispatch_key_for_device(torch.device(device).type)
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.full_name, key))


def time_call(operator: Operator, script: str, device: str, *, min_run_time: float) -> Timing:
    """Runs a script (`script.py`) in a process and an empty folder of its own.

    So what the call does to its process (a crash, memory, generators of random numbers) is not done
    to this one, and an interrupt ends it.

    Raises:
        OptionError: The operator does not run on the device; the message is torch's own.
    """
    with tempfile.TemporaryDirectory(prefix="torchtraceap-") as folder:
        path = Path(folder) / "call.py"
        path.write_text(script, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(path), device, str(min_run_time)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    if done.returncode:
        reason = _reason(done.returncode, done.stderr)
        raise OptionError(f"{operator.qualified} does not run on {device}: {reason}")
    return Timing(**json.loads(done.stdout.splitlines()[-1]))


_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception)\b.*", re.MULTILINE)


def _reason(code: int, errors: str) -> str:
    """The error that ended a script, in one line."""
    if code < 0:
        return f"it ended its process with {signal.Signals(-code).name}"
    found = _ERROR.search(errors)
    lines = [found[0]] if found else errors.strip().splitlines()
    return lines[-1][:300] if lines else f"exit code {code}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
