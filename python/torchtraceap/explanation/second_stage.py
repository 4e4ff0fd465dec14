"""The second stage, whole: what `torchtraceap explain`, `diagnosis.explain` and `.ask` call.

Without settings of a model nothing is asked of anybody, and no package for it is imported.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from torchtraceap.explanation.build_pack import build_pack
from torchtraceap.explanation.explain import build_explanation
from torchtraceap.explanation.explanation import DryRun, Explanation, Response
from torchtraceap.explanation.segments import find_segments

if TYPE_CHECKING:
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.explanation.client import Client
    from torchtraceap.explanation.completions import Progress
    from torchtraceap.explanation.settings import ModelSettings

__all__ = ["answer", "dry_run", "explain"]


def explain(
    diagnosis: Diagnosis,
    *,
    question: str | None = None,
    settings: ModelSettings | None = None,
    redacted: bool = True,
    progress: Progress | None = None,
) -> Explanation:
    """Explain the suspicious parts of a trace: what happens, why it costs, and what to change.

    Args:
        diagnosis: The trace's diagnosis.
        question: To be answered beside it.
        settings: A language model that judges and answers; None: offline.
        redacted: Names of the trace are hidden from the model.
        progress: Told how many characters of an answer have come.

    Raises:
        MissingDependencyError: A model is to be asked, and the packages for it are not installed.
    """
    if settings is None:
        told = answer(diagnosis, question).text if question else None
        return build_explanation(diagnosis, answer=told)
    from torchtraceap.explanation.client import Client
    from torchtraceap.explanation.llm_judge import ModelJudge

    with closing(Client(settings, progress)) as client:
        judge = ModelJudge(client, redaction=redacted)
        found = build_explanation(diagnosis, judge, model=settings.model)
        told, problems = None, found.problems
        if question:
            answered = _answer_by_model(diagnosis, question, client, redacted)
            told, problems = answered.text, (*problems, *answered.problems)
        problems = (*client.problems, *problems)
        return replace(found, answer=told, usage=client.usage(), problems=problems)


def answer(
    diagnosis: Diagnosis,
    question: str,
    *,
    settings: ModelSettings | None = None,
    redacted: bool = True,
) -> Response:
    """The answer to a question alone. Arguments as of `explain`."""
    if settings is None:
        from torchtraceap.explanation.offline_answer import answer_offline

        return Response(answer_offline(diagnosis, question), "offline", None, None)
    from torchtraceap.explanation.client import Client

    with closing(Client(settings)) as client:
        found = _answer_by_model(diagnosis, question, client, redacted)
        return replace(found, problems=(*client.problems, *found.problems))


def _answer_by_model(
    diagnosis: Diagnosis, question: str, client: Client, redacted: bool
) -> Response:
    """Answer a question by the model, or offline if it has no answer that holds."""
    from torchtraceap.explanation.questions import ask
    from torchtraceap.explanation.redaction import Redaction
    from torchtraceap.explanation.tools import Toolbox

    box = Toolbox(diagnosis.trace, diagnosis=diagnosis)
    found = ask(box, question, client, Redaction() if redacted else None)
    source, text = "llm", found.answer
    if text is None:
        source, text = "offline_fallback", answer(diagnosis, question).text
    return Response(text, source, client.name, client.usage(), found.problems)


def dry_run(diagnosis: Diagnosis, settings: ModelSettings, *, redacted: bool = True) -> DryRun:
    """Return the first request about each segment and an upper estimate of what all of them take.
    Nothing is sent; repairs of answers and questions come on top."""
    from torchtraceap.explanation.answer import json_schema
    from torchtraceap.explanation.client import Client
    from torchtraceap.explanation.llm_judge import ModelJudge
    from torchtraceap.explanation.prompt import messages

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
