"""A command at a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios

from commands import environment

OTHER_SCREEN, FIRST_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """A command at a terminal of its own; what it wrote so far is in `seen`."""

    def __init__(self, *arguments: str, **settings: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 100, 0, 0))
        os.set_blocking(self._ours, False)
        self.seen = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pgqueue", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(**settings),
        )
        os.close(theirs)

    def shows(self, pattern: str) -> re.Match[str] | None:
        try:
            self.seen += COLOURS.sub("", os.read(self._ours, 65536).decode())
        except BlockingIOError:
            pass
        except OSError:  # its other end is closed
            assert re.search(pattern, self.seen, re.DOTALL), self.seen
        return re.search(pattern, self.seen, re.DOTALL)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        return self._process.wait(30)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)
