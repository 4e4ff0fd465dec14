"""A verdict stands on its pack, or the check says why not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtraceap.core.results import PAPER_TYPES
from torchtraceap.explanation.answer import VerdictAnswer, to_verdict
from torchtraceap.explanation.pack import Pack
from torchtraceap.explanation.verdict import (
    VERDICTS,
    Citation,
    Verdict,
    check_verdict,
    find_citations,
)

from .packs_by_hand import any_text, good_answer, make_pack, packs

PACK = make_pack()
GOOD = to_verdict(VerdictAnswer.model_validate(good_answer(), context={"allowed": PACK.allowed}))


def with_evidence(*evidence: Citation, what: str = "", why: str = "") -> Verdict:
    return replace(GOOD, evidence=evidence, what=what, why=why)


def metric(name: str, value: float | None) -> Citation:
    return Citation(None, name, value)


def test_a_good_verdict_holds() -> None:
    assert check_verdict(GOOD, PACK) == []


def test_what_is_cited_is_given_in_order_and_once() -> None:
    again = replace(GOOD, evidence=(*GOOD.evidence, *GOOD.evidence))
    names = [each.name for each in find_citations(again, PACK)]
    assert names == [PACK.rows["r1"].name, "segment.idle", "fact.fetches"]


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        (Citation("r9", None, None), "no row 'r9'"),
        (Citation("g1", None, None), "no row 'g1'"),
        (metric("segment.idle_ms", 6.54), "no metric 'segment.idle_ms'"),
        (metric("segment.idle", 6.5), "the value of segment.idle is 6.54"),
        (metric("segment.idle", 6540000), "the value of segment.idle is 6.54"),
        (metric("segment.idle", None), "the value of segment.idle is 6.54"),
        (metric("segment.idle", float("nan")), "the value of segment.idle is 6.54"),
        (metric("fact.fetches", 10**400), "the value of fact.fetches is 12"),
        (Citation("r1", None, 3.0), "without the name of its metric"),
        (Citation(None, None, None), "cites neither a row nor a metric"),
        (Citation(None, None, 6.54), "cites neither a row nor a metric"),
    ],
)
def test_evidence_that_is_not_there_is_named(evidence: Citation, said: str) -> None:
    assert any(said in problem for problem in check_verdict(with_evidence(evidence), PACK))


def test_noise_of_floats_is_no_other_value() -> None:
    assert check_verdict(with_evidence(metric("segment.idle", 6.54 + 1e-12)), PACK) == []
    assert check_verdict(with_evidence(metric("g1.total", 1.0)), PACK) == []


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("The GPU idles for 6.54 ms.", True),
        ("It waits 1,234 times.", True),
        ("It idles 81.8 % of the time.", False),
        ("It idles for 6.5 ms.", False),
        ("Idle: 6.54 of 8.00 ms.", False),
        ("It waits twelve times.", False),
        ("Half of it is lost.", True),
        ("Two kernels wait.", False),
        ("On an H100 in bf16.", True),
        ("-6.54 ms", False),
        ("\u0666 ms", False),
    ],
)
def test_numbers_of_prose_are_cited(text: str, holds: bool) -> None:
    evidence = (metric("segment.idle", 6.54), metric("window.launch_count", 1234))
    for verdict in (with_evidence(*evidence, what=text), with_evidence(*evidence, why=text)):
        assert (check_verdict(verdict, PACK) == []) == holds


def test_a_metric_of_the_pack_that_is_not_cited_makes_no_number_true() -> None:
    verdict = with_evidence(metric("segment.idle", 6.54), what="12 fetches")
    assert "what says 12" in check_verdict(verdict, PACK)[0]


def test_names_may_hold_digits() -> None:
    pack = make_pack(names=("name_17", "ampere_sgemm_128x64_tn", "two_stage"))
    evidence = metric("segment.idle", 6.54)
    for text in ("name_17 waits", "ampere_sgemm_128x64_tn runs", "two_stage runs"):
        assert check_verdict(with_evidence(evidence, what=text), pack) == []
    assert check_verdict(with_evidence(evidence, what="name_18 waits"), pack)


def test_an_event_that_is_called_like_a_number_makes_none_true() -> None:
    pack = make_pack(names=("47 ms", "47", "-47", ".47"))
    for text in ("It idles for 47 ms.", "-47", "0.47"):
        assert check_verdict(with_evidence(metric("segment.idle", 6.54), what=text), pack)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verdict": "awful"}, "'awful' is none of"),
        ({"labels": ("gremlins",), "primary": "none"}, "'gremlins' is no type"),
        ({"primary": "cpu_bound"}, "not among the labels"),
        ({"fix": "gremlins"}, "'gremlins' is no type"),
        ({"confidence": 1.01}, "confidence"),
        ({"confidence": float("nan")}, "confidence"),
        ({"suggested_windows": 75}, "number of windows"),
        ({"evidence": (), "what": ""}, "needs evidence"),
    ],
)
def test_choices_are_among_those_there_are(changes: dict[str, object], said: str) -> None:
    assert any(said in problem for problem in check_verdict(replace(GOOD, **changes), PACK))


verdicts = st.builds(
    Verdict,
    verdict=st.sampled_from(VERDICTS) | any_text,
    labels=st.lists(st.sampled_from(PAPER_TYPES) | any_text, max_size=3).map(tuple),
    primary=st.sampled_from([*PAPER_TYPES, "none"]) | any_text,
    confidence=st.floats(),
    evidence=st.lists(
        st.builds(
            Citation,
            row=st.none() | st.sampled_from(["r1", "r2"]) | any_text,
            metric=st.none() | st.sampled_from(["segment.idle", "g1.count"]) | any_text,
            value=st.none() | st.floats() | st.integers() | st.just(6.54),
        ),
        max_size=4,
    ).map(tuple),
    what=any_text,
    why=any_text,
    fix=st.sampled_from([*PAPER_TYPES, "none"]) | any_text,
    suggested_windows=st.none() | st.integers(),
)


@given(verdicts, packs())
def test_a_verdict_without_problems_cites_what_is_there(verdict: Verdict, pack: Pack) -> None:
    problems = check_verdict(verdict, pack)
    found = find_citations(verdict, pack)
    assert all(each in (*pack.rows.values(), *pack.every_metric().values()) for each in found)
    for problem in problems:
        problem.encode("ascii")
    if not problems:
        assert {e.row for e in verdict.evidence if e.row} <= set(pack.rows)
        for evidence in verdict.evidence:
            if evidence.metric is not None:
                assert evidence.value == pytest.approx(pack.every_metric()[evidence.metric].value)
