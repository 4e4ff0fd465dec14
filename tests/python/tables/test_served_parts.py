"""What an iteration of a served model consists of: parts, their page, and two runs by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served_model import Served
from served_ranks import ServedRanks

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.report.charts import iterations as iterations_chart
from torchtraceap.tables.compare.diff import build_diff
from torchtraceap.tables.serving.iterations import served_iterations
from torchtraceap.tables.serving.parts import iteration_parts

MIXED = Served(dense=2, experts=3, iterations=7)


def write(trace: dict[str, Any], folder: Path, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(trace))
    return path


def slower_layer(served: Served, layer: int, extra_us: float) -> dict[str, Any]:
    """The same run with more time in the attention of one layer, from which all else follows."""
    trace = served.trace()
    layers = len(served.layers())
    met, shift = 0, 0.0
    for event in sorted(trace["traceEvents"], key=lambda each: each["ts"]):
        event["ts"] += shift
        if "flash_fwd_splitkv" in event["name"]:
            if met % layers == layer:
                event["dur"] += extra_us
                shift += extra_us
            met += 1
        if event["name"] == "cudaStreamSynchronize":
            event["dur"] += extra_us
    return trace


@pytest.mark.parametrize("streams", [1, 3])
def test_parts_sum_to_each_iteration(streams: int, tmp_path: Path) -> None:
    served = Served(dense=2, experts=3, iterations=7, streams=streams, node_ids=streams > 1)
    part = ttap.load(write(served.trace(), tmp_path)).ranks[0]
    parts, found = iteration_parts(part), served_iterations(part)
    lengths = found.work_ns[:, 1] - found.work_ns[:, 0]
    sums = np.bincount(parts.iteration, weights=parts.ns, minlength=len(found))
    assert sums.tolist() == lengths.tolist()
    assert (parts.ns > 0).all()
    assert set(parts.layer.tolist()) == {-1, 0, 1, 2, 3, 4}
    roles = np.array(parts.role.to_list())
    assert (parts.ns[roles == "bubble"] > 300_000).all() and (roles == "bubble").sum() == 6


def test_a_slower_layer_is_the_difference_of_two_runs(tmp_path: Path) -> None:
    before = ttap.load(write(MIXED.trace(), tmp_path, "a.json"))
    after = ttap.load(write(slower_layer(MIXED, 3, 7.0), tmp_path, "b.json"))
    table = build_diff(before, after, by="layer")
    rows = table.to_dict()
    records = [dict(zip(rows["columns"], row, strict=True)) for row in rows["rows"]]
    assert sum(row["delta_ns"] for row in records) == table.facts["difference_ns"] == 7_000
    changed = [row for row in records if row["delta_ns"]]
    assert [(row["layer"], row["role"], row["delta_ns"]) for row in changed] == [
        (3, "attention", 7_000)
    ]
    assert {row["layer"] for row in records} == {None, 0, 1, 2, 3, 4}


def test_two_phases_are_compared_by_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefill = Served(dense=2, experts=3, annotation="execute_context_2(512)_generation_0(0)")
    paths = [
        str(write(slower_layer(prefill, 1, 30.0), tmp_path, "a.json")),
        str(write(MIXED.trace(), tmp_path, "b.json")),
    ]
    command = ["diff", *paths, "--by", "layer", "--json", "--phase"]
    assert main([*command, "prefill,decode"]) == 0
    document = json.loads(capsys.readouterr().out)
    delta = document["columns"].index("delta_ns")
    assert sum(row[delta] for row in document["rows"]) == document["difference_ns"] == -30_000
    assert main([*command, "decode"]) == 2
    assert "no iteration is of phase 'decode'" in capsys.readouterr().err
    assert main([*command, "decode,prefill,decode"]) == 2
    assert "one or two of prefill, decode" in capsys.readouterr().err


def test_the_page_has_each_iteration_with_its_layers(tmp_path: Path) -> None:
    path = write(slower_layer(MIXED, 3, 7.0), tmp_path)
    trace = ttap.load(path)
    part = trace.ranks[0]
    chart = iterations_chart(trace.serving_table(by="iterations"), part)
    assert chart is not None and chart["phase"] == ["decode"] * 7
    found = served_iterations(part)
    assert chart["ns"] == (found.work_ns[:, 1] - found.work_ns[:, 0]).tolist()
    for number, detail in enumerate(chart["details"]):
        layers = {layer: sum(ns for _, ns in row) for layer, row in detail["rows"]}
        bubble = sum(ns for _, ns in detail["bubble"])
        assert sum(layers.values()) + bubble == chart["ns"][number]
        assert layers[3] - layers[2] == 7_000
    token = chart["token"]["rows"][0]
    assert sum(part[2] for part in token["parts"]) == token["total"]
    assert token["total"] == round(sorted(chart["ns"])[3] / 64)


def test_pages_of_training_have_no_section_of_serving(tmp_path: Path) -> None:
    served = Served(annotation="ProfilerStep#{batch}")
    page = ttap.load(write(served.trace(), tmp_path)).diagnose().to_html()
    assert "tables-serving" not in page


def test_waits_of_exchanges_are_told_on_the_first_screen(tmp_path: Path) -> None:
    job = ServedRanks(ranks=4, jitter_us=6.0, seed=3)
    for rank, document in enumerate(job.traces()):
        write(document, tmp_path, f"rank{rank}.json")
    serving = ttap.load(tmp_path).serving(rank=1)
    truth = np.zeros(job.served.iterations)
    for (iteration, _, rank), wait_us in job.waits_us.items():
        truth[iteration] += wait_us if rank == 1 else 0.0
    time = serving.time
    assert time is not None and time.wait_share is not None
    waited_ns = time.wait_share * time.iteration_ns
    assert waited_ns == pytest.approx(1000 * np.median(truth), rel=0.01)
    assert " (wait " in str(time)


def test_waits_are_not_told_without_communication(tmp_path: Path) -> None:
    trace = MIXED.trace()
    kept = [
        event
        for event in trace["traceEvents"]
        if "deep_ep" not in event["name"] and "all_reduce" not in event["name"]
        and "cross_device" not in event["name"]
    ]  # fmt: skip
    time = ttap.load(write({"traceEvents": kept}, tmp_path)).serving().time
    assert time is not None and time.wait_share is None and time.communication_share is None
