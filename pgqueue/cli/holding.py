"""A command that is run while a lock is held: its signals, its end, and the loss of the lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from .._values import printable
from . import guard

PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ENDING = PASSED[:4]  # SIGUSR1 and SIGUSR2 have other meanings for a command
OF_KEYS = (signal.SIGINT, signal.SIGQUIT)  # a terminal sends them to each process of its foreground group


class Held:
    """One run of a command. Signals are passed to it; when the lock is lost, it gets SIGTERM, and SIGKILL after a time.

    Attributes:
        lost: whether the lock was lost before the command ended.
        told: whether a signal to end this process arrived during the run.
    """

    def __init__(self, command: Sequence[str], kill_after: float, what: str) -> None:
        self.lost = self.told = False
        self._command = command
        self._kill_after = kill_after
        self._what = what
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._mutex = threading.Lock()  # of lose(), in another thread; signal handlers take no lock
        self._early: list[int] = []
        self._killer: threading.Timer | None = None

    def run(self, environment: Mapping[str, object]) -> int:
        """Run the command, and return its exit code as a shell has it. In the main thread."""
        with self._passing():
            try:
                with self._mutex:
                    if self.lost:
                        return 128 + signal.SIGTERM
                    self._process = process = subprocess.Popen(
                        [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), *self._command],
                        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
                    )
                for number in self._early:
                    process.send_signal(number)
                code = process.wait()
            finally:
                self._end()
        return code if code >= 0 else 128 - code

    def lose(self) -> None:
        """Tell the command that the lock is lost. In any thread; does nothing after the command's end."""
        with self._mutex:
            if self._ended or self.lost:
                return
            self.lost = True
            became = "not started"
            if self._process is not None:
                self._process.terminate()
                self._killer = threading.Timer(self._kill_after, self._process.kill)
                self._killer.daemon = True
                self._killer.start()
                became = "sent SIGTERM"
        said = f"{self._what} is lost; {self._command[0]} was {became}"
        click.echo(f"Error: {printable.line(said)}", err=True)

    def _end(self) -> None:
        with self._mutex:
            self._ended = True
            if self._killer is not None:
                self._killer.cancel()

    @contextmanager
    def _passing(self) -> Iterator[None]:
        """Within this block the signals of PASSED are passed to the command, except those that this process ignores."""

        def handle(number: int, frame: FrameType | None) -> None:
            self.told = self.told or number in ENDING
            if self._process is None:
                self._early.append(number)
            elif number not in OF_KEYS or not _in_foreground():
                self._process.send_signal(number)

        before = {number: signal.getsignal(number) for number in PASSED}
        passed = [number for number in PASSED if before[number] is not signal.SIG_IGN]
        for number in passed:
            signal.signal(number, handle)
        try:
            yield
        finally:
            for number in passed:
                signal.signal(number, before[number])


def _in_foreground() -> bool:
    """Whether this process is in the foreground group of its terminal, which gives its keys to the command too."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
