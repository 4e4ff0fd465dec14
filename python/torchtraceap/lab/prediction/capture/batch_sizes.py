"""Locate the batch in the sizes of a tensor and follow it through views and strides.

Note [Digits]: elements are counted like the digits of a number: a dimension is a digit, its size
the radix, and the product of the later sizes its place value. A batch of 4 in a dimension of 48 = 4
x 12 is a digit of radix 4 at place value 12. A view cuts the same number at other places, and the
batch moves to the dimension that covers its digit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from itertools import product
from math import prod
from typing import TypeAlias

__all__ = [
    "Inner",
    "Shape",
    "contiguous_strides",
    "rescaled_strides",
    "resolve_sizes",
    "view_shapes",
]

Shape: TypeAlias = tuple[int, ...]
Inner: TypeAlias = Mapping[int, Set[int]]
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
    shape: Shape, changed: Shape, sizes: Shape, batch: int, inner: Inner
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
    digits = [
        _digits(size, to, prod(shape[place + 1 :]), batch, inner)
        for place, (size, to) in enumerate(zip(shape, changed, strict=True))
        if size != to
    ]
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


def _digits(size: int, to: int, value: int, batch: int, inner: Inner) -> list[tuple[int, int, int]]:
    """Return place value, radix and new radix of the batch in a dimension, as far as known."""
    scales = size % batch == 0 and to % (size // batch) == 0
    if size == batch or not scales:
        return [(value, size, to)]
    times = size // batch
    known = sorted(inner.get(size, ()), reverse=True)
    within = known or [each for each in range(times, 0, -1) if times % each == 0]
    return [(value * each, batch, to // times) for each in within]


def _covering_dimensions(sizes: Shape, values: Shape, value: int, radix: int) -> list[int]:
    """Return the dimensions of a view that cover a digit, outermost first."""
    found = []
    for place, (size, low) in enumerate(zip(sizes, values, strict=True)):
        covers = low <= value and value * radix <= low * size
        if covers and value % low == 0 and (low * size) % (value * radix) == 0:
            found.append(place)
    exact = [place for place in found if sizes[place] == radix]
    return exact[:1] if radix == 1 and exact else found
