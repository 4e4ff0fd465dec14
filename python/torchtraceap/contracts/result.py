"""Results of a check: `CheckResult`, with one `KeyResult` for each limit."""

from __future__ import annotations

from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.core.results import EventStart, Json, Result
from torchtraceap.tables.frames import Frame

__all__ = ["FAILED", "INCONCLUSIVE", "PASSED", "CheckResult", "Frame", "KeyResult"]

PASSED, FAILED, INCONCLUSIVE = "passed", "failed", "inconclusive"
SCHEMA = "torchtraceap.check/1"


@dataclass(frozen=True, slots=True)
class KeyResult(Result):
    """One limit against what the trace holds."""

    key: str
    limit: Any
    """A number, a text, a dict by kind or a list of findings."""
    measured: Any
    """int, float (shares; times in ns), dict or list; None where it is not known."""
    status: str
    """"passed", "failed" or "inconclusive"."""
    reason: str
    """A sentence: what was counted, against which limit, by how much; or what is missing."""
    first_event: EventStart | None = None
    """The first event that goes beyond the limit."""
    rank: int | None = None
    """Rank of the value and the event; None for a lone rank without a number."""
    step: str | None = None
    """The first step that goes beyond a limit per step."""
    frame: Frame | None = None
    price_ns: int | None = None
    """Time that a fix saves; None if it is unknown."""
    price_per_step: bool = False
    """True if the price is per step, False if it is for the whole run."""
    price_note: str = ""
    """Note on the fix, or on why there is no price."""
    won: str = ""
    """Amount by which a limit that holds could be tightened."""
    line: int | None = None
    """Line of the contract's file."""
    note: str = ""
    """Note on what the value rests on."""
    kind: str = "count"
    """Kind of the measure."""


@dataclass(frozen=True, slots=True)
class CheckResult(Result):
    """A contract on a trace."""

    passed: bool
    """True if none failed; some may be inconclusive."""
    results: tuple[KeyResult, ...]
    """Results in the order of the contract."""
    name: str = ""
    """Name of the contract."""
    file: str | None = None
    """File of the contract."""
    paths: tuple[str, ...] = ()
    """Files of the trace."""
    device: str | None = None
    """Device on which the trace was recorded; "cpu" without a GPU."""

    @property
    def failed(self) -> tuple[KeyResult, ...]:
        """Limits that do not hold."""
        return tuple(each for each in self.results if each.status == FAILED)

    @property
    def inconclusive(self) -> tuple[KeyResult, ...]:
        """Limits that this trace says nothing of."""
        return tuple(each for each in self.results if each.status == INCONCLUSIVE)

    def to_dict(self) -> Json:
        """Return the document of `torchtraceap check --json`."""
        return {"schema": SCHEMA, **Result.to_dict(self)}
