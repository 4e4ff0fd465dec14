"""The dispatcher's hook: every operator below autograd, with all arguments of its schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from torchtraceap.prediction.capture.dispatch import Recorder

__all__ = ["all_arguments", "dispatch_mode", "is_distributed"]


def dispatch_mode(recorder: Recorder) -> TorchDispatchMode:
    """A mode that tells a recorder of each call."""
    return _Mode(recorder)


class _Mode(TorchDispatchMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_distributed(types):
            return NotImplemented  # comes again, with what this rank has of them
        namespace, _, base = func._schema.name.partition("::")
        if namespace == "c10d":
            return self._exchanged(func, all_arguments(func, args, kwargs))
        found = func(*args, **kwargs)
        if namespace != "prim":
            outputs = found if isinstance(found, (tuple, list)) else (found,)
            self._recorder.write(
                f"{namespace}::{base}",
                func._overloadname,
                all_arguments(func, args, kwargs),
                tuple(outputs),
                is_view=func.is_view,
            )
        return found

    def _exchanged(self, func: Any, arguments: dict[str, Any]) -> Any:
        from torchtraceap.prediction.capture.collectives import exchange_of

        exchange = exchange_of(func, arguments)
        self._recorder.write_exchange(func._schema.name, arguments, exchange)
        return exchange.result


def is_distributed(types: Any) -> bool:
    """Whether one of them is a tensor that is shared among ranks."""
    return any(each.__module__.startswith("torch.distributed.") for each in types)


def all_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, in the order of the schema, with defaults for those not given."""
    found: dict[str, Any] = {}
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            found[argument.name] = args[position]
        elif argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
        else:
            found[argument.name] = argument.default_value if argument.has_default_value() else None
    return found
