"""The command `ci`: one verdict on a pull request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchtraceap.cli import (
    FINDINGS,
    FINE,
    UNUSABLE,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_seed,
    fraction,
    note,
    print_commands,
    print_text,
)
from torchtraceap.lab.cli import ENTRIES
from torchtraceap.lab.cli.bench.run import (
    add_checkout_options,
    add_effect,
    add_run_timeout,
    duration,
)

if TYPE_CHECKING:
    from torchtraceap.lab.bench.ci import ChangeVerdict

_BUDGET = "10m"
_OUT = "ci_results"
_ALPHA = 0.001
_GATES = "slower,contract,syncs,recompiles,graph_breaks"
"""The defaults of `lab.bench.ci`, repeated because that module takes longer to import."""


def _describe(parser: Parser) -> None:
    parser.add_argument(
        "base", metavar="BASE",
        help="the branch that the pull request goes into, such as origin/main; compared is the "
        "commit from which the head went apart",
    )  # fmt: skip
    parser.add_argument("head", metavar="HEAD", nargs="?", default="HEAD", help="the change [HEAD]")
    parser.add_argument(
        "--repo", default=".", metavar="FOLDER",
        help="in the repository; the program runs there [.]",
    )  # fmt: skip
    add_checkout_options(parser)
    parser.add_argument(
        "--contract", metavar="YAML", help="limits that a recording of the head has to hold"
    )
    parser.add_argument(
        "--name", metavar="NAME", help="of the contracts in the file this one [that of all]"
    )
    parser.add_argument(
        "--budget", type=duration, default=duration(_BUDGET), metavar="TIME",
        help=f"so long runs may take, builds left out: 90s, 10m [{_BUDGET}]",
    )  # fmt: skip
    parser.add_argument(
        "--counts-only", action="store_true", help="measure no time: two recordings, or four"
    )
    add_effect(parser, "changes below it do not matter")
    parser.add_argument(
        "--alpha", type=fraction, default=_ALPHA, metavar="P",
        help=f"probability of a false alarm of time, over all measures and looks [{_ALPHA}]",
    )  # fmt: skip
    parser.add_argument(
        "--fail-on", default=_GATES, metavar="WHAT,WHAT",
        help="what makes the exit code 1: slower, undecided, contract, or a count that rises, such "
        f"as launches; none for nothing [{_GATES}]",
    )  # fmt: skip
    add_seed(parser, "decides which side of a pair runs first")
    add_run_timeout(parser)
    parser.add_argument(
        "--out", default=_OUT, metavar="DIR",
        help="takes comment.md, junit.xml, results.sarif, ci.json, page.html and the recordings "
        f"base.json.gz and head.json.gz [{_OUT}]",
    )  # fmt: skip
    parser.add_argument(
        "--github", action="store_true", help="also print annotations of GitHub Actions"
    )
    add_json(parser)


def _run(options: Options) -> int:
    from torchtraceap.lab.bench.ci import Question, judge_change
    from torchtraceap.lab.bench.ci_report import ci_text
    from torchtraceap.lab.bench.comparison.sides import split_command
    from torchtraceap.lab.bench.revisions import Repository

    if not options.program:
        raise UsageError("ci needs a program: ci origin/main -- python train.py")
    if options.github and options.json:
        raise UsageError("--github and --json both write to standard output: choose one")
    contract = None
    if options.contract:
        from torchtraceap.contracts import read_contracts

        contract = read_contracts(options.contract).contract(options.name)
    elif options.name:
        raise UsageError("--name goes with --contract")
    repository = Repository(options.repo)
    base, head = repository.commit(options.base), repository.commit(options.head)
    gates = [each.strip() for each in options.fail_on.split(",") if each.strip()]
    asked = Question(
        repository.fork_of(base, head),
        head,
        tuple(options.program),
        setup=split_command(options.setup) if options.setup else None,
        pythonpath=options.pythonpath,
        timeout_s=options.timeout,
        contract=contract,
        gates=() if gates == ["none"] else tuple(gates),
        budget_s=0.0 if options.counts_only else options.budget,
        minimal_effect=options.minimal_effect,
        alpha=options.alpha,
        seed=options.seed,
        reproduce=_reproduce_command(options),
    )
    folder = Path(options.out)
    found = judge_change(repository, asked, folder, note)
    _write_files(found, folder)
    if options.json:
        print_text(found.to_json())
    else:
        print_text(ci_text(found))
        if options.github:
            from torchtraceap.contracts import annotation_lines

            print_commands([line for each in found.checks for line in annotation_lines(each)])
    return {"passed": FINE, "failed": FINDINGS}.get(found.verdict, UNUSABLE)


def _write_files(found: ChangeVerdict, folder: Path) -> None:
    """Write what CI shows and keeps; a page only where both commits left a recording."""
    from torchtraceap.contracts import junit_of, sarif_of
    from torchtraceap.core import write_text
    from torchtraceap.errors import TraceError
    from torchtraceap.lab.bench.ci_report import ci_markdown
    from torchtraceap.report import write_diff_page
    from torchtraceap.trace import load

    write_text(folder / "comment.md", ci_markdown(found))
    write_text(folder / "junit.xml", junit_of(found.checks))
    write_text(folder / "results.sarif", sarif_of(found.checks))
    write_text(folder / "ci.json", found.to_json() + "\n")
    page = folder / "page.html"
    page.unlink(missing_ok=True)  # that of another change
    traces = [folder / name for name in ("base.json.gz", "head.json.gz")]
    if all(path.exists() for path in traces):
        try:
            write_diff_page(load(traces[0]), load(traces[1]), page)
        except TraceError as error:
            note(f"no page: {error}")
    note(f"wrote {folder}")


def _reproduce_command(options: Options) -> str:
    """Return the command that asks the same again."""
    import shlex

    words = ["torchtraceap", "ci", options.base, options.head]
    for name, default in (("setup", None), ("contract", None), ("name", None),
                          ("fail_on", _GATES), ("repo", ".")):  # fmt: skip
        if getattr(options, name) != default:
            words += [f"--{name.replace('_', '-')}", getattr(options, name)]
    for folder in options.pythonpath:
        words += ["--pythonpath", folder]
    words += ["--counts-only"] if options.counts_only else ["--budget", f"{options.budget:g}s"]
    words += ["--seed", str(options.seed)]
    if options.minimal_effect != 0.02:
        words += ["--minimal-effect", f"{options.minimal_effect:g}"]
    if options.timeout is not None:
        words += ["--timeout", f"{options.timeout:g}"]
    if options.alpha != _ALPHA:
        words += ["--alpha", f"{options.alpha:g}"]
    return shlex.join([*words, "--", *options.program])


COMMANDS: dict[str, Command] = {
    "ci": Command(
        ENTRIES["ci"].summary,
        _describe,
        _run,
        (
            "ci origin/main -- python bench/step.py",
            "ci origin/main --setup 'pip install -e .' --budget 5m --github -- python train.py",
            "ci origin/main --counts-only --fail-on syncs,launches -- python train.py",
        ),
        runs="Runs the program of both commits.",
        takes_program=True,
    )
}
