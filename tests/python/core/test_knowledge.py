"""The knowledge base: complete, consistent, and robust to what a finding leaves out."""

from __future__ import annotations

import ast
import builtins
import difflib
import re
import shlex
import symtable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from torchtraceap import _core
from torchtraceap.cli import COMMANDS
from torchtraceap.cli.parser import UsageError, parse
from torchtraceap.contracts import Contract
from torchtraceap.core.knowledge import Advice, KnowledgeEntry, load_knowledge
from torchtraceap.core.knowledge.__main__ import compile_knowledge
from torchtraceap.core.results import PAPER_TYPES
from torchtraceap.errors import OptionError
from torchtraceap.explanation.numbers import numbers_in
from torchtraceap.tables.circumstances import WORDS

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "python/torchtraceap/core/knowledge"
RULES = ROOT / "cpp/traceap/detect/rules"
ENTRIES = tuple(load_knowledge().values())
OFFICIAL_HOSTS = {
    "docs.pytorch.org",
    "docs.nvidia.com",
    "rocm.docs.amd.com",
    "docs.kernel.org",
    "docs.python.org",
    "docs.vllm.ai",
}


def each_entry() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("entry", ENTRIES, ids=[entry.type for entry in ENTRIES])


def facts_in(template: str) -> set[str]:
    return set(re.findall(r"\{([\w -]+)[:}]", template))


def test_kb_json_is_made_from_kb_yaml() -> None:
    written = (FOLDER / "kb.json").read_text(encoding="utf-8")
    assert written == compile_knowledge(FOLDER / "kb.yaml"), (
        "run python -m torchtraceap.core.knowledge"
    )


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
    assert facts_in(required) == {"cost"}
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


BECAUSE = [
    pytest.param(text, id=f"{entry.type}-{where}")
    for entry in ENTRIES
    for where, text in (("gpu", entry.because), ("host", entry.because_host))
    if where == "gpu" or text
]
OF_A_GPU = re.compile(r"GPU|CUDA|cuda|kernel|stream|driver|device|multiprocessor|copy engine")
QUANTITIES = re.compile(
    r"\d|\b(?:twice|thrice|half(?!.precision)|halve[sd]?|double[sd]?|dozens?|hundreds|thousands"
    r"|third|quarter)\b"
)


def says_a_quantity(text: str) -> bool:
    return bool(QUANTITIES.search(text) or numbers_in(text))


@pytest.mark.parametrize("text", BECAUSE)
def test_because_is_short_and_cites_no_number(text: str) -> None:
    assert text[0].isupper()
    assert text.endswith(".") and "\n" not in text
    assert 1 <= len(re.findall(r"\.(?: |$)", text)) <= 2
    assert 15 <= len(text.split()) <= 45
    assert not says_a_quantity(text)
    assert not re.search(r"[{}\[\]`]", text)


def test_quantities_are_seen_in_digits_and_in_words() -> None:
    for text in ("takes 2 ms", "in fp32", "costs twice as much", "three kernels", "half of it"):
        assert says_a_quantity(text), text
    for text in ("one kernel", "in half precision", "none of them", "for a single slice"):
        assert not says_a_quantity(text), text


@each_entry()
def test_because_says_something_else_than_why(entry: KnowledgeEntry) -> None:
    for host in (False, True):
        why = entry.why_text({}, cost="", share="", on_host=host)
        because = entry.because_text(on_host=host)
        assert alike(why, because) < 0.4
        told = {phrase for phrase in phrases(because, 6) if phrase in phrases(why, 6)}
        assert not told


def alike(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a.lower().split(), b.lower().split()).ratio()


def phrases(text: str, length: int) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}


def test_no_two_types_have_the_same_reason_or_check() -> None:
    for texts in (
        {entry.type: entry.because for entry in ENTRIES},
        {entry.type: entry.verify for entry in ENTRIES},
    ):
        names = sorted(texts)
        like = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]
                if alike(texts[a], texts[b]) > 0.7]  # fmt: skip
        assert like == []


@each_entry()
def test_a_run_without_a_gpu_is_told_nothing_of_one(entry: KnowledgeEntry) -> None:
    """Such a run has the findings whose `why` has a form for it."""
    if entry.why_host:
        assert not OF_A_GPU.search(entry.because_text(on_host=True))
        assert not re.search(r"GPU|idle: |DtoD|cuda", entry.verify_text(on_host=True))
    else:
        assert not entry.because_host and not entry.verify_host


VERIFY = [
    pytest.param(entry, text, id=f"{entry.type}-{where}")
    for entry in ENTRIES
    for where, text in (("gpu", entry.verify), ("host", entry.verify_host))
    if where == "gpu" or text
]
IDLE_CAUSES = {cause.name.lower() for cause in _core.IdleCause}
OF_THE_PATH = {"host_gap"}  # a cause of the critical path alone


def in_backticks(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize(("entry", "text"), VERIFY)
def test_verify_is_short_and_has_the_numbers_of_the_gate(entry: KnowledgeEntry, text: str) -> None:
    assert text.endswith(".") and "\n" not in text
    assert 1 <= len(re.findall(r"\.(?: |$)", text)) <= 2
    assert 15 <= len(text.split()) <= 60
    assert text.count("`") % 2 == 0
    names = {name for name in re.findall(r"\w+", text) if "_" in name}  # zero_, h2d_bytes
    assert set(numbers_in(text, names)) <= {0.0, *numbers_in(entry.gate)}  # 0: none of it


@pytest.mark.parametrize(("entry", "text"), VERIFY)
def test_verify_names_what_there_is(entry: KnowledgeEntry, text: str) -> None:
    assert re.search(r"torchtraceap|nvidia-smi", text)
    unknown = [quoted for quoted in in_backticks(text) if not is_known(quoted)]
    assert unknown == []
    assert "--fail-on" not in text  # an explanation adds it
    others = set(re.findall(r"\w+(?![\w=])", text)) & set(load_knowledge())  # no keywords
    assert others <= set(in_backticks(text))


def is_known(quoted: str) -> bool:
    """A command that parses, a key of contracts with or without its limit, a type or a cause."""
    if quoted.startswith("torchtraceap "):
        return is_a_command(quoted)
    if quoted.startswith("idle: "):
        return quoted.removeprefix("idle: ").replace(" ", "_") in IDLE_CAUSES
    return quoted in {*load_knowledge(), *IDLE_CAUSES, *OF_THE_PATH} or is_a_limit(quoted)


def is_a_command(line: str) -> bool:
    _, name, *given = shlex.split(line)
    try:
        parse(name, COMMANDS[name], given)
    except (KeyError, UsageError):
        return False
    recordings = {word for word in given if re.search(r"\.json|/", word)}
    return bool(recordings) and recordings <= {"before.json.gz", "after.json.gz", "after/"}


def is_a_limit(quoted: str) -> bool:
    read = yaml.safe_load(quoted)
    try:
        return Contract.parse(read if isinstance(read, dict) else {read: None}) is not None
    except OptionError:
        return False


def test_what_is_not_there_is_not_known() -> None:
    for wrong in ("torchtraceap kernel after.json.gz", "torchtraceap kernels after.json.gz --only",
                  "torchtraceap memory after.json.gz --by bytes", "torchtraceap ops trace.json",
                  "idle: host weit", "syncs_per_stap", 'exposed_memcpy: "= 2%"',
                  "graph_breaks: none"):  # fmt: skip
        assert not is_known(wrong), wrong
    for right in ("torchtraceap diff before.json.gz after.json.gz --by cause", "idle: host wait",
                  "syncs_per_step: 0", "h2d_bytes_per_step", "worker_starvation"):  # fmt: skip
        assert is_known(right), right


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


@each_entry()
def test_the_change_of_the_code_reads_well_as_a_diff(entry: KnowledgeEntry) -> None:
    """An explanation shows it so: what stays is kept line by line, and little else changes."""
    for advice in advices(entry):
        before, after = advice.code_before.splitlines(), advice.code_after.splitlines()
        lines = [line for line in difflib.ndiff(before, after) if line[2:].strip()]
        changed = sum(line[0] in "+-" for line in lines)
        kept = sum(line[0] == " " for line in lines)
        assert changed <= 12
        assert kept >= 1 or len(before) == 1


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
    given |= {"kernel"} if "finish_served(" in rule else set()
    wanted = facts_in(entry.why) - {"cost", "share"}
    assert wanted <= given


_GIVES = (
    r"draft\.(?:count|duration|bytes|share|rate|text)|add_per_step_fact|finish_served|"
    r"leave_to_late_ranks"
)


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
    text += (ROOT / "docs/serving.md").read_text(encoding="utf-8")
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
