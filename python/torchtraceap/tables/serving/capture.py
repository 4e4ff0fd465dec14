"""`CaptureTraces`: the operators that were recorded into CUDA graphs, for the kernels that replay
them.

Note [Capture]: a replay launches the kernels of a graph by one call, so the operators, shapes and
modules behind them are nowhere in its trace. They were recorded when the graph was captured, and
engines can write a trace of that. There, what a thread launches between the begin and the end of a
capture is one graph, in order. The graphs that an iteration replays are held against as many
captured ones in a row; each is aligned with its replay by the order of its nodes. What the files
say decides, not how they are named. A graph of which less than 99 % aligns is refused: it is of
another model, batch or backend, and half of it would be worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import pluralize
from torchtraceap.core.records import dataclass
from torchtraceap.core.stored import parse_value, read_stored
from torchtraceap.errors import MissingFileError, ParseError, SchemaError
from torchtraceap.ops.kernel_names import canonical_name
from torchtraceap.ops.models.families import family_of
from torchtraceap.tables.serving.annotations import is_side_file
from torchtraceap.tables.serving.nodes import nodes_in_order
from torchtraceap.trace.ranks import RankTrace
from torchtraceap.trace.recordings import read_recording

__all__ = ["CaptureTraces", "CapturedGraph", "Replays", "find_captures"]

FOLDERS = ("capture_traces", "graph_capture_profile")
"""Names under which engines put traces of captures beside the others."""
LEAST_ALIGNED = 0.99
_CAPTURE = re.compile(r"capture_(\d{1,9})_")
_DETAILS = "execution_details.json"
_MOST_DETAILS_BYTES = 16 << 20
_MOST_TRIED = 64
"""Captured graphs that a replay is aligned with before it is given up."""
_DISPATCHES = (
    _core.ApiClass.KERNEL_LAUNCH,
    _core.ApiClass.COPY,
    _core.ApiClass.ASYNC_COPY,
    _core.ApiClass.MEMSET,
)


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """What one capture recorded, in order."""

    part: RankTrace
    begin_row: int
    """The call that begins the capture."""
    rows: Array
    """int64 `[dispatches]`: calls that add a node."""
    names: tuple[str | None, ...]
    """Name of the kernel or copy of each; None where the call does not record it."""
    operators: tuple[str | None, ...]
    batch: int | None
    """Tokens that the graph was captured for, by the engine's `capture_N_MODE`; else None."""


@dataclass(frozen=True, slots=True)
class Replays:
    """GPU events of replays with the calls that captured them; arrays have one entry per event."""

    events: Array
    """int64: index in `tree.gpu_rows`."""
    part: Array
    """int64: index in `parts`, the traces of captures."""
    rows: Array
    """int64: row of the captured call in the table of its part."""
    parts: tuple[RankTrace, ...]
    refused: tuple[str, ...] = ()
    """Sentences: graphs that no capture fits, and why."""


def find_captures(trace_path: str) -> Path | None:
    """Return the folder with traces of captures beside a trace, if there is one."""
    folder = Path(trace_path).parent
    places = (folder / name for name in FOLDERS if (folder / name).is_dir())
    return next((place for place in places if any(map(_is_trace, place.iterdir()))), None)


class CaptureTraces:
    """Traces of captures in a folder; each is read when it is first needed.

    Args:
        path: A folder, or one trace.
    """

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            self._files = [each for each in sorted(path.iterdir()) if _is_trace(each)]
        else:
            self._files = [path] if path.is_file() and not is_side_file(path) else []
        self._batches = _read_details(path)
        self._graphs: dict[Path, list[CapturedGraph]] = {}

    def __bool__(self) -> bool:
        return bool(self._files)

    def files_for(self, batch: int | None) -> list[Path]:
        """Return the files; where the engine noted their batches, those for the smallest that holds
        `batch` first."""

        def key(file: Path) -> tuple[bool, int]:
            known = self._batches.get(file.name, 0)
            return batch is not None and known < batch, known

        return sorted(self._files, key=key)

    def graphs(self, file: Path) -> list[CapturedGraph]:
        """Return the captured graphs of a file, in order.

        Raises:
            ParseError: It is no trace.
        """
        if file not in self._graphs:
            table = read_recording(str(file))
            self._graphs[file] = _captured_graphs(RankTrace(table, table.rank))
        return self._graphs[file]


def _is_trace(path: Path) -> bool:
    name = path.name.lower()
    ends = name.endswith((".json", ".json.gz", ".json.zst"))
    return ends and name != _DETAILS and path.is_file() and not is_side_file(path)


def _read_details(path: Path) -> dict[str, int]:
    """Return the batch of each file, by its name, as vLLM and SGLang note it beside the traces; it
    only decides which file is tried first, so a file that is damaged tells nothing."""
    try:
        text = read_stored(path / _DETAILS, most=_MOST_DETAILS_BYTES)
        entries = parse_value(text, _DETAILS)
    except (MissingFileError, SchemaError):
        return {}
    found = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            name, batch = entry.get("file"), entry.get("batch_size")
            if isinstance(name, str) and isinstance(batch, int):
                found[name] = batch
    return found


def _captured_graphs(part: RankTrace) -> list[CapturedGraph]:
    """Return what each capture of a rank recorded. A trace without begins and ends of captures is
    one graph."""
    table, tree = part.table, part.tree
    api = np.asarray(tree.api)
    calls = np.flatnonzero(np.isin(api, _DISPATCHES))
    building = np.flatnonzero(api == _core.ApiClass.GRAPH_BUILDING)
    texts = table.strings
    marks = _capture_marks(part)
    spans: list[tuple[int, int, int]] = []
    begins: dict[int, int] = {}
    for row in building.tolist():
        name, track = texts[table.name[row]], int(table.track[row])
        if "BeginCapture" in name:
            begins[track] = row
        elif "EndCapture" in name and track in begins:
            spans.append((begins.pop(track), row, track))
    if not spans and not begins and len(calls):
        spans = [(int(calls[0]) - 1, int(calls[-1]) + 1, int(table.track[calls[0]]))]
    codes, kernels = table.text_codes("kernel", calls)
    graphs = []
    for begin, end, track in sorted(spans):
        inside = (calls > begin) & (calls < end) & (table.track[calls] == track)
        rows = calls[inside]
        operators = [
            texts[table.name[op]] if op != _core.NO_ROW else None for op in tree.op[rows].tolist()
        ]
        names = [
            kernels[code] if code >= 0 else _name_of_call(int(api[row]), operator)
            for code, row, operator in zip(
                codes[inside].tolist(), rows.tolist(), operators, strict=True
            )
        ]
        if len(rows):
            batch = next((n for first, last, n in marks if first <= begin < last), None)
            graphs.append(CapturedGraph(part, begin, rows, tuple(names), tuple(operators), batch))
    return graphs


def _capture_marks(part: RankTrace) -> list[tuple[int, int, int]]:
    """Return first row, one past the last, and batch of each `capture_N_MODE`."""
    table = part.table
    texts = table.strings
    found = []
    for row in np.flatnonzero(table.kind == _core.EventKind.USER_ANNOTATION).tolist():
        if match := _CAPTURE.match(texts[table.name[row]]):
            end_ns = table.ts_ns[row] + table.dur_ns[row]
            found.append((row, int(np.searchsorted(table.ts_ns, end_ns)), int(match[1])))
    return found


def _name_of_call(api: int, operator: str | None) -> str | None:
    """Return what a call launches where it does not say: Triton kernels are called like the
    operator that launches them."""
    if api == _core.ApiClass.MEMSET:
        return "Memset"
    if api != _core.ApiClass.KERNEL_LAUNCH:
        return "Memcpy"
    return operator if operator and operator.startswith("triton_") else None


# ----------------------------------------------------------------------------- alignment


@dataclass(frozen=True, slots=True)
class _Keys:
    """Codes of names, so that equal ones mean the same kernel, family or kind of work."""

    codes: dict[str, int] = field(default_factory=dict)

    def code(self, text: str) -> int:
        return self.codes.setdefault(text, len(self.codes) + 1)

    def keys(self, names: Iterable[str | None], operators: Iterable[str | None]) -> Array:
        """Return uint64 `[n, 3]`: what `align_sequences` takes."""
        rows = [self._key(name, operator) for name, operator in zip(names, operators, strict=True)]
        return np.array(rows, dtype=np.uint64).reshape(-1, 3)

    def _key(self, name: str | None, operator: str | None) -> tuple[int, int, int]:
        work = _kind_of_work(name)
        family = work
        if work == "kernel":
            family = family_of("", [name]) if name else family_of(operator or "")
        detail = self.code(f"{work}/{family}")
        whole = self.code(f"{work}/{family}/{canonical_name(name)}") if name else detail
        return whole, detail, self.code(work)


def _kind_of_work(name: str | None) -> str:
    lower = (name or "").lower()
    if lower.startswith(("memcpy", "copybuffer", "__amd_rocclr_copybuffer")):
        return "copy"
    return "memset" if lower.startswith(("memset", "__amd_rocclr_fillbuffer")) else "kernel"


@dataclass(frozen=True, slots=True)
class Alignment:
    """Work that graphs replayed, held against what was captured or ran without graphs."""

    partner: Array
    """int64 `[events]`: the index of each event's dispatch or eager kernel, -1 for none."""
    equal: int
    """Events whose partner has the very same name."""
    fault: str
    """Why it is refused; empty where it is not."""


def align(names: Sequence[str], graph: CapturedGraph) -> Alignment:
    """Align a replay with a captured graph; 99 % of the events and of the dispatches have to agree.

    Args:
        names: Names of the replay's events, in the order of the graph's nodes.
        graph: What was captured.
    """
    partner = _partners(names, graph)
    aligned = np.flatnonzero(partner >= 0)
    pairs = zip(aligned.tolist(), partner[aligned].tolist(), strict=True)
    equal = sum(names[event] == graph.names[dispatch] for event, dispatch in pairs)
    if len(aligned) >= LEAST_ALIGNED * max(len(names), len(graph.names)):
        return Alignment(partner, equal, "")
    place = int(np.argmax(partner < 0)) if len(aligned) < len(names) else len(names) - 1
    fault = (
        f"{len(aligned)} of {len(names)} kernels align with {len(graph.names)} captured calls; the "
        f"first that does not is number {place}, {canonical_name(names[place])}"
    )
    return Alignment(partner, equal, fault)


def _partners(names: Sequence[str], graph: CapturedGraph) -> Array:
    if len(names) == len(graph.names) and _agree(names, graph):
        return np.arange(len(names))
    keys = _Keys()
    nothing = [None] * len(names)
    first, second = keys.keys(names, nothing), keys.keys(graph.names, graph.operators)
    recorded = {canonical_name(name) for name in graph.names if name is not None}
    if all(name is not None for name in graph.names):
        # Names alone decide where each call records them.
        for sequence in (first, second):
            sequence[:, 1] = sequence[:, 2] = sequence[:, 0]
    else:
        unnamed = [
            place for place, name in enumerate(names) if canonical_name(name) not in recorded
        ]
        first[unnamed, 0] = first[unnamed, 1]
    partner = _core.align_sequences(first, second).astype(np.int64)
    partner[partner == _core.NO_ROW] = -1
    return partner


def _agree(names: Sequence[str], graph: CapturedGraph) -> bool:
    """Do the events bear the names that were captured, one by one? 1 % may not."""
    wrong = 0
    for name, other in zip(names, graph.names, strict=True):
        work = _kind_of_work(name)
        if other is None:
            wrong += work != "kernel"
        elif work != _kind_of_work(other):
            wrong += 1
        elif work == "kernel":
            wrong += canonical_name(name) != canonical_name(other)
    return wrong <= (1 - LEAST_ALIGNED) * len(names)


class ReplayAligner:
    """Finds the captured graph of each replay of a rank.

    Replays of one graph have equal names, so each is aligned once with a captured graph.
    """

    def __init__(self, part: RankTrace, captures: CaptureTraces) -> None:
        self._part = part
        self._captures = captures
        self._names = part.table.strings
        self._aligned: dict[tuple[bytes, int], Alignment] = {}
        self._found: dict[tuple[Any, ...], Sequence[CapturedGraph | None] | None] = {}
        self._parts: list[RankTrace] = []
        self._refused: dict[str, None] = {}

    def align(self, groups: Sequence[tuple[Sequence[int], int | None]]) -> Replays:
        """Align all replays.

        Args:
            groups: For each iteration the rows of its graph launches in order, and the tokens that
                it processes, where the engine tells.
        """
        events: list[Array] = [np.zeros(0, dtype=np.int64)]
        parts, rows = list(events), list(events)
        for launches, batch in groups:
            replays = [nodes_in_order(self._part, row) for row in launches]
            replays = [replay for replay in replays if len(replay)]
            graphs = self._graphs_of(replays, batch)
            if graphs is None and len(replays) > 1:
                # The graphs of an iteration may come from several captures: a draft, a sampler.
                alone = [self._graphs_of([replay], batch) for replay in replays]
                graphs = [found[0] if found else None for found in alone]
            for replay, graph in zip(replays, graphs or [None] * len(replays), strict=True):
                if graph is None:
                    continue
                partner = self._align(replay, graph).partner
                found = partner >= 0
                events.append(replay[found])
                rows.append(graph.rows[partner[found]])
                parts.append(np.full(int(found.sum()), self._number(graph.part), dtype=np.int64))
        return Replays(
            events=np.concatenate(events),
            part=np.concatenate(parts),
            rows=np.concatenate(rows),
            parts=tuple(self._parts),
            refused=tuple(self._refused),
        )

    def _number(self, part: RankTrace) -> int:
        for number, other in enumerate(self._parts):
            if other is part:
                return number
        self._parts.append(part)
        return len(self._parts) - 1

    def _codes(self, replay: Array) -> Array:
        return self._part.table.name[self._part.tree.gpu_rows[replay]]

    def _align(self, replay: Array, graph: CapturedGraph) -> Alignment:
        codes = self._codes(replay)
        key = (codes.tobytes(), id(graph))
        if key not in self._aligned:
            self._aligned[key] = align([self._names[code] for code in codes.tolist()], graph)
        return self._aligned[key]

    def _graphs_of(
        self, replays: Sequence[Array], batch: int | None
    ) -> Sequence[CapturedGraph | None] | None:
        """Return as many captured graphs in a row as fit the replays of an iteration; kept."""
        if not replays:
            return None
        key = (batch, *(self._codes(replay).tobytes() for replay in replays))
        if key not in self._found:
            self._found[key] = self._find(replays, batch)
        return self._found[key]

    def _find(self, replays: Sequence[Array], batch: int | None) -> Sequence[CapturedGraph] | None:
        best: Sequence[CapturedGraph] | None = None
        most, tried, why = -1, 0, ""
        batches: set[int] = set()
        for window in self._windows(len(replays), batch):
            captured = window[0].batch
            if batch is not None and captured is not None and captured < batch:
                batches.add(captured)
                continue
            if tried == _MOST_TRIED or not _like_in_size(replays, window):
                continue
            tried += 1
            found = [self._align(*pair) for pair in zip(replays, window, strict=True)]
            faults = [alignment.fault for alignment in found if alignment.fault]
            if faults:
                why = why or faults[0]
                continue
            equal = sum(alignment.equal for alignment in found)
            if equal > most:  # of equal ones the first, which has the smallest batch
                best, most = window, equal
            if captured is not None and captured == batch:
                break
        if best is None:
            sizes = ", ".join(str(len(replay)) for replay in replays[:4])
            if not why and batches:
                known = ", ".join(str(each) for each in sorted(batches)[-8:])
                why = f"the captures are of at most {known} tokens, the iteration has {batch}"
            self._refused.setdefault(
                f"No capture fits {pluralize(len(replays), 'graph')} of {sizes}"
                f"{', ...' * (len(replays) > 4)} kernels: {why or 'none has about as many calls'}."
            )
        return best

    def _windows(self, length: int, batch: int | None) -> Iterator[Sequence[CapturedGraph]]:
        """Give captured graphs that stand in a row, those of the right batch first."""
        for file in self._captures.files_for(batch):
            try:
                graphs = self._captures.graphs(file)
            except ParseError as error:
                self._refused.setdefault(f"{file.name} is no trace of a capture: {error}")
                continue
            for first in range(len(graphs) - length + 1):
                window = graphs[first : first + length]
                if window[0].batch == window[-1].batch:
                    yield window


def _like_in_size(replays: Sequence[Array], graphs: Sequence[CapturedGraph]) -> bool:
    """Could all of the graphs align? A tenth more or less is worth a try, so that a refusal can say
    where they differ."""
    return all(
        abs(len(replay) - len(graph.rows)) <= max(2, len(replay) // 10)
        for replay, graph in zip(replays, graphs, strict=True)
    )
