"""Write what a torch profiler recorded into a file: once, whole, never over another file, and
without what names a machine or a person's environment.

The recording is searched as bytes and never parsed as a whole: a trace may be larger than memory,
and every event has to stay exactly as the profiler wrote it. A quoted key cannot occur inside a
JSON string (its quotes would be escaped), so a key followed by a colon is one.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from torchtraceap.core.writing import first_free, naming, staging
from torchtraceap.errors import OutputError
from torchtraceap.record.process_state import state_events, state_metadata

__all__ = [
    "DESCRIPTION",
    "RECORDED",
    "TraceNames",
    "as_nccl_records",
    "copy_without_private_data",
    "export_raw",
    "export_trace",
    "holds_work",
    "pack_trace",
]

SUFFIXES = (".json.gz", ".json")
DEFAULT_WORKER = "trace"
_TAIL_BYTES = 64
HOST_KEYS = (b"host_name", b"hostname")
ENVIRONMENT_KEYS = (b"env", b"environ", b"environment")
TRACE_NAME_KEY = b"traceName"
EVENTS_KEY = b"traceEvents"
BASE_TIME_KEY = b"baseTimeNanoseconds"

# The training process waits for it: on the 35 MB of examples/traces/resnet50_num_workers_0 level 6
# gives 1.15 MB in 0.15 s, level 9 gives 1.01 MB in 0.45 s (zlib of CPython 3.11).
GZIP_LEVEL = 6
COPY_BYTES = 4 << 20

_COLON = re.compile(rb"\s*:\s*")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NAME_BEFORE = re.compile(rb'"name"\s*:\s*$')
_NUMBER = re.compile(rb"\d{1,19}")
_ARRAY_END = re.compile(rb"\s*\]")
_COMMA_AFTER = re.compile(rb"\s*,")
_COMMA_BEFORE = re.compile(rb",\s*$")
# What the profiler writes even when nothing ran while it recorded: its own record and the marks
# of steps. Events of any other category are work.
_WORK = re.compile(rb'"cat"\s*:\s*"(?!Trace"|user_annotation"|gpu_user_annotation"|")')

Text = bytes | mmap.mmap
DESCRIPTION = "emu::record_param_comms"
"""Name under which a collective is described while it is recorded."""
RECORDED = "record_param_comms"
"""Name of the profiler's own descriptions."""
_KERNEL_FIELDS = (
    "Collective name",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "dtype",
    "In split size",
    "Out split size",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
)


class TraceNames:
    """File names of one recording: `RUN/worker_rank0.json.gz` in a folder.

    A path that ends in `.json` or `.json.gz` names the file itself; of several ranks each but the
    first gets its rank in the name. Where a file is in the way there is a number behind the name.

    Args:
        path: A folder, or a file to be.
        rank: Of this process.
        run: Name of the folder of the recording inside `path`.
        worker_name: First part of the name in a folder.
        use_gzip: Of files in a folder.
        always_folder: `path` is a folder, whatever its name ends in.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rank: int,
        run: str,
        worker_name: str | None = None,
        use_gzip: bool = True,
        always_folder: bool = False,
    ) -> None:
        path = Path(path)
        suffix = next((s for s in SUFFIXES if path.name.lower().endswith(s)), None)
        if always_folder or path.is_dir():
            suffix = None
        self.rank = rank
        self._is_file = suffix is not None
        self.suffix = suffix if suffix is not None else SUFFIXES[0 if use_gzip else 1]
        self.parent = path.parent if self._is_file else path
        """The folder that is given."""
        self.folder = self.parent if self._is_file else path / run
        """That of the file."""
        stem = path.name[: -len(self.suffix)] if self._is_file else worker_name or DEFAULT_WORKER
        self._stem = re.sub(r"[^\w.-]+", "_", stem) if not self._is_file else stem
        self.parent.mkdir(parents=True, exist_ok=True)

    @property
    def use_gzip(self) -> bool:
        return self.suffix.endswith(".gz")

    def candidates(self) -> Iterator[Path]:
        """Yield names in the order in which they are tried."""
        has_rank = self.rank > 0 or not self._is_file
        stem = f"{self._stem}_rank{self.rank}" if has_rank else self._stem
        yield self.folder / f"{stem}{self.suffix}"
        number = 2
        while True:
            yield self.folder / f"{stem}_{number}{self.suffix}"
            number += 1


def export_trace(
    profiler: Any,
    names: TraceNames,
    *,
    unfinished: str | None = None,
    state: dict[str, Any] | None = None,
) -> Path | None:
    """Export what a stopped torch profiler holds.

    The file appears under its name when it is complete; a profiler exports once only, so whatever
    goes wrong afterwards must not need a second export.

    Args:
        profiler: That of torch.
        names: Where the file goes.
        unfinished: A step that had begun when the profiler was stopped; see `pack_trace`.
        state: Of the process meanwhile; see `pack_trace`.

    Returns:
        The file, or None when the profiler holds nothing but its own marks (a discarded or empty
        cycle): there is then no file.

    Raises:
        OutputError: The disk is full, or there is another reason why it can't be written.
    """
    with _folder_of(names), naming(names.folder), staging(names.folder) as folder:
        raw = export_raw(profiler, folder)
        return None if raw is None else _pack(raw, folder, names, unfinished, state)


def export_raw(profiler: Any, folder: Path) -> Path | None:
    """Export what a stopped torch profiler holds as it is, private data and all.

    Returns:
        The file, for `pack_trace`; None where the profiler wrote none.
    """
    raw = folder / "recording.json"
    profiler.export_chrome_trace(str(raw))
    return raw if raw.exists() and raw.stat().st_size else None


def pack_trace(
    raw: Path,
    names: TraceNames,
    *,
    unfinished: str | None = None,
    state: dict[str, Any] | None = None,
) -> Path | None:
    """Move what `export_raw` wrote to its place, without private data.

    Args:
        raw: Stays where it is.
        names: Where the file goes.
        unfinished: The name of a step that had begun when the profiler was stopped. torch ends its
            range there, as if it were a short step; it gets another name, and is none.
        state: What `ProcessState.finish` returned: it becomes events of the trace.

    Returns:
        The file; None where nothing was recorded.

    Raises:
        OutputError: It can't be written, or the profiler had no room for the whole of it.
    """
    with _folder_of(names), naming(names.folder), staging(names.folder) as folder:
        return _pack(raw, folder, names, unfinished, state)


@contextlib.contextmanager
def _folder_of(names: TraceNames) -> Iterator[None]:
    """Make the folder of a recording, which goes again if there was nothing to write."""
    with naming(names.folder):
        names.folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if names.folder != names.parent:
            with contextlib.suppress(OSError):  # it holds something
                names.folder.rmdir()


def _pack(
    raw: Path,
    folder: Path,
    names: TraceNames,
    unfinished: str | None,
    state: dict[str, Any] | None,
) -> Path | None:
    with raw.open("rb") as file:
        file.seek(max(0, raw.stat().st_size - _TAIL_BYTES))
        if not file.read().rstrip().endswith(b"}"):
            raise OutputError(f"{names.folder}: the profiler wrote only a part of its file")
    packed = folder / f"packed{names.suffix}"
    with packed.open("xb") as target:
        worth_keeping = copy_without_private_data(
            raw, target, use_gzip=names.use_gzip, unfinished=unfinished, state=state
        )
    return first_free(packed, names.candidates()) if worth_keeping else None


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """Bytes [start, end) of the text, to be replaced by `replacement`."""

    start: int
    end: int
    replacement: bytes = b""


def copy_without_private_data(
    source: Path,
    target: BinaryIO,
    *,
    use_gzip: bool,
    unfinished: str | None = None,
    state: dict[str, Any] | None = None,
) -> bool:
    """Copy an exported trace without host names, environment variables and folder names.

    Args:
        source: Plain JSON text as `export_chrome_trace` wrote it.
        target: Open binary file that takes the copy.
        use_gzip: Compress the copy.
        unfinished: The name of a step whose range is none of a whole step.
        state: Of the process while it was recorded, to be added.

    Returns:
        True if the trace holds work; a discarded cycle leaves marks only.
    """
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        cuts = private_cuts(text, unfinished)
        if state is not None:
            cuts = sorted([*cuts, *state_cuts(text, state)])
        pieces = kept_pieces(text, cuts)
        if use_gzip:
            # No name and no time in the header: the file then depends on the trace alone.
            with gzip.GzipFile("", "wb", GZIP_LEVEL, target, mtime=0) as packed:
                packed.writelines(pieces)
        else:
            target.writelines(pieces)
        return holds_work(text)


def holds_work(text: Text) -> bool:
    """Return True if anything but the profiler's own marks was recorded."""
    return _WORK.search(text) is not None


def private_cuts(text: Text, unfinished: str | None = None) -> list[Cut]:
    """Return what to cut, in order and disjoint; also the name of a step that was cut short."""
    cuts = [*member_cuts(text, HOST_KEYS, (b'"',)), *member_cuts(text, ENVIRONMENT_KEYS, (b"{",))]
    cuts.extend(trace_name_cuts(text))
    cuts.extend(emulated_cuts(text))
    cuts.extend(unfinished_cuts(text, unfinished))
    disjoint: list[Cut] = []
    for cut in sorted(cuts):
        if not disjoint or cut.start >= disjoint[-1].end:
            disjoint.append(cut)
    return disjoint


def member_cuts(text: Text, keys: tuple[bytes, ...], openings: tuple[bytes, ...]) -> Iterator[Cut]:
    """Yield members `"key": value` whole, with the comma that parted them, for values that open
    so."""
    for key in keys:
        for start, value in find_members(text, key):
            if text[value : value + 1] in openings:
                end = value_end(text, value)
                if end is not None:
                    yield widen_to_comma(text, start, end)


def trace_name_cuts(text: Text) -> Iterator[Cut]:
    """Yield the path of the temporary file that the profiler wrote to: its folders may name a
    person."""
    for _, value in find_members(text, TRACE_NAME_KEY):
        match = _STRING.match(text, value)
        if match is not None:
            base = re.split(rb"[/\\]+", match[0][1:-1])[-1]
            yield Cut(match.start(), match.end(), b'"' + base + b'"')


def emulated_cuts(text: Text) -> Iterator[Cut]:
    """Yield descriptions of emulated collectives, for the name that they can't be recorded
    under."""
    recorded = b'"' + DESCRIPTION.encode() + b'"'
    for at in _places(text, recorded):
        yield Cut(at, at + len(recorded), b'"' + RECORDED.encode() + b'"')


def unfinished_cuts(text: Text, name: str | None) -> Iterator[Cut]:
    """Yield the ranges of a step that was cut short, for a name that is none of a step."""
    if name is None:
        return
    quoted = b'"' + name.encode() + b'"'
    for at in _places(text, quoted):
        if _NAME_BEFORE.search(bytes(text[max(0, at - 16) : at])):
            renamed = b'"unfinished ' + quoted[1:].replace(b"#", b" ")
            yield Cut(at, at + len(quoted), renamed)


def state_cuts(text: Text, state: dict[str, Any]) -> Iterator[Cut]:
    """Yield where the state of the process is added: in front of the first event, and of the
    member that holds them."""
    base_ns = 0
    for _, value in find_members(text, BASE_TIME_KEY):
        if (number := _NUMBER.match(text, value)) is not None:
            base_ns = int(number[0])
            break
    for start, value in find_members(text, EVENTS_KEY):
        if text[value : value + 1] == b"[":
            yield Cut(start, start, state_metadata(state) + b",\n    ")
            events = state_events(state, base_ns)
            comma = b"" if _ARRAY_END.match(text, value + 1) else b",\n"
            if events:
                yield Cut(value + 1, value + 1, b"\n" + events + comma)
            return


def find_members(text: Text, key: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start of the quoted key and the start of its value, for each member of that
    name."""
    quoted = b'"' + key + b'"'
    for at in _places(text, quoted):
        colon = _COLON.match(text, at + len(quoted))
        if colon is not None:
            yield at, colon.end()


def _places(text: Text, word: bytes) -> Iterator[int]:
    """Yield where a word stands in a text."""
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + len(word))


def value_end(text: Text, start: int) -> int | None:
    """Return the end of the string or object that starts there; None if it has none."""
    if text[start : start + 1] == b'"':
        match = _STRING.match(text, start)
        return match.end() if match is not None else None
    size = 1 << 16
    while True:
        # Latin-1 keeps one character per byte, so that the position is one in the text.
        window = bytes(text[start : start + size]).decode("latin-1")
        try:
            return start + json.JSONDecoder(strict=False).raw_decode(window)[1]
        except (json.JSONDecodeError, RecursionError):
            if start + size >= len(text):
                return None
            size *= 8


def widen_to_comma(text: Text, start: int, end: int) -> Cut:
    after = _COMMA_AFTER.match(text, end)
    if after is not None:
        return Cut(start, after.end())
    before = _COMMA_BEFORE.search(bytes(text[max(0, start - 256) : start]))
    return Cut(start - (len(before[0]) if before is not None else 0), end)


def kept_pieces(text: Text, cuts: list[Cut]) -> Iterator[bytes]:
    at = 0
    for cut in [*cuts, Cut(len(text), len(text))]:
        for begin in range(at, cut.start, COPY_BYTES):
            yield bytes(text[begin : min(begin + COPY_BYTES, cut.start)])
        yield cut.replacement
        at = cut.end


def as_nccl_records(document: dict[str, Any]) -> dict[str, Any]:
    """Rename the descriptions of collectives, and gives them to their kernels, in place.

    Args:
        document: A Chrome trace as `json.load` gives it.

    Returns:
        The same document.
    """
    events = [each for each in document.get("traceEvents", []) if isinstance(each, dict)]
    described: dict[object, dict[str, Any]] = {}
    for event in events:
        if event.get("name") == DESCRIPTION:
            event["name"] = RECORDED
            described[event["args"].get("External id")] = event["args"]
    for event in events:
        # A launch has the id of the innermost operator around it, which is the description.
        about = described.get(event.get("args", {}).get("External id"))
        if about is not None and str(event.get("name", "")).startswith("ncclDevKernel_"):
            event["args"].update({key: about[key] for key in _KERNEL_FIELDS if key in about})
    return document
