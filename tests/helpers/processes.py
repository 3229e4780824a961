"""Helper programs of the fault tests (tests/helpers/programs/*.py), as processes that can be stopped and killed.

A program says what happens in lines of JSON on its output, and obeys lines on its input. Whoever reads waits for a
line and not for a time, with a deadline on every line. A program ends when its input does, so none outlives its test.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE = 30.0  # seconds for any line: a machine may be slow, a test that hangs says nothing


class Program:
    """A running helper program."""

    def __init__(self, name: str, *arguments: object, heard: Callable[[Any], None] | None = None) -> None:
        """`heard` is called with every line, in a thread; without it they wait for hear()."""
        command = [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._heard = heard or self._lines.put
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self, within: float = DEADLINE) -> Any:
        """The next line; queue.Empty if there is none in time, or the program ended."""
        return self._lines.get(timeout=within)

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.hear()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGSTOP, and wait until it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> int:
        """Close its input, and wait for its end; returns its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(DEADLINE)

    def close(self) -> None:
        self.kill()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._heard(json.loads(line))


@contextmanager
def programs() -> Iterator[Callable[..., Program]]:
    """Makes programs, and kills at the end those that are left."""
    made: list[Program] = []

    def make(name: str, *arguments: object, **options: Any) -> Program:
        made.append(Program(name, *arguments, **options))
        return made[-1]

    try:
        yield make
    finally:
        for program in made:
            program.close()
