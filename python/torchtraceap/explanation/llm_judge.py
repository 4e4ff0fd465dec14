"""The judge that asks a language model."""

from __future__ import annotations

from dataclasses import replace

from torchtraceap.core.formatting import plain_text
from torchtraceap.explanation.answer import json_schema, read_answer, to_verdict
from torchtraceap.explanation.budget import fit_to_budget
from torchtraceap.explanation.citations import check_verdict
from torchtraceap.explanation.language_model import AnswerError, LanguageModel, RefusalError, Reply
from torchtraceap.explanation.pack import Pack
from torchtraceap.explanation.pack_text import short_name
from torchtraceap.explanation.prompt import messages, repair_messages
from torchtraceap.explanation.redaction import Redaction, redact
from torchtraceap.explanation.segments import Segment
from torchtraceap.explanation.verdict import Citation, Verdict

__all__ = ["ModelJudge"]

_TITLE = "segment_verdict"
_MOST_REPEATED = 4000
"""Characters of an answer that a repair turn repeats."""
_MOST_PROBLEMS = 8


class ModelJudge:
    """An `explaining.Judge`; placeholders for names are the same in all packs."""

    asked_by = "model"
    reads_tables = True

    def __init__(self, model: LanguageModel, *, redaction: bool = True) -> None:
        """
        Args:
            model: The model to ask.
            redaction: Show placeholders for names that are not known to be public.
        """
        self._model = model
        self._redaction = Redaction() if redaction else None

    def shown(self, pack: Pack) -> Pack:
        """Return the part of a pack that the model is shown."""
        return fit_to_budget(redact(pack, self._redaction) if self._redaction else pack)

    def judge(self, segment: Segment, pack: Pack, *, settled: bool) -> Verdict:
        """A verdict from the pack alone; see `verdict_on`."""
        return self.verdict_on(pack)

    def verdict_on(self, pack: Pack) -> Verdict:
        """The model's verdict, whose citations hold, with names as the trace has them.

        An answer that can't be used gets one more turn, which says what is wrong with it.

        Raises:
            ModelError: The model could not be asked, or refused.
            AnswerError: Its second answer can't be used either.
        """
        shown = self.shown(pack)
        asked, schema = messages(shown), json_schema(shown)
        reply = self._model.answer(asked, schema, _TITLE)
        try:
            verdict = _verdict(reply, shown)
        except AnswerError as error:
            repeated = plain_text(reply.text[:_MOST_REPEATED])
            again = repair_messages(asked, repeated, str(error))
            verdict = _verdict(self._model.answer(again, schema, _TITLE), shown)
        return self._restore(verdict)

    def _restore(self, verdict: Verdict) -> Verdict:
        def text(said: str) -> str:
            restored = self._redaction.restore(said, short_name) if self._redaction else said
            return plain_text(restored)

        def evidence(item: Citation) -> Citation:
            return replace(item, why=text(item.why))

        return replace(
            verdict,
            what=text(verdict.what),
            why=text(verdict.why),
            evidence=tuple(map(evidence, verdict.evidence)),
        )


def _verdict(reply: Reply, pack: Pack) -> Verdict:
    """Raise AnswerError or RefusalError where the reply is no verdict that holds."""
    if reply.finish == "refusal":
        raise RefusalError("the model refused to answer")
    if reply.finish == "length":
        raise AnswerError("The answer was cut: it is too long. Write less.")
    verdict = to_verdict(read_answer(reply.text, pack))
    problems = check_verdict(verdict, pack)
    if problems:
        raise AnswerError("; ".join(problems[:_MOST_PROBLEMS]))
    return verdict
