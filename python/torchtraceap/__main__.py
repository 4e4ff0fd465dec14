"""`python -m torchtraceap` is the same as `torchtraceap`."""

import sys

from torchtraceap.cli import main

if __name__ == "__main__":
    sys.exit(main())
