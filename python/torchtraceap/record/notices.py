"""How the recording side tells of trouble.

Recording is a guest in somebody's training run, so telling of a problem never raises.
"""

from __future__ import annotations

import contextlib
import logging
import warnings

from torchtraceap.errors import TraceError

__all__ = ["RecordingError", "RecordingWarning", "report_problem"]

logger = logging.getLogger("torchtraceap.record")
logger.addHandler(logging.NullHandler())


class RecordingError(TraceError, RuntimeError):
    """The recorder is used in a way that cannot give a trace, such as inside another recording."""


class RecordingWarning(UserWarning):
    """A recording is missing, shorter than asked for, or could not be analysed."""


def report_problem(message: str, error: BaseException | None = None) -> None:
    """Logs a problem and shows it as a `RecordingWarning`.

    Stays silent towards the caller even where warnings are turned into errors: the log has it.
    """
    logger.warning(message, exc_info=error)
    text = message if error is None else f"{message}: {type(error).__name__}: {error}"
    with contextlib.suppress(RecordingWarning):
        warnings.warn(text, RecordingWarning, stacklevel=3)
