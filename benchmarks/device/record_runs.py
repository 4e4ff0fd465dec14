"""Traces of real runs: five wins, ten models eager, compiled and as CUDA graphs, a decode loop.

    wins     both sides of each pair of examples/wins: found by `diagnose`, caught by the contract,
             priced by the replay, and timed without a profiler
    served   greedy decoding with a key-value cache: a prefill, then steps that replay a CUDA graph,
             beside the trace of the capture itself (on a CPU the steps run eagerly)
    models   ten workloads, a step with ranges of its phases, eager; the model compiled; the forward
             pass replayed as a CUDA graph (kernels have node ids), none of which runs on a CPU

All traces are test data.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from stage import Stage, run_stage

MODELS = (
    "resnet", "gpt", "dlrm", "sac", "vit", "bert", "unet", "conformer", "mobilenet", "detr",
)  # fmt: skip
_COMPILED_S, _EAGER_S = 45.0, 6.0
"""A model is not begun with less time left."""
_WARM_UP, _TIMED, _RECORDED = 3, 10, 3


def record(stage: Stage) -> None:
    for part in (wins, served, models):
        part(stage)


def _traced(stage: Stage, name: str, step: Callable[[], Any]) -> Path:
    """Records some steps in a file of this name, and returns it."""
    import torchtraceap as ttap

    path = stage.out / f"{name}.json.gz"
    path.unlink(missing_ok=True)
    with ttap.profile(path, active=_RECORDED, diagnose=False) as recording:
        for _ in range(_RECORDED + 2):
            step()
            recording.step()
    return path


def _timed_ns(stage: Stage, step: Callable[[], Any], synchronize: Callable[[], None]) -> int:
    """Median time of a step that is waited for, ns, without a profiler."""
    times = []
    for number in range(_WARM_UP + (2 if stage.tiny else _TIMED)):
        began = time.perf_counter_ns()
        step()
        synchronize()
        if number >= _WARM_UP:
            times.append(time.perf_counter_ns() - began)
    return round(statistics.median(times))


# ------------------------------------------------------------------------- wins


def wins(stage: Stage) -> None:
    from measure import ALL

    rows = stage.rows("wins")
    known = {row["win"] for row in rows}
    listed = [win for win in (ALL[-2:] if stage.tiny else ALL) if win.name not in known]
    for win in stage.each(listed, 10.0):
        row = stage.attempt(f"win {win.name}", lambda win=win: _win(stage, win))
        if row is not None:
            rows.append(row)
        stage.keep(wins=rows)


def _win(stage: Stage, win: Any) -> dict[str, Any]:
    from measure import Row, judge

    from torchtraceap.lab.workloads.steps import make_step

    sides: dict[str, Any] = {}
    clock: dict[str, int] = {}
    for side in ("bad", "good"):
        with make_step(
            win.source(side),
            mode="train" if win.trained else "eval",
            device=stage.device,
            batch=None if stage.on_gpu else win.cpu_batch,
        ) as step:
            clock[side] = _timed_ns(stage, step.step, step.synchronize)
            path = _traced(stage, f"win_{win.name}_{side}", step.step)
        sides[side] = judge(win, path, timed=stage.on_gpu)
    row = Row(win.name, win.section, win.finding, "recorded", stage.device, **sides)
    return {
        **dataclasses.asdict(row),
        "true_ns": row.true_ns,
        "clock_step_ns": clock,
        "clock_saving_ns": clock["bad"] - clock["good"],
    }


# ------------------------------------------------------------------------- a decode loop


def served(stage: Stage) -> None:
    for _ in stage.each([] if "served" in stage.found else ["the decode loop"], 8.0):
        found = stage.attempt("decode loop", lambda: _decode(stage))
        if found is not None:
            stage.keep(served=found)


def _decode(stage: Stage) -> dict[str, Any]:
    import torch
    from torch import nn
    from torch.nn import functional

    torch.manual_seed(0)
    width, layers, heads, most, batch = (32, 2, 2, 64, 2) if stage.tiny else (1024, 12, 16, 512, 8)
    kind = {"device": stage.device, "dtype": torch.bfloat16 if stage.on_gpu else torch.float32}

    class Block(nn.Module):
        """Attention over a cache of fixed length, and a feed-forward layer."""

        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            shape = (batch, heads, most, width // heads)
            self.register_buffer("keys", torch.zeros(shape))
            self.register_buffer("values", torch.zeros(shape))

        def forward(self, x: torch.Tensor, at: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            length = x.shape[1]
            split = self.qkv(self.norm1(x)).view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            self.keys.index_copy_(2, at, split[1])
            self.values.index_copy_(2, at, split[2])
            found = functional.scaled_dot_product_attention(split[0], self.keys, self.values, mask)
            x = x + self.out(found.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    words = 512
    embedding = nn.Embedding(words, width).to(**kind)
    blocks = nn.ModuleList(Block() for _ in range(layers)).to(**kind)
    places = torch.arange(most, device=stage.device)
    token = torch.zeros(batch, 1, dtype=torch.int64, device=stage.device)
    at = torch.zeros(1, dtype=torch.int64, device=stage.device)

    def forward(tokens: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        x = embedding(tokens)
        mask = (places[None, :] <= where[:, None])[None, None]
        for block in blocks:
            x = block(x, where, mask)
        return (x[:, -1] @ embedding.weight.t()).argmax(-1, keepdim=True)

    def decode() -> None:
        token.copy_(forward(token, at))
        at.add_(1)

    length = most // 4
    with torch.inference_mode():
        prompt = torch.randint(words, (batch, length), device=stage.device)
        found: dict[str, Any] = {"graph": stage.on_gpu}

        def prefill() -> None:
            token.copy_(forward(prompt, places[:length]))
            at.fill_(length)

        for _ in range(_WARM_UP):
            prefill()
            decode()
        replay: Callable[[], Any] = decode
        wait = torch.cuda.synchronize if stage.on_gpu else lambda: None
        if stage.on_gpu:
            replay = _capture(stage, decode)
            found["capture_trace"] = "served_capture.json.gz"
        prefill()
        found["decode_step_ns"] = _timed_ns(stage, replay, wait)
        found["prefill_trace"] = _traced(stage, "served_prefill", prefill).name
        found["decode_trace"] = _traced(stage, "served_decode", replay).name
    return found


def _capture(stage: Stage, work: Callable[[], None]) -> Callable[[], None]:
    """The work as a CUDA graph; the capture itself is recorded in served_capture.json.gz."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True) as profiler:
        with torch.cuda.graph(graph):
            work()
        graph.replay()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(stage.out / "served_capture.json.gz"))
    return graph.replay


# ------------------------------------------------------------------------- models


def models(stage: Stage) -> None:
    rows = stage.rows("models")
    known = {(row["model"], row["way"]) for row in rows}
    names = MODELS[2:3] if stage.tiny else MODELS
    for ways, least_s in ((("eager", "graph"), _EAGER_S), (("compiled",), _COMPILED_S)):
        asked = [
            (name, way)
            for way in ways
            for name in names
            if (stage.on_gpu or way == "eager") and (name, way) not in known
        ]
        for name, way in stage.each(asked, least_s):
            _model(stage, rows, name, way)


def _model(stage: Stage, rows: list[dict[str, Any]], name: str, way: str) -> None:
    row = stage.attempt(f"{name} {way}", lambda: _recorded_model(stage, name, way))
    if row is not None:
        rows.append(row)
    stage.keep(models=rows)


def _recorded_model(stage: Stage, name: str, way: str) -> dict[str, Any]:
    """A training step with ranges of its phases; a graph is of the forward pass alone."""
    import torch
    from torch.profiler import record_function

    from torchtraceap.lab.workloads.registry import find
    from torchtraceap.lab.workloads.steps import on_device
    from torchtraceap.lab.workloads.workload import check_workload

    made = check_workload(find(name).make(None, stage.size))
    assert made.loss is not None
    loss_of = made.loss
    model = made.model.to(stage.device).train(way != "graph")
    inputs = on_device(made.inputs, torch.device(stage.device))
    call = torch.compile(model) if way == "compiled" else model
    wait = torch.cuda.synchronize if stage.on_gpu else lambda: None

    def forward() -> Any:
        return call(**inputs) if isinstance(inputs, dict) else call(*inputs)

    if way == "graph":
        step = _graphed(forward)
    else:
        trained = [each for each in model.parameters() if each.requires_grad]
        optimizer = made.optimizer(trained) if made.optimizer is not None and trained else None

        def step() -> None:
            with record_function("## forward ##"):
                loss = loss_of(forward())
            with record_function("## backward ##"):
                loss.backward()
            with record_function("## optimizer ##") if optimizer else nullcontext():
                if optimizer is not None:
                    optimizer.step()
            model.zero_grad(set_to_none=True)

    step_ns = _timed_ns(stage, step, wait)
    path = _traced(stage, f"model_{name}_{way}", step)
    return {"model": name, "way": way, "step_ns": step_ns, "trace": path.name, **_told(path)}


def _graphed(forward: Callable[[], Any]) -> Callable[[], None]:
    """The forward pass as a CUDA graph."""
    import torch

    with torch.inference_mode():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                forward()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            forward()
    return graph.replay


def _told(path: Path) -> dict[str, Any]:
    """Diagnose a trace, and count its kernels that have a node of a graph."""
    import gzip
    import json

    import torchtraceap as ttap

    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    nodes = sum(bool(each.get("args", {}).get("graph node id")) for each in events)
    diagnosis = ttap.load(path).diagnose().to_dict()
    shares = {each["type"]: each["cost_share"] for each in diagnosis["findings"]}
    return {"kernels_with_graph_node": nodes, "findings": shares, "bytes": path.stat().st_size}


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, record))
