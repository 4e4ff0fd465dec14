"""One diagnosis of rules and scorers: findings, verdicts, the leading finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.diagnosis.diagnose import build_diagnosis as build_diagnosis
    from torchtraceap.diagnosis.result import Diagnosis as Diagnosis
    from torchtraceap.diagnosis.scoring import SCORERS as SCORERS
    from torchtraceap.diagnosis.scoring import Scorer as Scorer
    from torchtraceap.diagnosis.scoring import load_scorer as load_scorer
    from torchtraceap.diagnosis.scoring.fused import FUSED_INPUTS as FUSED_INPUTS
    from torchtraceap.diagnosis.scoring.fused import FusedScorer as FusedScorer
    from torchtraceap.diagnosis.scoring.fused import fused_inputs as fused_inputs
    from torchtraceap.diagnosis.scoring.paper import PAPER_CELLS as PAPER_CELLS
    from torchtraceap.diagnosis.scoring.paper import UNKNOWN_PLATFORM as UNKNOWN_PLATFORM
    from torchtraceap.diagnosis.scoring.paper import PaperConfig as PaperConfig
    from torchtraceap.diagnosis.scoring.paper import PaperInputs as PaperInputs
    from torchtraceap.diagnosis.scoring.paper import TraceTokens as TraceTokens
    from torchtraceap.diagnosis.scoring.paper import Weights as Weights
    from torchtraceap.diagnosis.scoring.paper import join_traces as join_traces
    from torchtraceap.diagnosis.scoring.structural import ZSCORE_SUFFIX as ZSCORE_SUFFIX
    from torchtraceap.diagnosis.scoring.structural import StructuralScorer as StructuralScorer
    from torchtraceap.diagnosis.scoring.structural import WindowFigures as WindowFigures
    from torchtraceap.diagnosis.scoring.structural import columns_of as columns_of
    from torchtraceap.diagnosis.scoring.text_encoders import TextEncoder as TextEncoder
    from torchtraceap.diagnosis.scoring.text_encoders import text_encoder as text_encoder
    from torchtraceap.diagnosis.scoring.v2 import TOKEN_CODES as TOKEN_CODES
    from torchtraceap.diagnosis.scoring.v2 import TOKEN_NUMBERS as TOKEN_NUMBERS
    from torchtraceap.diagnosis.scoring.v2 import TokenColumns as TokenColumns
    from torchtraceap.diagnosis.scoring.v2 import TokenInputs as TokenInputs
    from torchtraceap.diagnosis.scoring.v2 import TokenView as TokenView
    from torchtraceap.diagnosis.scoring.v2 import squash as squash
    from torchtraceap.diagnosis.scoring.v2 import token_inputs as token_inputs
    from torchtraceap.diagnosis.scoring.weight_files import read_weights as read_weights
    from torchtraceap.diagnosis.scoring.weight_files import write_weights as write_weights
    from torchtraceap.diagnosis.verdict import COMPUTATION as COMPUTATION
    from torchtraceap.diagnosis.verdict import computes_on as computes_on
    from torchtraceap.diagnosis.verdict import parts_over_time as parts_over_time
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".diagnose": ("build_diagnosis",),
            ".result": ("Diagnosis",),
            ".scoring": ("SCORERS", "Scorer", "load_scorer"),
            ".scoring.fused": (
                "FusedScorer",
                "FUSED_INPUTS",
                "fused_inputs",
            ),
            ".scoring.paper": (
                "PAPER_CELLS",
                "PaperConfig",
                "PaperInputs",
                "TraceTokens",
                "UNKNOWN_PLATFORM",
                "Weights",
                "join_traces",
            ),
            ".scoring.structural": (
                "StructuralScorer",
                "WindowFigures",
                "ZSCORE_SUFFIX",
                "columns_of",
            ),
            ".scoring.text_encoders": ("TextEncoder", "text_encoder"),
            ".scoring.v2": (
                "TOKEN_CODES",
                "TOKEN_NUMBERS",
                "TokenColumns",
                "TokenInputs",
                "TokenView",
                "squash",
                "token_inputs",
            ),
            ".scoring.weight_files": ("read_weights", "write_weights"),
            ".verdict": ("COMPUTATION", "computes_on", "parts_over_time"),
        },
    )
