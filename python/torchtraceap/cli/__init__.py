"""The command line: `main`, `COMMANDS`, and what the lab's commands are made of.

Exit codes: 0 fine, 1 findings where the command gates, 2 unusable input or options, 130
interrupted, 143 terminated.

Note [argparse]: typer 0.29 brings pydantic along and takes 0.1 s to parse three options, a third
of a whole run on the demo trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.cli.catalog import COMMANDS as COMMANDS
    from torchtraceap.cli.catalog import Entry as Entry
    from torchtraceap.cli.explain import add_model as add_model
    from torchtraceap.cli.explain import model_of as model_of
    from torchtraceap.cli.input import load as load
    from torchtraceap.cli.output import check_output as check_output
    from torchtraceap.cli.output import note as note
    from torchtraceap.cli.output import print_commands as print_commands
    from torchtraceap.cli.output import print_tables as print_tables
    from torchtraceap.cli.output import print_text as print_text
    from torchtraceap.cli.parser import FINDINGS as FINDINGS
    from torchtraceap.cli.parser import FINE as FINE
    from torchtraceap.cli.parser import UNUSABLE as UNUSABLE
    from torchtraceap.cli.parser import WINDOW_COUNTS as WINDOW_COUNTS
    from torchtraceap.cli.parser import Command as Command
    from torchtraceap.cli.parser import Options as Options
    from torchtraceap.cli.parser import Parser as Parser
    from torchtraceap.cli.parser import UsageError as UsageError
    from torchtraceap.cli.parser import add_bases as add_bases
    from torchtraceap.cli.parser import add_jobs as add_jobs
    from torchtraceap.cli.parser import add_json as add_json
    from torchtraceap.cli.parser import add_no_color as add_no_color
    from torchtraceap.cli.parser import add_seed as add_seed
    from torchtraceap.cli.parser import add_windows as add_windows
    from torchtraceap.cli.parser import command_of_actions as command_of_actions
    from torchtraceap.cli.parser import count as count
    from torchtraceap.cli.parser import fraction as fraction
    from torchtraceap.cli.parser import minutes as minutes
    from torchtraceap.cli.parser import positive as positive
    from torchtraceap.cli.parser import seconds as seconds
    from torchtraceap.cli.parser import size as size
    from torchtraceap.cli.process import main as main
    from torchtraceap.cli.tables import add_table_output as add_table_output
    from torchtraceap.cli.tables import check_table_output as check_table_output
    from torchtraceap.cli.tables import give_table as give_table
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".catalog": ("COMMANDS", "Entry"),
            ".explain": ("add_model", "model_of"),
            ".input": ("load",),
            ".output": ("check_output", "note", "print_commands", "print_tables", "print_text"),
            ".parser": (
                "Command",
                "FINDINGS",
                "FINE",
                "Options",
                "Parser",
                "UNUSABLE",
                "UsageError",
                "WINDOW_COUNTS",
                "add_bases",
                "add_jobs",
                "add_json",
                "add_no_color",
                "add_seed",
                "add_windows",
                "command_of_actions",
                "count",
                "fraction",
                "minutes",
                "positive",
                "seconds",
                "size",
            ),
            ".process": ("main",),
            ".tables": ("add_table_output", "check_table_output", "give_table"),
        },
    )
