"""A workload: a model with inputs, and the parts that make a step of it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from torchtraceap.errors import OptionError

if TYPE_CHECKING:
    import torch

__all__ = ["Workload", "check_workload", "find_workload"]

_KEYS = ("model", "inputs", "loss", "optimizer")


@dataclass(frozen=True)
class Workload:
    """A model with inputs. With a loss, a step is forward, backward and optimizer; without one, a
    forward pass."""

    model: torch.nn.Module
    inputs: tuple[Any, ...] | dict[str, Any]
    """Inputs of the model: arguments by position or by name."""
    loss: Callable[[Any], torch.Tensor] | None = None
    """Function of the model's output."""
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None
    """Function of the model's parameters."""

    def forward(self) -> Any:
        """Return the model's output."""
        if isinstance(self.inputs, dict):
            return self.model(**self.inputs)
        return self.model(*self.inputs)


def find_workload(source: str) -> Callable[[], Any]:
    """Return the function that a name means; this imports and runs its file.

    Args:
        source: `FILE.py:FUNCTION` or `package.module:FUNCTION`.

    Raises:
        OptionError: There is no such file, module or function.
    """
    place, colon, name = source.rpartition(":")
    if not colon or not place or not name:
        raise OptionError(
            f"a workload is FILE.py:FUNCTION or package.module:FUNCTION, not {source!r}"
        )
    module = _module_of_file(Path(place)) if place.endswith(".py") else _import_module(place)
    found = getattr(module, name, None)
    if not callable(found):
        known = sorted(
            each
            for each, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__
        )
        listed = f" It has {', '.join(known)}." if known else ""
        raise OptionError(f"{place} has no function {name!r}.{listed}")
    function: Callable[[], Any] = found
    return function


def _module_of_file(path: Path) -> Any:
    if not path.is_file():
        raise OptionError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"_workload_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path}: no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # data classes and pickles of the file look it up
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with _import_errors_as_options(str(path)):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _import_module(name: str) -> Any:
    try:
        with _import_errors_as_options(name):
            return importlib.import_module(name)
    except OptionError as error:
        missing = error.__cause__
        if not isinstance(missing, ModuleNotFoundError) or missing.name is None:
            raise
        if not f"{name}.".startswith(f"{missing.name}."):
            raise  # the module is there, and imports one that is not
        raise OptionError(f"there is no module {name!r}") from error


@contextmanager
def _import_errors_as_options(place: str) -> Iterator[None]:
    """Turn an error of an import into an option error with the line in the module."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also what ends a program
        frames = [
            each.lineno
            for each in extract_tb(error.__traceback__)
            if Path(each.filename) == Path(place)
        ]
        line = f":{frames[-1]}" if frames else ""
        if isinstance(error, SyntaxError) and Path(error.filename or "") == Path(place):
            line = f":{error.lineno}"
        said = (str(error).strip() or "no reason given").splitlines()[0][:300]
        raise OptionError(
            f"{place}{line}: can't be imported ({type(error).__name__}: {said})"
        ) from error


def check_workload(made: Any) -> Workload:
    """Check and return what a workload's function returned.

    Raises:
        OptionError: It is not what a workload is; the message says what was expected.
    """
    import torch

    if isinstance(made, Workload):
        return made
    if not isinstance(made, Mapping):
        raise OptionError(f"a workload returns a dict with {', '.join(_KEYS)}, not {_type(made)}")
    unknown = sorted(str(key) for key in made if key not in _KEYS)
    if unknown or "model" not in made or "inputs" not in made:
        given = ", ".join(map(str, made)) or "nothing"
        raise OptionError(f"a workload's dict has model, inputs, loss and optimizer, not {given}")
    model, inputs = made["model"], made["inputs"]
    loss, optimizer = made.get("loss"), made.get("optimizer")
    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"a workload's model is a torch.nn.Module, not {_type(model)}")
    if isinstance(inputs, Mapping):
        inputs = dict(inputs)
    elif isinstance(inputs, (tuple, list)):
        inputs = tuple(inputs)
    else:
        raise OptionError(f"a workload's inputs are a tuple or a dict, not {_type(inputs)}")
    for name, value in (("loss", loss), ("optimizer", optimizer)):
        if value is not None and not callable(value):
            raise OptionError(f"a workload's {name} is a function or None, not {_type(value)}")
    if optimizer is not None and loss is None:
        raise OptionError(
            "a workload with an optimizer needs a loss: without one nothing is trained"
        )
    return Workload(model, inputs, loss, optimizer)


def _type(value: object) -> str:
    return type(value).__name__
