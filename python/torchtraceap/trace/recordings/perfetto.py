"""Read Perfetto's own format (`.pftrace`, also packed with gzip).

Slices of tracks are events of the host, or of a GPU by their category; render stages of a GPU, as
the CUPTI monitor of torch.profiler writes them, are its work. The numbers of fields are those of
`perfetto_trace.proto`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.records import dataclass
from torchtraceap.errors import ParseError, TraceError
from torchtraceap.trace.recordings.protobuf import double, inflate, read_bytes, signed, walk
from torchtraceap.trace.recordings.recording import EventGroup, Recording

__all__ = ["read"]

_FORMAT = "a Perfetto trace"
_LACKS = ("properties of devices", "directions of copies where their names say none")
_BEGIN, _END = 1, 2
_REALTIME, _BOOTTIME = 1, 6
_DEEPEST = 20
_CATEGORIES = {"hip_api": "cuda_runtime", "hsa_api": "cuda_driver", "kernel_dispatch": "kernel",
               "memory_copy": "gpu_memcpy", "marker_api": "user_annotation"}  # fmt: skip
"""What rocprofv3 calls them."""
_STAGES = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset",
           "Annotation": "gpu_user_annotation"}  # fmt: skip
"""What the CUPTI monitor calls them."""
_ARGUMENTS = {"corr_id": "correlation", "device id": "device", "stream id": "stream",
              "context id": "context"}  # fmt: skip
_GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_COMPUTE = 2  # the category of a stage


def read(path: PathLike) -> Recording:
    """Read all packets of a file.

    Raises:
        ParseError: It is no trace of Perfetto, or damaged.
    """
    try:
        packets = _Packets()
        packets.add_all(read_bytes(path))
        return packets.recording()
    except TraceError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise ParseError(f"{path}: {_FORMAT} is damaged: {error}") from None


@dataclass(frozen=True, slots=True)
class _Track:
    parent: int = 0
    name: str = ""
    pid: int | None = None
    tid: int | None = None


@dataclass(frozen=True, slots=True)
class _Event:
    """What slices and render stages have in common."""

    time_ns: int
    name: str
    category: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Slice(_Event):
    """The begin or the end of a slice."""

    track: int
    launched: tuple[int, ...]
    """Ids of the render stages that it submitted."""


@dataclass(frozen=True, slots=True)
class _Stage(_Event):
    """Work of a GPU."""

    dur_ns: int
    event: int


class _Clock:
    """A clock that a sequence of packets defines for itself."""

    def __init__(self, start: int, boot_ns: int | None, unit: int, is_incremental: bool) -> None:
        self._last = start * unit
        self._offset = 0 if boot_ns is None else boot_ns - self._last
        self._unit = unit
        self._is_incremental = is_incremental

    def to_boot(self, stamp: int) -> int:
        if self._is_incremental:
            self._last += stamp * self._unit
            return self._last + self._offset
        return stamp * self._unit + self._offset


class _Sequence:
    """What the packets of one writer say once and refer to later."""

    def __init__(self) -> None:
        self.texts: dict[tuple[int, int], str] = {}
        """Texts by the field of the interned data and id."""
        self.compute_stages: set[int] = set()
        self.clocks: dict[int, _Clock] = {}
        self.track = self.clock = 0

    def text(self, kind: int, iid: Any) -> str:
        return self.texts.get((kind, iid), "")


# Fields of InternedData.
_EVENT_CATEGORIES, _EVENT_NAMES, _ARG_NAMES, _ARG_TEXTS = 1, 2, 3, 29
_GPU_SPECIFICATIONS, _COMPUTE_KERNELS = 24, 1000


class _Packets:
    """All that the packets of a trace say."""

    def __init__(self) -> None:
        self._sequences: dict[int, _Sequence] = defaultdict(_Sequence)
        self._tracks: dict[int, _Track] = {}
        self._processes: dict[int | str, str] = {}
        self._slices: list[tuple[int, _Slice]] = []
        self._stages: list[_Stage] = []
        self._base_ns = 0
        self._left_out: dict[str, int] = defaultdict(int)

    # ------------------------------------------------------------------------------ packets

    def add_all(self, data: bytes, depth: int = 0) -> None:
        for number, value in walk(data):
            if number == 1 and isinstance(value, bytes):
                self._add(value, depth)

    def _add(self, data: bytes, depth: int) -> None:
        found = dict(walk(data))
        sequence = self._sequences[_number(found.get(10))]
        if _number(found.get(13)) & 1 or found.get(41):
            sequence.texts.clear()
            sequence.compute_stages.clear()
        if isinstance(snapshot := found.get(6), bytes):
            self._read_clocks(sequence, snapshot)
        if isinstance(defaults := found.get(59), bytes):
            self._read_defaults(sequence, defaults)
        if isinstance(interned := found.get(12), bytes):
            self._read_interned(sequence, interned)
        if isinstance(track := found.get(60), bytes):
            self._read_track(track)
        if isinstance(event := found.get(11), bytes):
            self._read_event(sequence, self._time(sequence, found), event)
        if isinstance(stage := found.get(53), bytes):
            self._read_stage(sequence, self._time(sequence, found), stage)
        if isinstance(packed := found.get(50), bytes) and depth < 2:
            self.add_all(inflate(packed, 15), depth + 1)

    @staticmethod
    def _time(sequence: _Sequence, found: Mapping[int, int | bytes]) -> int:
        stamp = _number(found.get(8))
        clock = sequence.clocks.get(_number(found.get(58)) or sequence.clock)
        return clock.to_boot(stamp) if clock else stamp

    def _read_clocks(self, sequence: _Sequence, data: bytes) -> None:
        clocks = [dict(walk(value)) for number, value in walk(data)
                  if number == 1 and isinstance(value, bytes)]  # fmt: skip
        at = {_number(clock.get(1)): _number(clock.get(2)) for clock in clocks}
        boot = at.get(_BOOTTIME)
        if boot is not None and _REALTIME in at:
            self._base_ns = max(0, at[_REALTIME] - boot)
        for clock in clocks:
            number = _number(clock.get(1))
            if number != _BOOTTIME:
                sequence.clocks[number] = _Clock(
                    at[number], boot, _number(clock.get(4)) or 1, bool(clock.get(3))
                )

    @staticmethod
    def _read_defaults(sequence: _Sequence, data: bytes) -> None:
        for number, value in walk(data):
            if number == 58:
                sequence.clock = _number(value)
            elif number == 11 and isinstance(value, bytes):
                sequence.track = _number(dict(walk(value)).get(11))

    @staticmethod
    def _read_interned(sequence: _Sequence, data: bytes) -> None:
        for kind, value in walk(data):
            if not isinstance(value, bytes):
                continue
            found = dict(walk(value))
            text = found.get(3) if kind == _COMPUTE_KERNELS and found.get(3) else found.get(2)
            if isinstance(text, bytes):
                sequence.texts[kind, _number(found.get(1))] = _text(text)
            if kind == _GPU_SPECIFICATIONS and found.get(4) == _COMPUTE:
                sequence.compute_stages.add(_number(found.get(1)))

    def _read_track(self, data: bytes) -> None:
        found = dict(walk(data))
        name = _text(found.get(2)) or _text(found.get(10)) or _text(found.get(13))
        pid = tid = None
        if isinstance(process := found.get(3), bytes):
            about = dict(walk(process))
            pid = signed(_number(about.get(1)))
            if said := _text(about.get(6)):
                self._processes[pid] = said
        if isinstance(thread := found.get(4), bytes):
            about = dict(walk(thread))
            pid, tid = signed(_number(about.get(1))), signed(_number(about.get(2)))
            name = _text(about.get(5)) or name
        self._tracks[_number(found.get(1))] = _Track(_number(found.get(5)), name, pid, tid)

    # ------------------------------------------------------------------------------ events

    def _read_event(self, sequence: _Sequence, time_ns: int, data: bytes) -> None:
        kind, track, name = 0, sequence.track, ""
        categories: list[str] = []
        launched: tuple[int, ...] = ()
        args: dict[str, Any] = {}
        for number, value in walk(data):
            if number == 9:
                kind = _number(value)
            elif number == 11:
                track = _number(value)
            elif number == 10:
                name = sequence.text(_EVENT_NAMES, value)
            elif number == 23:
                name = _text(value)
            elif number == 3:
                categories += [sequence.text(_EVENT_CATEGORIES, iid) for iid in _numbers(value)]
            elif number == 22:
                categories.append(_text(value))
            elif number == 4 and isinstance(value, bytes):
                key, found = _annotation(sequence, value)
                args[_ARGUMENTS.get(key, key)] = found
            elif number == 3000 and isinstance(value, bytes):
                launched = tuple(i for n, v in walk(value) if n == 1 for i in _numbers(v))
        if kind not in (_BEGIN, _END):
            self._left_out["instants, counters and legacy events"] += 1
            return
        category = next(filter(None, categories), "") or "user_annotation"
        category = _CATEGORIES.get(category, category)
        self._slices.append((kind, _Slice(time_ns, name, category, args, track, launched)))

    def _read_stage(self, sequence: _Sequence, time_ns: int, data: bytes) -> None:
        found = dict(walk(data))
        if 2 not in found:
            return  # it describes stages, and is none
        args: dict[str, Any] = {"device": _number(found.get(11))}
        queue = found.get(13, found.get(3))
        for number, value in walk(data):
            if number == 6 and isinstance(value, bytes):
                pair = dict(walk(value))
                key = _text(pair.get(1))
                args[_ARGUMENTS.get(key, key)] = _parsed(_text(pair.get(2)))
            elif number == 21 and isinstance(value, bytes):
                launch = dict(walk(value))
                for key, part in (("grid", launch.get(1)), ("block", launch.get(2))):
                    if isinstance(part, bytes):
                        sizes = dict(walk(part))
                        args[key] = tuple(_number(sizes.get(axis)) for axis in (1, 2, 3))
        stage = _number(found.get(14))
        said = sequence.text(_GPU_SPECIFICATIONS, stage)
        category = _STAGES.get(said) or (
            "kernel" if stage in sequence.compute_stages or not said else said
        )
        name = (
            _text(found.get(17))
            or sequence.text(_EVENT_NAMES, found.get(20))
            or sequence.text(_COMPUTE_KERNELS, found.get(19))
            or said
            or "kernel"
        )
        args.setdefault("stream", _number(queue))
        length = signed(_number(found[2]))
        self._stages.append(_Stage(time_ns, name, category, args, length, _number(found.get(1))))

    # ------------------------------------------------------------------------------ result

    def recording(self) -> Recording:
        pairs, unpaired = _pair(self._slices)
        threads: dict[tuple[int | str, int | str], str] = {}
        places = {
            track: self._place(track, number, threads)
            for number, track in enumerate(dict.fromkeys(begin.track for begin, _ in pairs))
        }
        self._link([begin for begin, _ in pairs])
        for begin, _ in pairs:
            if begin.category in _GPU_WORK:
                begin.args.setdefault("device", 0)
                begin.args.setdefault("stream", places[begin.track][1] % 2**32)
        streams = [(_integer(s.args["device"]), _integer(s.args["stream"])) for s in self._stages]
        threads |= {pair: f"stream {pair[1]}" for pair in streams}
        groups = [
            EventGroup(
                name=[begin.name or "slice" for begin, _ in pairs],
                category=[begin.category for begin, _ in pairs],
                start_ns=[begin.time_ns for begin, _ in pairs],
                dur_ns=[end_ns - begin.time_ns for begin, end_ns in pairs],
                pid=[places[begin.track][0] for begin, _ in pairs],
                tid=[places[begin.track][1] for begin, _ in pairs],
                args=_columns([begin.args for begin, _ in pairs]),
            ),
            EventGroup(
                name=[stage.name for stage in self._stages],
                category=[stage.category for stage in self._stages],
                start_ns=[stage.time_ns for stage in self._stages],
                dur_ns=[stage.dur_ns for stage in self._stages],
                pid=[device for device, _ in streams],
                tid=[stream for _, stream in streams],
                args=_columns([stage.args for stage in self._stages]),
            ),
        ]
        return Recording(
            format=_FORMAT,
            groups=groups,
            process_names=self._processes,
            thread_names=threads,
            metadata={"baseTimeNanoseconds": self._base_ns} if self._base_ns else {},
            lacks=_LACKS,
            left_out={**self._left_out, "begins and ends without the other": unpaired},
        )

    def _place(
        self, uuid: int, number: int, threads: dict[tuple[int | str, int | str], str]
    ) -> tuple[int, int]:
        """Return process and thread of a track, and name the thread."""
        track = self._tracks.get(uuid, _Track())
        above, seen = track, 0
        while above.pid is None and above.parent in self._tracks and seen < _DEEPEST:
            above, seen = self._tracks[above.parent], seen + 1
        # A track that is no thread's gets a number that no thread has.
        tid = track.tid if track.tid is not None else 2**32 + number
        place = above.pid or 0, tid
        if track.name:
            threads.setdefault(place, track.name)
        return place

    def _link(self, begins: Sequence[_Slice]) -> None:
        """Give calls and the stages that they submitted a common correlation id."""
        stages = {stage.event: stage for stage in self._stages if stage.event}
        every = [one.args for one in begins] + [one.args for one in self._stages]
        known = [args.get("correlation") for args in every]
        free = max((value for value in known if type(value) is int), default=0)
        for begin in begins:
            if not begin.launched or "correlation" in begin.args:
                continue
            work = [stages[event] for event in begin.launched if event in stages]
            said = [stage.args["correlation"] for stage in work if "correlation" in stage.args]
            free += not said
            begin.args["correlation"] = said[0] if said else free
            for stage in work:
                stage.args.setdefault("correlation", begin.args["correlation"])


# ------------------------------------------------------------------------------ values


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _numbers(value: int | bytes) -> list[int]:
    """Return the values of a field of numbers, written alone or together."""
    if isinstance(value, int):
        return [value]
    found, number, shift = [], 0, 0
    for byte in value:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 63:
            found.append(number)
            number = shift = 0
    return found


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _integer(value: Any) -> int:
    return value if type(value) is int and -(2**63) < value < 2**63 else 0


def _parsed(text: str) -> Any:
    """Return the value of a text: extra data of a stage is text, whatever it was."""
    if len(text) < 19 and text.lstrip("-").isdecimal() and text.isascii():
        return int(text)
    return text


def _annotation(sequence: _Sequence, data: bytes, depth: int = 0) -> tuple[str, Any]:
    """Return name and value of an annotation; lists are tuples, dictionaries JSON text."""
    name = ""
    found: Any = None
    items: list[Any] = []
    entries: dict[str, Any] = {}
    for number, value in walk(data):
        if number == 1:
            name = sequence.text(_ARG_NAMES, value)
        elif number == 10:
            name = _text(value)
        elif number in (3, 7):
            found = value if isinstance(value, int) and value < 2**63 else str(value)
        elif number == 4:
            found = signed(value)
        elif number == 2:
            found = bool(value)
        elif number == 5:
            found = double(value)
        elif number in (6, 9):
            found = _text(value)
        elif number == 17:
            found = sequence.text(_ARG_TEXTS, value)
        elif number in (11, 12) and isinstance(value, bytes) and depth < _DEEPEST:
            key, inner = _annotation(sequence, value, depth + 1)
            if number == 12:
                items.append(inner)
            else:
                entries[key] = inner
    if items:
        return name, tuple(items)
    return name, json.dumps(entries) if entries else found


def _columns(args: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    keys = dict.fromkeys(key for one in args for key in one)
    return {key: [one.get(key) for one in args] for key in keys}


# ------------------------------------------------------------------------------ pairs

_Pairs = list[tuple[_Slice, int]]


def _pair(slices: Sequence[tuple[int, _Slice]]) -> tuple[_Pairs, int]:
    """Return begins with the times of their ends, and how many of either lack the other.

    Ends name only their track. Writers that follow time write an end behind all that is inside; a
    writer that has whole slices at hand, as the CUPTI monitor, writes many begins and then their
    ends in the same order. The second is believed where its slices would nest.
    """
    pairs: _Pairs = []
    loose: list[tuple[int, int, int, _Slice]] = []
    for begins, ends in _runs(slices):
        made = _by_order(begins, ends)
        if made is not None:
            pairs += made
            continue
        loose += [(one.time_ns, len(loose) + i, _BEGIN, one) for i, one in enumerate(begins)]
        loose += [(one.time_ns, len(loose) + i, _END, one) for i, one in enumerate(ends)]
    loose.sort(key=lambda entry: entry[:2])
    open_slices: dict[int, list[_Slice]] = defaultdict(list)
    unpaired = 0
    for time_ns, _, kind, one in loose:
        stack = open_slices[one.track]
        if kind == _BEGIN:
            stack.append(one)
        elif stack:
            pairs.append((stack.pop(), time_ns))
        else:
            unpaired += 1
    return pairs, unpaired + sum(map(len, open_slices.values()))


def _runs(slices: Sequence[tuple[int, _Slice]]) -> Iterator[tuple[list[_Slice], list[_Slice]]]:
    """Yield begins that stand together with the ends that follow them."""
    begins: list[_Slice] = []
    ends: list[_Slice] = []
    for kind, one in slices:
        if kind == _BEGIN and ends:
            yield begins, ends
            begins, ends = [], []
        (begins if kind == _BEGIN else ends).append(one)
    yield begins, ends


def _by_order(begins: Sequence[_Slice], ends: Sequence[_Slice]) -> _Pairs | None:
    """Pair begins and ends by their places; None where that makes no slices that nest."""
    if len(begins) != len(ends):
        return None
    pairs = list(zip(begins, ends, strict=True))
    if any(a.track != b.track or b.time_ns < a.time_ns for a, b in pairs):
        return None
    open_ends: dict[int, list[int]] = defaultdict(list)
    for begin, end in sorted(pairs, key=lambda pair: (pair[0].time_ns, -pair[1].time_ns)):
        stack = open_ends[begin.track]
        while stack and stack[-1] <= begin.time_ns:
            stack.pop()
        if stack and stack[-1] < end.time_ns:
            return None
        stack.append(end.time_ns)
    return [(begin, end.time_ns) for begin, end in pairs]
