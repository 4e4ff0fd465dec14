"""Reconstructs the step of an optimizer on a GPU from one on a CPU.

torch's optimizers update parameter by parameter on a CPU and many tensors at once on a GPU, unless
told otherwise. The options of an optimizer are inferred from the operators that it called for each
parameter: those settings are chosen that call the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any, TypeAlias

from torchtraceap.compat import RecordedCall
from torchtraceap.core import parse_dtype
from torchtraceap.lab.prediction.capture.calls import Call, tensors_in
from torchtraceap.lab.prediction.capture.dispatch import recording
from torchtraceap.lab.prediction.capture.recorder import Recorder

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

_Setting: TypeAlias = tuple[tuple[tuple[str, Any], ...], tuple[str, ...]]
"""Options of an optimizer and the operators that it calls for one parameter."""
_Shapes: TypeAlias = list[tuple[tuple[int, ...], str]]
"""Shapes and types of parameters."""


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
    computing = []
    for call in recorded:  # calls that work on a parameter; step counters have no axes
        sizes = [dims for dims, text in zip(call.dims, call.types, strict=True) if text]
        silent = ("::empty", "::empty_like", "::detach", "::view")
        if any(sizes) and not call.name.endswith(silent):
            computing.append(call)
    if not (isinstance(make, type) and issubclass(make, torch.optim.Optimizer)) or not computing:
        return None
    groups = _groups(computing, _settings(kind))
    if groups is None:
        return None
    return _steady_update(
        make, [(dict(options), shapes) for (options, _), shapes in groups.items()]
    )


def _groups(
    computing: Sequence[RecordedCall], settings: Sequence[_Setting]
) -> dict[_Setting, _Shapes] | None:
    """Split the calls into those of one parameter each, and group the parameters by setting."""
    found: dict[_Setting, _Shapes] = {}
    place, names = 0, [call.name for call in computing]
    while place < len(names):
        for setting in settings:
            end = place + len(setting[1])
            if tuple(names[place:end]) == setting[1]:
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
        try:
            calls = _steady_update(make, [(given, [((2,), "float")])], foreach=False)
        except (TypeError, ValueError, RuntimeError):  # options that exclude each other
            continue
        names = tuple(
            call.name for call in calls if any(t.shape for t in tensors_in(call.inputs.values()))
        )
        if names:
            found.setdefault(names, (tuple(given.items()), names))
    return tuple(sorted(found.values(), key=lambda setting: -len(setting[1])))


def _steady_update(
    make: Any, groups: list[tuple[dict[str, Any], _Shapes]], **options: Any
) -> list[Call]:
    """Return the calls of an optimizer step once its state exists."""
    import torch

    from torchtraceap.lab.prediction.capture.values import ValuesMode

    with ValuesMode() as values:
        recorder = values.recorder = Recorder(values.blank)
        made_groups = []
        for given, shapes in groups:
            parameters = []
            for shape, text in shapes:
                dtype = parse_dtype(text)
                made = torch.empty(shape, dtype=getattr(torch, dtype.name if dtype else "float32"))
                parameters.append(torch.nn.Parameter(made))
                parameters[-1].grad = torch.empty_like(made)
            made_groups.append({**given, "params": parameters})
        optimizer = make(made_groups, lr=0.1, **options)
        with recording(recorder):
            with recorder.paused():
                optimizer.step()
            optimizer.step()
    return [call for call in recorder.calls if call.name.startswith("aten::")]
