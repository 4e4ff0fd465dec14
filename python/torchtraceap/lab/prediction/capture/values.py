"""Computes small tensors and keeps only the shapes of large ones.

Note [Which tensors have values]: parameters and their results have shapes alone, so that a model of
any size is captured in seconds on a laptop. Small tensors, such as masks, positions and learning
rates, are computed, since the program may branch on them. Large results of small tensors have no
values either.

Note [What is assumed]: a program may read a tensor without values. A number is then one and a
condition true, unless it is read repeatedly in the same place, which is that of a loop. Outputs
whose size depends on values (nonzero elements, masked ones) have their largest size. Both are kept
in `assumed`, so that the caller can compute the step instead (`dispatch.py`).

Note [Routing]: which experts of a mixture get which tokens depends on weights after training and on
real texts, neither of which is there. `topk` over the scores of up to 512 experts, of at least as
many tokens, therefore chooses as `routing` says: by default every expert gets k / E of the tokens,
as the losses that balance experts aim at. What is computed of these choices alone (masks, counts,
orders) has values, so that each expert runs on the tokens that it gets.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.calls import CaptureError
from torchtraceap.lab.prediction.capture.modes import (
    PlainMode,
    bind_arguments,
    is_distributed,
    reported_device,
)
from torchtraceap.lab.prediction.capture.source_lines import format_location, program_frame

if TYPE_CHECKING:
    from torchtraceap.lab.prediction.capture.recorder import Recorder

__all__ = ["MOST_ELEMENTS", "ValuesMode", "routing"]

MOST_ELEMENTS = 1 << 16
"""Largest number of elements of a tensor with values."""
_MOST_CHOICES = 1 << 24
"""The same of what is computed of choices of experts alone."""
_MOST_EXPERTS = 512
_SKEW: ContextVar[float] = ContextVar("routing_skew", default=0.0)


@contextmanager
def routing(skew: float) -> Iterator[None]:
    """Route tokens to experts with a skew within the context; see Note [Routing].

    Args:
        skew: Exponent s, at least 0: the n-th expert is chosen n^-s times as often as the first.
            0: all alike.

    Raises:
        OptionError: No such number.
    """
    if not 0.0 <= skew <= _MOST_SKEW:
        raise OptionError(f"the skew of routing is from 0 to {_MOST_SKEW:g}, not {skew!r}")
    token = _SKEW.set(skew)
    try:
        yield
    finally:
        _SKEW.reset(token)


_MOST_SKEW = 8.0
"""Far beyond where every token chooses the same experts."""


def _choices(tokens: int, experts: int, each: int, skew: float) -> torch.Tensor:
    """Return the experts that tokens choose, all different for a token, int64 `[tokens, each]`."""
    shares = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    wanted = np.zeros(experts)
    left, open_ = float(tokens * each), np.ones(experts, dtype=bool)
    while left > 0.5 and open_.any():  # an expert gets a token once
        wanted += np.where(open_, left * shares / shares[open_].sum(), 0.0)
        left = float(np.maximum(wanted - tokens, 0.0).sum())
        wanted, open_ = np.minimum(wanted, tokens), wanted < tokens
    ends = np.floor(np.cumsum(wanted) + 0.5).astype(np.int64)
    ends[-1] = tokens * each
    # Runs of an expert are no longer than there are tokens, so that no token gets one twice.
    found = np.searchsorted(ends, np.arange(tokens * each), side="right")
    return torch.from_numpy(np.ascontiguousarray(found.reshape(each, tokens).T))


class _FakeMode(FakeTensorMode):
    def __deepcopy__(self, memo: dict[int, Any]) -> _FakeMode:
        """Return the mode itself, since copied tensors belong to the same mode."""
        return self


_FAKE_LOG = logging.getLogger("torch._subclasses.fake_tensor")
"""Where torch logs errors of tensors without values before it raises them; a capture tells them."""


class ValuesMode(PlainMode):
    """A mode that computes small tensors and only infers the shapes of others."""

    def __init__(self, *, computed: bool = False) -> None:
        """Create the mode.

        Args:
            computed: Compute every tensor, however large.
        """
        super().__init__()
        self.recorder: Recorder | None = None
        """Recorder of the current step."""
        self.assumed: dict[str, None] = {}
        """Unknown values that decide what the program does, with their location, in order."""
        self.notes: dict[str, None] = {}
        """Notes for a person on how the step was run, in order."""
        self._computed = computed
        self._blank = False
        self._chosen = WeakIdKeyDictionary()
        """Choices of experts and what was computed of them alone."""
        self._asked: dict[tuple[Any, int], int] = {}
        """Number of times a condition was read, by location."""
        self.fake = _FakeMode(allow_non_fake_inputs=True)
        self._silence = list[Callable[[logging.LogRecord], bool]]()

    def __enter__(self) -> Any:
        self._silence.append(lambda record: False)
        _FAKE_LOG.addFilter(self._silence[-1])
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _FAKE_LOG.removeFilter(self._silence.pop())

    @contextmanager
    def blank(self) -> Iterator[None]:
        """Create tensors without values within the context, however small."""
        before, self._blank = self._blank, True
        try:
            yield
        finally:
            self._blank = before

    @contextmanager
    def without_parameters(self, model: torch.nn.Module) -> Iterator[None]:
        """Remove the values of parameters within the context.

        Parameters stay the same objects and get their values back.
        """
        swapped: list[tuple[weakref.ref[torch.nn.Parameter], torch.nn.Parameter]] = []
        replaced: list[tuple[torch.nn.Parameter, torch.nn.Parameter]] = []
        for parameter in {id(each): each for each in model.parameters()}.values():
            if self._computed or isinstance(parameter, FakeTensor):
                continue
            plain = self.fake.from_tensor(parameter.detach(), static_shapes=True)
            other = torch.nn.Parameter(plain, requires_grad=parameter.requires_grad)
            # Large parameters existed before, and weak references to them may exist.
            if parameter.numel() <= MOST_ELEMENTS and self._swap(parameter, other):
                swapped.append((weakref.ref(parameter), other))  # who shards a model frees them
            else:
                replaced.append((parameter, other))
        _replace(model, replaced)
        try:
            yield
        finally:
            _replace(model, [(other, parameter) for parameter, other in replaced])
            while swapped:
                follows, other = swapped.pop()
                left = follows()
                del follows  # torch does not exchange what somebody follows
                if left is not None:
                    self._swap(left, other)

    def _swap(self, one: torch.nn.Parameter, other: torch.nn.Parameter) -> bool:
        """Swap two parameters; return False if torch can't because of weak references."""
        self._forget_tensors()
        try:
            torch.utils.swap_tensors(one, other)
        except RuntimeError:
            return False
        return True

    def _forget_tensors(self) -> None:
        """Forget known tensors, since modules that change their type swap them."""
        converter = self.fake.fake_tensor_converter.meta_converter
        converter.tensor_memo.clear()
        converter.describer.lookup_tensor.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_distributed(types):
            return NotImplemented  # comes again, with what this rank has of them
        if func is torch.ops.aten.topk.default and not self._blank:
            return self._routed(bind_arguments(func, args, kwargs), self._run(func, args, kwargs))
        return self._run(func, args, kwargs)

    def _routed(self, given: dict[str, Any], found: Any) -> Any:
        """Return what `topk` gives, with experts chosen as Note [Routing] says."""
        scores, (values, chosen) = given["self"], found
        experts = scores.shape[-1] if scores.dim() else 0
        is_router = (
            scores.is_floating_point()
            and given["dim"] in (-1, scores.dim() - 1)
            and given["largest"]
            and 0 < given["k"] < experts <= _MOST_EXPERTS
            and scores.numel() >= experts**2
            and chosen.numel() <= _MOST_CHOICES
        )
        if not is_router:
            return found
        skew = _SKEW.get()
        with _disable_current_modes():
            rows = _choices(scores.numel() // experts, experts, given["k"], skew)
            rows = rows.reshape(tuple(chosen.shape))
            if not isinstance(scores, FakeTensor):
                values = scores.gather(-1, rows)
        self._chosen[rows] = None
        how = "all experts get as many" if not skew else f"with a skew of {skew:g}"
        self.note(f"tokens are routed to {given['k']} of {experts} experts: {how}")
        return values, rows

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return reported_device(args[0])
        if self._computed and not self._blank:
            return func(*args, **kwargs)
        args = tree_map(self._convertible, args)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        has_values = not (self._blank or any(isinstance(tensor, FakeTensor) for tensor in given))
        if has_values and self._is_of_choices(func, given, kwargs):
            return self._of_choices(func, args, kwargs)
        aliases = (argument.alias_info for argument in func._schema.arguments)
        is_in_place = any(alias and alias.is_write for alias in aliases)
        if has_values and (is_in_place or not self._is_large(func, args, kwargs)):
            return func(*args, **kwargs)
        return self._without_values(func, args, kwargs)

    def _is_of_choices(self, func: Any, given: list[torch.Tensor], kwargs: dict[str, Any]) -> bool:
        if any(tensor in self._chosen for tensor in given):
            return True
        # `one_hot` writes choices into zeros.
        is_count = func is torch.ops.aten.zeros.default and kwargs.get("dtype") is torch.int64
        return is_count and len(self._chosen) > 0

    def _of_choices(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what is computed of choices of experts, without values if it is too large."""
        if self._is_large(func, args, kwargs, _MOST_CHOICES):
            return self._without_values(func, args, kwargs)
        found = func(*args, **kwargs)
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                self._chosen[leaf] = None
        return found

    def _convertible(self, value: Any) -> Any:
        """Return a copy without values for a complex view of real numbers, which can't be
        traced."""
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            return value
        if not value.is_complex() or not value._is_view():
            return value
        with self.fake:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)

    def _without_values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return outputs without values, or assumed ones; see Note [What is assumed]."""
        try:
            # Equals `with self.fake: func()` without the cost of entering the mode.
            return self.fake.dispatch(func, (), args, kwargs)
        except DataDependentOutputException:
            kind = str(func._schema.returns[0].type)
            if kind == "bool":
                return self._read(torch.bool)
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise CaptureError(f"{func} needs values that are not there") from None
            return self._read(args[0].dtype)
        except DynamicOutputShapeException as error:
            rule = _LARGEST.get(func)
            if rule is None:
                raise CaptureError(f"the shape of what {func} gives depends on values") from error
            with self.fake:
                made = rule(bind_arguments(func, args, kwargs))
            is_usual = func in _USUAL
            if func is torch.ops.aten._pack_padded_sequence.default:
                is_usual = not isinstance(args[1], FakeTensor)  # the lengths are known
            if not is_usual:
                self._assume(f"how much {func} gives")
            return made
        finally:
            self._forget_tensors()

    def _assume(self, what: str) -> None:
        place = format_location(program_frame())
        self.assumed[f"{what} at {place}" if place else what] = None

    def note(self, text: str) -> None:
        """Note a difference from the program."""
        self.notes[text] = None

    def read_tensor(self, tensor: torch.Tensor) -> None:
        """Record that the host reads a whole tensor without values."""
        if self.recorder is not None:
            self._read(tensor.dtype)
            self.recorder.write("aten::_local_scalar_dense", "default", {"self": tensor}, ())

    def _read(self, dtype: torch.dtype) -> bool | int | float | complex:
        """Return a value for the host; see Note [What is assumed]. Checks in constructors
        succeed."""
        if self.recorder is None:
            return False if dtype is torch.bool else 1
        self.recorder.note(
            "a value that the host reads from a large tensor is taken to be 1 or true"
        )
        if dtype is not torch.bool:
            if not dtype.is_floating_point:
                self._assume("a whole number")
            return 1
        self._assume("a condition")
        frame = program_frame()
        if frame is None:
            return True
        place = frame.f_code, frame.f_lasti
        asked = self._asked[place] = self._asked.get(place, 0) + 1
        if asked > _MOST_ASKED:
            raise CaptureError(
                f"how often the loop at {format_location(frame)} goes round depends on values"
            )
        return (asked - 1) // _ROUNDS % 2 == 0

    def _is_large(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        most: int = MOST_ELEMENTS,
    ) -> bool:
        """Return whether an output has too many elements for values."""
        if func.is_view:
            return False
        try:
            with self.fake:
                found = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return False  # as large as what goes in, which is small
        made = [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]
        return any(tensor.numel() > most for tensor in made)


_ROUNDS = 64
"""Reads of a condition in one place before it changes.

The number exceeds the layers of models, so that only waiting loops are affected.
"""
_MOST_ASKED = 4096


def _replace(
    model: torch.nn.Module, pairs: list[tuple[torch.nn.Parameter, torch.nn.Parameter]]
) -> None:
    """Replace parameters in modules."""
    instead = {id(one): other for one, other in pairs}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if id(parameter) in instead:
                setattr(module, name, instead[id(parameter)])


# ------------------------------------------------------------------------------- largest outputs

_Given: TypeAlias = dict[str, Any]
_LARGEST: dict[Any, Callable[[_Given], Any]] = {}
"""Rules for outputs whose sizes depend on values, by operator.

Sizes follow ATen's own rules with every condition true and every value distinct. The rules run
where tensors have no values.
"""
_USUAL = frozenset(
    (
        torch.ops.aten.bincount.default,
        torch.ops.aten._ctc_loss.default,
        torch.ops.aten._ctc_loss.Tensor,
    )
)
"""Operators whose largest output is the usual one: no index exceeds the declared size, and targets
fill their room."""


def _largest(
    *functions: Any,
) -> Callable[[Callable[[_Given], Any]], Callable[[_Given], Any]]:
    """Return a decorator that adds a rule for operators to `_LARGEST`."""

    def add(rule: Callable[[_Given], Any]) -> Callable[[_Given], Any]:
        _LARGEST.update(dict.fromkeys(functions, rule))
        return rule

    return add


@_largest(torch.ops.aten.nonzero.default)
def _nonzero(given: _Given) -> torch.Tensor:
    tensor = given["self"]
    # A GPU returns the indices in column-major order.
    return tensor.new_empty((tensor.dim(), tensor.numel()), dtype=torch.int64).t()


@_largest(torch.ops.aten.masked_select.default)
def _masked_select(given: _Given) -> torch.Tensor:
    tensor, _ = torch.broadcast_tensors(given["self"], given["mask"])
    return tensor.new_empty((tensor.numel(),))


@_largest(torch.ops.aten.index.Tensor)
def _index(given: _Given) -> torch.Tensor:
    """Bound `index`: a mask counts as one index for each of its dimensions."""
    indices: list[torch.Tensor | None] = []
    for index in given["indices"]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            indices.append(index)
            continue
        one = index.new_zeros((index.numel(),), dtype=torch.int64)
        indices += [one] * index.dim()
    found: torch.Tensor = torch.ops.aten.index.Tensor(given["self"], indices)
    return found


@_largest(
    torch.ops.aten._unique2.default,
    torch.ops.aten._unique.default,
    torch.ops.aten.unique_dim.default,
    torch.ops.aten.unique_consecutive.default,
)
def _unique(given: _Given) -> tuple[torch.Tensor, ...]:
    tensor, dim = given["self"], given.get("dim")
    if dim is None:
        values, length = tensor.new_empty((tensor.numel(),)), tensor.numel()
        inverse = tensor.new_empty(tensor.shape, dtype=torch.int64)
    else:
        values, length = torch.empty_like(tensor), tensor.shape[dim]
        inverse = tensor.new_empty((length,), dtype=torch.int64)
    if "return_counts" not in given:
        return values, inverse
    return values, inverse, tensor.new_empty((length,), dtype=torch.int64)


@_largest(torch.ops.aten.repeat_interleave.Tensor)
def _repeat_interleave(given: _Given) -> torch.Tensor:
    repeats = given["repeats"]
    size = given["output_size"]
    found: torch.Tensor = repeats.new_empty((repeats.numel() if size is None else size,))
    return found


@_largest(torch.ops.aten.bincount.default)
def _bincount(given: _Given) -> torch.Tensor:
    weights = given["weights"]
    dtype = torch.int64 if weights is None else weights.dtype
    found: torch.Tensor = given["self"].new_empty((max(given["minlength"], 1),), dtype=dtype)
    return found


@_largest(torch.ops.aten._ctc_loss.default, torch.ops.aten._ctc_loss.Tensor)
def _ctc_loss(given: _Given) -> tuple[torch.Tensor, torch.Tensor]:
    """Bound the loss of each sequence and the log probabilities of all paths."""
    log_probs, targets = given["log_probs"], given["targets"]
    steps, batch, _ = log_probs.shape
    longest = targets.shape[1] if targets.dim() == 2 else -(-targets.shape[0] // batch)
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, steps, 2 * longest + 1))


@_largest(torch.ops.aten._pack_padded_sequence.default)
def _pack_padded_sequence(given: _Given) -> tuple[torch.Tensor, torch.Tensor]:
    """Bound the packed steps and the number of sequences in each step."""
    x, lengths = given["input"], given["lengths"]
    steps, batch = (x.shape[1], x.shape[0]) if given["batch_first"] else x.shape[:2]
    with _disable_current_modes():
        known = [steps] * batch if isinstance(lengths, FakeTensor) else lengths.tolist()
        sizes = torch.tensor([sum(n > step for n in known) for step in range(max(known))])
    return x.new_empty((sum(known), *x.shape[2:])), sizes
