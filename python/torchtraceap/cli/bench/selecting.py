"""Actions of `bench`."""

from __future__ import annotations

from torchtraceap.cli.parsing import Command

SELECT_ACTIONS: dict[str, Command] = {}
