"""The command `completion`: scripts by which shells complete commands, options and values.

The scripts are made from the parsers of all commands, so they hold what this version takes. They
name files where nothing else fits: a path is an argument of every command.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping

from torchtraceap.cli.catalog import COMMANDS as EVERY_COMMAND
from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.output import print_text
from torchtraceap.cli.parser import FINE, Command, Options, Parser, make_parser
from torchtraceap.core.records import dataclass


@dataclass(frozen=True, slots=True)
class _Option:
    """An option of a command."""

    flag: str
    help: str
    takes_value: bool
    choices: tuple[str, ...]


_Words = Mapping[str, tuple[Command, tuple[_Option, ...]]]


def _complete(options: Options) -> int:
    words = {name: (one, tuple(_options_of(name, one))) for name, one in EVERY_COMMAND.items()}
    print_text(_SHELLS[options.shell](words))
    return FINE


def _describe(parser: Parser) -> None:
    parser.add_argument("shell", choices=tuple(_SHELLS), metavar="SHELL", help=", ".join(_SHELLS))


def _options_of(name: str, command: Command) -> Iterator[_Option]:
    for action in make_parser(name, command)._actions:
        flags = [flag for flag in action.option_strings if flag.startswith("--")]
        if flags and action.help != argparse.SUPPRESS:
            choices = tuple(str(choice) for choice in action.choices or ())
            yield _Option(flags[0], action.help or "", action.nargs != 0, choices)


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
        lines += [f"        {_quote(_zsh_option(option))} \\" for option in options]
        files = f"*:shell:({' '.join(_SHELLS)})" if name == "completion" else "*:file:_files"
        lines.append(f"        '{files}' ;;")
    lines += ["    *) _files ;;", "  esac", "}"]
    # Autoloaded, the file is the body of the function; sourced, it only defines it.
    lines += ["compdef _torchtraceap torchtraceap"]
    lines += ['if [ "$funcstack[1]" = _torchtraceap ]; then _torchtraceap; fi']
    return "\n".join(lines)


def _zsh_option(option: _Option) -> str:
    text = "".join(" " if c in "[]:\\" else c for c in option.help)
    what = f"({' '.join(option.choices)})" if option.choices else "_files"
    return f"{option.flag}[{text}]" + (f":value:{what}" if option.takes_value else "")


def _fish(words: _Words) -> str:
    start = "complete -c torchtraceap"
    lines = ["# fish completion for torchtraceap"]
    for name, (one, _) in words.items():
        lines.append(f"{start} -n __fish_use_subcommand -a {name} -d {_quote_fish(one.summary)}")
    shells = _quote_fish(" ".join(_SHELLS))
    lines.append(f"{start} -n '__fish_seen_subcommand_from completion' -f -a {shells}")
    for name, (_, options) in words.items():
        for option in options:
            parts = [f"{start} -n '__fish_seen_subcommand_from {name}'", f"-l {option.flag[2:]}"]
            if option.choices:
                parts.append(f"-x -a {_quote_fish(' '.join(option.choices))}")
            elif option.takes_value:
                parts.append("-r")
            lines.append(" ".join([*parts, f"-d {_quote_fish(option.help)}"]))
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
        _describe,
        _complete,
        (
            "completion bash > ~/.local/share/bash-completion/completions/torchtraceap",
            "completion zsh > ~/.zfunc/_torchtraceap",
            "completion fish > ~/.config/fish/completions/torchtraceap.fish",
        ),
    )
}
