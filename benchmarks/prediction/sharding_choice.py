"""How often the sharding that is predicted fastest is, on the machine of sharding_truth.py."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from sharding_truth import Machine, draw_task, measured_ns

from torchtraceap.lab.sharding import Cluster, choose_sharding
from torchtraceap.lab.sharding.sharders import PUBLISHED_SHARDERS
from torchtraceap.ops.devices import load_devices

PLATFORMS = ("v100_sxm2_32gb", "a100_sxm_40gb")
RANKS = 4
BATCH = 1024
"""Of one rank: the source's 4,096 over four."""
DENSE_NS = 1_500_000.0
TASKS = 10
"""For each platform, half of each year's histograms."""
FIRST_SEED = 5_000
"""Seeds below were looked at while the models were made."""
_SHARE = re.compile(r"^\(.*\]?: ([0-9.]+)$")


@dataclass(frozen=True)
class Choice:
    """One task."""

    platform: str
    year: int
    seed: int
    tables: int
    predicted_ns: dict[str, float]
    measured_ns: dict[str, float]
    chosen_of_seven: str
    fastest_of_seven: str
    is_right: bool
    """The same, or one that places all tables alike."""
    is_repeated: bool
    """Measured a second time, the same of the seven is the fastest: what noise allows."""
    regret: float
    """Of the chosen of the seven against the fastest of them."""
    search_gain: float
    """Of the search against the fastest of the seven, measured; negative is slower."""


def read_blocks(path: Path) -> list[np.ndarray]:
    """The histograms of a file of locality statistics, 17 shares of distinct rows each."""
    blocks: list[list[float]] = []
    inside = False
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("Histogram of col sizes"):
            blocks.append([])
            inside = True
        elif inside and (found := _SHARE.match(line.strip())):
            blocks[-1].append(float(found[1]))
        else:
            inside = False
    return [np.array(block) for block in blocks if len(block) == 17]


def measure(
    folder: Path, tasks: int = TASKS, first_seed: int = FIRST_SEED, *, drawn: bool = True
) -> list[Choice]:
    """Tasks of both platforms and both years, on machines that are drawn or as published."""
    found = []
    for number, platform in enumerate(PLATFORMS):
        for task in range(tasks):
            year = 2021 + task % 2
            blocks = read_blocks(folder / f"locality_stats_{year}.txt")
            seed = first_seed + 1000 * number + task
            found.append(_choice(platform, year, seed, blocks, drawn))
    return found


def _choice(platform: str, year: int, seed: int, blocks: list[np.ndarray], drawn: bool) -> Choice:
    device = load_devices()[platform]
    random = np.random.default_rng(seed)
    tables = draw_task(blocks, device, BATCH * RANKS, random)
    choice = choose_sharding(
        [true.table for true in tables], Cluster(device, RANKS), batch=BATCH, dense_ns=DENSE_NS,
        seed=seed,
    )  # fmt: skip
    machine = Machine.drawn(device, random) if drawn else Machine.published(device)
    predicted = {one.sharder: one.step_ns for one in choice.ranking}
    measured, again = (
        {
            one.sharder: measured_ns(one, tables, machine, BATCH, DENSE_NS, random)
            for one in choice.ranking
        }
        for _ in range(2)
    )
    places = {one.sharder: [load.parts for load in one.ranks] for one in choice.ranking}
    of_seven = [name for name in PUBLISHED_SHARDERS if name in predicted]
    chosen = min(of_seven, key=predicted.__getitem__)
    fastest = min(of_seven, key=measured.__getitem__)
    return Choice(
        platform=platform,
        year=year,
        seed=seed,
        tables=len(tables),
        predicted_ns=predicted,
        measured_ns=measured,
        chosen_of_seven=chosen,
        fastest_of_seven=fastest,
        is_right=places[chosen] == places[fastest],
        is_repeated=places[min(of_seven, key=again.__getitem__)] == places[fastest],
        regret=measured[chosen] / measured[fastest] - 1.0,
        search_gain=1.0 - measured["search"] / measured[fastest],
    )


def summary(found: list[Choice]) -> dict[str, float | int]:
    """What all tasks come to."""
    with_search = [one.measured_ns["search"] <= min(one.measured_ns.values()) for one in found]
    errors = [
        abs(one.predicted_ns[name] / one.measured_ns[name] - 1.0)
        for one in found for name in one.predicted_ns
    ]  # fmt: skip
    by_rule = {
        name: sum(one.fastest_of_seven == name for one in found) for name in PUBLISHED_SHARDERS
    }
    return {
        "tasks": len(found),
        "right": sum(one.is_right for one in found),
        "repeated": sum(one.is_repeated for one in found),
        "mean_regret": float(np.mean([one.regret for one in found])),
        "largest_regret": float(max(one.regret for one in found)),
        "search_is_fastest": sum(with_search),
        "mean_search_gain": float(np.mean([one.search_gain for one in found])),
        "least_search_gain": float(min(one.search_gain for one in found)),
        "step_error": float(np.mean(errors)),
        **{f"fastest_is_{name}": count for name, count in by_rule.items()},
    }


def as_records(found: list[Choice]) -> list[dict[str, object]]:
    """For the results' file."""
    return [asdict(one) for one in found]


if __name__ == "__main__":
    import sys

    begin = time.perf_counter()
    choices = measure(Path(sys.argv[1]), drawn="published" not in sys.argv[2:])
    for one in choices:
        print(one.platform, one.year, one.tables, one.chosen_of_seven, one.fastest_of_seven,
              one.is_right, f"{one.regret:.2%} {one.search_gain:.2%}")  # fmt: skip
    print(summary(choices), f"{time.perf_counter() - begin:.0f} s")
