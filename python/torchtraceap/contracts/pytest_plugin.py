"""The pytest plugin: contracts as a marker and a fixture. pytest finds it by its entry point.

It is imported by every run of pytest where this package is installed, so it imports nothing that
such a run does not have anyway: `contracts.testing` comes with the first test that has a contract.

Note [Results of workers]: with pytest-xdist tests run in other processes, and what they give comes
back in their reports alone. So results travel as plain values in an attribute of the report, and
only the process that has no `workerinput` sums up and writes files.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

import pytest

__all__: list[str] = []

_MARK = "perf_contract"
_HELP = (
    f"{_MARK}(file=None, /, *, name='', warmup=0, **limits): the test is recorded by the profiler "
    "of torch, and limits on its launches, syncs, copied bytes, ... are checked (torchtraceap)."
)
_REPORTED = "torchtraceap_contracts"
"""Key in a test report under which the reports of its contracts lie."""
_OPTIONS = (
    ("--contracts", "FILE", "limits of tests by node id, marked or not"),
    ("--contracts-reason", "TEXT", "why limits change; the file keeps it"),
    ("--contracts-traces", "DIR", "where the traces of broken contracts are kept"),
    ("--contracts-junit", "FILE", "write JUnit XML with a case for each limit"),
    ("--contracts-sarif", "FILE", "write SARIF"),
    ("--contracts-markdown", "FILE", "write a comment in Markdown"),
)
_SWITCHES = (
    (
        "--contracts-update",
        "write what is measured as limits to the file of --contracts, else to contracts.yaml in "
        "the root; needs --contracts-reason",
    ),
    ("--contracts-github", "print annotations for GitHub"),
    ("--contracts-strict", "a limit that can't be checked fails its test"),
    ("--contracts-off", "record nothing, check nothing"),
)
_Function = TypeVar("_Function", bound=Callable[..., Any])
# pytest loads this wherever the package is installed, so in an older one it must load too.
_IS_KNOWN = getattr(pytest, "version_tuple", (0,)) >= (8,)
# The `contracts.pytest_contracts.TestContracts` of a test that has contracts.
_of_test: Any = pytest.StashKey[Any]() if _IS_KNOWN else None


def _hook(
    *, wrapper: bool = False, tryfirst: bool = False, trylast: bool = False
) -> Callable[[_Function], _Function]:
    if not _IS_KNOWN:
        return lambda function: function
    return pytest.hookimpl(wrapper=wrapper, tryfirst=tryfirst, trylast=trylast)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("contracts", "performance contracts (torchtraceap)")
    for option, metavar, text in _OPTIONS:
        group.addoption(option, metavar=metavar, help=text)
    for option, text in _SWITCHES:
        group.addoption(option, action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _HELP)
    if not _IS_KNOWN:
        return
    option = config.option
    if option.contracts_update and not (option.contracts_reason or "").strip():
        raise pytest.UsageError("--contracts-update needs --contracts-reason TEXT: why they change")
    if option.contracts_reason and not option.contracts_update:
        raise pytest.UsageError("--contracts-reason is for --contracts-update")
    if option.contracts_update and option.contracts_off:
        raise pytest.UsageError("--contracts-update has nothing to write with --contracts-off")
    if option.contracts_off:
        return
    if option.contracts and not hasattr(config, "workerinput"):
        from torchtraceap.contracts.pytest_contracts import check_file

        check_file(config)
    config.pluginmanager.register(_Contracts(config), "torchtraceap-contracts")


def pytest_collection_finish(session: pytest.Session) -> None:
    if not _IS_KNOWN and any(item.get_closest_marker(_MARK) for item in session.items):
        raise pytest.UsageError("contracts of torchtraceap need pytest 8 or newer")


@pytest.fixture
def perf_contract(request: pytest.FixtureRequest) -> Any:
    """Put a contract on a part of a test: `with perf_contract(syncs=0) as c:`; `perf_contract
    .step()` ends a step of the one that records, the test's own if it is marked."""
    from torchtraceap.contracts.pytest_contracts import TestContracts

    node = request.node
    if _of_test not in node.stash:
        node.stash[_of_test] = TestContracts(node)
    return node.stash[_of_test]


class _Contracts:
    """The hooks of a run in which contracts are not off."""

    def __init__(self, config: pytest.Config) -> None:
        self._file = config.option.contracts
        self._reported: dict[str, list[dict[str, Any]]] = {}
        """Reports by node id; those of the last attempt if a test ran again."""
        self._lines: list[str] = []

    @_hook(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Record the call of a test that has a contract, and nothing around it."""
        __tracebackhide__ = True
        if not self._file and item.get_closest_marker(_MARK) is None:
            return (yield)
        from torchtraceap.contracts.pytest_contracts import TestContracts

        if _of_test not in item.stash:
            item.stash[_of_test] = TestContracts(item)
        with item.stash[_of_test].around_call(list(item.iter_markers(_MARK))):
            return (yield)

    @_hook(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        found = item.stash.get(_of_test, None)
        if found is not None and call.when == "call":
            setattr(report, _REPORTED, found.taken(expected=hasattr(report, "wasxfail")))
            if call.excinfo is not None and found.says_all(call.excinfo.value):
                report.longrepr = call.excinfo.getrepr(style="value")
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, _REPORTED):
            self._reported[report.nodeid] = getattr(report, _REPORTED)

    @_hook(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Pass the results of a worker on; see Note [Results of workers]."""
        results = [each for of_test in self._reported.values() for each in of_test]
        if hasattr(session.config, "workerinput") or not (results or _writes(session.config)):
            return
        from torchtraceap.contracts.pytest_contracts import end_of_run

        self._lines, is_written = end_of_run(session.config, results)
        if not is_written:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._lines:
            terminalreporter.section("performance contracts")
            for line in self._lines:
                terminalreporter.write_line(line)


def _writes(config: pytest.Config) -> bool:
    """Return True if files are written even if no contract was checked."""
    names = ("junit", "sarif", "markdown", "update")
    return any(getattr(config.option, f"contracts_{name}") for name in names)
