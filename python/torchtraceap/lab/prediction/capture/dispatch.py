"""A step run on tensors without values, every operator that reaches the dispatcher written down.

Note [Where it is caught]: below autograd, where composite operators have come apart into those
that a device implements. What torch takes apart in another way on a GPU is caught above, where it
is still whole: attention and dropout, which on a CPU become several operators (`whole.py`).
"""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from torchtraceap.core.dtypes import DType, dtype_named
from torchtraceap.errors import MissingDependencyError, OptionError, TraceError
from torchtraceap.lab.prediction.capture.calls import (
    Call,
    Capture,
    CaptureError,
    Collective,
    Move,
    Phase,
    Storages,
    TensorInfo,
    Value,
    tensors_in,
)
from torchtraceap.lab.prediction.capture.run import (
    run_step,
    tensors_of_inputs,
    unchanged,
    watched_optimizers,
)
from torchtraceap.lab.prediction.capture.source_lines import place_of_error
from torchtraceap.lab.prediction.capture.streams import Streams
from torchtraceap.lab.workloads.workload import Workload, made_workload

if TYPE_CHECKING:
    import torch

    from torchtraceap.lab.prediction.capture.collectives import Exchange
    from torchtraceap.lab.prediction.capture.values import ValuesMode

Run: TypeAlias = "Callable[[Workload, Recorder], torch.nn.Module]"
"""Runs steps of a workload, the last one to be written down; returns the model that the process
holds."""

__all__ = ["Recorder", "Run", "capture_step", "survey"]

T = TypeVar("T")
_IN_NAMES = re.compile(r"[^\w.\[\]-]+")


def capture_step(make: Callable[[], Any], run: Run | None = None) -> Capture:
    """The calls of one step of a workload, of which nothing is computed if that is possible.

    Args:
        make: Makes the workload, see `Workload`. Large tensors that it makes take no memory.
        run: How a step goes; None as one process without others has it, see `run_step`.

    Raises:
        OptionError: It makes no workload.
        CaptureError: The step can't be run; the message says what failed, and in which line.
    """
    tried = _tried(make, run)
    if tried.capture is not None and not tried.assumed:
        return tried.capture
    computed = None
    if tried.parameter_bytes <= _MOST_BYTES:
        computed = _tried(make, run, computed=True)
        if computed.capture is not None:
            why = f"without values, {tried.error}"
            if tried.capture is not None:
                why = f"values decide on what the program does ({', '.join(tried.assumed)})"
            note = f"{why}: it was computed here"
            return replace(computed.capture, notes=(*computed.capture.notes, note))
    reason = "it is too large" if computed is None else computed.error
    if tried.capture is None:
        raise _not_captured(tried, computed, reason) from tried.cause
    note = (
        f"values decide on what the program does ({', '.join(tried.assumed)}): conditions are "
        "taken to hold, numbers to be 1 and sizes to be as large as can be, since the step could "
        f"not be computed here: {reason}"
    )
    return replace(tried.capture, notes=(*tried.capture.notes, note))


_MOST_BYTES = 1 << 30
"""Of the parameters of a step that is computed; with gradients and state four times as many."""
_MOST_SECONDS = 30.0
"""What computing a step may take."""
_MOST_SAID = 3
"""Places of a program that a note names."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """What came of running a step."""

    capture: Capture | None
    error: str = ""
    """What failed, with what was said and where."""
    cause: Exception | None = None
    assumed: tuple[str, ...] = ()
    """What was not known and decides on what the program does."""
    parameter_bytes: int = 0


def _tried(make: Callable[[], Any], run: Run | None, *, computed: bool = False) -> _Tried:
    """Runs a step, with values or without.

    Raises:
        OptionError: It makes no workload.
    """
    from torchtraceap.lab.prediction.capture.fake_gpu import taken_for_plain_tensors

    size, doing = 0, "the workload could not be made"
    with _prepared(computed=computed) as values:
        try:
            workload = made_workload(make())
            _initialize(workload)
            size = sum(each.numel() * each.element_size() for each in workload.model.parameters())
            with ExitStack() as stack:
                stack.enter_context(unchanged(workload.model, with_parameters=computed))
                stack.enter_context(values.without_parameters(workload.model))
                doing = "the step could not be run"
                recorder = values.recorder = Recorder(values.blank)
                recorder.ends = monotonic() + _MOST_SECONDS if computed else None
                stack.enter_context(taken_for_plain_tensors())
                stack.enter_context(recorder.recording())
                model = (run or run_step)(workload, recorder)
                held = recorder.storages_of(model)
                inputs = recorder.described(tensors_of_inputs(workload))
        except OptionError:
            raise
        except Exception as error:  # whatever a program raises
            told = f"{doing} ({_said(error)})"
            return _Tried(None, told, error, _some(values.assumed), size)
    notes = (*values.notes, *recorder.notes)
    capture = Capture(tuple(recorder.calls), notes, held, inputs)
    return _Tried(capture, assumed=_some(values.assumed), parameter_bytes=size)


def _some(places: Iterable[str]) -> tuple[str, ...]:
    """The first of them, and how many there are besides."""
    found = tuple(places)
    more = len(found) - _MOST_SAID
    return found if more <= 0 else (*found[:_MOST_SAID], f"and {more} more")


def _said(error: Exception) -> str:
    """What an error says, of which type, and where it came up."""
    said = (str(error).strip() or "no reason given").splitlines()[0][:300]
    if not isinstance(error, TraceError):
        said = f"{type(error).__name__}: {said}"
    place = place_of_error(error)
    return f"{said}, at {place}" if place else said


def _not_captured(tried: _Tried, computed: _Tried | None, reason: str) -> CaptureError:
    if computed is not None and _same(tried.cause, computed.cause):  # the program's own
        return CaptureError(computed.error)
    return CaptureError(
        f"without values, {tried.error}; computed here, {reason}; if it runs on a CPU, a profile "
        "of that with record_shapes=True can be predicted from instead"
    )


def _same(one: Exception | None, other: Exception | None) -> bool:
    """Whether two errors are of one type, and in one place."""
    return (
        one is not None
        and other is not None
        and type(one) is type(other)
        and place_of_error(one) == place_of_error(other)
    )


def survey(make: Callable[[], Any], look: Callable[[Workload], T]) -> T:
    """What is to be known of a workload that is not run.

    Args:
        make: As of `capture_step`.
        look: Is shown it.

    Raises:
        OptionError: It makes no workload.
    """
    with _prepared():
        return look(made_workload(make()))


@contextmanager
def _prepared(*, computed: bool = False) -> Iterator[ValuesMode]:
    """Within, torch does what it does on a GPU, on tensors without values unless these are to be
    computed."""
    _require_torch()
    from torchtraceap.lab.prediction.capture.autocast import autocast_as_on_a_gpu
    from torchtraceap.lab.prediction.capture.fake_gpu import as_if_on_a_gpu
    from torchtraceap.lab.prediction.capture.values import ValuesMode

    values = ValuesMode(computed=computed)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # A copy of a layer asks whether its tensors, which have no values, have an address.
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        warnings.filterwarnings("ignore", "Sparse invariant checks")
        warnings.filterwarnings("ignore", "Using `torch.compile")  # beside what watches modules
        # What becomes a tensor without values is looked at from all sides.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        stack.enter_context(autocast_as_on_a_gpu())
        stack.enter_context(
            as_if_on_a_gpu(values.read_as_a_whole, values.note, lambda: values.recorder)
        )
        stack.enter_context(values)
        yield values


def _initialize(workload: Workload) -> None:
    """Lazy modules learn the shapes of their parameters in a first call."""
    import torch
    from torch.nn.parameter import is_lazy

    if any(map(is_lazy, (*workload.model.parameters(), *workload.model.buffers()))):
        with torch.no_grad():
            workload.forward()


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "a capture runs the model, for which torch is needed"
        ) from error


class Recorder:
    """Writes down calls while `recording()`."""

    def __init__(self, blank: Callable[[], AbstractContextManager[None]]) -> None:
        self.blank = blank
        """What is made within has no values."""
        self.calls: list[Call] = []
        self.notes: dict[str, None] = {}
        """What was assumed; each once, in order."""
        self._phase = Phase.FORWARD
        self._modules: list[str] = []
        self._freed: list[tuple[int, int]] = []
        self._storages = _Storages(lambda number: self._freed.append((len(self.calls), number)))
        self._at_begin: tuple[int, ...] = ()
        self._on_host: set[int] = set()
        self._moved: set[int] = set()
        """Of those: what the program sent there, and what was made of it alone."""
        self._pinned: set[int] = set()
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self.streams = Streams()
        self.ends: float | None = None
        """When it has to be over, by the monotonic clock."""
        self.is_on = True
        """Calls are written down, and not only answered."""
        self.in_step = False
        """What the program moves now moves in each step."""
        self._batch: int | None = None

    def begin(self, tensors: Iterable[torch.Tensor]) -> None:
        """A step begins: what was written down before is forgotten.

        Args:
            tensors: That are there before it.
        """
        self.streams.end_step(len(self.calls))
        self.calls.clear()
        self._freed.clear()
        for tensor in tensors:
            self._storages.number(tensor)
        self._at_begin = self._storages.alive()

    def were_there(self, tensors: Iterable[torch.Tensor]) -> None:
        """These are there before a step once it is like the next."""
        numbers = map(self._storages.number, tensors)
        self._at_begin = tuple(dict.fromkeys((*self._at_begin, *numbers)))

    def knows_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """It takes part in the step."""
        self._optimizers[id(optimizer)] = optimizer

    def optimizer_state(self) -> list[torch.Tensor]:
        """What optimisers keep from step to step."""
        return [
            value
            for optimizer in self._optimizers.values()
            for of_parameter in optimizer.state.values()
            for value in of_parameter.values()
            if hasattr(value, "untyped_storage")
        ]

    def storages_of(self, model: torch.nn.Module) -> Storages:
        """The memory of the step."""
        parameters = [*model.parameters(), *model.buffers()]
        gradients = [each.grad for each in parameters if each.grad is not None]
        state = self.optimizer_state()
        of_model, of_gradients, of_optimizer = (
            frozenset(map(self._storages.number, tensors))
            for tensors in (parameters, gradients, state)
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
    def recording(self) -> Iterator[None]:
        """Of what is called within."""
        from torchtraceap.lab.prediction.capture.composite_ops import whole_calls
        from torchtraceap.lab.prediction.capture.modes import dispatch_mode

        with ExitStack() as stack:
            stack.enter_context(self._watched_modules())
            stack.enter_context(watched_optimizers(self))
            stack.enter_context(whole_calls(self))
            stack.enter_context(dispatch_mode(self))
            self.in_step = True
            stack.callback(setattr, self, "in_step", False)
            yield

    @contextmanager
    def in_phase(self, phase: Phase) -> Iterator[None]:
        """What is called within belongs to this part of the step."""
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    @contextmanager
    def off(self) -> Iterator[None]:
        """What is called within is not written down."""
        before, self.is_on = self.is_on, False
        try:
            yield
        finally:
            self.is_on = before

    @contextmanager
    def together(self) -> Iterator[list[int]]:
        """Collectives that are started within are one launch; they are told when all are."""
        started: list[int] = []
        first = len(self.calls)
        self._batch = first
        try:
            yield started
        finally:
            self._batch = None
        started += [call.collective.id for call in self.calls[first:] if call.collective]

    @contextmanager
    def _watched_modules(self) -> Iterator[None]:
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

    def frees(self, tensor: torch.Tensor) -> None:
        """Its memory is given back, and the tensor stays."""
        self._storages.give_back(tensor)

    def keep_on_host(self, tensors: Iterable[torch.Tensor]) -> None:
        """These are on the host even where the model is on a GPU."""
        self._on_host.update(map(self._storages.number, tensors))

    def is_kept_on_host(self, tensor: torch.Tensor) -> bool:
        """The program moved it there, or it was made there of what is there."""
        return bool(self._moved) and self._storages.number(tensor) in self._moved

    def move_to_host(self, tensor: torch.Tensor) -> None:
        """The program keeps it there from now on."""
        number = self._storages.number(tensor)
        self._moved.add(number)
        self._on_host.add(number)

    def pin(self, tensor: torch.Tensor) -> None:
        """Its memory on the host is page-locked."""
        self._pinned.add(self._storages.number(tensor))

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether its memory on the host is page-locked."""
        return bool(self._pinned) and self._storages.number(tensor) in self._pinned

    def leaves_on_host(self, model: torch.nn.Module) -> bool:
        """Whether a model's parameters or buffers are there after what was run: the next step
        begins otherwise than this one did."""
        return any(map(self.is_kept_on_host, (*model.parameters(), *model.buffers())))

    def described(self, tensors: Iterable[torch.Tensor]) -> tuple[TensorInfo, ...]:
        """These tensors as calls have them."""
        return tuple(map(self._tensor, tensors))

    def note(self, text: str) -> None:
        """Something was assumed."""
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
        """Writes a call down.

        Args:
            name: As Kineto names the operator.
            overload: Of its schema.
            inputs: By names of the schema.
            outputs: What it returned.
            is_view: It computes nothing.
            move: It copies between host and GPU.
        """
        if self.ends is not None and monotonic() > self.ends:
            raise CaptureError(f"it takes over {_MOST_SECONDS:.0f} s")
        if not self.is_on:
            return
        given = {key: self._value(value) for key, value in inputs.items()}
        made = tuple(map(self._value, outputs))
        move = move or self._move_into(name, given)
        on_host = move is None and self._stays_on_host(given, made)
        node, sequence = _autograd()
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
        if not (is_view or on_host or _GIVES_NO_WORK.match(name)):
            touched = tensors_in((*given.values(), *made))
            waits_for, after = self.streams.given(len(self.calls), touched)
            call = replace(call, waits_for=waits_for, after=after)
        self.calls.append(call)

    def write_move(self, source: torch.Tensor, made: torch.Tensor, move: Move) -> None:
        """Writes a copy between host and GPU down.

        Args:
            source: What is copied.
            made: The copy.
            move: Which way.
        """
        if not move.to_gpu:
            self.move_to_host(made)
        inputs = {"self": source, "non_blocking": move.non_blocking}
        self.write("aten::_to_copy", "default", inputs, (made,), move=move)

    def write_move_of(self, tensor: torch.Tensor, move: Move) -> None:
        """Writes down that a tensor is on the other side from here on, and stays the object that
        it is: a module's parameter."""
        number = self._storages.number(tensor)
        inputs = {"self": tensor, "non_blocking": move.non_blocking}
        self.write("aten::_to_copy", "default", inputs, (tensor,), move=move)
        if move.to_gpu:
            self._moved.discard(number)
            self._on_host.discard(number)
        else:
            self.move_to_host(tensor)

    def write_exchange(self, name: str, arguments: dict[str, Any], exchange: Exchange) -> None:
        """Writes a call down that starts a collective.

        Args:
            name: As Kineto names the operator.
            arguments: By names of the schema.
            exchange: What it does.
        """
        if not self.is_on:
            return
        self.write(name, "default", arguments, ())
        index, call = len(self.calls) - 1, self.calls[-1]
        read, written = (
            [*tensors_in(map(self._value, tensors))]
            for tensors in (exchange.read, exchange.written)
        )
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
        self.streams.starts(collective, changed, waits=exchange.waits)

    def _stays_on_host(self, given: dict[str, Value], made: Sequence[Value]) -> bool:
        """What is made of tensors of the host alone is there too. Single numbers of the host meet
        others; with a tensor of a GPU they go to the GPU."""
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
        """What is written from one side into a tensor of the other."""
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
        return TensorInfo(
            tuple(map(int, dense.shape)),
            tuple(map(int, dense.stride())),
            _dtype(dense.dtype),
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
        return _IN_NAMES.sub(" ", str(value))[:100]


_GIVES_NO_WORK = re.compile("profiler::|aten::(new_)?empty")


def _autograd() -> tuple[str, int | None]:
    """The node that is calling, and its number; in the forward pass that of the node made last, of
    which a pass without gradients makes none."""
    import torch

    node = torch._C._current_autograd_node()
    if node is None and not torch.is_grad_enabled():
        return "", None
    if node is None:
        made: int = torch.autograd._get_sequence_nr()
        return "", made - 1 if made else None
    number = node._sequence_nr()
    return node.name(), number if number < _NO_SEQUENCE else None


_NO_SEQUENCE = (1 << 64) - 1
"""Of nodes that add up gradients: no operator of the forward pass made them."""


class _Storages:
    """Numbers of storages. Those that are gone lose theirs: their place in memory is used again."""

    def __init__(self, freed: Callable[[int], None]) -> None:
        self.bytes: dict[int, int] = {}
        """Of all that there were, by number."""
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._freed = freed

    def alive(self) -> tuple[int, ...]:
        """Numbers of those that are there."""
        return tuple(number for number, _ in self._alive.values())

    def number(self, tensor: torch.Tensor) -> int:
        storage = _dense(_own(tensor)).untyped_storage()
        key = storage._cdata
        if key not in self._alive:
            number = len(self.bytes) + 1
            self.bytes[number] = storage.nbytes()
            self._alive[key] = number, weakref.ref(storage, lambda _: self._gone(key))
        return self._alive[key][0]

    def give_back(self, tensor: torch.Tensor) -> None:
        """Should it have memory again, that has another number."""
        key = tensor.untyped_storage()._cdata
        if key in self._alive:
            self._gone(key)

    def _gone(self, key: int) -> None:
        number, _ = self._alive.pop(key)
        self._freed(number)


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor that is shared among ranks."""
    own: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return own


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or the values of a sparse one: they are what operators move."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    if tensor.layout == torch.strided:
        return tensor
    if tensor.layout != torch.sparse_coo:
        raise CaptureError(f"tensors of the layout {tensor.layout} can't be captured")
    with _disable_current_modes():
        return tensor._values()


def _dtype(dtype: torch.dtype) -> DType:
    found = dtype_named(str(dtype))
    if found is None:
        raise CaptureError(f"tensors of {dtype} are not known")
    return found
