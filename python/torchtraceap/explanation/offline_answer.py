"""Questions about a trace without a model: what is nearest to their words, with exact numbers.

Words are compared, nothing is understood, and the answer says so. What it finds are entries of the
knowledge base (whether the trace has such a finding), operators and kernels that the question
names, and the tool whose description is nearest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torchtraceap.core.formatting import format_count, format_ns, format_share
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.explanation.retrieval import Bm25, nearest_entries, search_words
from torchtraceap.explanation.segments import finding_of, rule_says
from torchtraceap.explanation.tool_results import clean_name
from torchtraceap.explanation.tools import Tool, Toolbox

if TYPE_CHECKING:
    from torchtraceap.core.results import Finding
    from torchtraceap.diagnosis.result import Diagnosis

__all__ = ["OFFLINE", "answer_offline"]

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


def answer_offline(diagnosis: Diagnosis, question: str) -> str:
    """Answer a question with what is nearest to its words; no model is asked.

    Args:
        diagnosis: The trace's diagnosis.
        question: The question.

    Returns:
        Plain text of at most `MOST_ANSWER` characters. Its first sentence says what it is not.
    """
    asked = question[:MOST_QUESTION]
    box = Toolbox(diagnosis.trace, diagnosis=diagnosis)
    names, left = _names_in(box, asked)
    found = [*_entries_near(diagnosis, left), *names, *_tool_near(box, left)]
    text = "\n".join([OFFLINE, *(found or [NOTHING])])
    return text if len(text) <= MOST_ANSWER else text[: MOST_ANSWER - 1] + "…"


# ------------------------------------------------------------------------- knowledge


def _entries_near(diagnosis: Diagnosis, question: str) -> Iterator[str]:
    """Yield what the diagnosis says about entries that share words with the question."""
    for name in nearest_entries([question], _MOST_FOUND, least=LEAST_ENTRY_SCORE):
        finding = finding_of(diagnosis, name)
        if finding is not None:
            yield from _describe_finding(finding)
        else:
            absent = rule_says(diagnosis, name) == "absent"
            said = "was looked for and not found" if absent else "could not be checked"
            yield f"- {load_knowledge()[name].title} ({name}): {said} in this trace."


def _describe_finding(finding: Finding) -> Iterator[str]:
    cost = f"{format_ns(finding.cost_ns)}, {format_share(finding.cost_share)}"
    yield f"- {finding.title} ({finding.type}): it costs {cost} of the profiled time."
    saving = finding.saving
    if saving is not None and saving.believed_ns:
        of = "a step" if saving.per_step else "the profiled time"
        how = "saves" if saving.simulated else "saves at most"
        yield f"  A fix {how} {format_ns(saving.believed_ns)} of {of}. {finding.fix}"
    else:
        yield f"  {finding.fix}"


# ------------------------------------------------------------------------- names


def _names_in(box: Toolbox, question: str) -> tuple[list[str], str]:
    """Rows of operators and kernels that the question names, and the question without names."""
    words = {word: word.strip(".,:;?!()'\"`") for word in question.split()}
    lines, said = [], set[str]()
    for tool, key in (("ops", "name"), ("kernels", "canonical")):
        found = 0
        for name in dict.fromkeys(filter(None, box.table(tool, by=key, rank=None).to_list(key))):
            meant = {word for word, plain in words.items() if _means(plain, name)}
            said |= meant
            row = _row_of(box, tool, key, name) if meant and found < _MOST_FOUND else None
            if row is not None:
                found += 1
                lines.append(f"- {tool}: {_spoken(row)}")
    return lines, " ".join(word for word in words if word not in said)


def _means(word: str, name: str) -> bool:
    """The word is the name or a part of it between colons, or looks like a name and is in it."""
    wanted, whole = word.casefold(), name.casefold()
    if len(wanted) < _FEWEST_LETTERS:
        return wanted == whole
    return wanted in (whole, *whole.split("::")) or (_is_technical(word) and wanted in whole)


def _is_technical(word: str) -> bool:
    """Return True for a technical word: with a colon, an underscore, digits or inner capitals."""
    if not any(map(str.isalpha, word)):
        return False
    inner = any(c.isupper() for c in word[1:]) and any(c.islower() for c in word)
    return inner or any(c in ":_" or c.isdigit() for c in word)


def _row_of(box: Toolbox, tool: str, key: str, name: str) -> Mapping[str, Any] | None:
    """Return the row that a tool has for exactly this name, or None."""
    answer = box.call(tool, {"by": key, "contains": name[:200], "limit": 50})
    rows = answer.value.get("table", {}).get("rows", ())
    return next((row for row in rows if row[key] == clean_name(name)), None)


# ------------------------------------------------------------------------- tools


def _tool_near(box: Toolbox, question: str) -> Iterator[str]:
    """Yield the result of the tool whose description is nearest to the question."""
    tools = [tool for tool in box.tools if tool.name in _ALONE]
    index = Bm25(search_words(f"{tool.name} {tool.description}") for tool in tools)
    scores = index.scores(search_words(question))
    best = max(range(len(tools)), key=scores.__getitem__)
    if scores[best] >= LEAST_TOOL_SCORE:
        yield from _describe_row(box, tools[best])


def _describe_row(box: Toolbox, tool: Tool) -> Iterator[str]:
    answer = box.call(tool.name, {})
    if not answer.is_error:
        lines = [*_lines(answer.value)]
        yield f"- The tool {tool.name} says: {lines[0]}" if lines else f"- {tool.name}: nothing"
        yield from (f"  {line}" for line in lines[1:])


def _lines(value: Mapping[str, Any]) -> Iterator[str]:
    """The quantities of an object in one line, then the first rows of its lists."""
    line = _spoken(value)
    if line:
        yield line
    for key, inner in value.items():
        if not isinstance(inner, Mapping) or "text" in inner:
            continue
        head = "" if key == "table" else f"{_spaced(key)}: "
        if "rows" in inner:
            yield from (f"{head}{_spoken(row)}" for row in inner["rows"][:_MOST_FOUND])
        else:
            yield from (f"{head}{line}" for line in _lines(inner))


def _spoken(row: Mapping[str, Any]) -> str:
    """Names first, then what each quantity is."""
    names = [str(row[key]) for key in ("name", "canonical", "title", "cause") if key in row]
    said = [f"{_spaced(key)} {text}" for key, value in row.items() if (text := _figure(value))]
    return ": ".join(filter(None, [*names[:1], ", ".join(said)]))


def _figure(value: object) -> str:
    """A quantity or a count as a person reads it; empty for anything else."""
    if isinstance(value, Mapping):
        return str(value["text"]) if "text" in value else ""
    if isinstance(value, int) and not isinstance(value, bool):
        return format_count(value)
    return ""


def _spaced(key: str) -> str:
    return key.replace("_", " ")
