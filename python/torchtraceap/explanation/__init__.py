"""Explanations: segments of lost time, what each is, why it costs, what to change, and on what.

The way of an explanation, in the order of the modules: `segments` (windows that a scorer flags and
findings, merged), `packing` (the numbers of a segment: an evidence `pack`), a judge (`offline`, or
`judging` with a language model) that gives a `verdict`, `redetection` (what is in doubt is scored
again on other grids), `explaining` (all of it). Whatever a verdict cites is checked against the
pack (`citations`); a language model sees redacted packs alone (`redaction`, `prompt`).
docs/llm.md tells how it is used.
"""

from __future__ import annotations

__all__: list[str] = []
