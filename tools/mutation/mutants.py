"""Small wrong changes to Python sources: which there are, and a sample that stays the same when
lines move."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_PAIRS = [("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("any", "all"),
          ("floor", "ceil"), ("left", "right")]  # fmt: skip
_OPPOSITE = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
_MASK_CALLS = {"flatnonzero", "nonzero", "count_nonzero", "where"}
_DELETABLE = (ast.AugAssign, ast.Continue, ast.Break, ast.Raise, ast.Delete)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SHOWN = 100  # characters of a change in a report


@dataclass(frozen=True)
class Mutant:
    """One change to one file: the `index`-th that its source allows."""

    path: Path
    index: int
    line: int
    lines: tuple[int, ...]  # those that run when the change matters
    names: tuple[str, ...]  # outside functions: the names whose users see the change
    function: str
    operator: str
    change: str

    @property
    def key(self) -> str:
        """What it is, without line numbers."""
        return f"{self.path.name}::{self.function}::{self.operator}::{self.change}"


@dataclass
class _Site:
    operator: str
    holder: ast.AST  # the node with the changed field
    field: str
    at: int | None  # index where the field is a list
    new: ast.AST
    statement: ast.stmt
    function: tuple[ast.AST, ...]  # classes and functions around it, outermost first

    def current(self) -> ast.AST:
        value = getattr(self.holder, self.field)
        return value if self.at is None else value[self.at]

    def put(self, node: ast.AST) -> None:
        if self.at is None:
            setattr(self.holder, self.field, node)
        else:
            getattr(self.holder, self.field)[self.at] = node

    def apply(self) -> None:
        self.put(self.new)


def mutants_of(path: Path, shown_path: Path) -> list[Mutant]:
    """All mutants of a file, in the order of its text."""
    source = path.read_text(encoding="utf-8")
    found = []
    for index, site in enumerate(_sites(ast.parse(source))):
        old = site.current()
        before = _texts(site)
        site.apply()
        after = _texts(site)
        site.put(old)
        inside = [n for n in site.function if isinstance(n, _FUNCTIONS)]
        line = getattr(old, "lineno", getattr(site.holder, "lineno", site.statement.lineno))
        found.append(
            Mutant(
                path=shown_path,
                index=index,
                line=line,
                lines=_lines(site) if inside else (),
                names=() if inside else _names(site),
                function=".".join(_around(site)),
                operator=site.operator,
                change=_change(before, after),
            )
        )
    return found


def mutated(source: str, index: int) -> ast.Module:
    """The syntax tree of a source with its `index`-th change made."""
    tree = ast.parse(source)
    for number, site in enumerate(_sites(tree)):
        if number == index:
            site.apply()
            return ast.fix_missing_locations(tree)
    raise IndexError(index)


def draw(mutants: list[Mutant], count: int, seed: int, least: int = 4) -> list[Mutant]:
    """A sample over all files: `least` of each, the rest by size.

    Which are drawn hangs on the seed and on what a mutant is, not on its line: edits elsewhere
    leave the sample as it is.
    """
    by_path: dict[Path, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_path[mutant.path].append(mutant)
    shares = {path: min(least, len(of_path)) for path, of_path in by_path.items()}
    wanted = max(count - sum(shares.values()), 0)
    for path, of_path in by_path.items():
        more = round(wanted * len(of_path) / len(mutants))
        shares[path] = min(shares[path] + more, len(of_path))
    chosen = []
    for path in sorted(by_path):
        ranked = sorted(
            zip(_ranks(by_path[path], seed), by_path[path], strict=True), key=lambda r: r[0]
        )
        drawn = [mutant for _, mutant in ranked[: shares[path]]]
        chosen += sorted(drawn, key=lambda mutant: mutant.index)
    return chosen


def _ranks(mutants: list[Mutant], seed: int) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for mutant in mutants:
        seen[mutant.key] += 1
        text = f"{seed}:{mutant.key}:{seen[mutant.key]}"
        yield hashlib.sha256(text.encode()).hexdigest()


# ------------------------------------------------------------------------------- where


def _sites(tree: ast.Module) -> Iterator[_Site]:
    for number, statement in enumerate(tree.body):
        yield from _of_statement(tree, "body", number, statement, ())


def _of_statement(
    holder: ast.AST, field: str, at: int | None, statement: ast.stmt, around: tuple[ast.AST, ...]
) -> Iterator[_Site]:
    if isinstance(statement, ast.Assert | ast.Import | ast.ImportFrom) or _for_types(statement):
        return
    if _is_deletable(statement):
        yield _Site("delete", holder, field, at, ast.Pass(), statement, around)
    if isinstance(statement, ast.Raise):
        return
    if isinstance(statement, ast.Return) and _value(statement) is not None:
        yield _Site("return", statement, "value", None, ast.Constant(None), statement, around)
    inner = (*around, statement) if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)) else around
    for name, value in ast.iter_fields(statement):
        if name in ("annotation", "returns", "decorator_list", "bases", "targets", "target"):
            continue
        for place, child in _children(value):
            if isinstance(child, ast.stmt):
                yield from _of_statement(statement, name, place, child, inner)
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                for number, below in enumerate(child.body):
                    yield from _of_statement(child, "body", number, below, inner)
            elif isinstance(child, ast.AST):
                yield from _of_expression(statement, name, place, child, statement, around)


def _of_expression(
    holder: ast.AST,
    field: str,
    at: int | None,
    node: ast.AST,
    statement: ast.stmt,
    around: tuple[ast.AST, ...],
) -> Iterator[_Site]:
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "strict"):
        return
    changes = [*_changes(node, holder, field)]
    if not around and isinstance(statement, ast.Assign | ast.AnnAssign):
        changes += _halved(node)
    for operator, new in changes:
        yield _Site(operator, holder, field, at, new, statement, around)
    for name, value in ast.iter_fields(node):
        if name != "annotation":
            for place, child in _children(value):
                if isinstance(child, ast.AST):
                    yield from _of_expression(node, name, place, child, statement, around)


def _children(value: object) -> Iterator[tuple[int | None, object]]:
    if isinstance(value, list):
        yield from enumerate(value)
    else:
        yield None, value


def _for_types(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test)


def _value(statement: ast.Return) -> ast.expr | None:
    is_none = isinstance(statement.value, ast.Constant) and statement.value.value is None
    return None if is_none else statement.value


def _is_deletable(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return all(isinstance(t, ast.Subscript | ast.Attribute) for t in statement.targets)
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return is_call or isinstance(statement, _DELETABLE)


# ------------------------------------------------------------------------------- what


def _changes(node: ast.AST, holder: ast.AST, field: str) -> Iterator[tuple[str, ast.AST]]:
    is_negation = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    if field in ("test", "ifs") and isinstance(node, ast.expr) and not is_negation:
        yield "condition", ast.UnaryOp(ast.Not(), node)
    if _is_mask(node, holder, field):
        yield "mask", ast.UnaryOp(ast.Invert(), node)
    change = _CHANGES.get(type(node))
    if change is not None:
        yield from change(node)


def _is_mask(node: ast.AST, holder: ast.AST, field: str) -> bool:
    if not isinstance(node, ast.expr) or isinstance(node, ast.UnaryOp):
        return False
    if isinstance(holder, ast.keyword):
        return holder.arg == "mask"
    is_index = isinstance(holder, ast.Subscript) and field == "slice"
    if is_index:
        name = ast.unparse(node)
        return isinstance(node, ast.Compare) or name.endswith(("mask", "keep", "kept", "known"))
    called = isinstance(holder, ast.Call) and field == "args" and holder.args[0] is node
    return called and getattr(holder.func, "attr", "") in _MASK_CALLS  # type: ignore[attr-defined]


def _compare(node: ast.Compare) -> Iterator[tuple[str, ast.AST]]:
    for place, operation in enumerate(node.ops):
        new = copy.copy(node)
        new.ops = [*node.ops]
        new.ops[place] = _COMPARISONS[type(operation)]()
        yield "compare", new


def _arithmetic(node: ast.BinOp) -> Iterator[tuple[str, ast.AST]]:
    if type(node.op) in _ARITHMETIC:
        yield "arithmetic", ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)


def _boolean(node: ast.BoolOp) -> Iterator[tuple[str, ast.AST]]:
    yield "and/or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)


def _unary(node: ast.UnaryOp) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node.op, ast.Not | ast.Invert):
        yield ("condition" if isinstance(node.op, ast.Not) else "mask"), node.operand
    elif isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield "arithmetic", node.operand


def _constant(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", ast.Constant(not value)
    elif isinstance(value, int | float):
        yield "constant", ast.Constant(value * 2 or type(value)(1))
    elif isinstance(value, str) and value in ("left", "right"):
        yield "opposite", ast.Constant(_OPPOSITE[value])


def _halved(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """A named number has two sides: half of it beside twice of it."""
    value = getattr(node, "value", None)
    if isinstance(node, ast.Constant) and type(value) in (int, float) and value:
        yield "constant", ast.Constant(value // 2 if isinstance(value, int) else value / 2)


def _slice(node: ast.Slice) -> Iterator[tuple[str, ast.AST]]:
    one = ast.Constant(1)
    if node.lower is not None:
        yield "slice", ast.Slice(ast.BinOp(node.lower, ast.Add(), one), node.upper, node.step)
    if node.upper is not None:
        yield "slice", ast.Slice(node.lower, ast.BinOp(node.upper, ast.Sub(), one), node.step)


def _call(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    function = copy.copy(node.func)
    field = {ast.Name: "id", ast.Attribute: "attr"}.get(type(function), "")
    name = getattr(function, field, "")
    if name in _OPPOSITE:
        setattr(function, field, _OPPOSITE[name])
        yield "opposite", ast.Call(function, node.args, node.keywords)


_CHANGES: dict[type[ast.AST], Callable[..., Iterator[tuple[str, ast.AST]]]] = {
    ast.Compare: _compare, ast.BinOp: _arithmetic, ast.BoolOp: _boolean, ast.UnaryOp: _unary,
    ast.Constant: _constant, ast.Slice: _slice, ast.Call: _call,
}  # fmt: skip


# ------------------------------------------------------------------- what runs, what is shown


def _lines(site: _Site) -> tuple[int, ...]:
    """Lines of the statement, without the statements inside it."""
    last = site.statement.end_lineno or site.statement.lineno
    for name in ("body", "handlers", "cases"):
        below = getattr(site.statement, name, None)
        if below and name != "cases":
            last = max(site.statement.lineno, below[0].lineno - 1)
    return tuple(range(site.statement.lineno, last + 1))


def _around(site: _Site) -> Iterator[str]:
    """Names of the classes and functions around a place; a default belongs to its function."""
    for node in (*site.function, site.statement):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield node.name


def _names(site: _Site) -> tuple[str, ...]:
    if isinstance(site.statement, (*_FUNCTIONS, ast.ClassDef)):
        return (site.statement.name,)
    targets = getattr(site.statement, "targets", [getattr(site.statement, "target", None)])
    return tuple(ast.unparse(target) for target in targets if isinstance(target, ast.expr))


def _texts(site: _Site) -> tuple[str, str]:
    """The changed place with what stands around it, and alone."""
    alone = _unparsed(site.current())
    is_compound = isinstance(site.holder, ast.stmt) and hasattr(site.holder, "body")
    return (alone if is_compound else _unparsed(site.holder)), alone


def _change(before: tuple[str, str], after: tuple[str, str]) -> str:
    wide = max(len(before[0]), len(after[0])) > _SHOWN
    old, new = before[wide], after[wide]
    return f"{old[: 2 * _SHOWN]} -> {new[: 2 * _SHOWN]}"


def _unparsed(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())
