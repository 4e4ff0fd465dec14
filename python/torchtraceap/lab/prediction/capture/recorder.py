"""The recorder of a capture: the calls of a step, and where each tensor of it lives.

Note [Points]: a point in a stream, such as an event, is the set of calls that end before it, given
by their indices in the step. In the next step indices count back from its first call, so that -1 is
the last call of the previous step.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any

from torchtraceap.core import parse_dtype
from torchtraceap.lab.prediction.capture.calls import (
    COMPUTE,
    Call,
    CaptureError,
    Collective,
    Move,
    Phase,
    Storages,
    TensorInfo,
    Value,
    tensors_in,
)

if TYPE_CHECKING:
    import torch

__all__ = ["C10dCall", "Recorder", "Streams"]


_NOT_IN_NAMES = re.compile(r"[^\w.\[\]-]+")
_WITHOUT_WORK = re.compile("profiler::|aten::(new_)?empty")
_NO_SEQUENCE = (1 << 64) - 1
"""Sequence number of nodes that accumulate gradients: no forward operator made them."""


@dataclass(frozen=True, slots=True)
class C10dCall:
    """The collective that a call of torch.distributed starts."""

    kind: str
    group: tuple[int, ...]
    group_name: str
    read: tuple[torch.Tensor, ...]
    written: tuple[torch.Tensor, ...]
    waits: bool
    """True if the stream that starts it waits for its end."""
    peer: int | None = None


_PRODUCTS = re.compile(r"mm$|convolution|attention|linear")
_PRODUCTS_OF_ELEMENT = 40.0
"""Multiplications and additions of a product that a CPU does while it reads or writes a number of
an elementwise operator."""
_LEAST_WORK = 20_000.0
"""Elements that are read or written while an operator is called."""


def _work_of(name: str, values: Iterable[Any]) -> float:
    """Return how much a call computes on a CPU, in elements that are read or written.

    A product of matrices [M, K] and [K, N] does M K N multiplications, the square root of the
    product of all three sizes.
    """
    from torch.utils._pytree import tree_leaves

    sizes = sorted(each.numel() for each in tree_leaves(tuple(values)) if hasattr(each, "numel"))
    work = float(sum(sizes))
    if len(sizes) >= 3 and _PRODUCTS.search(name):
        work += sqrt(float(sizes[-1]) * sizes[-2] * sizes[-3]) / _PRODUCTS_OF_ELEMENT
    return max(work, _LEAST_WORK)


class Recorder:
    """Records the calls of a step that runs within `recording` (dispatch.py)."""

    def __init__(self, blank: Callable[[], AbstractContextManager[None]]) -> None:
        self.blank = blank
        """Makes a context manager within which new tensors have no values."""
        self.calls: list[Call] = []
        self.notes: dict[str, None] = {}
        """Assumptions, in the order in which they were made, each once."""
        self.streams = Streams()
        self.is_on = True
        """False while calls run without being recorded."""
        self.in_step = False
        """True while the step runs, so that copies between host and GPU count."""
        self._phase = Phase.FORWARD
        self._modules: list[str] = []
        self._freed: list[tuple[int, int]] = []
        self._storages = _Storages(lambda number: self._freed.append((len(self.calls), number)))
        self._at_begin: tuple[int, ...] = ()
        self._on_host: set[int] = set()
        self._moved: set[int] = set()
        """Storages of `_on_host` that the program moved there or computed from moved ones alone."""
        self._pinned: set[int] = set()
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._most_work: float | None = None
        self._work = 0.0
        self._batch: int | None = None

    # --------------------------------------------------------------------------- the step

    def limit_work(self, most: float) -> None:
        """Raise a `CaptureError` from calls that come when so much was computed (`_work_of`)."""
        self._most_work, self._work = most, 0.0

    def begin_step(self, tensors: Iterable[torch.Tensor]) -> None:
        """Forget what was recorded and begin a step before which some tensors exist."""
        self.streams.end_step(len(self.calls))
        self.calls.clear()
        self._freed.clear()
        for tensor in tensors:
            self._storages.number(tensor)
        self._at_begin = self._storages.alive()

    def add_initial(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors among those that exist before a step in the steady state."""
        numbers = map(self._storages.number, tensors)
        self._at_begin = tuple(dict.fromkeys((*self._at_begin, *numbers)))

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Register an optimizer that takes part in the step."""
        self._optimizers[id(optimizer)] = optimizer

    def optimizer_state(self) -> list[torch.Tensor]:
        """Return the tensors that optimizers keep from step to step."""
        return [
            value
            for optimizer in self._optimizers.values()
            for of_parameter in optimizer.state.values()
            for value in of_parameter.values()
            if hasattr(value, "untyped_storage")
        ]

    def storages(self, model: torch.nn.Module) -> Storages:
        """Return the memory of the step's tensors."""
        parameters = [*model.parameters(), *model.buffers()]
        gradients = [each.grad for each in parameters if each.grad is not None]
        of_model, of_gradients, of_optimizer = (
            frozenset(map(self._storages.number, tensors))
            for tensors in (parameters, gradients, self.optimizer_state())
        )
        on_host = frozenset(self._on_host)
        return Storages(
            self._storages.bytes,
            tuple(each for each in self._at_begin if each not in on_host),
            tuple(self._freed),
            of_model,
            of_gradients,
            of_optimizer - on_host,
        )

    @contextmanager
    def in_phase(self, phase: Phase) -> Iterator[None]:
        """Assign calls made within to a phase of the step."""
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run calls within without recording them."""
        before, self.is_on = self.is_on, False
        try:
            yield
        finally:
            self.is_on = before

    @contextmanager
    def one_launch(self) -> Iterator[list[int]]:
        """Launch the collectives that start within together.

        Yields:
            A list that holds the ids of these collectives once the context ends.
        """
        started: list[int] = []
        first = len(self.calls)
        self._batch = first
        try:
            yield started
        finally:
            self._batch = None
        started += [call.collective.id for call in self.calls[first:] if call.collective]

    @contextmanager
    def watched_modules(self) -> Iterator[None]:
        """Record the modules whose forward runs within."""
        from torch.nn.modules import module as hooks

        def enter(module: torch.nn.Module, _: Any) -> None:
            self._modules.append(type(module).__name__)

        def leave(*_: Any) -> None:
            self._modules.pop()

        entered = hooks.register_module_forward_pre_hook(enter)
        left = hooks.register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            entered.remove()
            left.remove()

    # --------------------------------------------------------------------------- tensors

    def free(self, tensor: torch.Tensor) -> None:
        """Free a tensor's memory while the tensor itself stays."""
        self._storages.give_back(tensor)

    def keep_on_host(self, tensors: Iterable[torch.Tensor]) -> None:
        """Mark tensors that stay on the host even where the model is on a GPU."""
        self._on_host.update(map(self._storages.number, tensors))

    def is_kept_on_host(self, tensor: torch.Tensor) -> bool:
        """Return whether the program moved a tensor to the host or computed it there."""
        return bool(self._moved) and self._storages.number(tensor) in self._moved

    def move_to_host(self, tensor: torch.Tensor) -> None:
        """Mark a tensor that the program keeps on the host from now on."""
        number = self._storages.number(tensor)
        self._moved.add(number)
        self._on_host.add(number)

    def pin(self, tensor: torch.Tensor) -> None:
        """Mark a tensor whose memory on the host is page-locked."""
        self._pinned.add(self._storages.number(tensor))

    def leaves_on_host(self, model: torch.nn.Module) -> bool:
        """Return whether parameters or buffers are on the host now.

        If so, the next step begins differently from the one that just ran.
        """
        return any(map(self.is_kept_on_host, (*model.parameters(), *model.buffers())))

    def describe(self, tensors: Iterable[torch.Tensor]) -> tuple[TensorInfo, ...]:
        """Return tensors in the form in which calls hold them."""
        return tuple(map(self._tensor, tensors))

    # --------------------------------------------------------------------------- calls

    def note(self, text: str) -> None:
        """Note an assumption."""
        self.notes[text] = None

    def write(
        self,
        name: str,
        overload: str,
        inputs: dict[str, Any],
        outputs: tuple[Any, ...],
        *,
        is_view: bool = False,
        move: Move | None = None,
    ) -> None:
        """Record a call.

        Args:
            name: The operator as Kineto names it.
            overload: The overload of its schema.
            inputs: Arguments by the names of the schema.
            outputs: Return values.
            is_view: The call computes nothing.
            move: The copy between host and GPU that the call makes, if any.

        Raises:
            CaptureError: The limit of work is exceeded, or a tensor can't be captured.
        """
        if self._most_work is not None and not is_view:
            self._work += _work_of(name, (*inputs.values(), *outputs))
            if self._work > self._most_work:
                raise CaptureError(f"it computes more than {self._most_work:.0e} elements")
        if not self.is_on:
            return
        given = {key: self._value(value) for key, value in inputs.items()}
        made = tuple(map(self._value, outputs))
        move = move or self._move_into(name, given)
        on_host = move is None and self._stays_on_host(given, made)
        node, sequence = _autograd_node()
        call = Call(
            name,
            overload,
            given,
            made,
            self._phase,
            tuple(self._modules),
            is_view,
            on_host,
            move=move,
            node=node,
            sequence=sequence,
            stream=self.streams.current,
        )
        if not (is_view or on_host or _WITHOUT_WORK.match(name)):
            touched = tensors_in((*given.values(), *made))
            waits_for, after = self.streams.add_call(len(self.calls), touched)
            call = replace(call, waits_for=waits_for, after=after)
        self.calls.append(call)

    def write_move(
        self, source: torch.Tensor, made: torch.Tensor, *, to_gpu: bool, non_blocking: bool
    ) -> None:
        """Record a copy between host and GPU; a parameter is moved as the object that it is."""
        is_pinned = bool(self._pinned) and self._storages.number(source) in self._pinned
        if not to_gpu:
            self.move_to_host(made)
        inputs = {"self": source, "non_blocking": non_blocking}
        move = Move(to_gpu, is_pinned, non_blocking)
        self.write("aten::_to_copy", "default", inputs, (made,), move=move)
        if to_gpu and made is source:
            number = self._storages.number(made)
            self._moved.discard(number)
            self._on_host.discard(number)

    def write_exchange(self, name: str, arguments: dict[str, Any], exchange: C10dCall) -> None:
        """Record a call that starts a collective; names are those of `write`."""
        if not self.is_on:
            return
        self.write(name, "default", arguments, ())
        index, call = len(self.calls) - 1, self.calls[-1]
        read, written = self.describe(exchange.read), self.describe(exchange.written)
        collective = Collective(
            exchange.kind,
            exchange.group,
            exchange.group_name,
            sum(tensor.elements for tensor in read),
            sum(tensor.elements for tensor in written),
            (*read, *written)[0].dtype,
            index,
            exchange.peer,
            self._batch,
            tuple(arguments.get("input_split_sizes") or ()),
            tuple(arguments.get("output_split_sizes") or ()),
        )
        self.calls[-1] = replace(call, collective=collective)
        changed = () if collective.kind == "send" else written
        self.streams.start_collective(collective, changed, waits=exchange.waits)

    def _stays_on_host(self, given: dict[str, Value], made: Sequence[Value]) -> bool:
        """Return whether a call runs on the host.

        Results of tensors on the host alone are there too. A single number on the host combined
        with a tensor on the GPU goes to the GPU.
        """
        taken, found = [*tensors_in(given.values())], [*tensors_in(made)]
        if self._moved and taken and all(tensor.storage in self._moved for tensor in taken):
            numbers = [tensor.storage for tensor in found]
            self._moved.update(numbers)
            self._on_host.update(numbers)
            return True
        tensors = (*taken, *found)
        is_number = all(not tensor.shape for tensor in tensors)
        return is_number and any(tensor.storage in self._on_host for tensor in tensors)

    def _move_into(self, name: str, given: dict[str, Value]) -> Move | None:
        """Return the copy that `copy_` makes if its two tensors are on different sides."""
        own, source = given.get("self"), given.get("src")
        if name != "aten::copy_" or not self._moved:
            return None
        if not isinstance(own, TensorInfo) or not isinstance(source, TensorInfo):
            return None
        to_gpu = own.storage not in self._moved
        if to_gpu == (source.storage not in self._moved):
            return None
        host = source if to_gpu else own
        return Move(to_gpu, host.storage in self._pinned, given.get("non_blocking") is True)

    def _tensor(self, tensor: torch.Tensor) -> TensorInfo:
        dense = _dense(tensor)
        if dense is not tensor:
            self.note("a sparse gradient is taken to have a row for every lookup, none twice")
        dtype = parse_dtype(str(dense.dtype))
        if dtype is None:
            raise CaptureError(f"tensors of {dense.dtype} are not known")
        return TensorInfo(
            tuple(map(int, dense.shape)),
            dtype,
            tuple(map(int, dense.stride())),
            self._storages.number(dense),
        )

    def _value(self, value: Any) -> Value:
        import torch

        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return tuple(map(self._value, value))
        if isinstance(value, (bool, int, float, str)) or value is None:
            return value
        if isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)):
            raise CaptureError("a size that depends on values can't be captured without them")
        return _NOT_IN_NAMES.sub(" ", str(value))[:100]


def _autograd_node() -> tuple[str, int | None]:
    """Return the name and the sequence number of the calling autograd node.

    In the forward pass the name is empty and the number is that of the node made last; without
    gradients there is none.
    """
    import torch

    node = torch._C._current_autograd_node()
    if node is None and not torch.is_grad_enabled():
        return "", None
    if node is None:
        made: int = torch.autograd._get_sequence_nr()
        return "", made - 1 if made else None
    number = node._sequence_nr()
    return node.name(), number if number < _NO_SEQUENCE else None


class _Storages:
    """Numbers of storages. A freed storage loses its number, since its address is used again."""

    def __init__(self, freed: Callable[[int], None]) -> None:
        self.bytes: dict[int, int] = {}
        """Size of every storage seen so far, by number."""
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._freed = freed

    def alive(self) -> tuple[int, ...]:
        """Return the numbers of the storages that exist now."""
        return tuple(number for number, _ in self._alive.values())

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage; a sharded tensor's is that of its local part."""
        storage = _dense(getattr(tensor, "_local_tensor", tensor)).untyped_storage()
        key = storage._cdata
        if key not in self._alive:
            number = len(self.bytes) + 1
            self.bytes[number] = storage.nbytes()
            self._alive[key] = number, weakref.ref(storage, lambda _: self._remove(key))
        return self._alive[key][0]

    def give_back(self, tensor: torch.Tensor) -> None:
        """Free a tensor's storage; memory that it gets later has another number."""
        key = tensor.untyped_storage()._cdata
        if key in self._alive:
            self._remove(key)

    def _remove(self, key: int) -> None:
        number, _ = self._alive.pop(key)
        self._freed(number)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or the values of a sparse one, which are what operators move."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    if tensor.layout == torch.strided:
        return tensor
    if tensor.layout != torch.sparse_coo:
        raise CaptureError(f"tensors of the layout {tensor.layout} can't be captured")
    with _disable_current_modes():
        return tensor._values()


class Streams:
    """The streams of one process."""

    def __init__(self) -> None:
        self.current = COMPUTE
        self._last: dict[str, int] = {}
        """Last call on each stream, without collectives that run beside it."""
        self._before: int | None = None
        """Last call of the stream before its latest one."""
        self._waits: dict[str, set[int]] = {}
        """Calls that the next work of a stream waits for."""
        self._collectives: set[int] = set()
        self._unfinished: dict[int, int] = {}
        """Pending collectives by the storage that they write."""

    @contextmanager
    def select(self, stream: str) -> Iterator[None]:
        """Select a stream within the context."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def point(self, stream: str) -> frozenset[int]:
        """Return the current point of a stream; see Note [Points]."""
        last = {self._last[stream]} if stream in self._last else set()
        return frozenset(last | self._waits.get(stream, set()))

    def wait(self, stream: str, point: Collection[int]) -> None:
        """Make later work of a stream wait for a point."""
        self._waits.setdefault(stream, set()).update(point)
        self._unfinished = {
            storage: index for storage, index in self._unfinished.items() if index not in point
        }

    def add_call(
        self, index: int, tensors: Iterable[TensorInfo]
    ) -> tuple[int | None, tuple[int, ...]]:
        """Add a call to the current stream.

        Args:
            index: Index of the call.
            tensors: Tensors that it reads or writes.

        Returns:
            The collective that it waits for, and other calls.
        """
        waits = self._waits.pop(self.current, set())
        for tensor in tensors:
            if tensor.storage in self._unfinished:
                waits.add(self._unfinished.pop(tensor.storage))
        self._before = self._last.get(self.current)
        self._last[self.current] = index
        latest = max((each for each in waits & self._collectives if each >= 0), default=None)
        return latest, tuple(sorted(waits - {latest}))

    def start_collective(
        self, collective: Collective, writes: Iterable[TensorInfo], *, waits: bool
    ) -> None:
        """Start a collective with the latest call of the current stream.

        Args:
            collective: The collective.
            writes: Tensors that it writes.
            waits: True if the stream waits for it, rather than the first use of its result.
        """
        self._collectives.add(collective.id)
        if waits:
            self.wait(self.current, [collective.id])
            return
        self._unfinished.update((tensor.storage, collective.id) for tensor in writes)
        del self._last[self.current]
        if self._before is not None:
            self._last[self.current] = self._before

    def end_step(self, calls: int) -> None:
        """End a step of so many calls; see Note [Points]. Older calls are done."""

        def back(points: set[int]) -> set[int]:
            return {index - calls for index in points if index >= 0}

        self._last = {name: last - calls for name, last in self._last.items() if last >= 0}
        self._waits = {stream: back(waits) for stream, waits in self._waits.items()}
        self._collectives = back(self._collectives)
        self._unfinished = {
            storage: index - calls for storage, index in self._unfinished.items() if index >= 0
        }
