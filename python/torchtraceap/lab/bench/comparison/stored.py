"""Comparison of two stored runs, without running anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.comparison.compare import (
    Comparison,
    CountChange,
    Evidence,
    apply_rules,
    build_evidence,
    fraction_from_log,
)
from torchtraceap.lab.bench.statistics.sequential import (
    DEFAULT_ALPHA,
    DEFAULT_MINIMAL_EFFECT,
    Plan,
)
from torchtraceap.lab.bench.statistics.unpaired import compare_unpaired
from torchtraceap.lab.bench.store.run_store import MODES, StoredRun

__all__ = ["compare_stored"]

_METHOD = (
    "exact Mann-Whitney test of the median steps of processes, Hodges-Lehmann interval; unpaired: "
    "blind to what the machine did between the two runs"
)
_BLIND = (
    "the runs were made at different times: how far the machine drifted in between can't be "
    "known, and a difference may be that drift; comparing two commands in turn tells them apart"
)


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

    Args:
        run_a: Before.
        run_b: After.
        minimal_effect: Fraction; changes below it do not matter.
        alpha: Probability of a false alarm if nothing but the order of processes is random.
        causes: Compare the kept traces too.
        reproduce: The command to state.

    Raises:
        OptionError: They have no steps of the same mode.
        StoreError: An object of the store is missing or damaged.
    """
    plan = Plan(minimal_effect, alpha, (1,))
    mode, before, after = _steps(run_a, run_b)
    a_ns, b_ns = (np.array([np.median(run) for run in side]) for side in (before, after))
    look, why = compare_unpaired(np.log(a_ns), np.log(b_ns), plan)
    evidence = build_evidence(run_a.trace, run_b.trace, look) if causes else Evidence()
    if not evidence.counts:
        evidence = Evidence(_stored_counts(run_a, run_b), notes=evidence.notes)
    return Comparison(
        before=_run_title(run_a),
        after=_run_title(run_b),
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
        notes=(*([why] if why else []), _BLIND, *_differences(run_a, run_b), *evidence.notes),
        before_ns=round(float(np.median(a_ns))),
        after_ns=round(float(np.median(b_ns))),
        rules=apply_rules(before, after),
        environment={"before": run_a.environment, "after": run_b.environment},
        reproduce=reproduce,
    )


def _run_title(run: StoredRun) -> str:
    return f"{run.name} ({run.id}, {run.when})"


def _steps(run_a: StoredRun, run_b: StoredRun) -> tuple[str, list[Array], list[Array]]:
    for mode in MODES:
        before, after = run_a.samples.of(mode), run_b.samples.of(mode)
        if before and after:
            return mode, _floats(before), _floats(after)
    raise OptionError(f"runs {run_a.id} and {run_b.id} have no steps that were measured alike")


def _floats(side: Sequence[Array]) -> list[Array]:
    return [np.maximum(run.astype(np.float64), 1.0) for run in side]


def _stored_counts(run_a: StoredRun, run_b: StoredRun) -> tuple[CountChange, ...]:
    """Return the counts of the manifests if traces were not compared."""
    a, b = run_a.counts, run_b.counts
    return tuple(CountChange(key, a.get(key), b.get(key)) for key in {**a, **b})


def _differences(run_a: StoredRun, run_b: StoredRun) -> list[str]:
    notes = []
    if run_a.environment_hash != run_b.environment_hash:
        differing = ", ".join(_keys_that_differ(run_a.environment, run_b.environment))
        notes.append(f"the environments differ: {differing}")
    if run_a.config_hash != run_b.config_hash:
        differing = ", ".join(_keys_that_differ(run_a.config, run_b.config))
        notes.append(f"the configurations differ: {differing}")
    return notes


def _keys_that_differ(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    ours = ("now", "protocol")
    return [key for key in {**a, **b} if key not in ours and a.get(key) != b.get(key)]
