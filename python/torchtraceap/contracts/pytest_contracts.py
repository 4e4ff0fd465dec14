"""The part of the pytest plugin that is loaded once a test has a contract: `TestContracts` of one
test, and `end_of_run`, which sums up all of them.

Note [Limits of a test]: they come from its markers (the closest one decides on a key, then that of
the class, then that of the module) and from a file, under the test's node id. For a key that both
limit the file decides, since that is what `--contracts-update` writes; the summary names it. A test
with parameters has the limits of its node id without them too. What a file limits at its top holds
for every test that it names, and for every marked one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from torchtraceap.contracts.file import ContractFile, parse_contracts, read_contracts
from torchtraceap.contracts.limits import Contract
from torchtraceap.contracts.output import verdict
from torchtraceap.contracts.places import relative_path
from torchtraceap.contracts.record import ContractBroken, RecordedContract
from torchtraceap.contracts.result import (
    FAILED,
    INCONCLUSIVE,
    CheckResult,
    Frame,
    KeyResult,
)
from torchtraceap.core.aliases import PathLike
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import EventStart
from torchtraceap.errors import OptionError, TraceError
from torchtraceap.record import RecordingError

if TYPE_CHECKING:
    from torchtraceap.contracts.update import Change

__all__ = ["TestContracts", "check_file", "end_of_run"]

_OPTIONS = ("name", "warmup")
_DEFAULT_FILE = "contracts.yaml"
_DEFAULT_FOLDER = "torchtraceap-contracts"
_DEFAULT_KEYS = ("launches", "syncs", "collectives", "recompiles", "graph_breaks")
"""Keys that an update writes for a test that is marked without limits: those that repeat
exactly."""
_MOST_NAMED = 3
"""Tests in a line of the summary."""
_file = pytest.StashKey[ContractFile | None]()


class TestContracts:
    """The contracts of one test: that of its markers, and those of its blocks."""

    __test__ = False  # for pytest, which takes it for a class of tests

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._results: list[tuple[RecordedContract, Mapping[str, Any]]] = []
        self.running: RecordedContract | None = None
        """The one that records."""
        self._blocks = 0
        self._own: BaseException | None = None

    def __call__(
        self,
        source: PathLike | Contract | None = None,
        /,
        *,
        name: str = "",
        warmup: int = 0,
        path: PathLike | None = None,
        **limits: Any,
    ) -> Any:
        """Return a contract on a part of the test, as `ttap.contract`."""
        if self._item.config.option.contracts_off:
            return contextlib.nullcontext(self)
        self._blocks += 1
        label = name or ("with" if self._blocks == 1 else f"with {self._blocks}")
        label = f"{self._item.nodeid}::{label}"
        given = self._given_contract(source, name, limits)
        return self._make_contract(given, label, warmup, path, is_marked=True)

    def step(self) -> None:
        """Tell that an iteration has ended, in the contract that records.

        Raises:
            RecordingError: None does.
        """
        if self._item.config.option.contracts_off:
            return
        if self.running is None:
            raise RecordingError("perf_contract.step() outside of a contract")
        self.running.step()

    @contextlib.contextmanager
    def around_call(self, marks: Sequence[pytest.Mark]) -> Iterator[None]:
        """Return the contract of the test itself; nothing where it has none."""
        __tracebackhide__ = True
        self._own, self._blocks = None, 0
        try:
            found = self._marker_contract(marks)
            if found is None:
                yield
                return
            with found:
                yield
        except (ContractBroken, TraceError) as error:
            names = []
            traceback = error.__traceback__
            while traceback is not None:
                names.append(traceback.tb_frame.f_code.co_name)
                traceback = traceback.tb_next
            # The contract around the test has raised it, and nothing inside of the test.
            if "pytest_pyfunc_call" not in names and "runtest" not in names:
                self._own = error
            raise

    def says_all(self, error: BaseException) -> bool:
        """Return True if the message of an exception tells a person everything without a
        traceback."""
        return error is self._own

    def taken(self, *, expected: bool) -> list[dict[str, Any]]:
        """Return the reports since the last call, as plain values.

        Args:
            expected: The test is expected to fail.
        """
        results, self._results, self.running = self._results, [], None
        return [
            {
                "test": self._item.nodeid,
                "place": [str(self._item.path), (self._item.location[1] or 0) + 1],
                "expected": expected,
                "result": each.result.to_dict(),
                **more,
            }
            for each, more in results
            if each.result is not None
        ]

    # ------------------------------------------------------------------------------ inside

    @property
    def _is_updated(self) -> bool:
        """Return True if limits move to what is measured, so that nothing is broken; a test that is
        expected to break them is left out."""
        expected = self._item.get_closest_marker("xfail") is not None
        return self._item.config.option.contracts_update and not expected

    def _marker_contract(self, marks: Sequence[pytest.Mark]) -> RecordedContract | None:
        options: dict[str, Any] = {}
        limits: dict[str, Any] = {}
        source = None
        for mark in reversed(marks):  # the closest one last
            if len(mark.args) > 1:
                raise OptionError("perf_contract takes one file, and limits by name")
            source = mark.args[0] if mark.args else source
            options |= {key: mark.kwargs[key] for key in _OPTIONS if key in mark.kwargs}
            limits |= {key: value for key, value in mark.kwargs.items() if key not in _OPTIONS}
        given = self._given_contract(source, options.get("name", ""), limits)
        warmup = options.get("warmup", 0)
        return self._make_contract(given, self._item.nodeid, warmup, None, is_marked=bool(marks))

    def _given_contract(
        self, source: PathLike | Contract | None, name: str, limits: Mapping[str, Any]
    ) -> Contract:
        """Return the contract that the test itself states."""
        own = Contract.parse(limits)
        if source is None:
            return own
        if not isinstance(source, Contract):
            beside = self._item.path.parent / source
            file = read_contracts(
                beside if beside.exists() else self._item.config.rootpath / source
            )
            source = (
                file.contract(name)
                if name
                else _find_contract(file, self._item.nodeid) or file.base
            )
        return source.merged(own)

    def _make_contract(
        self, given: Contract, label: str, warmup: int, path: PathLike | None, *, is_marked: bool
    ) -> RecordedContract | None:
        config = self._item.config
        file, written = _read_file(config), None  # see Note [Limits of a test]
        if file is not None:
            written = _find_contract(file, label)
            if written is None and is_marked and len(file.base):
                written = file.base
        if written is None and not is_marked:
            return None
        is_new = not len(given) and written is None
        if is_new:
            if not config.option.contracts_update:
                raise OptionError(
                    "perf_contract has no limits: name some, such as syncs=0, or run once with "
                    "--contracts-update, which writes what is measured"
                )
            given = Contract.parse(dict.fromkeys(_DEFAULT_KEYS, 0))
        traces, cache = config.option.contracts_traces, getattr(config, "cache", None)
        if traces is not None:
            folder = Path(config.invocation_params.dir / traces)
        elif cache is not None:
            folder = Path(cache.mkdir(_DEFAULT_FOLDER))
        else:
            folder = config.rootpath / "ttap_traces"
        recorded = _TestContract(
            replace(given if written is None else given.merged(written), name=label),
            name=label,
            warmup=warmup,
            mode="collect" if self._is_updated else "raise",
            path=path,
            strict=config.option.contracts_strict,
            folder=folder,
            keep=not self._is_updated,
        )
        recorded.of_test = self
        in_file = () if written is None else written.keys
        more = {
            "is_new": is_new,
            "in_file": list(in_file),
            "replaced": [key for key in given.keys if key in in_file],
        }
        self._results.append((recorded, more))
        return recorded


class _TestContract(RecordedContract):
    """A contract that its test can end a step of without holding it."""

    of_test: TestContracts

    def __enter__(self) -> Any:
        __tracebackhide__ = True
        super().__enter__()
        self.of_test.running = self
        return self

    def __exit__(self, *problem: Any) -> None:
        __tracebackhide__ = True
        self.of_test.running = None
        super().__exit__(*problem)


# ------------------------------------------------------------------------------ the file


def check_file(config: pytest.Config) -> None:
    """Read the file of `--contracts` before anything runs.

    Raises:
        pytest.UsageError: It is not there, and is not about to be written, or it makes no sense.
    """
    try:
        _read_file(config)
    except TraceError as error:
        raise pytest.UsageError(str(error)) from None


def _path(config: pytest.Config) -> Path:
    given = config.option.contracts
    if given is None:
        return config.rootpath / _DEFAULT_FILE
    return Path(config.invocation_params.dir, given)


def _read_file(config: pytest.Config) -> ContractFile | None:
    """Return the contract file of the run; None where there is none."""
    if _file not in config.stash:
        path, option = _path(config), config.option
        may_lack = option.contracts is None or option.contracts_update
        config.stash[_file] = None if may_lack and not path.exists() else read_contracts(path)
    return config.stash[_file]


def _find_contract(file: ContractFile, label: str) -> Contract | None:
    plain, bracket, _ = label.partition("[")
    of_all, own = file.find(plain) if bracket else None, file.find(label)
    return own if of_all is None else of_all if own is None else of_all.merged(own)


# ------------------------------------------------------------------------------ the end


def end_of_run(config: pytest.Config, reported: list[dict[str, Any]]) -> tuple[list[str], bool]:
    """Write the requested files, and return what the contracts of a run came to.

    Args:
        config: The configuration of the run.
        reported: The results of `TestContracts.taken`.

    Returns:
        Lines for the terminal, and whether every file could be written.
    """
    reports = [_Report.of(each) for each in sorted(reported, key=lambda each: each["test"])]
    lines = list(_summary(config, reports))
    is_written = True
    for write in (_update,) if config.option.contracts_update else (_won_lines, _output_lines):
        try:
            lines += write(config, reports)
        except TraceError as error:
            lines.append(f"ERROR: {error}")
            is_written = False
    return lines, is_written


@dataclass(frozen=True, slots=True)
class _Report:
    """The report of one contract of one test."""

    result: CheckResult
    is_expected: bool
    """The test is expected to fail."""
    is_new: bool
    """It had no limits."""
    in_file: tuple[str, ...]
    """Keys whose limits stand in the contract file."""
    replaced: tuple[str, ...]
    """Keys of the file's limits that the test replaces by its own."""

    @classmethod
    def of(cls, plain: dict[str, Any]) -> _Report:
        """Return the report from plain values of a test report; limits of a marker are named at the
        test."""
        document = plain["result"]
        results = []
        for each in document["results"]:
            event, frame = each["first_event"], each["frame"]
            values = {
                **each,
                "first_event": EventStart(**event) if event else None,
                "frame": Frame(**frame) if frame else None,
            }
            results.append(KeyResult(**values))
        rest = {key: value for key, value in document.items() if key not in ("schema", "results")}
        result = CheckResult(results=tuple(results), **rest | {"paths": tuple(rest["paths"])})
        if result.file is None:
            file, line = plain["place"]
            placed = tuple(replace(each, line=line) for each in results)
            result = replace(result, file=file, results=placed)
        return cls(
            result,
            plain["expected"],
            plain["is_new"],
            tuple(plain["in_file"]),
            tuple(plain["replaced"]),
        )


def _summary(config: pytest.Config, reports: Sequence[_Report]) -> Iterator[str]:
    """Count the contracts; list what could not be checked, and where a file replaces limits."""
    if reports:
        broken = sum(not each.result.passed and not each.is_expected for each in reports)
        expected = sum(not each.result.passed and each.is_expected for each in reports)
        unknown = sum(verdict(each.result) == INCONCLUSIVE for each in reports)
        is_updated = config.option.contracts_update
        parts = [f"{len(reports) - broken - expected - unknown} hold"]
        parts += [f"{broken} {'change' if is_updated else 'broken'}"] * bool(broken)
        parts += [f"{expected} broken as expected"] * bool(expected)
        parts += [f"{unknown} could not be checked"] * bool(unknown)
        yield f"{_number(len(reports), 'contract')}: {', '.join(parts)}"
    tests: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        for each in report.result.inconclusive:
            tests.setdefault((each.key, each.reason), []).append(report.result.name)
    total = sum(map(len, tests.values()))
    if total:
        yield f"{_number(total, 'key')} could not be checked:"
    for (key, reason), names in tests.items():
        more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
        yield f"  {key}: {reason} ({', '.join([*names[:_MOST_NAMED], *more])})"
    found = [f"{each.result.name}: {', '.join(each.replaced)}" for each in reports if each.replaced]
    if found:
        path = relative_path(str(_path(config)), config.invocation_params.dir)
        yield f"{path} takes the place of limits that tests name:"
        yield from (f"  {line}" for line in found)


def _won_lines(_: pytest.Config, reports: Sequence[_Report]) -> Iterator[str]:
    won = [
        f"  {report.result.name}: {each.key}: {each.won}"
        for report in reports
        for each in report.result.results
        if each.won and report.result.passed
    ]
    if won:
        yield f"{_number(len(won), 'limit')} could be tighter:"
        yield from won
        yield '  in a contract file: pytest --contracts-update --contracts-reason "why"'


def _update(config: pytest.Config, reports: Sequence[_Report]) -> Iterator[str]:
    """Move limits that a file has, those that tests have themselves and that don't hold, and those
    of tests without any."""
    from torchtraceap.contracts.update import update_contract
    from torchtraceap.core.writing import write_text

    path = _path(config)
    file = read_contracts(path) if path.exists() else parse_contracts("{}", str(path))
    changes: list[Change] = []
    left: list[str] = []
    for report in reports:
        if report.is_expected:
            continue
        wanted = tuple(
            each
            for each in report.result.results
            if report.is_new or each.key in report.in_file or each.status == FAILED
        )
        name = report.result.name
        device = (file.find(name) or file.base).device
        limits = Contract.parse({each.key: each.limit for each in wanted}, device=device)
        update = update_contract(
            file,
            replace(report.result, results=wanted),
            config.option.contracts_reason,
            name=name,
            limits=limits,
            is_new=report.is_new,
        )
        file = update.file
        changes += update.changes
        left += [f"{name}: {each}" for each in update.left]
    shown = relative_path(str(path), config.invocation_params.dir)
    if changes:
        write_text(path, file.text)
        yield f"{_number(len(changes), 'limit')} written to {shown}:"
        for each in changes:
            before = "new" if each.before is None else f"before {each.before}"
            yield f"  {each.name}: {each.key}: {each.after} ({before})"
    else:
        yield f"nothing to update in {shown}: every limit is what was measured"
    if left:
        yield "not updated:"
        yield from (f"  {each}" for each in left)
    if any(getattr(config.option, f"contracts_{name}") for name in ("junit", "sarif", "markdown")):
        yield "an update writes no report"


def _output_lines(config: pytest.Config, reports: Sequence[_Report]) -> Iterator[str]:
    from torchtraceap.contracts.output import junit_of, markdown_of, sarif_of
    from torchtraceap.core.writing import write_text

    option = config.option
    results = [each.result for each in reports if not each.is_expected]
    for path, text_of in (
        (option.contracts_junit, junit_of),
        (option.contracts_sarif, sarif_of),
        (option.contracts_markdown, markdown_of),
    ):
        if path is not None:
            write_text(config.invocation_params.dir / path, text_of(results))
            yield f"wrote {path}"
    if option.contracts_github:
        from torchtraceap.contracts.output import annotation_lines

        for result in results:
            yield from annotation_lines(result)


def _number(value: int, noun: str) -> str:
    return f"{value} {noun}{'' if value == 1 else 's'}"
