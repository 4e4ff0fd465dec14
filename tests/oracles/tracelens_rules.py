"""The rules of TraceLens (commit 171dd747) on the events of a file, one after the other.

What its tables would hold where no reference table stands beside a trace: the tree, what is
linked to what, who launched a kernel, which calls the unified table counts and under which
category. Written straight from the rules and slow; nothing but the work of a call (FLOPs, bytes,
parameters) is taken from the library.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from torchtraceap.compat.tracelens.launchers import category_of
from torchtraceap.compat.tracelens.perf_sheets import backward_of
from torchtraceap.ops.models.tracelens.registry import MODELS, find_model, run_model, transpose_of
from torchtraceap.ops.models.tracelens.work import ModelAbsentError, UnmodeledError, Work

Event = dict[str, Any]
Row = dict[str, Any]

_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
_CALLS = {"cuda_runtime", "cuda_driver"}
_ARGUMENTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_NAMES = {"process_name": "name", "process_labels": "labels", "thread_name": "name"}
_ONE_SHEET = ("GEMM", "UnaryElementwise", "BinaryElementwise", "Normalization")
_BACKWARD_NAMES = ("flash_attn::_flash_attn_varlen_backward", "aten::convolution_backward")
_COLLECTIVE = (
    "Process Group Ranks",
    "Collective name",
    "Group size",
    "dtype",
    "In msg nelems",
    "Out msg nelems",
    "In split size",
    "Out split size",
)


def read_events(path: Path) -> list[Event]:
    """Events of a trace file, in its order."""
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    events: list[Event] = document["traceEvents"] if isinstance(document, dict) else document
    return events


def is_communication(name: str) -> bool:
    return any(word in name.lower() for word in ("nccl", "rccl", "cross_device_reduce"))


def union(events: Iterable[Event]) -> float:
    """Length of the union of some intervals, merged from the first start on."""
    total, end, begin = 0.0, float("-inf"), 0.0
    for event in sorted(events, key=lambda e: float(e["ts"])):
        if event["ts"] > end:
            total += end - begin if end > begin else 0.0
            begin, end = event["ts"], event["end"]
        else:
            end = max(end, event["end"])
    return total + (end - begin if end > begin else 0.0)


class TraceRules:
    """A trace with the links between its events; `uid` is the place of an event in the file."""

    def __init__(self, events: list[Event]) -> None:
        self.events = [dict(event, uid=i) for i, event in enumerate(events)]
        for event in self.events:
            event["children"], event["gpu"] = [], []
            if "ts" in event and "dur" in event:
                event["end"] = event["ts"] + event["dur"]
        self.names: dict[Any, dict[Any, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
        for event in self.events:
            if event.get("ph") == "M" and event["name"] in _NAMES:
                text = event["args"].get(_NAMES[event["name"]])
                self.names[event["pid"]][event.get("tid")][event["name"]] = text
        self.of_category = defaultdict(list)
        for event in self.events:
            self.of_category[event.get("cat")].append(event)
        self.roots: list[Event] = []
        self._nest()
        self._link()
        self._join_passes()
        self.first_kernel: dict[int, str] = {}
        self.launchers = self._find_launchers()
        self.kernels = self.of_category["kernel"]

    def kind(self, *categories: str) -> list[Event]:
        return sorted(
            (e for c in categories for e in self.of_category[c]), key=lambda e: int(e["uid"])
        )

    def above(self, event: Event) -> Event | None:
        return event.get("parent")

    # ------------------------------------------------------------------------------ building

    def _nest(self) -> None:
        stacks: dict[Any, list[Event]] = defaultdict(list)
        for event in sorted(self.kind("cpu_op", *_CALLS), key=lambda e: float(e["ts"])):
            stack = stacks[event["pid"], event["tid"]]
            while stack and event["ts"] >= stack[-1]["end"]:
                stack.pop()
            if stack and event["end"] > stack[-1]["end"]:
                if stack[-1]["end"] - event["ts"] >= 1 or len(stack) < 2:
                    continue
                stack.pop()
            if stack:
                stack[-1]["children"].append(event)
                event["parent"] = stack[-1]
            if event["cat"] == "cpu_op" and not any(e["cat"] == "cpu_op" for e in stack):
                self.roots.append(event)
            stack.append(event)

    def _link(self) -> None:
        calls = self.kind(*_CALLS)
        launch = next((e for e in calls if "launch" in e["name"].lower()), None)
        key = "correlation" if launch and "correlation" in launch["args"] else "External id"
        arrows: dict[str, dict[Any, Event]] = {"s": {}, "f": {}}
        for event in self.of_category["ac2g"]:
            arrows.get(event["ph"], {})[event["id"]] = event
        placed: dict[Any, Event] = {}
        of_graph: dict[Any, list[Event]] = defaultdict(list)
        for event in self.events:
            number = (event.get("args") or {}).get(key) if event.get("cat") != "ac2g" else None
            if number is not None:
                placed[event.get("pid"), event.get("tid"), number] = event
                if event.get("cat") in _GPU:
                    of_graph[number].append(event)
        for call in calls:
            number = call.get("args", {}).get(key)
            if call["name"] in ("cudaGraphLaunch", "hipGraphLaunch"):
                found = of_graph[number]
            else:
                end = arrows["f"].get(number) if number in arrows["s"] else None
                place = (end["pid"], end["tid"], end["id"]) if end else None
                found = [placed[place]] if place in placed else []
            for event in [e for e in found if e.get("cat") in _GPU]:
                event["parent"] = call
                call["children"].append(event)
                at: Event | None = call
                while at is not None:
                    at["gpu"].append(event)
                    at = self.above(at)

    def _join_passes(self) -> None:
        numbered: dict[Any, list[Event]] = defaultdict(list)
        for event in self.events:
            number = (event.get("args") or {}).get("Sequence number")
            if number is not None:
                numbered[number].append(event)
        for events in numbered.values():
            engine = "autograd::engine::evaluate_function:"
            frame = next((e for e in events if e["name"].startswith(engine)), None)
            if frame is None:
                continue
            thread = frame.get("pid"), frame.get("tid")
            others = [e for e in events if (e.get("pid"), e.get("tid")) != thread]
            if others:
                forward = max(others, key=lambda e: float(e["ts"]))
                frame["forward"] = forward
                forward.setdefault("backward", []).append(frame)

    def _find_launchers(self) -> list[tuple[Event, list[Event]]]:
        found: dict[int, list[Event]] = defaultdict(list)
        for event in self.kind(*_GPU):
            call = self.above(event)
            if call is None or is_communication(event["name"]):
                continue
            at = self.above(call)
            while at is not None and at["name"] == "execute" and at["cat"] == "cpu_op":
                at = self.above(at)
            launcher = at if at is not None and at["cat"] == "cpu_op" else call
            found[launcher["uid"]].append(event)
        for uid, kernels in found.items():
            self.first_kernel[uid] = min(kernels, key=lambda e: float(e["ts"]))["name"]
        return [(self.events[uid], kernels) for uid, kernels in found.items()]

    # -------------------------------------------------------------------------------- asking

    def category(self, event: Event, name: str | None = None) -> str:
        return category_of(name or event["name"], self.first_kernel.get(event["uid"]))

    def who(self, event: Event) -> tuple[str, str, str]:
        of_process = self.names[event["pid"]]
        return (
            of_process[0].get("process_name", "Unknown"),
            of_process[0].get("process_labels", "Unknown"),
            of_process[event["tid"]].get("thread_name", "Unknown"),
        )

    def work(self, event: Event) -> Any:
        """`Work`, None where the model fails, else why there is none."""
        transpose = None
        if event["name"] in MODELS and MODELS[event["name"]].sheet == "GEMM":
            said = (transpose_of(k["name"]) for k in sorted(event["gpu"], key=lambda k: k["ts"]))
            transpose = next((t for t in said if t is not None), None)
        args = event.get("args") or {}
        texts = tuple(json.dumps(args[k]) if k in args else None for k in _ARGUMENTS)
        return _work(event["name"], texts, transpose)

    def has_model(self, event: Event) -> bool:
        return find_model(event["name"]) is not None and self.work(event) != "absent"

    def below(self, event: Event) -> Iterator[Event]:
        for child in event["children"]:
            yield child
            yield from self.below(child)

    def sole_backward(self, event: Event) -> Event | None:
        """The forward operator whose only backward operator this is, if its work is known."""
        frame, at = None, event
        for _ in range(5):
            parent = self.above(at)
            if parent is None:
                return None
            if "forward" in parent:
                frame = parent
                break
            at = parent
        if frame is None or frame["forward"]["name"] not in MODELS:
            return None
        main = frame["name"].split(": ", 1)[1]
        count = sum(1 for e in self._ops_below(frame) if e["gpu"] and e["name"] == main)
        forward: Event = frame["forward"]
        if count != 1 or MODELS[forward["name"]].backward_category is None:
            return None
        return forward if backward_of(self.work(forward)) is not None else None

    def _ops_below(self, event: Event) -> Iterator[Event]:
        for child in event["children"]:
            if child["cat"] == "cpu_op":
                yield child
                yield from self._ops_below(child)

    def is_leaf(self, event: Event) -> bool:
        return any(
            child["cat"] in _GPU or (child["cat"] == "cuda_runtime" and self.is_leaf(child))
            for child in event["children"]
        )

    def collected(self) -> list[Event]:
        """Calls of the unified table."""
        found: list[Event] = []

        def visit(event: Event) -> None:
            if event["cat"] != "cpu_op" or not event["gpu"]:
                return
            if self.has_model(event):
                found.append(event)
                return
            inside = any(self.has_model(e) and e["gpu"] for e in self._ops_below(event))
            if not inside and self.sole_backward(event) is not None:
                found.append(event)
            elif not inside and self.is_leaf(event):
                if not any(is_communication(e["name"]) for e in event["gpu"]):
                    found.append(event)
            else:
                for child in event["children"]:
                    visit(child)

        for root in self.roots:
            visit(root)
        return found

    def backward_kernels(self, forward: Event) -> list[Event]:
        frames = [f for e in (forward, *self.below(forward)) for f in e.get("backward", ())]
        distinct = {frame["uid"]: frame for frame in frames}
        return [kernel for frame in distinct.values() for kernel in frame["gpu"]]


@cache
def _work(name: str, texts: Any, transpose: Any) -> Any:
    try:
        return run_model(name, texts, transpose)
    except ModelAbsentError:
        return "absent"
    except UnmodeledError:
        return "dropped"


# ---------------------------------------------------------------------------------------- tables


def _grouped(rows: Iterable[tuple[Any, dict[str, Any]]]) -> dict[Any, list[dict[str, Any]]]:
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for key, values in rows:
        groups[key].append(values)
    return groups


def _statistics(title: str, values: list[float]) -> Row:
    known = [value for value in values if value is not None]
    return {
        f"{title}_sum": sum(known),
        f"{title}_mean": statistics.fmean(known) if known else None,
        f"{title}_median": statistics.median(known) if known else None,
        f"{title}_std": statistics.stdev(known) if len(known) > 1 else None,
        f"{title}_min": min(known, default=None),
        f"{title}_max": max(known, default=None),
    }


def _shown(value: Any) -> Any:
    return str(_tuples(value)) if value is not None else None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _arguments(event: Event) -> tuple[Any, ...]:
    args = event.get("args") or {}
    return tuple(_shown(args.get(key)) for key in _ARGUMENTS)


_CALL = ("name", "op category", "process_name", "process_label", "thread_name", *_ARGUMENTS)


def unique_args(trace: TraceRules) -> Iterator[Row]:
    rows = (
        (
            (event["name"], trace.category(event), *trace.who(event), *_arguments(event)),
            {"direct": union(kernels), "subtree": union(event["gpu"])},
        )
        for event, kernels in trace.launchers
    )
    for key, members in _grouped(rows).items():
        row = dict(zip(_CALL, key, strict=True)) | {"operation_count": len(members)}
        for which in ("direct", "subtree"):
            times = [member[which] for member in members]
            row |= _statistics(f"total_{which}_kernel_time", times)
        yield row


def ops_summary(trace: TraceRules) -> Iterator[Row]:
    rows = (
        (event["name"], {"time": union(kernels), "category": trace.category(event)})
        for event, kernels in trace.launchers
    )
    for name, members in _grouped(rows).items():
        yield {
            "name": name,
            "Count": len(members),
            "total_direct_kernel_time_sum": sum(m["time"] for m in members),
            "Categories": str(sorted({m["category"] for m in members})),
        }


def by_category(trace: TraceRules) -> Iterator[Row]:
    rows = ((trace.category(e), {"time": union(kernels)}) for e, kernels in trace.launchers)
    for category, members in _grouped(rows).items():
        time = sum(m["time"] for m in members) / 1000
        yield {
            "op category": category,
            "Count": len(members),
            "total_direct_kernel_time_ms": time,
        }


def unified(trace: TraceRules) -> Iterator[Row]:
    rows: list[tuple[Any, dict[str, Any]]] = []

    def add(event: Event, name: str, category: str, time: float, work: Any, has: bool) -> None:
        key = (name, category, *trace.who(event), *_arguments(event))
        known = isinstance(work, Work)
        row = {
            "time": time,
            "host": event["dur"],
            "has_perf_model": has,
            "GFLOPS": work.flops / 1e9 if known else None,
            "MB": work.bytes / 2**20 if known and work.bytes is not None else None,
            "Compute Spec": work.spec if known else None,
        }
        rows.append((key, row))

    covered = set()
    for event in trace.collected():
        covered |= {e["uid"] for e in event["gpu"]}
        name, category = event["name"], trace.category(event)
        forward = trace.sole_backward(event)
        if trace.has_model(event):
            work = trace.work(event)
            if work != "dropped":
                add(event, name, category, union(event["gpu"]), work, True)
        elif forward is not None:
            of_forward = MODELS[forward["name"]].backward_category or category
            time = union(trace.backward_kernels(forward))
            add(event, name, of_forward, time, backward_of(trace.work(forward)), True)
        else:
            add(event, name, category, union(event["gpu"]), None, False)
    for kernel in trace.kind(*_GPU):
        parent = call = trace.above(kernel)
        if kernel["uid"] in covered or is_communication(kernel["name"]) or call is None:
            continue
        while parent is not None and parent["cat"] != "cpu_op":
            parent = trace.above(parent)
        parent = parent or call
        name = f"{parent['name']}->{kernel['name']} (Synthetic Op)"
        add(parent, name, trace.category(parent, name), union([kernel]), None, False)
    for key, members in _grouped(rows).items():
        row = dict(zip(_CALL, key, strict=True)) | {"operation_count": len(members)}
        row |= _statistics("Kernel Time (µs)", [m["time"] for m in members])
        row["total_duration_us"] = sum(m["host"] for m in members)
        row |= {k: members[0][k] for k in ("has_perf_model", "GFLOPS", "Compute Spec")}
        yield row | {"Data Moved (MB)": members[0]["MB"]}


def families(trace: TraceRules) -> Iterator[tuple[str, Row]]:
    """(sheet, row) of every family."""
    rows: list[tuple[Any, dict[str, Any]]] = []
    for event in trace.of_category["cpu_op"]:
        work = trace.work(event) if event["name"] in MODELS else None
        if not isinstance(work, Work):
            continue
        sheet, name = MODELS[event["name"]].sheet, event["name"]
        way = "" if sheet in _ONE_SHEET else "_bwd" if name in _BACKWARD_NAMES else "_fwd"
        rows.append(_call_of_family(f"{sheet}{way}", name, work, union(event["gpu"])))
        backward = backward_of(work)
        forward_only = name in ("aten::convolution", "ConvBias_", "ConvBiasReLU_")
        if way and backward is not None and event.get("backward") and not forward_only:
            time = union(trace.backward_kernels(event))
            rows.append(_call_of_family(f"{sheet}_bwd", name, backward, time))
    for (sheet, name, params), members in _grouped(rows).items():
        row = {"name": name, "name_count": len(members)}
        row |= {f"param: {k}": v for k, v in params}
        row |= _statistics("Kernel Time (µs)", [m["time"] for m in members])
        yield sheet, row | {"GFLOPS_first": members[0]["GFLOPS"]}


def _call_of_family(sheet: str, name: str, work: Work, time: float) -> tuple[Any, dict[str, Any]]:
    params = tuple((k, str(v)) for k, v in work.params.items())
    return (sheet, name, params), {"time": time, "GFLOPS": work.flops / 1e9}


def kernel_summary(trace: TraceRules) -> Iterator[Row]:
    rows = []
    for kernel in trace.kernels:
        call = op = trace.above(kernel)
        while op is not None and op["cat"] != "cpu_op":
            op = trace.above(op)
        name = op["name"] if op else call["name"] if call else None
        category = trace.category(op) if op else None
        if op is None and call is not None:
            lower = call["name"].lower()
            category = "graph" if "cudagraph" in lower or "graphlaunch" in lower else "runtime"
        key = (category, name, kernel["name"], kernel["args"].get("stream"))
        rows.append((key, {"dur": kernel["dur"]}))
    titles = ("Parent op category", "Parent cpu_op", "Kernel name", "Kernel stream")
    for key, members in _grouped(rows).items():
        row = dict(zip(titles, key, strict=True))
        times = [m["dur"] for m in members]
        row["Kernel duration (µs)_sum"] = sum(times)
        yield row | {"Kernel duration (µs)_count": len(times)}


def collectives(trace: TraceRules) -> Iterator[Row]:
    chosen = [
        e
        for e in trace.kernels
        if is_communication(e["name"]) and {"correlation", "External id"} & e["args"].keys()
    ]
    groups = [e["args"].get("Process Group Name") for e in chosen]
    one_stream = len({e["args"].get("stream") for e in chosen}) <= 1
    nameless = "all" if one_stream and not any(g is not None for g in groups) else "Unknown_Group"
    rows = []
    for event, group in zip(chosen, groups, strict=True):
        values = [event["args"].get(key) for key in (*_COLLECTIVE, "stream")]
        if None not in values:
            key = (nameless if group is None else group, *map(str, values))
            rows.append((key, {"dur": event["dur"]}))
    titles = ("Process Group Name", *_COLLECTIVE, "stream")
    for key, members in _grouped(rows).items():
        times = [m["dur"] for m in members]
        row = dict(zip(titles, key, strict=True)) | {"operation_count": len(times)}
        yield row | {"dur_sum": sum(times), "dur_max": max(times)}


def rule_sheets(path: Path) -> dict[str, list[Row]] | None:
    """Rows of each sheet, unordered; None for a trace that TraceLens cannot read as it stands."""
    trace = TraceRules(read_events(path))
    if not trace.of_category["ac2g"] or not trace.of_category["cpu_op"]:
        return None
    sheets: dict[str, list[Row]] = defaultdict(list)
    sheets["ops_unique_args"] = list(unique_args(trace))
    sheets["ops_summary"] = list(ops_summary(trace))
    sheets["ops_summary_by_category"] = list(by_category(trace))
    sheets["unified_perf_summary"] = list(unified(trace))
    sheets["kernel_summary"] = list(kernel_summary(trace))
    sheets["coll_analysis"] = list(collectives(trace))
    for name, row in families(trace):
        sheets[name].append(row)
    return {name: rows for name, rows in sheets.items() if rows}
