"""Texts about each anti-pattern for a person: reason, signs, fix, code, check, link.

`kb.yaml` is the source. What is read at run time is `kb.json`, made from it by
`python -m torchtraceap.core.knowledge`: reading it takes 0.1 ms, while importing PyYAML alone takes
tens of milliseconds of a start-up that has half a second in all. A test holds the two equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torchtraceap.core.records import dataclass

__all__ = ["Advice", "KnowledgeEntry", "in_unit", "load_knowledge"]

_OPTIONAL = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)
_STEP = re.compile(r"(?<![\w.`])step(?=s?(?:[\s,.;:)]|$))")
_PLACEHOLDER = re.compile(r"\{([\w -]+)(?::([^|{}]+)\|([^|{}]+))?\}")


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommended change."""

    fix: str
    """One or two sentences."""
    code_before: str
    """A snippet that has the problem."""
    code_after: str
    """The same snippet after the change, to paste."""


_WITHOUT_CHANGE = Advice(
    "The program is compiled by XLA, and the changes that are known for this are PyTorch's: what "
    "holds the device up is named above.",
    "",
    "",
)
"""Advice where all that is known is for PyTorch."""


@dataclass(frozen=True, slots=True)
class KnowledgeEntry:
    """The text for one type of finding."""

    type: str
    """Stable snake_case name, as in the JSON of `diagnose`."""
    name: str
    """Name in a list of checks."""
    name_host: str
    """Name for a run that computes on the host; empty if `name` fits both."""
    title: str
    """A few words, as a heading."""
    title_host: str
    """Title for a run that computes on the host; empty if `title` fits both."""
    why: str
    """One sentence with placeholders: `{fact}`, or `{fact:gap|gaps}` with its noun; `[[...]]` is
    left out if a fact in it is missing."""
    why_host: str
    """Text of `why` for a run that computes on the host; empty if `why` fits both."""
    because: str
    """Mechanism by which it costs time, true of every trace with the finding. No numbers."""
    because_host: str
    """Mechanism for a run that computes on the host; empty if `because` fits both."""
    signs: tuple[str, ...]
    """Signs of it in a trace."""
    non_signs: tuple[str, ...]
    """Patterns that look like it and are not."""
    advice: Advice
    """Advice if nothing in the trace speaks against it."""
    instead: tuple[tuple[frozenset[str], Advice], ...]
    """Advice for traces to which all of these words apply."""
    doc_url: str
    """Official documentation."""
    audit: str
    """The sentence for a trace in which the rule found nothing."""
    gate: str
    """Assertion of a performance contract for it."""
    verify: str
    """Check of a second recording that shows if the change worked, with commands, types and keys of
    contracts in backticks. The recordings are `before.json.gz` and `after.json.gz`, of several
    ranks `after/`. The gate of `diagnose` is left out, as it is the same for all."""
    verify_host: str
    """Check for a run that computes on the host; empty if `verify` fits both."""

    def name_text(self, *, on_host: bool = False) -> str:
        """Return the name of the check, for a run that computes on the host if `on_host`."""
        return (on_host and self.name_host) or self.name

    def title_text(self, *, on_host: bool = False) -> str:
        """Return the heading, of a run that computes on the host if `on_host`."""
        return (on_host and self.title_host) or self.title

    def because_text(self, *, on_host: bool = False) -> str:
        """Return why it costs time, in a run that computes on the host if `on_host`."""
        return (on_host and self.because_host) or self.because

    def verify_text(self, *, on_host: bool = False) -> str:
        """Return the check of a change, for a run that computes on the host if `on_host`."""
        return (on_host and self.verify_host) or self.verify

    def why_text(
        self,
        facts: Mapping[str, str],
        *,
        cost: str,
        share: str,
        saves: str = "",
        on_host: bool = False,
    ) -> str:
        """Return the sentence of `why` with its facts filled in.

        Args:
            facts: A finding's facts by name. Missing ones drop the part of the sentence that
                needs them; surplus ones are ignored.
            cost: The finding's cost for a person, such as "12.3 ms".
            share: Its share of the profiled time, such as "4.5 %".
            saves: What the fix saves, as a share, if that is more than the cost.
            on_host: The run computes on the host.
        """
        text = (on_host and self.why_host) or self.why
        reach = f", but the run hangs on it: the fix saves {saves}" if saves else ""
        known = {**facts, "cost": f"{cost} ({share} of the profiled time{reach})"}

        def keep(match: re.Match[str]) -> str:
            inner = match.group(1)
            wanted = (part.group(1) for part in _PLACEHOLDER.finditer(inner))
            return inner if all(known.get(name) for name in wanted) else ""

        def fill(match: re.Match[str]) -> str:
            name, singular, plural = match.groups()
            value = known.get(name, "?")
            if singular is None:
                return "none" if value == "0" else value
            return f"{'no' if value == '0' else value} {singular if value == '1' else plural}"

        return _PLACEHOLDER.sub(fill, _OPTIONAL.sub(keep, text))

    def advice_for(self, circumstances: Set[str]) -> Advice:
        """Return the first advice that fits.

        Args:
            circumstances: Circumstances that hold of the trace, see `tables.circumstances`.
        """
        fitting = (advice for words, advice in self.instead if words <= circumstances)
        return next(fitting, _WITHOUT_CHANGE if "xla" in circumstances else self.advice)


def in_unit(text: str, unit: str) -> str:
    """Return a text of an entry with another word for a step, such as "iteration"."""
    return text if unit == "step" else _STEP.sub(unit, text)


def _advice(fields: Mapping[str, Any], default: Advice | None = None) -> Advice:
    """Parse advice; without code of its own it has that of the default."""
    code = fields.get("code")
    if code is None and default is not None:
        return Advice(fields["fix"], default.code_before, default.code_after)
    before, after = (fields["code"][part].strip("\n") for part in ("before", "after"))
    return Advice(fields["fix"], before, after)


def _entry(name: str, fields: Mapping[str, Any]) -> KnowledgeEntry:
    advice = _advice(fields)
    return KnowledgeEntry(
        type=name,
        name=fields["name"],
        name_host=fields.get("name_host", ""),
        title=fields["title"],
        title_host=fields.get("title_host", ""),
        why=fields["why"],
        why_host=fields.get("why_host", ""),
        because=fields["because"],
        because_host=fields.get("because_host", ""),
        signs=tuple(fields["signs"]),
        non_signs=tuple(fields["non_signs"]),
        advice=advice,
        instead=tuple(
            (frozenset(other["when"]), _advice(other, advice))
            for other in fields.get("instead", ())
        ),
        doc_url=fields["doc"],
        audit=fields["audit"],
        gate=fields["gate"],
        verify=fields["verify"],
        verify_host=fields.get("verify_host", ""),
    )


@cache
def load_knowledge() -> Mapping[str, KnowledgeEntry]:
    """Return the entries by type, the paper's eight first; read once per process."""
    text = Path(__file__).with_name("kb.json").read_text(encoding="utf-8")
    return MappingProxyType(
        {name: _entry(name, fields) for name, fields in json.loads(text).items()}
    )
