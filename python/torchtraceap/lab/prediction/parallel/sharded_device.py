"""Emulates the streams, events and memory that FSDP2 expects of a GPU.

On a CPU streams and events do nothing. These tell the recorder the dependencies, and when the
memory of gathered parameters is freed while their tensors stay.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from torchtraceap.lab.prediction.capture.calls import COMPUTE
from torchtraceap.lab.prediction.capture.recorder import Recorder
from torchtraceap.lab.prediction.capture.streams import Streams

__all__ = ["emulate_fsdp_device"]

_MODULE = "torch.distributed.fsdp._fully_shard"
_ASKING = ("_fsdp_collectives", "_fsdp_param_group", "_fsdp_state")
_MAKING = (
    "_fsdp_collectives.DefaultAllocMixin.allocate",
    "_fsdp_param.FSDPParam.init_all_gather_outputs",
)
"""Functions that allocate parameters and gradients, which have no values."""
_NAMES = ("all_gather_copy_in", "all_gather", "reduce_scatter", "all_reduce")
"""Names of the streams in the order in which FSDP2 makes them."""


@contextmanager
def emulate_fsdp_device(recorder: Recorder) -> Iterator[None]:
    """Give FSDP2 the streams of a GPU and report freed memory to the recorder."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    device, free = _Device(recorder.streams), _fsdp_param.free_storage

    def freed(tensor: Any) -> None:
        if tensor.untyped_storage().size():
            recorder.free(tensor)
        free(tensor)

    with ExitStack() as stack:
        for module in _ASKING:
            place = f"{_MODULE}.{module}._get_device_handle"
            stack.enter_context(mock.patch(place, lambda *_: device))
        stack.enter_context(mock.patch(f"{_MODULE}._fsdp_param.free_storage", freed))
        for place in _MAKING:
            whole, _, name = f"{_MODULE}.{place}".rpartition(".")
            made = getattr(pkgutil.resolve_name(whole), name)
            patch = mock.patch(f"{whole}.{name}", _blank(recorder, made))
            stack.enter_context(patch)
        yield


def _blank(recorder: Recorder, function: Any) -> Any:
    """Return a function whose new tensors have no values."""

    @functools.wraps(function)
    def blank(*args: Any, **kwargs: Any) -> Any:
        with recorder.blank():
            return function(*args, **kwargs)

    return blank


class _Device:
    """The parts of `torch.cuda` that FSDP2 uses."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._names = iter(_NAMES)
        self.Stream, self.Event = self._stream, self._event

    def _stream(self, **_: Any) -> _Stream:
        return _Stream(self._streams, next(self._names))

    def _event(self, **_: Any) -> _Event:
        return _Event(self._streams)

    def current_stream(self) -> _Stream:
        return _Stream(self._streams, self._streams.current)

    def stream(self, stream: _Stream) -> Any:
        return self._streams.select(stream.name)


class _Stream:
    def __init__(self, streams: Streams, name: str = COMPUTE) -> None:
        self._streams, self.name = streams, name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def wait_stream(self, other: _Stream) -> None:
        if other.name != self.name:
            self._streams.wait(self.name, self._streams.point(other.name))

    def wait_event(self, event: _Event) -> None:
        if event.stream != self.name:
            self._streams.wait(self.name, event.point)

    def record_event(self) -> _Event:
        event = _Event(self._streams)
        event.record(self)
        return event


class _Event:
    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.stream, self.point = "", frozenset[int]()

    def record(self, stream: _Stream | None = None) -> None:
        self.stream = stream.name if stream else self._streams.current
        self.point = self._streams.point(self.stream)
