"""Packs of evidence, by hand and at random, and a model that answers from a list."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from torchtraceap.core.results import PAPER_TYPES, Evidence
from torchtraceap.explanation.language_model import Message, Reply, Usage
from torchtraceap.explanation.numbers import Metric
from torchtraceap.explanation.pack import Pack, PackLine, PackTable

KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)"
SECRET = "zqx_fraud_model::Ledger<Kowalczyk>"


def make_pack(
    names: Sequence[str] = (KERNEL, SECRET),
    row_names: Sequence[str] = ("aten::mm",),
    about: str = "NVIDIA H100 80GB HBM3; one rank; steps: 4",
    more_metrics: int = 0,
    lines: int | None = None,
) -> Pack:
    """One table with a line for each name (or `lines` of them in turn)."""
    count = len(names) if lines is None else lines
    table = PackTable(
        "GPU work by name and stream",
        ("name", "stream", "operator"),
        tuple(make_line(number + 1, names[number % len(names)]) for number in range(count)),
    )
    return Pack(
        about=about,
        start_ns=1_000_000,
        end_ns=9_000_000,
        metrics=(
            Metric.of_ns("segment.length", 8_000_000),
            Metric.of_ns("segment.idle", 6_540_000),
            Metric.of_share("segment.idle_share", 0.8175),
            Metric.of_count("fact.fetches", 12),
            Metric.of_count("window.launch_count", 1234),
            *(Metric.of_count(f"window.more_{number}", number) for number in range(more_metrics)),
        ),
        tables=(table,),
        rows={
            f"r{place + 1}": Evidence(40 + place, name, 1_500_000, 20_000)
            for place, name in enumerate(row_names)
        },
        types=(("single_process_data_loading", 0.7), ("cpu_bound", 0.2)),
        allowed=PAPER_TYPES,
        knowledge=("single_process_data_loading",),
        rules=(("cpu_bound", "absent"),),
    )


def make_line(number: int, name: str) -> PackLine:
    key = f"g{number}"
    return PackLine(
        key=key,
        names=(name, "compute", "aten::fill_"),
        metrics=(
            Metric.of_count(f"{key}.count", number),
            Metric.of_ns(f"{key}.total", 1000 * number),
        ),
        cost_ns=1000 * number,
    )


def good_answer(**changes: Any) -> dict[str, Any]:
    """One that holds for `make_pack()`."""
    return {
        "verdict": "anti_pattern",
        "labels": ["single_process_data_loading"],
        "primary": "single_process_data_loading",
        "confidence": 0.9,
        "evidence": [
            {"row": "r1", "metric": None, "value": None, "why": "waits"},
            {"row": None, "metric": "segment.idle", "value": 6.54, "why": "idle"},
            {"row": None, "metric": "fact.fetches", "value": 12, "why": ""},
        ],
        "what": "The GPU idles for 6.54 ms during 12 fetches.",
        "why": "The training process loads its own data.",
        "fix": "single_process_data_loading",
        "suggested_window": "keep",
        **changes,
    }


class ScriptedModel:
    """Gives its answers in turn, and keeps what it was asked."""

    name = "scripted"

    def __init__(self, *replies: Reply | dict[str, Any] | str) -> None:
        self._replies = list(replies)
        self.asked: list[Sequence[Message]] = []
        self.schemas: list[Mapping[str, Any]] = []

    def answer(self, messages: Sequence[Message], schema: Mapping[str, Any], title: str) -> Reply:
        self.asked.append(messages)
        self.schemas.append(schema)
        reply = self._replies.pop(0)
        if isinstance(reply, Reply):
            return reply
        return Reply(reply if isinstance(reply, str) else json.dumps(reply), "stop")

    def converse(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        raise AssertionError("nobody talks to it")

    def usage(self) -> Usage:
        return Usage(len(self.asked), 0, 0, None)


any_text = st.text(st.characters(), max_size=60)
"""With control characters, surrogates and what turns the direction of writing."""


@st.composite
def packs(draw: st.DrawFn) -> Pack:
    """With names of anything."""
    names = draw(st.lists(any_text, min_size=1, max_size=4))
    rows = draw(st.lists(any_text, max_size=3))
    return make_pack(names, rows, about=draw(any_text))
