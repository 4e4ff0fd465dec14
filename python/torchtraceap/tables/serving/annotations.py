"""What `torch.cuda.graph_annotations` noted of the nodes of CUDA graphs while they were captured.

Note [Annotations]: `mark_kernels` gives kernels a name, the path of a module, whether they belong
to a backward pass, and what a collective exchanges. These stand among the arguments of replayed
kernels where torch wrote them into the trace; else in a pickle beside it, by the id of the node:
either as the trace has it, or `(graph id << 32) | node id`. The Python stacks of the launches
(`dump_kernel_py_stacks`) are in a file of JSON by the same ids.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeGuard

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import TextCodes, encode_texts
from torchtraceap.core.formatting import short_repr
from torchtraceap.core.records import dataclass
from torchtraceap.core.stored import parse_json, read_stored
from torchtraceap.errors import SchemaError
from torchtraceap.tables.events import event_text
from torchtraceap.tables.serving.nodes import GraphNodes, graph_nodes
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "Annotations",
    "SideFiles",
    "fill",
    "is_side_file",
    "read_annotations",
    "scatter",
    "with_messages",
]

_MOST_BYTES = 64 << 20
_MOST_STACKS_BYTES = 256 << 20
_MOST_TEXT = 1 << 16
"""The longest text of a field that becomes an argument of each event of its node."""
_PICKLES = (".pkl", ".pickle")
_RANK = re.compile(r"rank_?(\d{1,9})")
_STACKS = re.compile(rb'\s*\{\s*(?:"\d{1,20}"\s*:|\}\s*$)')
_NAMES = ("Collective name", "name", "str", "annotation")
"""Fields that tell what a kernel belongs to, the one that is closest to an operator first; torch
2.13 writes a mark without a dict as `str`."""
_PATH = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
_MOST_DIGITS = 20
_NUMBERS = tuple(
    re.compile(rf"(?:^|\.){list_name}(\d{{1,6}})(?=\.|$)")
    for list_name in (r"(?:layers?|blocks?|h)\.", "")
)
"""Where the path of a module has the number of its layer, the surest first."""
_FIELDS = (*_NAMES, "module_fqn", "autograd_phase")
_MESSAGE = (
    "Collective name", "In msg nelems", "Out msg nelems", "In split size", "Out split size",
    "dtype", "Group size", "Process Group Name", "Process Group Description",
    "Process Group Ranks", "Global rank start", "Global rank stride", "Seq", "Rank", "Src Rank",
    "Dst Rank", "stream",
)  # fmt: skip
"""Fields that tell of a collective what it exchanges, with whom and on which stream."""
_Fields = dict[str, str | int]
"""What was noted of a node."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """What was noted of each of `tree.gpu_rows`."""

    known: Array
    """bool: something was."""
    operator: TextCodes
    module: TextCodes
    layer: Array
    """int64: the number in the path of the module, as in `layers.3.mlp`; -1 without one."""
    phase: TextCodes
    """`backward` for kernels of a backward pass, by `autograd_phase`."""
    stack: TextCodes
    """Frames as `file:line:function`, the innermost first, a line each."""


@dataclass(frozen=True, slots=True)
class SideFiles:
    """Files of annotations and of stacks."""

    annotations: tuple[Path, ...] = ()
    stacks: tuple[Path, ...] = ()

    @classmethod
    def of(cls, part: RankTrace, capture: Path | None) -> SideFiles:
        """Find the files of a rank in the folder of its trace, and in `capture` or there itself;
        annotations also one folder up, where torch looks for them."""
        folder = Path(part.path).parent
        paths = [*_files(folder), *filter(_is_annotations, _files(folder.parent))]
        if capture is not None and capture.is_dir():
            paths = [*_files(capture), *paths]
        own = [path for path in paths if _rank_of(path) in (None, part.rank or 0)]
        annotations = [path for path in own if _is_annotations(path)]
        stacks = [path for path in own if "py_stacks" in path.name and _is_stacks(path)]
        if capture is not None and capture.suffix in _PICKLES:
            annotations = [capture, *annotations]
        elif capture is not None and capture.is_file() and _is_stacks(capture):
            stacks = [capture, *stacks]
        return cls(tuple(annotations), tuple(stacks))


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in sorted(folder.iterdir()) if path.is_file()]
    except OSError:
        return []


def _rank_of(path: Path) -> int | None:
    match = _RANK.search(path.name)
    return int(match[1]) if match else None


def _is_annotations(path: Path) -> bool:
    return path.suffix in _PICKLES and "annotations" in path.name


def is_side_file(path: Path) -> bool:
    """Return whether a file is no trace but one of annotations, by its name, or of stacks."""
    return path.suffix in _PICKLES or _is_stacks(path)


def _is_stacks(path: Path) -> bool:
    """Return whether a file holds an object with numbers as keys."""
    try:
        data = read_stored(path, most=1 << 12, partly=True)
        return _STACKS.match(_unpacked(data, 1 << 10, str(path))) is not None
    except (SchemaError, FileNotFoundError):
        return False


def _unpacked(data: bytes, most: int, source: str) -> bytes:
    """Return at most so many bytes of what may be compressed with gzip."""
    if not data.startswith(b"\x1f\x8b"):
        return data[:most]
    try:
        return zlib.decompressobj(wbits=31).decompress(data, most)
    except zlib.error as error:
        raise SchemaError(f"{source}: can't be decompressed: {error}") from None


def read_annotations(part: RankTrace, files: SideFiles) -> tuple[Annotations, tuple[str, ...]]:
    """Return what was noted of the events of a rank, and sentences that say which files can't be
    used. See Note [Annotations].

    A file tells of a node what the trace and the files before it don't.
    """
    nodes, rows = graph_nodes(part), part.tree.gpu_rows.astype(np.int64)
    places = np.flatnonzero(nodes.replayed)
    size = len(rows)
    columns = {
        field: scatter(size, places, TextCodes(*part.table.text_codes(field, rows[places])))
        for field in _FIELDS
    }
    stack = encode_texts([None] * size)
    problems = []
    for path in files.annotations:
        try:
            noted = _read_fields(path)
        except (SchemaError, FileNotFoundError) as error:
            problems.append(f"Annotations were left out: {error}.")
            continue
        for field, column in columns.items():
            of_node = {
                key: text
                for key, fields in noted.items()
                if isinstance(text := fields.get(field), str)
            }
            columns[field] = fill(column, _of_nodes(nodes, of_node))
    for path in files.stacks:
        try:
            stack = fill(stack, _of_nodes(nodes, _read_stacks(path)))
        except (SchemaError, FileNotFoundError) as error:
            problems.append(f"Stacks were left out: {error}.")
    return _annotations(columns, stack), tuple(problems)


def with_messages(
    part: RankTrace, capture: Path | None
) -> tuple[_core.EventTable, _core.EventTree]:
    """Return the table and the tree of a rank with what files note of its replayed collectives
    among their arguments, as torch's `annotate_trace` writes it; rows stay the same. Kept.

    Args:
        part: The rank.
        capture: As of `SideFiles.of`.
    """
    return part.cached(("messages", str(capture)), lambda: _with_messages(part, capture))


def _with_messages(
    part: RankTrace, capture: Path | None
) -> tuple[_core.EventTable, _core.EventTree]:
    table, nodes = part.table, graph_nodes(part)
    places = np.flatnonzero(nodes.replayed & nodes.known)
    noted: dict[int, _Fields] = {}
    for path in SideFiles.of(part, capture).annotations if len(places) else ():
        with suppress(SchemaError, FileNotFoundError):  # `read_annotations` tells of it
            for key, fields in _read_fields(path).items():
                noted[key] = {**fields, **noted.get(key, {})}
    keys = zip(nodes.whole[places].tolist(), nodes.node[places].tolist(), strict=True)
    found = [noted.get(whole) or noted.get(node) or {} for whole, node in keys]
    rows = part.tree.gpu_rows[places].astype(np.int64)
    told = np.array([_MESSAGE[0] in fields for fields in found], dtype=bool)
    # Events that begin and end together stand by their content, so that others would change rows.
    told[told] = _stand_alone(table)[rows[told]]
    if not told.any():
        return table, part.tree
    kept = np.ones(len(table), dtype=np.uint8)
    kept[rows[told]] = 0
    texts = []
    for place in np.flatnonzero(told).tolist():
        row, fields = int(rows[place]), found[place]
        event = json.loads(table.event_json(row))
        message = {key: fields[key] for key in _MESSAGE if key in fields}
        args = {**message, **event.get("args", {})}
        if isinstance(stream := fields.get("stream"), int):
            event["tid"] = args["stream"] = stream
        times = {"ts": int(table.ts_ns[row]), "dur": int(table.dur_ns[row])}
        texts.append(event_text({**event, **times, "args": args}))
    edited = _core.edit_table(
        table,
        ts_ns=table.ts_ns,
        dur_ns=table.dur_ns,
        kept=kept,
        correlation=table.correlation,
        more_events=texts,
    )
    return edited, _core.build_tree(edited)


def _stand_alone(table: _core.EventTable) -> Array:
    """Return for each row whether no other begins and ends with it."""
    order = np.lexsort((table.dur_ns, table.ts_ns))
    ts_ns, dur_ns = table.ts_ns[order], table.dur_ns[order]
    same = np.concatenate([[False], (np.diff(ts_ns) == 0) & (np.diff(dur_ns) == 0), [False]])
    alone = np.empty(len(table), dtype=bool)
    alone[order] = ~(same[:-1] | same[1:])
    return alone


def scatter(size: int, places: Array, values: TextCodes) -> TextCodes:
    """Return a column of so many rows with values at some places, absent elsewhere."""
    codes = np.full(size, -1, dtype=np.int32)
    codes[places] = values.codes
    return TextCodes(codes, values.texts)


def fill(column: TextCodes, other: TextCodes) -> TextCodes:
    """Return a column with what another has where it is absent."""
    if not len(other.texts):
        return column
    moved = np.where(other.codes >= 0, other.codes + np.int32(len(column.texts)), -1)
    codes = np.where(column.codes >= 0, column.codes, moved).astype(np.int32)
    return TextCodes(codes, [*column.texts, *other.texts]).compact()


def _of_nodes(nodes: GraphNodes, noted: Mapping[int, str]) -> TextCodes:
    """Return what was noted of each event: by the id with that of the graph, else by the id as it
    is recorded."""
    places = np.flatnonzero(nodes.replayed & nodes.known)
    pairs, index = np.unique(
        np.stack([nodes.whole[places], nodes.node[places]]), axis=1, return_inverse=True
    )
    found = encode_texts(noted.get(whole, noted.get(node)) for whole, node in pairs.T.tolist())
    return scatter(len(nodes.node), places, found.take(index.reshape(-1)))


# ----------------------------------------------------------------------------- reading


def _read_fields(path: Path) -> dict[int, _Fields]:
    """Return the fields of each node of a pickle: a dict of lists of dicts or texts, of which the
    last counts, as torch has it."""
    from torchtraceap.core.pickled import parse_pickle  # only here: start-up counts

    source = str(path)
    value = parse_pickle(read_stored(path, most=_MOST_BYTES), source)
    if not isinstance(value, dict):
        raise SchemaError(f"{source}: expected annotations by node id, not {type(value).__name__}")
    found: dict[int, _Fields] = {}
    # A pickle may refer to one list from many places, and to itself: each is read once, and flat.
    told: dict[int, _Fields] = {}
    lists: dict[int, str | None] = {}
    for key, marks in value.items():
        if not isinstance(key, int) or not isinstance(marks, list | tuple):
            raise SchemaError(f"{source}: expected lists of annotations by node id")
        if id(marks) not in told:
            told[id(marks)] = _fields_of(marks, lists)
        found[key] = told[id(marks)]
    return found


def _fields_of(marks: Sequence[object], lists: dict[int, str | None]) -> _Fields:
    fields: _Fields = {}
    for mark in marks:
        given = mark if isinstance(mark, dict) else {"annotation": mark}
        texts = {field: given.get(field) for field in _FIELDS}
        fields |= {field: text for field, text in texts.items() if text and _is_text(text)}
        values = {field: _plain(given.get(field), lists) for field in _MESSAGE}
        fields |= {field: value for field, value in values.items() if value is not None}
    return fields


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _plain(value: object, lists: dict[int, str | None]) -> str | int | None:
    """Return a text, an integer of 64 bits, or a list of those as text; None for anything else."""
    if isinstance(value, list | tuple):
        if id(value) not in lists:
            parts = [_scalar(each) for each in value]
            text = json.dumps(parts)
            lists[id(value)] = None if None in parts or len(text) > _MOST_TEXT else text
        return lists[id(value)]
    return _scalar(value)


def _scalar(value: object) -> str | int | None:
    if isinstance(value, str):
        return value if 0 < len(value) <= _MOST_TEXT else None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
        return value
    return None


def _read_stacks(path: Path) -> dict[int, str]:
    """Return the frames of each node, a line each."""
    source = str(path)
    text = _unpacked(read_stored(path, most=_MOST_BYTES), _MOST_STACKS_BYTES + 1, source)
    if len(text) > _MOST_STACKS_BYTES:
        raise SchemaError(f"{source}: has more than {_MOST_STACKS_BYTES:,} bytes")
    found = {}
    for key, frames in parse_json(text, source).items():
        lines = frames.split("\n") if isinstance(frames, str) else frames
        if not key.isascii() or not key.isdigit() or len(key) > _MOST_DIGITS:
            raise SchemaError(f"{source}: expected ids of nodes, not {short_repr(key)}")
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise SchemaError(f"{source}: expected the frames of node {key}")
        found[int(key)] = "\n".join(lines)
    return found


# ----------------------------------------------------------------------------- meaning


def _annotations(columns: Mapping[str, TextCodes], stack: TextCodes) -> Annotations:
    """Say what the fields mean: a name that is a path, such as `layers.3.mlp`, is a module."""
    name, module = columns[_NAMES[0]], columns["module_fqn"]
    for field in _NAMES[1:]:
        name = fill(name, columns[field])
    is_path = np.array([*(bool(_PATH.fullmatch(text)) for text in name.texts), False], dtype=bool)
    paths = is_path[name.codes] & (module.codes < 0)
    module = fill(module, TextCodes(np.where(paths, name.codes, -1).astype(np.int32), name.texts))
    layers = [_layer_of(path) for path in module.texts]
    return Annotations(
        known=(name.codes >= 0) | (module.codes >= 0),
        operator=TextCodes(np.where(paths, -1, name.codes).astype(np.int32), name.texts),
        module=module,
        layer=np.array([*layers, -1], dtype=np.int64)[module.codes],
        phase=columns["autograd_phase"],
        stack=stack,
    )


def _layer_of(path: str) -> int:
    found = (match for numbers in _NUMBERS if (match := numbers.search(path)))
    return next((int(match[1]) for match in found), -1)
