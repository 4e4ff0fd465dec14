"""Changes JSON documents so that most of them stay ones: values, keys, order, repetition."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from random import Random
from typing import Any

__all__ = ["cross", "mutate"]

Place = tuple[Any, Any]
"""A container and the key or index of a value in it."""

NUMBERS: list[Any] = [
    0, 1, -1, 2, 7, 63, 64, 255, 2**31, 2**32 - 1, 2**53 + 1, 2**62, 2**63 - 1, 2**63, -(2**63),
    2**64, 2**200, 0.5, -0.0, 1e308, float("inf"), float("nan"),
]  # fmt: skip
VALUES: list[Any] = [None, True, "", "x", "-5", "99999999999999999999", "\ud800", [], {}, [[]]]
WORDS = (
    "nodes", "id", "name", "parent", "ctrl_deps", "inputs", "outputs", "values", "shapes",
    "strides", "input_shapes", "output_shapes", "attrs", "value", "rf_id", "tid", "fw_parent",
    "fw_tid", "seq_id", "scope", "op_schema", "schema", "pid", "aten::add_", "aten::mm",
    "aten::empty", "aten::copy_", "detach", "c10d::allreduce_", "record_param_comms",
    "nccl:all_reduce",
    "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
    "aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)",
    "[pytorch|profiler|execution_trace|thread]", "cuda:0", "cpu", "1.1.1-chakra.0.0.4",
)  # fmt: skip
TENSOR = [1001, 1, 0, 8, 4, "cuda:0"]


def mutate(data: bytes, max_size: int, random: Random, change_bytes: Callable[..., bytes]) -> bytes:
    """The document changed in one or a few places; what is no document is changed as bytes."""
    document = _read(data)
    if document is None or random.random() < 0.1:
        return change_bytes(data, max_size)
    for _ in range(random.choice((1, 1, 2, 4))):
        document = _change(document, random)
    return _write(document, max_size, data)


def cross(data: bytes, other: bytes, max_size: int, random: Random) -> bytes:
    """A value of `other` in the place of one of `data`, or behind it in a list."""
    document, source = _read(data), _read(other)
    if document is None or source is None:
        return data
    value = random.choice([source, *(container[key] for container, key in _places(source))])
    places = list(_places(document))
    if not places:
        return _write(value, max_size, data)
    container, key = random.choice(places)
    if isinstance(container, list) and random.random() < 0.5:
        container.insert(key, value)
    else:
        container[key] = value
    return _write(document, max_size, data)


def _read(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _write(document: Any, max_size: int, instead: bytes) -> bytes:
    text = json.dumps(document).encode()
    return text if len(text) <= max_size else instead


def _places(document: Any) -> Iterator[Place]:
    waiting = [document] if isinstance(document, dict | list) else []
    while waiting:
        container = waiting.pop()
        keys = container.keys() if isinstance(container, dict) else range(len(container))
        for key in keys:
            yield container, key
            if isinstance(container[key], dict | list):
                waiting.append(container[key])


def _change(document: Any, random: Random) -> Any:
    places = list(_places(document))
    if not places or random.random() < 0.01:
        return _any_of((*VALUES, *NUMBERS, [document], {"nodes": document}), random)
    container, key = random.choice(places)
    value = container[key]
    match random.randrange(9):
        case 0:
            del container[key]
        case 1 | 2:
            container[key] = _other_number(value, random)
        case 3:
            container[key] = _any_of((*VALUES, *WORDS, TENSOR, [value], {"value": value}), random)
        case 4:
            other, place = random.choice(places)
            container[key] = json.loads(json.dumps(other[place]))
        case 5 if isinstance(container, list):
            count = random.choice((1, 1, 1, 8, 40))
            container[key:key] = [json.loads(json.dumps(value)) for _ in range(count)]
        case 6 if isinstance(container, list):
            random.shuffle(container)
        case 7 if isinstance(container, dict):
            container[random.choice(WORDS)] = container.pop(key)
        case _:
            if isinstance(value, list):
                value.append(_any_of((TENSOR, *NUMBERS, *VALUES), random))
    return document


def _any_of(values: Sequence[Any], random: Random) -> Any:
    """A copy: later changes of the document must not reach what others take."""
    return deepcopy(random.choice(values))


def _other_number(value: Any, random: Random) -> Any:
    if isinstance(value, int) and random.random() < 0.7:
        return value + random.choice((-1, 1, -value, value, 100, -100))
    return random.choice(NUMBERS)
