"""The report says what a fleet loses, on what, since when and whose: one document of a corpus.

Note [Intervals]: a job counts with the GPU hours of its runs. Intervals are what 90 % of resampled
fleets give: each job comes a random number of times (Poisson of mean 1), so runs of one job stay
together.

Note [Onset]: for each finding the share of GPU time that it costs is a series over the runs in
order of time: of all runs, and of those of each team, model, device and version. Its statistic is
the largest standardized difference of the runs before and behind any place of any series, and the
series with that place is what the step is told of, or a smaller one with all runs that have the
finding behind it. It stands if hardly any reordering of the runs
has as large a one: p is at most 0.01 over the number of findings, from 2,000 random orders or more.
The step is where it is likeliest, by how many runs have the finding (binomial) and by what it costs
those (normal). A step of a cost that other findings claim, which stepped there in the same week, is
theirs. Of more than 4,000 runs the means of neighbors count.

Note [Hosts]: if hosts are alike, the straggler of a job is any of its ranks with the same chance. A
host is bad if its ranks are it so much more often that chance explains it with p at most 0.05 over
the number of hosts (binomial).

Note [Links]: a job's collectives are compared with the median of those of the same kind, size,
group and device in all jobs, and a host with all jobs that it has no part in, by ranks (Wilcoxon,
normal approximation, p at most 0.05 over the number of hosts). The worst is told first; its jobs
are then left out, or it would blame the hosts that it works with.
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import encode_texts
from torchtraceap.core.formatting import escape_markdown, replace_controls
from torchtraceap.core.records import dataclass
from torchtraceap.core.stored import parse_json
from torchtraceap.core.table import ColumnTable
from torchtraceap.corpus.analyse import COLUMNS, number_of
from torchtraceap.corpus.query import connect
from torchtraceap.corpus.sources import tag_names
from torchtraceap.corpus.store import SCHEMA, Store
from torchtraceap.errors import OptionError

__all__ = ["build_report", "report_html", "report_markdown", "similar_runs"]

RESAMPLES = 400
ORDERS, ORDERS_AT_ONCE = 2000, 100
HOST_ERROR, ONSET_ERROR = 0.05, 0.01
MOST_POINTS = 4000
LEAST_RUNS = 5
"""The fewest runs on either side of an onset."""
MOST_LISTED = 10
WEEK_DAYS = 7

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Fleet:
    """The runs in order of time, and what each finding costs in each."""

    runs: Sequence[Json]
    lost: Mapping[str, Array]
    """Share of the run's GPU time by type, float64 `[runs]`."""
    own: Mapping[str, Array]
    """The part of `lost` that no finding ranked before it claims."""
    saved: Mapping[str, Array]
    titles: Mapping[str, tuple[str, str]]
    """The title and the most frequent fix by type."""

    @property
    def hours(self) -> Array:
        return np.array([run["gpu_hours"] or 0.0 for run in self.runs])

    @property
    def days(self) -> list[str]:
        return [run["day"] for run in self.runs]


def build_report(
    folder: str, *, gpu_hours: str = "", between: tuple[str, str, str] | None = None
) -> Json:
    """Return the document `torchtraceap.corpus/1` of a corpus (docs/corpus.md).

    Args:
        folder: The corpus.
        gpu_hours: The column or tag with the GPU hours of a job, which its runs share. By default
            each run counts with its own.
        between: A column or tag and two of its values: runs of the first are compared with those of
            the second.

    Raises:
        OptionError: It is no corpus, or has no such column or no such runs.
        MissingDependencyError: DuckDB or pyarrow is not installed.
    """
    connection = connect(folder)
    try:
        fleet = _read(connection, gpu_hours)
        failures = _records(
            connection, "select path, code, message from failures order by code, path"
        )
        ranks = _records(
            connection,
            "select run, rank, name, text from facts where subject = 'rank' "
            "and name in ('host', 'verdict')",
        )
        kernels = _records(
            connection,
            "select * from kernel_hours where gpu_hours > 0 "
            f"order by gpu_hours desc, gpu, kernel limit {MOST_LISTED}",
        )
        speeds = connection.execute(
            "select run, median(share_of_usual) from collective_speeds "
            f"where alike >= {LEAST_RUNS} group by run order by run"
        ).fetchall()
    finally:
        connection.close()
    days = sorted(fleet.days)
    names = ["team", "model", "device"]
    names += tag_names(Store(folder).settings())
    kept = [n for n in dict.fromkeys(names) if n in ("team", "model", "device")
            or n not in COLUMNS["runs"]]  # fmt: skip
    return {
        "schema": SCHEMA,
        "runs": len(fleet.runs),
        "jobs": len({run["job"] for run in fleet.runs}),
        "gpu_hours": float(fleet.hours.sum()),
        "first_day": days[0] if days else None,
        "last_day": days[-1] if days else None,
        "failures": failures,
        "findings": _findings(fleet),
        "by": {name: _by(fleet, name) for name in kept},
        "most_to_gain": _most_to_gain(fleet),
        **_changes(fleet),
        "trends": _trends(fleet),
        "hosts": _hosts(ranks),
        "links": _links(ranks, speeds),
        "kernels": kernels,
        "regressions": _regressions(fleet, *between) if between else [],
        "coverage": _coverage(fleet, failures),
    }


def _records(connection: Any, query: str) -> list[Json]:
    result = connection.execute(query)
    names = [entry[0] for entry in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _read(connection: Any, gpu_hours: str = "") -> _Fleet:
    runs = _records(connection, "select * from runs order by recorded_ns, run")
    for run in runs:
        run.update(parse_json(run["tags"] or "{}", f"run {run['run']}: tags") | run)
    if gpu_hours:
        _weigh(runs, gpu_hours)
    place = {run["run"]: number for number, run in enumerate(runs)}
    lost: dict[str, Array] = defaultdict(lambda: np.zeros(len(runs)))
    own: dict[str, Array] = defaultdict(lambda: np.zeros(len(runs)))
    saved: dict[str, Array] = defaultdict(lambda: np.zeros(len(runs)))
    fixes: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    query = (
        "select run, type, cost_share, cost_share * unclaimed_cost_ns / nullif(cost_ns, 0), "
        "saving_share, title, fix from findings order by all"
    )
    result = connection.execute(query)
    while rows := result.fetchmany(50_000):
        for run, name, cost, mine, saving, title, fix in rows:
            if run in place:
                lost[name][place[run]] = cost or 0.0
                own[name][place[run]] = (cost if mine is None else mine) or 0.0
                saved[name][place[run]] = saving or 0.0
                fixes[name][title, fix] += 1
    return _Fleet(runs, lost, own, saved, {n: fixes[n].most_common(1)[0][0] for n in sorted(fixes)})


def _weigh(runs: Sequence[Json], column: str) -> None:
    """Let runs share the GPU hours that a column says of their job."""
    _check_column(runs, column)
    hours: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        value = number_of(run.get(column))
        if value is not None:
            hours[run["job"]].append(value)
    count = Counter(run["job"] for run in runs)
    for run in runs:
        if said := hours.get(run["job"]):
            run["gpu_hours"] = max(said) / count[run["job"]]


def _check_column(runs: Sequence[Json], column: str) -> None:
    known = sorted({name for run in runs for name in run})
    if runs and column not in known:
        raise OptionError(f"no column or tag is named {column!r}; there are {', '.join(known)}")


# ------------------------------------------------------------------------------ views


def _findings(fleet: _Fleet) -> list[Json]:
    """Return the findings by lost GPU hours, with intervals. See Note [Intervals]."""
    if not fleet.titles:
        return []
    hours, types = fleet.hours, list(fleet.titles)
    jobs = {job: number for number, job in enumerate(dict.fromkeys(r["job"] for r in fleet.runs))}
    of_run = np.array([jobs[run["job"]] for run in fleet.runs])
    table = np.zeros((len(jobs), len(types)))
    for column, name in enumerate(types):
        np.add.at(table[:, column], of_run, hours * fleet.lost[name])
    random = np.random.default_rng(0)
    sums = np.array([random.poisson(1.0, len(jobs)) @ table for _ in range(RESAMPLES)])
    low, high = np.quantile(sums, [0.05, 0.95], axis=0)
    found = []
    for column, name in enumerate(types):
        there = np.flatnonzero(fleet.lost[name] > 0)
        days = [fleet.runs[row]["day"] for row in there.tolist()] or [None]
        found.append(
            {
                "type": name,
                "title": fleet.titles[name][0],
                "fix": fleet.titles[name][1],
                "runs": len(there),
                "jobs": len(set(of_run[there].tolist())),
                "gpu_hours": float(table[:, column].sum()),
                "low": float(low[column]),
                "high": float(high[column]),
                "own_gpu_hours": float((hours * fleet.own[name]).sum()),
                "share": float(table[:, column].sum() / (hours.sum() or 1.0)),
                "saved_gpu_hours": float((hours * fleet.saved[name]).sum()),
                "first_seen": days[0],
                "last_seen": days[-1],
            }
        )
    return sorted(found, key=lambda each: (-each["gpu_hours"], each["type"]))


def _by(fleet: _Fleet, name: str) -> list[Json]:
    """Return GPU hours and lost ones by the values of a column or tag, the most first."""
    rows: dict[str, list[int]] = defaultdict(list)
    for number, run in enumerate(fleet.runs):
        if run.get(name) is not None:
            rows[str(run[name])].append(number)
    hours, found = fleet.hours, []
    for value, chosen in rows.items():
        lost = {n: float((hours * shares)[chosen].sum()) for n, shares in fleet.lost.items()}
        ranked = sorted(((h, n) for n, h in lost.items() if h > 0), reverse=True)
        found.append(
            {
                "value": value,
                "runs": len(chosen),
                "gpu_hours": float(hours[chosen].sum()),
                "findings": [{"type": n, "gpu_hours": h} for h, n in ranked[:MOST_LISTED]],
            }
        )
    return sorted(found, key=lambda each: (-each["gpu_hours"], each["value"]))


def _most_to_gain(fleet: _Fleet) -> list[Json]:
    """Return the runs whose best fix saves most GPU hours."""
    if not fleet.saved:
        return []
    types = list(fleet.saved)
    gains = np.array([fleet.hours * fleet.saved[name] for name in types])
    best = gains.argmax(axis=0)
    gain = gains.max(axis=0)
    order = [row for row in np.argsort(-gain, kind="stable")[:MOST_LISTED] if gain[row] > 0]
    return [
        {
            "run": fleet.runs[row]["run"],
            "path": fleet.runs[row]["path"],
            "gpu_hours": float(gain[row]),
            "share": float(fleet.saved[types[best[row]]][row]),
            "type": types[best[row]],
            "fix": fleet.titles[types[best[row]]][1],
        }
        for row in order
    ]


def _changes(fleet: _Fleet) -> Json:
    """Return the findings of the last week that were not there before, and the reverse."""
    days = fleet.days
    if not days:
        return {"new": [], "gone": []}
    newest = datetime.fromisoformat(max(days))
    begin, before = (
        (newest - timedelta(days=n * WEEK_DAYS - 1)).date().isoformat() for n in (1, 2)
    )
    last = np.array([day >= begin for day in days])
    previous = np.array([before <= day < begin for day in days])
    older = np.array([day < begin for day in days])
    new, gone = [], []
    for name in fleet.titles:
        there = fleet.lost[name] > 0
        if older.any() and (there & last).any() and not (there & older).any():
            new.append({"type": name, "runs": int((there & last).sum())})
        if last.any() and (there & previous).any() and not (there & last).any():
            gone.append({"type": name, "runs": int((there & previous).sum())})
    return {"new": new, "gone": gone}


def _trends(fleet: _Fleet) -> list[Json]:
    """Return where the cost of findings stepped. See Note [Onset]."""
    groups = _groups(fleet)
    # Enough that the smallest p can be below the bound.
    orders = max(ORDERS, int(2 * len(fleet.titles) / ONSET_ERROR))
    random = np.random.default_rng(0)
    found = []
    for name in fleet.titles:
        shares = fleet.lost[name]
        series = [_series(shares[group.rows], group) for group in groups]
        tops = [top for top, _ in series]
        if not max(tops, default=0.0):
            continue
        chosen = groups[int(np.argmax(tops))]
        above = 0
        for begin in range(0, orders, ORDERS_AT_ONCE):
            count = min(ORDERS_AT_ONCE, orders - begin)
            highest = np.zeros(count)
            for group, (top, values) in zip(groups, series, strict=True):
                if top:
                    drawn = random.permuted(np.broadcast_to(values, (count, len(values))), axis=1)
                    highest = np.maximum(highest, np.abs(_scores(drawn, group.places)).max(axis=1))
            above += int((highest >= max(tops)).sum())
            if above + 1 > (orders + 1) * ONSET_ERROR / len(fleet.titles):
                break
        else:
            chosen = _narrowed(groups, chosen, shares)
            mine = shares[chosen.rows]
            place = _likeliest(mine, chosen)
            day = fleet.runs[chosen.rows[place]]["day"]
            begun = datetime.fromisoformat(day)
            found.append(
                {
                    "type": name,
                    "since": day,
                    "week": (begun - timedelta(days=begun.weekday())).date().isoformat(),
                    "before_share": float(mine[:place].mean()),
                    "after_share": float(mine[place:].mean()),
                    "p": (above + 1) / (orders + 1),
                    "of": chosen.of,
                    "own_share": float(np.diff([fleet.own[name][chosen.rows][rows].mean()
                                                for rows in (np.s_[:place], np.s_[place:])])[0]),
                }
            )  # fmt: skip
    return _without_symptoms(found)


def _without_symptoms(trends: Sequence[Json]) -> list[Json]:
    """Return trends without those whose cost another one claims that stepped in the same week."""

    def is_claimed(trend: Json) -> bool:
        whole = trend["after_share"] - trend["before_share"]
        return bool(abs(trend["own_share"]) < abs(whole) / 2)

    return [
        {name: value for name, value in trend.items() if name != "own_share"}
        for trend in trends
        if not is_claimed(trend)
        or not any(
            (other["of"], other["week"]) == (trend["of"], trend["week"]) and not is_claimed(other)
            for other in trends
        )
    ]


@dataclass(frozen=True, slots=True)
class _Group:
    """Runs of which a cost may have stepped."""

    of: Json | None
    """The column and its value, or None for all runs."""
    rows: Array
    """Their places among the runs, in order of time."""
    begins: Array
    """The first of each point: of more than `MOST_POINTS` runs neighbors are one."""
    places: Array
    """Points before which a step may be: those of another time than the one before."""


def _groups(fleet: _Fleet) -> list[_Group]:
    """Return all runs, and those of each team, model, device and version; where there is one alone,
    it is no group."""
    found: list[tuple[Json | None, list[int]]] = [(None, list(range(len(fleet.runs))))]
    for name in ("team", "model", "device", "versions"):
        rows: dict[str, list[int]] = defaultdict(list)
        for number, run in enumerate(fleet.runs):
            if run[name] is not None:
                rows[run[name]].append(number)
        if len(rows) > 1:
            found += [({name: value}, chosen) for value, chosen in rows.items()]
    times = np.array([run["recorded_ns"] for run in fleet.runs])
    groups = []
    for of, chosen in found:
        begins = np.arange(0, len(chosen), max(1, -(-len(chosen) // MOST_POINTS)))
        places = np.arange(LEAST_RUNS, len(begins) - LEAST_RUNS + 1)
        when = times[np.array(chosen, dtype=np.int64)[begins]]
        places = places[when[places - 1] < when[places]]
        if len(places):
            groups.append(_Group(of, np.array(chosen), begins, places))
    return groups


def _narrowed(groups: Sequence[_Group], group: _Group, shares: Array) -> _Group:
    """Return the first smaller group that has every run with the finding behind a step of one."""
    behind = group.rows[_likeliest(shares[group.rows], group) :]
    having = behind[shares[behind] > 0]
    smaller = (
        each
        for each in groups
        if len(each.rows) < len(group.rows) and np.isin(having, each.rows).all()
    )
    return next(smaller, group)


def _series(shares: Array, group: _Group) -> tuple[float, Array]:
    """Return the largest score of a group, 0 where all is the same, and its standardized points."""
    means = np.add.reduceat(shares, group.begins)
    means /= np.diff(np.append(group.begins, len(shares)))
    spread = float(means.std())
    if spread == 0:
        return 0.0, means
    values = (means - means.mean()) / spread
    return float(np.abs(_scores(values, group.places)).max()), values


def _scores(values: Array, places: Array) -> Array:
    """Standardized difference of the means behind and before each place, `[..., places]`."""
    sums = np.cumsum(values, axis=-1)[..., places - 1]
    count = values.shape[-1]
    scores: Array = -sums * np.sqrt(count / (places * (count - places)))
    return scores


def _likeliest(shares: Array, group: _Group) -> int:
    """Return the place of a group's runs at which a step is likeliest, in how many of them have the
    finding and in what it costs those."""
    places = group.begins[group.places]
    there = shares > 0
    count = len(shares)
    having = np.cumsum(there)[places - 1]
    gain = _log_likelihood(having, places)
    gain += _log_likelihood(there.sum() - having, count - places)
    costs = shares[there]
    spread = float(costs.std()) if len(costs) else 0.0
    if spread:
        inner = (having > 0) & (having < len(costs))
        values = (costs - costs.mean()) / spread
        gain[inner] += 0.5 * _scores(values, having[inner]) ** 2
    return int(places[gain.argmax()])


def _log_likelihood(having: Array, count: Array) -> Array:
    """Return the largest log likelihood of so many among so many."""
    lacking = count - having
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(n > 0, n * np.log(n / count), 0.0) for n in (having, lacking)]
    return parts[0] + parts[1]


def _hosts(ranks: Iterable[Json]) -> list[Json]:
    """Return hosts whose ranks are late in more jobs than chance explains. See Note [Hosts]."""
    jobs: dict[str, dict[Any, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for row in ranks:
        jobs[row["run"]][row["rank"]][row["name"]] = row["text"]
    late: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    for of_job in jobs.values():
        hosts = Counter(rank["host"] for rank in of_job.values() if "host" in rank)
        if len(hosts) < 2:
            continue
        seen.update(hosts.keys())
        blamed = {r["host"] for r in of_job.values()
                  if r.get("verdict") == "straggler" and "host" in r}  # fmt: skip
        late.update(blamed)
        if blamed:
            for host, count in hosts.items():
                expected[host] += count / hosts.total()  # type: ignore[assignment]
    blames = sum(late.values())
    found = []
    for host, count in late.items():
        chance = expected[host] / max(1, sum(expected.values()))
        p = _tail(count, blames, chance)
        if p <= HOST_ERROR / max(1, len(seen)):
            found.append({"host": host, "jobs": seen[host], "late_jobs": count, "p": p})
    return sorted(found, key=lambda each: each["p"])


def _links(ranks: Iterable[Json], speeds: Iterable[tuple[str, float]]) -> list[Json]:
    """Return hosts whose jobs have slower collectives than others of the same size. See Note
    [Links]."""
    share = {run: value for run, value in speeds if value}
    members: dict[str, set[str]] = defaultdict(set)
    for row in ranks:
        if row["name"] == "host" and row["run"] in share:
            members[row["text"]].add(row["run"])
    hosts, found = len(members), []
    while members:
        runs = sorted(set().union(*members.values()))
        order = np.argsort(np.argsort([share[run] for run in runs], kind="stable")) + 1
        place = dict(zip(runs, order.tolist(), strict=True))
        tested = []
        for host, own in members.items():
            mine, others = len(own), len(runs) - len(own)
            if mine >= LEAST_RUNS and others >= LEAST_RUNS:
                spread = math.sqrt(mine * others * (len(runs) + 1) / 12)
                z = (sum(place[run] for run in own) - mine * (len(runs) + 1) / 2) / spread
                tested.append((0.5 * math.erfc(-z / math.sqrt(2)), host))
        p, host = min(tested, default=(1.0, ""))
        if p > HOST_ERROR / hosts:
            break
        slow = members.pop(host)
        typical = float(np.median([share[run] for run in slow]))
        found.append({"host": host, "jobs": len(slow), "share_of_usual": typical, "p": p})
        members = {each: own - slow for each, own in members.items() if own - slow}
    return found


def _regressions(fleet: _Fleet, column: str, before: str, after: str) -> list[Json]:
    """Return the step times of runs with one value of a column over those with another, for each
    model, device and number of ranks that both have, the slower first."""
    _check_column(fleet.runs, column)
    sides: dict[tuple[Any, ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, run in enumerate(fleet.runs):
        if run["step_ns"] and run.get(column) in (before, after):
            key = (run["model"], run["device"], run["ranks"])
            sides[key][run[column] == after].append(number)
    matched = {key: both for key, both in sides.items() if all(both)}
    if not matched:
        raise OptionError(f"{column}: no model has runs with {before!r} and with {after!r}")
    random = np.random.default_rng(0)
    found = []
    for (model, device, ranks), both in matched.items():
        drawn = []
        for rows in both:
            jobs: dict[str, list[int]] = defaultdict(list)
            for row in rows:
                jobs[fleet.runs[row]["job"]].append(fleet.runs[row]["step_ns"])
            # A job counts once, however often it was recorded.
            each = np.array([np.median(steps) for steps in jobs.values()])
            picks = random.integers(0, len(each), (RESAMPLES, len(each)))
            drawn.append((float(np.median(each)), np.median(each[picks], axis=1)))
        (old_ns, old), (new_ns, new) = drawn
        low, high = np.quantile(new / old, [0.05, 0.95])
        grown = {name: float(lost[both[1]].mean() - lost[both[0]].mean())
                 for name, lost in fleet.own.items()}  # fmt: skip
        most = max(grown, key=lambda name: (grown[name], name), default=None)
        found.append(
            {"model": model, "device": device, "ranks": ranks,
             "runs_before": len(both[0]), "runs_after": len(both[1]),
             "step_before_ns": old_ns, "step_after_ns": new_ns,
             "ratio": new_ns / old_ns, "low": float(low), "high": float(high),
             "grown": most if most and grown[most] > 0 else None,
             "grown_share": max(0.0, grown[most]) if most else 0.0}
        )  # fmt: skip
    return sorted(found, key=lambda each: -each["ratio"])


def _tail(count: int, total: int, chance: float) -> float:
    """Return the chance of at least so many of a binomial."""
    if not 0 < chance < 1:
        return 1.0
    logs = [
        math.lgamma(total + 1) - math.lgamma(n + 1) - math.lgamma(total - n + 1)
        + n * math.log(chance) + (total - n) * math.log1p(-chance)
        for n in range(count, total + 1)
    ]  # fmt: skip
    return min(1.0, sum(map(math.exp, logs)))


def _coverage(fleet: _Fleet, failures: Sequence[Json]) -> Json:
    """Return what could not be checked, and which signals were missing, by runs."""
    types: Counter[str] = Counter()
    signals: Counter[str] = Counter()
    for run in fleet.runs:
        place = f"run {run['run']}: unchecked"
        unchecked: dict[str, list[str]] = parse_json(run["unchecked"] or "{}", place)
        types.update(unchecked.keys())
        signals.update({signal for missing in unchecked.values() for signal in missing})
    return {
        "analysed": len(fleet.runs),
        "failed": dict(Counter(each["code"] for each in failures).most_common()),
        "not_comparable": sum(not run["comparable"] for run in fleet.runs),
        "unchecked": [{"type": name, "runs": n} for name, n in types.most_common()],
        "missing_signals": [{"signal": name, "runs": n} for name, n in signals.most_common()],
    }


# ------------------------------------------------------------------------------ alike


def similar_runs(folder: str, run: str, most: int = MOST_LISTED) -> ColumnTable:
    """Return the runs whose time splits up most like that of a run, which of them is faster, and
    where the difference lies.

    Args:
        folder: The corpus.
        run: A run of it, by its key or by a path of one of its files.
        most: How many.

    Raises:
        OptionError: It is no corpus, or has no such run.
    """
    connection = connect(folder)
    try:
        runs = {r["run"]: r for r in _records(connection, "select * from runs")}
        facts = connection.execute(
            "select run, subject || '.' || name, value from facts "
            "where subject in ('time', 'idle') order by all"
        ).fetchall()
    finally:
        connection.close()
    paths = {run, os.path.abspath(run)}
    chosen = next((k for k, r in runs.items() if k == run or r["path"] in paths), None)
    if chosen is None:
        raise OptionError(f"{folder}: has no run {run!r}; corpus query lists run and path")
    names = {name: place for place, name in enumerate(sorted({name for _, name, _ in facts}))}
    shares = {key: np.zeros(len(names)) for key in runs}
    for key, name, value in facts:
        if key in shares:
            shares[key][names[name]] = (value or 0.0) / (runs[key]["profiled_ns"] or 1)
    mine = runs[chosen]
    order = sorted(
        (key for key in runs if key != chosen),
        key=lambda key: (
            float(np.abs(shares[key] - shares[chosen]).sum())
            + 0.5 * (runs[key]["device"] != mine["device"])
            + 0.5 * (runs[key]["role"] != mine["role"]),
            key,
        ),
    )
    chosen_runs = [runs[key] for key in order[:most]]
    apart = [shares[key] - shares[chosen] for key in order[:most]]
    worst = [int(np.abs(each).argmax()) for each in apart if len(each)]
    steps = [other["step_ns"] for other in chosen_runs]
    mine_ns = mine["step_ns"] or math.nan
    return ColumnTable(
        {
            "run": encode_texts(order[:most]),
            "path": encode_texts(other["path"] for other in chosen_runs),
            "distance": np.array([float(np.abs(each).sum()) for each in apart]),
            "step_ratio": np.array([(ns or math.nan) / mine_ns for ns in steps], dtype=float),
            "differs": encode_texts(list(names)[place] for place in worst),
            "difference": np.array([float(each[p]) for each, p in zip(apart, worst, strict=False)]),
            "lead": encode_texts(other["lead"] for other in chosen_runs),
        },
        facts={"of": chosen},
        notes=["step_ratio is the step of the other run over that of this one: below 1 is faster."],
    )


# ------------------------------------------------------------------------------ for people

_Table = tuple[str, Sequence[str], list[Sequence[Any]]]


def _tables(report: Mapping[str, Any]) -> list[_Table]:
    def hours(value: float) -> str:
        return f"{value:.3g}"

    def share(value: float) -> str:
        return f"{100 * value:.1f} %"

    tables: list[_Table] = [
        (
            "GPU hours lost by finding",
            ("finding", "runs", "GPU hours", "90 % interval", "its own", "of all", "saved", "first",
             "last"),
            [
                (f["type"], f["runs"], hours(f["gpu_hours"]),
                 f"{hours(f['low'])} to {hours(f['high'])}", hours(f["own_gpu_hours"]),
                 share(f["share"]),
                 hours(f["saved_gpu_hours"]), f["first_seen"], f["last_seen"])
                for f in report["findings"]
            ],
        ),
        (
            "Most to gain",
            ("run", "GPU hours", "of a step", "finding", "fix"),
            [
                (m["path"], hours(m["gpu_hours"]), share(m["share"]), m["type"], m["fix"])
                for m in report["most_to_gain"]
            ],
        ),
        (
            "Since when",
            ("finding", "since", "before", "after", "only in"),
            [
                (t["type"], t["since"], share(t["before_share"]), share(t["after_share"]),
                 ", ".join(f"{k} {v}" for k, v in (t["of"] or {}).items()))
                for t in report["trends"]
            ],
        ),
        (
            "Last week",
            ("finding", "runs", "is"),
            [(n["type"], n["runs"], "new") for n in report["new"]]
            + [(n["type"], n["runs"], "gone") for n in report["gone"]],
        ),
        (
            "Bad hosts",
            ("host", "jobs", "late in", "p"),
            [(h["host"], h["jobs"], h["late_jobs"], f"{h['p']:.1g}") for h in report["hosts"]],
        ),
        (
            "Slow links",
            ("host", "jobs", "bandwidth of the usual", "p"),
            [
                (n["host"], n["jobs"], share(n["share_of_usual"]), f"{n['p']:.1g}")
                for n in report["links"]
            ],
        ),
        (
            "Steps compared",
            ("model", "device", "ranks", "runs", "ratio", "90 % interval", "grew most"),
            [
                (r["model"], r["device"], r["ranks"], f"{r['runs_before']}, {r['runs_after']}",
                 f"{r['ratio']:.3f}", f"{r['low']:.3f} to {r['high']:.3f}", r["grown"])
                for r in report["regressions"]
            ],
        ),
        (
            "Kernels by GPU hours",
            ("kernel", "device", "runs", "GPU hours", "of the roofline"),
            [
                (k["kernel"], k["gpu"], k["runs"], hours(k["gpu_hours"]),
                 "" if k["roofline_share"] is None else share(k["roofline_share"]))
                for k in report["kernels"]
            ],
        ),
    ]  # fmt: skip
    for name, rows in report["by"].items():
        tables.append(
            (
                f"By {name}",
                (name, "runs", "GPU hours", "lost most on"),
                [
                    (r["value"], r["runs"], hours(r["gpu_hours"]),
                     ", ".join(f"{f['type']} ({hours(f['gpu_hours'])})"
                               for f in r["findings"][:3]))
                    for r in rows
                ],
            )
        )  # fmt: skip
    coverage = report["coverage"]
    tables.append(
        (
            "Could not be checked",
            ("what", "runs"),
            [(f"{name}: failed", n) for name, n in coverage["failed"].items()]
            + [(each["signal"], each["runs"]) for each in coverage["missing_signals"]],
        )
    )
    return [table for table in tables if table[2]]


def _headline(report: Mapping[str, Any]) -> str:
    lost = report["findings"]
    first = f"; most on {lost[0]['type']}, {lost[0]['gpu_hours']:.3g}" if lost else ""
    return (
        f"{report['runs']} runs of {report['jobs']} jobs, {report['gpu_hours']:.3g} GPU hours, "
        f"{report['first_day']} to {report['last_day']}; {len(report['failures'])} failed{first}"
    )


def report_markdown(report: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""

    def cell(value: Any) -> str:
        text = "" if value is None else " ".join(str(value).split())
        return escape_markdown(text)

    lines = ["# Fleet", "", _headline(report)]
    for title, names, rows in _tables(report):
        lines += ["", f"## {title}", "", "| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
        lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    return "\n".join(lines)


_STYLE = """body{font:14px system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em}
table{border-collapse:collapse;margin-bottom:2em}td,th{padding:.3em .8em;text-align:left;
border-bottom:1px solid #8884;vertical-align:top;overflow-wrap:anywhere}
:root{color-scheme:light dark}"""


def report_html(report: Mapping[str, Any]) -> str:
    """Return the report as one page without scripts."""

    def row(cells: Iterable[Any], tag: str) -> str:
        texts = ("" if value is None else escape(replace_controls(str(value))) for value in cells)
        return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>"

    parts = [
        f"<h2>{escape(title)}</h2>\n<table>{row(names, 'th')}\n"
        + "\n".join(row(cells, "td") for cells in rows)
        + "</table>"
        for title, names, rows in _tables(report)
    ]
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Fleet</title>\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<style>{_STYLE}</style>\n<h1>Fleet</h1>\n<p>{escape(_headline(report))}</p>\n"
        + "\n".join(parts)
        + "\n</html>\n"
    )
