"""Adapter that runs models of TorchBench (github.com/pytorch/benchmark) as workloads.

Their contract: `torchbenchmark.models.<name>.Model(test, device, batch_size, extra_args)` with
`invoke()`, else `train()` and `eval()`; `get_module()` gives the module and its inputs.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchtraceap.errors import MissingDependencyError, OptionError

if TYPE_CHECKING:
    import torch

__all__ = ["TorchBenchRuns", "torchbench_model"]

_PACKAGE = "torchbenchmark"


def torchbench_model(name: str) -> Callable[..., Any]:
    """Return the class `Model` of a TorchBench model.

    Raises:
        MissingDependencyError: TorchBench, or what the model needs, is not installed.
        OptionError: It has no such model, or it can't be imported.
    """
    if not name.isidentifier():
        raise OptionError(f"a model of TorchBench is torchbench:MODEL, not torchbench:{name}")
    if importlib.util.find_spec(_PACKAGE) is None:
        raise MissingDependencyError(
            "TorchBench is not installed: clone github.com/pytorch/benchmark, run its install.py "
            "with the model's name, and put the checkout on PYTHONPATH"
        )
    place = f"{_PACKAGE}.models.{name}"
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise _not_there(name, place, error) from error
    except Exception as error:  # a model's module installs and imports whatever it likes
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise OptionError(f"torchbench:{name} can't be imported: {reason}") from error
    model = getattr(module, "Model", None)
    if not callable(model):
        raise OptionError(f"{place} has no class Model")
    found: Callable[..., Any] = model
    return found


def _not_there(name: str, place: str, error: ModuleNotFoundError) -> Exception:
    missing = error.name or ""
    if missing and place.startswith(missing):
        return OptionError(f"TorchBench has no model {name!r}")
    return MissingDependencyError(
        f"torchbench:{name} needs {missing}: its checkout's `install.py {name}` installs it"
    )


class TorchBenchRuns:
    """Steps of a TorchBench model, made as TorchBench's `run.py` makes them."""

    def __init__(
        self,
        model: Callable[..., Any],
        mode: str,
        device: torch.device,
        precision: str,
        compiled: bool,
        batch: int | None,
    ) -> None:
        # TF32 is set outside of it; their default precision may be another than fp32.
        extra = ["--precision", "amp_bf16" if precision == "bf16" else "fp32"]
        extra += ["--torchdynamo", "inductor"] if compiled else []
        try:
            self._made = model(test=mode, device=str(device), batch_size=batch, extra_args=extra)
        except NotImplementedError as error:
            said = f": {error}" if str(error) else ""
            raise OptionError(f"this model of TorchBench doesn't do that{said}") from error
        except SystemExit as error:  # their arguments are parsed by argparse
            raise OptionError(f"this model of TorchBench doesn't take {' '.join(extra)}") from error
        self._mode = mode
        self.batch = getattr(self._made, "batch_size", batch)
        self.model = self._module()

    def step(self) -> Any:
        """Run the model's step and return its result: nothing in training."""
        invoke = getattr(self._made, "invoke", None) or getattr(self._made, self._mode)
        return invoke()

    def _module(self) -> Any:
        try:
            return self._made.get_module()[0]
        except (AttributeError, NotImplementedError):
            return None
