"""Traces scored per second by the paper's network: on the CPU, on the GPU, in plain PyTorch.

The network has the paper's size and random weights (sizes decide the time, weights do not), and
reads the traces of `examples/traces`, in 100 windows each. Ways:

- `cpu`: `PaperScorer`, the network in LibTorch, with as many threads as PyTorch takes;
- `cuda`: the same on the GPU, in float32 and bfloat16, traces one by one and eight at once;
- `pytorch`: the paper's recipe in plain PyTorch on the same device (`lab/training/paper_net.py`),
  eager, one trace after the other.

The time is from tokens on the host to scores on the host. `share_of_bound` divides the least time
that the network's arithmetic takes at the device's peak (FLOPs as PyTorch counts them, over the
peak of the type in `devices.yaml`) by the measured time: section 6 of the notes on the detector
puts the bound of an H200 at 0.1 to 0.3 ms for a trace. Scores of both ways are compared.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from stage import ROOT, Stage, device_name, run_stage

WINDOWS = 100
TOGETHER = 8
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.03}
_TINY = {"width": 16, "layers": 1, "heads": 2, "feed_forward": 32, "cap": 8}


def score(stage: Stage) -> None:
    import torch

    from torchtraceap.diagnosis.scoring.paper import PaperConfig
    from torchtraceap.lab.training.paper_net import PaperNet

    torch.manual_seed(0)
    config = PaperConfig(**(_TINY if stage.tiny else {}))
    network = PaperNet(config).eval().requires_grad_(False)
    traces = _tokens(config, 20 if stage.tiny else WINDOWS)[: 1 if stage.tiny else None]
    rows: list[dict[str, Any]] = []
    about = {
        "windows": [each.tokens.window_count for each in traces],
        "events": [len(each.tokens) for each in traces],
        "parameters": sum(each.numel() for each in network.parameters()),
        "threads": torch.get_num_threads(),
        "flops_per_trace": _flops(network, config, traces),
    }

    def measured(way: str, precision: str, together: int, run: Callable[[Any], Any]) -> None:
        seconds, scores = _timed(run, traces, together, min(10.0, stage.left_s() / 4))
        bound = _bound_s(stage.device if way != "cpu" else "cpu", precision, about)
        rows.append(
            {
                "way": way,
                "precision": precision,
                "together": together,
                "traces_per_s": 1 / seconds,
                "ms_per_trace": 1e3 * seconds,
                "bound_ms": None if bound is None else 1e3 * bound,
                "share_of_bound": None if bound is None else bound / seconds,
                "largest_difference": _difference(rows, scores),
                "scores": scores,
            }
        )
        difference = rows[-1]["largest_difference"]
        if difference is not None and difference > _TOLERANCE[precision]:
            stage.failed = True
            stage.left_out.append(f"{way} {precision}: scores differ by {difference:.2g}")
        print(f"{way} {precision} x{together}: {1 / seconds:.4g} traces/s", flush=True)
        stage.keep(**about, rows=[{k: v for k, v in r.items() if k != "scores"} for r in rows])

    def by_scorer(way: str, precision: str, together: int) -> None:
        from torchtraceap.diagnosis.scoring.paper import PaperScorer

        scorer = PaperScorer(config, network.arrays(), precision=precision, device=way)
        measured(way, precision, together, scorer.score_tokens)

    def by_pytorch() -> None:
        there = network.to(stage.device)
        measured("pytorch", "float32", 1, lambda some: _in_pytorch(there, config, some, stage))

    by_scorers = [("cpu", "float32", 1)]
    if stage.on_gpu:
        kinds = ("float32", "bfloat16")
        by_scorers += [("cuda", kind, many) for kind in kinds for many in (1, TOGETHER)]
    stage.attempt("pytorch", by_pytorch)
    for asked in stage.each(by_scorers, 4.0):
        stage.attempt(" ".join(map(str, asked)), lambda asked=asked: by_scorer(*asked))


def _tokens(config: Any, windows: int) -> list[Any]:
    import torchtraceap as ttap
    from torchtraceap.diagnosis.scoring import common_bounds
    from torchtraceap.diagnosis.scoring.paper import paper_tokens

    traces = [ttap.load(path) for path in sorted((ROOT / "examples/traces").glob("*.json.gz"))]
    return [paper_tokens(each.ranks[0], common_bounds(each, windows), config) for each in traces]


def _in_pytorch(network: Any, config: Any, traces: Sequence[Any], stage: Stage) -> list[Any]:
    import torch

    from torchtraceap.diagnosis.scoring.paper import join_traces
    from torchtraceap.diagnosis.scoring.text_encoders import text_encoder
    from torchtraceap.lab.training.paper_net import batch_of

    encoder = text_encoder(config.text_encoder)
    with torch.inference_mode():
        return [
            network(batch_of(join_traces([each], config, encoder), stage.device))
            .scores.cpu().numpy().astype(np.float64)
            for each in traces
        ]  # fmt: skip


def _timed(
    run: Callable[[Any], Any], traces: Sequence[Any], together: int, seconds: float
) -> tuple[float, list[Any]]:
    """Median seconds for a trace, and the scores of every trace of the set."""
    scores = [run([each])[0] for each in traces]
    groups = [[each] * together for each in traces]
    for group in groups:
        run(group)
    times: list[float] = []
    until = time.monotonic() + seconds
    while len(times) < 50:
        began = time.perf_counter()
        for group in groups:
            run(group)  # scores come to the host, which waits for them
        times.append((time.perf_counter() - began) / (together * len(groups)))
        if time.monotonic() > until:
            break
    return statistics.median(times), scores


def _flops(network: Any, config: Any, traces: Sequence[Any]) -> float:
    """Return the FLOPs of a forward pass, mean over the traces, as PyTorch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    from torchtraceap.diagnosis.scoring.paper import join_traces
    from torchtraceap.diagnosis.scoring.text_encoders import text_encoder
    from torchtraceap.lab.training.paper_net import batch_of

    encoder = text_encoder(config.text_encoder)
    with FlopCounterMode(display=False) as counter:
        for each in traces:
            network(batch_of(join_traces([each], config, encoder)))
    return float(counter.get_total_flops()) / len(traces)


def _bound_s(device: str, precision: str, about: dict[str, Any]) -> float | None:
    from torchtraceap.ops.devices import find_device

    found = None if device == "cpu" else find_device(device_name(device))
    if found is None:
        return None
    rates = found.matrix if precision == "bfloat16" else found.vector
    rate = rates.get("bf16" if precision == "bfloat16" else "fp32")
    return None if not rate else float(about["flops_per_trace"]) / rate


def _difference(rows: list[dict[str, Any]], scores: list[Any]) -> float | None:
    """From the scores of the first way, over all traces; None of the first way itself."""
    if not rows:
        return None
    pairs = zip(rows[0]["scores"], scores, strict=True)
    return max(float(np.abs(one - other).max()) for one, other in pairs)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, score))
