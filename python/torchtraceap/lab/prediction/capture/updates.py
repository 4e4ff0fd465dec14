"""Reconstructs the step of an optimizer on a GPU from one on a CPU.

torch's optimizers update parameter by parameter on a CPU and many tensors at once on a GPU, unless
told otherwise. The options of an optimizer are inferred from the operators that it called for each
parameter: those settings are chosen that call the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from torchtraceap.compat.replay.call import RecordedCall
from torchtraceap.core.dtypes import parse_dtype
from torchtraceap.lab.prediction.capture.calls import Call, tensors_in
from torchtraceap.lab.prediction.capture.dispatch import recording
from torchtraceap.lab.prediction.capture.recorder import Recorder

if TYPE_CHECKING:
    import torch

__all__ = ["gpu_update"]

# Values tried for the options that change which operators are called.
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "weight_decay": (0.0, 0.01),
    "momentum": (0.0, 0.9),
    "nesterov": (False, True),
    "amsgrad": (False, True),
    "centered": (False, True),
    "maximize": (False, True),
    "decoupled_weight_decay": (False, True),
    "lr_decay": (0.0, 0.1),
}


@dataclass(frozen=True, slots=True)
class _Setting:
    """Options of an optimizer and the operators it calls for one parameter."""

    options: tuple[tuple[str, Any], ...]
    names: tuple[str, ...]


def gpu_update(annotation: str, recorded: Sequence[RecordedCall]) -> list[Call] | None:
    """Return the calls of an optimizer step on a GPU.

    Args:
        annotation: The profiler's range, such as `Optimizer.step#AdamW.step`.
        recorded: The operators that it called.

    Returns:
        None if it is none of torch's own, called others, or already updated many tensors at once.
    """
    import torch

    kind = annotation.removeprefix("Optimizer.step#").split(".")[0]
    make = getattr(torch.optim, kind, None)
    computing = [call for call in recorded if _computes(call)]
    if not (isinstance(make, type) and issubclass(make, torch.optim.Optimizer)) or not computing:
        return None
    groups = _groups(computing, _settings(kind))
    if groups is None:
        return None
    return _steady_update(make, [_group(dict(s.options), shapes) for s, shapes in groups.items()])


def _computes(call: RecordedCall) -> bool:
    """Return whether a call works on a parameter; step counters have no axes."""
    sizes = [dims for dims, text in zip(call.dims, call.types, strict=True) if text]
    return any(sizes) and not call.name.endswith(("::empty", "::empty_like", "::detach", "::view"))


_Groups = dict[_Setting, list[tuple[tuple[int, ...], str]]]
"""Shapes and types of parameters by setting."""


def _groups(computing: Sequence[RecordedCall], settings: Sequence[_Setting]) -> _Groups | None:
    """Split the calls into those of one parameter each."""
    found: _Groups = {}
    place, names = 0, [call.name for call in computing]
    while place < len(names):
        for setting in settings:
            end = place + len(setting.names)
            if tuple(names[place:end]) == setting.names:
                last = computing[end - 1]
                found.setdefault(setting, []).append((last.dims[0], last.types[0]))
                place = end
                break
        else:
            return None
    return found


@lru_cache(maxsize=32)
def _settings(kind: str) -> tuple[_Setting, ...]:
    """Return settings that call different operators, longest first."""
    import inspect

    import torch

    make = getattr(torch.optim, kind)
    taken = inspect.signature(make).parameters
    options = {name: values for name, values in _OPTIONS.items() if name in taken}
    found: dict[tuple[str, ...], _Setting] = {}
    for values in product(*options.values()):
        given = dict(zip(options, values, strict=True))
        names = _called_names(make, given)
        if names:
            found.setdefault(names, _Setting(tuple(given.items()), names))
    return tuple(sorted(found.values(), key=lambda setting: -len(setting.names)))


def _called_names(make: Any, options: dict[str, Any]) -> tuple[str, ...]:
    """Return the operators that update one parameter in a later step."""
    try:
        calls = _steady_update(make, [_group(options, [((2,), "float")])], foreach=False)
    except (TypeError, ValueError, RuntimeError):  # options that exclude each other
        return ()
    return tuple(
        call.name for call in calls if any(t.shape for t in tensors_in(call.inputs.values()))
    )


def _steady_update(make: Any, groups: list[dict[str, Any]], **options: Any) -> list[Call]:
    """Return the calls of an optimizer step once its state exists."""
    from torchtraceap.lab.prediction.capture.values import ValuesMode

    with ValuesMode() as values:
        recorder = values.recorder = Recorder(values.blank)
        for group in groups:
            group["params"] = [_parameter(*each) for each in group["params"]]
        optimizer = make(groups, lr=0.1, **options)
        with recording(recorder):
            with recorder.paused():
                optimizer.step()
            optimizer.step()
    return [call for call in recorder.calls if call.name.startswith("aten::")]


def _group(
    options: dict[str, Any], shapes: Sequence[tuple[tuple[int, ...], str]]
) -> dict[str, Any]:
    return {**options, "params": list(shapes)}


def _parameter(shape: tuple[int, ...], type_text: str) -> torch.nn.Parameter:
    import torch

    dtype = parse_dtype(type_text)
    made = torch.empty(shape, dtype=getattr(torch, dtype.name if dtype else "float32"))
    parameter = torch.nn.Parameter(made)
    parameter.grad = torch.empty_like(made)
    return parameter
