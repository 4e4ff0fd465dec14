"""Any file either is refused with TraceError or gives a table that is kept and read again as it is:
exports of Nsight Systems, JSON of rocprofv3, Perfetto's and XLA's protocol buffers, Arrow columns.

Run by `tools/fuzz`; takes libFuzzer's options. Needs atheris (`pip install '.[fuzz]'`) and pyarrow.
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
    include=[
        "torchtraceap.trace.recordings",
        "torchtraceap.trace.column_file",
        "torchtraceap.trace.event_columns",
        "torchtraceap.trace.packed_file",
    ]
):
    import torchtraceap.trace.recordings.nsight
    import torchtraceap.trace.recordings.perfetto
    import torchtraceap.trace.recordings.rocprofv3
    import torchtraceap.trace.recordings.xplane
    from torchtraceap.trace.packed_file import read_packed, write_packed
    from torchtraceap.trace.recordings import losses_of, read_recording

from json_mutator import cross, mutate
from made_files import made_file

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.errors import TraceError

FOLDER = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
FILE, KEPT = FOLDER / "recording", FOLDER / "kept"


def check(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def check_table(table: _core.EventTable) -> None:
    check(len(table) > 0, "a table has events")
    losses_of(table)
    text = _core.trace_json(table)
    write_packed(table, KEPT, pack=False)
    check(_core.trace_json(read_packed(KEPT, threads=1)) == text, "what was kept is the same")


def test_one_input(data: bytes) -> None:
    FILE.write_bytes(made_file(data))
    try:
        table = read_recording(FILE, threads=1)
    except TraceError as error:
        check("\n" not in str(error), "an error is one line")
        return
    check_table(table)
    with contextlib.suppress(TraceError):
        ttap.load(FILE, threads=1).summary()


def custom_mutator(data: bytes, max_size: int, seed: int) -> bytes:
    return mutate(data, max_size, Random(seed), atheris.Mutate)


def custom_crossover(data: bytes, other: bytes, max_size: int, seed: int) -> bytes:
    return cross(data, other, max_size, Random(seed))


if __name__ == "__main__":
    # Imports of the first run may take longer than a run is given.
    for seed in (Path(__file__).parent / "recordings").iterdir():
        test_one_input(seed.read_bytes())
    atheris.Setup(
        sys.argv,
        test_one_input,
        custom_mutator=custom_mutator,
        custom_crossover=custom_crossover,
    )
    atheris.Fuzz()
