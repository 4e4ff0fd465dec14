"""Programs whose measured steps take turns, one step of each at a time.

Note [Turns]: a machine that others share is faster now and slower in the next tenth of a second,
so that two runs one behind the other meet different machines. Two steps one behind the other meet
the same. So the two processes of a pair live at the same time, and a referee lets one of them make
its next step while the other waits: never do both compute. Who goes first is drawn for every
exchange of two steps. Waiting is not timed, and the GPU is waited for behind each step. Both take
part by the loop of `measured`, warm-up included; a program without it cannot. Programs that keep
no more than one processor busy share one: two processors are never equally disturbed by what else
runs.

The referee listens at a socket in a folder of its own. A process sends its side when its loop
begins, then waits for `GO` before each step and sends `DONE` behind it; its end closes the socket.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Callable, Sequence

from torchtraceap.core.records import dataclass

__all__ = ["Turn", "Turns", "connect_turns", "free_processor", "give_turns"]

_SIDE, _PROCESSOR = "TORCHTRACEAP_SIDE", "TORCHTRACEAP_PROCESSOR"
_GO, _DONE = b"g", b"d"
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Turn:
    """The information with which a process takes part."""

    place: str
    """Path of the socket on which the referee listens."""
    side: str
    """The letter of the side."""
    processor: int | None = None
    """The processor on which the process runs from then on; None means any."""

    @property
    def environment(self) -> dict[str, str | None]:
        """Environment variables of the process."""
        chosen = None if self.processor is None else str(self.processor)
        return {_SIDE: self.side, _PROCESSOR: chosen}


def free_processor(number: int) -> int | None:
    """Return a processor that this process may use, another one for the next number; None if the
    system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    known = sorted(os.sched_getaffinity(0))
    return known[number % len(known)]


class Turns:
    """The connection of a measured process to the referee."""

    def __init__(self, path: str, side: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._socket.sendall(side.encode("ascii"))

    def wait(self) -> None:
        """Wait for our turn; return at once if there is no referee anymore."""
        self._socket.recv(1)

    def pass_on(self) -> None:
        """Tell the referee that our step is over."""
        try:
            self._socket.sendall(_DONE)
        except OSError:  # the referee has gone
            return

    def leave(self) -> None:
        """Tell the referee that there are no more steps."""
        self._socket.close()


def connect_turns(path: str) -> Turns | None:
    """Connect to the referee that listens at a path; None if there is none."""
    processor = os.environ.get(_PROCESSOR, "")
    try:
        if processor.isdecimal():
            os.sched_setaffinity(0, {int(processor)})
        return Turns(path, os.environ.get(_SIDE, "?"))
    except OSError:
        return None


def give_turns(
    listener: socket.socket, sides: Sequence[str], seed: int, is_running: Callable[[str], bool]
) -> dict[str, int]:
    """Let processes run their steps in turn until all have left.

    Args:
        listener: Where they come.
        sides: Their letters.
        seed: Of who goes first in each exchange.
        is_running: Whether the process of a side still runs: one that ends without a step never
            comes.

    Returns:
        Steps that each side has made.
    """
    rng = random.Random(seed)
    with contextlib.ExitStack() as at_the_end:
        ends = _accept_sides(listener, sides, is_running)
        for end in ends.values():
            at_the_end.enter_context(end)
        steps = dict.fromkeys(ends, 0)
        while ends:
            for side in rng.sample(sides, len(sides)):
                if side in ends and not _run_one_step(ends[side]):
                    ends.pop(side).close()
                elif side in ends:
                    steps[side] += 1
    return steps


def _accept_sides(
    listener: socket.socket, sides: Sequence[str], is_running: Callable[[str], bool]
) -> dict[str, socket.socket]:
    found: dict[str, socket.socket] = {}
    listener.settimeout(_POLL_S)
    while missing := [side for side in sides if side not in found]:
        try:
            end, _ = listener.accept()
        except TimeoutError:
            if not any(is_running(side) for side in missing):
                break
            continue
        end.settimeout(None)
        side = end.recv(1).decode("ascii", "replace")
        if side not in sides or side in found:  # a second loop of the same process
            end.close()
            continue
        found[side] = end
    return found


def _run_one_step(end: socket.socket) -> bool:
    try:
        end.sendall(_GO)
        return end.recv(1) == _DONE
    except OSError:
        return False
