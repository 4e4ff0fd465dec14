"""How true replays are, and how fast: tables for docs/results/simulation.md.

    python benchmarks/simulation/run.py [CORPUS]    # default: TORCHTRACEAP_CORPUS

Fidelity: a replay from dependencies alone against the measured step, beside the sum of the step's
kernels; steps replayed with what the other steps cost, beside the mean of these; waits found in
programs whose waits are known. Speed: engine, graph, fifty what-ifs.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import torchtraceap as ttap
from corpus import ROOT, default_corpus, runs
from torchtraceap import _core
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.trust import trust_of

sys.path.insert(0, str(ROOT / "tests" / "python"))
from wait_programs import make_program

MOST_NOISES = 1.5
"""The bound on held-out errors: times the coefficient of variation of the steps."""


def kernel_sum_error(run: SimulatedRun) -> float:
    """The trivial baseline: a step takes what its GPU events take, one after the other."""
    errors = []
    edges = run.edges_of("execution")
    for step, measured in zip(run.steps, run.measured_ns.tolist(), strict=True):
        mine = edges[np.isin(run.destination[edges], step.work)]
        if step.counted:
            errors.append(run.cost_ns[mine].sum() / measured - 1 if measured else 0.0)
    return float(np.median(errors)) if errors else 0.0


def print_fidelity(corpus: Path) -> None:
    print("replay without residuals against the measured iteration (mean, worst step)")
    print(f"{'trace':52} {'ranks':>5} {'steps':>5} {'mean':>8} {'worst':>8} {'kernels':>8}")
    single, every = [], []
    for name, run in runs(corpus):
        errors = run.step_errors
        if not len(errors):
            continue
        every += list(np.abs(errors))
        error = trust_of(run).iteration_error
        if len(run.ranks) == 1:
            single.append(abs(error))
        worst = errors[np.abs(errors).argmax()]
        print(
            f"{name[-52:]:52} {len(run.ranks):5} {len(errors):5} {error:+8.2%} "
            f"{worst:+8.2%} {kernel_sum_error(run):+8.0%}"
        )
    print(
        f"single ranks: n = {len(single)}, mean {np.mean(single):.2%}, largest {max(single):.2%}; "
        f"all {len(every)} steps: mean {np.mean(every):.2%}, largest {max(every):.2%}\n"
    )


def print_collectives(corpus: Path) -> None:
    folder = corpus / "param" / "dlrm_8ranks"
    if not folder.is_dir():
        return
    run = SimulatedRun(ttap.load(folder))
    off = run.replay(with_residuals=False) - run.graph.time_ns
    assert run.meetings is not None
    members = zip(run.meetings.rank.tolist(), run.meetings.row.tolist(), strict=True)
    ends = [int(run.graph.end_of(rank)[row]) for rank, row in members]
    apart = np.abs(off[ends]) / 1e3
    print(
        f"ends of {len(run.meetings)} collectives on {len(run.ranks)} ranks (n = {len(ends)}): "
        f"off by {apart.mean():.1f} us on average, {apart.max():.1f} us at most\n"
    )


def print_held_out(corpus: Path, least_steps: int = 3) -> None:
    """Steps of ranks that have three or more: fewer have no mean of others to speak of."""
    print("steps replayed with what the other steps of their rank cost (mean absolute error)")
    print("| trace | steps | alike | noise | error | error / noise | mean of the others |")
    print("|---|---|---|---|---|---|---|")
    within = better = unlike = count = 0
    for name, run in runs(corpus):
        held = trust_of(run).held_out
        if held is None or held.steps < least_steps * len(run.ranks):
            continue
        alike = steps_are_alike(run)
        ratio = held.error / held.noise if held.noise else 0.0
        count += 1
        within += ratio <= MOST_NOISES
        unlike += not alike
        better += not alike and held.error < held.baseline_error
        print(
            f"| {name} | {held.steps} | {'yes' if alike else 'no'} | {held.noise:.2%} "
            f"| {held.error:.2%} | {ratio:.2f} | {held.baseline_error:.2%} |"
        )
    print(
        f"within {MOST_NOISES} x noise: {within} of {count}; better than the mean of the others "
        f"where steps are not alike: {better} of {unlike}\n"
    )


def steps_are_alike(run: SimulatedRun) -> bool:
    """The steps of each rank launch the same kernels equally often."""
    for index, steps in enumerate(run.steps_by_rank):
        part = run.ranks[index]
        seen = set()
        for step in steps:
            names = part.table.name[run.graph.row[step.work[1:]]] if step.counted else None
            if names is not None:
                seen.add(tuple(np.sort(names).tolist()))
        if len(seen) > 1:
            return False
    return True


def print_recovery(seeds: range = range(2000, 2200)) -> None:
    print(f"waits between streams without sync rows, {len(seeds)} programs each")
    print(f"{'GPU work x':>10} {'waits':>6} {'precision':>9} {'recall':>7}")
    for scale in (0.1, 0.3, 1.0, 3.0, 10.0):
        right = wrong = missed = 0
        for seed in seeds:
            program = make_program(seed, scale=scale)
            found = _found(program.events)
            right += len(found & program.truth)
            wrong += len(found - program.truth)
            missed += len(program.truth - found)
        total = right + missed
        print(f"{scale:10} {total:6} {right / (right + wrong):9.3f} {right / total:7.3f}")
    print()


def _found(events: list[dict[str, object]]) -> set[tuple[int, int]]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"traceEvents": events}, file)
        file.flush()
        run = SimulatedRun(ttap.load(file.name))
    graph, table = run.graph, run.ranks[0].table
    edges = run.edges_of("stream_wait")
    edges = edges[graph.evidence[edges] == _core.evidence_names().index("inferred")]
    source = table.correlation[graph.row[graph.source[edges]]]
    destination = table.correlation[graph.row[run.destination[edges]]]
    return set(zip(source.tolist(), destination.tolist(), strict=True))


def least_s(work: Callable[[], object], rounds: int = 5) -> float:
    """Processor time."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def print_speed(corpus: Path, nodes: int = 1_000_000) -> None:
    rng = random.Random(1)
    durations = [rng.randrange(1000) for _ in range(nodes)]
    sources = [2 * (i - 1 - rng.randrange(min(i, 8))) + 1 for i in range(1, nodes)]
    graph = _core.plain_graph(durations, sources, range(2, 2 * nodes, 2), np.ones(nodes - 1))
    many = [None] * 20
    replayer = _core.BatchReplayer(graph, [0], [0, 1])
    seconds = least_s(lambda: replayer.run(many)) / len(many)
    print(f"engine: {nodes} nodes in {seconds * 1e3:.0f} ms, {nodes / seconds / 1e6:.0f} M nodes/s")
    path = corpus / "hta" / "ddp_a100_rank_of_8_control.json.gz"
    if not path.exists():
        return
    start = time.perf_counter()
    trace = ttap.load(path)
    load_s = time.perf_counter() - start
    build_s = least_s(lambda: SimulatedRun(trace))
    run = SimulatedRun(trace)
    executions = run.edges_of("execution")

    deltas = []
    for edit in range(50):
        delta = _core.GraphDelta()
        chosen = executions[edit::50]
        delta.set_lags(chosen, run.cost_ns[chosen] // 2)
        deltas.append(delta)
    work = np.arange(len(run.graph))
    once_s = least_s(lambda: _core.replay(run.graph))
    many_s = least_s(lambda: _core.replay_batch(run.graph, deltas, work, [0, len(work)]))
    print(
        f"{path.name}, {len(run.graph)} points: load {load_s * 1e3:.0f} ms, graph "
        f"{build_s * 1e3:.0f} ms, a replay {once_s * 1e3:.2f} ms, 50 what-ifs {many_s * 1e3:.0f} ms"
    )


def main() -> None:
    corpus = Path(sys.argv[1]) if len(sys.argv) > 1 else default_corpus()
    print_fidelity(corpus)
    print_collectives(corpus)
    print_held_out(corpus)
    print_recovery()
    print_speed(corpus)


if __name__ == "__main__":
    main()
