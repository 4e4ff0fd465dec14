"""The knowledge base: complete, consistent, and robust to what a finding leaves out."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from torchtraceap import _core
from torchtraceap.analysis.circumstances import WORDS
from torchtraceap.knowledge import Advice, KnowledgeEntry, load_knowledge
from torchtraceap.knowledge.__main__ import compile_knowledge
from torchtraceap.results import PAPER_TYPES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "python/torchtraceap/knowledge"
RULES = ROOT / "cpp/traceap/detect/rules"
ENTRIES = tuple(load_knowledge().values())
OFFICIAL_HOSTS = {
    "docs.pytorch.org",
    "docs.nvidia.com",
    "rocm.docs.amd.com",
    "docs.python.org",
}


def each_entry() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("entry", ENTRIES, ids=[entry.type for entry in ENTRIES])


def facts_in(template: str) -> set[str]:
    return set(re.findall(r"\{([\w -]+)[:}]", template))


def test_kb_json_is_made_from_kb_yaml() -> None:
    written = (FOLDER / "kb.json").read_text(encoding="utf-8")
    assert written == compile_knowledge(FOLDER / "kb.yaml"), "run python -m torchtraceap.knowledge"


def test_every_registered_type_has_an_entry_and_the_other_way_round() -> None:
    assert set(load_knowledge()) == {rule.type for rule in _core.rules()}


def test_the_papers_eight_come_first() -> None:
    assert tuple(load_knowledge())[: len(PAPER_TYPES)] == PAPER_TYPES


def test_loading_twice_gives_the_same_read_only_mapping() -> None:
    first = load_knowledge()
    assert first is load_knowledge()
    with pytest.raises(TypeError):
        first["cpu_bound"] = first["graph_break"]  # type: ignore[index]


def advices(entry: KnowledgeEntry) -> tuple[Advice, ...]:
    return (entry.advice, *(advice for _, advice in entry.instead))


@each_entry()
def test_texts_are_there_and_short_enough(entry: KnowledgeEntry) -> None:
    assert 8 <= len(entry.title) <= 70
    assert not entry.title.endswith(".")
    assert entry.signs and entry.non_signs
    for advice in advices(entry):
        assert advice.fix.endswith(".") and len(advice.fix) <= 400
        assert "\n" not in advice.fix
    assert entry.audit.endswith(".") and len(entry.audit) <= 120
    assert entry.gate
    assert "\n" not in entry.why + entry.audit + entry.title


@each_entry()
def test_facts_stand_in_optional_parts_only(entry: KnowledgeEntry) -> None:
    required = re.sub(r"\[\[.*?\]\]", "", entry.why)
    assert facts_in(required) <= {"cost", "share"}
    assert required.count("{cost}") == 1


@each_entry()
def test_why_reads_well_without_any_fact(entry: KnowledgeEntry) -> None:
    text = entry.why_text({}, cost="12.3 ms", share="4.5 %")
    assert "12.3 ms" in text and "4.5 %" in text
    assert not re.search(r"[\[\]{}?]|  | [,.;:)]|\( ", text), text
    assert text[0].isupper() and text.endswith(".")


@each_entry()
def test_why_reads_well_with_all_facts(entry: KnowledgeEntry) -> None:
    facts = dict.fromkeys(facts_in(entry.why), "X")
    text = entry.why_text(facts, cost="12.3 ms", share="4.5 %")
    assert not re.search(r"[\[\]{}]|  | [,.;:)]", text), text


OF_THE_USER = {"dataset", "model", "optimizer"}


def names_from_elsewhere(code: str) -> set[str]:
    """Names that the code uses and neither makes, imports nor takes as an argument."""
    module = symtable.symtable(code, "code", "exec")
    made = {s.get_name() for s in module.get_symbols() if s.is_assigned() or s.is_imported()}
    used: set[str] = set()
    tables = [module]
    for table in tables:
        tables += table.get_children()
        names = (s for s in table.get_symbols() if s.is_referenced())
        used |= {s.get_name() for s in names if table is module or s.is_global()}
    return used - made - set(dir(builtins))


@each_entry()
def test_code_to_paste_is_complete_python(entry: KnowledgeEntry) -> None:
    for advice in advices(entry):
        assert advice.code_before != advice.code_after
        for code in (advice.code_before, advice.code_after):
            ast.parse(code)
            assert names_from_elsewhere(code) <= OF_THE_USER
            assert all(len(line) <= 100 for line in code.splitlines())


def test_names_from_elsewhere_are_seen_in_functions_too() -> None:
    code = "import math\ndef f(a):\n    b = a\n    return [g(b, x) for x in math.pi]\n"
    assert names_from_elsewhere(code) == {"g"}


@each_entry()
def test_advice_is_chosen_by_words_that_can_hold(entry: KnowledgeEntry) -> None:
    seen: list[frozenset[str]] = []
    assert entry.advice_for(frozenset()) == entry.advice
    for words, advice in entry.instead:
        assert words and words <= WORDS
        assert entry.advice_for(words) == advice  # none before it takes all of its traces
        assert words not in seen
        seen.append(words)


@each_entry()
def test_link_is_an_official_page(entry: KnowledgeEntry) -> None:
    parts = urlsplit(entry.doc_url)
    assert parts.scheme == "https" and parts.hostname in OFFICIAL_HOSTS
    assert parts.path.endswith(".html")


@each_entry()
def test_placeholders_are_facts_that_the_rule_gives(entry: KnowledgeEntry) -> None:
    rule = (RULES / f"{entry.type}.cpp").read_text(encoding="utf-8")
    given = set(re.findall(rf'(?:{_GIVES})\([^;]*?"([\w -]+)"', rule))
    wanted = facts_in(entry.why) - {"cost", "share"}
    assert wanted <= given


_GIVES = r"draft\.(?:count|duration|bytes|share|rate|text)|add_per_step_fact|leave_to_late_ranks"


def test_each_rule_is_one_file_of_its_own_name() -> None:
    types = [rule.type for rule in _core.rules()]
    assert sorted(types) == sorted(path.stem for path in RULES.glob("*.cpp"))
    tested = {path.stem for path in (ROOT / "tests/cpp/detect").glob("test_*.cpp")}
    assert {"test_per_parameter_all_reduce", "test_small_copies"} <= tested


def test_the_documented_savings_are_those_of_the_rules() -> None:
    text = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    row = re.compile(r"^\| `(\w+)` \| ([\d.]+), ([\d.]+), ([\d.]+) \| (\w(?: \+ \w)?) \|$", re.M)
    documented = {name: (of, *map(float, shares)) for name, *shares, of in row.findall(text)}
    assert documented == {
        rule.type: (_BASES[rule.saving_basis], *rule.saving_shares) for rule in _core.rules()
    }
    assert all(f"### {name}\n" in text for name in documented if "nccl" not in name)


_BASES = {
    "idle": "I",
    "idle_or_exposed": "E",
    "cost": "C",
    "gpu_work": "W",
    "idle_and_work": "W + I",
}


def test_a_fact_with_braces_is_text_and_not_a_template() -> None:
    entry = load_knowledge()["host_sync_in_loop"]
    text = entry.why_text({"operations": "{cost} [[x]]"}, cost="1 ms", share="2 %")
    assert "({cost} [[x]])" in text


def test_nouns_agree_with_their_number() -> None:
    entry = load_knowledge()["explicit_synchronize"]
    assert "(1 call)" in entry.why_text({"calls": "1"}, cost="1 ms", share="2 %")
    assert "(12 calls)" in entry.why_text({"calls": "12"}, cost="1 ms", share="2 %")
