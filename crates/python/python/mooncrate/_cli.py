"""The command `mooncrate` of the package: the same program as the native one, in this very process.

What must stay true: the process id stays, and signals mean what they mean to the native program.
Servers stop in order at SIGINT and SIGTERM, everything else ends by them.
"""

import os
import shutil
import signal
import sys
from collections.abc import Sequence

from mooncrate._native import _cli

# Python would turn the first into an exception in a thread that is busy elsewhere.
TAKEN = (signal.SIGINT, signal.SIGTERM)


def run(arguments: Sequence[str], program: str = "mooncrate") -> int:
    """Runs the command from the main thread, once in a process; its exit code."""
    before = [(number, signal.signal(number, signal.SIG_DFL)) for number in TAKEN]
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        return _cli([program, *arguments])
    finally:
        for number, handler in before:
            # None: a handler that C code had installed, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def main() -> None:
    """The console script."""
    program = sys.argv[0]
    name = os.path.basename(program)
    # Examples that it prints can be pasted; short, where the short name finds it.
    sys.exit(run(sys.argv[1:], name if shutil.which(name) == program else program))
