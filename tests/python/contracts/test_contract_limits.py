"""Limits as a person writes them, and contracts of them."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtraceap.contracts import Contract, Limit
from torchtraceap.contracts.measures import MEASURES
from torchtraceap.errors import OptionError


@pytest.mark.parametrize(
    ("written", "kind", "holds", "breaks"),
    [
        (0, "count", [0], [1]),
        (7.0, "count", [7], [6, 8]),
        ("==2", "count", [2], [1, 3]),
        ("<=120", "count", [0, 120], [121]),
        ("< 120", "count", [119], [120]),
        ("≤1_000", "count", [1000], [1001]),
        (">=3", "count", [3, 10**15], [2]),
        (">3", "count", [4], [3]),
        ("100..120", "count", [100, 120], [99, 121]),
        ("<10%", "share", [0.0999], [0.1]),
        ("<=0.25", "share", [0.25], [0.2501]),
        (">= 90 %", "share", [0.9, 1.0], [0.8999]),
        ("5%..10%", "share", [0.05, 0.1], [0.049, 0.101]),
        ("5..10%", "share", [0.05, 0.1], [0.049, 0.101]),
        ("<=4 MiB", "bytes", [4 << 20], [(4 << 20) + 1]),
        ("<=4MB", "bytes", [4_000_000], [4_000_001]),
        ("<=1.5 KiB", "bytes", [1536], [1537]),
        (4096, "bytes", [4096], [4095, 4097]),
        ("<=4096", "bytes", [4096], [4097]),
        ("<=10 ms", "time", [10_000_000], [10_000_001]),
        ("<1.5us", "time", [1499], [1500]),
        ("1 s .. 2 s", "time", [1e9, 2e9], [0.9e9, 2.1e9]),
        (3, "counts by name", [3], [2]),
    ],
)
def test_what_holds(written: Any, kind: str, holds: list[float], breaks: list[float]) -> None:
    limit = Limit.parse(written, kind)
    assert all(limit.holds(value) for value in holds)
    assert not any(limit.holds(value) for value in breaks)


@pytest.mark.parametrize(
    ("written", "kind", "said"),
    [
        ("<=many", "count", "is no limit"),
        ("", "count", "is no limit"),
        (True, "count", "is no limit"),
        (-1, "count", "from 0"),
        (math.nan, "count", "from 0"),
        (math.inf, "bytes", "from 0"),
        (10**30, "count", "from 0"),
        (1.5, "count", "no number of events"),
        ("<=1.5", "count", "whole numbers"),
        ("<=3 MiB", "count", "no unit"),
        ([1], "count", "is no limit"),
        ({"a": 1}, "count", "is no limit"),
        ("9" * 200, "count", "is no limit"),
        ("<=1e300", "count", "more than any trace"),
        ("120..100", "count", "wrong order"),
        (0.1, "share", "never exactly"),
        ("==10%", "share", "never exactly"),
        ("<=10", "share", "write %"),
        ("<=110%", "share", "at most 100 %"),
        ("<=10 ms", "share", "percentage"),
        (10, "time", "never exactly"),
        ("<=10", "time", "has one of ns"),
        ("<=10 parsec", "time", "has one of ns"),
        ("<=4 MiBi", "bytes", "has one of b"),
        ("no_memory_pinn", "findings", "did you mean no_memory_pin"),
        ([], "findings", "names no type"),
        ([1], "findings", "list of types"),
        (3, "findings", "list of types"),
        ({}, "counts by name", "names no kind"),
        ({"allreduce": 1}, "counts by name", "did you mean all_reduce"),
        ({"all_reduce": "<=x"}, "counts by name", "is no limit"),
        ({1: 1}, "counts by name", "no kind of collective"),
    ],
)
def test_what_makes_no_sense_is_said(written: Any, kind: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        Limit.parse(written, kind)
    assert len(str(raised.value)) < 600


def test_collectives_have_a_limit_each() -> None:
    limit = Limit.parse({"all_reduce": 2, "other": "<=3", "send": None}, "counts by name")
    assert limit.to_json() == {"all_reduce": 2, "other": "<=3"}


def test_findings_may_all_be_ruled_out() -> None:
    assert Limit.parse("none", "findings").types == ()
    assert Limit.parse(["no_memory_pin", "no_memory_pin"], "findings").types == ("no_memory_pin",)


@pytest.mark.parametrize(
    ("written", "kind", "measured", "after"),
    [
        (0, "count", 3, 3),
        ("<=120", "count", 80, "<=80"),
        ("<120", "count", 130, "<131"),
        (">=3", "count", 1, ">=1"),
        (">3", "count", 3, ">2"),
        ("100..120", "count", 110, "100..120"),
        ("100..120", "count", 130, "100..130"),
        ("100..120", "count", 90, "90..120"),
        ("<=4 MiB", "bytes", (5 << 20) + 1, "<=5.01 MiB"),
        ("<=4096", "bytes", 5000, "<=5000"),
        ("<10%", "share", 0.1234, "<12.4%"),
        ("<10%", "share", 0.125, "<12.6%"),
        (">=90%", "share", 0.8765, ">=87.6%"),
        ("<=10 ms", "time", 12_345_678, "<=12.346 ms"),
        ({"all_reduce": 2, "other": 0}, "counts by name", {"all_reduce": 4, "send": 1},
         {"all_reduce": 4, "other": 1}),
        ("<=2", "counts by name", {"all_reduce": 4, "send": 1}, "<=5"),
    ],
)  # fmt: skip
def test_moved_limit_keeps_its_form_and_holds(
    written: Any, kind: str, measured: Any, after: Any
) -> None:
    moved = Limit.parse(written, kind).moved_to(measured)
    assert moved == after
    if not isinstance(measured, dict):
        assert Limit.parse(moved, kind).holds(measured)


@given(
    sign=st.sampled_from(["<=", "<", ">=", ">"]),
    kind=st.sampled_from(["count", "bytes", "share", "time"]),
    value=st.integers(1, 10**12),
)
def test_moved_limit_holds_for_what_was_measured(sign: str, kind: str, value: int) -> None:
    written = {"count": "5", "bytes": "5 MiB", "share": "50%", "time": "5 ms"}[kind]
    measured = value / 10**12 if kind == "share" else value
    if kind == "share" and sign == "<" and measured > 0.999:
        return  # less than all of it can't be said
    limit = Limit.parse(sign + written, kind)
    assert Limit.parse(limit.moved_to(measured), kind).holds(measured)


@settings(max_examples=40)
@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.lists(st.text())))
def test_anything_is_a_limit_or_is_refused(written: Any) -> None:
    for kind in ("count", "bytes", "share", "time", "counts by name", "findings"):
        try:
            Limit.parse(written, kind)
        except OptionError:
            continue


def test_contract_takes_the_words_of_the_vocabulary() -> None:
    contract = Contract.parse(
        {
            "syncs": 0,
            "launches_per_step": "<=120",
            "h2d_bytes": "<=4 MiB",
            "gpu_idle": "<10%",
            "collectives": {"all_reduce": 2},
            "recompiles": 0,
            "findings": ["no_memory_pin"],
            "operators": None,
        },
        device="cpu",
    )
    assert len(contract) == 7 and "operators" not in contract.keys
    limits = {key: limit.to_json() for key, limit in contract.limits}
    assert Contract.parse(limits).limits == contract.limits


def test_contract_names_what_is_wrong() -> None:
    with pytest.raises(OptionError, match=r"'sync' is nothing .* did you mean syncs"):
        Contract.parse({"sync": 0})
    with pytest.raises(OptionError, match="gpu_idle: a share is never exactly 0"):
        Contract.parse({"gpu_idle": 0})
    for tolerance in (-1, math.nan, "much", True):
        with pytest.raises(OptionError, match="tolerance"):
            Contract.parse({"syncs": 0}, tolerance=tolerance)


def test_every_measure_takes_a_limit() -> None:
    written = {"count": 0, "bytes": "<=1 GiB", "share": "<=50%", "time": "<=1 s",
               "findings": "none", "counts by name": {"all_reduce": 0}}  # fmt: skip
    contract = Contract.parse({key: written[each.kind] for key, each in MEASURES.items()})
    assert contract.keys == tuple(MEASURES)


def test_limits_load_nothing_heavy() -> None:
    program = (
        "import sys; from torchtraceap.contracts import Contract; "
        "Contract.parse({'syncs': 0, 'findings': ['no_memory_pin']}); "
        "print(sorted({'numpy', 'torch', 'yaml', 'torchtraceap._core'} & set(sys.modules)))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "[]"


@pytest.mark.parametrize("digits", [300, 400, 5000])
def test_numbers_of_hundreds_of_digits_are_no_limits(digits: int) -> None:
    with pytest.raises(OptionError, match="no limit"):
        Contract.parse({"launches": 10**digits})
    with pytest.raises(OptionError, match="tolerance is a share from 0 to"):
        Contract.parse({"launches": 1}, tolerance=10**digits)
