"""Actions of `bench`."""

from __future__ import annotations

from torchtraceap.cli.parsing import Command

TRACK_ACTIONS: dict[str, Command] = {}
