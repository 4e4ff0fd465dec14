"""Move the limits of a contract file to what was measured, and note the reason.

Note [Form]: a limit keeps its form: an upper bound stays one, in its unit, and of a range only the
end moves that does not hold. Comments and order of the file stay: the texts of values are replaced
where they stand. Where that can't be, as in a file of one line, the file is written anew. What was
written is read again before it is kept.

Note [Times move less]: counts and sizes repeat, so their limits take the measured value. Shares and
times vary: theirs move if they don't hold, or if a tenth or more of the bound is not needed.
Findings that are present leave the list of those that must not be.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

from torchtraceap.contracts.file import ContractFile, parse_contracts, safe_loader
from torchtraceap.contracts.limits import Contract
from torchtraceap.contracts.result import FAILED, INCONCLUSIVE, CheckResult
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.errors import OptionError

if TYPE_CHECKING:
    import yaml

__all__ = ["Change", "Update", "update_contract"]

_VARYING = ("share", "time")


@dataclass(frozen=True, slots=True)
class Change(Result):
    """A limit that moved."""

    key: str
    before: Any
    after: Any
    name: str = ""
    """Name of the contract among several."""

    def __str__(self) -> str:
        where = f"{self.name}: " if self.name else ""
        return f"{where}{self.key}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Update:
    """A contract file after an update."""

    file: ContractFile
    changes: tuple[Change, ...]
    left: tuple[str, ...]
    """Keys of limits that fail and can't be moved, with the reason."""


def update_contract(
    file: ContractFile,
    result: CheckResult,
    reason: str,
    *,
    name: str | None = None,
    limits: Contract | None = None,
    is_new: bool = False,
    today: str | None = None,
) -> Update:
    """Return a contract file whose limits hold for what a check measured. See Note [Form].

    Args:
        file: The file as it was read, or a new and empty one: `parse_contracts("{}", path)`.
        result: The result of a check of that contract.
        reason: Why the limits move: a person's words, which the history keeps.
        name: The contract in the file; None for that of the whole file. One that is not there
            is added.
        limits: The contract that was checked, where it is not in the file.
        is_new: There were no limits, and those of `limits` only say what form they get: each is
            written, whatever was measured.
        today: The day, as 2026-11-26; that of the clock for None.

    Raises:
        OptionError: There is no reason.
    """
    import yaml

    if not reason.strip():
        raise OptionError("a contract is changed for a reason; say it")
    checked = limits or (file.base if name is None else file.find(name)) or file.base
    changes, left = _changes(checked, result, name or "", is_new)
    if not changes:
        return Update(file, (), tuple(left))
    values = {each.key: each.after for each in changes}
    kinds = {each.key: each.kind for each in result.results}
    times_moved = any(kinds[each.key] in _VARYING for each in changes)
    if times_moved and result.device not in (None, checked.device):
        values["device"] = result.device
    day = today or date.today().isoformat()
    history = [
        {
            "date": day,
            **({"contract": each.name} if each.name else {}),
            "key": each.key,
            "from": each.before,
            "to": each.after,
            "reason": " ".join(reason.split()),
        }
        for each in changes
    ]
    whole = _load_node(file.text) or {}
    if name is None:
        whole |= values
    else:
        whole["contracts"] = whole.get("contracts") or {}
        whole["contracts"][name] = (whole["contracts"].get(name) or {}) | values
    whole["history"] = (whole.get("history") or []) + history
    text = yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=10**6)
    in_place = _replace_in_place(file.text, name, values, history)
    if in_place is not None and _load_node(in_place) == _load_node(text):
        text = in_place
    return Update(parse_contracts(text, file.path), tuple(changes), tuple(left))


def _changes(
    contract: Contract, result: CheckResult, contract_name: str, is_new: bool
) -> tuple[list[Change], list[str]]:
    """Return the limits that move, and sentences about those that can't."""
    changes, left = [], []
    for each in result.results:
        limit = contract.limit(each.key)
        if limit is None or each.status == INCONCLUSIVE:
            continue
        if each.key == "findings":
            after = [name for name in limit.types if name not in (each.measured or ())] or None
            if after is None and each.status == FAILED:
                left.append(f"findings: {each.reason}; change it by hand")
                continue
        elif each.kind in _VARYING and each.status != FAILED and not each.won:
            continue  # see Note [Times move less]
        else:
            after = limit.moved_to(each.measured)
        before = None if is_new else limit.to_json()
        if after is not None and after != before:
            changes.append(Change(each.key, before, after, contract_name))
    return changes, left


def _load_node(text: str) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=safe_loader())
    except yaml.YAMLError:
        return None


def _replace_in_place(
    text: str, name: str | None, values: dict[str, Any], history: list[dict[str, Any]]
) -> str | None:
    """Return the text with values replaced in place; None if the file has no place for them."""
    import yaml

    root = yaml.compose(text, Loader=safe_loader())
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        return None
    places = _Places(text, root)
    if not places.put(name, values) or not places.add_history(history):
        return None
    return places.result()


class _Places:
    """Collects what to replace in a text and what to put into it."""

    def __init__(self, text: str, root: yaml.MappingNode) -> None:
        self._text = text if text.endswith("\n") else text + "\n"
        self._root = root
        self._edits: list[tuple[int, int, str]] = []

    def result(self) -> str:
        """Return the text with all edits."""
        text = self._text
        in_order = sorted(self._edits, key=lambda edit: edit[0])
        for begin, end, new in reversed(in_order):  # of one place the last first: it comes behind
            text = text[:begin] + new + text[end:]
        return text

    def put(self, name: str | None, values: dict[str, Any]) -> bool:
        """Set the values of a contract; return True if there was a place for them."""
        if name is None:
            return self._into(self._root, values, 0)
        contracts = _value(self._root, "contracts")
        if contracts is None:
            lines = [f"contracts:\n  {_flow(name)}:\n"]
            lines += [f"    {key}: {_flow(value)}\n" for key, value in values.items()]
            self._append(len(self._text), lines)
            return True
        own = _value(contracts, name)
        if own is not None:
            return self._into(own, values, None)
        indent = _indent(contracts)
        if indent is None:
            return False
        lines = [f"{' ' * indent}{_flow(name)}:\n"]
        lines += [f"{' ' * (indent + 2)}{k}: {_flow(v)}\n" for k, v in values.items()]
        self._append(self._behind(contracts), lines)
        return True

    def _into(self, node: yaml.Node, values: dict[str, Any], indent: int | None) -> bool:
        added = []
        for key, value in values.items():
            old = _value(node, key)
            if old is None:
                added.append((key, value))
            elif old.start_mark.line != old.end_mark.line and not _is_flow(old):
                return False
            else:
                begin, end = old.start_mark.index, old.end_mark.index
                self._edits.append((begin, end, ("" if end > begin else " ") + _flow(value)))
        if not added:
            return True
        indent = _indent(node) if indent is None else indent
        if indent is None:
            return False
        lines = [f"{' ' * indent}{key}: {_flow(value)}\n" for key, value in added]
        own = [value for key, value in node.value if key.value not in ("contracts", "history")]
        self._append(self._behind(own[-1] if own else node), lines)
        return True

    def add_history(self, entries: list[dict[str, Any]]) -> bool:
        """Append to the history; return True if there was a place for it."""
        old = _value(self._root, "history")
        lines = [f"- {_flow(entry)}\n" for entry in entries]
        if old is None:
            self._append(len(self._text), ["history:\n", *lines])
            return True
        if _is_flow(old) or not getattr(old, "value", None):
            return False
        indent = " " * int(old.start_mark.column)
        self._append(self._behind(old), [indent + line for line in lines])
        return True

    def _append(self, place: int, lines: list[str]) -> None:
        self._edits.append((place, place, "".join(lines)))

    def _behind(self, node: yaml.Node) -> int:
        """Return the index of the line behind the last value in a node; a node's own end lies
        behind comments."""
        last = node
        while getattr(last, "value", None) and not isinstance(last.value, str):
            if _is_flow(last):
                break
            below = last.value[-1]
            last = below[1] if isinstance(below, tuple) else below
        newline = self._text.find("\n", max(0, last.end_mark.index - 1))
        return len(self._text) if newline < 0 else newline + 1


def _value(node: yaml.Node, key: str) -> yaml.Node | None:
    if not isinstance(node.value, list):
        return None
    pairs = (pair for pair in node.value if isinstance(pair, tuple))
    return next((value for name, value in pairs if name.value == key), None)


def _indent(node: yaml.Node) -> int | None:
    """Return the indentation of the keys of a block mapping; None for other nodes."""
    if _is_flow(node) or not isinstance(node.value, list) or not node.value:
        return None
    first = node.value[0]
    return int(first[0].start_mark.column) if isinstance(first, tuple) else None


def _is_flow(node: yaml.Node) -> bool:
    return bool(getattr(node, "flow_style", False))


def _flow(value: Any) -> str:
    """Return a value in one line, as it may stand behind a key."""
    import yaml

    dumped: str = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6
    )
    return dumped.removesuffix("...\n").strip()
