"""Any bytes either are refused with TraceError or give tables: execution traces, memory timelines.

Run by `tools/fuzz`; takes libFuzzer's options. Needs atheris (`pip install '.[fuzz]'`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(
    include=["torchtraceap.trace.execution", "torchtraceap.tables.gpu.memory_timeline"]
):
    from torchtraceap.tables.gpu.memory_timeline import CATEGORIES, read_memory_timeline
    from torchtraceap.trace.execution import ExecutionTrace, load_execution_trace

from json_mutator import cross, mutate

import torchtraceap as ttap
from torchtraceap.core.table import ColumnTable
from torchtraceap.errors import TraceError

FOLDER = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
FILE = FOLDER / "document.json"
KINETO = Path(__file__).parent / "kineto.json"
TRACE = ttap.load(KINETO)


def check(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def check_table(table: ColumnTable) -> None:
    lengths = {len(table[name]) for name in table.columns}
    check(lengths <= {table.num_rows}, "columns have one length")
    table.to_dict()


def check_execution(execution: ExecutionTrace) -> None:
    nodes, found = execution.nodes, execution.dependencies
    check_table(nodes)
    check_table(found)
    check(nodes.num_rows > 0, "an execution trace has nodes")
    known = set(nodes["node"].tolist())
    check(len(known) == nodes.num_rows, "ids of nodes are unique")
    ends = (*found["producer"].tolist(), *found["consumer"].tolist())
    check(known.issuperset(ends), "a dependency is one between nodes")
    linked = execution.link(TRACE)
    check_table(linked.matches)
    check_table(linked.gpu_dependencies)
    check(known.issuperset(linked.rows), "what is linked is a node")


def check_timeline(table: ColumnTable) -> None:
    check_table(table)
    check(table.columns[0] == "time_ns" and len(CATEGORIES) + 2 == len(table.columns), "columns")
    times = table["time_ns"].tolist()
    check(times == sorted(set(times)), "times rise")


def test_one_input(data: bytes) -> None:
    FILE.write_bytes(data)
    with contextlib.suppress(TraceError):
        check_execution(load_execution_trace(FILE))
    with contextlib.suppress(TraceError):
        check_timeline(read_memory_timeline(FILE))


def custom_mutator(data: bytes, max_size: int, seed: int) -> bytes:
    return mutate(data, max_size, Random(seed), atheris.Mutate)


def custom_crossover(data: bytes, other: bytes, max_size: int, seed: int) -> bytes:
    return cross(data, other, max_size, Random(seed))


if __name__ == "__main__":
    atheris.Setup(
        sys.argv,
        test_one_input,
        custom_mutator=custom_mutator,
        custom_crossover=custom_crossover,
    )
    atheris.Fuzz()
