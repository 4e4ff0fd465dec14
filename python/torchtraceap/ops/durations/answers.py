"""One question or many: from checked sizes to answers, by the models in order."""

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
    the_device,
)

__all__ = ["Model", "Question", "answers", "each"]

FloatArray = npt.NDArray[np.float64]
Model = Callable[..., Estimates]
"""Takes arrays `[n]` of sizes; raises `UnknownDurationError` if it has no answer at all."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and who may answer."""

    sizes: Mapping[str, FloatArray]
    """By name, all of one shape: `[]` or `[n]` (`checked_sizes`)."""
    models: tuple[Model, ...]
    """The best first: each is asked where those before it have no answer."""
    class_name: str
    """What is calibrated together (`kernel_class`)."""
    device: str | Device
    held: FloatArray
    """Bytes that its memory has to hold, of the shape of the sizes."""
    calibration: Calibration | None = None
    strict: bool = False
    op: str = ""
    """The operator, where it is known."""

    def answer(self) -> Estimate | Estimates | None:
        """An `Estimate` or None; of arrays `Estimates`, NaN where there is none.

        Raises:
            UnknownDurationError: No model answers, and the question is strict.
        """
        shape = next(iter(self.sizes.values())).shape
        columns = [np.atleast_1d(column) for column in self.sizes.values()]
        found = self._that_fit(self._estimates(columns))
        missing = np.flatnonzero(~np.isfinite(found.ns))
        if self.strict and len(missing):
            raise UnknownDurationError(found[int(missing[0])].source)
        if self.calibration is not None:
            calibration = self.calibration
            found = Estimates.of(
                calibration.applied(found[at], self.class_name, op=self.op)
                for at in range(len(found))
            )
        if shape:
            return found
        return None if len(missing) else found[0]

    def _that_fit(self, found: Estimates) -> Estimates:
        """No answer where the device cannot hold what is asked for."""
        try:
            chip = the_device(self.device)
        except UnknownDurationError:
            return found  # which says so
        fits = np.atleast_1d(self.held) <= (chip.memory_bytes or np.inf)
        too_much = Estimates.unknown(len(found), f"more bytes than {chip.name} has memory")
        return Estimates.choose(~fits, [found, too_much])

    def _estimates(self, columns: list[FloatArray]) -> Estimates:
        found = answers(self.models[0], *columns)
        for model in self.models[1:]:
            missing = ~np.isfinite(found.ns)
            if not missing.any():
                break
            other = answers(model, *columns)
            # If nobody answers, the reason is that of the best model.
            found = Estimates.choose(missing & np.isfinite(other.ns), [found, other])
        return found


def answers(model: Model, *columns: FloatArray) -> Estimates:
    """What a model says, with its reason where it has no answer at all."""
    try:
        return model(*columns)
    except UnknownDurationError as reason:
        return Estimates.unknown(len(columns[0]), str(reason))


def each(one: Callable[..., Estimate]) -> Model:
    """A model of many questions from one that answers single ones; equal ones are asked once."""

    def ask(*sizes: float) -> Estimate:
        try:
            return one(*(int(size) if size == int(size) else size for size in sizes))
        except UnknownDurationError as reason:
            return Estimate(np.nan, np.nan, np.nan, str(reason))

    def model(*columns: FloatArray) -> Estimates:
        rows, back = np.unique(np.stack(columns), axis=1, return_inverse=True)
        return Estimates.of(ask(*row) for row in rows.T.tolist()).take(back.ravel())

    return model
