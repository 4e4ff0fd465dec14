"""A trace: its ranks, with a method for every view of them.

This is the top floor: what a view needs is imported when it is called, and nothing below imports
this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from torchtraceap.core.aliases import PathLike, Steps
from torchtraceap.core.results import Summary, Windows
from torchtraceap.core.table import ColumnTable
from torchtraceap.trace.ranks import Ranks, parse_recorded

if TYPE_CHECKING:
    from torchtraceap import _core
    from torchtraceap.compat.replay import ReplayResult
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.explanation.explanation import Explanation, Response
    from torchtraceap.explanation.settings import ModelSettings
    from torchtraceap.ops.durations.calibration import Calibration, KindTimes
    from torchtraceap.simulation.edits.base import Edit
    from torchtraceap.simulation.simulate import Simulation
    from torchtraceap.tables.events import EventRows
    from torchtraceap.tables.host import IdleTable
    from torchtraceap.tables.serving.serving import Serving
    from torchtraceap.tables.tree import TreeView
    from torchtraceap.tables.windows import FeatureTable

__all__ = ["Trace"]


class Trace(Ranks):
    """A trace of one or several ranks with a method for each view of it; `ttap.load` makes it.

    Methods that take `rank` use the only (or first) rank where it is left out; tables then cover
    all of them.
    """

    def summary(self, *, linked_only: bool = False) -> Summary:
        """Return the content of the trace and where its GPU time goes.

        Args:
            linked_only: Leave GPU events out whose launch the trace does not hold.
        """
        from torchtraceap.tables.summary import build_summary

        return build_summary(self, linked_only=linked_only)

    def diagnose(self, *, windows: int = 100, scorer: str | None = None) -> Diagnosis:
        """Return which anti-patterns cost time, on what evidence, and what to change.

        Args:
            windows: Number of windows of equal time that get scores.
            scorer: Who scores them (docs/scorers.md); the default one for None.
        """
        from torchtraceap.diagnosis.diagnose import build_diagnosis

        return build_diagnosis(self, windows=windows, scorer=scorer)

    def explain(
        self,
        *,
        question: str | None = None,
        model: ModelSettings | None = None,
        redacted: bool = True,
        diagnosis: Diagnosis | None = None,
    ) -> Explanation:
        """Explain the suspicious parts: what happens, why it costs, what to change, how to check
        it.

        Args:
            question: To be answered beside it.
            model: A language model that judges and answers (docs/explanations.md); None: offline.
            redacted: Names of the trace are hidden from the model.
            diagnosis: The diagnosis to use; None makes it.
        """
        from torchtraceap.explanation.explain import explain

        known = diagnosis or self.diagnose()
        return explain(known, question=question, settings=model, redacted=redacted)

    def ask(
        self,
        question: str,
        *,
        model: ModelSettings | None = None,
        redacted: bool = True,
        diagnosis: Diagnosis | None = None,
    ) -> Response:
        """The answer to a question about the trace, from numbers of the trace.

        Args:
            question: The question in any words.
            model: A language model that may call read-only tools; None: what the words lead to.
            redacted: Names of the trace are hidden from the model.
            diagnosis: The diagnosis to use; None makes it.
        """
        from torchtraceap.explanation.explain import answer

        return answer(diagnosis or self.diagnose(), question, settings=model, redacted=redacted)

    def score(
        self, *, windows: int = 100, scorer: str | None = None, device: str = "cpu"
    ) -> Windows:
        """Return the probability that each window of equal time holds lost time, in all and by
        type.

        Args:
            windows: The number of windows.
            scorer: Who scores them (docs/scorers.md); the default one for None.
            device: Where the scorer's network runs: "cpu", or "cuda" for `paper` and `v2`.
        """
        from torchtraceap.diagnosis.scoring import load_scorer
        from torchtraceap.tables.catalog import check_count

        check_count("windows", windows)
        return load_scorer(scorer, device=device).score(self, windows)

    def quality(self) -> ColumnTable:
        """Return what the recording lacks, and what was left out; empty where it is fine."""
        from torchtraceap.tables.quality import build_quality

        return build_quality(self)

    def tree(self, rank: int | None = None) -> TreeView:
        """Host stacks with the kernels that they launched."""
        from torchtraceap.tables.tree import TreeView

        return TreeView(self.rank(rank))

    def event(self, row: int, rank: int | None = None) -> dict[str, Any]:
        """One event with every key that it had in the file."""
        return parse_recorded(self.rank(rank).table.event_json(row), f"row {row}")

    def args(self, row: int, rank: int | None = None) -> dict[str, Any]:
        """The `args` of one event."""
        return parse_recorded(self.rank(rank).table.args_json(row), f"row {row}")

    def idle(self, rank: int | None = None, *, profiled: bool = False) -> IdleTable:
        """Every interval in which the GPU idles, with its cause and the host event behind it.

        Args:
            rank: The rank.
            profiled: Over the profiled time; by default from the first to the last GPU event,
                which makes the causes sum to the timeline's `idle_ns`.
        """
        from torchtraceap.tables.host import build_idle

        return build_idle(self.rank(rank), profiled=profiled)

    def windows(
        self, *, count: int = 100, length_ns: int = 0, rank: int | None = None
    ) -> _core.WindowSet:
        """Windows of equal time (or of `length_ns`) over the profiled time, with their rows."""
        from torchtraceap.tables.windows import build_windows

        return build_windows(self.rank(rank), count=count, length_ns=length_ns)

    def features(self, *, count: int = 100, rank: int | None = None) -> FeatureTable:
        """Numbers per window, and their robust z-scores."""
        from torchtraceap.tables.windows import build_features

        return build_features(self.rank(rank), count=count)

    # ------------------------------------------------------------------------------ tables
    # The rows of every rank, with a first column `rank`, unless one is named. The spec of
    # each, beside the function that builds it, has the same options; a test compares.

    def _table(self, name: str, rank: int | None = None, /, **options: Any) -> ColumnTable:
        from torchtraceap.tables.catalog import table_spec

        return table_spec(name).make(self, rank=rank, **options)

    def events(
        self,
        rank: int | None = None,
        *,
        name: str = "",
        kind: str = "",
        longest: bool = False,
        with_args: bool = False,
    ) -> EventRows:
        """The events, by start.

        Args:
            rank: Only this rank.
            name: Only events whose name holds this, in any case.
            kind: Only events of this kind, such as "kernel".
            longest: Longest first.
            with_args: A last column `args`, JSON.
        """
        chosen = {"name": name, "kind": kind, "longest": longest, "with_args": with_args}
        return cast("EventRows", self._table("events", rank, **chosen))

    def tree_rows(
        self,
        *,
        step: str | int | None = None,
        max_depth: int = 6,
        min_duration_ns: int = 0,
        kernels: bool = True,
        rank: int | None = None,
    ) -> ColumnTable:
        """The call tree as rows by time; a GPU event's parent is the call that launched it.

        Args:
            step: Only what starts in this step, by name or by place (0 is the first).
            max_depth: Deepest level of host calls.
            min_duration_ns: Leave shorter host events out.
            kernels: List GPU events too.
            rank: Only this rank.
        """
        return self._table(
            "tree",
            rank,
            step=step,
            max_depth=max_depth,
            min_duration_ns=min_duration_ns,
            kernels=kernels,
        )

    def ops(self, *, by: str = "name", rank: int | None = None) -> ColumnTable:
        """GPU and host time of operators; forward and backward joined.

        Args:
            by: "name", "category", "args" (name, shapes, dtypes, strides, concrete inputs) or
                "call" (every call).
            rank: Only this rank.
        """
        return self._table("ops", rank, by=by)

    def modules(self, *, rank: int | None = None) -> ColumnTable:
        """The tree of `nn.Module` calls with GPU and host time, backward included."""
        return self._table("modules", rank)

    def stacks(self, *, by: str = "gpu", rank: int | None = None) -> ColumnTable:
        """Calls merged by who called them, with self time: what a flame graph draws.

        Args:
            by: "gpu" (exclusive time of GPU events, below the calls that launched them) or "host"
                (time of host calls).
            rank: Only this rank.
        """
        return self._table("stacks", rank, by=by)

    def kernels(
        self,
        *,
        by: str = "name",
        rank: int | None = None,
        capture: PathLike | None = None,
        eager: PathLike | None = None,
    ) -> ColumnTable:
        """GPU events by name, op and stream: counts, times, grid, block.

        Args:
            by: "name" (as in the trace), "canonical" (without template arguments and numbers),
                "overlap" (operators, with what runs at the same time) or "event" (every event).
            rank: Only this rank.
            capture, eager: With "event", as in `serving`.
        """
        return self._table("kernels", rank, by=by, capture=capture, eager=eager)

    def short_kernels(self, *, below_ns: int = 10_000, rank: int | None = None) -> ColumnTable:
        """Kernels shorter than `below_ns` by owner, with what launching them costs."""
        return self._table("kernels", rank, short=True, below_ns=below_ns)

    def sequences(self, *, length: int = 0, rank: int | None = None) -> ColumnTable:
        """Sequences of kernels that repeat, with what fusing each would remove.

        Args:
            length: Kernels in a sequence; 0 looks for all lengths.
            rank: Only this rank.
        """
        return self._table("sequences", rank, length=length)

    def grids(self, *, by: str = "name", rank: int | None = None) -> ColumnTable:
        """Kernels by the size of their grid: waves on the device, how empty the last one is.

        Args:
            by: "name" (canonical), "grid" (name and launch shape) or "event" (every kernel).
            rank: Only this rank.
        """
        return self._table("grids", rank, by=by)

    def launches(self, *, by: str = "call", rank: int | None = None) -> ColumnTable:
        """Launch calls, CUDA and HIP: their cost on the host, delay, queue length.

        Args:
            by: "call" (name of the launch call), "kernel", "op" (operators by what they launch),
                "stream", "idle" (gaps of each stream by cause), "event" (every launch) or "queue"
                (queue length over time).
            rank: Only this rank.
        """
        return self._table("launches", rank, by=by)

    def roofline(
        self,
        *,
        device: Any = None,
        by: str = "args",
        compat: str | None = None,
        rank: int | None = None,
        capture: PathLike | None = None,
    ) -> ColumnTable:
        """FLOPs, bytes, achieved and possible rates of every modeled operator.

        Args:
            device: A name of the device database or a `Device`; by default the trace's own.
            by: "args" (unique arguments), "family" or "call".
            compat: "tracelens" for the numbers of its models.
            rank: Only this rank.
            capture: As in `serving`: kernels of CUDA graphs count for their operators.
        """
        return self._table("roofline", rank, by=by, device=device, compat=compat, capture=capture)

    def expected(
        self,
        *,
        device: Any = None,
        by: str = "args",
        calibrated: bool = False,
        calibration: Calibration | None = None,
        rank: int | None = None,
    ) -> ColumnTable:
        """Time of GPU work against what the duration models expect of it.

        Args:
            device: The device to expect: a name of the device database or a `Device`; by default
                the trace's own.
            by: "args", "class" (what is calibrated together) or "event".
            calibrated: Apply the ratios of the trace's own kernels to the models.
            calibration: Ratios of another trace (`torchtraceap.ops.durations.calibrate`) instead.
            rank: Only this rank.
        """
        chosen = {"device": device, "calibrated": calibrated}
        given = {} if calibration is None else {"calibration": calibration}
        return self._table("expected", rank, by=by, **chosen, **given)

    def kind_times(self, rank: int | None = None) -> KindTimes:
        """Measured and estimated times, as `torchtraceap.ops.durations.calibrate` takes them.

        Args:
            rank: Only this rank.
        """
        from torchtraceap.tables.ops.expected import kind_times

        return kind_times(self.ranks if rank is None else [self.rank(rank)])

    def memory(self, *, by: str = "direction", rank: int | None = None) -> ColumnTable:
        """Copies and the memory of the device.

        Args:
            by: "direction", "copy" (every copy with its bandwidth), "bandwidth" (over time),
                "counter" (every change of the bandwidth), "allocator" (allocator calls),
                "timeline" (`[memory]` events).
            rank: Only this rank.
        """
        return self._table("memory", rank, by=by)

    def host(self, *, by: str = "thread", rank: int | None = None) -> ColumnTable:
        """Return what the CPU threads did while the GPU waited.

        Args:
            by: "thread", "op" (names by self time) or "frame" (Python frames).
            rank: Only this rank.
        """
        return self._table("host", rank, by=by)

    def steps(self, *, rank: int | None = None) -> ColumnTable:
        """Every step with its timeline, how unusual it is and what differs in it."""
        return self._table("steps", rank)

    def serving(
        self,
        *,
        rank: int | None = None,
        phase: str | None = None,
        steady: bool = False,
        capture: PathLike | None = None,
        eager: PathLike | None = None,
    ) -> Serving:
        """Return the iterations of a serving engine: phases, tokens, layers, and the bubbles
        between them.

        Args:
            rank: The rank; by default the first.
            phase: Only iterations of prefill, decode, mixed, speculative, diffusion or idle.
            steady: Only the longest run of iterations with at least 90 % of the peak batch.
            capture: A trace of the capture of the CUDA graphs, annotations or stacks that
                torch.cuda noted then, or a folder with such: it tells the operators behind
                replayed kernels.
            eager: A trace of the same model without graphs, which tells the same.

        Raises:
            OptionError: There is no such rank or phase, or nothing of these at `capture`.
        """
        from torchtraceap.tables.serving.serving import build_serving

        return build_serving(
            self, rank=rank, phase=phase, steady=steady, capture=capture, eager=eager
        )

    def serving_table(
        self,
        *,
        by: str = "phases",
        rank: int | None = None,
        phase: str | None = None,
        steady: bool = False,
    ) -> ColumnTable:
        """Return one table of `serving`, of every rank.

        Args:
            by: "phases", "iterations", "layers" or "bubbles".
            rank: Only this rank.
            phase: As in `serving`.
            steady: As in `serving`.
        """
        return self._table("serving", rank, by=by, phase=phase, steady=steady)

    def in_phase(self, phase: str) -> Trace:
        """Return the iterations of one phase of a serving engine as a trace of its own, for any
        table: what lies in their ranges on the host, and the GPU work launched there. Time between
        them is neither busy nor idle.

        Args:
            phase: prefill, decode, mixed, speculative, diffusion or idle.

        Raises:
            OptionError: There is no such phase, or a rank has no iteration of it.
        """
        from torchtraceap.tables.serving.iterations import ranks_in_phase

        return Trace(ranks_in_phase(self.ranks, phase), self._load_diagnostics)

    def in_steps(self, steps: Steps) -> Trace:
        """Return some steps as a trace of its own, for any view: what lies in their ranges on the
        host, and the GPU work launched there, with the time that their iterations take.

        Args:
            steps: By place (0 is the first, -1 the last), by name such as "ProfilerStep#5", as a
                slice of places, a list of these, or a string such as "3:6" or "0,3:6".

        Raises:
            OptionError: There is no such step, or a rank lacks it.
        """
        from torchtraceap.tables.steps.some_steps import ranks_in_steps

        ranks, notes = ranks_in_steps(self.ranks, steps)
        return Trace(ranks, [*self.diagnostics, *notes])

    def collectives(self) -> ColumnTable:
        """Collectives matched across the ranks: bytes, transfer, wait of each rank, bandwidth."""
        return self._table("collectives")

    def ranks_table(self, *, by: str = "rank") -> ColumnTable:
        """Ranks compared: who arrives last, how often and because of what.

        Args:
            by: "rank", "op" (equal operators), "alltoall" (bytes from rank to rank) or "clock".
        """
        return self._table("ranks", by=by)

    def critical_path(
        self,
        *,
        step: str | int | None = None,
        by: str = "cause",
        compat: str | None = None,
        launch_edges: bool = True,
    ) -> ColumnTable:
        """The longest chain of dependent work, and what it consists of.

        Args:
            step: Only this step, by name or place; by default all steps, else the whole trace.
            by: "cause" (shares), "name" or "event" (the path itself).
            compat: "hta" for the graph that HTA builds.
            launch_edges: False for HTA's graph without edges from launch calls to their work,
                which is HTA's default.
        """
        return self._table(
            "critical-path", step=step, by=by, compat=compat, launch_edges=launch_edges
        )

    def explain_idle(
        self, start_ns: int, end_ns: int | None = None, *, rank: int | None = None
    ) -> ColumnTable:
        """The chain of work that the longest idle interval of a range waits for.

        Args:
            start_ns: The start of the range, in the clock of the rank.
            end_ns: The end of the range; by default it is an instant.
            rank: Whose GPU idles.
        """
        from torchtraceap.simulation.idle_chain import build_idle_chain

        return build_idle_chain(self, start_ns, start_ns if end_ns is None else end_ns, rank=rank)

    def simulate(self, edits: Iterable[str | Edit] | None = None) -> Simulation:
        """Predict the time of a step if findings were fixed, by a replay of its dependencies.

        Args:
            edits: Names such as "loader_workers=4" (`torchtraceap simulate --list`), or objects of
                your own; by default every fix that needs no decision.
        """
        from torchtraceap.simulation.simulate import simulate

        return simulate(self, edits)

    # ------------------------------------------------------------------------------ ways out

    def sql(self, query: str, *, seconds: float = 10.0) -> ColumnTable:
        """One query of DuckDB's SQL over all tables, which `tables.sql.sql_tables` lists.

        Args:
            query: One statement that selects.
            seconds: The longest that it may take.
        """
        from torchtraceap.tables.sql import run_sql

        return run_sql(self, query, seconds=seconds)

    def annotate(self, path: PathLike, *, rank: int | None = None) -> None:
        """Write the trace for Perfetto, with findings, idle causes, critical path and counters.

        Args:
            path: Ends in `.json`, `.json.gz` or, with the package `perfetto`, `.pftrace`.
            rank: The rank.
        """
        from torchtraceap.report.annotate import annotate

        annotate(self, path, rank=rank)

    def merge(self, path: PathLike) -> None:
        """Write all ranks into one file for Perfetto, their clocks aligned."""
        from torchtraceap.tables.matching import merge_ranks

        merge_ranks(self, path)

    def replay(
        self,
        row: int | None = None,
        *,
        op: str | None = None,
        rank: int | None = None,
        device: str = "cpu",
    ) -> ReplayResult:
        """Run an operator of the trace again, here, and time it; needs torch.

        Args:
            row: The call's row, or
            op: a name such as "aten::mm": its longest call.
            rank: The rank.
            device: The device to run it on.
        """
        from torchtraceap.compat.replay import replay

        return replay(self, row, op=op, rank=rank, device=device)
