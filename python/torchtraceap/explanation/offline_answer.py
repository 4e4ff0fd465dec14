"""Questions about a trace without a model: tables first, with exact numbers that are cited.

Words are compared, nothing is understood, and the answer says so. It stands on the operators and
kernels that the question names, else on the table of its topic (`topics`), else on entries of the
knowledge base: whether the trace has such a finding.

Note [BM25]: the score of a document D for a query Q is the sum over the words w of Q of

    ln(1 + (N - n + 0.5) / (n + 0.5)) * f (k1 + 1) / (f + k1 (1 - b + b |D| / average |D|))

with N documents, n of them with the word, f its count in D and |D| the length of D in words. It is
formula 3.15 of Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond"
(Foundations and Trends in Information Retrieval 3, 2009), with Lucene's 1 inside of the logarithm,
which keeps frequent words from counting against a document. k1 = 1.2 and b = 0.75 are their usual
values. A few dozen short texts need no index and no embedding.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.explanation.numbers import Metric
from torchtraceap.explanation.segments import finding_of
from torchtraceap.explanation.table_answers import Asked, Filter, Ranking, tell_ranking
from torchtraceap.explanation.topics import ELSEWHERE, NAMED, OF_NAMES, OF_STEPS, topic_of

if TYPE_CHECKING:
    from torchtraceap.diagnosis.result import Diagnosis

__all__ = ["Bm25", "OfflineAnswer", "answer_offline", "nearest_entries", "search_words"]

NOTHING = (
    "No word of the question leads to a table of the trace or to a finding. Ask of idle time, "
    "kernels, operators, modules, memory, copies, steps, ranks, collectives, launches, "
    "synchronization, precision, tokens, what a fix saves, or name an operator or a kernel."
)
MOST_QUESTION = MOST_ANSWER = 2_000
LEAST_ENTRY_SCORE = 2.0
"""Least BM25 score: about one word that few of the entries have."""
_MOST_FOUND = 3
_FEWEST_LETTERS = 4
K1 = 1.2
B = 0.75
HALF = 0.5
"""Least part of the best score: texts below it share words by chance."""
_TECHNICAL_NAME = re.compile(r"\w::?\w|\w_|_\w")
_WORD = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)*")
_PLACEHOLDER = re.compile(r"\[\[|\]\]|\{[^}]*\}")
_COMMON = frozenset(
    word_of_english
    for line in (
        "a about an and any are as at be by can do does for from has have how i in is it its many",
        "me much my of on or our so take takes tell than that the their there these they this to",
        "was we what when where which while who why will with you your",
    )
    for word_of_english in line.split()
)
"""Words that say nothing of what is asked."""


def search_words(text: str) -> list[str]:
    """Return the words of a text in small letters, without common ones and without the s of a
    plural; of `snake_case` the whole and its parts."""
    found: list[str] = []
    for word in _WORD.findall(text.lower()):
        parts = word.split("_")
        found += [word, *parts] if len(parts) > 1 else parts
    words = (word for word in found if word not in _COMMON)
    return [w[:-1] if len(w) > 3 and w[-1] == "s" and w[-2] != "s" else w for w in words]


class Bm25:
    """Documents to compare with queries. See Note [BM25].

    Args:
        documents: The words of each.
    """

    def __init__(self, documents: Iterable[Sequence[str]]) -> None:
        self._counts = [Counter(words) for words in documents]
        self._lengths = [counts.total() for counts in self._counts]
        self._average = sum(self._lengths) / max(1, len(self._lengths))
        self._having = Counter(word for counts in self._counts for word in counts)

    def scores(self, words: Iterable[str]) -> list[float]:
        """Return a score for each document, 0 where it has none of the words. A word counts once,
        however often it is asked for."""
        scores = [0.0] * len(self._counts)
        for word in dict.fromkeys(words):
            having = self._having[word]
            weight = math.log(1 + (len(self._counts) - having + 0.5) / (having + 0.5))
            for place, counts in enumerate(self._counts):
                if count := counts[word]:
                    scale = 1 - B + B * self._lengths[place] / self._average
                    scores[place] += weight * (count * (K1 + 1) / (count + K1 * scale))
        return scores


def nearest_entries(words: Iterable[str], count: int, *, least: float = 0.0) -> list[str]:
    """Return the types of the knowledge base's entries that are nearest, the nearest first.

    Args:
        words: Texts of any length: types that a detector names, signs, a question.
        count: At most so many.
        least: Least score; entries without any of the words never count, nor do those with less
            than half of the best score.
    """
    types, index = _entries()
    scores = index.scores([word for text in words for word in search_words(text)])
    order = sorted(range(len(types)), key=lambda place: -scores[place])
    enough = max(least, HALF * max(scores))
    return [types[place] for place in order[:count] if scores[place] and scores[place] >= enough]


@cache
def _entries() -> tuple[list[str], Bm25]:
    """Return the types of all entries with their texts, without signs that speak against them."""
    types, texts = [], []
    for entry in load_knowledge().values():
        why = _PLACEHOLDER.sub(" ", entry.why)
        text = [entry.type, entry.name, entry.title, why, *entry.signs, entry.advice.fix]
        types.append(entry.type)
        texts.append(search_words(" ".join(text)))
    return types, Bm25(texts)


@dataclass(frozen=True, slots=True)
class OfflineAnswer(Result):
    """The answer to a question from tables, findings and the knowledge base."""

    text: str
    """Plain text of at most `MOST_ANSWER` characters."""
    citations: tuple[Metric, ...]
    """The numbers of the text, in their order; advice may hold others."""


def answer_offline(diagnosis: Diagnosis, question: str) -> OfflineAnswer:
    """Answer a question from the tables of a trace; no model is asked.

    What the question names (an operator, a kernel) is looked up. Else its words choose a topic and
    so a table (`topics`), else entries of the knowledge base that are near. The last sentence says
    which commands show the same.

    Args:
        diagnosis: The trace's diagnosis.
        question: The question.
    """
    asked = Asked(diagnosis, question[:MOST_QUESTION])
    needed = next((needs for words, needs in ELSEWHERE if asked.asks(words)), None)
    topic = None if needed else topic_of(asked)
    if asked.names_unknown_rank:
        asked.say("The trace has no such rank of several: this is of all that it has.")
    if topic is not None and asked.step is not None and topic.name not in OF_STEPS:
        asked.say("This is of the whole trace: only `steps` tells steps apart.")
    said = len(asked.lines)
    if needed is not None:
        asked.say(f"The trace does not tell this. {needed}")
    elif _tell_names(asked, plain_words=topic is not None and topic.name in OF_NAMES):
        topic = None
    elif topic is None:
        _tell_entries(asked)
        if len(asked.lines) == said:
            _tell_names(asked, plain_words=True)
    elif isinstance(topic.tell, Ranking):
        tell_ranking(asked, topic.tell)
    else:
        topic.tell(asked)
    if topic is not None:
        asked.say_findings(topic.types)
    if len(asked.lines) == said:
        asked.say(NOTHING)
    end = ""
    if asked.commands:
        shown = ", ".join(f"`torchtraceap {command}`" for command in asked.commands)
        end = f"\nFrom {shown}, chosen by the words of the question; no language model was asked."
    text = "\n".join(asked.lines)
    if len(text) > MOST_ANSWER - len(end):
        text = text[: MOST_ANSWER - len(end) - 1] + "…"
    return OfflineAnswer(text + end, tuple(asked.citations))


def _tell_entries(asked: Asked) -> None:
    """Answer with the entries of the knowledge base that are nearest to the question."""
    for name in nearest_entries([asked.text], _MOST_FOUND, least=LEAST_ENTRY_SCORE):
        asked.stand_on("diagnose PATH")
        finding = finding_of(asked.diagnosis, name)
        if finding is not None:
            asked.say_finding(finding)
        else:
            asked.say_verdict(name)


def _tell_names(asked: Asked, *, plain_words: bool) -> bool:
    """Answer with the rows of operators and kernels that the question names; False if it names
    none.

    Args:
        asked: The question.
        plain_words: Words of English that are names too count, such as "mean".
    """
    words = [word.strip(".,:;?!()'\"`") for word in asked.question.split()]
    if not plain_words:
        words = [word for word in words if _TECHNICAL_NAME.search(word)]
    found = False
    for ranking, column in NAMED:
        table = asked.box.table(ranking.table, rank=asked.rank, **ranking.options)
        names = dict.fromkeys(filter(None, table.to_list(column)))
        meant = [name for name in names if any(_may_mean(word, name) for word in words)]
        if meant:
            only = Filter(column, "|".join(rf"\A{re.escape(name)}\Z" for name in meant))
            tell_ranking(asked, replace(ranking, only=only))
            found = True
    return found


def _may_mean(word: str, name: str) -> bool:
    """Return True if a word is the name or a part of it between colons, or if it looks technical
    (a colon, an underscore, digits or inner capitals) and is in the name."""
    wanted, whole = word.casefold(), name.casefold()
    if len(wanted) < _FEWEST_LETTERS:
        return wanted == whole
    if wanted in (whole, *whole.split("::")):
        return True
    inner = any(c.isupper() for c in word[1:]) and any(c.islower() for c in word)
    is_technical = inner or _TECHNICAL_NAME.search(word) or any(map(str.isdigit, word))
    return bool(is_technical) and any(map(str.isalpha, word)) and wanted in whole
