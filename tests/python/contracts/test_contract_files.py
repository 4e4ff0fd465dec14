"""Contract files: what is read, what is refused with its line, what an update writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from report_samples import HOSTILE

from torchtraceap.contracts import Contract, read_contracts
from torchtraceap.contracts.file import parse_contracts
from torchtraceap.contracts.measures import MEASURES
from torchtraceap.contracts.result import CheckResult, KeyResult
from torchtraceap.contracts.update import Update, update_contract
from torchtraceap.errors import MissingFileError, OptionError

WHOLE = """\
# what a step may cost
syncs: 0   # none
launches_per_step: <=120
gpu_idle: "<10%"
device: NVIDIA A100
tolerance: 0.05
recorded:
  when: 2026-11-26
  reason: first
  torch: 2.13.0

contracts:
  # of the tests
  tests/test_a.py::test_step[x]:
    syncs: 4
    launches_per_step: null
  other: {operators: "<=10"}
history:
- {date: '2026-11-26', key: syncs, from: 1, to: 0, reason: first}
"""


def test_limits_have_their_lines() -> None:
    contract = parse_contracts(WHOLE, "c.yaml").contract()
    assert contract.keys == ("syncs", "launches_per_step", "gpu_idle")
    assert [contract.line(key) for key in contract.keys] == [2, 3, 4]
    assert (contract.device, contract.tolerance) == ("NVIDIA A100", 0.05)
    assert (contract.when, contract.reason) == ("2026-11-26", "first")


def test_named_contracts_take_the_places_of_those_of_all() -> None:
    file = parse_contracts(WHOLE, "c.yaml")
    assert file.names == ("tests/test_a.py::test_step[x]", "other")
    named = file.contract("tests/test_a.py::test_step[x]")
    limits = {key: limit.to_json() for key, limit in named.limits}
    assert limits == {"syncs": 4, "gpu_idle": "<10%"}
    assert (named.line("syncs"), named.line("gpu_idle")) == (15, 4)
    assert named.device == "NVIDIA A100"
    assert file.find("nothing") is None
    with pytest.raises(OptionError, match="did you mean other"):
        file.contract("othr")


def test_file_with_names_alone_asks_for_one() -> None:
    file = parse_contracts("contracts:\n  a:\n    syncs: 0\n", "c.yaml")
    with pytest.raises(OptionError, match="name one of its contracts: a"):
        file.contract()
    assert len(file.contract("a")) == 1


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "holds no limit"),
        ("# nothing\n", 1, "holds no limit"),
        ("- syncs: 0\n", 1, "keys with limits are needed"),
        ("syncs\n", 1, "keys with limits are needed"),
        ("syncs: 0\nlaunch_per_step: 3\n", 2, "did you mean launches_per_step"),
        ("syncs: 0\ndevise: x\n", 2, "did you mean device"),
        ("syncs: 0\n\nsyncs: 1\n", 3, "is there already, in line 1"),
        ("launches:\n- 1\n", 2, "is no limit"),
        ("launches: yes\n", 1, "is no limit"),
        ("launches: 2026-01-01\n", 1, "is no limit"),
        ("launches: !!python/object:os.system x\n", 1, "no value of plain YAML"),
        ("gpu_busy: >=90%\n", 1, "in quotes"),
        ("syncs: 0\n  launches: 3\n", 2, "is no YAML"),
        ("syncs: [0\n", 2, "is no YAML"),
        ("a: 1\n--- \nb: 1\n", 2, "is no YAML"),
        ("syncs: 0\ncontracts: 3\n", 2, "is no mapping"),
        ("syncs: 0\ncontracts:\n  a: [1]\n", 3, "is no mapping"),
        ("syncs: 0\ncontracts:\n  a:\n    sync: 1\n", 4, "did you mean syncs"),
        ("syncs: 0\ncontracts:\n  a:\n    contracts: {}\n", 4, "nothing that can be measured"),
        ("collectives:\n  all_reduce: 2\n  allgather: 1\n", 2, "did you mean all_gather"),
        ("collectives: {all_reduce: 2, all_reduce: 3}\n", 1, "is there already"),
        ("tolerance: lots\nsyncs: 0\n", 1, "tolerance is a share"),
        ("device: [a]\nsyncs: 0\n", 1, "device is a text"),
        ("recorded: 3\nsyncs: 0\n", 1, "is no mapping"),
        ("history: 3\nsyncs: 0\n", 1, "history is a list"),
        ("? [a]\n: 1\n", 1, "a key is a word"),
        ("syncs: *nobody\n", 1, "is no YAML"),
        ("syncs: 0\nx: \x07\n", 2, "does not allow"),
        ("findings: [no_memory_pinn]\n", 1, "did you mean no_memory_pin"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        parse_contracts(text, "c.yaml").contract()
    assert str(raised.value).startswith(f"c.yaml:{line}: ")
    assert len(str(raised.value)) < 2000


def bomb() -> str:
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for i in range(1, 12):
        lines.append(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]")
    return "\n".join([*lines, "syncs: 0"])


@pytest.mark.parametrize(
    "text",
    [
        bomb(),
        "syncs: &a [*a]",
        "a: &a {b: *a}",
        "[" * 20_000,
        "syncs: " + "{a: " * 5_000,
        "syncs: 0\nhistory:\n" + "- 1\n" * 60_000,
    ],
    ids=["bomb", "itself", "itself by key", "deep", "deep keys", "long"],
)
def test_hostile_files_are_refused(text: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_contracts(text, "c.yaml")
    assert len(str(raised.value)) < 2000


def test_files_that_can_t_be_read(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        read_contracts(tmp_path / "none.yaml")
    with pytest.raises(OptionError, match="can't be read"):
        read_contracts(tmp_path)
    path = tmp_path / "c.yaml"
    path.write_bytes(b"syncs: 0\nx: \xff\xfe\n")
    with pytest.raises(OptionError, match=r"c\.yaml:2: is no text"):
        read_contracts(path)
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(OptionError, match="more than 1,048,576 bytes"):
        read_contracts(path)
    path.write_bytes(b"\xef\xbb\xbfsyncs: 0\r\n")
    assert read_contracts(path).contract().keys == ("syncs",)


@given(st.text())
def test_any_text_is_read_or_refused_in_a_sentence(text: str) -> None:
    try:
        parse_contracts(text, "c.yaml").contract()
    except OptionError as error:
        assert str(error).startswith("c.yaml:")


# ---------------------------------------------------------------------------------- updates


def measured(device: str = "cpu", **values: Any) -> CheckResult:
    """What a check of WHOLE may have found; limits that are not named pass as they are."""
    results = []
    for key, (status, value) in values.items():
        kind = MEASURES[key].kind
        won = "by much" if status == "won" else ""
        status = "passed" if status == "won" else status
        results.append(KeyResult(key, None, value, status, "", won=won, kind=kind))
    return CheckResult(True, tuple(results), device=device)


def update(text: str, result: CheckResult, name: str | None = None, **more: Any) -> Update:
    file = parse_contracts(text, "c.yaml")
    return update_contract(file, result, "larger batch", name=name, today="2026-12-01", **more)


def test_update_moves_limits_in_their_places() -> None:
    result = measured(syncs=("failed", 2), launches_per_step=("passed", 100))
    found = update(WHOLE, result)
    expected = WHOLE.replace("syncs: 0   # none", "syncs: 2   # none")
    expected = expected.replace("<=120", "<=100")
    expected += (
        "- {date: '2026-12-01', key: syncs, from: 0, to: 2, reason: larger batch}\n"
        "- {date: '2026-12-01', key: launches_per_step, from: <=120, to: <=100, "
        "reason: larger batch}\n"
    )
    assert found.file.text == expected
    assert [change.key for change in found.changes] == ["syncs", "launches_per_step"]


def test_update_of_a_name_leaves_what_holds_for_all() -> None:
    name = "tests/test_a.py::test_step[x]"
    found = update(WHOLE, measured(syncs=("failed", 7), gpu_idle=("failed", 0.5)), name)
    assert found.file.contract().limit("gpu_idle") == parse_contracts(WHOLE).base.limit("gpu_idle")
    named = found.file.contract(name)
    assert {k: limit.to_json() for k, limit in named.limits} == {"syncs": 7, "gpu_idle": "<50.1%"}
    assert named.device == "cpu"
    assert "# of the tests\n" in found.file.text and "    syncs: 7\n" in found.file.text
    history = yaml.safe_load(found.file.text)["history"]
    assert history[-1]["contract"] == name and len(history) == 3


def test_update_adds_a_contract_that_is_not_there() -> None:
    limits = Contract.parse({"syncs": 0, "operators": "<=10"})
    found = update(WHOLE, measured(syncs=("failed", 1)), "new::one", limits=limits)
    assert found.file.contract("new::one").limit("syncs") == limits.parse({"syncs": 1}).limit(
        "syncs"
    )
    empty = update("{}", measured(syncs=("failed", 1)), "new::one", limits=limits)
    assert empty.file.names == ("new::one",)


def test_update_writes_a_file_of_one_line_anew() -> None:
    found = update("{syncs: 0, launches: 3}", measured(syncs=("failed", 2)))
    assert yaml.safe_load(found.file.text)["syncs"] == 2
    assert found.file.contract().limit("launches") is not None


def test_times_move_only_if_they_have_to() -> None:
    assert not update(WHOLE, measured(gpu_idle=("passed", 0.095))).changes
    (change,) = update(WHOLE, measured(gpu_idle=("won", 0.05))).changes
    assert (change.before, change.after) == ("<10%", "<5.1%")


def test_update_leaves_what_is_not_known() -> None:
    found = update(WHOLE, measured(syncs=("inconclusive", None)))
    assert not found.changes and found.file.text == WHOLE


def test_findings_that_are_present_leave_the_list() -> None:
    text = "findings: [no_memory_pin, graph_break]\n"
    (change,) = update(text, measured(findings=("failed", ["graph_break"]))).changes
    assert change.after == ["no_memory_pin"]
    found = update("findings: none\n", measured(findings=("failed", ["graph_break"])))
    assert not found.changes and "by hand" in found.left[0]


def test_update_needs_a_reason_and_keeps_any() -> None:
    file = parse_contracts(WHOLE, "c.yaml")
    result = measured(syncs=("failed", 2))
    with pytest.raises(OptionError, match="reason"):
        update_contract(file, result, " ")
    for reason in (*HOSTILE, "a: b # c", "- x", "{", "'\"\n\n---\n", "%", "&a *b"):
        found = update_contract(file, result, reason, today="2026-12-01")
        kept = yaml.safe_load(found.file.text)["history"][-1]["reason"]
        assert kept == " ".join(reason.split())


@pytest.mark.parametrize("tail", ["", "\n", "\n# end", "\n\n\n"])
@pytest.mark.parametrize("head", ["", "---\n", "%YAML 1.1\n---\n", "# ä€😀\n\n"])
def test_update_of_files_of_any_form_is_what_it_should_be(head: str, tail: str) -> None:
    for body in ("syncs: 0", "syncs:   0", "syncs: !!int 0", "syncs: &a 0\nlaunches: *a",
                 "syncs:\n  0", "'syncs': 0", "syncs: >\n  ==0", "{\n  syncs: 0\n}"):  # fmt: skip
        text = head + body + tail
        found = update(text, measured(syncs=("failed", 5)))
        assert found.file.contract().limit("syncs") == Contract.parse({"syncs": 5}).limit("syncs")
        loaded = yaml.safe_load(found.file.text)
        assert loaded["history"][0]["to"] == 5
        assert loaded.get("launches", 0) == 0
