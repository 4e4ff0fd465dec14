"""`python -m torchtraceap` is the same as `torchtraceap`."""

import os
import signal
import sys
from types import FrameType


def _stop(number: int, frame: FrameType | None) -> None:
    """End the process in one sentence: nothing is begun yet that would have to be undone."""
    os.write(2, b"torchtraceap: interrupted\n")
    os._exit(128 + number)


def run() -> int:
    """Run the command line; Ctrl-C and SIGTERM are heard before anything is imported."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, 0)):
        if signal.getsignal(number) == usual:
            signal.signal(number, _stop)
    from torchtraceap.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
