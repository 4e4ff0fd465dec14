"""`explain`: suspicious parts of a trace in words, offline or with a language model; `mcp`: tools
over a trace for programs that speak the Model Context Protocol."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchtraceap.cli.catalog import COMMANDS as COMMAND_NAMES
from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.diagnose import add_scorer
from torchtraceap.cli.input import load
from torchtraceap.cli.output import note, print_text
from torchtraceap.cli.parser import (
    FINE,
    Command,
    Options,
    UsageError,
    add_json,
    add_paths,
    add_reading,
    add_windows,
    arguments,
    option,
    positive,
    seconds,
    terminal_width,
)

if TYPE_CHECKING:
    from torchtraceap.explanation.settings import ModelSettings
    from torchtraceap.trace.trace import Trace

__all__ = ["COMMANDS", "add_model", "model_of"]


# Options of a language model; see `model_of`.
add_model = arguments(
    option(
        "--llm-base-url",
        metavar="URL",
        help="a server of Chat Completions, such as http://127.0.0.1:8080/v1 "
        "[TORCHTRACEAP_LLM_BASE_URL; without it no model is asked]",
    ),
    option("--llm-model", metavar="NAME", help="of the model there [TORCHTRACEAP_LLM_MODEL]"),
    option(
        "--llm-names",
        choices=("redacted", "shown"),
        default="redacted",
        help="whether the model is shown names that are not PyTorch's or a library's [redacted]",
    ),
    option(
        "--llm-cache",
        choices=("write", "read", "off"),
        help="of answers: read and written, only read, or neither [write]",
    ),
    option(
        "--llm-timeout", type=seconds, metavar="S", help="the longest silence of the server [60]"
    ),
    option("--llm-max-calls", type=positive, metavar="N", help="answers that are asked for [50]"),
    option("--llm-max-tokens", type=positive, metavar="N", help="of prompts and answers [200000]"),
    option("--llm-max-answer", type=positive, metavar="N", help="tokens of an answer [1500]"),
    option("--llm-max-usd", type=float, metavar="X", help="what it may cost; needs --llm-prices"),
    option("--llm-prices", metavar="YAML", help="prices of models, docs/explanations.md"),
)


def model_of(options: Options) -> ModelSettings | None:
    """Return the language model that options or the environment name; None: no model is asked."""
    from torchtraceap.explanation.settings import settings_from

    return settings_from(
        base_url=options.llm_base_url,
        model=options.llm_model,
        cache=options.llm_cache,
        timeout_s=options.llm_timeout,
        max_calls=options.llm_max_calls,
        max_tokens=options.llm_max_tokens,
        max_answer_tokens=options.llm_max_answer,
        max_usd=options.llm_max_usd,
        prices=Path(options.llm_prices) if options.llm_prices else None,
    )


def _explain(options: Options) -> int:
    settings = model_of(options)
    if options.dry_run and settings is None:
        raise UsageError("--dry-run is of a model: give --llm-base-url and --llm-model")
    if options.question is not None and not options.question.strip():
        raise UsageError("--question needs a text")
    from torchtraceap.explanation.explain import dry_run, explain

    trace = load(options.paths, options)
    diagnosis = trace.diagnose(windows=options.windows, scorer=options.scorer)
    redacted = options.llm_names == "redacted"
    if options.dry_run and settings is not None:
        dry = dry_run(diagnosis, settings, redacted=redacted)
        if options.json:
            offline = explain(diagnosis, question=options.question)
            print_text(json.dumps({**offline.to_dict(), "dry_run": dry.to_dict()}))
            return FINE
        for number, prompt in enumerate(dry.prompts, 1):
            for role, text in prompt:
                print_text(f"--- request {number} of {dry.calls}, {role}\n{text}")
        cost = "unknown (no --llm-prices)" if dry.cost_usd is None else f"{dry.cost_usd:.4f} $"
        note(
            f"nothing was sent. It would be {dry.calls} requests: about {dry.prompt_tokens:,} "
            f"tokens of prompts, at most {dry.completion_tokens:,} of answers; cost at most: {cost}"
        )
        return FINE
    found = explain(
        diagnosis,
        question=options.question,
        settings=settings,
        redacted=redacted,
        progress=_show_progress if sys.stderr.isatty() else None,
    )
    if options.json:
        print_text(found.to_json())
        return FINE
    from torchtraceap.report.explanation import explanation_text

    print_text(explanation_text(found, width=terminal_width(100)))
    return FINE


def _show_progress(characters: int) -> None:
    sys.stderr.write(f"\r\x1b[K{characters} characters of an answer")
    sys.stderr.flush()


def _mcp(options: Options) -> int:
    from torchtraceap.explanation.mcp_code import CODE_COMMANDS
    from torchtraceap.explanation.mcp_server import McpTools, serve
    from torchtraceap.trace.files import expand_paths

    given = [*options.paths, *filter(None, [options.baseline, options.root])]
    if "-" in given:
        raise UsageError("mcp speaks through standard input: a trace can't come from there")
    if not options.paths and options.root is None:
        raise UsageError("mcp needs the PATH of a trace, or --root DIR with traces in it")
    if options.root is not None and not Path(options.root).is_dir():
        raise UsageError(f"--root {options.root}: no such folder")
    if options.allow_code and options.root is None:
        raise UsageError("--allow-code needs --root DIR: what may run lies in it")
    if options.paths:
        expand_paths(options.paths)  # says now what does not exist; reading waits for a call
    if options.baseline is not None:
        expand_paths(options.baseline)
    gc.enable()  # a process that lasts

    def read(paths: Sequence[str]) -> Trace:
        return load(paths, options)

    commands = [name for name in CODE_COMMANDS if options.allow_code and name in COMMAND_NAMES]
    tools = McpTools(
        options.paths, options.baseline, read, root=options.root, code_commands=commands
    )
    serve(tools)
    return FINE


COMMANDS: dict[str, Command] = {
    "explain": Command(
        summary_of("explain"),
        arguments(
            add_paths,
            option("--question", metavar="TEXT", help="to be answered from the trace too"),
            add_model,
            option(
                "--dry-run",
                action="store_true",
                help="print what the model would be asked about the trace, and what that costs at "
                "most; nothing is sent",
            ),
            add_json,
            add_windows,
            add_scorer,
            add_reading,
        ),
        _explain,
        (
            "explain trace.json.gz",
            'explain trace.json.gz --question "why is the third step slow?" --json',
            "explain trace.json.gz --llm-base-url http://127.0.0.1:11434/v1 --llm-model qwen3:8b",
            "explain trace.json.gz --llm-base-url URL --llm-model NAME --dry-run",
        ),
    ),
    "mcp": Command(
        summary_of("mcp"),
        arguments(
            option(
                "paths",
                metavar="PATH",
                nargs="*",
                help="a trace file, a folder of ranks, or several files; without --root nothing "
                "else can be read",
            ),
            option("--baseline", metavar="PATH", help="a trace that clients may compare it with"),
            option(
                "--root",
                metavar="DIR",
                help="clients may choose any trace in this folder; a path, and a link in it, that "
                "leaves the folder is refused",
            ),
            option(
                "--allow-code",
                action="store_true",
                help="offer predict and plan, which import and run Python files of --root that a "
                "client names: only where you would run them yourself",
            ),
            add_reading,
        ),
        _mcp,
        (
            "mcp trace.json.gz",
            "mcp after.json.gz --baseline before.json.gz",
            "mcp --root runs/",
        ),
    ),
}
