"""Rank texts by their similarity to words with Okapi BM25.

The score of a document D for a query Q is the sum over the words w of Q of

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
from functools import cache

from torchtraceap.core.knowledge import KnowledgeEntry, load_knowledge

__all__ = ["Bm25", "nearest_entries", "search_words"]

K1 = 1.2
B = 0.75
HALF = 0.5
"""Least part of the best score: texts below it share words by chance."""
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
    """The words of a text in small letters, without common ones and without the s of a plural;
    of `snake_case` the whole and its parts."""
    found: list[str] = []
    for word in _WORD.findall(text.lower()):
        parts = word.split("_")
        found += [word, *parts] if len(parts) > 1 else parts
    return [_singular(word) for word in found if word not in _COMMON]


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] != "s" else word


class Bm25:
    """Documents to compare with queries.

    Args:
        documents: The words of each.
    """

    def __init__(self, documents: Iterable[Sequence[str]]) -> None:
        self._counts = [Counter(words) for words in documents]
        self._lengths = [counts.total() for counts in self._counts]
        self._average = sum(self._lengths) / max(1, len(self._lengths))
        self._having = Counter(word for counts in self._counts for word in counts)

    def scores(self, words: Iterable[str]) -> list[float]:
        """One for each document, 0 where it has none of the words. A word counts once, however
        often it is asked for."""
        wanted = [word for word in dict.fromkeys(words) if word in self._having]
        return [
            sum(self._weight(word) * self._frequency(word, place) for word in wanted)
            for place in range(len(self._counts))
        ]

    def _weight(self, word: str) -> float:
        having = self._having[word]
        return math.log(1 + (len(self._counts) - having + 0.5) / (having + 0.5))

    def _frequency(self, word: str, place: int) -> float:
        count = self._counts[place][word]
        scale = 1 - B + B * self._lengths[place] / self._average
        return count * (K1 + 1) / (count + K1 * scale) if count else 0.0


def nearest_entries(words: Iterable[str], count: int, *, least: float = 0.0) -> list[str]:
    """Types of the knowledge base's entries that are nearest, the nearest first.

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
def _entries() -> tuple[tuple[str, ...], Bm25]:
    knowledge = load_knowledge()
    return tuple(knowledge), Bm25(search_words(_text(entry)) for entry in knowledge.values())


def _text(entry: KnowledgeEntry) -> str:
    """Return the text that tells what an entry is about, without signs that speak against it."""
    why = _PLACEHOLDER.sub(" ", entry.why)
    return " ".join([entry.type, entry.name, entry.title, why, *entry.signs, entry.advice.fix])
