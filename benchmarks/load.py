"""Other work on the machine while measuring: processes that compute without a pause, at the same priority.

They stand for the neighbours of a shared machine. With one such process for each CPU, the scheduler gives the server
and its clients about half of what they have on a quiet machine, and lets them wait for their turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Ends with its parent, whose id is an argument: if it asked for the id, the parent might be dead by then.
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(100_000))"


@contextmanager
def busy(processes: int) -> Iterator[list[int]]:
    """Run so many busy processes; yields their ids."""
    command = [sys.executable, "-S", "-E", "-c", BUSY, str(os.getpid())]
    running = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(processes)]
    try:
        yield [each.pid for each in running]
    finally:
        for each in running:
            each.kill()
            each.wait()


def described(processes: int) -> str:
    return f"beside {processes} busy processes" if processes else "no other load was started"
