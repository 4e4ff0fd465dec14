"""Types of the C++ core. Written by tools/update_stubs.py: do not edit."""

from __future__ import annotations
import collections.abc
import enum
import numpy
import numpy.typing
import os
import typing
import typing_extensions

__all__: list[str] = [
    "ApiClass",
    "ArrowTable",
    "BatchReplayer",
    "Cancellation",
    "ClockFit",
    "CompatNesting",
    "CopyDirection",
    "CriticalPath",
    "DependencyKind",
    "Device",
    "Diagnostic",
    "EventKind",
    "EventTable",
    "EventTree",
    "Evidence",
    "ExecutionGraph",
    "FeatureBlock",
    "Finding",
    "GpuClass",
    "GpuCosts",
    "GraphDelta",
    "HAS_DURATION",
    "HAS_TIME",
    "HostIdle",
    "HostMemory",
    "HtaPath",
    "IMPOSSIBLE",
    "IdleBreakdown",
    "IdleCause",
    "IterationMark",
    "KernelSequences",
    "Lateness",
    "LaunchQueue",
    "MATCHED_END",
    "MATERIAL_SHARE",
    "MAX_EVIDENCE",
    "MatrixUnits",
    "Meetings",
    "MissingRanks",
    "ModuleTree",
    "NEVER",
    "NO_ID",
    "NO_ROW",
    "NO_STRING",
    "PROVEN_SHARE",
    "PathCause",
    "PeerView",
    "Phase",
    "ProcessGroup",
    "QUEUE_DEPTH",
    "REPAIRED",
    "RankCollectives",
    "RecordingNote",
    "RequestGroup",
    "RowGroups",
    "Rule",
    "Step",
    "StepPieces",
    "Stream",
    "Timeline",
    "TokenKind",
    "Tokens",
    "Track",
    "TreeDiff",
    "Trees",
    "WarmUp",
    "WindowSet",
    "Workload",
    "align_sequences",
    "arrow_batches",
    "binding_edges",
    "both_lags",
    "build_features",
    "build_graph",
    "build_modules",
    "build_table",
    "build_tokens",
    "build_tree",
    "build_windows",
    "checksum",
    "classify_copy",
    "closing_edges",
    "collective_kind_names",
    "collectives",
    "comparable_names",
    "compat_nesting",
    "critical_path",
    "dependency_kind_names",
    "detect",
    "device_timelines",
    "drop_scratch",
    "edit_table",
    "evidence_names",
    "evidence_rows",
    "excerpt",
    "execution_graph",
    "explain_idle",
    "feature_names",
    "gives_memory_back",
    "gpu_class_names",
    "gpu_costs",
    "gpu_intervals",
    "gpu_union_by_group",
    "group_rows",
    "held_out_lags",
    "host_idle",
    "hta_bound_names",
    "hta_critical_path",
    "hta_edge_kind_names",
    "idle_cause_names",
    "innermost_marked",
    "is_allocator_call",
    "is_communication_name",
    "is_copy_call",
    "is_host_memory_call",
    "is_plain_fp32_product",
    "is_synchronisation",
    "keep_scratch",
    "kernel_sequences",
    "kind_names",
    "late_cause_names",
    "later_lags",
    "launch_queue",
    "matched_by_names",
    "packed_values",
    "path_cause_names",
    "path_causes",
    "phase_names",
    "plain_graph",
    "prepare_heap",
    "quantize_delays_ns",
    "quantize_durations_ns",
    "rank_verdict_names",
    "read_iteration_name",
    "read_trace",
    "read_trace_bytes",
    "recompiled_rows",
    "replay",
    "replay_chain",
    "restore_table",
    "row_times",
    "rules",
    "runs_on_host",
    "say_interrupted",
    "serving_work",
    "serving_work_names",
    "split_merged_trace",
    "split_processes",
    "step_part_names",
    "step_pieces",
    "template_ids",
    "template_texts",
    "timeline",
    "timelines",
    "token_class_names",
    "trace_json",
    "tree_diff",
    "watch_interrupts",
    "without_loose_flows",
    "write_merged_trace",
    "write_trace",
]

class Cancellation:
    """
    Stops work on other threads: calls into the core inside `with cancellation:` raise KeyboardInterrupt soon after `cancel`.
    """
    def __enter__(self) -> None: ...
    def __exit__(self, kind: typing.Any, error: typing.Any, traceback: typing.Any) -> None: ...
    def __init__(self) -> None:
        """
        Not cancelled.
        """
    def cancel(self) -> None:
        """
        From any thread.
        """

class EventKind(enum.IntEnum):
    """EventTable.kind."""

    OTHER = 0
    CPU_OP = 1
    USER_ANNOTATION = 2
    PYTHON_FUNCTION = 3
    RUNTIME = 4
    DRIVER = 5
    KERNEL = 6
    GPU_MEMCPY = 7
    GPU_MEMSET = 8
    GPU_USER_ANNOTATION = 9
    CUDA_SYNC = 10
    OVERHEAD = 11
    PROFILER_TRACE = 12
    INSTANT = 13
    FLOW = 14
    ASYNC = 15
    COUNTER = 16
    METADATA = 17

class ApiClass(enum.IntEnum):
    """EventTree.api: what a runtime or driver call does."""

    NONE = 0
    OTHER = 1
    KERNEL_LAUNCH = 2
    GRAPH_LAUNCH = 3
    COPY = 4
    ASYNC_COPY = 5
    MEMSET = 6
    STREAM_SYNC = 7
    DEVICE_SYNC = 8
    EVENT_SYNC = 9
    STREAM_WAIT_EVENT = 10
    EVENT_RECORD = 11
    DEVICE_ALLOCATION = 12
    DEVICE_FREE = 13
    POOL_ALLOCATION = 14
    POOL_FREE = 15
    MAPPING = 16
    UNMAPPING = 17
    HOST_ALLOCATION = 18
    HOST_FREE = 19
    CODE_LOADING = 20
    GRAPH_BUILDING = 21
    SETUP = 22

class CopyDirection(enum.IntEnum):
    """EventTree.copy_direction."""

    NONE = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    PEER_TO_PEER = 4
    HOST_TO_HOST = 5
    UNKNOWN = 6

class HostMemory(enum.IntEnum):
    """EventTree.host_memory: the host's side of a copy."""

    NONE = 0
    PAGEABLE = 1
    PINNED = 2
    MANAGED = 3
    UNKNOWN = 4

class GpuClass(enum.IntEnum):
    """EventTree.gpu_class."""

    NONE = 0
    COMPUTE = 1
    COMMUNICATION = 2
    MEMCPY = 3

class Phase(enum.IntEnum):
    """EventTree.phase."""

    OTHER = 0
    INPUT = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4

class IdleCause(enum.IntEnum):
    """IdleBreakdown.cause."""

    DATA_LOADING = 0
    HOST_WAIT = 1
    SYNCHRONIZATION = 2
    MEMORY_COPY = 3
    COMMUNICATION_WAIT = 4
    COMPILATION = 5
    ALLOCATOR = 6
    LAUNCH_LATENCY = 7
    PROFILER = 8
    UNKNOWN = 9
    WITHIN_GRAPH = 10

class PathCause(enum.IntEnum):
    """CriticalPath.cause."""

    DATA_LOADING = 0
    HOST_FORWARD = 1
    HOST_BACKWARD = 2
    HOST_OPTIMIZER = 3
    HOST_OTHER = 4
    HOST_GAP = 5
    COMPILATION = 6
    ALLOCATOR = 7
    PROFILER = 8
    SYNCHRONIZATION = 9
    LAUNCH_LATENCY = 10
    GPU_COMPUTE = 11
    COMMUNICATION = 12
    COPY = 13
    GPU_GAP = 14
    UNKNOWN = 15

class DependencyKind(enum.IntEnum):
    """CriticalPath.kind and ExecutionGraph.kind."""

    PROGRAM_ORDER = 0
    EXECUTION = 1
    STREAM_ORDER = 2
    LAUNCH = 3
    STREAM_WAIT = 4
    HOST_WAIT = 5
    THREAD_START = 6
    THREAD_JOIN = 7
    DEVICE_ORDER = 8
    DEVICE_BUSY = 9
    RENDEZVOUS = 10
    QUEUE_LIMIT = 11
    COPY_ENGINE = 12
    GRAPH_ORDER = 13
    TENSOR = 14
    WORKER_PACE = 15

class Evidence(enum.IntEnum):
    """CriticalPath.evidence and ExecutionGraph.evidence."""

    EXPLICIT = 0
    INFERRED = 1
    ASSUMED = 2

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
        self, key: str, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64] | None = None
    ) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.bool]]:
        """
        One key of args as integers for all rows, or for the given ones: values int64 [n], and where there is one [n].
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
        uint32 [n]: index in strings, or NO_STRING; a new array.
        """
    @property
    def complete(self) -> numpy.typing.NDArray[numpy.bool]:
        """
        bool [n]: the event has a start and a duration; a new array.
        """
    @property
    def correlation(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: args.correlation, or NO_ID; a new array.
        """
    @property
    def device(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        int32 [n]: args.device, -1 if absent; a new array.
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
        int64 [n]: args['External id'], or NO_ID; a new array.
        """
    @property
    def flags(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: HAS_TIME | HAS_DURATION | ...
        """
    @property
    def kind(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: EventKind.
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
        int64 [n]: args.stream, or NO_ID; a new array.
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
        By track id; a new list each time.
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
    def kind(self) -> str:
        """
        Phase of an iteration of a serving engine, such as `decode`; else `unmarked`.
        """
    @property
    def name(self) -> str: ...
    @property
    def row(self) -> int | None:
        """
        Row of its annotation; None where the step is inferred.
        """
    @property
    def start_ns(self) -> int: ...

class RequestGroup:
    """
    Requests of one phase; None for what is not recorded.
    """
    @property
    def cached_tokens(self) -> int | None:
        """
        Keys, summed over the requests.
        """
    @property
    def query_keys(self) -> int | None:
        """
        Sum of queries times keys.
        """
    @property
    def query_squares(self) -> int | None:
        """
        Sum of queries squared.
        """
    @property
    def requests(self) -> int | None: ...
    @property
    def tokens(self) -> int | None:
        """
        Queries, summed over the requests.
        """

class IterationMark:
    """
    An iteration, as the annotation of a serving engine tells it.
    """
    @property
    def decode(self) -> RequestGroup: ...
    @property
    def engine(self) -> str:
        """
        vllm, sglang, atom, xdit or tensorrt-llm.
        """
    @property
    def graph_batch(self) -> int | None:
        """
        Batch of the CUDA graph that ran, padding included, or None.
        """
    @property
    def phase(self) -> str:
        """
        prefill, decode, mixed, speculative, diffusion, idle or unmarked.
        """
    @property
    def prefill(self) -> RequestGroup: ...
    @property
    def requests(self) -> int | None:
        """
        Requests of all phases, or None.
        """

class WarmUp:
    """
    Where warm-up ends.
    """
    @property
    def by_steps(self) -> bool:
        """
        Steps tell.
        """
    @property
    def end_ns(self) -> int:
        """
        On the host's clock; 0 where it is not known.
        """
    @property
    def known(self) -> bool:
        """
        Steps or the repetition of kernels tell.
        """

class Workload:
    """
    What the recorded program is.
    """
    @property
    def framework(self) -> str:
        """
        pytorch, xla or unknown.
        """
    @property
    def framework_row(self) -> int | None:
        """
        Row of an event that shows it; None if unknown.
        """
    @property
    def parallelism(self) -> dict[str, int]:
        """
        Row of an event that shows each of ddp, fsdp, tensor, pipeline and expert.
        """
    @property
    def role(self) -> str:
        """
        training, inference, prefill, decode, mixed, diffusion, evaluation or unknown.
        """
    @property
    def role_row(self) -> int | None:
        """
        Row of an event that shows it; None if unknown.
        """

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

class RecordingNote:
    """
    What is wrong with a recording, and where.
    """
    @property
    def code(self) -> str:
        """
        Such as `impossible_duration`.
        """
    @property
    def count(self) -> int:
        """
        Records or launches concerned.
        """
    @property
    def end_ns(self) -> int | None:
        """
        On the GPU's clock; None where no time can be trusted.
        """
    @property
    def message(self) -> str:
        """
        One sentence for a person.
        """
    @property
    def start_ns(self) -> int | None:
        """
        On the GPU's clock; None where no time can be trusted.
        """

class EventTree:
    """
    Links between the rows of an EventTable.
    """
    def iteration_spans(
        self,
    ) -> tuple[str, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32]]:
        """
        Iterations of a serving engine: what tells them, such as "profiler steps"; int64 [n, 2]: host clock, by start; uint32: the engine's annotations, if they tell.
        """
    def launch_delays_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64, per gpu_rows: start behind the launching call's start; NO_ID for orphans.
        """
    @property
    def api(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: ApiClass; NONE for rows that are no API call.
        """
    @property
    def copy_direction(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: CopyDirection of GPU events that copy; NONE for others.
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
        uint8 [n]: GpuClass.
        """
    @property
    def gpu_rows(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32: all GPU events by start.
        """
    @property
    def host_memory(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: HostMemory, the host's side of a copy; NONE without one.
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
    def missing(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n, 2]: where GPU work has no record, on the GPU's clock; sorted, disjoint.
        """
    @property
    def not_judged(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n, 2]: what no timeline, idle cause, cost or share covers; `missing` and waits for the start of other recordings.
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
        uint8 [n]: Phase.
        """
    @property
    def profiled(self) -> tuple[int, int]:
        """
        (start_ns, end_ns): first to last step, else complete events.
        """
    @property
    def recording_notes(self) -> list[RecordingNote]:
        """
        What is wrong with the recording; empty for one that is fine.
        """
    @property
    def step(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: index in steps of the step that holds a row's start (of GPU events: its launch), or NO_ROW.
        """
    @property
    def step_is_recorded(self) -> list[bool]:
        """
        Per step: its launches have their records, and most of it is judged.
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
    @property
    def warm_up(self) -> WarmUp:
        """
        Where warm-up ends.
        """
    @property
    def workload(self) -> Workload:
        """
        What the recorded program is.
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
        uint8 [n]: IdleCause.
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
    def backward_gpu_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: GPU time of the backward ops that go back to a row.
        """
    @property
    def exclusive_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: the part of a GPU event's time that counts for it alone; sums to the busy time.
        """
    @property
    def is_repeated(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: a row of the same kind and name encloses it.
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
    def own_launches(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: calls that launched GPU events which a host row owns.
        """
    @property
    def owned_exclusive_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: exclusive_ns of the GPU events that a host row owns.
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
    def subtree_backward_gpu_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: the same for a row and all below it.
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

class CompatNesting:
    """
    Host stacks by the rules of TraceLens.
    """
    @property
    def parent(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: enclosing row, or NO_ROW.
        """
    @property
    def rows(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32: rows of its tree by track, a pre-order each.
        """
    @property
    def subtree_end(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32, per index in rows: one past its last descendant's index.
        """

class RowGroups:
    """
    Rows with equal keys, by their first row.
    """
    def __len__(self) -> int: ...
    def quantiles(
        self,
        values: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
        q: typing.SupportsFloat | typing.SupportsIndex,
    ) -> numpy.typing.NDArray[numpy.float64]:
        """
        float64 [groups]: linear between neighbours, NaN sorts last.
        """
    @property
    def first(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [groups]: first row of each group, ascending.
        """
    @property
    def index(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: group of each row.
        """
    @property
    def offsets(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [groups + 1]: where each group begins in rows.
        """
    @property
    def rows(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: rows group by group, ascending within each.
        """

class ModuleTree:
    """
    Modules under their callers, and what they cost.
    """
    @property
    def calls(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [nodes].
        """
    @property
    def depth(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [nodes].
        """
    @property
    def first_call(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [nodes]: first row that belongs to it, or NO_ROW.
        """
    @property
    def gpu_events(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [nodes].
        """
    @property
    def gpu_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [nodes, 4]: with the nodes below.
        """
    @property
    def host_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [nodes, 4]: with the nodes below.
        """
    @property
    def names(self) -> list[str]: ...
    @property
    def node_of(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: innermost node of each row; 0 outside of modules.
        """
    @property
    def own_gpu_events(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [nodes].
        """
    @property
    def own_gpu_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [nodes, 4]: forward, backward, recompute, none.
        """
    @property
    def own_host_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [nodes, 4].
        """
    @property
    def parent(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [nodes]: node of the caller, or NO_ROW.
        """
    @property
    def pass_of(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: forward, backward, recompute, none.
        """
    @property
    def preorder(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [nodes].
        """
    @property
    def recompute_calls(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [nodes]: calls by activation checkpointing.
        """
    @property
    def source(self) -> str:
        """
        none, python_frames, module_hierarchy, hlo_module or annotations.
        """
    @property
    def types(self) -> list[str]:
        """
        Class of each module, or empty.
        """

class HostIdle:
    """
    What host threads did, and what while the GPU was idle; in ns.
    """
    @property
    def blocked_idle_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [threads]: GPU idle, in calls that wait.
        """
    @property
    def busy_idle_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [threads, causes]: GPU idle, some row open.
        """
    @property
    def busy_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [threads]: union of the thread's rows.
        """
    @property
    def idle_self_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [groups + 1, causes]: self time while the GPU was idle.
        """
    @property
    def self_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [groups + 1]: self time; the last entry is of no group.
        """
    @property
    def silent_idle_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [threads, causes]: GPU idle, no row open.
        """
    @property
    def track(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [threads]: track id.
        """

class LaunchQueue:
    """
    What streams had queued: launched, not yet begun on the GPU.
    """
    @property
    def found(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        int32, per gpu_rows: length that its launch found; -1 for orphans.
        """
    @property
    def length(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        int32: from then on.
        """
    @property
    def offsets(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [streams + 1]: into the columns.
        """
    @property
    def row(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32: the launch call or the GPU event.
        """
    @property
    def time_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64: when the length changes, on the host's clock.
        """

class KernelSequences:
    """
    Sequences of kernels that repeat, most removable time first.
    """
    def __len__(self) -> int: ...
    @property
    def count(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: occurrences that don't overlap.
        """
    @property
    def first_row(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: first kernel of the first occurrence.
        """
    @property
    def gap_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: idle time of the stream between its kernels.
        """
    @property
    def gpu_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: time of its kernels.
        """
    @property
    def kernel_rows(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32: kernels of one occurrence of each, `length` of them, one sequence behind the other; with known launches if there is such an occurrence.
        """
    @property
    def launch_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: launch calls of all its kernels but the first.
        """
    @property
    def launches(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: number of these calls.
        """
    @property
    def length(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: kernels in it.
        """
    @property
    def op(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: op call that launches the whole sequence, or NO_ROW.
        """
    @property
    def removable_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: gaps, or launch calls where the host was late.
        """
    @property
    def stream(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: index in streams, of the first occurrence.
        """

class ClockFit:
    """
    One rank's clock against the others'.
    """
    @property
    def applied(self) -> bool:
        """
        The offset is larger than its uncertainty.
        """
    @property
    def component(self) -> int:
        """
        First rank that it can be compared with.
        """
    @property
    def drift(self) -> float:
        """
        ns per ns.
        """
    @property
    def offset_ns(self) -> int:
        """
        To the first clock of its component.
        """
    @property
    def readings(self) -> int:
        """
        Common ends that were used.
        """
    @property
    def residual_ns(self) -> int:
        """
        Median absolute deviation.
        """
    @property
    def uncertainty_ns(self) -> int:
        """
        An offset below it is none.
        """

class ProcessGroup:
    """
    A process group.
    """
    @property
    def description(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def ranks(self) -> list[int]:
        """
        Global ranks by group rank; empty where not recorded.
        """
    @property
    def size(self) -> int:
        """
        0 where not recorded.
        """

class Meetings:
    """
    Collectives whose end needs every member; ragged.
    """
    def __len__(self) -> int: ...
    @property
    def offsets(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n + 1]: members of each, into the columns.
        """
    @property
    def rank(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32: index of the rank in the graph.
        """
    @property
    def row(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32: of that rank.
        """

class MissingRanks:
    """
    Ranks without a part in a match.
    """
    @property
    def list_of(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [matches]: index in lists.
        """
    @property
    def lists(self) -> list[list[int]]:
        """
        Numbers of ranks; the first one is empty.
        """

class Lateness:
    """
    By rank: who keeps the others waiting, and why.
    """
    @property
    def cause(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [ranks]: index in late_cause_names(): largest excess.
        """
    @property
    def cause_share(self) -> numpy.typing.NDArray[numpy.float64]:
        """
        float64 [ranks]: of the lateness, what it explains.
        """
    @property
    def compared(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [ranks]: collectives with arrivals to compare.
        """
    @property
    def excess_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [ranks, late_cause_names()]: time beyond the others' median, in the segments of late arrivals.
        """
    @property
    def host_cause(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [ranks]: index in idle_cause_names(): of a late host, what most of it is.
        """
    @property
    def lateness_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [ranks]: start behind the median of the others, summed over collectives.
        """
    @property
    def times_last(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [ranks]: how often it came last of all.
        """
    @property
    def verdict(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [ranks]: index in rank_verdict_names().
        """
    @property
    def wait_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [ranks]: waited in collectives for later ranks.
        """

class PeerView:
    """
    What the traces of other ranks say of one rank.
    """
    @property
    def known(self) -> bool:
        """
        Were there others to compare it with?
        """

class RankCollectives:
    """
    Collectives matched across ranks. A part is one rank's share in one match; parts of a match stand beside each other.
    """
    def lateness(self, *, material_share: typing.SupportsFloat | typing.SupportsIndex) -> Lateness:
        """
        Who keeps the others waiting for that share of the profiled time, and because of what.
        """
    def meetings(
        self, places: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]
    ) -> Meetings:
        """
        Where the ranks of a graph meet; places: the index of each in the input.
        """
    def missing_ranks(self) -> MissingRanks:
        """
        Of each match the ranks of its group (of its pair, for send and recv) without a part.
        """
    def peer_views(self, lateness: Lateness) -> list[PeerView]:
        """
        For each rank what the traces of the others say of it.
        """
    @property
    def bytes(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [parts]: NO_ID where unknown.
        """
    @property
    def clock_epoch_ns(self) -> int: ...
    @property
    def clocks(self) -> list[ClockFit]: ...
    @property
    def comparable(self) -> numpy.typing.NDArray[numpy.bool]:
        """
        bool [matches]: several ranks whose clocks can be compared.
        """
    @property
    def count(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [matches]: parts.
        """
    @property
    def dtypes(self) -> list[str]:
        """
        [parts].
        """
    @property
    def end_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [parts]: common clock.
        """
    @property
    def expected_ranks(self) -> list[list[int]]:
        """
        By group: numbers of its ranks, as recorded, else of all that use it.
        """
    @property
    def experts(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [parts]: of a dispatch or combine; NO_ID where not recorded.
        """
    @property
    def exposed_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [parts]: it ran no compute kernel.
        """
    @property
    def first(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [matches]: first part of each.
        """
    @property
    def group(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [parts]: index in groups.
        """
    @property
    def group_of(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [matches]: index in groups.
        """
    @property
    def groups(self) -> list[ProcessGroup]: ...
    @property
    def host_row(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [parts]: host event that describes it, or NO_ROW.
        """
    @property
    def kind(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [parts]: see collective_kind_names.
        """
    @property
    def kind_of(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [matches]: by the ranks that know it; send_recv for a matched pair.
        """
    @property
    def latest_rank(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [matches]: index of that rank; NO_ROW where nothing is comparable.
        """
    @property
    def latest_start_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [matches]: when the last rank came, common clock.
        """
    @property
    def match(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [parts]: by time.
        """
    @property
    def matches(self) -> int:
        """
        How many.
        """
    @property
    def members(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [parts]: calls it serves.
        """
    @property
    def names(self) -> list[str]:
        """
        [parts].
        """
    @property
    def peer(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [parts]: of send and recv.
        """
    @property
    def rank(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [parts]: index in the input.
        """
    @property
    def recorded_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [ranks, 2]: what each file covers, common clock.
        """
    @property
    def row(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [parts]: kernel, or host range.
        """
    @property
    def sequence(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [parts]: NO_ID if none.
        """
    @property
    def split(self) -> numpy.typing.NDArray[numpy.bool]:
        """
        bool [matches]: waits are told from transfers.
        """
    @property
    def splits(self) -> list[tuple[int, list[int], list[int]]]:
        """
        (part, bytes to, bytes from each rank) of uneven all-to-alls.
        """
    @property
    def start_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [parts]: common clock.
        """
    @property
    def synchronising(self) -> numpy.typing.NDArray[numpy.bool]:
        """
        bool [matches]: no rank leaves before every rank has come.
        """
    @property
    def wait_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [parts]: for the last rank; 0 where nothing tells it from the transfer.
        """

class CriticalPath:
    """
    Segments of a path, by time; they tile the range.
    """
    def __len__(self) -> int: ...
    @property
    def assumed_ns(self) -> int:
        """
        Time on assumed edges, and unknown time.
        """
    @property
    def cause(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: PathCause.
        """
    @property
    def edges(self) -> int:
        """
        Edges of the graph.
        """
    @property
    def end_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n].
        """
    @property
    def evidence(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: Evidence.
        """
    @property
    def kind(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: DependencyKind.
        """
    @property
    def lane_index(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: in the table's tracks or the tree's streams.
        """
    @property
    def lane_kind(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: 0 host thread, 1 stream, 2 none.
        """
    @property
    def margin_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: how much earlier the next best predecessor was ready; NO_ID without one.
        """
    @property
    def points(self) -> int:
        """
        Points of the graph.
        """
    @property
    def rank(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: index of the rank.
        """
    @property
    def row(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: of that rank, or NO_ROW.
        """
    @property
    def start_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: common clock.
        """
    @property
    def total_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [causes].
        """

class HtaPath:
    """
    Edges of the path that HTA finds.
    """
    @property
    def begin(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: node where each edge begins.
        """
    @property
    def bound(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: in hta_bound_names().
        """
    @property
    def duration_us(self) -> int: ...
    @property
    def edges(self) -> int: ...
    @property
    def edges_of_kind(self) -> dict[str, int]: ...
    @property
    def found(self) -> bool: ...
    @property
    def kind(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: in hta_edge_kind_names().
        """
    @property
    def node_us(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [nodes]: when each is.
        """
    @property
    def nodes(self) -> int: ...
    @property
    def of_gpu_copy(self) -> bool: ...
    @property
    def path_events(self) -> int: ...
    @property
    def path_nodes(self) -> int: ...
    @property
    def row(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: or NO_ROW.
        """
    @property
    def weight_us(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n].
        """

class StepPieces:
    """
    Steps cut into disjoint pieces that sum to their lengths.
    """
    @property
    def count(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: stretches of time.
        """
    @property
    def ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n].
        """
    @property
    def part(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: index in step_part_names().
        """
    @property
    def row(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: GPU event, or host row that explains it; NO_ROW: none.
        """
    @property
    def step(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: index in bounds.
        """

class TreeDiff:
    """
    The call trees of two recordings made one.
    """
    def after_node(
        self, pair: typing.SupportsInt | typing.SupportsIndex
    ) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [rows].
        """
    def before_node(
        self, pair: typing.SupportsInt | typing.SupportsIndex
    ) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [rows]: node of each row, the innermost around it; NO_ROW if none.
        """
    @property
    def after_row(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [nodes].
        """
    @property
    def before_row(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [nodes]: NO_ROW where only the other has it.
        """
    @property
    def context_after(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [contexts].
        """
    @property
    def context_before(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [contexts]: index in names, or NO_STRING.
        """
    @property
    def context_parent(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [contexts]: a context, or NO_ROW.
        """
    @property
    def depth(self) -> numpy.typing.NDArray[numpy.uint16]:
        """
        uint16 [nodes].
        """
    @property
    def matched_by(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [nodes]: index in matched_by_names().
        """
    @property
    def names(self) -> list[str]:
        """
        Names of contexts.
        """
    @property
    def pair_offsets(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [pairs + 1]: into the nodes.
        """
    @property
    def parent(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [nodes]: a node, or NO_ROW.
        """
    @property
    def variant(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [nodes].
        """
    @property
    def variant_after_dims(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        int32 [variants].
        """
    @property
    def variant_before_dims(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        int32 [variants]: code of the shapes, -1 absent.
        """
    @property
    def variant_context(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [variants].
        """
    @property
    def variant_matched_by(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [variants]: the best of its calls.
        """

class ExecutionGraph:
    """
    A run that can be replayed and edited.
    """
    def __len__(self) -> int: ...
    def begin_of(
        self, rank: typing.SupportsInt | typing.SupportsIndex
    ) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [rows]: the point where a row begins, or NO_ROW.
        """
    def destinations(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [edges]: the point that each edge leads to.
        """
    def edges_by_source(
        self,
    ) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
        """
        int64 [points + 1] and int64 [edges]: edges grouped by the point at which they start, and where those of each begin.
        """
    def edges_into(
        self,
        points: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        kinds: typing.SupportsInt | typing.SupportsIndex,
    ) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64: edges that lead to points, of each point once, in order; bit k of `kinds` stands for the DependencyKind k.
        """
    def end_of(
        self, rank: typing.SupportsInt | typing.SupportsIndex
    ) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [rows]: the point where a row ends, or NO_ROW.
        """
    @property
    def contradicted(self) -> int:
        """
        Given dependencies whose consumer began before its producer ended.
        """
    @property
    def dropped_edges(self) -> int:
        """
        They closed a cycle.
        """
    @property
    def evidence(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [edges]: Evidence.
        """
    @property
    def held(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [points]: happens no earlier than measured, since what it waited for was not recorded.
        """
    @property
    def in_offsets(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [points + 1]: edges by destination.
        """
    @property
    def is_end(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [points].
        """
    @property
    def kind(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [edges]: DependencyKind.
        """
    @property
    def lag_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [edges]: work, or the typical latency of its kind.
        """
    @property
    def lane(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [points]: index in lanes.
        """
    @property
    def lane_begin(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [lanes]: its first point.
        """
    @property
    def lane_end(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [lanes]: behind its last point.
        """
    @property
    def lane_index(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [lanes]: in the table's tracks or the tree's streams.
        """
    @property
    def lane_kind(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [lanes]: 0 thread, 1 stream, 2 meeting points.
        """
    @property
    def lane_rank(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [lanes]: index of the rank.
        """
    @property
    def name(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [points]: code of the row's name, the same for the marks of all steps; NO_STRING: none.
        """
    @property
    def order(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [points]: sources before destinations.
        """
    @property
    def owner(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [edges]: row whose time it is, or NO_ROW.
        """
    @property
    def residual_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [edges]: what the measured run took beyond that.
        """
    @property
    def row(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [points]: row of its rank, or NO_ROW.
        """
    @property
    def source(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [edges]: point.
        """
    @property
    def time_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [points]: measured.
        """

class GraphDelta:
    """
    What an edit changes in a graph: edges and points as numbers, int64 or uint32 arrays, lags in ns as int64 arrays. Raises SchemaError for lags beyond all times; a replay does for edges and points that are not there.
    """
    def __init__(self) -> None:
        """
        No change yet.
        """
    def __len__(self) -> int: ...
    def add_all(
        self,
        sources: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        destinations: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        lags_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    ) -> None:
        """
        New dependencies from point to point. Those that close a cycle are left out of every replay, what contradicts the measured times most first; see `closing_edges`.
        """
    def carry_all(
        self,
        sources: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        destinations: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        lags_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    ) -> None:
        """
        New dependencies from a copy of the run to the next, where there are several.
        """
    def drop_all(self, edges: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> None:
        """
        These dependencies are gone.
        """
    def join(self, other: GraphDelta) -> None:
        """
        Both; the other's lags win.
        """
    def set_lags(
        self,
        edges: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        lags_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    ) -> None:
        """
        New costs, residuals included; of two for one edge the later holds.
        """
    @property
    def carries(self) -> bool:
        """
        Has it dependencies from a copy of the run to the next?
        """

class BatchReplayer:
    """
    Replays many edits of one graph, without Python's lock, and keeps its memory for the next batch. The points of step i are work_points[work_offsets[i]:work_offsets[i + 1]]; carries are as replay_chain takes them.
    """
    def __init__(
        self,
        graph: ExecutionGraph,
        work_points: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        work_offsets: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        carries: typing.Annotated[numpy.typing.ArrayLike, numpy.int64] = ...,
    ) -> None: ...
    def run(
        self,
        deltas: collections.abc.Sequence[GraphDelta],
        *,
        copies: typing.SupportsInt | typing.SupportsIndex = 1,
        with_residuals: bool = True,
    ) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32]]:
        """
        When all work of each step has ended, with each edit (None: none): int64 [deltas, copies, steps]; and uint32 [deltas]: added edges that were left out because they close a cycle. NEVER for a step without points. On several threads where there is much to do.
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
    Numbers per window; docs/scorers.md lists them.
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

class TokenKind(enum.IntEnum):
    """What a token stands for."""

    KERNEL = 0
    MEMSET = 1
    COLLECTIVE = 2
    COPY = 3
    GAP = 4
    SYNCHRONIZATION = 5
    BLOCKING_COPY = 6
    DATA_LOADING = 7
    ALLOCATOR = 8
    COMPILED_REGION = 9

class Tokens:
    """
    The events of each window as arrays; docs/scorers.md defines them.
    """
    def __len__(self) -> int: ...
    @property
    def bytes(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: of copies, memsets and collectives; 0 if not told.
        """
    @property
    def class_code(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: in token_class_names().
        """
    @property
    def cpu_name(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        int32 [n]: of the innermost operator above, in names.
        """
    @property
    def delay_code(self) -> numpy.typing.NDArray[numpy.int16]:
        """
        int16 [n]: of the launch delay, 0 to 255; 256 without one.
        """
    @property
    def dur_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n].
        """
    @property
    def duration_code(self) -> numpy.typing.NDArray[numpy.int16]:
        """
        int16 [n]: 0 to 255.
        """
    @property
    def flags(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: 1 continued, 2 in a graph, 4 backward, 8 compiled.
        """
    @property
    def folded(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [windows]: events left out by the cap.
        """
    @property
    def grid_blocks(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: of kernels; 0 if not told.
        """
    @property
    def kind(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: TokenKind.
        """
    @property
    def launch_dur_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: of the launch call; -1 without one.
        """
    @property
    def name(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        int32 [n]: in names.
        """
    @property
    def names(self) -> list[str]:
        """
        Distinct names as recorded; [0] stands for none, [1] for an event without launch.
        """
    @property
    def offsets(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [windows + 1]: into the columns.
        """
    @property
    def position(self) -> numpy.typing.NDArray[numpy.float32]:
        """
        float32 [n]: start within the window, 0 to 1000.
        """
    @property
    def queue_depth(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        int32 [n]: what the launch found queued; -1 if unknown.
        """
    @property
    def row(self) -> numpy.typing.NDArray[numpy.uint32]:
        """
        uint32 [n]: the event; of gaps what explains them.
        """
    @property
    def start_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n].
        """
    @property
    def stream(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        int32 [n]: index of the stream; -1 for gaps and host rows.
        """
    @property
    def stream_gap_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [n]: since the event before on the stream; -1 if none.
        """
    @property
    def stream_role(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [n]: 0 compute, 1 communication, 2 copy, 3 none.
        """

class Trees:
    """
    Learned decision trees, checked.
    """
    def __init__(
        self,
        *,
        feature: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        threshold: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
        left: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        right: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        leaf: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
        root: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        output: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        columns: typing.SupportsInt | typing.SupportsIndex,
        outputs: typing.SupportsInt | typing.SupportsIndex,
    ) -> None:
        """
        int32 and float64 [n]: splits of all trees behind each other; a child or root >= 0 is a split, one < 0 the leaf ~child.
        """
    def sums(
        self, values: typing.Annotated[numpy.typing.ArrayLike, numpy.float64]
    ) -> numpy.typing.NDArray[numpy.float64]:
        """
        float64 [rows, outputs]: sums of the leaves of float64 [rows, columns].
        """
    @property
    def columns(self) -> int:
        """
        Columns of the values.
        """
    @property
    def outputs(self) -> int:
        """
        Columns of the sums.
        """

class Finding:
    """
    What one rule says of one rank.
    """
    @property
    def applies(self) -> bool:
        """
        The trace holds what the rule is about.
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
    def facts(self) -> dict[str, tuple[str, typing.Any]]:
        """
        By name (kind, value): count, duration_ns, bytes (int), share, rate (float) or text (str).
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

class Rule:
    """
    One rule: a type of finding and what its saving rests on.
    """
    @property
    def paper(self) -> bool:
        """
        One of the paper's eight types.
        """
    @property
    def saving_basis(self) -> str:
        """
        idle, idle_or_exposed, cost, gpu_work or idle_and_work.
        """
    @property
    def saving_shares(self) -> tuple[float, float, float]:
        """
        Careful figure, guess and bound as shares of the basis.
        """
    @property
    def type(self) -> str: ...

class MatrixUnits:
    """
    Matrix arithmetic of a device relative to plain fp32 products.
    """
    def __init__(
        self,
        *,
        half_ratio: typing.SupportsFloat | typing.SupportsIndex,
        tf32_ratio: typing.SupportsFloat | typing.SupportsIndex,
        half_flops_per_byte: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        device: str,
    ) -> None:
        """
        Ratios of 0: no such units. `device` is its name for a person.
        """
    @property
    def device(self) -> str: ...
    @property
    def half_flops_per_byte(self) -> float:
        """
        FLOPs in half precision for each byte that memory moves; 0: not known.
        """
    @property
    def half_ratio(self) -> float:
        """
        fp16 or bf16 over plain fp32.
        """
    @property
    def tf32_ratio(self) -> float:
        """
        TF32 over plain fp32.
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

def align_sequences(
    first: typing.Annotated[numpy.typing.ArrayLike, numpy.uint64],
    second: typing.Annotated[numpy.typing.ArrayLike, numpy.uint64],
) -> numpy.typing.NDArray[numpy.uint32]:
    """
    Per item of the first its partner in the second, uint32 [n], or NO_ROW. Items are uint64 [n, 3]: whole, detail and name, of which equal ones imply those behind.
    """

def arrow_batches(
    batches: collections.abc.Sequence[
        list[tuple[str, numpy.ndarray, list[str] | None, numpy.ndarray | None]]
    ],
) -> ArrowTable:
    """
    Batches of columns (name, array [n], texts, valid): with texts the array holds indices, where valid [n] is False there is no value. Arrays are not copied.
    """

def binding_edges(
    graph: ExecutionGraph,
    time_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    *,
    with_residuals: bool = True,
) -> numpy.typing.NDArray[numpy.uint32]:
    """
    uint32 [points]: the edge that each point waited for, or NO_ROW.
    """

def both_lags(
    cost_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    one: tuple[
        typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    ],
    other: tuple[
        typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    ],
) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
    """
    Two changes at once, each as later_lags gives it, of edges that cost cost_ns, int64 [edges]: where both change an edge their ratios are multiplied; an edge that costs nothing has no ratio, there what costs more holds.
    """

def build_features(table: EventTable, tree: EventTree, windows: WindowSet) -> FeatureBlock:
    """
    Features of every window.
    """

def build_graph(
    *,
    lane_rank: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    lane_kind: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
    lane_index: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    time_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    lane: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    row: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    is_end: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
    held: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
    name: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    source: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    destination: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    kind: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
    evidence: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
    owner: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    lag_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    residual_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    rows: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
) -> ExecutionGraph:
    """
    A graph of lanes [lanes], points [points] and edges [edges], named as the columns of ExecutionGraph; `rows` [ranks]: of each rank's table. Points of a lane stand together, edges in any order; points happen when a replay says.
    """

def build_modules(table: EventTable, tree: EventTree, costs: GpuCosts) -> ModuleTree:
    """
    The module of every row, and the costs of every module.
    """

def build_table(
    *,
    ts_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    dur_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    phase: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
    name: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    category: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    track: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    strings: collections.abc.Sequence[str],
    tracks: collections.abc.Sequence[tuple[str, str]],
    args: collections.abc.Sequence[
        tuple[
            str,
            typing.Annotated[numpy.typing.ArrayLike, numpy.int64]
            | typing.Annotated[numpy.typing.ArrayLike, numpy.float64]
            | tuple[
                typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
                collections.abc.Sequence[str],
                bool,
            ],
            typing.Annotated[numpy.typing.ArrayLike, numpy.uint8] | None,
        ]
    ],
    members: collections.abc.Sequence[
        tuple[
            str,
            typing.Annotated[numpy.typing.ArrayLike, numpy.int64]
            | typing.Annotated[numpy.typing.ArrayLike, numpy.float64]
            | tuple[
                typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
                collections.abc.Sequence[str],
                bool,
            ],
            typing.Annotated[numpy.typing.ArrayLike, numpy.uint8] | None,
        ]
    ],
    metadata: collections.abc.Sequence[tuple[str, str]],
    path: str,
) -> EventTable:
    """
    The table that reading a file of these events would give. Columns are [n]: int64 ts_ns and dur_ns (of phase X), uint8 phase (letters), uint32 name, category (NO_STRING: none) and track, codes into `strings` and into `tracks`, (pid, tid). args and members of the events: (key, values, present), where values are int64, float64 or (codes, texts, texts are JSON), and present is bool or None. metadata: (key, JSON text).
    """

def build_tokens(
    table: EventTable,
    tree: EventTree,
    windows: WindowSet,
    *,
    cap: typing.SupportsInt | typing.SupportsIndex = 128,
    gaps: bool = True,
    host: bool = True,
    continued: bool = True,
) -> Tokens:
    """
    The events of every window.
    """

def build_tree(
    table: EventTable,
    *,
    overlap_tolerance_ns: typing.SupportsInt | typing.SupportsIndex = 1000,
    last_rank_began_ns: typing.SupportsInt | typing.SupportsIndex | None = None,
) -> EventTree:
    """
    Links the rows of a table. `last_rank_began_ns`: first event of the rank of the job that began to record last; None where the rank is read alone.
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

def checksum(data: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8]) -> int:
    """
    CRC-32 of uint8 [n].
    """

def classify_copy(name: str) -> tuple[CopyDirection, HostMemory]:
    """
    Which way a copy goes and the host's memory, by the name of a GPU event; UNKNOWN for kernels.
    """

def closing_edges(graph: ExecutionGraph, delta: GraphDelta) -> numpy.typing.NDArray[numpy.uint32]:
    """
    uint32: which added edges of an edit, in the order in which they were added, replays leave out because they close a cycle.
    """

def collective_kind_names() -> list[str]:
    """
    By number.
    """

def collectives(
    ranks: collections.abc.Sequence[
        tuple[EventTable, EventTree, typing.SupportsInt | typing.SupportsIndex | None]
    ],
) -> RankCollectives:
    """
    Matches the collectives of ranks, each (table, tree, rank), and aligns the clocks.
    """

def comparable_names(
    names: collections.abc.Sequence[str], *, vendor_free: bool = False
) -> list[str]:
    """
    Names without call numbers, addresses and line numbers; vendor_free: CUDA and HIP alike.
    """

def compat_nesting(table: EventTable, *, python_frames: bool = False) -> CompatNesting:
    """
    The host tree that TraceLens builds: what it drops is left out.
    """

def critical_path(
    ranks: collections.abc.Sequence[
        tuple[EventTable, EventTree, typing.SupportsInt | typing.SupportsIndex]
    ],
    range: tuple[
        typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex
    ],
    *,
    meetings: Meetings | None = None,
) -> CriticalPath:
    """
    The chain of events that decided when the range (start_ns, end_ns) ended. `ranks`: (table, tree, offset_ns) of each; `meetings`: where they meet.
    """

def dependency_kind_names() -> list[str]:
    """
    Names of CriticalPath.kind.
    """

def detect(
    table: EventTable,
    tree: EventTree,
    *,
    material_share: typing.SupportsFloat | typing.SupportsIndex = 0.02,
    peers: PeerView | None = None,
    matrix_units: MatrixUnits | None = None,
) -> list[Finding]:
    """
    Runs every rule on one rank. Without `matrix_units` the names of kernels tell what the device can do.
    """

def device_timelines(
    table: EventTable, tree: EventTree, *, linked_only: bool = False
) -> list[tuple[int, Timeline]]:
    """
    (device, timeline) for each device that ran something; -1: no device named.
    """

def drop_scratch(folder: os.PathLike[str] | str | bytes) -> None:
    """
    It is gone.
    """

def edit_table(
    table: EventTable,
    *,
    ts_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    dur_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    kept: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
    correlation: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    more_events: collections.abc.Sequence[str] = [],
) -> EventTable:
    """
    The table with its events at other times, int64 [n] twice, without those that are not kept, bool [n], with other correlation ids where there are such, int64 [n], and with more_events, JSON objects.
    """

def evidence_names() -> list[str]:
    """
    Names of CriticalPath.evidence.
    """

def evidence_rows(
    table: EventTable, tree: EventTree, type: str
) -> numpy.typing.NDArray[numpy.uint32]:
    """
    uint32: all rows that show a type of anti-pattern, by start; none for an unknown type.
    """

def excerpt(
    table: EventTable,
    tree: EventTree,
    windows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    left_out: typing.Annotated[numpy.typing.ArrayLike, numpy.int64] | None = None,
    profiled: tuple[
        typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex
    ]
    | None = None,
) -> tuple[EventTable, EventTree]:
    """
    The rows that lie inside stretches of time (int64 `[n, 2]`, host clock), with the GPU events launched there, as a table and tree of their own; `left_out` is neither busy nor idle, `profiled` (start, end) the profiled time, by default that of the steps.
    """

def execution_graph(
    ranks: collections.abc.Sequence[
        tuple[EventTable, EventTree, typing.SupportsInt | typing.SupportsIndex]
    ],
    *,
    meetings: Meetings | None = None,
    dependencies: collections.abc.Sequence[
        tuple[
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
        ]
    ] = [],
    explicit_only: bool = False,
    queue_depth: typing.SupportsInt | typing.SupportsIndex = 1021,
) -> ExecutionGraph:
    """
    Ranks as (table, tree, offset_ns), where they meet, and (rank index, producer, consumer) GPU rows of dependencies that are known otherwise, as a graph. `queue_depth`: launches that a CUDA stream takes; 0: any number.
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

def feature_names() -> list[str]:
    """
    [features]: FeatureBlock.names of every block.
    """

def gives_memory_back(api: ApiClass) -> bool:
    """
    Memory is given back or unmapped.
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

def gpu_union_by_group(
    table: EventTable,
    tree: EventTree,
    group_of: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
    groups: typing.SupportsInt | typing.SupportsIndex,
) -> numpy.typing.NDArray[numpy.int64]:
    """
    int64 [groups]: union of the GPU events of each group; group_of is int32 and follows gpu_rows, what is negative is left out.
    """

def group_rows(
    keys: collections.abc.Sequence[typing.Annotated[numpy.typing.ArrayLike, numpy.int64]],
) -> RowGroups:
    """
    Groups of rows whose keys (integers, of equal lengths) are all equal.
    """

def held_out_lags(
    graph: ExecutionGraph,
    step_of_point: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    steps: typing.SupportsInt | typing.SupportsIndex,
) -> numpy.typing.NDArray[numpy.int64]:
    """
    int64 [edges]: what each edge costs (lag and residual); of edges that lead into a step the mean of the same edge in the other steps, never its own. step_of_point is uint32 [points]: below `steps`, or NO_ROW.
    """

def host_idle(
    table: EventTable,
    tree: EventTree,
    idle: IdleBreakdown,
    bounds: tuple[
        typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex
    ],
    group_of: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
    groups: typing.SupportsInt | typing.SupportsIndex,
) -> HostIdle:
    """
    Self time of host rows by group (int32 [n], negative: that of the row around it), within bounds and while the GPU was idle.
    """

def hta_bound_names() -> list[str]:
    """
    Names of HtaPath.bound.
    """

def hta_critical_path(
    table: EventTable,
    *,
    annotation: str,
    instances: tuple[
        typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex
    ] = (0, 0),
    launch_edges: bool = True,
    keep_last_step: bool = False,
    release_0_5_0: bool = False,
) -> HtaPath:
    """
    The critical path by HTA's rules, within instances of an annotation.
    """

def hta_edge_kind_names() -> list[str]:
    """
    Names of HtaPath.kind.
    """

def idle_cause_names() -> list[str]:
    """
    Names of IdleBreakdown.cause.
    """

def innermost_marked(
    table: EventTable,
    tree: EventTree,
    marked: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
) -> numpy.typing.NDArray[numpy.uint32]:
    """
    uint32 [n]: the innermost row at or above each for which `marked` (one number per row) is not 0, or NO_ROW.
    """

def is_allocator_call(api: ApiClass) -> bool:
    """
    Device or pinned memory is taken, mapped or given back.
    """

def is_communication_name(name: str) -> bool:
    """
    Is a kernel of this name communication?
    """

def is_copy_call(api: ApiClass) -> bool:
    """
    Copies memory.
    """

def is_host_memory_call(api: ApiClass) -> bool:
    """
    Pinned memory of the host is taken or given back.
    """

def is_plain_fp32_product(kernel_name: str) -> bool:
    """
    Does the name say a product or convolution of fp32 data without TF32?
    """

def is_synchronisation(api: ApiClass) -> bool:
    """
    The host waits until GPU work is done, and for nothing else.
    """

def keep_scratch(folder: os.PathLike[str] | str | bytes) -> None:
    """
    A folder that must not outlive an interrupted process.
    """

def kernel_sequences(
    table: EventTable,
    tree: EventTree,
    symbols: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
    *,
    length: typing.SupportsInt | typing.SupportsIndex = 0,
    limit: typing.SupportsInt | typing.SupportsIndex = 1000,
) -> KernelSequences:
    """
    Repeated sequences of kernels; `symbols`, int32 per gpu_rows, says which are equal, negative ones belong to no sequence. length 0: every length from 2 to 64.
    """

def kind_names() -> list[str]:
    """
    Names of EventTable.kind.
    """

def late_cause_names() -> list[str]:
    """
    Names of Lateness.cause.
    """

def later_lags(
    changes: collections.abc.Sequence[
        tuple[
            typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
            typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        ]
    ],
) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
    """
    (edges, lags in ns) of several changes, each int64 [n], one behind the other: edges each once and in order; of two lags for one edge the later holds.
    """

def launch_queue(table: EventTable, tree: EventTree) -> LaunchQueue:
    """
    Queue length of every stream over time.
    """

def matched_by_names() -> list[str]:
    """
    Names of TreeDiff.matched_by.
    """

def packed_values(
    table: EventTable,
) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8]]:
    """
    What the templates of the events leave out, end to end: int64 [n + 1] offsets, uint8 data.
    """

def path_cause_names() -> list[str]:
    """
    Names of CriticalPath.cause.
    """

def path_causes(
    rank: tuple[EventTable, EventTree, typing.SupportsInt | typing.SupportsIndex],
    range: tuple[
        typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex
    ],
) -> tuple[numpy.typing.NDArray[numpy.uint8], numpy.typing.NDArray[numpy.int64]]:
    """
    Causes of the path of one rank (table, tree, offset_ns), as in CriticalPath.cause, uint8 [n], and where each ends, int64 [n]; each begins where the one before it ends, the first one with the range.
    """

def phase_names() -> list[str]:
    """
    Names of EventTree.phase.
    """

def plain_graph(
    duration_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    source: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    destination: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32],
    lag_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    *,
    start_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64] = ...,
) -> ExecutionGraph:
    """
    Nodes with durations, int64 [nodes], and edges, uint32 [edges] twice and int64 [edges]; node i is the points 2 i (begin) and 2 i + 1 (end). Of edges to one point that of the node's duration is the first.
    """

def prepare_heap() -> None:
    """
    For a process of our own, all of which it changes: few pages to ask the system for, and blocks of 2 MB and more go back to it when they are freed.
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

def rank_verdict_names() -> list[str]:
    """
    Names of Lateness.verdict.
    """

def read_iteration_name(name: str) -> IterationMark | None:
    """
    Read the annotation of vLLM, SGLang, ATOM, xDiT or TensorRT-LLM; None for other names.
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

def recompiled_rows(table: EventTable, tree: EventTree) -> numpy.typing.NDArray[numpy.uint32]:
    """
    uint32: outermost rows in which something is compiled that was compiled before.
    """

def replay(
    graph: ExecutionGraph, delta: GraphDelta | None = None, *, with_residuals: bool = True
) -> numpy.typing.NDArray[numpy.int64]:
    """
    int64 [points]: when each point happens.
    """

def replay_chain(
    graph: ExecutionGraph,
    carries: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    copies: typing.SupportsInt | typing.SupportsIndex,
    delta: GraphDelta | None = None,
    *,
    with_residuals: bool = True,
) -> numpy.typing.NDArray[numpy.int64]:
    """
    int64 [copies, points]: copies of the run one behind the other; carries are (source, destination, lag_ns) from a copy to the next, int64 [carries, 3]. NEVER where a point does not happen.
    """

def restore_table(
    *,
    ts_ns: tuple[numpy.ndarray, typing.SupportsInt | typing.SupportsIndex | None],
    dur_ns: numpy.ndarray,
    name: numpy.ndarray,
    category: numpy.ndarray,
    kind: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
    phase: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
    flags: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
    track: numpy.ndarray,
    device: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.int32], numpy.ndarray],
    stream: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.int64], numpy.ndarray],
    correlation: tuple[numpy.ndarray, typing.SupportsInt | typing.SupportsIndex | None],
    external_id: tuple[numpy.ndarray, typing.SupportsInt | typing.SupportsIndex | None],
    template_id: numpy.ndarray,
    values: tuple[numpy.ndarray, typing.Annotated[numpy.typing.ArrayLike, numpy.uint8]],
    strings: tuple[numpy.ndarray, typing.Annotated[numpy.typing.ArrayLike, numpy.uint8]],
    templates: tuple[numpy.ndarray, typing.Annotated[numpy.typing.ArrayLike, numpy.uint8]],
    tracks: collections.abc.Sequence[tuple[str, str]],
    metadata: collections.abc.Sequence[tuple[str, str]],
    diagnostics: collections.abc.Sequence[
        tuple[
            str,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex | None,
            str,
        ]
    ],
    total_objects: typing.SupportsInt | typing.SupportsIndex,
    text_bytes: typing.SupportsInt | typing.SupportsIndex,
    path: str,
    threads: typing.SupportsInt | typing.SupportsIndex = 0,
) -> EventTable:
    """
    The table whose columns [n] these are, in its order, as uint8, uint16, uint32 or int64, with codes into strings, templates and tracks, (pid, tid); a category is len(strings) where there is none. ts_ns, correlation, external_id: values, and None or the number that steps go from, or that ids count from, 0 being none. device and stream: distinct values and codes. values, strings and templates: sizes and bytes. diagnostics: (code, count, first byte offset, message). Raises SchemaError where they can't be a table's.
    """

def row_times(
    graph: ExecutionGraph,
    rank: typing.SupportsInt | typing.SupportsIndex,
    table: EventTable,
    replayed_ns: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    *,
    gpu_shift_ns: typing.SupportsInt | typing.SupportsIndex = 0,
) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
    """
    When the events of a rank happen in a replay, int64 [points], on its own clock: ts_ns and dur_ns, int64 [rows].
    """

def rules() -> list[Rule]:
    """
    All rules, the paper's eight first.
    """

def runs_on_host(table: EventTable, tree: EventTree) -> bool:
    """
    Does the run compute on the host? Nothing of a GPU is recorded, and operators fill a tenth of the profiled time or more.
    """

def say_interrupted() -> None:
    """
    Writes the message of `watch_interrupts` to standard error, once.
    """

def serving_work(
    table: EventTable,
    tree: EventTree,
    track: typing.SupportsInt | typing.SupportsIndex | None,
    stretches: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
) -> numpy.typing.NDArray[numpy.int64]:
    """
    int64 [n, works]: ns by what a thread does within stretches [n, 2] of the GPU's clock, which are sorted and disjoint.
    """

def serving_work_names() -> list[str]:
    """
    What the thread of a serving engine does, as `serving_work` counts it.
    """

def split_merged_trace(
    table: EventTable, *, threads: typing.SupportsInt | typing.SupportsIndex = 0
) -> list[tuple[int, EventTable]]:
    """
    The ranks, (rank, table), of a trace that write_merged_trace wrote, else nothing.
    """

def split_processes(table: EventTable) -> list[EventTable]:
    """
    The processes that launch GPU work, a table for each; nothing where there are fewer than two.
    """

def step_part_names() -> list[str]:
    """
    Names of StepPieces.part.
    """

def step_pieces(
    table: EventTable,
    tree: EventTree,
    bounds: collections.abc.Sequence[
        tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
    ],
) -> StepPieces:
    """
    Every instant of the steps (sorted, disjoint bounds) to a GPU event, an idle cause or, without GPU events, a row of the main thread.
    """

def template_ids(table: EventTable) -> numpy.typing.NDArray[numpy.uint32]:
    """
    uint32 [n]: the template of each event, an index in template_texts.
    """

def template_texts(table: EventTable) -> list[bytes]:
    """
    The templates by id.
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

def token_class_names() -> list[str]:
    """
    Names of Tokens.class_code, by code: kinds, and what the events of some do.
    """

def trace_json(table: EventTable) -> bytes:
    """
    The JSON text as bytes.
    """

def tree_diff(
    before: collections.abc.Sequence[
        tuple[
            EventTable, EventTree, GpuCosts, typing.Annotated[numpy.typing.ArrayLike, numpy.int32]
        ]
    ],
    after: collections.abc.Sequence[
        tuple[
            EventTable, EventTree, GpuCosts, typing.Annotated[numpy.typing.ArrayLike, numpy.int32]
        ]
    ],
) -> TreeDiff:
    """
    Aligns ranks in pairs; each is (table, tree, costs, codes of the shapes by row).
    """

def watch_interrupts(
    descriptor: typing.SupportsInt | typing.SupportsIndex,
    grace_ms: typing.SupportsInt | typing.SupportsIndex,
    message: str,
) -> None:
    """
    Reads signal numbers from a descriptor (signal.set_wakeup_fd). Where the process still runs `grace_ms` after a SIGINT or SIGTERM it is ended, with 128 and the signal: folders of `keep_scratch` are removed, nothing else is cleaned up. Once in a process.
    """

def without_loose_flows(
    table: EventTable, kept: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8]
) -> numpy.typing.NDArray[numpy.bool]:
    """
    bool [rows]: `kept` without flows that start or end with an event that is not kept.
    """

def write_merged_trace(
    ranks: collections.abc.Sequence[
        tuple[
            EventTable,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsFloat | typing.SupportsIndex,
        ]
    ],
    path: os.PathLike[str] | str | bytes,
    *,
    epoch_ns: typing.SupportsInt | typing.SupportsIndex = 0,
) -> None:
    """
    Writes ranks, each (table, rank, offset_ns, drift), as one trace on one clock.
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
IMPOSSIBLE: int = 16
MATCHED_END: int = 4
MATERIAL_SHARE: float = 0.02
MAX_EVIDENCE: int = 20
NEVER: int = -9223372036854775808
NO_ID: int = -9223372036854775808
NO_ROW: int = 4294967295
NO_STRING: int = 4294967295
PROVEN_SHARE: float = 0.8
QUEUE_DEPTH: int = 1021
REPAIRED: int = 8
