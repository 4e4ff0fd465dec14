"""Find sizes among plain arguments and rescale them to another batch size.

Most operators take sizes from their tensors. Views, tensor constructors, slices and the gradients
of slices take them as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from torchtraceap.lab.prediction.capture.batch_sizes import (
    Inner,
    Shape,
    rescaled_strides,
    resolve_sizes,
    view_shapes,
)

__all__ = ["MAKERS", "VIEWS", "CallSizes", "is_view_op", "keeps_sizes", "rescaled_arguments"]

MAKERS = frozenset(
    """
    zeros ones empty full rand randn randint empty_strided empty_permuted arange new_zeros new_ones
    new_empty new_full new_empty_strided expand repeat tile
    """.split()  # noqa: SIM905
)
"""Operators that create shapes that no tensor had before."""
_RESHAPES = frozenset(("view", "reshape", "_unsafe_view", "_reshape_alias"))
VIEWS = (
    frozenset(
        """
    adjoint alias as_strided chunk contiguous detach diagonal expand expand_as flatten
    lift_fresh movedim narrow permute ravel reshape_as select slice split split_with_sizes squeeze
    swapaxes swapdims t tensor_split transpose unbind unflatten unsqueeze view_as
    """.split()  # noqa: SIM905
    )
    | _RESHAPES
)
"""View operators, which launch nothing; the copies that some make keep their sizes."""
_WHOLE_SHAPES = ("input_sizes", "self_sizes", "input_size", "sizes", "size", "sym_size")
_MOST = 16
"""Limit on the candidates tried for one call."""

Numbers = dict[str, Any]
"""New values of arguments by name."""


@dataclass(frozen=True, slots=True)
class CallSizes:
    """The shapes and numbers of a call whose plain arguments are rescaled."""

    name: str
    """Operator without its namespace."""
    values: Mapping[str, Any]
    """Plain arguments by name."""
    shapes: Mapping[str, Shape]
    """Recorded shapes of the tensor arguments."""
    changed: Mapping[str, Shape]
    """New shapes of the tensor arguments."""
    batch: int
    to: int
    inner: Inner
    leading: Mapping[int, Set[int]]
    """New sizes of leading dimensions that scale, by recorded size."""
    known: Callable[[Shape], Iterable[Shape]]
    """Returns the new shapes that tensors of a recorded shape got so far."""

    @property
    def first(self) -> tuple[Shape, Shape]:
        """The recorded and the new shape of the first tensor; empty if there is none."""
        name = next(iter(self.shapes), "")
        return self.shapes.get(name, ()), self.changed.get(name, ())


def is_view_op(name: str) -> bool:
    """Return whether an operator is a view, which launches nothing."""
    return name in VIEWS


def keeps_sizes(name: str) -> bool:
    """Return whether an operator is a view whose sizes follow from its input alone, unlike
    `expand`."""
    return name in VIEWS and name not in MAKERS and name != "as_strided"


def rescaled_arguments(of: CallSizes) -> list[Numbers]:
    """Return the candidates for new arguments; one empty mapping if nothing changes."""
    return list(islice(_candidates(of), _MOST)) or [{}]


def _candidates(of: CallSizes) -> Iterator[Numbers]:
    name, values = of.name, of.values
    before, after = of.first
    if name in _RESHAPES:
        yield from _reshape_arguments(of, "size" if "size" in values else "shape")
    elif name == "expand":
        yield from ({"size": size} for size in _expand_sizes(before, after, values.get("size"), of))
    elif name == "arange":
        yield from _arange_arguments(of)
    elif name == "unflatten":
        yield from _unflatten_arguments(of)
    elif name in ("repeat", "tile"):
        key = "repeats" if name == "repeat" else "dims"
        yield from ({key: each} for each in _scaled_shapes(values.get(key), of))
    elif name in MAKERS or name.endswith("_backward") or name in ("sum_to_size", "as_strided"):
        yield from _shape_arguments(of)
    elif name in ("slice", "narrow", "split", "split_with_sizes"):
        yield {
            key: new
            for key in values
            if (new := _slice_argument(of, key, before, after)) is not None
        }
    elif name == "native_group_norm" and before and "N" in values:
        yield {"N": after[0]}


def _shape(value: Any) -> Shape | None:
    """Return a list of sizes as a shape, or None."""
    if not isinstance(value, (list, tuple)) or any(type(each) is not int for each in value):
        return None
    return tuple(value)


def _reshape_arguments(of: CallSizes, key: str) -> Iterator[Numbers]:
    before, after = of.first
    size = _shape(of.values.get(key))
    elements = 1
    for each in before:
        elements *= each
    whole = None if size is None else resolve_sizes(size, elements)
    if whole is None:
        return
    options = dict.fromkeys(
        each for each, _ in view_shapes(before, after, whole, of.batch, of.inner)
    )
    for found in _prefer_known(whole, options, of):
        numbers: Numbers = {key: found}
        stride = _shape(of.values.get("stride"))
        if stride is not None and len(stride) == len(whole):
            numbers["stride"] = rescaled_strides(whole, stride, found)
        yield numbers


def _prefer_known(shape: Shape, options: Iterable[Shape], of: CallSizes) -> list[Shape]:
    """Keep the options that tensors of this shape already became, or all if none did."""
    every, known = list(options), set(of.known(shape))
    return [each for each in every if each in known] or every


def _expand_sizes(before: Shape, after: Shape, value: Any, of: CallSizes) -> Iterator[Shape]:
    """Yield sizes for `expand`: existing dimensions follow the tensor, others are new."""
    size = _shape(value)
    if size is None:
        return
    offset = len(size) - len(before)
    kept: list[int | None] = []
    for place, wanted in enumerate(size):
        own = before[place - offset] if place >= offset else 1
        kept.append(None if own == 1 and wanted != -1 else after[place - offset])
    whole = tuple(
        before[place - offset] if each == -1 and place >= offset else each
        for place, each in enumerate(size)
    )
    for made in _created_shapes(whole, of):
        yield tuple(new if own is None else own for own, new in zip(kept, made, strict=True))


def _created_shapes(shape: Shape, of: CallSizes) -> Iterator[Shape]:
    """Yield new shapes for one given as numbers.

    A known tensor of that shape decides; otherwise any dimension as large as the batch may scale,
    the first one first.
    """
    known = list(of.known(shape))
    if known:
        yield from known
        return
    yield from _scaled_shapes(shape, of)


def _scaled_shapes(value: Any, of: CallSizes) -> Iterator[Shape]:
    shape = _shape(value)
    if shape is None:
        return
    became = {size: sorted(found) for size, found in of.leading.items() if size > 1}
    became[of.batch] = [of.to]
    places = [place for place, size in enumerate(shape) if size in became][:4]
    options = [(*became[shape[place]], shape[place]) for place in places]

    def one_scales(chosen: Shape) -> bool:
        return sum(n != shape[place] for place, n in zip(places, chosen, strict=True)) == 1

    for chosen in sorted(product(*options), key=one_scales, reverse=True):
        found = list(shape)
        for place, size in zip(places, chosen, strict=True):
            found[place] = size
        yield tuple(found)


def _arange_arguments(of: CallSizes) -> Iterator[Numbers]:
    """Yield arguments of `arange`, which counts to the batch size or to a multiple of it."""
    end, start = of.values.get("end"), of.values.get("start", 0)
    if type(end) is not int or end <= 0 or start not in (0, None):
        return
    step = of.values.get("step", 1)
    if type(step) is int and step > 1 and end == step * of.batch:
        yield {"end": step * of.to}
        return
    if end == of.batch:
        yield {"end": of.to}
    yield {"end": end}


def _unflatten_arguments(of: CallSizes) -> Iterator[Numbers]:
    before, after = of.first
    dim, sizes = of.values.get("dim"), _shape(of.values.get("sizes"))
    if type(dim) is not int or sizes is None or not -len(before) <= dim < len(before):
        return
    whole = resolve_sizes(sizes, before[dim])
    if whole is not None:
        found = view_shapes((before[dim],), (after[dim],), whole, of.batch, of.inner)
        yield from ({"sizes": each} for each, _ in found)


def _shape_arguments(of: CallSizes) -> Iterator[Numbers]:
    """Yield new values of an argument that is the shape of a tensor."""
    key = next((key for key in _WHOLE_SHAPES if _shape(of.values.get(key)) is not None), None)
    if key is None:
        if of.name.startswith("native_group_norm") and type(of.values.get("N")) is int:
            yield {"N": of.first[1][0]}
        return
    shape = _shape(of.values[key]) or ()
    stride = _shape(of.values.get("stride"))
    for made in _created_shapes(shape, of):
        numbers: Numbers = {key: made}
        if stride is not None and len(stride) == len(shape):
            numbers["stride"] = rescaled_strides(shape, stride, made)
        yield numbers


def _slice_argument(of: CallSizes, key: str, before: Shape, after: Shape) -> Any:
    """Scale the bounds of a slice along the dimension of the batch."""
    dim = of.values.get("dim", 0)
    if key not in ("start", "end", "length", "split_size", "split_sizes") or type(dim) is not int:
        return None
    if not -len(before) <= dim < len(before) or before[dim] == after[dim]:
        return None

    def scaled(value: Any) -> Any:
        whole = type(value) is int and abs(value) <= before[dim] and value % of.batch == 0
        return value // of.batch * of.to if whole else value

    value = of.values[key]
    return [scaled(each) for each in value] if isinstance(value, (list, tuple)) else scaled(value)
