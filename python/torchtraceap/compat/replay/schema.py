"""The recorded operator in torch's own registry: which overload was called."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from torchtraceap.compat.replay.call import NotReplayableError, RecordedCall, quote
from torchtraceap.core.records import dataclass
from torchtraceap.errors import MissingDependencyError

__all__ = ["Argument", "Operator", "match_operator", "registered_overloads", "require_torch"]

_PLAIN = {
    "Tensor": "tensor",
    "int": "int",
    "SymInt": "int",
    "float": "float",
    "SymFloat": "float",
    "bool": "bool",
    "SymBool": "bool",
    "complex": "complex",
    "number": "number",
    "Scalar": "number",
    "str": "str",
    "Device": "device",
    "Generator": "generator",
    "ScalarType": "dtype",
    "Layout": "layout",
    "MemoryFormat": "memory_format",
}
_LISTS = {
    "tensor": "tensors",
    "int": "ints",
    "float": "floats",
    "bool": "bools",
    "number": "numbers",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a schema."""

    name: str
    kind: str
    """Such as "tensor", "tensors", "optional_tensors", "int", "ints", "dtype"; else "other"."""
    type_name: str
    optional: bool
    keyword_only: bool
    has_default: bool
    default: Any
    written: bool
    """The operator writes to it."""
    length: int | None = None
    """Fixed length of a list, such as 4 for `int[4] padding`."""

    @property
    def takes_tensors(self) -> bool:
        return self.kind in ("tensor", "tensors", "optional_tensors")

    @property
    def is_output(self) -> bool:
        """Only where the result goes: `out=`."""
        return self.written and self.keyword_only


@dataclass(frozen=True, slots=True)
class Operator:
    """An overload of a registered operator, called as `torch.ops.<namespace>.<name>.<overload>`."""

    namespace: str
    name: str
    overload: str
    arguments: tuple[Argument, ...]
    schema: str

    @property
    def qualified(self) -> str:
        return f"{self.namespace}::{self.name}"

    @property
    def full_name(self) -> str:
        """The name as torch spells it: `aten::add.Tensor`."""
        return f"{self.qualified}.{self.overload}" if self.overload else self.qualified

    @property
    def base_name(self) -> str:
        """The name without namespace and without the underscore of the in-place form."""
        in_place = self.name.endswith("_") and not self.name.endswith("__")
        return self.name[:-1] if in_place else self.name


def require_torch() -> Any:
    """The module torch.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingDependencyError(
            "replay needs PyTorch, whose registry knows the operators: pip install torch"
        ) from None
    return torch


def match_operator(call: RecordedCall) -> Operator:
    """The overload whose argument kinds fit what was recorded.

    The profiler records all arguments of a call, defaults included, so their number is that of
    the schema. An operator that has gained arguments since is taken with their defaults.

    Raises:
        NotReplayableError: The name is no registered operator, or no overload fits.
    """
    overloads = registered_overloads(call.name)
    if not overloads:
        raise NotReplayableError(f"{quote(call.name)} is no operator of this version of torch")
    count = len(call.types)
    same = [op for op in overloads if len(op.arguments) == count]
    longer = [
        op
        for op in overloads
        if len(op.arguments) > count and all(each.has_default for each in op.arguments[count:])
    ]
    for candidates in (same, longer):
        scored = [(_fit(op, call), op) for op in candidates]
        fitting = [(fit, op) for fit, op in scored if fit is not None]
        if fitting:
            return max(fitting, key=lambda pair: pair[0])[1]
    kinds = ", ".join(quote(text, 40)[1:-1] or "None" for text in call.types[:12])
    raise NotReplayableError(
        f"no overload of {call.name} in this version of torch takes the {count} recorded "
        f"arguments ({kinds})"
    )


@lru_cache(maxsize=4096)
def registered_overloads(name: str) -> tuple[Operator, ...]:
    """Return the operators of torch's dispatcher of this name, in the order of registration.

    Builtins of TorchScript (`aten::save`) are not among them: the profiler records none.
    """
    torch = require_torch()
    schemas = torch._C._jit_get_schemas_for_operator(name)
    operators = (_operator(schema) for schema in schemas)
    return tuple(
        op
        for op in operators
        if (op.overload == "" or op.overload.isidentifier())
        and torch._C._dispatch_has_kernel(op.full_name)
    )


def _operator(schema: Any) -> Operator:
    namespace, _, name = schema.name.partition("::")
    arguments = []
    for argument in schema.arguments:
        text = str(argument.real_type if hasattr(argument, "real_type") else argument.type)
        kind, optional = _kind_of(text)
        has_default = bool(argument.has_default_value())
        arguments.append(
            Argument(
                argument.name,
                kind,
                text,
                optional,
                argument.kwarg_only,
                has_default,
                argument.default_value if has_default else None,
                argument.alias_info is not None and argument.alias_info.is_write,
                argument.N,
            )
        )
    return Operator(namespace, name, schema.overload_name, tuple(arguments), str(schema))


def _kind_of(text: str) -> tuple[str, bool]:
    """Return the kind, and whether None is allowed."""
    inner = _inside(text, "Optional")
    optional, text = inner is not None, inner or text
    element = _inside(text, "List")
    if element is None:
        return _PLAIN.get(text, "other"), optional
    if _inside(element, "Optional") == "Tensor":
        return "optional_tensors", optional
    return _LISTS.get(_PLAIN.get(element, "other"), "other"), optional


def _inside(text: str, outer: str) -> str | None:
    found = text.startswith(outer + "[") and text.endswith("]")
    return text[len(outer) + 1 : -1] if found else None


# How well a kind of argument fits what was recorded; a pair that is not listed does not fit.
_FIT_TENSOR = {"tensor": 3}
_FIT_TENSORS = {"tensors": 3, "optional_tensors": 2}
_FIT_BOOL = {"bool": 3, "number": 2}
_FIT_INT = {
    "int": 3,
    "number": 3,
    "dtype": 3,
    "layout": 3,
    "memory_format": 3,
    "float": 1,
    "complex": 1,
}
_FIT_FLOAT = {"float": 3, "number": 3, "complex": 1}
_FIT_COMPLEX = {"complex": 3, "number": 3}
_FIT_SCALAR = {**_FIT_INT, **_FIT_BOOL, "float": 3, "complex": 2}
_FIT_LIST = {"ints": 3, "floats": 3, "bools": 3, "numbers": 3, "tensors": 2, "optional_tensors": 2}
_FIT_LIST_OF = {
    "bool": {"bools": 3, "numbers": 1},
    "int": {"ints": 3, "numbers": 2, "floats": 1},
    "float": {"floats": 3, "numbers": 3},
    "complex": {"numbers": 3},
}
_FIT_ABSENT = {"generator": 2, "device": 2, "str": 2, "optional_tensors": 2, "tensor": 1}
_FIT_BY_TYPE = {
    "Int": _FIT_INT,
    "Double": _FIT_FLOAT,
    "Bool": _FIT_BOOL,
    "ComplexDouble": _FIT_COMPLEX,
    "Scalar": _FIT_SCALAR,
}


def _fit(operator: Operator, call: RecordedCall) -> int | None:
    """Return how well the arguments of an operator fit what was recorded; None if one does not."""
    total = 0
    recorded = zip(operator.arguments, call.types, call.values, strict=False)
    for argument, type_text, value in recorded:
        fit: int | None
        if type_text:
            fit = _fit_table(type_text, value).get(argument.kind)
        elif value is not None:
            fit = 3 if argument.kind in ("str", "device") else None
        elif argument.optional:
            fit = 3
        else:
            # Versions without values left the types of lists and strings out as well.
            any_kind = argument.kind == "other" or not call.has_values
            fit = _FIT_ABSENT.get(argument.kind, 1 if any_kind else None)
        if fit is None:
            return None
        total += fit
    return total


def _fit_table(type_text: str, value: Any) -> dict[str, int]:
    if type_text == "TensorList":
        return _FIT_TENSORS
    if type_text in ("ScalarList", "GenericList"):
        kinds = {type(each).__name__ for each in value} if isinstance(value, Sequence) else set()
        widest = next((kind for kind in ("complex", "float", "int", "bool") if kind in kinds), "")
        return _FIT_LIST_OF.get(widest, _FIT_LIST)
    by_type = _FIT_BY_TYPE.get(type_text)
    if by_type is None:
        return _FIT_TENSOR
    by_value = {"bool": "Bool", "int": "Int", "float": "Double", "complex": "ComplexDouble"}
    return _FIT_BY_TYPE.get(by_value.get(type(value).__name__, ""), by_type)
