"""`inference_sheets`: TraceLens's report of a served model, with the operators of its capture.

Note [Merged trace]: TraceLens hangs what was captured under the call that replays the graph, and
makes its report of that. So does `merged_rank`: every captured call that a replayed event aligns
with (tables/serving/capture.py) stands inside the launch of the graph, with the operators and
modules around it up to the begin of the capture, in their order; the event hangs on that call.
Times inside the launch have no meaning beyond that order.

Source: the inference report of TraceLens at 171dd747.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.compat.tracelens.launchers import CompatTree
from torchtraceap.compat.tracelens.perf_sheets import (
    NOTE,
    ModeledOps,
    family_sheets,
    unified_perf_summary,
)
from torchtraceap.compat.tracelens.sheets import (
    METRICS,
    Coded,
    Sheet,
    encode,
    kernel_columns,
    order_of_sums,
    shares,
    statistics,
    take,
    texts_at,
)
from torchtraceap.compat.tracelens.summaries import Launchers, gpu_timeline, launchers_of
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.tables.events import event_text
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.serving.attribution import Attribution, attribute
from torchtraceap.trace.ranks import RankTrace, parse_recorded

__all__ = ["inference_sheets", "merged_rank"]

_BEGIN_CAPTURE = "StreamBeginCapture"
_MODULE = "nn.Module: "
_MOE = "vllm::moe_forward"
_KINDS = (_core.EventKind.CPU_OP, _core.EventKind.RUNTIME, _core.EventKind.DRIVER)
_LINKS = ("External id", "Ev Idx", "Sequence number", "Python parent id", "Python id")
"""Arguments of captured events that link them to others of their own file."""
_Event = dict[str, Any]
"""An event as JSON, its times in ns."""


def merged_rank(part: RankTrace, capture: PathLike | None = None) -> RankTrace:
    """Return the rank with what was captured under the launches of graphs. See Note [Merged trace].

    Args:
        part: The rank.
        capture: As of `attribute`.

    Raises:
        OptionError: As of `attribute`.
    """
    found = attribute(part, capture)
    if not (found.captured_row >= 0).any():
        return part
    table = part.table
    events, replaced = _captured_events(part, found)
    texts = [table.event_json(row) for row in range(len(table)) if row not in replaced]
    texts += map(event_text, events)
    members = "".join(f"{json.dumps(key)}:{text}," for key, text in table.metadata)
    merged = f'{{{members}"traceEvents":[{",".join(texts)}]}}'
    return RankTrace(_core.read_trace_bytes(merged.encode(), str(part.path)), part.rank)


def _captured_events(part: RankTrace, found: Attribution) -> tuple[list[_Event], set[int]]:
    """Return the events that join the trace, and the rows that some of them replace."""
    known = np.flatnonzero(found.captured_row >= 0)
    rows = part.tree.gpu_rows[known].astype(np.int64)
    launches = part.tree.launch[rows].astype(np.int64)
    correlation = 1 + int(max(0, part.table.correlation.max(initial=0)))
    events: list[_Event] = []
    for launch in np.unique(launches).tolist():
        mine = known[launches == launch]
        for number in np.unique(found.captured_part[mine]).tolist():
            own = mine[found.captured_part[mine] == number]
            ids = dict(zip(own.tolist(), range(correlation, correlation + len(own)), strict=True))
            correlation += len(own)
            calls = {int(found.captured_row[place]): each for place, each in ids.items()}
            events += _below_launch(part, launch, found.captures[number], calls)
            for place, each in ids.items():
                row = int(part.tree.gpu_rows[place])
                event = parse_recorded(part.table.event_json(row), f"row {row}")
                times = {"ts": int(part.table.ts_ns[row]), "dur": int(part.table.dur_ns[row])}
                args = {**event.get("args", {}), "correlation": each}
                events.append({**event, **times, "args": args})
    return events, set(rows.tolist())


def _below_launch(
    part: RankTrace, launch: int, captured: RankTrace, calls: dict[int, int]
) -> Iterator[_Event]:
    """Yield captured calls, with what is around them, inside a launch, and the arrows from them.

    Args:
        part: The rank of the launch.
        launch: Its row.
        captured: The trace of the capture.
        calls: New correlation ids by rows of `captured`.
    """
    table, tree = captured.table, captured.tree
    kept: set[int] = set()
    for call in calls:
        begin_ns = _begin_of_capture(captured, call)
        row = call
        while row != _core.NO_ROW and int(table.ts_ns[row]) >= begin_ns and row not in kept:
            if table.kind[row] in _KINDS:
                kept.add(row)
            row = int(tree.parent[row])
    ordered = sorted(kept)  # parents come before their children
    ends = {row: int(table.ts_ns[row] + table.dur_ns[row]) for row in ordered}
    bounds: dict[int, list[int]] = {}
    clock, open_rows = 0, list[int]()
    for row in ordered:
        start_ns = int(table.ts_ns[row])
        while open_rows and ends[open_rows[-1]] <= start_ns:
            bounds[open_rows.pop()].append(clock := clock + 1)
        bounds[row] = [clock := clock + 1]
        open_rows.append(row)
    while open_rows:
        bounds[open_rows.pop()].append(clock := clock + 1)
    template = parse_recorded(part.table.event_json(launch), f"row {launch}")
    origin_ns, room_ns = int(part.table.ts_ns[launch]), int(part.table.dur_ns[launch])
    scale = min(1.0, room_ns / (clock + 1))
    for row in ordered:
        event = parse_recorded(table.event_json(row), f"row {row}")
        event |= {"pid": template["pid"], "tid": template["tid"]}
        args = {k: v for k, v in event.get("args", {}).items() if k not in _LINKS}
        begin, end = (origin_ns + int(each * scale) for each in bounds[row])
        event |= {"ts": begin, "dur": end - begin}
        args.pop("correlation", None)
        if row in calls:
            args["correlation"] = calls[row]
            arrow = {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": calls[row], "ts": begin}
            yield arrow | {"pid": template["pid"], "tid": template["tid"]}
        yield event | {"args": args}


def _begin_of_capture(captured: RankTrace, call: int) -> int:
    """Return when the capture of a call began, ns."""

    def build() -> Array:
        texts = captured.table.strings
        names = np.unique(captured.table.name)
        wanted = [code for code in names.tolist() if _BEGIN_CAPTURE in texts[code]]
        return captured.table.ts_ns[np.isin(captured.table.name, wanted)]

    begins: Array = captured.cached("begins of captures", build)
    before = np.searchsorted(begins, captured.table.ts_ns[call], side="right")
    return int(begins[before - 1]) if before else int(captured.table.ts_ns[call])


# ------------------------------------------------------------------------------------ modules


def _stacks(tree: CompatTree, rows: Array) -> list[list[str]]:
    """Return the name of each row and the modules around it, the innermost first."""
    parent, name, strings = tree.part.tree.parent, tree.name, tree.strings
    stacks = []
    for row in rows.tolist():
        stack = [strings[name[row]]]
        above = int(parent[row])
        while above != _core.NO_ROW:
            if strings[name[above]].startswith(_MODULE):
                stack.append(strings[name[above]])
            above = int(parent[above])
        stacks.append(stack)
    return stacks


def _parent_module(stack: list[str]) -> str:
    """Return the innermost module of a stack without its number."""
    if len(stack) < 2:
        return "NA"
    name, _, number = stack[1].rpartition("_")
    return name if number.isdigit() else stack[1]


def _with_pseudo_ops(tree: CompatTree) -> CompatTree:
    """Return the rank with operators that TraceLens puts around kernels of experts, for sheets of
    work: see its `create_pseudo_ops_moe_unfused_triton`."""
    part, table = tree.part, tree.part.table
    strings, parent = table.strings, part.tree.parent
    if _MOE not in strings:
        return tree
    moe = strings.index(_MOE)
    rows = part.tree.gpu_rows.astype(np.int64)
    calls = part.tree.launch[rows].astype(np.int64)
    seen: dict[int, int] = {}
    events = []
    linked = calls != _core.NO_ROW
    for row, call in zip(rows[linked].tolist(), calls[linked].tolist(), strict=True):
        name = strings[table.name[row]].lower()
        kind = "finalize_matmul_scatter" if "matmul_scatter" in name else ""
        if "matmul_ogs" not in name and not kind:
            continue
        above = call
        while above != _core.NO_ROW and table.name[above] != moe:
            above = int(parent[above])
        if above == _core.NO_ROW:
            continue
        if not kind:
            seen[above] = seen.get(above, 0) + 1
            kind = "up" if seen[above] == 1 else "down"
        gated = " gated" * ("_swiglu" in name or "_glu" in name)
        event, around = json.loads(table.event_json(call)), json.loads(table.event_json(above))
        args = {key: value for key, value in around.get("args", {}).items() if key not in _LINKS}
        times = {"ts": int(table.ts_ns[call]), "dur": int(table.dur_ns[call])}
        place = {key: event[key] for key in ("ph", "pid", "tid")}
        place |= {"cat": "cpu_op", "name": f"pseudo_op::moe_triton_unfused_{kind}"}
        note = {NOTE: f"{_chosen_experts(tree, above)}{gated}"}
        events.append(event_text({**place, **times, "args": args | note}))
    if not events:
        return tree
    edited = _core.edit_table(
        table,
        ts_ns=table.ts_ns,
        dur_ns=table.dur_ns,
        kept=np.ones(len(table), dtype=np.uint8),
        correlation=table.correlation,
        more_events=events,
    )
    return CompatTree(RankTrace(edited, part.rank))


def _chosen_experts(tree: CompatTree, moe_row: int) -> int:
    """Return the experts of a token, by the operator TopK inside; theirs where it is not there."""
    table, parent = tree.part.table, tree.part.tree.parent
    end_ns = int(table.ts_ns[moe_row] + table.dur_ns[moe_row])
    row = moe_row + 1
    while row < len(table) and int(table.ts_ns[row]) <= end_ns:
        if "TopK" in table.name_of(row):
            above = row
            while above != _core.NO_ROW and above != moe_row:
                above = int(parent[above])
            concrete = json.loads(table.event_json(row)).get("args", {}).get("Concrete Inputs", [])
            if above == moe_row and len(concrete) > 1 and str(concrete[1]).isdecimal():
                return int(concrete[1])
        row += 1
    return 4


def inference_sheets(part: RankTrace, capture: PathLike | None = None) -> dict[str, Sheet]:
    """Return the sheets of TraceLens's inference report of one rank.

    Args:
        part: The rank.
        capture: As of `attribute`.

    Raises:
        OptionError: As of `attribute`.
    """
    tree = CompatTree(merged_rank(part, capture))
    sheets: dict[str, Sheet] = {"gpu_timeline": gpu_timeline(tree)}
    if not len(tree.op_rows):
        return sheets
    launchers = launchers_of(tree)
    stacks = _stacks(tree, launchers.calls.rows)
    numbers = np.arange(len(stacks))
    modules = encode(lambda place: _parent_module(stacks[place]), numbers)
    ops = ModeledOps(_with_pseudo_ops(tree), serves=True)
    sheets["ops_summary_by_category"] = _by_category(launchers, modules, stacks)
    sheets["ops_summary"] = _by_name(launchers, modules, stacks)
    sheets["ops_unique_args"] = _by_arguments(launchers, modules, stacks)
    modeled = launchers if ops.tree is tree else launchers_of(ops.tree)
    sheets["unified_perf_summary"] = unified_perf_summary(ops, modeled)
    return sheets | dict(family_sheets(ops))


def _by_category(launchers: Launchers, modules: Coded, stacks: list[list[str]]) -> Sheet:
    calls = launchers.calls
    groups = Groups(calls.categories[0], modules[0])
    sums = groups.sum(launchers.direct_us)
    order = order_of_sums(sums, np.arange(len(groups)))
    first = groups.first[order]
    sheet: Sheet = {
        "op category": texts_at(calls.categories, first),
        "parent_module": texts_at(modules, first),
        "Count": groups.count[order].tolist(),
        "call_stack_first": [str(stacks[place]) for place in first.tolist()],
        "total_direct_kernel_time_ms": (sums[order] / 1000).tolist(),
    }
    sheet["Percentage (%)"], sheet["Cumulative Percentage (%)"] = shares(sums[order])
    return sheet


def _by_name(launchers: Launchers, modules: Coded, stacks: list[list[str]]) -> Sheet:
    calls = launchers.calls
    groups = Groups(calls.names[0], modules[0])
    direct, subtree = groups.sum(launchers.direct_us), groups.sum(launchers.subtree_us)
    order = order_of_sums(direct, np.arange(len(groups)))
    first = groups.first[order]
    categories = texts_at(calls.categories, np.arange(len(calls.rows)))
    sheet: Sheet = {
        "name": texts_at(calls.names, first),
        "parent_module": texts_at(modules, first),
        "total_direct_kernel_time_sum": direct[order].tolist(),
        "total_subtree_kernel_time_sum": subtree[order].tolist(),
        "total_subtree_kernel_time_count": groups.count[order].tolist(),
        "total_direct_kernel_time_ms": (direct[order] / 1000).tolist(),
        "Count": groups.count[order].tolist(),
        "Categories": [
            str(sorted({categories[place] or "" for place in groups.rows(group).tolist()}))
            for group in order.tolist()
        ],
        "call_stack_first": [str(stacks[place]) for place in first.tolist()],
    }
    sheet["Percentage (%)"], sheet["Cumulative Percentage (%)"] = shares(direct[order])
    return sheet


def _by_arguments(launchers: Launchers, modules: Coded, stacks: list[list[str]]) -> Sheet:
    calls = launchers.calls
    groups = Groups(calls.groups().index, modules[0])
    keys = calls.key_columns(groups)
    sheet: Sheet = {name: keys[name] for name in ("name", "op category")}
    sheet["parent_module"] = texts_at(modules, groups.first)
    sheet |= {name: column for name, column in keys.items() if name not in sheet}
    kernels = np.bincount(launchers.owner, minlength=len(calls.rows))
    sheet["num_kernels"] = kernels[groups.first].tolist()
    sheet["operation_count"] = groups.count.tolist()
    direct = statistics(groups, launchers.direct_us)
    subtree = statistics(groups, launchers.subtree_us)
    for metric in (*METRICS, "sum"):
        sheet[f"total_direct_kernel_time_{metric}"] = direct[metric].tolist()
        sheet[f"total_subtree_kernel_time_{metric}"] = subtree[metric].tolist()
    first_rows = calls.rows[groups.first]
    sheet["ex_UID"] = first_rows.tolist()
    sheet["call_stack"] = [str(stacks[place]) for place in groups.first.tolist()]
    whole, short = kernel_columns(
        calls.tree, groups.index, len(groups), launchers.owner, launchers.kernels
    )
    sheet["kernel_details_summary"], sheet["trunc_kernel_details"] = whole, short
    sheet = take(sheet, order_of_sums(direct["sum"], first_rows))
    ordered = np.asarray(sheet["total_direct_kernel_time_sum"])
    sheet["Percentage (%)"], sheet["Cumulative Percentage (%)"] = shares(ordered)
    return sheet
