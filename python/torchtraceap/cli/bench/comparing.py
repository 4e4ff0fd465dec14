"""Actions of `bench`."""

from __future__ import annotations

from torchtraceap.cli.parsing import Command

COMPARE_ACTIONS: dict[str, Command] = {}
