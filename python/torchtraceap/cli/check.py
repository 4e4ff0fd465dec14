"""The command `check`: a contract on a stored trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.input import load
from torchtraceap.cli.output import check_output, note, print_commands, print_text
from torchtraceap.cli.parser import (
    FINDINGS,
    FINE,
    Command,
    Options,
    UsageError,
    add_json,
    add_paths,
    add_reading,
    arguments,
    option,
    terminal_width,
)

if TYPE_CHECKING:
    from torchtraceap.contracts.file import ContractFile
    from torchtraceap.contracts.limits import Contract
    from torchtraceap.contracts.result import CheckResult


def _check(options: Options) -> int:
    _check_options(options)
    from torchtraceap.contracts.checker import check
    from torchtraceap.contracts.file import read_contracts
    from torchtraceap.contracts.output import (
        annotation_lines,
        check_text,
        junit_text,
        markdown_text,
        sarif_of,
    )
    from torchtraceap.core.writing import write_text

    file = read_contracts(options.contract)
    contract = file.contract(options.name)
    trace = load(options.paths, options)
    result = check(trace, contract, price=not (options.no_price or options.update))
    for path, text_of in (
        (options.junit, junit_text),
        (options.sarif, lambda result: sarif_of([result])),
        (options.markdown, markdown_text),
    ):
        if path:
            write_text(path, text_of(result))
            note(f"wrote {path}")
    if options.json:
        print_text(result.to_json())
    else:
        print_text(check_text(result, terminal_width(100)))
        if options.github and (lines := annotation_lines(result)):
            print_commands(lines)
    if options.update:
        _update(file, contract, result, options)
        return FINE
    return FINE if result.passed else FINDINGS


def _check_options(options: Options) -> None:
    if options.update and not (options.reason or "").strip():
        raise UsageError("--update changes the contract: say why, with --reason TEXT")
    if options.reason and not options.update:
        raise UsageError("--reason goes with --update")
    if options.github and options.json:
        raise UsageError("--github and --json both write to standard output: choose one")
    for path in filter(None, (options.junit, options.sarif, options.markdown)):
        check_output(path, [*options.paths, options.contract])


def _update(file: ContractFile, contract: Contract, result: CheckResult, options: Options) -> None:
    from torchtraceap.contracts.update import update_contract
    from torchtraceap.core.writing import write_text

    update = update_contract(file, result, options.reason, name=options.name, limits=contract)
    for left in update.left:
        note(left)
    if not update.changes:
        note(f"{file.path}: nothing to change")
        return
    write_text(file.path, update.file.text)
    for change in update.changes:
        note(str(change))
    note(f"wrote {file.path}")


COMMANDS: dict[str, Command] = {
    "check": Command(
        summary_of("check"),
        arguments(
            add_paths,
            option(
                "--contract",
                metavar="YAML",
                required=True,
                help="the limits: a file such as contract.yaml",
            ),
            option(
                "--name", metavar="NAME", help="of the contracts in the file this one [that of all]"
            ),
            option("--junit", metavar="FILE", help="also write the result as JUnit XML"),
            option("--sarif", metavar="FILE", help="also write it as SARIF 2.1.0"),
            option("--markdown", metavar="FILE", help="also write it as a comment in Markdown"),
            option(
                "--github",
                action="store_true",
                help="also print it as annotations of GitHub Actions",
            ),
            option(
                "--no-price",
                action="store_true",
                help="don't replay the run for what fixes of broken limits would save",
            ),
            option(
                "--update",
                action="store_true",
                help="move the limits of the file to what was measured; needs --reason",
            ),
            option("--reason", metavar="TEXT", help="why they move; the file keeps it"),
            add_json,
            add_reading,
        ),
        _check,
        examples=(
            "check trace.json.gz --contract contract.yaml",
            "check runs/ --contract contract.yaml --junit check.xml --sarif check.sarif",
            "check trace.json.gz --contract contract.yaml --github --markdown comment.md",
            'check trace.json.gz --contract contract.yaml --update --reason "larger batch"',
        ),
    )
}
