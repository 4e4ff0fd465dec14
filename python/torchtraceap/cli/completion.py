"""The command `completion`: scripts by which shells complete commands, options and values.

The scripts are made from the parsers of all commands, so they hold what this version takes. They
name files where nothing else fits: a path is an argument of every command. shtab is not used: it
completes neither a path as the first word nor the options of the command that a path stands for.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torchtraceap.cli.catalog import COMMANDS as EVERY_COMMAND
from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.output import print_text
from torchtraceap.cli.parser import FINE, Command, Options, make_parser, option


class _Option(NamedTuple):
    """An option of a command."""

    flag: str
    help: str
    takes_value: bool
    choices: tuple[str, ...]


_Words = Mapping[str, tuple[Command, list[_Option]]]


def _complete(options: Options) -> int:
    words = {}
    for name, command in EVERY_COMMAND.items():
        found = []
        for action in make_parser(name, command)._actions:
            flags = [flag for flag in action.option_strings if flag.startswith("--")]
            if flags and action.help != argparse.SUPPRESS:
                choices = tuple(str(choice) for choice in action.choices or ())
                found.append(_Option(flags[0], action.help or "", action.nargs != 0, choices))
        words[name] = command, found
    print_text(_SHELLS[options.shell](words))
    return FINE


def _bash(words: _Words) -> str:
    flags = [
        f"    {name}) words='{' '.join(option.flag for option in options)}' ;;"
        for name, (_, options) in words.items()
    ]
    values = [
        f"    '{name} {option.flag}') words='{' '.join(option.choices)}' ;;"
        for name, (_, options) in words.items()
        for option in options
        if option.choices
    ]
    return "\n".join(
        [
            "# bash completion for torchtraceap",
            "_torchtraceap() {",
            "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
            "  local command=diagnose words=''",
            f"  case ${{COMP_WORDS[1]}} in {'|'.join(words)}) command=${{COMP_WORDS[1]}} ;; esac",
            "  COMPREPLY=()",
            '  case "$command $before" in',
            *values,
            "  esac",
            '  if [ -z "$words" ] && [[ $current == -* ]]; then case $command in',
            *flags,
            "  esac; fi",
            '  if [ -z "$words" ] && [ "$COMP_CWORD" = 1 ]; then',
            f"    words='{' '.join(words)} --help --version'",
            '    mapfile -t COMPREPLY < <(compgen -f -- "$current")',
            "  fi",
            '  if [ "$command $before" = "completion completion" ]; then',
            f"    words='{' '.join(_SHELLS)}'",
            "  fi",
            '  mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -W "$words" -- "$current")',
            "}",
            "complete -o filenames -o default -F _torchtraceap torchtraceap",
        ]
    )


def _zsh(words: _Words) -> str:
    lines = [
        "#compdef torchtraceap",
        "_torchtraceap() {",
        "  local -a commands",
        "  commands=(",
        *(f"    {_quote(f'{name}:{one.summary}')}" for name, (one, _) in words.items()),
        "  )",
        "  if (( CURRENT == 2 )); then",
        "    _describe -t commands command commands",
        "    _files",
        "    return",
        "  fi",
        "  local command=$words[2]",
        "  shift words; (( CURRENT-- ))",
        "  case $command in",
    ]
    for name, (_, options) in words.items():
        lines.append(f"    {name})")
        lines.append("      _arguments \\")
        for each in options:
            text = "".join(" " if c in "[]:\\" else c for c in each.help)
            what = f"({' '.join(each.choices)})" if each.choices else "_files"
            value = f":value:{what}" if each.takes_value else ""
            lines.append(f"        {_quote(f'{each.flag}[{text}]{value}')} \\")
        files = f"*:shell:({' '.join(_SHELLS)})" if name == "completion" else "*:file:_files"
        lines.append(f"        '{files}' ;;")
    lines += ["    *) _files ;;", "  esac", "}"]
    # Autoloaded, the file is the body of the function; sourced, it only defines it.
    lines += ["compdef _torchtraceap torchtraceap"]
    lines += ['if [ "$funcstack[1]" = _torchtraceap ]; then _torchtraceap; fi']
    return "\n".join(lines)


def _fish(words: _Words) -> str:
    start = "complete -c torchtraceap"
    lines = ["# fish completion for torchtraceap"]
    for name, (one, _) in words.items():
        lines.append(f"{start} -n __fish_use_subcommand -a {name} -d {_quote_fish(one.summary)}")
    shells = _quote_fish(" ".join(_SHELLS))
    lines.append(f"{start} -n '__fish_seen_subcommand_from completion' -f -a {shells}")
    for name, (_, options) in words.items():
        for each in options:
            parts = [f"{start} -n '__fish_seen_subcommand_from {name}'", f"-l {each.flag[2:]}"]
            if each.choices:
                parts.append(f"-x -a {_quote_fish(' '.join(each.choices))}")
            elif each.takes_value:
                parts.append("-r")
            lines.append(" ".join([*parts, f"-d {_quote_fish(each.help)}"]))
    return "\n".join(lines)


def _quote(text: str) -> str:
    """Quote text for a POSIX shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def _quote_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SHELLS: dict[str, Callable[[_Words], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}

COMMANDS = {
    "completion": Command(
        summary_of("completion"),
        option("shell", choices=tuple(_SHELLS), metavar="SHELL", help=", ".join(_SHELLS)),
        _complete,
        (
            "completion bash > ~/.local/share/bash-completion/completions/torchtraceap",
            "completion zsh > ~/.zfunc/_torchtraceap",
            "completion fish > ~/.config/fish/completions/torchtraceap.fish",
        ),
    )
}
