"""Do two ranks of NCCL run on one GPU, if each claims another host?

    python benchmarks/device/nccl_two_ranks.py [--backend nccl] [--out FOLDER] [--timeout 120]

NCCL refuses two ranks on one device of one host, and takes `NCCL_HOSTID` for the host. So each rank
sets its own, and they meet over a socket of the loopback interface. Rank 0 trains; rank 1 is a
ghost: it computes nothing, and enters a collective when rank 0 has told it over a pipe, so that
what it does on the GPU is the other half of the same collective. A collective that never ends ends
with the timeout. The last line is a JSON object that says what was found; with `--out` that lies
there as result.json, with rank 0's trace. `--backend gloo` tries the same program on a CPU.

Exit code: 0 it works, 1 it does not, 2 there is nothing to try it on.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MIB = 1 << 20
SIZES = (16 << 10, 1 * MIB, 25 * MIB)  # bytes of a bucket: tiny, small, that of DDP
STEPS = 5


def main() -> int:
    """Runs both ranks and prints what they found."""
    asked = parsed_arguments()
    import torch

    if asked.backend == "nccl" and not torch.cuda.is_available():
        return finish({"works": None, "why": "there is no GPU of CUDA"}, 2, asked.out)
    found = tried(asked.backend, asked.timeout, asked.out)
    if asked.backend == "nccl":
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return finish({"torch": torch.__version__, **found}, 0 if found["works"] else 1, asked.out)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--out", type=Path, help="folder for rank 0's trace")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for everything")
    return parser.parse_args()


def finish(found: dict[str, Any], code: int, out: Path | None) -> int:
    words = {True: "two ranks ran", False: "two ranks did not run", None: "not tried"}
    print(f"{words[found['works']]}: {found['why']}")
    print(json.dumps(found))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "result.json").write_text(json.dumps(found) + "\n", "utf-8")
    return code


def tried(backend: str, timeout_s: float, out: Path | None) -> dict[str, Any]:
    """Starts the ranks, and ends them when the time is over."""
    context = get_context("spawn")
    orders, told = context.Pipe(duplex=False)
    answers, told_answers = context.Pipe(duplex=False)
    port = free_port()
    lead = context.Process(target=run, args=(lead_rank, 0, backend, port, told, told_answers, out))
    ghost = context.Process(target=run, args=(ghost_rank, 1, backend, port, orders, told_answers))
    for process in (lead, ghost):
        process.start()
    try:
        return first_answer(answers, (lead, ghost), time.monotonic() + timeout_s)
    finally:
        for process in (lead, ghost):
            process.kill()
            process.join()


def first_answer(answers: Connection, ranks: tuple[Any, ...], until: float) -> dict[str, Any]:
    while time.monotonic() < until:
        if answers.poll(0.2):
            found: dict[str, Any] = answers.recv()
            return found
        if all(process.exitcode is not None for process in ranks):
            codes = [process.exitcode for process in ranks]
            return {"works": False, "why": f"the ranks ended with {codes}, without a word"}
    return {"works": False, "why": "a collective did not end before the timeout"}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def run(
    work: Any, rank: int, backend: str, port: int, pipe: Connection, answers: Connection, *rest: Any
) -> None:
    """One process: joins the group, works, and says what went wrong."""
    os.environ |= {
        "NCCL_HOSTID": f"torchtraceap-{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_IB_DISABLE": "1",
        "NCCL_MAX_CTAS": "8",  # both ranks' blocks have to be on the GPU at once
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    try:
        import torch
        from torch import distributed as dist

        device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
        dist.init_process_group(backend, rank=rank, world_size=2)
        work(device, pipe, answers, *rest)
        dist.destroy_process_group()
    except Exception as error:
        last = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
        answers.send({"works": False, "why": f"rank {rank}: {last}"})


def lead_rank(device: Any, orders: Connection, answers: Connection, out: Path | None) -> None:
    """Computes, tells the ghost of each collective, and looks whether the sums are right."""
    import torch
    from torch import distributed as dist
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    matrix = torch.randn(1024, 1024, device=device)
    median_us = {}
    with profile(activities=activities, record_shapes=True) as profiler:
        for size in SIZES:
            values = torch.ones(size // 4, device=device)
            times = []
            for _ in range(STEPS):
                matrix = torch.tanh(matrix @ matrix)
                orders.send(size)
                values.fill_(1)
                began = time.perf_counter()
                work = dist.all_reduce(values, async_op=True)
                matrix = torch.tanh(matrix @ matrix)  # overlaps
                work.wait()
                if device.type == "cuda":
                    torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
                if not bool((values == 3).all()):
                    raise ArithmeticError(f"the sum of 1 and 2 came out as {values[0].item()}")
            median_us[size] = round(1e6 * sorted(times)[STEPS // 2], 1)
    orders.send(None)
    kernels = sorted({event.name for event in profiler.events() if "nccl" in event.name.lower()})
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(out / "nccl_two_ranks.json"))
    why = f"{len(SIZES) * STEPS} all-reduces with right sums"
    answers.send({"works": True, "why": why, "median_us": median_us, "names": kernels})


def ghost_rank(device: Any, orders: Connection, answers: Connection) -> None:
    """Enters a collective when told to, and does nothing else."""
    import torch
    from torch import distributed as dist

    while (size := orders.recv()) is not None:
        values = torch.full((size // 4,), 2.0, device=device)
        dist.all_reduce(values)
        if device.type == "cuda":
            torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
