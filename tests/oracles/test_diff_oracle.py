"""Diffs of real pairs: what their authors say changed, and the tables that TraceLens made.

TraceLens' TraceDiff (reference in `tracelens/tracediff_reference`, MI300X first, then H100) lists
for each kernel the lowest call that both recordings share.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.core.table import ColumnTable
from torchtraceap.tables.compare.alignment import Comparison, compare
from torchtraceap.tables.compare.diff import VIEWS, build_diff
from torchtraceap.tables.compare.rows import align
from torchtraceap.tables.steps.steps import build_steps

from .conftest import corpus_files

MI300 = "tracelens/mi300/timesformer_inference.json.gz"
H100 = "tracelens/h100/timesformer_inference.json.gz"
REFERENCE = "tracelens/tracediff_reference"
UNMATCHED = 3


def pair(corpus: Path, before: str, after: str, by: str = "cause") -> ColumnTable:
    for name in (before, after):
        if not (corpus / name).exists():
            pytest.skip(f"{name} is not in this corpus")
    return closed(ttap.load(corpus / before), ttap.load(corpus / after), by)


def closed(before: ttap.Trace, after: ttap.Trace, by: str) -> ColumnTable:
    """Rows sum to both steps, and what is on one side alone came or went."""
    table = build_diff(before, after, by=by)
    for when in ("before", "after"):
        assert int(table[f"{when}_ns"].sum()) == table.facts[f"{when}_step_ns"]
    assert int(table["delta_ns"].sum()) == table.facts["difference_ns"]
    one_side = (table["before_ns"] == 0) != (table["after_ns"] == 0)
    statuses = np.asarray(table.to_list("status"), dtype=object)[one_side]
    assert "unchanged" not in set(statuses.tolist())
    return table


PAIRS = [
    (MI300, H100),
    ("tracelens/h100/qwen_inference.json.gz", "tracelens/mi300/qwen_inference.json.gz"),
    ("kineto/resnet50_num_workers_0.json.gz", "kineto/resnet50_num_workers_4.json.gz"),
    ("gpu_puzzlers/d2h_sync.json.gz", "gpu_puzzlers/d2h_sync_fixed.json.gz"),
    ("gpu_puzzlers/dtoh_blocking.json.gz", "gpu_puzzlers/dtoh_non_blocking.json.gz"),
    ("pytorch_benchmark/copies_pageable.json", "pytorch_benchmark/copies_pinned.json"),
    ("modded_nanogpt/overlap_before.json.gz", "modded_nanogpt/overlap_hook.json.gz"),
    ("segment_anything_fast/amg_baseline.json.gz", "segment_anything_fast/amg_fast.json.gz"),
    ("torchrec_4ranks_late_rank/rank0.json.gz", "torchrec_4ranks_late_rank/rank2.json.gz"),
    ("kineto/h100_overlap_before_fix.json", "kineto/h100_overlap_after_fix.json"),
    ("hta/simple_add_critical_path.json.gz", "hta/alexnet_critical_path.json.gz"),
    ("param/dlrm_8ranks", "torchrec_4ranks_late_rank"),
]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_every_pair_adds_up_in_every_view(corpus: Path, a: str, b: str) -> None:
    for name in (a, b):
        if not (corpus / name).exists():
            pytest.skip(f"{name} is not in this corpus")
    before, after = ttap.load(corpus / a), ttap.load(corpus / b)
    for by in VIEWS:
        if by != "tree":
            closed(before, after, by)


def deltas(table: ColumnTable) -> dict[str, int]:
    return dict(zip(table.to_list("name"), table["delta_ns"].tolist(), strict=True))


@pytest.mark.parametrize("corpus_file", corpus_files(), indirect=True)
def test_diff_with_itself_finds_what_diagnose_finds(corpus_file: Path) -> None:
    try:
        trace = ttap.load(corpus_file)
    except ttap.errors.ParseError as error:
        pytest.skip(str(error))
    table = build_diff(trace, trace, by="finding")
    assert set(table.to_list("name")[:-1]) == {f.type for f in trace.diagnose().findings}
    assert set(table.to_list("before_verdict")[:-1]) <= {"present"}
    assert not np.any(table["delta_ns"])


# ---------------------------------------------------------------------------------- authors' words


def test_workers_take_the_loading_away(corpus: Path) -> None:
    pair_of = (f"kineto/resnet50_num_workers_{n}.json.gz" for n in (0, 4))
    table = pair(corpus, *pair_of)
    delta = deltas(table)
    assert table.to_list("name")[0] == "idle: data loading"
    # The rest moved by a sixth of it, and the other way.
    assert delta["idle: data loading"] < -60_000_000
    assert table.facts["difference_ns"] < -45_000_000


def test_reads_inside_a_loop_are_gone(corpus: Path) -> None:
    table = pair(
        corpus, "gpu_puzzlers/d2h_sync.json.gz", "gpu_puzzlers/d2h_sync_fixed.json.gz", "finding"
    )
    status = dict(zip(table.to_list("name"), table.to_list("status"), strict=True))
    assert status["high_memcpy"] == "vanished"
    assert status["host_sync_in_loop"] == "vanished"


@pytest.mark.parametrize(
    ("before", "after", "gone", "came"),
    [
        (
            "gpu_puzzlers/dtoh_blocking.json.gz",
            "gpu_puzzlers/dtoh_non_blocking.json.gz",
            "Memcpy DtoH (Device -> Pageable)",
            "Memcpy DtoH (Device -> Pinned)",
        ),
        (
            "pytorch_benchmark/copies_pageable.json",
            "pytorch_benchmark/copies_pinned.json",
            "Memcpy HtoD (Pageable -> Device)",
            "Memcpy HtoD (Pinned -> Device)",
        ),
    ],
)
def test_pinned_memory(corpus: Path, before: str, after: str, gone: str, came: str) -> None:
    table = pair(corpus, before, after, "kernel")
    status = dict(zip(table.to_list("name"), table.to_list("status"), strict=True))
    assert (status[gone], status[came]) == ("gone", "new")
    assert table.facts["difference_ns"] < 0


def test_late_rank_waits_less_on_collectives(corpus: Path) -> None:
    folder = "torchrec_4ranks_late_rank"
    delta = deltas(pair(corpus, f"{folder}/rank0.json.gz", f"{folder}/rank2.json.gz"))
    assert delta["exposed communication"] < -1_000_000_000
    assert delta["idle: host wait"] > 900_000_000


def test_reduce_scatter_moved_into_the_backward(corpus: Path) -> None:
    delta = deltas(
        pair(
            corpus,
            "modded_nanogpt/overlap_before.json.gz",
            "modded_nanogpt/overlap_hook.json.gz",
        )
    )
    assert delta["exposed communication"] < 0


@pytest.mark.parametrize("corpus_file", corpus_files(), indirect=True)
def test_every_trace_equals_itself(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    for by in VIEWS:
        table = build_diff(trace, trace, by=by)
        assert not table["delta_gpu_ns" if by == "tree" else "delta_ns"].any()
    steps = build_steps(trace.ranks[0])
    causes = [n for n in steps.columns if n.startswith("idle_") and n != "idle_ns"]
    if len(trace.ranks[0].tree.gpu_rows):
        np.testing.assert_array_equal(sum(steps[name] for name in causes), steps["idle_ns"])
    assert "drop" not in steps.facts["trend"]["verdict"]


# ---------------------------------------------------------------------------------- TraceLens


class Aligned:
    """Our alignment, and TraceLens' rows with our GPU event for each."""

    def __init__(self, corpus: Path) -> None:
        reference = corpus / REFERENCE / "diff_stats.csv"
        if not reference.exists():
            pytest.skip(f"{reference} is not in this corpus")
        before, after = ttap.load(corpus / MI300), ttap.load(corpus / H100)
        self.comparison: Comparison = compare(before, after)
        self.trees, _ = align(self.comparison)
        with reference.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self.rows: list[tuple[dict[str, str], int, int]] = []
        """TraceLens' row, 0 before or 1 after, row of our table."""
        for is_after, path in enumerate((MI300, H100)):
            row_of = _rows_by_uid(corpus / path, (before, after)[is_after].rank())
            source = f"trace{is_after + 1}"
            self.rows += [
                (row, is_after, row_of(int(row["gpu_op_uid"])))
                for row in rows
                if row["source"] == source
            ]

    def table(self, is_after: int) -> _core.EventTable:
        return self.comparison.sides[is_after].cuts[0].part.table

    def shared_node(self, is_after: int, row: int) -> int:
        """The innermost node above a GPU event that both recordings have."""
        trees = self.trees
        node = int((trees.after_node if is_after else trees.before_node)(0)[row])
        while node != _core.NO_ROW and trees.matched_by[node] == UNMATCHED:
            node = int(trees.parent[node])
        return node

    def name(self, node: int) -> str:
        context = self.trees.variant_context[self.trees.variant[node]]
        return self.trees.names[self.trees.context_before[context]]


def _rows_by_uid(path: Path, part: Any) -> Callable[[int], int]:
    """Their uid counts the events of the file; name and start find the event in our table."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    table = part.table
    known = {
        (table.name_of(row), int(table.ts_ns[row])): row for row in part.tree.gpu_rows.tolist()
    }

    def row_of(uid: int) -> int:
        event = events[uid]
        return known[event["name"], round(Decimal(str(event["ts"])) * 1000)]

    return row_of


@pytest.fixture(scope="module")
def aligned(request: pytest.FixtureRequest) -> Iterator[Aligned]:
    from .conftest import CORPUS

    if not CORPUS.is_dir():
        pytest.skip(f"no corpus of traces at {CORPUS}; set TORCHTRACEAP_CORPUS")
    yield Aligned(CORPUS)


def test_kernels_and_their_operators_are_those_of_tracelens(aligned: Aligned) -> None:
    assert len(aligned.rows) == 983
    for row, is_after, ours in aligned.rows:
        table = aligned.table(is_after)
        part = aligned.comparison.sides[is_after].cuts[0].part
        assert table.name_of(ours) == row["name"]
        assert table.dur_ns[ours] == pytest.approx(1000 * float(row["kernel_time"]), abs=1)
        assert table.name_of(int(part.tree.op[ours])) == row["cpu_op_name"]


def test_shared_calls_are_those_of_tracelens(aligned: Aligned) -> None:
    """All but the convolution: we take cudnn's and MIOpen's for the same operator, they stop above
    it; and the bias that MIOpen adds inside and cuDNN outside they take for one."""
    differ = Counter(
        (row["lowest_common_ancestor_name"], aligned.name(aligned.shared_node(is_after, ours)))
        for row, is_after, ours in aligned.rows
    )
    for theirs, ours in [names for names in differ if names[0] != names[1]]:
        assert theirs in ("aten::_convolution", "aten::add_"), (theirs, ours)
        assert ours in ("aten::miopen_convolution", "aten::_convolution"), (theirs, ours)
    same = sum(count for (theirs, ours), count in differ.items() if theirs == ours)
    assert same == 970


def test_kernels_meet_at_the_same_call(aligned: Aligned) -> None:
    """Kernels of both traces below one shared call of theirs are below one of ours."""
    below: dict[str, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    for row, is_after, ours in aligned.rows:
        node = aligned.shared_node(is_after, ours)
        below[row["lowest_common_ancestor_id"]][is_after].add(node)
    equal = sum(before == after for before, after in below.values())
    assert (equal, len(below)) == (444, 445)


def test_time_by_shared_call_is_that_of_tracelens(aligned: Aligned) -> None:
    """Sums of `by="ancestor"` over the rows of a call's name, but for the convolution."""
    expected: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row, is_after, _ in aligned.rows:
        expected[row["lowest_common_ancestor_name"]][is_after] += float(row["kernel_time"])
    sides = aligned.comparison.sides
    table = build_diff(sides[0].recording, sides[1].recording, by="ancestor")
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for record in table.records():
        name = str(record["ancestor"]).split(" → ")[0]
        for i, when in enumerate(("before_ns", "after_ns")):
            found[name][i] += record[when] / 1000
    same = set(expected) - {"aten::_convolution", "aten::add_"}
    assert len(same) > 10
    for name in same:
        assert found[name] == pytest.approx(expected[name], abs=1), name


def test_operators_run_the_kernels_that_tracelens_lists(aligned: Aligned, corpus: Path) -> None:
    for is_after in (0, 1):
        path = corpus / REFERENCE / f"cpu_op_map_trace{is_after + 1}.json"
        expected = json.loads(path.read_text(encoding="utf-8"))
        part = aligned.comparison.sides[is_after].cuts[0].part
        found: dict[str, set[str]] = defaultdict(set)
        for row in part.tree.gpu_rows.tolist():
            op = int(part.tree.op[row])
            if op != _core.NO_ROW:
                found[part.table.name_of(op)].add(part.table.name_of(row))
        assert {name: set(kernels) for name, kernels in expected.items()} == dict(found)


def test_time_by_operator_is_that_of_the_comparison_of_reports(corpus: Path) -> None:
    """Their merged report of the two qwen traces: kernel time by operator on either side."""
    reference = corpus / "tracelens/compare_h100_mi300_qwen_reference/ops_summary.csv"
    if not reference.exists():
        pytest.skip(f"{reference} is not in this corpus")
    with reference.open(encoding="utf-8", newline="") as file:
        expected = list(csv.DictReader(file))
    traces = [
        ttap.load(corpus / f"tracelens/{device}/qwen_inference.json.gz")
        for device in ("h100", "mi300")
    ]
    comparison = compare(*traces)
    trees, _ = align(comparison)
    for device, side, node_of, rows_of_nodes in (
        ("h100", comparison.before, trees.before_node(0), trees.before_row),
        ("mi300", comparison.after, trees.after_node(0), trees.after_row),
    ):
        part = side.cuts[0].part
        time: Counter[str] = Counter()
        for row in part.tree.linked_gpu_rows.tolist():
            node = int(node_of[row])
            if node == _core.NO_ROW:
                continue
            op = int(part.tree.op[int(rows_of_nodes[node])])
            if op != _core.NO_ROW:
                time[part.table.name_of(op)] += int(part.table.dur_ns[row])
        for record in expected:
            ms = record[f"{device}::total_direct_kernel_time_ms"]
            if ms:
                assert time[record["name"]] / 1e6 == pytest.approx(float(ms), abs=2e-3)
