#!/usr/bin/env python3
"""How true host times are on traces and models that the table has not seen.

    python benchmarks/prediction/host_times.py TRACES [--captures] [--out FILE]

For each trace of host_data.py the table is fitted to the others: without the trace, without all
traces of its model, without all of its machine. Predicted are the sum of the host times of its
calls and that of each phase, with nothing but the name of the GPU, and calibrated by the other
traces of its machine under the same profiler. `--captures` predicts them from captures of the
models instead, as far as public_models.py has them, which needs transformers 4.49.0.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fit_host_times
import host_data
import numpy as np

from torchtraceap.lab.prediction.capture.calls import Phase
from torchtraceap.lab.prediction.lowering import host
from torchtraceap.lab.prediction.lowering.step import HostTime
from torchtraceap.ops.devices import device_named

Rule = Callable[[host_data.Source, host_data.Source], bool]
RULES: dict[str, Rule] = {
    "trace": lambda one, other: one.path == other.path,
    "model": lambda one, other: one.model == other.model,
    "machine": lambda one, other: one.machine == other.machine,
}
Models = dict[str, host.HostModel]


def held_out(
    data: Sequence[host_data.HostData], rule: Rule
) -> Iterator[tuple[host_data.HostData, Models, list[str]]]:
    """Each trace with models that were made without it, and what calibrated the second."""
    tables: dict[tuple[str, ...], host.HostTable] = {}
    for one in data:
        others = [each for each in data if not rule(one.source, each.source)]
        key = tuple(each.source.path for each in others)
        if key not in tables:
            tables[key] = fit_host_times.fit(others)[0]
        unknown = host.HostModel(device_named(one.source.device), table=tables[key])
        alike = (one.source.machine, one.source.profiler)
        same = [each for each in others if (each.source.machine, each.source.profiler) == alike]
        models = {"alone": unknown}
        if same:
            models["calibrated"] = unknown.calibrated(each.calls for each in same)
        yield one, models, [each.source.model for each in same]


def row_of(one: host_data.HostData, models: Models, by: list[str]) -> dict[str, Any]:
    measured = measured_ns(one)
    total = one.calls.total_ns
    row: dict[str, Any] = {
        "trace": one.source.path,
        "machine": one.source.machine,
        "profiler": one.source.profiler,
        "calls": len(one.calls),
        "measured_ns": round(total),
        "calibrated_by": by,
    }
    for name, model in models.items():
        times = model.times_of(one.calls.call_contexts, one.calls.counts.tolist())
        phases = predicted_ns(one, times.calls)
        best = sum(phases.values())
        row[name] = {
            "error": best / total - 1,
            "interval": [*times.range],
            "holds": bool(times.range[0] * best <= total <= times.range[1] * best),
            "phases": {
                phase.value: phases[phase] / measured[phase] - 1
                for phase in Phase
                if measured[phase] > 0
            },
        }
    return row


def measured_ns(one: host_data.HostData) -> dict[Phase, float]:
    calls = one.calls
    found = dict.fromkeys(Phase, 0.0)
    inside = calls.to_launch + calls.between * np.maximum(calls.counts - 1, 0) + calls.after
    whole = np.nan_to_num(calls.before) + inside
    for call, ns, launches in zip(calls.call_contexts, whole.tolist(), calls.launches, strict=True):
        found[call.phase] += ns + sum(launches)
    return found


def predicted_ns(one: host_data.HostData, times: Sequence[HostTime]) -> dict[Phase, float]:
    """Over what was measured: where the gap before a call is not known, neither is its own."""
    found = dict.fromkeys(Phase, 0.0)
    known = np.isfinite(one.calls.before).tolist()
    for call, time, has_gap in zip(one.calls.call_contexts, times, known, strict=True):
        found[call.phase] += time.total_ns - (0.0 if has_gap else time.before)
    return found


def captured(path: str) -> tuple[Any, list[int]]:
    """A capture of the trace's model, and how many launches each of its calls makes."""
    import public_models

    from torchtraceap.lab.prediction.capture import capture_step
    from torchtraceap.lab.prediction.predictor import lower_steps

    make, device = public_models.MODELS[path]
    capture = capture_step(make)
    (step,) = lower_steps([capture], device_named(device))
    return capture, [sum(len(op.works) for op in call.ops) for call in step.calls]


def capture_rows(data: Sequence[host_data.HostData]) -> list[dict[str, Any]]:
    import public_models

    rows = []
    for one, models, by in held_out(data, RULES["model"]):
        if one.source.path not in public_models.MODELS:
            continue
        capture, launches = captured(one.source.path)
        total = one.calls.total_ns
        row = {
            "trace": one.source.path,
            "measured_ns": round(total),
            "calls": len(capture.calls),
            "calls_of_trace": len(one.calls),
            "calibrated_by": by,
        }
        for name, model in models.items():
            times = model.times(capture, launches)
            low, high = times.range[0] * times.total_ns, times.range[1] * times.total_ns
            row[name] = {
                "predicted_ns": round(times.total_ns),
                "error": times.total_ns / total - 1,
                "holds": bool(low <= total <= high),
            }
        rows.append(row)
        print(json.dumps(row))
    return rows


def said(rows: Sequence[dict[str, Any]], mode: str) -> dict[str, float] | None:
    errors = np.array([abs(row[mode]["error"]) for row in rows if mode in row])
    if not len(errors):
        return None
    holds = [row[mode]["holds"] for row in rows if mode in row]
    return {
        "traces": len(errors),
        "median": float(np.median(errors)),
        "worst": float(errors.max()),
        "interval_holds": float(np.mean(holds)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--captures", action="store_true")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    data = host_data.load_sources(chosen.traces)
    recent = {s.path for s in host_data.SOURCES if host.is_recent(device_named(s.device))}
    document: dict[str, Any] = {"made": datetime.date.today().isoformat()}
    if chosen.captures:
        document["captures"] = capture_rows(data)
    else:
        for name, rule in RULES.items():
            rows = [row_of(*each) for each in held_out(data, rule)]
            new = [row for row in rows if row["trace"] in recent]
            summary = {
                "all": {mode: said(rows, mode) for mode in ("alone", "calibrated")},
                "recent": {mode: said(new, mode) for mode in ("alone", "calibrated")},
            }
            document[f"without its {name}"] = {"summary": summary, "rows": rows}
            print(name, json.dumps(summary))
    if chosen.out:
        before = json.loads(chosen.out.read_text("utf-8")) if chosen.out.exists() else {}
        rounded = json.loads(
            json.dumps(before | document), parse_float=lambda x: round(float(x), 4)
        )
        chosen.out.write_text(json.dumps(rounded, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
