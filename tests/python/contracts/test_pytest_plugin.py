"""The pytest plugin: a marker, a fixture and a file put contracts on tests; runs of pytest in a run
of pytest. All but those that need another process are in this one, which has torch already."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import warnings
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import yaml

import torchtraceap
from torchtraceap.cli import COMMANDS, main
from torchtraceap.cli.parser import Parser
from torchtraceap.contracts.file import parse_contracts
from torchtraceap.contracts.measures.vocabulary import MEASURES, base_of

pytest_plugins = ["pytester"]

HEAD = """
import pytest, torch

def train(count=1):
    x = torch.ones(4)
    for _ in range(count):
        x = x.mul(1.5)
    return x.sum()
"""


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What an inner run would import first, it would throw away at its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.set_num_threads(1)
    import torchtraceap.contracts.output
    import torchtraceap.contracts.pytest_contracts
    import torchtraceap.contracts.update  # noqa: F401
    from torchtraceap.contracts.limits import Contract
    from torchtraceap.contracts.record import RecordedContract

    limits = {"syncs": 0, "launches": 0, "gpu_idle": "<10%", "collectives": 0, "recompiles": 0}
    for keys in (limits, {"syncs": 0, "operators": 0}):
        block = RecordedContract(
            Contract.parse(keys), name="", warmup=0, mode="collect", path=None, strict=False,
            keep=False,
        )  # fmt: skip
        with block:
            torch.ones(4).sum().item()


class Runner:
    """Runs pytest on a file of tests."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        known = importlib.metadata.entry_points(group="pytest11", name="torchtraceap")
        self._plugin = () if known else ("-p", "torchtraceap.contracts.pytest_plugin")

    def write(self, tests: str) -> None:
        self.pytester.makepyfile(test_it=HEAD + tests)

    def __call__(self, *options: str) -> pytest.RunResult:
        given = ("--strict-markers", "-p", "no:xdist", "-W", "error", *self._plugin, *options)
        return self.pytester.runpytest_inprocess(*given)

    def apart(self, *options: str) -> pytest.RunResult:
        """In a process of its own."""
        return self.pytester.runpytest_subprocess(*self._plugin, *options, timeout=300)


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Runner:
    paths = [str(Path(torchtraceap.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))  # in other folders too
    return Runner(pytester)


def said(result: pytest.RunResult) -> str:
    return "\n".join(result.outlines)


# -- the marker and the fixture -----------------------------------------------------------------


def test_a_broken_contract_fails_its_test_with_the_line_and_without_our_frames(run: Runner) -> None:
    run.write("""
@pytest.mark.perf_contract(syncs=0)
def test_broken():
    train().item()

@pytest.mark.perf_contract(syncs=1, operators="<=1000")
def test_holds():
    train().item()

def test_without():
    train().item()
""")
    result = run()
    result.assert_outcomes(failed=1, passed=2)
    text = said(result)
    assert "aten::item at test_it.py:11 (test_broken)\n        train().item()\n" in text
    assert "syncs: 1, limit 0 in test_it.py::test_broken" in text
    assert "Traceback" not in text and "recording.py" not in text and "_multicall" not in text
    assert "2 contracts: 1 hold, 1 broken" in text
    assert re.search(r"test_it.py::test_holds: operators: \d+ where 1,000 are allowed", text)
    (line,) = [line for line in result.outlines if line.startswith("FAILED")]
    assert "torchtraceap.ContractBroken: syncs" in line
    kept = run.path / ".pytest_cache/d/torchtraceap-contracts/test_it.py_test_broken.json.gz"
    assert kept.exists() and len(list(kept.parent.iterdir())) == 1


def test_the_fixture_puts_contracts_on_parts_and_ends_steps(run: Runner) -> None:
    run.write("""
def test_parts(perf_contract):
    train().item()
    with perf_contract(syncs=0):
        train()
    with perf_contract(syncs=0, name="second") as c:
        train().item()

@pytest.mark.perf_contract(syncs_per_step=0, warmup=1)
def test_steps(perf_contract):
    for n in range(3):
        train() if n else train().item()
        perf_contract.step()

@pytest.mark.perf_contract(syncs=0)
def test_nested(perf_contract):
    with perf_contract(syncs=0):
        pass

def test_no_step(perf_contract):
    perf_contract.step()
""")
    result = run("--contracts-traces=kept")
    result.assert_outcomes(failed=3, passed=1)
    text = said(result)
    assert "syncs: 1, limit 0 in test_it.py::test_parts::second" in text
    assert '>       with perf_contract(syncs=0, name="second") as c:' in text
    assert "a contract is already recording in this process" in text
    assert "perf_contract.step() outside of a contract" in text
    assert "3 contracts: 2 hold, 1 broken" in text
    assert [p.name for p in (run.path / "kept").iterdir()] == [
        "test_it.py_test_parts_second.json.gz"
    ]


def test_what_can_not_be_checked_is_told_and_fails_only_if_that_is_asked_for(run: Runner) -> None:
    run.write("""
@pytest.mark.perf_contract(syncs=0, gpu_idle="<10%")
def test_one():
    train()

@pytest.mark.perf_contract(gpu_idle="<10%")
def test_two():
    train()
""")
    result = run()
    result.assert_outcomes(passed=2)
    text = said(result)
    assert "2 contracts: 1 hold, 1 could not be checked" in text
    assert "2 keys could not be checked:\n  gpu_idle: no GPU event is recorded" in text
    assert "(test_it.py::test_one, test_it.py::test_two)" in text
    result = run("--contracts-strict", "-k", "one")
    result.assert_outcomes(failed=1)
    assert "could not be checked: gpu_idle in test_it.py::test_one" in said(result)


def test_contracts_live_with_everything_that_tests_can_be(run: Runner) -> None:
    run.pytester.makeconftest("""
import asyncio, inspect, pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.function):
        asyncio.run(pyfuncitem.function())
        return True

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if "again" not in item.name:
        return None
    for _ in range(2):  # as plugins that run tests again do
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if all(report.passed for report in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True
""")
    run.write("""
import unittest
pytestmark = pytest.mark.perf_contract(syncs=0)

@pytest.mark.xfail(strict=True)
def test_xfail():
    train().item()

@pytest.mark.skip
def test_skip():
    pass

def test_skips_itself():
    pytest.skip("now")

def test_raises():
    raise KeyError("mine")

async def test_async():
    train().item()

class TestClass:
    pytestmark = pytest.mark.perf_contract(syncs=1)

    @pytest.mark.parametrize("n", [1, 2])
    def test_method(self, n):
        [train().item() for _ in range(n)]

class TestCase(unittest.TestCase):
    def test_case(self):
        train().item()

ran = []
def test_again():
    ran.append(1)
    train() if len(ran) > 1 else train().item()
""")
    result = run("-rA")
    result.assert_outcomes(xfailed=1, skipped=2, failed=4, passed=2)
    text = said(result)
    for name in ("test_async", "TestCase::test_case", "TestClass::test_method[2]"):
        assert f"FAILED test_it.py::{name} - torchtraceap.ContractBroken: " in text
    assert "KeyError: 'mine'" in text
    assert "6 contracts: 2 hold, 3 broken, 1 broken as expected" in text


def test_limits_that_make_no_sense_fail_their_test_in_a_sentence(run: Runner) -> None:
    run.write("""
@pytest.mark.perf_contract(sync=0)
def test_typo():
    train()

@pytest.mark.perf_contract
def test_bare():
    train()

@pytest.mark.perf_contract(syncs=0)
def test_nothing():
    pass
""")
    result = run()
    result.assert_outcomes(failed=2, passed=1)
    text = said(result)
    assert "'sync' is nothing that can be measured; did you mean syncs?" in text
    assert "perf_contract has no limits: name some" in text
    assert "no operation of torch ran in the block" in text  # it could not be checked
    assert "Traceback" not in text and "testing.py" not in text


# -- the file -----------------------------------------------------------------------------------


def test_a_file_limits_tests_by_node_id(run: Runner) -> None:
    run.write("""
@pytest.mark.parametrize("n", [1, 2])
def test_plain(n):
    [train().item() for _ in range(n)]

@pytest.mark.perf_contract("beside.yaml", name="mine")
def test_named():
    train().item()
""")
    (run.path / "beside.yaml").write_text("contracts:\n  mine:\n    syncs: 0\n")
    limits = run.path / "limits.yaml"
    limits.write_text(
        "contracts:\n  test_it.py::test_plain:\n    syncs: 1\n    recompiles: 0\n"
        "  test_it.py::test_plain[2]:\n    syncs: <=1\n"
    )
    result = run("--contracts=limits.yaml")
    result.assert_outcomes(failed=2, passed=1)
    text = said(result)
    assert "syncs: 2, limit <=1 in test_it.py::test_plain[2]" in text
    assert "syncs: 1, limit 0 in test_it.py::test_named" in text
    limits.write_text("contracts:\n  test_it.py::test_plain:\n    sync: 1\n")
    result = run("--contracts=limits.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "limits.yaml:3: 'sync' is nothing that can be measured" in "\n".join(result.errlines)
    assert run("--contracts=missing.yaml").ret == pytest.ExitCode.USAGE_ERROR


def test_an_update_needs_a_reason(run: Runner) -> None:
    run.write("def test_it(): pass")
    for options in (
        ["--contracts-update"],
        ["--contracts-update", "--contracts-reason= "],
        ["--contracts-reason=because"],
        ["--contracts-update", "--contracts-reason=because", "--contracts-off"],
    ):
        assert run(*options).ret == pytest.ExitCode.USAGE_ERROR
    assert not (run.path / "contracts.yaml").exists()


def test_an_update_writes_what_is_measured_with_its_reason(run: Runner) -> None:
    run.write("""
@pytest.mark.perf_contract
def test_bare():
    train().item()

@pytest.mark.perf_contract(syncs=0, operators="<=1000", gpu_idle="<10%")
def test_broken():
    train().item()

@pytest.mark.xfail
@pytest.mark.perf_contract(syncs=0)
def test_xfail():
    train().item()
""")
    result = run("--contracts-update", "--contracts-reason", "a  new\nmodel", "--contracts-junit=j")
    result.assert_outcomes(passed=2, xfailed=1)
    text = said(result)
    assert "limits written to contracts.yaml:" in text
    assert "test_it.py::test_broken: syncs: 1 (before 0)" in text
    assert "test_it.py::test_bare: syncs: 1 (new)" in text
    assert not (run.path / "j").exists() and not (run.path / ".pytest_cache/d/x").exists()
    written = yaml.safe_load((run.path / "contracts.yaml").read_text())
    assert written["contracts"]["test_it.py::test_broken"] == {"syncs": 1}
    bare = written["contracts"]["test_it.py::test_bare"]
    assert bare["syncs"] == 1 and bare["collectives"] == bare["recompiles"] == 0
    assert {entry["reason"] for entry in written["history"]} == {"a new model"}
    result = run()
    result.assert_outcomes(passed=2, xfailed=1)
    text = said(result)
    assert "contracts.yaml takes the place of limits that tests name:" in text
    assert "  test_it.py::test_broken: syncs" in text
    result = run("--contracts-update", "--contracts-reason=again")
    assert "nothing to update in contracts.yaml" in said(result)


# -- what is written ------------------------------------------------------------------------------


def test_reports_hold_every_contract_of_the_run(run: Runner) -> None:
    run.write("""
@pytest.mark.perf_contract(syncs=0, recompiles=0, gpu_idle="<10%")
def test_a():
    train().item()

@pytest.mark.perf_contract(launches_per_step="<=2", operators=">=1")
def test_b():
    train(5)

@pytest.mark.xfail
@pytest.mark.perf_contract(syncs=0)
def test_c():
    train().item()
""")
    result = run("--contracts-junit=out.xml", "--contracts-sarif=out.sarif",
                 "--contracts-markdown=out.md", "--contracts-github")  # fmt: skip
    result.assert_outcomes(failed=2, xfailed=1)
    suites = ElementTree.parse(run.path / "out.xml").getroot()
    names = ("name", "tests", "failures", "skipped")
    assert [tuple(suite.get(name) for name in names) for suite in suites] == [
        ("test_it.py::test_a", "3", "1", "1"),
        ("test_it.py::test_b", "2", "1", "0"),
    ]
    assert (suites.get("tests"), suites.get("failures")) == ("5", "2")
    document = json.loads((run.path / "out.sarif").read_text())
    (sarif,) = document["runs"]
    rules = [rule["id"] for rule in sarif["tool"]["driver"]["rules"]]
    found = {r["ruleId"]: r for r in sarif["results"]}
    assert set(found) == {"syncs", "launches_per_step"}
    assert all(rules[r["ruleIndex"]] == name for name, r in found.items())
    (place,) = found["syncs"]["locations"]
    place = place["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "test_it.py" and place["region"]["startLine"] == 9
    (told,) = sarif["invocations"][0]["toolExecutionNotifications"]
    assert rules[told["associatedRule"]["index"]] == "gpu_idle"
    text = (run.path / "out.md").read_text()
    assert text.startswith("<!-- torchtraceap contracts -->\n## Performance contracts: 2 broken\n")
    assert "test_it.py::test_a" in text and "test_c" not in text
    errors = [line for line in result.outlines if line.startswith("::error ")]
    assert len(errors) == 2 and all("file=test_it.py,line=" in line for line in errors)


def test_a_report_that_can_not_be_written_is_told(run: Runner) -> None:
    run.write("""
@pytest.mark.perf_contract(syncs=0)
def test_a():
    train()
""")
    result = run("--contracts-junit=no/such/folder.xml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: " in said(result) and "does not exist" in said(result)
    assert (
        run("--contracts-markdown=out.md", "-k", "none").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    )
    assert "Performance contracts: none" in (run.path / "out.md").read_text()


def test_off_is_off(run: Runner) -> None:
    run.write("""
@pytest.mark.perf_contract(syncs=0)
def test_a(perf_contract):
    train().item()
    with perf_contract(syncs=0) as c:
        train().item()
        c.step()
    perf_contract.step()
    assert not torch.autograd.profiler._is_profiler_enabled
""")
    result = run("--contracts-off", "--contracts=missing.yaml")
    result.assert_outcomes(passed=1)
    assert "performance contracts" not in said(result)


def test_an_older_pytest_loads_the_plugin_and_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torchtraceap.contracts.pytest_plugin as known

    monkeypatch.setattr(pytest, "version_tuple", (7, 1, 0))
    monkeypatch.delattr(pytest, "StashKey")
    spec = importlib.util.spec_from_file_location("older_plugin", known.__file__)
    assert spec is not None and spec.loader is not None
    older = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(older)
    lines: list[tuple[str, str]] = []
    older.pytest_configure(SimpleNamespace(addinivalue_line=lambda *line: lines.append(line)))
    assert lines[0][1].startswith("perf_contract(")
    item = SimpleNamespace(get_closest_marker=lambda name: name == "perf_contract")
    older.pytest_collection_finish(SimpleNamespace(items=[]))
    with pytest.raises(pytest.UsageError, match="need pytest 8"):
        older.pytest_collection_finish(SimpleNamespace(items=[item]))


# -- the page -----------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/contracts.md").read_text("utf-8")


def blocks_of(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


def test_the_test_of_the_page_fails_as_the_page_says(run: Runner) -> None:
    (program,) = [block for block in blocks_of("python") if block.startswith("# test_train.py")]
    run.pytester.makepyfile(test_train=program)
    text = said(run())
    (shown,) = [block for block in blocks_of("") if block.startswith("___")]
    assert shown in text


def test_the_check_of_the_page_fails_as_the_page_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    trace = "examples/traces/resnet50_num_workers_0.json.gz"
    assert main(["check", trace, "--contract", "examples/workflows/contract.yaml"]) == 1
    assert capsys.readouterr().out in blocks_of("")


def test_the_page_has_every_key_and_every_option(run: Runner) -> None:
    table = PAGE.split("| key |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE)
    keys = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert keys == {key for key in MEASURES if base_of(key) == key}
    options = re.findall(r"^  (--contracts[\w-]*)", said(run("--help")), re.MULTILINE)
    assert len(options) == 10
    assert [name for name in options if not re.search(rf"`[^`]*{name}\b", PAGE)] == []


def test_the_contracts_of_the_page_and_of_the_workflow_can_be_read() -> None:
    (text,) = blocks_of("yaml")
    whole = (ROOT / "examples/workflows/contracts.yaml").read_text("utf-8")
    assert parse_contracts(text).named == parse_contracts(whole).named
    assert parse_contracts(text).names == ("tests/test_train.py::test_step",)
    workflow = yaml.safe_load((ROOT / "examples/workflows/performance.yml").read_text("utf-8"))
    steps = workflow["jobs"]["contracts"]["steps"]
    (check,) = [s["run"] for s in steps if "torchtraceap check" in s.get("run", "")]
    parser = Parser()
    COMMANDS["check"].describe(parser)
    parser.parse_args(shlex.split(check.replace("\\\n", " "))[2:])


# -- other processes ------------------------------------------------------------------------------


def test_a_run_without_contracts_imports_nothing_of_it(run: Runner) -> None:
    run.pytester.makeconftest("""
import sys
def pytest_unconfigure(config):
    heavy = [m for m in ("torch", "numpy", "yaml", "scipy", "rich") if m in sys.modules]
    ours = sorted(m for m in sys.modules if m.startswith("torchtraceap"))
    print("heavy", heavy, "ours", ours)
""")
    run.pytester.makepyfile("def test_it(): pass")
    result = run.apart("-p", "no:xdist", "-s", "--strict-markers")
    (line,) = [line for line in result.outlines if line.startswith("heavy")]
    assert line.startswith("heavy [] ours ['torchtraceap', ")
    ours = set(line.partition(" ours ")[2].strip("[]").replace("'", "").split(", "))
    assert ours == {f"torchtraceap{name}" for name in
                    ("", "._version", ".contracts", ".contracts.pytest_plugin", ".core",
                     ".core.rendering", ".errors")}  # fmt: skip


@pytest.mark.slow
def test_workers_send_their_results_and_one_process_writes(run: Runner) -> None:
    pytest.importorskip("xdist")
    run.write("""
import os

@pytest.mark.parametrize("n", range(4))
@pytest.mark.perf_contract(syncs=0, gpu_idle="<10%")
def test_many(n):
    torch.set_num_threads(1)
    assert os.environ["PYTEST_XDIST_WORKER"]
    train() if n == 1 else train().item()
""")
    result = run.apart("-n", "2", "--contracts-update", "--contracts-reason=because")
    result.assert_outcomes(passed=4)
    text = said(result)
    assert "4 contracts: 1 hold, 3 change" in text and "4 keys could not be checked" in text
    assert "3 limits written to contracts.yaml" in text
    written = parse_contracts((run.path / "contracts.yaml").read_text("utf-8"))
    assert written.names == tuple(f"test_it.py::test_many[{n}]" for n in (0, 2, 3))
