"""Any bytes either are refused with TraceError or give an answer: as execution traces and memory
timelines, and as everything that is stored and read again.

Run by `tools/fuzz`; takes libFuzzer's options. Needs atheris (`pip install '.[fuzz]'`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(
    include=[
        "torchtraceap.trace.execution",
        "torchtraceap.tables.gpu.memory_timeline",
        "torchtraceap.core.stored",
        "torchtraceap.contracts.file",
        "torchtraceap.contracts.limits",
        "torchtraceap.explanation.completions",
        "torchtraceap.core.pickled",
        "torchtraceap.tables.serving.annotations",
    ]
):
    from torchtraceap.contracts.file import read_contracts
    from torchtraceap.core import stored
    from torchtraceap.explanation.completions import (
        Completion,
        CompletionError,
        Dialect,
        read_completion,
    )
    from torchtraceap.tables.gpu.memory_timeline import CATEGORIES, read_memory_timeline
    from torchtraceap.trace.execution import ExecutionTrace, load_execution_trace

from json_mutator import cross, mutate

import torchtraceap as ttap
from torchtraceap.core.table import ColumnTable
from torchtraceap.corpus import store as corpus
from torchtraceap.datasets.reader import DataSet, labeled_runs
from torchtraceap.diagnosis.scoring.weight_files import read_weights
from torchtraceap.errors import TraceError
from torchtraceap.explanation.cache import _reply_of
from torchtraceap.lab.bench.comparison.suites import read_suite
from torchtraceap.lab.bench.coverage import read_coverage
from torchtraceap.lab.bench.processes.programs import read_steps
from torchtraceap.lab.bench.rounds import Journal
from torchtraceap.lab.bench.runs import config
from torchtraceap.lab.bench.runs.run_store import Store
from torchtraceap.lab.collection.manifest import read_manifest
from torchtraceap.lab.evaluation.methods import read_scores
from torchtraceap.lab.prediction.parallel.placement import read_plan
from torchtraceap.lab.sharding.tables import read_tables
from torchtraceap.record.history import read_lines
from torchtraceap.tables.serving import annotations, capture

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


def check_corpus() -> None:
    stored = corpus.Store(str(CORPUS))
    stored.living(stored.batches())


LABELS, DATA_SET, RUNS = FOLDER / "labels", FOLDER / "set", FOLDER / "store"
CORPUS, CAPTURE = FOLDER / "corpus", FOLDER / "capture"
for place in (LABELS, DATA_SET, RUNS / "runs", CORPUS / "manifest", CAPTURE):
    place.mkdir(parents=True)
LINKED = {
    LABELS / "labels.jsonl": lambda: labeled_runs(LABELS),
    DATA_SET / "dataset.json": lambda: DataSet(DATA_SET).labels(),
    RUNS / "runs" / f"{'0' * 64}.json": lambda: Store(RUNS).runs(),
    CORPUS / "manifest" / "corpus.json": lambda: corpus.Store(str(CORPUS)).settings(),
    CORPUS / "manifest" / "20261129-00000000.json": check_corpus,
    CAPTURE / capture._DETAILS: lambda: capture._read_details(CAPTURE),
}
"""Files that are read under a name of their own, with what reads them."""
FILE.touch()
for name in LINKED:
    name.hardlink_to(FILE)
READERS = (
    stored.read_json, stored.read_toml, lambda path: list(stored.read_json_lines(path)),
    read_contracts, read_lines, read_coverage, read_steps, read_suite, read_manifest, read_tables,
    config.read_plan, lambda path: read_plan(str(path)), lambda path: Journal(path, {}),
    read_weights, read_scores, annotations._read_fields, annotations._read_stacks,
)  # fmt: skip


def check_stored(data: bytes) -> None:
    for read in (*(lambda read=read: read(FILE) for read in READERS), *LINKED.values()):
        with contextlib.suppress(TraceError):
            read()
    with contextlib.suppress(TraceError):
        found = stored.parse_json(data, "input")
        check(stored.parse_json(json.dumps(found), "again") == found, "what is read is JSON")
    with contextlib.suppress(CompletionError):
        read_completion([data], Completion())
    _reply_of(data)
    Dialect.from_json(data.decode("utf-8", "replace"))


def test_one_input(data: bytes) -> None:
    FILE.write_bytes(data)
    check_stored(data)
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
