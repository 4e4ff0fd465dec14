"""Every table of a trace in every view, and what holds between them: one thing has one number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap.core.table import ColumnTable
from torchtraceap.report.view import build_view
from torchtraceap.tables.catalog import TABLES, table_spec

# A fact of these names is of the rows that the view shows, and says so where it stands.
EXCLUSIVE = ("exclusive_gpu_ns", "exclusive_ns")
OF_THE_VIEW = {"host_ns", "calls_ns", "total_ns", "modelled_share", "roofline_share"}


def views_of(trace: ttap.Trace) -> Iterator[tuple[str, ColumnTable]]:
    """("ops --by name", the table) and so on; of the first rank where tables are of one."""
    for name in TABLES:
        spec = table_spec(name)
        rank = {"rank": trace.ranks[0].rank} if spec.per_rank and len(trace.ranks) > 1 else {}
        for by in spec.views or (None,):
            options = {} if by is None else {"by": by}
            yield f"{name} --by {by}", spec.make(trace, **rank, **options)


def assert_facts_agree(trace: ttap.Trace) -> None:
    """Facts of one name have one value, whichever table states them."""
    seen: dict[str, tuple[str, Any]] = {}
    for view, table in views_of(trace):
        for name, value in table.facts.items():
            if name in OF_THE_VIEW or not name.endswith(("_ns", "_share", "_shares")):
                continue
            where, known = seen.setdefault(name, (view, value))
            assert known == value, f"{name}: {known} in {where}, {value} in {view}"


def assert_shares_agree(trace: ttap.Trace) -> None:
    """A share of the busy time is that of the same events in every table that has it."""
    for view, table in views_of(trace):
        if "busy_share" not in table.columns or not (busy_ns := table.facts["busy_ns"]):
            continue
        shares = np.ma.filled(table["busy_share"], np.nan)
        own_ns = next((table[name] for name in EXCLUSIVE if name in table.columns), None)
        if own_ns is None:  # the roofline's rows own all of the busy time between them
            assert np.nansum(shares) == pytest.approx(1), view
        else:
            np.testing.assert_allclose(shares, own_ns / busy_ns, rtol=1e-12, err_msg=view)


def assert_diagnosis_agrees(trace: ttap.Trace) -> None:
    """The bar, the findings and the summary of a diagnosis speak of the same nanoseconds."""
    diagnosis, summary = trace.diagnose(), trace.summary()
    timelines = [rank.profiled_timeline() for rank in trace.ranks]
    assert sum(diagnosis.idle_ns.values()) == sum(t.idle_ns for t in timelines)
    whole = summary.timeline
    assert whole.busy_ns + whole.idle_ns == whole.span_ns
    parts = whole.compute_ns + whole.exposed_communication_ns + whole.exposed_memcpy_ns
    assert parts == whole.busy_ns
    for finding in diagnosis.findings:
        share = finding.cost_ns / diagnosis.profiled_ns
        assert finding.cost_share == min(1.0, share)
    view = build_view(diagnosis)
    busy = sum(t.busy_ns for t in timelines)
    assert view.busy_share == (busy / diagnosis.profiled_ns if diagnosis.profiled_ns else 0.0)
