"""Ask a chain of duration models for the times of one or many sizes, the best model first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from torchtraceap.core.records import dataclass
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations.calibration import Calibration
from torchtraceap.ops.durations.estimate import (
    Estimate,
    Estimates,
    UnknownDurationError,
    resolve_device,
)

__all__ = ["Model", "Question", "evaluate_model", "vectorize"]

FloatArray = npt.NDArray[np.float64]
Model = Callable[..., Estimates]
"""A function of arrays `[n]` of sizes that may raise `UnknownDurationError` for all of them."""


@dataclass(frozen=True, slots=True)
class Question:
    """Sizes whose duration is asked for and the models that may answer."""

    sizes: Mapping[str, FloatArray]
    """Sizes by name, all of one shape: `[]` or `[n]` (see `checked_sizes`)."""
    models: tuple[Model, ...]
    """Models in order of preference; each fills in where those before it have no answer."""
    class_name: str
    """Name of the class that is calibrated together (see `kernel_class`)."""
    device: str | Device
    held: FloatArray
    """Bytes that the device memory has to hold, in the shape of the sizes."""
    calibration: Calibration | None = None
    strict: bool = False
    op: str = ""
    """Name of the operator; empty if unknown."""

    def answer(self) -> Estimate | Estimates | None:
        """Return an `Estimate` or None for single sizes, `Estimates` with NaN for arrays.

        Raises:
            UnknownDurationError: No model answers, and the question is strict.
        """
        shape = next(iter(self.sizes.values())).shape
        columns = [np.atleast_1d(column) for column in self.sizes.values()]
        found = evaluate_model(self.models[0], *columns)
        for model in self.models[1:]:
            missing = ~np.isfinite(found.ns)
            if not missing.any():
                break
            other = evaluate_model(model, *columns)
            # If no model answers, the reason given is that of the best model.
            found = Estimates.choose(missing & np.isfinite(other.ns), [found, other])
        found = self._limited_to_memory(found)
        missing = np.flatnonzero(~np.isfinite(found.ns))
        if self.strict and len(missing):
            raise UnknownDurationError(found[int(missing[0])].source)
        if self.calibration is not None:
            calibration = self.calibration
            found = Estimates.from_list(
                calibration.apply(found[at], self.class_name, op=self.op)
                for at in range(len(found))
            )
        if shape:
            return found
        return None if len(missing) else found[0]

    def _limited_to_memory(self, found: Estimates) -> Estimates:
        """Remove the answers to sizes that do not fit into the device memory."""
        try:
            chip = resolve_device(self.device)
        except UnknownDurationError:
            return found  # its source already says that the device is unknown
        fits = np.atleast_1d(self.held) <= (chip.memory_bytes or np.inf)
        too_much = Estimates.unknown(len(found), f"more bytes than {chip.name} has memory")
        return Estimates.choose(~fits, [found, too_much])


def evaluate_model(model: Model, *columns: FloatArray) -> Estimates:
    """Run a model and turn an `UnknownDurationError` into NaN with the reason as source."""
    try:
        return model(*columns)
    except UnknownDurationError as reason:
        return Estimates.unknown(len(columns[0]), str(reason))


def vectorize(one: Callable[..., Estimate]) -> Model:
    """Turn a function of single sizes into a model of arrays; equal rows are computed once."""

    def ask(*sizes: float) -> Estimate:
        try:
            return one(*(int(size) if size == int(size) else size for size in sizes))
        except UnknownDurationError as reason:
            return Estimate(np.nan, np.nan, np.nan, str(reason))

    def model(*columns: FloatArray) -> Estimates:
        rows, back = np.unique(np.stack(columns), axis=1, return_inverse=True)
        return Estimates.from_list(ask(*row) for row in rows.T.tolist()).take(back.ravel())

    return model
