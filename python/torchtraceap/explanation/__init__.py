"""Explanations: segments of lost time, what each is, why it costs, what to change, and on what.

The way of an explanation, in the order of the modules: `segments` (windows that a scorer flags and
findings, merged), `build_pack` (the numbers of a segment: an evidence `pack`), a judge
(`offline_judge`, or `llm_judge` with a language model) that gives a `verdict`, `rescore` (what is
in doubt is scored again on other grids), `explain` (all of it). Whatever a verdict cites is checked
against the pack (`verdict`); a language model sees redacted packs alone (`redaction`).
docs/explanations.md tells how it is used.
"""

from __future__ import annotations

__all__: list[str] = []
