"""Locates the batch in sizes, and rescales the sizes among a call's arguments to another batch.

Most operators take sizes from their tensors. Views, tensor constructors, slices and the gradients
of slices take them as numbers.

Note [Digits]: elements are counted like the digits of a number: a dimension is a digit, its size
the radix, and the product of the later sizes its place value. A batch of 4 in a dimension of 48 = 4
x 12 is a digit of radix 4 at place value 12. A view cuts the same number at other places, and the
batch moves to the dimension that covers its digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import Any, TypeAlias

__all__ = [
    "MAKERS",
    "VIEWS",
    "CallSizes",
    "Shape",
    "contiguous_strides",
    "keeps_sizes",
    "rescaled_arguments",
    "rescaled_strides",
    "resolve_sizes",
    "view_shapes",
]

Shape: TypeAlias = tuple[int, ...]
_Inner: TypeAlias = Mapping[int, Set[int]]
"""Place values at which the batch was seen, by size of the dimension."""


def contiguous_strides(shape: Shape) -> Shape:
    """Return row-major strides."""
    return tuple(prod(max(size, 1) for size in shape[place + 1 :]) for place in range(len(shape)))


def rescaled_strides(shape: Shape, strides: Shape, changed: Shape) -> Shape:
    """Return the strides of a tensor whose sizes changed, scaled with the rows between two
    elements."""
    found = []
    for own in strides:
        stride = own
        for size, other, to in zip(shape, strides, changed, strict=True):
            if 0 < other < own and size > 0 and size != to:
                stride = stride // size * to if stride % size == 0 else stride * to // size
        found.append(stride)
    return tuple(found)


def resolve_sizes(sizes: Shape, elements: int) -> Shape | None:
    """Fill in the -1 of a view's sizes; None if they don't fit the number of elements."""
    if -1 not in sizes:
        return sizes if prod(sizes) == elements else None
    known = prod(size for size in sizes if size != -1)
    if sizes.count(-1) > 1 or known <= 0 or elements % known:
        return None
    return tuple(elements // known if size == -1 else size for size in sizes)


def view_shapes(
    shape: Shape, changed: Shape, sizes: Shape, batch: int, inner: _Inner
) -> Iterator[tuple[Shape, dict[int, int]]]:
    """Yield the new sizes that a view may have; see Note [Digits].

    Args:
        shape: Recorded shape of the viewed tensor.
        changed: New shape of that tensor.
        sizes: Recorded sizes of the view, without -1.
        batch: Recorded batch size.
        inner: Place values at which the batch was seen, by size of the dimension.

    Yields:
        Sizes, and by size of a dimension the place value of the batch in it.
    """
    digits = []  # place value, radix and new radix of the batch in each dimension, as far as known
    for place, (size, to) in enumerate(zip(shape, changed, strict=True)):
        if size == to:
            continue
        value = prod(shape[place + 1 :])
        times = size // batch
        if size == batch or size % batch or to % times:
            options = [(value, size, to)]
        else:
            within = sorted(inner.get(size, ()), reverse=True)
            within = within or [each for each in range(times, 0, -1) if times % each == 0]
            options = [(value * each, batch, to // times) for each in within]
        digits.append(options)
    values = contiguous_strides(sizes)
    for chosen in product(*digits):
        homes = [_covering_dimensions(sizes, values, value, radix) for value, radix, _ in chosen]
        for places in product(*homes):
            found, seen = list(sizes), {}
            for place, (value, radix, to) in zip(places, chosen, strict=True):
                found[place] = found[place] // radix * to
                if sizes[place] != radix:
                    seen[sizes[place]] = value // values[place]
            yield tuple(found), seen


def _covering_dimensions(sizes: Shape, values: Shape, value: int, radix: int) -> list[int]:
    """Return the dimensions of a view that cover a digit, outermost first."""
    found = []
    for place, (size, low) in enumerate(zip(sizes, values, strict=True)):
        covers = low <= value and value * radix <= low * size
        if covers and value % low == 0 and (low * size) % (value * radix) == 0:
            found.append(place)
    exact = [place for place in found if sizes[place] == radix]
    return exact[:1] if radix == 1 and exact else found


# ------------------------------------------------------------------------------------- arguments

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
    inner: _Inner
    leading: Mapping[int, Set[int]]
    """New sizes of leading dimensions that scale, by recorded size."""
    known: Callable[[Shape], Iterable[Shape]]
    """Returns the new shapes that tensors of a recorded shape got so far."""

    @property
    def first(self) -> tuple[Shape, Shape]:
        """The recorded and the new shape of the first tensor; empty if there is none."""
        name = next(iter(self.shapes), "")
        return self.shapes.get(name, ()), self.changed.get(name, ())


def keeps_sizes(name: str) -> bool:
    """Return whether an operator is a view whose sizes follow from its input alone, unlike
    `expand`."""
    return name in VIEWS and name not in MAKERS and name != "as_strided"


def rescaled_arguments(of: CallSizes) -> list[dict[str, Any]]:
    """Return the candidates for new arguments by name; one empty mapping if nothing changes."""
    return list(islice(_candidates(of), _MOST)) or [{}]


def _candidates(of: CallSizes) -> Iterator[dict[str, Any]]:
    name, values = of.name, of.values
    before, after = of.first
    if name in _RESHAPES:
        yield from _reshape_arguments(of, "size" if "size" in values else "shape")
    elif name == "expand":
        yield from ({"size": size} for size in _expand_sizes(of))
    elif name == "arange":
        # It counts to the batch size or to a multiple of it.
        end, start, step = values.get("end"), values.get("start", 0), values.get("step", 1)
        if type(end) is not int or end <= 0 or start not in (0, None):
            return
        if type(step) is int and step > 1 and end == step * of.batch:
            yield {"end": step * of.to}
            return
        if end == of.batch:
            yield {"end": of.to}
        yield {"end": end}
    elif name == "unflatten":
        dim, sizes = values.get("dim"), _shape(values.get("sizes"))
        if type(dim) is not int or sizes is None or not -len(before) <= dim < len(before):
            return
        whole = resolve_sizes(sizes, before[dim])
        if whole is not None:
            found = view_shapes((before[dim],), (after[dim],), whole, of.batch, of.inner)
            yield from ({"sizes": each} for each, _ in found)
    elif name in ("repeat", "tile"):
        key = "repeats" if name == "repeat" else "dims"
        yield from ({key: each} for each in _scaled_shapes(values.get(key), of))
    elif name in MAKERS or name.endswith("_backward") or name in ("sum_to_size", "as_strided"):
        yield from _shape_arguments(of)
    elif name in ("slice", "narrow", "split", "split_with_sizes"):
        yield _slice_arguments(of)
    elif name == "native_group_norm" and before and "N" in values:
        yield {"N": after[0]}


def _shape(value: Any) -> Shape | None:
    """Return a list of sizes as a shape, or None."""
    if not isinstance(value, (list, tuple)) or any(type(each) is not int for each in value):
        return None
    return tuple(value)


def _reshape_arguments(of: CallSizes, key: str) -> Iterator[dict[str, Any]]:
    before, after = of.first
    size, stride = _shape(of.values.get(key)), _shape(of.values.get("stride"))
    whole = None if size is None else resolve_sizes(size, prod(before))
    if whole is None:
        return
    shapes = view_shapes(before, after, whole, of.batch, of.inner)
    options = list(dict.fromkeys(each for each, _ in shapes))
    known = set(of.known(whole))
    for found in [each for each in options if each in known] or options:
        numbers: dict[str, Any] = {key: found}
        if stride is not None and len(stride) == len(whole):
            numbers["stride"] = rescaled_strides(whole, stride, found)
        yield numbers


def _expand_sizes(of: CallSizes) -> Iterator[Shape]:
    """Yield sizes for `expand`: existing dimensions follow the tensor, others are new."""
    before, after = of.first
    size = _shape(of.values.get("size"))
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


def _shape_arguments(of: CallSizes) -> Iterator[dict[str, Any]]:
    """Yield new values of an argument that is the shape of a tensor."""
    key = next((key for key in _WHOLE_SHAPES if _shape(of.values.get(key)) is not None), None)
    if key is None:
        if of.name.startswith("native_group_norm") and type(of.values.get("N")) is int:
            yield {"N": of.first[1][0]}
        return
    shape = _shape(of.values[key]) or ()
    stride = _shape(of.values.get("stride"))
    for made in _created_shapes(shape, of):
        numbers: dict[str, Any] = {key: made}
        if stride is not None and len(stride) == len(shape):
            numbers["stride"] = rescaled_strides(shape, stride, made)
        yield numbers


def _slice_arguments(of: CallSizes) -> dict[str, Any]:
    """Return the bounds of a slice, scaled along the dimension of the batch."""
    before, after = of.first
    dim = of.values.get("dim", 0)
    if type(dim) is not int or not -len(before) <= dim < len(before) or before[dim] == after[dim]:
        return {}

    def scaled(value: Any) -> Any:
        whole = type(value) is int and abs(value) <= before[dim] and value % of.batch == 0
        return value // of.batch * of.to if whole else value

    found = {}
    for key in ("start", "end", "length", "split_size", "split_sizes"):
        value = of.values.get(key)
        if isinstance(value, (list, tuple)):
            found[key] = [scaled(each) for each in value]
        elif value is not None:
            found[key] = scaled(value)
    return found
