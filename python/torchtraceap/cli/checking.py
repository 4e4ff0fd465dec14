"""`check`: a contract on a stored trace."""

from __future__ import annotations

from torchtraceap.cli.parsing import Command

CHECK_COMMANDS: dict[str, Command] = {}
