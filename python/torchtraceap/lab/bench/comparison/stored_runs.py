"""Comparison of two stored runs, without running anything.

Note [No pairs]: what was measured in two sessions also differs by what the machine did in between,
and no statistic of the two can tell that from an effect. The test is exact for processes that could
have stood in any order; these could not. So a verdict here needs an estimate of the whole minimal
effect rather than half of it, and says what it is blind to. Alpha is spent at once.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from torchtraceap.core import Array
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.comparison.compare import (
    Comparison,
    CountChange,
    Evidence,
    apply_rules,
    build_evidence,
    fraction_from_log,
)
from torchtraceap.lab.bench.runs.run_store import MODES, Store, StoredRun
from torchtraceap.lab.bench.statistics.rank_tests import (
    least_rank_sum_p,
    rank_sum_p,
    shift,
    shift_interval,
)
from torchtraceap.lab.bench.statistics.sequential import (
    DEFAULT_ALPHA,
    DEFAULT_MINIMAL_EFFECT,
    Look,
    Plan,
)

__all__ = ["FEWEST_PROCESSES", "compare_stored", "compare_unpaired", "find_runs"]

_ID = re.compile(r"[0-9a-f]{4,16}")
FEWEST_PROCESSES = 4
"""The fewest processes per side that show how processes differ."""
_METHOD = (
    "exact Mann-Whitney test of the median steps of processes, Hodges-Lehmann interval; unpaired: "
    "blind to what the machine did between the two runs"
)
_BLIND = (
    "the runs were made at different times: how far the machine drifted in between can't be "
    "known, and a difference may be that drift; comparing two commands in turn tells them apart"
)


def find_runs(a: str, b: str, store: Store) -> tuple[StoredRun, StoredRun] | None:
    """Return the runs whose ids two words are; None if a word cannot be an id.

    Raises:
        OptionError: An id begins several runs, or one of the two is of no run.
        StoreError: A manifest is damaged.
    """
    ids = [path.stem for path in (store.folder / "runs").glob("*.json")]
    known = [
        bool(_ID.fullmatch(word)) and any(each.startswith(word) for each in ids) for word in (a, b)
    ]
    if not any(known):
        return None
    for word, is_known in zip((a, b), known, strict=True):
        if not is_known:
            raise OptionError(f"{word}: is no run of {store.folder}, though the other side is one")
    return store.load(a), store.load(b)


def compare_stored(
    run_a: StoredRun,
    run_b: StoredRun,
    *,
    minimal_effect: float = DEFAULT_MINIMAL_EFFECT,
    alpha: float = DEFAULT_ALPHA,
    causes: bool = True,
    reproduce: str = "",
) -> Comparison:
    """Compare two runs of the store, as far as runs without pairs allow it.

    The arguments are those of `compare`; `alpha` holds if nothing but the order of processes is
    random. With `causes` the kept traces are compared too.

    Raises:
        OptionError: They have no steps of the same mode.
        StoreError: An object of the store is missing or damaged.
    """
    plan = Plan(minimal_effect, alpha, (1,))
    for mode in MODES:
        before, after = (
            [np.maximum(ns.astype(np.float64), 1.0) for ns in run.samples.of(mode)]
            for run in (run_a, run_b)
        )
        if before and after:
            break
    else:
        raise OptionError(f"runs {run_a.id} and {run_b.id} have no steps that were measured alike")
    a_ns, b_ns = (np.array([np.median(ns) for ns in side]) for side in (before, after))
    look, why = compare_unpaired(np.log(a_ns), np.log(b_ns), plan)
    evidence = build_evidence(run_a.trace, run_b.trace, look) if causes else Evidence()
    if not evidence.counts:  # the traces were not compared: those of the manifests
        a, b = run_a.counts, run_b.counts
        counts = tuple(CountChange(key, a.get(key), b.get(key)) for key in {**a, **b})
        evidence = Evidence(counts, notes=evidence.notes)
    notes = [*([why] if why else []), _BLIND]
    if run_a.environment_hash != run_b.environment_hash:
        differing = ", ".join(_keys_that_differ(run_a.environment, run_b.environment))
        notes.append(f"the environments differ: {differing}")
    if run_a.config_hash != run_b.config_hash:
        differing = ", ".join(_keys_that_differ(run_a.config, run_b.config))
        notes.append(f"the configurations differ: {differing}")
    return Comparison(
        before=f"{run_a.name} ({run_a.id}, {run_a.when})",
        after=f"{run_b.name} ({run_b.id}, {run_b.when})",
        verdict=look.verdict,
        best=math.expm1(look.best),
        low=fraction_from_log(look.low),
        high=fraction_from_log(look.high),
        confidence=1 - look.error,
        p=look.p,
        looks=(look,),
        pairs=0,
        minimal_effect=minimal_effect,
        alpha=alpha,
        seed=0,
        method=f"{_METHOD}; {len(before)} and {len(after)} processes, {mode} steps",
        evidence=evidence,
        notes=(*notes, *evidence.notes),
        before_ns=round(float(np.median(a_ns))),
        after_ns=round(float(np.median(b_ns))),
        rules=apply_rules(before, after),
        environment={"before": run_a.environment, "after": run_b.environment},
        reproduce=reproduce,
    )


def _keys_that_differ(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    ours = ("now", "protocol")
    return [key for key in {**a, **b} if key not in ours and a.get(key) != b.get(key)]


def compare_unpaired(before: Array, after: Array, plan: Plan) -> tuple[Look, str]:
    """Compare two samples of processes at once; see Note [No pairs].

    Args:
        before: Log of the median step of each process of A, float64 `[processes]`.
        after: The same of B.
        plan: Its alpha and minimal effect count.

    Returns:
        The look, whose `pairs` are the processes of the smaller side, and why it is undecided
        (empty where it is not, or where the data are the reason).
    """
    fewest = min(len(before), len(after))
    best, p = shift(before, after), rank_sum_p(before, after)
    error = 2 * Plan(plan.minimal_effect, plan.alpha, (1,)).equivalence_levels[0]
    inner = shift_interval(before, after, error)
    verdict, why = "undecided", ""
    if fewest < FEWEST_PROCESSES:
        why = f"{fewest} processes on a side, {FEWEST_PROCESSES} are needed"
    elif inner[0] > -plan.bound and inner[1] < plan.bound:
        return Look(fewest, "equivalent", p, plan.alpha, best, *inner, error), ""
    elif p <= plan.alpha and abs(best) >= plan.bound:
        verdict = "slower" if best > 0 else "faster"
    elif (least := least_rank_sum_p(len(before), len(after))) > plan.alpha:
        why = (
            f"with {len(before)} and {len(after)} processes no p is below {least:.2g}; more "
            "processes are needed"
        )
    low, high = shift_interval(before, after, plan.alpha)
    return Look(fewest, verdict, p, plan.alpha, best, low, high, plan.alpha), why
