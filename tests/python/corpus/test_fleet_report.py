"""What a corpus is asked: GPU hours by finding, onsets, bad hosts, runs alike."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtraceap.cli import main
from torchtraceap.corpus.analyse import COLUMNS, Outcome, Task
from torchtraceap.corpus.report import build_report, report_html, report_markdown, similar_runs
from torchtraceap.corpus.store import Store
from torchtraceap.errors import OptionError

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

MONDAY = date(2026, 6, 1)
TYPES = ("cpu_bound", "no_memory_pin", "tiny_kernels", "straggler", "graph_break")


KINDS = {str: "s", int: "i", float: "f"}


def rows_of(table: str, rows: Sequence[dict[str, Any]]) -> dict[str, tuple[str, list[Any]]]:
    kinds = COLUMNS.get(table) or {n: KINDS[type(v)] for row in rows for n, v in row.items()}
    return {name: (kind, [row.get(name) for row in rows]) for name, kind in kinds.items()}


class Fleet:
    """Runs that are written into a corpus without traces."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.outcomes = str(folder), []
        self.store = Store(self.folder)
        self.store.create({"sources": [], "tags": []})

    def add(
        self, day: date, costs: dict[str, float], *, hosts: Sequence[str] = (), late: int = -1,
        hours: float = 1.0, own: dict[str, float] | None = None,
        kernels: Sequence[dict[str, Any]] = (), collectives: Sequence[dict[str, Any]] = (),
        roofline: Sequence[dict[str, Any]] = (), **columns: Any,
    ) -> str:  # fmt: skip
        run = f"{len(self.outcomes):024x}"
        at = datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() + len(self.outcomes)
        first = {
            "run": run, "path": f"/t/{run}.json", "day": day.isoformat(), "job": run,
            "recorded_ns": int(at * 1e9), "tags": "{}", "gpu_hours": hours, "comparable": True,
            "unchecked": "{}", "profiled_ns": 10**9, "versions": "{}", "step_ns": 10**6, **columns,
        }  # fmt: skip
        findings = [
            {"run": run, "type": name, "title": name, "fix": f"mend {name}", "cost_share": share,
             "cost_ns": int(share * 1e9), "saving_share": share / 2,
             "unclaimed_cost_ns": int((own or costs)[name] * 1e9)}
            for name, share in costs.items()
        ]  # fmt: skip
        facts = [
            {"run": run, "subject": "time", "name": name, "value": share * 1e9}
            for name, share in costs.items()
        ]
        for rank, host in enumerate(hosts):
            verdict = "straggler" if rank == late else "on time"
            about = {"run": run, "subject": "rank", "rank": rank, "kind": "text"}
            facts += [{**about, "name": "host", "text": host},
                      {**about, "name": "verdict", "text": verdict}]  # fmt: skip
        rows = {"runs": rows_of("runs", [first]), "findings": rows_of("findings", findings),
                "facts": rows_of("facts", facts)}  # fmt: skip
        for table, given in (("kernels", kernels), ("collectives", collectives),
                             ("roofline", roofline)):  # fmt: skip
            if given:
                rows[table] = rows_of(table, [{"run": run, **each} for each in given])
        task = Task(run, run, (first["path"],), 1, 0)
        known = {"run": run, "key": run, "failed": False, "files": [[first["path"], 1, 1, "", []]]}
        self.outcomes.append((Outcome(task, rows, False), known))
        return run

    def report(self) -> dict[str, Any]:
        self.store.commit(self.outcomes)
        return build_report(self.folder)


def planted(folder: Path, seed: int, onset: int | None) -> tuple[Fleet, dict[str, float]]:
    """Twelve weeks of 80 runs; each finding is in a share of the runs, one only from a week on."""
    chance = random.Random(seed)
    fleet = Fleet(folder)
    sums = dict.fromkeys(TYPES, 0.0)
    rates = {name: chance.uniform(0.1, 0.6) for name in TYPES}
    for week in range(12):
        for number in range(80):
            costs = {}
            for place, name in enumerate(TYPES):
                begun = onset is None or place or week >= onset
                if begun and chance.random() < rates[name]:
                    costs[name] = chance.uniform(0.02, 0.1 * (place + 2))
            hours = chance.uniform(1, 9)
            day = MONDAY + timedelta(days=7 * week + number * 7 // 80)
            fleet.add(day, costs, hours=hours, team=f"t{number % 3}", device="NVIDIA H100")
            for name, share in costs.items():
                sums[name] += hours * share
    return fleet, sums


@pytest.mark.parametrize(("seed", "onset"), [(1, 3), (2, 6), (3, 9)])
def test_hours_order_and_onset_are_those_that_were_planted(
    tmp_path: Path, seed: int, onset: int
) -> None:
    fleet, sums = planted(tmp_path / "fleet", seed, onset)
    report = fleet.report()
    found = {each["type"]: each for each in report["findings"]}
    assert list(found) == sorted(sums, key=lambda name: -sums[name])
    for name, hours in sums.items():
        assert found[name]["gpu_hours"] == pytest.approx(hours)
        assert found[name]["low"] < hours < found[name]["high"]
    (trend,) = report["trends"]
    week = (MONDAY + timedelta(days=7 * onset)).isoformat()
    assert (trend["type"], trend["week"]) == (TYPES[0], week)
    assert found[TYPES[0]]["first_seen"][:8] >= week[:8]
    assert trend["before_share"] < trend["after_share"]


def test_a_step_is_told_of_the_team_that_has_it(tmp_path: Path) -> None:
    """One team's cost grows in a week, beside what all teams had before."""
    chance = random.Random(7)
    fleet = Fleet(tmp_path / "fleet")
    for number in range(480):
        week, team = number // 40, f"t{chance.randrange(4)}"
        share = chance.uniform(0.05, 0.1) if chance.random() < 0.3 else 0.0
        if team == "t2" and week >= 7:
            share = chance.uniform(0.1, 0.2)
        day = MONDAY + timedelta(days=7 * week + number % 40 // 6)
        fleet.add(day, {"cpu_bound": share} if share else {}, team=team)
    (trend,) = fleet.report()["trends"]
    week = (MONDAY + timedelta(days=49)).isoformat()
    assert (trend["week"], trend["of"]) == (week, {"team": "t2"})


@pytest.mark.parametrize("claimed", [True, False])
def test_a_step_of_a_symptom_is_that_of_its_cause(tmp_path: Path, claimed: bool) -> None:
    chance = random.Random(3)
    fleet = Fleet(tmp_path / "fleet")
    for number in range(200):
        share = chance.uniform(0.1, 0.2) if number >= 100 else 0.0
        costs = {"pageable_readback": share, "high_memcpy": share} if share else {}
        own = {**costs, "high_memcpy": 0.0} if claimed and costs else None
        fleet.add(MONDAY + timedelta(days=number // 10), costs, own=own)
    report = fleet.report()
    told = [each["type"] for each in report["trends"]]
    assert told == (["pageable_readback"] if claimed else ["high_memcpy", "pageable_readback"])
    found = {each["type"]: each for each in report["findings"]}["high_memcpy"]
    assert found["own_gpu_hours"] == pytest.approx(0.0 if claimed else found["gpu_hours"])


def test_forty_kinds_of_findings_leave_a_step_its_chance(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet")
    for number in range(120):
        costs = {f"type{number % 40}": 0.1}
        day = MONDAY + timedelta(days=number // 10)
        fleet.add(day, costs | ({"new": 0.2} if number > 59 else {}))
    assert [each["type"] for each in fleet.report()["trends"]] == ["new"]


@pytest.mark.slow
def test_no_trend_is_told_where_none_is(tmp_path: Path) -> None:
    told = [
        bool(planted(tmp_path / str(seed), seed, None)[0].report()["trends"]) for seed in range(20)
    ]
    assert sum(told) <= 2


def test_intervals_hold_the_expected_sum_as_often_as_they_say(tmp_path: Path) -> None:
    """Of fleets of one kind, nine in ten intervals hold the mean."""
    inside = []
    for seed in range(20):
        chance = np.random.default_rng(seed)
        fleet = Fleet(tmp_path / str(seed))
        for share in chance.exponential(0.2, 60):
            fleet.add(MONDAY, {"cpu_bound": float(share)})
        (found,) = fleet.report()["findings"]
        inside.append(found["low"] <= 12.0 <= found["high"])
    assert sum(inside) >= 14


def test_runs_of_one_job_are_resampled_together(tmp_path: Path) -> None:
    apart, together = Fleet(tmp_path / "a"), Fleet(tmp_path / "b")
    for number in range(40):
        apart.add(MONDAY, {"cpu_bound": 0.5})
        together.add(MONDAY, {"cpu_bound": 0.5}, job=f"j{number % 4}")
    widths = [
        found["high"] - found["low"]
        for fleet in (apart, together)
        for found in fleet.report()["findings"]
    ]
    assert widths[1] > 2 * widths[0]


def test_new_and_gone_of_the_last_week(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet")
    for day, name in [(0, "straggler"), (1, "cpu_bound"), (3, "straggler"), (9, "tiny_kernels"),
                      (10, "cpu_bound"), (15, "graph_break"), (15, "tiny_kernels")]:  # fmt: skip
        fleet.add(MONDAY + timedelta(days=day), {name: 0.1})
    report = fleet.report()
    assert report["new"] == [
        {"type": "graph_break", "runs": 1},
        {"type": "tiny_kernels", "runs": 2},
    ]
    assert report["gone"] == [{"type": "straggler", "runs": 1}]


@pytest.mark.parametrize("bad", [None, 5])
def test_a_bad_host_is_found_and_no_other(tmp_path: Path, bad: int | None) -> None:
    chance = random.Random(4)
    fleet = Fleet(tmp_path / "fleet")
    for _ in range(200):
        hosts = chance.sample(range(40), 8)
        late = hosts.index(bad) if bad in hosts else -1
        if late < 0 and chance.random() < 0.3:
            late = chance.randrange(8)
        fleet.add(MONDAY, {}, hosts=[f"node{host}" for host in hosts], late=late)
    assert [each["host"] for each in fleet.report()["hosts"]] == ([f"node{bad}"] if bad else [])


def test_views_by_team_and_tag_and_what_to_gain(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet")
    fleet.store.create({"sources": [], "tags": ["cluster=x"]})
    fleet.add(MONDAY, {"cpu_bound": 0.5}, team="a", hours=10.0, tags='{"cluster": "east"}')
    best = fleet.add(MONDAY, {"cpu_bound": 0.1, "straggler": 0.3}, team="b", hours=100.0)
    for _ in range(2):
        fleet.add(MONDAY, {}, unchecked='{"straggler": ["collectives"]}')
    report = fleet.report()
    assert [each["value"] for each in report["by"]["team"]] == ["b", "a"]
    assert [each["value"] for each in report["by"]["cluster"]] == ["east"]
    assert report["by"]["team"][0]["findings"][0] == {"type": "straggler", "gpu_hours": 30.0}
    assert report["most_to_gain"][0]["run"] == best
    assert report["most_to_gain"][0]["type"] == "straggler"
    assert report["most_to_gain"][0]["gpu_hours"] == pytest.approx(15.0)
    assert report["coverage"]["missing_signals"] == [{"signal": "collectives", "runs": 2}]


def test_an_empty_corpus_has_a_report(tmp_path: Path) -> None:
    report = Fleet(tmp_path / "fleet").report()
    assert (report["runs"], report["findings"], report["trends"]) == (0, [], [])
    assert "0 runs" in report_html(report)


def test_text_of_traces_is_text_on_the_page(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet")
    hostile = "<script>alert(1)</script>|`x`\n# y\u202e[z](http:z)"
    fleet.add(MONDAY, {"cpu_bound": 0.5}, team=hostile)
    report = fleet.report()
    page = report_html(report)
    assert "<script>" not in page and "\u202e" not in page
    markdown = report_markdown(report)
    assert "<script>" not in markdown
    assert "\n# y" not in markdown
    assert "[z]" not in markdown and "\u202e" not in markdown


def test_similar_runs_say_who_is_faster_and_why(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet")
    mine = fleet.add(MONDAY, {"compute": 0.5, "host": 0.5})
    near = fleet.add(MONDAY, {"compute": 0.6, "host": 0.4}, step_ns=900_000)
    fleet.add(MONDAY, {"communication": 1.0})
    fleet.report()
    found = similar_runs(fleet.folder, mine)
    first = found.records()[0]
    assert (first["run"], len(found)) == (near, 2)
    assert (first["step_ratio"], first["distance"]) == pytest.approx((0.9, 0.2))
    assert first["differs"] in ("time.compute", "time.host")
    with pytest.raises(OptionError, match="has no run"):
        similar_runs(fleet.folder, "nothing")


def test_the_commands_of_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(tmp_path / "fleet")
    run = fleet.add(MONDAY, {"cpu_bound": 0.5})
    fleet.add(MONDAY, {"cpu_bound": 0.4})
    fleet.report()
    assert main(["corpus", "report", fleet.folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "torchtraceap.corpus/1"
    page = tmp_path / "fleet.html"
    assert main(["corpus", "report", fleet.folder, "--html", str(page)]) == 0
    assert "cpu_bound" in page.read_text()
    assert main(["corpus", "report", fleet.folder]) == 0
    assert main(["corpus", "report", fleet.folder, "--markdown"]) == 0
    assert "| cpu_bound |" in capsys.readouterr().out
    assert main(["corpus", "similar", fleet.folder, run, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 1


def test_runs_of_a_job_share_its_hours(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet")
    for number in range(4):
        fleet.add(MONDAY, {"cpu_bound": 0.5}, job=f"j{number // 3}", tags='{"billed": "60"}')
    fleet.add(MONDAY, {"cpu_bound": 0.5}, hours=7.0)
    fleet.report()
    report = build_report(fleet.folder, gpu_hours="billed")
    assert report["gpu_hours"] == pytest.approx(60 + 60 + 7)
    assert report["findings"][0]["gpu_hours"] == pytest.approx(63.5)
    with pytest.raises(OptionError, match="no column or tag is named 'nothing'"):
        build_report(fleet.folder, gpu_hours="nothing")


def test_releases_are_compared_by_model_and_by_job(tmp_path: Path) -> None:
    chance = random.Random(5)
    fleet = Fleet(tmp_path / "fleet")
    for number in range(80):
        model, release = f"m{number % 2}", "old" if number < 40 else "new"
        slower = 1.3 if (model, release) == ("m1", "new") else 1.0
        step_ns = int(1e7 * (1 + number % 2) * slower * chance.uniform(0.97, 1.03))
        costs = {"graph_break": 0.3} if slower > 1 else {"cpu_bound": 0.1}
        fleet.add(MONDAY, costs, model=model, step_ns=step_ns, tags=json.dumps({"rel": release}))
    fleet.report()
    first, second = build_report(fleet.folder, between=("rel", "old", "new"))["regressions"]
    assert (first["model"], first["grown"], first["runs_before"]) == ("m1", "graph_break", 20)
    assert first["low"] < 1.3 < first["high"]
    assert first["low"] > 1.2
    assert second["low"] < 1.0 < second["high"]
    with pytest.raises(OptionError, match="no model has runs with 'old' and with 'none'"):
        build_report(fleet.folder, between=("rel", "old", "none"))


@pytest.mark.parametrize("bad", [None, 5])
def test_a_slow_link_shows_as_a_node(tmp_path: Path, bad: int | None) -> None:
    chance = random.Random(4)
    fleet = Fleet(tmp_path / "fleet")
    for _ in range(120):
        hosts = chance.sample(range(30), 4)
        size, speed = chance.choice([(1 << 20, 40.0), (1 << 26, 200.0)])
        speed *= chance.uniform(0.8, 1.2) * (0.4 if bad in hosts else 1.0)
        collectives = [{"kind": "all_reduce", "group_size": 32, "node_span": 4, "bytes": size,
                        "bus_bandwidth_gb_per_s": speed}] * 3  # fmt: skip
        fleet.add(MONDAY, {}, hosts=[f"node{host}" for host in hosts], collectives=collectives)
    found = fleet.report()["links"]
    assert [each["host"] for each in found] == ([f"node{bad}"] if bad else [])
    assert all(each["share_of_usual"] < 0.6 for each in found)


def test_kernels_by_hours_and_their_share_of_the_roofline(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet")
    for number in range(4):
        kernels = [{"name": "gemm", "class": "compute", "exclusive_ns": 5 * 10**8},
                   {"name": "add", "class": "compute", "exclusive_ns": 10**8}]  # fmt: skip
        roofline = [{"kernel": "gemm", "count": 2, "gpu_ns": 10**6, "roofline_ns": 4e5}]
        device = "H100" if number else "A100"
        fleet.add(MONDAY, {}, hours=10.0, device=device, kernels=kernels, roofline=roofline)
    first, *_, last = fleet.report()["kernels"]
    assert (first["kernel"], first["gpu"], first["runs"]) == ("gemm", "H100", 3)
    assert first["gpu_hours"] == pytest.approx(15.0)
    assert first["roofline_share"] == pytest.approx(0.8)
    assert (last["kernel"], last["gpu"], last["roofline_share"]) == ("add", "A100", None)
