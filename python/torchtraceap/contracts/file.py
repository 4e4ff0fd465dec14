"""Contract files: `contract.yaml`, with the line of every limit.

The keys are those of the vocabulary. `device:` says on which device times were recorded,
`tolerance:` by what share of a bound they may lie beyond it, `recorded:` what else is known of the
recording (when, reason, device, versions). `contracts:` holds limits by name, such as tests by node
id: they are added to those of the whole file, and take their places; null takes one away.
`history:` is what updates wrote.

A file is text of someone else: it is read without building objects, its size, depth and aliases are
bounded, and whatever is wrong is said with the file's name and line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtraceap.contracts.limits import Contract, Limit
from torchtraceap.contracts.measures.vocabulary import MEASURES, near_match
from torchtraceap.core.aliases import PathLike
from torchtraceap.core.formatting import short_repr
from torchtraceap.core.records import dataclass
from torchtraceap.core.stored import read_stored
from torchtraceap.errors import OptionError, SchemaError

if TYPE_CHECKING:
    import yaml

__all__ = ["ContractError", "ContractFile", "parse_contracts", "read_contracts", "safe_loader"]

MOST_BYTES = 1 << 20
_MOST_NODES = 50_000
_DEEPEST = 32
_RECORDED = ("device", "when", "reason")
_OF_CONTRACT = ("device", "tolerance", "recorded")
_OF_FILE = (*_OF_CONTRACT, "contracts", "history")


class ContractError(OptionError):
    """A contract file that can't be used; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class ContractFile:
    """The content of a contract file."""

    path: str
    base: Contract
    """Limits that hold for every trace."""
    named: tuple[tuple[str, Contract], ...]
    """Contracts by name, each with what holds for every trace."""
    text: str = ""
    """The text of the file."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the contracts that have one."""
        return tuple(name for name, _ in self.named)

    def find(self, name: str) -> Contract | None:
        """Return the contract of that name, if there is one."""
        return dict(self.named).get(name)

    def contract(self, name: str | None = None) -> Contract:
        """Return the contract of that name; that of the whole file for None.

        Raises:
            ContractError: There is no such contract, or it has no limit.
        """
        found = self.base if name is None else self.find(name)
        if found is None:
            known = near_match(name, self.names) if self.names else "; the file names none"
            raise ContractError(f"{self.path}: no contract is called {name!r}{known}")
        if not len(found):
            listed = ", ".join(self.names)
            other = f"; name one of its contracts: {listed}" if listed and name is None else ""
            raise ContractError(f"{self.path}:1: the contract holds no limit{other}")
        return found


def read_contracts(path: PathLike) -> ContractFile:
    """Read a contract file.

    Raises:
        MissingFileError: There is no such file.
        ContractError: It can't be read, or something in it makes no sense; with its line.
    """
    try:
        data = read_stored(path, most=MOST_BYTES)
    except SchemaError as error:
        raise ContractError(str(error)) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ContractError(f"{path}:{line}: is no text in UTF-8") from None
    return parse_contracts(text, str(path))


def parse_contracts(text: str, path: str = "contract.yaml") -> ContractFile:
    """Parse the text of a contract file; see `read_contracts`."""
    reader = _Reader(path)
    root = reader.root(text)
    entries = reader.entries(root)
    base = reader.contract(entries, "", _OF_FILE)
    named = []
    if "contracts" in entries:
        _, node = entries["contracts"]
        for name, (_, value) in reader.entries(node, "contracts").items():
            own = reader.contract(reader.entries(value, name), name, _OF_CONTRACT)
            named.append((name, base.without(own.empty_keys).merged(own)))
    if "history" in entries:
        history: Any = entries["history"][1]
        if history.id != "sequence":
            raise reader.error(history, "history is a list")
    return ContractFile(path, base, tuple(named), text)


Entries = dict[str, tuple["yaml.ScalarNode", "yaml.Node"]]


class _Reader:
    """Reads nodes; whatever is wrong is a ContractError with the line of the node."""

    def __init__(self, path: str) -> None:
        import yaml

        self._yaml = yaml
        self._path = path
        self._seen = 0

    def error(self, node: yaml.Node, message: str) -> ContractError:
        return ContractError(f"{self._path}:{line_of(node)}: {message}")

    def root(self, text: str) -> yaml.MappingNode:
        """Return the mapping of the whole file."""
        if strange := self._yaml.reader.Reader.NON_PRINTABLE.search(text):
            line = text[: strange.start()].count("\n") + 1
            raise ContractError(f"{self._path}:{line}: holds a character that YAML does not allow")
        try:
            node = self._yaml.compose(text, Loader=safe_loader())
        except self._yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
            problem = " ".join(str(getattr(error, "problem", None) or error).split())[:200]
            line = mark.line if mark is not None else 0
            written = "".join(text.splitlines()[line : line + 1])
            hint = ""
            if written.partition(":")[2].strip().startswith((">", "%", "@", "`")):
                hint = '; put the limit in quotes, as in ">=90%"'
            raise ContractError(f"{self._path}:{line + 1}: is no YAML: {problem}{hint}") from None
        except RecursionError:
            raise ContractError(f"{self._path}:1: is nested too deeply") from None
        if node is None:
            raise ContractError(f"{self._path}:1: holds no limit")
        if not isinstance(node, self._yaml.MappingNode):
            raise self.error(node, "is no contract: keys with limits are needed, such as syncs: 0")
        self._count(node, 0)
        found: yaml.MappingNode = node
        return found

    def _count(self, node: yaml.Node, depth: int) -> None:
        """Bound the depth and size of what a file with aliases stands for."""
        self._seen += 1
        if depth > _DEEPEST:
            raise self.error(node, "is nested too deeply")
        if self._seen > _MOST_NODES:
            raise self.error(node, "holds too much, or its aliases stand for it")
        if isinstance(node, self._yaml.CollectionNode):
            for below in node.value:
                # A sequence holds nodes, a mapping pairs of them.
                for each in below if isinstance(below, tuple) else (below,):
                    self._count(each, depth + 1)

    def entries(self, node: yaml.Node, of: str = "") -> Entries:
        """Return the entries of a mapping by key; keys have to be texts and unique."""
        if not isinstance(node, self._yaml.MappingNode):
            if of and isinstance(node, self._yaml.ScalarNode) and node.value == "":
                return {}
            raise self.error(node, f"{of or 'this'} is no mapping of keys to limits")
        found: Entries = {}
        for key, value in node.value:
            if not isinstance(key, self._yaml.ScalarNode):
                raise self.error(key, "a key is a word")
            if key.value in found:
                first = line_of(found[key.value][0])
                raise self.error(key, f"{key.value!r} is there already, in line {first}")
            found[key.value] = (key, value)
        return found

    def contract(self, entries: Entries, name: str, others: tuple[str, ...]) -> Contract:
        """Parse the limits among the entries, each by itself so that its line is known, and what
        is known of the recording."""
        limits: dict[str, Limit] = {}
        lines: dict[str, int] = {}
        for key, (key_node, value) in entries.items():
            if key in others:
                continue
            if key not in MEASURES:
                match = near_match(key, (*MEASURES, *others))
                message = f"{short_repr(key)} is nothing that can be measured{match}"
                raise self.error(key_node, message)
            try:
                found = Contract.parse({key: self.plain(value)}).limit(key)
            except ContractError:
                raise
            except OptionError as error:
                raise self.error(value, str(error)) from None
            lines[key] = line_of(key_node)
            if found is not None:
                limits[key] = found
        about: dict[str, Any] = {}
        if "recorded" in entries:
            for key, (_, node) in self.entries(entries["recorded"][1], "recorded").items():
                if key in _RECORDED:
                    about[key] = self._text(node, key)
        if "device" in entries:
            about["device"] = self._text(entries["device"][1], "device")
        if "tolerance" in entries:
            node = entries["tolerance"][1]
            about["tolerance"] = self.plain(node)
            try:
                Contract.parse({}, tolerance=about["tolerance"])
            except OptionError as error:
                raise self.error(node, str(error)) from None
        file_lines = tuple(lines.items())
        return Contract(
            tuple(limits.items()), name=name, file=self._path, lines=file_lines, **about
        )

    def _text(self, node: yaml.Node, key: str) -> str | None:
        if not isinstance(node, self._yaml.ScalarNode):
            raise self.error(node, f"{key} is a text")
        return str(node.value) or None

    def plain(self, node: yaml.Node) -> Any:
        """Return the value of a node in plain Python."""
        if isinstance(node, self._yaml.SequenceNode):
            return [self.plain(each) for each in node.value]
        if isinstance(node, self._yaml.MappingNode):
            return {key: self.plain(value) for key, (_, value) in self.entries(node).items()}
        loader = self._yaml.SafeLoader("")
        try:
            value = loader.construct_object(node)
        except (self._yaml.YAMLError, ValueError, OverflowError):
            raise self.error(node, f"{short_repr(node.value)} is no value of plain YAML") from None
        finally:
            loader.dispose()
        return value if isinstance(value, (bool, int, float, str, type(None))) else str(node.value)


def safe_loader() -> Any:
    """Return the loader of plain YAML: libyaml, which bounds its depth, or the slow one
    in Python."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def line_of(node: yaml.Node) -> int:
    """Return the line of a node, from 1."""
    return int(node.start_mark.line) + 1
