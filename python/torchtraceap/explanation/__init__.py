"""Explanations: segments of lost time, what each is, why it costs, what to change, and on what.

The way of an explanation, in the order of the modules: `segments` (windows that a scorer flags and
findings, merged), `build_pack` (the numbers of a segment: an evidence `pack`), a judge
(`offline_judge`, or `llm_judge` with a language model) that gives a `verdict`, `rescore` (what is
in doubt is scored again on other grids), `explain` (all of it). Whatever a verdict cites is checked
against the pack (`verdict`); a language model sees redacted packs alone (`redaction`).
docs/explanations.md tells how it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.explanation.client import Client as Client
    from torchtraceap.explanation.explain import Judge as Judge
    from torchtraceap.explanation.explain import Judgments as Judgments
    from torchtraceap.explanation.explain import judge_segments as judge_segments
    from torchtraceap.explanation.language_model import LanguageModel as LanguageModel
    from torchtraceap.explanation.language_model import Message as Message
    from torchtraceap.explanation.language_model import Reply as Reply
    from torchtraceap.explanation.llm_judge import ModelJudge as ModelJudge
    from torchtraceap.explanation.offline_judge import OfflineJudge as OfflineJudge
    from torchtraceap.explanation.pack_builder import build_pack as build_pack
    from torchtraceap.explanation.pack_builder import common_features as common_features
    from torchtraceap.explanation.segments import FLAGGED as FLAGGED
    from torchtraceap.explanation.segments import NONE as NONE
    from torchtraceap.explanation.segments import Segment as Segment
    from torchtraceap.explanation.segments import find_segments as find_segments
    from torchtraceap.explanation.segments import likely_name as likely_name
    from torchtraceap.explanation.segments import likely_types as likely_types
    from torchtraceap.explanation.segments import runs_of as runs_of
    from torchtraceap.explanation.segments import segment_of as segment_of
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".client": ("Client",),
            ".explain": ("Judge", "Judgments", "judge_segments"),
            ".language_model": ("LanguageModel", "Message", "Reply"),
            ".llm_judge": ("ModelJudge",),
            ".offline_judge": ("OfflineJudge",),
            ".pack_builder": ("build_pack", "common_features"),
            ".segments": (
                "FLAGGED",
                "NONE",
                "Segment",
                "find_segments",
                "likely_name",
                "likely_types",
                "runs_of",
                "segment_of",
            ),
        },
    )
