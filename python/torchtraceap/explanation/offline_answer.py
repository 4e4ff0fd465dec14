"""Questions about a trace without a model: what is nearest to their words, with exact numbers.

Words are compared, nothing is understood, and the answer says so. What it finds are entries of the
knowledge base (whether the trace has such a finding), operators and kernels that the question
names, and the tool whose description is nearest.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from torchtraceap.core.formatting import format_count, format_ns, format_share, plain_line
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.explanation.segments import finding_of, rule_says
from torchtraceap.explanation.tools import Toolbox

if TYPE_CHECKING:
    from torchtraceap.core.results import Finding
    from torchtraceap.diagnosis.result import Diagnosis

__all__ = ["OFFLINE", "Bm25", "answer_offline", "nearest_entries", "search_words"]

OFFLINE = (
    "No language model was asked: this is what the words of the question lead to in the knowledge "
    "base, the tools and the names of the trace; nothing has understood the question."
)
NOTHING = "No word of the question leads to anything that is known of this trace."
MOST_QUESTION = MOST_ANSWER = 2_000
LEAST_ENTRY_SCORE = 2.0
"""Least BM25 score: about one word that few of the entries have."""
LEAST_TOOL_SCORE = 1.0
"""Least BM25 score of tools, whose texts are fewer and shorter."""
_MOST_FOUND = 3
_FEWEST_LETTERS = 4
_ALONE = ("summary", "diagnosis", "ops", "kernels", "step")
"""Tools that say something without arguments."""
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


def answer_offline(diagnosis: Diagnosis, question: str) -> str:
    """Answer a question with what is nearest to its words; no model is asked.

    Args:
        diagnosis: The trace's diagnosis.
        question: The question.

    Returns:
        Plain text of at most `MOST_ANSWER` characters. Its first sentence says what it is not.
    """
    box = Toolbox(diagnosis.trace, diagnosis=diagnosis)
    names, left = _names_in(box, question[:MOST_QUESTION])
    found: list[str] = []
    for name in nearest_entries([left], _MOST_FOUND, least=LEAST_ENTRY_SCORE):
        finding = finding_of(diagnosis, name)
        if finding is not None:
            found += _describe_finding(finding)
        else:
            absent = rule_says(diagnosis, name) == "absent"
            said = "was looked for and not found" if absent else "could not be checked"
            found.append(f"- {load_knowledge()[name].title} ({name}): {said} in this trace.")
    found += names
    tools = [tool for tool in box.tools if tool.name in _ALONE]
    index = Bm25(search_words(f"{tool.name} {tool.description}") for tool in tools)
    scores = index.scores(search_words(left))
    best = max(range(len(tools)), key=scores.__getitem__)
    answer = box.call(tools[best].name, {}) if scores[best] >= LEAST_TOOL_SCORE else None
    if answer is not None and not answer.is_error:
        name, lines = tools[best].name, list(_lines(answer.value))
        found.append(f"- The tool {name} says: {lines[0]}" if lines else f"- {name}: nothing")
        found += (f"  {line}" for line in lines[1:])
    text = "\n".join([OFFLINE, *(found or [NOTHING])])
    return text if len(text) <= MOST_ANSWER else text[: MOST_ANSWER - 1] + "…"


def _describe_finding(finding: Finding) -> list[str]:
    cost = f"{format_ns(finding.cost_ns)}, {format_share(finding.cost_share)}"
    lines = [f"- {finding.title} ({finding.type}): it costs {cost} of the profiled time."]
    saving = finding.saving
    if saving is None or not saving.believed_ns:
        return [*lines, f"  {finding.fix}"]
    of = "a step" if saving.per_step else "the profiled time"
    how = "saves" if saving.simulated else "saves at most"
    gain = format_ns(saving.believed_ns)
    return [*lines, f"  A fix {how} {gain} of {of}. {finding.fix}"]


def _names_in(box: Toolbox, question: str) -> tuple[list[str], str]:
    """Return rows of operators and kernels that the question names, and the question without
    names."""
    words = {word: word.strip(".,:;?!()'\"`") for word in question.split()}
    lines, said = [], set[str]()
    for tool, key in (("ops", "name"), ("kernels", "canonical")):
        found = 0
        for name in dict.fromkeys(filter(None, box.table(tool, by=key, rank=None).to_list(key))):
            meant = {word for word, plain in words.items() if _may_mean(plain, name)}
            said |= meant
            if not meant or found >= _MOST_FOUND:
                continue
            answer = box.call(tool, {"by": key, "contains": name[:200], "limit": 50})
            rows = answer.value.get("table", {}).get("rows", ())
            row = next((row for row in rows if row[key] == plain_line(name)), None)
            if row is not None:
                found += 1
                lines.append(f"- {tool}: {_describe_row(row)}")
    return lines, " ".join(word for word in words if word not in said)


def _may_mean(word: str, name: str) -> bool:
    """Return True if a word is the name or a part of it between colons, or if it looks technical
    (a colon, an underscore, digits or inner capitals) and is in the name."""
    wanted, whole = word.casefold(), name.casefold()
    if len(wanted) < _FEWEST_LETTERS:
        return wanted == whole
    if wanted in (whole, *whole.split("::")):
        return True
    inner = any(c.isupper() for c in word[1:]) and any(c.islower() for c in word)
    is_technical = inner or any(c in ":_" or c.isdigit() for c in word)
    return is_technical and any(map(str.isalpha, word)) and wanted in whole


def _lines(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the quantities of an object in one line, then the first rows of its lists."""
    line = _describe_row(value)
    if line:
        yield line
    for key, inner in value.items():
        if not isinstance(inner, Mapping) or "text" in inner:
            continue
        head = "" if key == "table" else f"{key.replace('_', ' ')}: "
        if "rows" in inner:
            yield from (f"{head}{_describe_row(row)}" for row in inner["rows"][:_MOST_FOUND])
        else:
            yield from (f"{head}{line}" for line in _lines(inner))


def _describe_row(row: Mapping[str, Any]) -> str:
    """Return the first name of a row, then what each of its quantities and counts is."""
    names = [str(row[key]) for key in ("name", "canonical", "title", "cause") if key in row]
    said = []
    for key, value in row.items():
        if isinstance(value, int) and not isinstance(value, bool):
            said.append(f"{key.replace('_', ' ')} {format_count(value)}")
        elif isinstance(value, Mapping) and value.get("text"):
            said.append(f"{key.replace('_', ' ')} {value['text']}")
    return ": ".join(filter(None, [*names[:1], ", ".join(said)]))
