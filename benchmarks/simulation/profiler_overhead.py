"""What torch.profiler adds to each host event, in CPU time: operators, and Python frames of stacks.

    python benchmarks/simulation/profiler_overhead.py

Needs torch, on a CPU. CPU time and the least of several rounds, so that other load on the machine
doesn't count. The defaults of `torchtraceap.simulation.profiler_overhead` come from here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

ROUNDS, CALLS = 15, 3000
X = torch.zeros(1)
W, B = torch.zeros(4, 4), torch.zeros(4)


def operators() -> None:
    """One operator a call."""
    torch.add(X, X)


def nested() -> None:
    """Operators in operators."""
    torch.nn.functional.linear(W, W, B)
    torch.nn.functional.layer_norm(W, (4,))


def frames() -> None:
    """Python frames around one operator."""
    outer()


def outer() -> None:
    middle()


def middle() -> None:
    inner()


def inner() -> None:
    torch.add(X, X)


def cpu_ns(work: Callable[[], None]) -> float:
    start = time.thread_time_ns()
    for _ in range(CALLS):
        work()
    return (time.thread_time_ns() - start) / CALLS


def kinds(profiler: profile) -> Counter[str]:
    counted: Counter[str] = Counter()
    for event in profiler.profiler.kineto_results.events():
        counted["python" if event.is_python_function() else "operator"] += 1
    return counted


def measure(work: Callable[[], None], with_stack: bool) -> tuple[float, float, Counter[str]]:
    """CPU time of a call without and with the profiler, and its events by kind."""
    plain = min(cpu_ns(work) for _ in range(ROUNDS))
    profiled = []
    counted: Counter[str] = Counter()
    for _ in range(ROUNDS):
        with profile(activities=[ProfilerActivity.CPU], with_stack=with_stack) as profiler:
            profiled.append(cpu_ns(work))
        counted = kinds(profiler)
    return plain, min(profiled), counted


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {ROUNDS} rounds of {CALLS} calls, least CPU time")
    print(
        f"{'work':10} {'stack':6} {'plain ns':>9} {'profiled':>9} {'operators':>9} "
        f"{'frames':>7} {'ns/event':>9}"
    )
    for work in (operators, nested, frames):
        for with_stack in (False, True):
            work()
            plain, profiled, counted = measure(work, with_stack)
            per_call = {kind: count / CALLS for kind, count in counted.items()}
            events = sum(per_call.values())
            print(
                f"{work.__name__:10} {with_stack!s:6} {plain:9.0f} {profiled:9.0f} "
                f"{per_call.get('operator', 0):9.1f} {per_call.get('python', 0):7.1f} "
                f"{(profiled - plain) / events:9.0f}"
            )


if __name__ == "__main__":
    main()
