"""Sizes among the plain arguments of an operator, and what they become at another batch size.

Most operators take sizes from their tensors. These take them as numbers: views, makers of tensors,
pieces of a dimension, gradients of pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from torchtraceap.lab.prediction.capture.batch_sizes import (
    Inner,
    Shape,
    changed_strides,
    viewed,
    whole_sizes,
)

__all__ = ["MAKERS", "VIEWS", "Sizes", "changed_numbers", "sees_through", "turns"]

MAKERS = frozenset(
    """
    zeros ones empty full rand randn randint empty_strided empty_permuted arange new_zeros new_ones
    new_empty new_full new_empty_strided expand repeat tile
    """.split()  # noqa: SIM905
)
"""They give sizes that no tensor has before."""
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
"""They launch nothing; a copy that some of them may make is of the same sizes."""
_WHOLE_SHAPES = ("input_sizes", "self_sizes", "input_size", "sizes", "size", "sym_size")
_MOST = 16
"""Possibilities for one call that are looked at."""

Numbers = dict[str, Any]
"""New values of arguments by name."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is known of a call when its numbers are looked at."""

    name: str
    """Of the operator, without its namespace."""
    values: Mapping[str, Any]
    """Plain arguments by name."""
    shapes: Mapping[str, Shape]
    """Of the tensors among the arguments, as recorded."""
    changed: Mapping[str, Shape]
    """What these become."""
    batch: int
    to: int
    inner: Inner
    leading: Mapping[int, Set[int]]
    """What leading dimensions of a size became, where they scale."""
    known: Callable[[Shape], Iterable[Shape]]
    """What tensors of a shape became so far."""

    @property
    def first(self) -> tuple[Shape, Shape]:
        """The first tensor, as recorded and as it becomes; a number if there is none."""
        name = next(iter(self.shapes), "")
        return self.shapes.get(name, ()), self.changed.get(name, ())


def sees_through(name: str) -> bool:
    """The operator launches nothing: its result is its input, looked at in another way."""
    return name in VIEWS


def turns(name: str) -> bool:
    """Such an operator whose sizes are those of its input: of `expand` they are anyone's."""
    return name in VIEWS and name not in MAKERS and name != "as_strided"


def changed_numbers(of: Sizes) -> list[Numbers]:
    """What the numbers may become; one of no numbers where nothing has to change."""
    return list(islice(_possible(of), _MOST)) or [{}]


def _possible(of: Sizes) -> Iterator[Numbers]:
    name, values = of.name, of.values
    before, after = of.first
    if name in _RESHAPES:
        yield from _reshaped(of, "size" if "size" in values else "shape")
    elif name == "expand":
        yield from ({"size": size} for size in _expanded(before, after, values.get("size"), of))
    elif name == "arange":
        yield from _counted(of)
    elif name == "unflatten":
        yield from _unflattened(of)
    elif name in ("repeat", "tile"):
        key = "repeats" if name == "repeat" else "dims"
        yield from ({key: each} for each in _times_batch(values.get(key), of))
    elif name in MAKERS or name.endswith("_backward") or name in ("sum_to_size", "as_strided"):
        yield from _whole(of)
    elif name in ("slice", "narrow", "split", "split_with_sizes"):
        yield {key: new for key in values if (new := _piece(of, key, before, after)) is not None}
    elif name == "native_group_norm" and before and "N" in values:
        yield {"N": after[0]}


def _shape(value: Any) -> Shape | None:
    """A list of sizes."""
    if not isinstance(value, (list, tuple)) or any(type(each) is not int for each in value):
        return None
    return tuple(value)


def _reshaped(of: Sizes, key: str) -> Iterator[Numbers]:
    before, after = of.first
    size = _shape(of.values.get(key))
    elements = 1
    for each in before:
        elements *= each
    whole = None if size is None else whole_sizes(size, elements)
    if whole is None:
        return
    options = dict.fromkeys(each for each, _ in viewed(before, after, whole, of.batch, of.inner))
    for found in _had_before(whole, options, of):
        numbers: Numbers = {key: found}
        stride = _shape(of.values.get("stride"))
        if stride is not None and len(stride) == len(whole):
            numbers["stride"] = changed_strides(whole, stride, found)
        yield numbers


def _had_before(shape: Shape, options: Iterable[Shape], of: Sizes) -> list[Shape]:
    """If tensors of the shape became some of these, those; else all."""
    every, known = list(options), set(of.known(shape))
    return [each for each in every if each in known] or every


def _expanded(before: Shape, after: Shape, value: Any, of: Sizes) -> Iterator[Shape]:
    """Dimensions that are there have the sizes of the tensor; others are made."""
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
    for made in _made(whole, of):
        yield tuple(new if own is None else own for own, new in zip(kept, made, strict=True))


def _made(shape: Shape, of: Sizes) -> Iterator[Shape]:
    """What a shape that is given in numbers may become: that of tensors that had it, else any
    dimension of the size of the batch may be it, the first one first."""
    known = list(of.known(shape))
    if known:
        yield from known
        return
    yield from _times_batch(shape, of)


def _times_batch(value: Any, of: Sizes) -> Iterator[Shape]:
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


def _counted(of: Sizes) -> Iterator[Numbers]:
    """`arange`: as many as the batch; or, with a step, where each member of it begins."""
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


def _unflattened(of: Sizes) -> Iterator[Numbers]:
    before, after = of.first
    dim, sizes = of.values.get("dim"), _shape(of.values.get("sizes"))
    if type(dim) is not int or sizes is None or not -len(before) <= dim < len(before):
        return
    whole = whole_sizes(sizes, before[dim])
    if whole is not None:
        found = viewed((before[dim],), (after[dim],), whole, of.batch, of.inner)
        yield from ({"sizes": each} for each, _ in found)


def _whole(of: Sizes) -> Iterator[Numbers]:
    """Arguments that are the shape of a tensor."""
    key = next((key for key in _WHOLE_SHAPES if _shape(of.values.get(key)) is not None), None)
    if key is None:
        if of.name.startswith("native_group_norm") and type(of.values.get("N")) is int:
            yield {"N": of.first[1][0]}
        return
    shape = _shape(of.values[key]) or ()
    stride = _shape(of.values.get("stride"))
    for made in _made(shape, of):
        numbers: Numbers = {key: made}
        if stride is not None and len(stride) == len(shape):
            numbers["stride"] = changed_strides(shape, stride, made)
        yield numbers


def _piece(of: Sizes, key: str, before: Shape, after: Shape) -> Any:
    """Part of a dimension that the batch is in: as large a part as it was."""
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
