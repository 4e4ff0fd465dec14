"""`Diagnosis`: the problems of a run, as a value that shows, explains and writes itself."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, cast

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import render
from torchtraceap.core.results import (
    GPU_PARTS,
    Finding,
    Json,
    Lead,
    PlannedFix,
    ReplayCheck,
    Result,
    StepTime,
    Summary,
    Timeline,
    Windows,
)
from torchtraceap.errors import OptionError
from torchtraceap.tables.steps.iterations import is_served
from torchtraceap.trace.ranks import Ranks

if TYPE_CHECKING:
    from torchtraceap.explanation.explanation import Explanation, Response
    from torchtraceap.explanation.settings import ModelSettings
    from torchtraceap.tables.serving.serving import ServedTime

__all__ = ["Diagnosis"]


class _Explains(Protocol):
    """The part of `Trace` that explains. `Trace` itself stands above this module."""

    def explain(self, **options: Any) -> Explanation:
        """See `Trace.explain`."""

    def ask(self, question: str, **options: Any) -> Response:
        """See `Trace.ask`."""


@dataclass(frozen=True, slots=True)
class Diagnosis(Result):
    """The problems of a training run, the evidence, and the changes that fix them."""

    profiled_ns: int
    """First to last step, else first to last event; several ranks: the sum over ranks."""
    verdicts: dict[str, str]
    """"present", "absent" or "unknown" for each of the paper's eight types."""
    further_verdicts: dict[str, str] = field(repr=False)
    """The same for the further types of this library."""
    findings: tuple[Finding, ...]
    """Present types: the leading finding, those of the plan in its order, then the others by the
    part of their own cost that a fix regains."""
    abstained: dict[str, tuple[str, ...]]
    """Types that could not be checked, with the signals that the trace lacks."""
    not_applicable: tuple[str, ...]
    """Types that are absent since the trace holds nothing that they concern: collectives, training,
    compiled code."""
    windows: Windows
    scorer: str
    idle_ns: dict[str, int]
    """GPU idle time inside the profiled time by cause, summed over the ranks."""
    time_ns: dict[str, int]
    """The profiled time by work of the GPUs or cause of idle time (`verdict.time_parts`)."""
    computes_on: str | None
    """"gpu"; "host", where nothing of a GPU is recorded and operators do the work; or None."""
    bound_by: str
    """The work that bounds the run: "gpu_compute", "communication", "copies", "host", "data",
    "mixed" or "unknown" (verdict.py, Note [Bound])."""
    lead: Lead | None
    """None: no finding is worth beginning with."""
    summary: Summary
    trace: Ranks = field(repr=False, compare=False)
    plan: tuple[PlannedFix, ...] = ()
    """Fixes in order of the gain on top of those before. Savings of findings don't add up."""
    replay: ReplayCheck | None = None
    """None where nothing was replayed: no finding, or none that has a fix to simulate."""
    waiting_ns: int = 0
    """Time in which collectives surely waited for ranks whose traces are not here, summed over the
    ranks."""

    @property
    def step(self) -> StepTime | None:
        """The time of a step; None where no rank has steps."""
        return self.summary.step

    @property
    def role(self) -> str:
        """ "training", "inference", "prefill", "decode", "mixed", "diffusion" or "evaluation", as
        the trace shows it; "unknown" where it does not, or where ranks differ."""
        return self._shared([rank.tree.workload.role for rank in self.trace.ranks])

    @property
    def serving(self) -> ServedTime | None:
        """Where the time of a token goes, of the first rank; None unless an engine is traced that
        serves a model."""
        if not is_served(self.trace.ranks[0]):
            return None
        from torchtraceap.tables.serving.serving import served_time

        return served_time(self.trace)

    @property
    def framework(self) -> str:
        """Return "pytorch", "xla", or "unknown" where the trace does not tell or ranks differ."""
        return self._shared([rank.tree.workload.framework for rank in self.trace.ranks])

    @staticmethod
    def _shared(values: list[str]) -> str:
        return values[0] if len(set(values)) == 1 else "unknown"

    @property
    def profiled_timeline(self) -> Timeline:
        """The timeline clipped to the profiled time, summed over the ranks."""
        return sum((rank.profiled_timeline() for rank in self.trace.ranks), Timeline())

    @property
    def largest_part(self) -> str | None:
        """The largest of `time_ns` by name; None where there is none."""
        parts = self.time_ns
        return max(parts, key=lambda name: parts[name]) if any(parts.values()) else None

    @property
    def busy_share(self) -> float:
        """Share of the profiled time in which at least one stream of a GPU runs something."""
        busy_ns = sum(self.time_ns.get(part, 0) for part in GPU_PARTS)
        return busy_ns / self.profiled_ns if self.profiled_ns else 0.0

    def finding(self, name: str) -> Finding | None:
        """Return the finding of that type, or None when it is not present.

        Raises:
            OptionError: There is no such type.
        """
        known = {*self.verdicts, *self.further_verdicts, *(f.type for f in self.findings)}
        if name not in known:
            raise OptionError(f"no type {name!r}; there are: {', '.join(sorted(known))}")
        return next((finding for finding in self.findings if finding.type == name), None)

    def to_dict(self) -> Json:
        """Return the document of `torchtraceap diagnose --json`."""
        served = self.serving
        return {
            "schema": "torchtraceap.diagnosis/1",
            "profiled_ns": self.profiled_ns,
            "quality": self.summary.quality.to_dict(),
            "verdicts": dict(self.verdicts),
            "findings": [finding.to_dict() for finding in self.findings],
            "abstained": [
                {"type": name, "missing_signals": list(signals)}
                for name, signals in self.abstained.items()
            ],
            "not_applicable": list(self.not_applicable),
            "windows": self.windows.to_dict(),
            "scorer": self.scorer,
            "further_verdicts": dict(self.further_verdicts),
            "idle_ns": dict(self.idle_ns),
            "headline": render(self, "headline"),
            "lead": self.lead.to_dict() if self.lead else None,
            "computes_on": self.computes_on,
            "bound_by": self.bound_by,
            "role": self.role,
            "framework": self.framework,
            "busy_share": self.busy_share,
            "time_ns": dict(self.time_ns),
            "device": ", ".join(self.summary.device_names) or None,
            "versions": dict(self.summary.versions),
            "plan": [fix.to_dict() for fix in self.plan],
            "replay": self.replay.to_dict() if self.replay else None,
            "step": self.step.to_dict() if self.step else None,
            "waiting_ns": self.waiting_ns,
            "files": [file.to_dict() for file in self.summary.files],
            **({"serving": served.to_dict()} if served else {}),
        }

    def explain(
        self,
        *,
        question: str | None = None,
        model: ModelSettings | None = None,
        redacted: bool = True,
    ) -> Explanation:
        """Explain the suspicious parts of the trace; see `Trace.explain`."""
        trace = cast(_Explains, self.trace)
        return trace.explain(question=question, model=model, redacted=redacted, diagnosis=self)

    def ask(
        self, question: str, *, model: ModelSettings | None = None, redacted: bool = True
    ) -> Response:
        """Answer a question about the trace; see `Trace.ask`."""
        trace = cast(_Explains, self.trace)
        return trace.ask(question, model=model, redacted=redacted, diagnosis=self)

    def to_html(self, path: PathLike | None = None) -> str:
        """Return the report as one self-contained HTML page, also written to `path` if given.

        Raises:
            OptionError: `path` is one of the files that were read.
            OutputError: It can't be written.
        """
        from torchtraceap.core.writing import check_target, write_text

        inputs = [file.path for file in self.summary.files]
        if path is not None:
            check_target(path, inputs)
        page = render(self, "page")
        if path is not None:
            write_text(path, page, inputs=inputs)
        return page

    def __repr__(self) -> str:
        found = ", ".join(finding.type for finding in self.findings)
        return (
            f"Diagnosis(findings=[{found}], abstained={len(self.abstained)}, "
            f"profiled_ns={self.profiled_ns}, windows={self.windows.count})"
        )
