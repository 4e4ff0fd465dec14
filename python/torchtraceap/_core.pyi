"""Types of the C++ core. Written by tools/update_stubs.py: do not edit."""

from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import os
import typing
import typing_extensions

__all__: list[str] = [
    "ArrowTable",
    "Device",
    "Diagnostic",
    "EventTable",
    "EventTree",
    "FeatureBlock",
    "Finding",
    "GpuCosts",
    "HAS_DURATION",
    "HAS_TIME",
    "IdleBreakdown",
    "MATCHED_END",
    "NO_ID",
    "NO_ROW",
    "NO_STRING",
    "REPAIRED",
    "Step",
    "Stream",
    "Timeline",
    "Track",
    "WindowSet",
    "arrow_columns",
    "arrow_events",
    "build_features",
    "build_tree",
    "build_windows",
    "detect",
    "detector_types",
    "device_timelines",
    "explain_idle",
    "gpu_class_names",
    "gpu_costs",
    "gpu_intervals",
    "idle_cause_names",
    "kind_names",
    "phase_names",
    "quantize_delays_ns",
    "quantize_durations_ns",
    "read_trace",
    "read_trace_bytes",
    "timeline",
    "timelines",
    "trace_json",
    "write_trace",
]

class Track:
    """
    A (pid, tid) pair as written, with its names.
    """
    @property
    def pid(self) -> str:
        """
        As text.
        """
    @property
    def pid_number(self) -> int | None:
        """
        As an integer, if it is one.
        """
    @property
    def process_labels(self) -> str:
        """
        Or empty.
        """
    @property
    def process_name(self) -> str:
        """
        Or empty.
        """
    @property
    def thread_name(self) -> str:
        """
        Or empty.
        """
    @property
    def tid(self) -> str:
        """
        As text.
        """
    @property
    def tid_number(self) -> int | None:
        """
        As an integer, if it is one.
        """

class Device:
    """
    One entry of deviceProperties.
    """
    @property
    def compute_major(self) -> int | None:
        """
        Compute capability.
        """
    @property
    def compute_minor(self) -> int | None:
        """
        Compute capability.
        """
    @property
    def id(self) -> int | None:
        """
        Index of the device.
        """
    @property
    def memory_bytes(self) -> int | None:
        """
        Global memory.
        """
    @property
    def name(self) -> str:
        """
        Or empty.
        """
    @property
    def sm_count(self) -> int | None:
        """
        Multiprocessors.
        """

class Diagnostic:
    """
    What could not be taken at face value, counted.
    """
    @property
    def code(self) -> str:
        """
        Listed in docs/errors.md.
        """
    @property
    def count(self) -> int:
        """
        Occurrences.
        """
    @property
    def first_byte_offset(self) -> int | None:
        """
        In the decompressed text, if it has a place there.
        """
    @property
    def message(self) -> str:
        """
        For a person.
        """

class EventTable:
    """
    One rank's trace as columns of equal length, sorted by start, longer first.
    """
    def __len__(self) -> int: ...
    def args_json(self, row: typing.SupportsInt | typing.SupportsIndex) -> str:
        """
        JSON text of an event's args.
        """
    def event_json(self, row: typing.SupportsInt | typing.SupportsIndex) -> str:
        """
        JSON text of a whole event.
        """
    def int_column(
        self, key: str
    ) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.bool]]:
        """
        One key of args as integers [n], and where there is one [n].
        """
    def name_of(self, row: typing.SupportsInt | typing.SupportsIndex) -> str:
        """
        Name of an event.
        """
    def text_codes(
        self, key: str, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64] | None = None
    ) -> tuple[numpy.typing.NDArray[numpy.int32], list[str]]:
        """
        One key of args for all rows, or for the given ones: codes int32 [n] into the distinct texts, -1 where absent.
        """
    def text_column(self, key: str) -> list[str | None]:
        """
        One key of args [n]: strings unescaped, the rest as JSON text.
        """
    @property
    def backend(self) -> str:
        """
        Of distributedInfo, or empty.
        """
    @property
    def category(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: index in strings, or NO_STRING.
        """
    @property
    def correlation(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: args.correlation, or NO_ID.
        """
    @property
    def device(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        int32 [n]: args.device, -1 if absent.
        """
    @property
    def devices(self) -> list[Device]:
        """
        Of deviceProperties.
        """
    @property
    def diagnostics(self) -> list[Diagnostic]:
        """
        Of reading.
        """
    @property
    def dur_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: duration; 0 without HAS_DURATION.
        """
    @property
    def external_id(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: args['External id'], or NO_ID.
        """
    @property
    def flags(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: HAS_TIME | HAS_DURATION | ...
        """
    @property
    def kind(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: index in kind_names().
        """
    @property
    def metadata(self) -> list[tuple[str, str]]:
        """
        Top-level members: (key, JSON text).
        """
    @property
    def name(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: index in strings.
        """
    @property
    def path(self) -> str:
        """
        Input file.
        """
    @property
    def phase(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: the phase letter's code.
        """
    @property
    def rank(self) -> int | None:
        """
        Of distributedInfo.
        """
    @property
    def stream(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: args.stream, or NO_ID.
        """
    @property
    def strings(self) -> list[str]:
        """
        Names and categories by id; a new list each time.
        """
    @property
    def text_bytes(self) -> int:
        """
        Decompressed size.
        """
    @property
    def total_objects(self) -> int:
        """
        Objects met in traceEvents.
        """
    @property
    def track(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: index in tracks.
        """
    @property
    def tracks(self) -> list[Track]:
        """
        By track id.
        """
    @property
    def ts_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: start; 0 without HAS_TIME.
        """
    @property
    def world_size(self) -> int | None:
        """
        Of distributedInfo.
        """

class Step:
    """
    A training step.
    """
    @property
    def end_ns(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def row(self) -> int | None:
        """
        Row of its annotation; None where the step is inferred.
        """
    @property
    def start_ns(self) -> int: ...

class Stream:
    """
    A GPU stream that ran something.
    """
    @property
    def count(self) -> int:
        """
        GPU events.
        """
    @property
    def device(self) -> int | None:
        """
        None if the trace does not say.
        """
    @property
    def role(self) -> str:
        """
        compute, communication or copy, by what runs there.
        """
    @property
    def stream(self) -> int | None:
        """
        None if the trace does not say.
        """

class EventTree:
    """
    Links between the rows of an EventTable.
    """
    def launch_delays_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64, per gpu_rows: start behind the launching call's start; NO_ID for orphans.
        """
    @property
    def depth(self) -> numpy.typing.NDArray[numpy.uint16]:
        """
        uint16 [n]: 0 for roots; saturates.
        """
    @property
    def diagnostics(self) -> list[Diagnostic]:
        """
        Of linking.
        """
    @property
    def forward(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: a backward op's forward op, or NO_ROW.
        """
    @property
    def gpu_class(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: index in gpu_class_names().
        """
    @property
    def gpu_rows(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32: all GPU events by start.
        """
    @property
    def host_offsets(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [tracks + 1]: into host_rows.
        """
    @property
    def host_position(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: in host_rows, or NO_ROW.
        """
    @property
    def host_rows(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32: host rows by track, a pre-order each.
        """
    @property
    def host_tracks(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32: tracks with host rows.
        """
    @property
    def launch(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: call that launched a GPU event, or NO_ROW.
        """
    @property
    def launch_delay_correction_ns(self) -> int:
        """
        Added to a launch delay; 0 unless host and GPU clock disagree.
        """
    @property
    def launched_offsets(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n + 1]: into launched_rows.
        """
    @property
    def launched_rows(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32: GPU events by launching row.
        """
    @property
    def linked_gpu_rows(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32: those with a launch.
        """
    @property
    def main_track(self) -> int | None:
        """
        Track id of the thread that carries steps or most launches.
        """
    @property
    def op(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: innermost cpu_op above a row, or NO_ROW.
        """
    @property
    def parent(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: enclosing host row, or NO_ROW.
        """
    @property
    def phase(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: index in phase_names().
        """
    @property
    def profiled(self) -> tuple[int, int]:
        """
        (start_ns, end_ns): first to last step, else complete events.
        """
    @property
    def steps(self) -> list[Step]:
        """
        By start; they do not overlap.
        """
    @property
    def steps_inferred(self) -> bool:
        """
        The steps come from a repeated pattern.
        """
    @property
    def stream_of(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: index in streams, or NO_ROW.
        """
    @property
    def streams(self) -> list[Stream]:
        """
        By device and stream.
        """
    @property
    def subtree_end(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32, per index in host_rows: one past its last descendant's index.
        """

class Timeline:
    """
    GPU time split by interval union, in ns.
    """
    @property
    def busy_ns(self) -> int: ...
    @property
    def communication_ns(self) -> int: ...
    @property
    def compute_ns(self) -> int: ...
    @property
    def exposed_communication_ns(self) -> int: ...
    @property
    def exposed_memcpy_ns(self) -> int: ...
    @property
    def idle_ns(self) -> int: ...
    @property
    def memcpy_ns(self) -> int: ...
    @property
    def span_ns(self) -> int: ...

class IdleBreakdown:
    """
    Idle intervals of the GPU with one cause each.
    """
    def __len__(self) -> int: ...
    @property
    def cause(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: index in idle_cause_names().
        """
    @property
    def end_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n].
        """
    @property
    def explained_by(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: host row that explains it, or NO_ROW.
        """
    @property
    def next_gpu_row(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: first GPU event after it, or NO_ROW.
        """
    @property
    def start_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: sorted.
        """
    @property
    def totals(self) -> dict[str, int]:
        """
        In ns, by cause.
        """

class GpuCosts:
    """
    GPU and host time of every row, in ns.
    """
    @property
    def exclusive_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: the part of a GPU event's time that counts for it alone; sums to the busy time.
        """
    @property
    def own_gpu_events(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n].
        """
    @property
    def own_gpu_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: union of the GPU events that a host row owns.
        """
    @property
    def owner(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: op, else launch, that owns a GPU event, or NO_ROW.
        """
    @property
    def self_host_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: time of a host row without that of its children.
        """
    @property
    def subtree_gpu_events(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n].
        """
    @property
    def subtree_gpu_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: union of the GPU events launched in or below a host row.
        """

class WindowSet:
    """
    Windows of a trace: bounds and ragged lists of rows.
    """
    def __len__(self) -> int: ...
    @property
    def bounds_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [count + 1].
        """
    @property
    def offsets(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [count + 1]: into rows.
        """
    @property
    def overlapping(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32: events that began earlier and reach into the window.
        """
    @property
    def overlapping_offsets(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [count + 1]: into overlapping.
        """
    @property
    def rows(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32: events by the window of their start.
        """

class FeatureBlock:
    """
    Numbers per window; docs/features.md lists them.
    """
    @property
    def names(self) -> list[str]:
        """
        [features].
        """
    @property
    def values(self) -> numpy.typing.NDArray[numpy.float64]:
        """
        float64 [windows, features].
        """
    @property
    def zscores(self) -> numpy.typing.NDArray[numpy.float64]:
        """
        float64 [windows, features]: robust, per trace.
        """

class Finding:
    """
    What one rule says of one rank.
    """
    @property
    def confidence(self) -> float:
        """
        In [0, 1].
        """
    @property
    def cost_ns(self) -> int:
        """
        Total length of intervals.
        """
    @property
    def evidence(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32: most telling rows first.
        """
    @property
    def evidence_count(self) -> int:
        """
        How many rows there are in all.
        """
    @property
    def facts(self) -> dict[str, str]:
        """
        Figures for the sentence a person reads.
        """
    @property
    def intervals(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n, 2]: the cost.
        """
    @property
    def missing_signals(self) -> list[str]:
        """
        What would have made it surer.
        """
    @property
    def paper(self) -> bool:
        """
        One of the paper's eight types.
        """
    @property
    def saving_best_ns(self) -> int:
        """
        Bound on the saving.
        """
    @property
    def saving_high_ns(self) -> int:
        """
        Bound on the saving.
        """
    @property
    def saving_low_ns(self) -> int:
        """
        Bound on the saving.
        """
    @property
    def type(self) -> str: ...
    @property
    def unclaimed_cost_ns(self) -> int:
        """
        Cost that no larger finding of the rank covers.
        """
    @property
    def verdict(self) -> str:
        """
        present, absent or unknown.
        """

class ArrowTable:
    """
    Columns for any consumer of the Arrow C stream.
    """
    def schema(self) -> typing_extensions.CapsuleType:
        """
        An arrow_schema capsule.
        """
    def stream(self) -> typing_extensions.CapsuleType:
        """
        A fresh arrow_array_stream capsule.
        """

def arrow_columns(
    columns: list[tuple[str, numpy.ndarray, list[str] | None, numpy.ndarray | None]],
) -> ArrowTable:
    """
    One batch of (name, array [n], texts, valid): with texts the array holds indices, where valid [n] is False there is no value.
    """

def arrow_events(
    tables: collections.abc.Sequence[
        tuple[EventTable, typing.SupportsInt | typing.SupportsIndex | None]
    ],
    *,
    with_rank: bool = False,
) -> ArrowTable:
    """
    One batch per (table, rank); int64 columns are not copied.
    """

def build_features(table: EventTable, tree: EventTree, windows: WindowSet) -> FeatureBlock:
    """
    Features of every window.
    """

def build_tree(
    table: EventTable, *, overlap_tolerance_ns: typing.SupportsInt | typing.SupportsIndex = 1000
) -> EventTree:
    """
    Links the rows of a table.
    """

def build_windows(
    table: EventTable,
    tree: EventTree,
    *,
    count: typing.SupportsInt | typing.SupportsIndex = 100,
    length_ns: typing.SupportsInt | typing.SupportsIndex = 0,
    host_rows: bool = False,
    bounds: tuple[
        typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex
    ]
    | None = None,
) -> WindowSet:
    """
    Windows of equal time, or of length_ns, over the profiled time or bounds.
    """

def detect(
    table: EventTable,
    tree: EventTree,
    *,
    material_share: typing.SupportsFloat | typing.SupportsIndex = 0.02,
) -> list[Finding]:
    """
    Runs every rule on one rank.
    """

def detector_types() -> list[str]:
    """
    Types of all rules, the paper's eight first.
    """

def device_timelines(
    table: EventTable, tree: EventTree, *, linked_only: bool = False
) -> list[tuple[int, Timeline]]:
    """
    (device, timeline) for each device that ran something; -1: no device named.
    """

def explain_idle(
    table: EventTable,
    tree: EventTree,
    *,
    bounds: tuple[
        typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex
    ]
    | None = None,
) -> IdleBreakdown:
    """
    Why the GPU idles, over the span of its events or inside bounds.
    """

def gpu_class_names() -> list[str]:
    """
    Names of EventTree.gpu_class.
    """

def gpu_costs(table: EventTable, tree: EventTree) -> GpuCosts:
    """
    GPU time owned by, and launched below, every host row.
    """

def gpu_intervals(
    table: EventTable,
    tree: EventTree,
    *,
    linked_only: bool = False,
    device: typing.SupportsInt | typing.SupportsIndex = -1,
) -> dict[str, numpy.typing.NDArray[numpy.int64]]:
    """
    Unions of GPU events [n, 2] by name: busy, compute, communication, memcpy.
    """

def idle_cause_names() -> list[str]:
    """
    Names of IdleBreakdown.cause.
    """

def kind_names() -> list[str]:
    """
    Names of EventTable.kind.
    """

def phase_names() -> list[str]:
    """
    Names of EventTree.phase.
    """

def quantize_delays_ns(
    times: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
) -> numpy.typing.NDArray[numpy.int32]:
    """
    int32 [n]: logarithmic ids of launch delays (paper, Eq. 3).
    """

def quantize_durations_ns(
    times: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
) -> numpy.typing.NDArray[numpy.int32]:
    """
    int32 [n]: logarithmic ids of durations (paper, Eq. 3).
    """

def read_trace(
    path: os.PathLike[str] | str | bytes,
    *,
    threads: typing.SupportsInt | typing.SupportsIndex = 0,
    chunk_bytes: typing.SupportsInt | typing.SupportsIndex = 1048576,
    progress: typing.Any = None,
) -> EventTable:
    """
    Reads a trace file; progress(compressed bytes read, in all) is called now and then.
    """

def read_trace_bytes(
    data: bytes,
    name: str,
    *,
    threads: typing.SupportsInt | typing.SupportsIndex = 0,
    chunk_bytes: typing.SupportsInt | typing.SupportsIndex = 1048576,
) -> EventTable:
    """
    Reads a trace from bytes; `name` stands for the path in messages.
    """

def timeline(
    table: EventTable,
    tree: EventTree,
    *,
    linked_only: bool = False,
    device: typing.SupportsInt | typing.SupportsIndex = -1,
    bounds: tuple[
        typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex
    ]
    | None = None,
) -> Timeline:
    """
    GPU time by class; over its own span, or clipped to bounds (start_ns, end_ns).
    """

def timelines(
    table: EventTable,
    tree: EventTree,
    bounds: collections.abc.Sequence[
        tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
    ],
    *,
    linked_only: bool = False,
    device: typing.SupportsInt | typing.SupportsIndex = -1,
) -> list[Timeline]:
    """
    One timeline for each pair of bounds.
    """

def trace_json(table: EventTable) -> bytes:
    """
    The JSON text as bytes.
    """

def write_trace(
    table: EventTable,
    path: os.PathLike[str] | str | bytes,
    *,
    more_events: collections.abc.Sequence[str] = [],
) -> None:
    """
    Writes Chrome-trace JSON, gzip when the name ends in '.gz'; more_events are JSON objects that join the table's own.
    """

HAS_DURATION: int = 2
HAS_TIME: int = 1
MATCHED_END: int = 4
NO_ID: int = -9223372036854775808
NO_ROW: int = 4294967295
NO_STRING: int = 4294967295
REPAIRED: int = 8
