"""A program that becomes the command of `pgqueue lock` or `elect`, and that is told if `pgqueue` dies.

It runs by itself and imports nothing of the package, so that it starts in milliseconds. Where the kernel can (Linux),
it sends SIGTERM to the command when its parent is gone, also by `kill -9`: the server has freed the lock by then.
"""

import contextlib
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError):  # Python without ctypes
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        sys.exit(128 + signal.SIGTERM)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # the interpreter ignores them, and exec would keep them ignored
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"Error: {command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
