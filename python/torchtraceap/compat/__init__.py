"""Tables and scripts as other tools have them: TraceLens, replay of single operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.compat.replay.allowed import check_name as check_name
    from torchtraceap.compat.replay.arguments import plan_call as plan_call
    from torchtraceap.compat.replay.call import NotReplayableError as NotReplayableError
    from torchtraceap.compat.replay.call import RecordedCall as RecordedCall
    from torchtraceap.compat.replay.call import call_from_texts as call_from_texts
    from torchtraceap.compat.replay.call import text_of_args as text_of_args
    from torchtraceap.compat.replay.plan import CallPlan as CallPlan
    from torchtraceap.compat.replay.plan import DeviceName as DeviceName
    from torchtraceap.compat.replay.plan import Make as Make
    from torchtraceap.compat.replay.plan import TorchName as TorchName
    from torchtraceap.compat.replay.schema import match_operator as match_operator
    from torchtraceap.compat.replay.schema import registered_overloads as registered_overloads
    from torchtraceap.compat.replay.schema import require_torch as require_torch
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".replay.allowed": ("check_name",),
            ".replay.arguments": ("plan_call",),
            ".replay.call": (
                "NotReplayableError",
                "RecordedCall",
                "call_from_texts",
                "text_of_args",
            ),
            ".replay.plan": ("CallPlan", "DeviceName", "Make", "TorchName"),
            ".replay.schema": ("match_operator", "registered_overloads", "require_torch"),
        },
    )
