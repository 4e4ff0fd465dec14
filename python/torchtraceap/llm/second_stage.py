"""The second stage, whole: what `torchtraceap explain`, `diagnosis.explain` and `.ask` call.

Without settings of a model nothing is asked of anybody, and no package for it is imported.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from torchtraceap.llm.explaining import explained
from torchtraceap.llm.explanation import DryRun, Explanation
from torchtraceap.llm.packing import build_pack
from torchtraceap.llm.segments import Segment, find_segments
from torchtraceap.llm.settings import ModelSettings, settings_from

if TYPE_CHECKING:
    from torchtraceap.llm.client import Client
    from torchtraceap.llm.completions import Progress
    from torchtraceap.llm.pack import Pack
    from torchtraceap.llm.verdict import Verdict
    from torchtraceap.results import Diagnosis

__all__ = ["answer", "dry_run", "explain", "settings_from"]


class _ModelJudge:
    """A language model as a judge of segments."""

    asked_by = "model"
    reads_tables = True

    def __init__(self, client: Client, *, redacted: bool) -> None:
        from torchtraceap.llm.judging import ModelJudge

        self._judge = ModelJudge(client, redaction=redacted)

    def judge(self, segment: Segment, pack: Pack, *, settled: bool) -> Verdict:
        return self._judge.judge(pack)


def explain(
    diagnosis: Diagnosis,
    *,
    question: str | None = None,
    settings: ModelSettings | None = None,
    redacted: bool = True,
    progress: Progress | None = None,
) -> Explanation:
    """What happens in the suspicious parts of a trace, why it costs, and what to change.

    Args:
        diagnosis: Of the trace.
        question: To be answered beside it.
        settings: A language model that judges and answers; None: offline.
        redacted: Names of the trace are hidden from the model.
        progress: Told how many characters of an answer have come.

    Raises:
        MissingDependencyError: A model is to be asked, and the packages for it are not installed.
    """
    if settings is None:
        return explained(diagnosis, answer=_offline_answer(diagnosis, question))
    from torchtraceap.llm.client import Client

    with closing(Client(settings, progress)) as client:
        judge = _ModelJudge(client, redaction=redacted)
        found = explained(diagnosis, judge, model=settings.model)
        answer, problems = _answer(diagnosis, question, client, redacted)
        problems = (*client.problems, *found.problems, *problems)
        return replace(found, answer=answer, usage=client.usage(), problems=problems)


def _offline_answer(diagnosis: Diagnosis, question: str | None) -> str | None:
    if question is None:
        return None
    from torchtraceap.llm.asking import answer_offline

    return answer_offline(diagnosis, question)


def _answer(
    diagnosis: Diagnosis, question: str | None, client: Client, redacted: bool
) -> tuple[str | None, tuple[str, ...]]:
    """By the model; offline where it has no answer that holds."""
    if question is None:
        return None, ()
    from torchtraceap.llm.asking import ask
    from torchtraceap.llm.redaction import Redaction

    answered = ask(diagnosis.trace, question, client, Redaction() if redacted else None)
    if answered.answer is not None:
        return answered.answer, tuple(answered.problems)
    return _offline_answer(diagnosis, question), tuple(answered.problems)


def dry_run(diagnosis: Diagnosis, settings: ModelSettings, *, redacted: bool = True) -> DryRun:
    """What would be asked first of the model about each segment, and what that would take at most.
    Nothing is sent; repairs of answers and questions come on top."""
    from torchtraceap.llm.answer import json_schema
    from torchtraceap.llm.client import Client
    from torchtraceap.llm.judging import ModelJudge
    from torchtraceap.llm.prompt import messages

    with closing(Client(settings)) as client:
        judge = ModelJudge(client, redaction=redacted)
        packs = [judge.shown(build_pack(diagnosis, each)) for each in find_segments(diagnosis)]
        prompts = [messages(pack) for pack in packs]
        schema = json_schema(packs[0]) if packs else None
        estimate = client.estimate(prompts, schema)
    told = [tuple((each["role"], each["content"]) for each in prompt) for prompt in prompts]
    return DryRun(
        estimate.calls,
        estimate.prompt_tokens,
        estimate.completion_tokens,
        estimate.cost_usd,
        tuple(told),
    )
