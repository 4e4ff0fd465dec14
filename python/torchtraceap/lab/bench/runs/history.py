"""History of stored runs over time, with the places where their times step.

Note [Where it stepped]: a run counts with the logarithm of its median. The noise from run to run is
known from differences of neighbours (their median absolute deviation), which steps hardly touch.
`ruptures` (PELT, squared error) then cuts the series where that pays: each step costs as much as it
would gain by chance, a multiple of log n as in the Bayesian information criterion. Single runs that
stand out are drawn towards their neighbours first. A cut stands only if the runs on both sides,
up to the next cut, differ by the exact rank sum test and by more than the minimal effect; cuts that
do not are taken out one by one, the weakest first.

Note [Series]: runs of one name, one configuration and one kind of machine. Commit and versions may
change inside, and are told where they do: that is what a history is for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from torchtraceap.core import Array, PathLike, Result, dataclass, format_ns
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.bench.processes.environment import MOMENTARY
from torchtraceap.lab.bench.runs.run_store import Store, StoredRun
from torchtraceap.lab.bench.statistics.rank_tests import rank_sum_p, shift, shift_interval
from torchtraceap.tables import NORMAL_MAD

__all__ = [
    "History",
    "Point",
    "Step",
    "find_steps",
    "histories",
    "history_html",
    "history_text",
    "sparkline",
]

PENALTY = 3.0
"""Gain in squared standard deviations that a step needs, in multiples of log n: 2 is the
criterion's own for a place and a level; the rest is for tails heavier than normal
(docs/comparing.md states the rate of false steps)."""
STEP_P = 0.02
"""Significance level of the rank sum test at a step. With 5 runs on either side, 0.008 is the
smallest possible p value."""
LEAST_RUNS = 3
"""The fewest runs between two steps."""
LEAST_SIGMA = 1e-4
"""The smallest standard deviation of logarithms, which clocks cannot undercut."""
CLIPPED_AT = 3.0
"""Standard deviations from the median of five neighbors to which an outlier is clipped."""
INTERVAL_ERROR = 0.05

_BARS = "▁▂▃▄▅▆▇█"
MOST_BARS = 60


@dataclass(frozen=True, slots=True)
class Point(Result):
    """One run of a series."""

    id: str
    when: str
    median_ns: int
    commit: str | None
    torch: str | None


@dataclass(frozen=True, slots=True)
class Step(Result):
    """A step of a series."""

    place: int
    """Index of the first run after the step."""
    when: str
    change: float
    """Change between the runs on either side, after / before - 1."""
    low: float | None
    high: float | None
    p: float
    before_ns: int
    """Median of the runs up to the step before."""
    after_ns: int
    environment: tuple[dict[str, Any], ...]
    """Environment values that changed with the step: key, before, after."""


@dataclass(frozen=True)
class History(Result):
    """The history of one workload on one machine."""

    name: str
    config_hash: str
    machine: str
    points: tuple[Point, ...]
    steps: tuple[Step, ...]
    sigma: float | None
    """Standard deviation from run to run as a fraction; None with fewer than three runs."""


def histories(
    store: PathLike | None = None, *, name: str | None = None, minimal_effect: float = 0.02
) -> list[History]:
    """Return the series that a store holds, of one name if it is given. Smaller steps than the
    minimal effect are not told.

    Raises:
        OptionError: There are no such runs.
        MissingDependencyError: ruptures or pyarrow is not installed.
        StoreError: A run is damaged.
    """
    kept = Store(store)
    runs = kept.runs(name=name)
    if not runs:
        what = f"there is no run {name!r}" if name else "there are no runs"
        raise OptionError(f"{kept.folder}: {what}")
    series: defaultdict[tuple[str, str, str], list[StoredRun]] = defaultdict(list)
    for run in runs:
        series[run.name, run.config_hash, machine_of(run.environment)].append(run)
    return [_history(key, part, minimal_effect) for key, part in series.items()]


def machine_of(environment: Mapping[str, Any]) -> str:
    """Describe the kind of machine, which may not change inside a series."""
    cpu = environment.get("cpu") or {}
    gpus = [gpu.get("name") for gpu in environment.get("gpus") or [] if isinstance(gpu, dict)]
    words = [str(cpu.get("model") or "unknown processor")]
    words += [f"{cpu.get('allowed_cores')} cores"] if cpu.get("allowed_cores") else []
    words += [str(gpu) for gpu in gpus if gpu]
    return ", ".join(words)


def _history(
    key: tuple[str, str, str], runs: Sequence[StoredRun], minimal_effect: float
) -> History:
    points: list[Point] = []
    environments: list[dict[str, Any]] = []
    for run in runs:
        samples, environment = run.samples, run.environment
        for mode in dict.fromkeys(("fenced", *samples.mode)):  # fenced steps if there are any
            medians = [float(np.median(ns)) for ns in samples.of(mode) if len(ns)]
            if medians:
                ns = max(1, round(float(np.median(medians))))
                git, torch = environment.get("git") or {}, environment.get("torch") or {}
                points.append(Point(run.id, run.when, ns, git.get("commit"), torch.get("version")))
                environments.append(_flat({**environment, MOMENTARY: None}))
                break
    logs = np.log([point.median_ns for point in points])
    places = find_steps(logs, minimal_effect=minimal_effect)
    steps = []
    for number, place in enumerate(places):
        before, after = _sides(logs, places, number)
        low, high = shift_interval(before, after, INTERVAL_ERROR)
        was, now = environments[place - 1], environments[place]
        steps.append(
            Step(
                place=place,
                when=points[place].when,
                change=math.expm1(shift(before, after)),
                low=math.expm1(low) if math.isfinite(low) else None,
                high=math.expm1(high) if math.isfinite(high) else None,
                p=rank_sum_p(before, after),
                before_ns=round(math.exp(float(np.median(before)))),
                after_ns=round(math.exp(float(np.median(after)))),
                environment=tuple(
                    {"key": key, "before": was.get(key), "after": now.get(key)}
                    for key in dict.fromkeys([*was, *now])
                    if was.get(key) != now.get(key)
                ),
            )
        )
    sigma = float(noise(logs)) if len(logs) > 2 else None
    return History(*key, tuple(points), tuple(steps), sigma)


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        parts = [_flat(each, f"{key}.{name}" if key else str(name)) for name, each in value.items()]
        return {name: each for part in parts for name, each in part.items()}
    if isinstance(value, (list, tuple)) and any(isinstance(each, Mapping) for each in value):
        return _flat({str(place): each for place, each in enumerate(value)}, key)
    return {key: value}


# ---------------------------------------------------------------------------------- steps


def noise(logs: Array) -> float:
    """Return a robust standard deviation from run to run, from differences of neighbors."""
    if len(logs) < 2:
        return LEAST_SIGMA
    differences = np.diff(logs)
    # A drift shifts all differences equally.
    away = np.abs(differences - np.median(differences))
    return max(LEAST_SIGMA, NORMAL_MAD * float(np.median(away)) / math.sqrt(2))


def find_steps(logs: Array, *, minimal_effect: float = 0.02) -> list[int]:
    """Find the steps of a series, as indices of the first run after each step.

    Args:
        logs: Logarithms of what runs took, in order of time, float64 `[runs]`.
        minimal_effect: Fraction; smaller steps are not told.

    Raises:
        MissingDependencyError: ruptures is not installed.
    """
    values = np.asarray(logs, np.float64)
    if len(values) < 2 * LEAST_RUNS:
        return []
    try:
        import ruptures
    except ImportError as error:
        raise MissingDependencyError(
            "steps of a history are found by ruptures: pip install 'torchtraceap[bench]'"
        ) from error
    sigma = noise(values)
    # Runs that stand out from their neighbors are clipped, because they are no step.
    padded = np.pad(values, 2, mode="edge")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=-1)
    clipped = np.clip(values, around - CLIPPED_AT * sigma, around + CLIPPED_AT * sigma)
    search = ruptures.Pelt(model="l2", min_size=LEAST_RUNS, jump=1)
    cuts = search.fit((clipped / sigma)[:, None]).predict(pen=PENALTY * math.log(len(values)))
    places = [int(place) for place in cuts[:-1]]
    while places:
        failing = []
        for number in range(len(places)):
            before, after = _sides(values, places, number)
            p = rank_sum_p(before, after)
            if p > STEP_P or abs(math.expm1(shift(before, after))) < minimal_effect:
                failing.append((p, number))
        if not failing:
            break
        places.pop(max(failing)[1])  # the weakest
    return places


def _sides(values: Array, places: Sequence[int], number: int) -> tuple[Array, Array]:
    """Return the runs before and after a step, up to the next steps."""
    begin = places[number - 1] if number else 0
    end = places[number + 1] if number + 1 < len(places) else len(values)
    return values[begin : places[number]], values[places[number] : end]


# ---------------------------------------------------------------------------------- shown


def sparkline(values: Sequence[float], most: int = MOST_BARS) -> str:
    """Draw values as bars, only the last `most` of them."""
    shown = list(values)[-most:]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    if high <= low:
        return _BARS[3] * len(shown)
    steps = len(_BARS) - 1
    return "".join(_BARS[round(steps * (value - low) / (high - low))] for value in shown)


def history_text(found: Sequence[History]) -> str:
    """Format series for a terminal."""
    return "\n\n".join("\n".join(_lines(series)) for series in found)


def _lines(series: History) -> Iterator[str]:
    points = series.points
    yield f"{series.name} ({series.config_hash[:10]}), {series.machine}"
    if not points:
        yield "  no run has samples"
        return
    values = [math.log(point.median_ns) for point in points]
    spread = f", {100 * series.sigma:.2g} % from run to run" if series.sigma is not None else ""
    runs = f"{len(points)} run{'s' * (len(points) != 1)}"
    first, last = format_ns(points[0].median_ns), format_ns(points[-1].median_ns)
    yield f"  {sparkline(values)}  {first} → {last}, {runs}{spread}"
    for step in series.steps:
        point = points[step.place]
        interval = (
            f" ({100 * step.low:+.1f} to {100 * step.high:+.1f})"
            if step.low is not None and step.high is not None
            else ""
        )
        yield f"  {step.when}  {100 * step.change:+.1f} %{interval}  at run {point.id[:10]}, " \
              f"{format_ns(step.before_ns)} → {format_ns(step.after_ns)}"  # fmt: skip
        for change in step.environment:
            yield f"    {change['key']}: {_short(change['before'])} → {_short(change['after'])}"
    if not series.steps:
        few = len(points) < 2 * LEAST_RUNS
        yield f"  too few runs for steps: {2 * LEAST_RUNS} are needed" if few else "  no steps"


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def history_html(found: Sequence[History]) -> str:
    """Return an HTML page with a chart of each series, without scripts."""
    body = "\n".join(
        f"<h2>{escape(series.name)}</h2>\n{_chart(series)}\n<pre>"
        + escape("\n".join(_lines(series)))
        + "</pre>"
        for series in found
    )
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>History</title>\n'
        "<style>body{font:14px sans-serif;margin:2em;max-width:60em}"
        "circle{fill:#46c}line{stroke:#c33;stroke-dasharray:4}polyline{fill:none;stroke:#888}"
        f"text{{font-size:11px}}</style>\n<body>\n{body}\n</body></html>\n"
    )


_WIDTH, _HEIGHT, _MARGIN = 800, 160, 20


def _chart(series: History) -> str:
    points = series.points
    if not points:
        return ""
    ms = [point.median_ns / 1e6 for point in points]
    low, high = min(ms), max(ms)
    spread = (high - low) or max(high, 1e-9)
    across = (_WIDTH - 2 * _MARGIN) / max(1, len(ms) - 1)

    def x(place: float) -> float:
        return round(_MARGIN + place * across, 1)

    def y(value: float) -> float:
        return round(_HEIGHT - _MARGIN - (value - low) / spread * (_HEIGHT - 2 * _MARGIN), 1)

    line = " ".join(f"{x(i)},{y(value)}" for i, value in enumerate(ms))
    dots = "".join(
        f'<circle cx="{x(i)}" cy="{y(value)}" r="3"><title>{escape(points[i].id[:10])} '
        f"{escape(points[i].when)}: {value:.4g} ms</title></circle>"
        for i, value in enumerate(ms)
    )
    steps = "".join(
        f'<line x1="{x(step.place - 0.5)}" x2="{x(step.place - 0.5)}" y1="0" y2="{_HEIGHT}">'
        f"<title>{100 * step.change:+.1f} %</title></line>"
        for step in series.steps
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" role="img" aria-label="median step '
        f'over runs"><polyline points="{line}"/>{steps}{dots}<text x="0" y="10">{high:.4g} ms'
        f'</text><text x="0" y="{_HEIGHT - 4}">{low:.4g} ms</text></svg>'
    )
