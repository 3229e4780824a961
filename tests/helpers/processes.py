"""Helper programs of the fault tests (tests/helpers/programs/*.py), as processes that can be stopped and killed.

A program says what happens in lines of JSON on its output, and obeys lines on its input. Whoever reads waits for a
line and not for a time, with a deadline on every line. A program ends when its input does, so none outlives its test.

A program begins in a fork of an interpreter that has imported pgqueue, which takes a tenth of the time of a new one.
The interpreter has one thread, no client, and no other state: it is multiprocessing's fork server.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import queue
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from eventually import eventually

from pgqueue._engine import core

PROGRAMS = Path(__file__).parent / "programs"
#: For -W: Python 3.12 and later warn on stderr of a fork while there are threads.
FORKS_WITH_THREADS = "ignore:This process:DeprecationWarning"
DEADLINE = 30.0  # seconds for any line: a machine may be slow, a test that hangs says nothing

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["pgqueue.jobs.clients", "pgqueue.worker"])
#: Held by the thread that starts a process or reads an exit code. multiprocessing reads the codes of all processes that
#: have ended when it starts one; each can be read once, and a second thread that reads it at the same time has 255.
looking = threading.Lock()


class Program:
    """A running helper program."""

    def __init__(self, name: str, *arguments: object, heard: Callable[[Any], None] | None = None) -> None:
        """`heard` is called with every line, in a thread; without it they wait for hear()."""
        read, self._stdin = _pipe("w")
        self._stdout, write = _pipe("r")
        theirs = (read, write, Connection(os.dup(2), readable=False))
        command = [str(PROGRAMS / f"{name}.py"), *map(str, arguments)]
        self._process = context.Process(target=_run, args=(command, os.getcwd(), dict(os.environ), theirs))
        with looking:
            self._process.start()
        for end in theirs:
            end.close()
        self._lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._heard = heard or self._lines.put
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def tell(self, line: str) -> None:
        self._stdin.write(line + "\n")
        self._stdin.flush()

    def hear(self, within: float = DEADLINE) -> Any:
        """The next line; queue.Empty if there is none in time, or the program ended."""
        return self._lines.get(timeout=within)

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.hear()

    def kill(self) -> None:
        with looking:
            self._process.kill()
        self.wait()

    def stop(self) -> None:
        """SIGSTOP, and wait until it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        eventually(lambda: _state(self.pid) == "T")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def has_ended(self) -> bool:
        return bool(wait([self._process.sentinel], 0))

    def wait(self) -> int:
        """Wait for its end; returns its exit code."""
        assert wait([self._process.sentinel], DEADLINE), f"process {self.pid} has not ended in {DEADLINE:g} s"
        with looking:
            self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def end(self) -> int:
        """Close its input, and wait for its end; returns its exit code."""
        self._stdin.close()
        return self.wait()

    def close(self) -> None:
        self.kill()
        self._reader.join()
        for stream in (self._stdin, self._stdout):
            stream.close()

    def _read(self) -> None:
        for line in self._stdout:
            self._heard(json.loads(line))


def _pipe(mode: str) -> tuple[Any, Any]:
    """The two ends of a pipe, first the one that is read; the end of this process is a stream of text."""
    read, write = context.Pipe(duplex=False)
    ours = write if mode == "w" else read
    stream: IO[str] = os.fdopen(os.dup(ours.fileno()), mode)
    ours.close()
    return (read, stream) if mode == "w" else (stream, write)


def _state(pid: int) -> str:
    """A letter, as ps prints it."""
    if (stat := Path(f"/proc/{pid}/stat")).exists():
        return stat.read_text().rpartition(")")[2].split()[0]
    return subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True).stdout[:1]


def _run(command: list[str], folder: str, environment: dict[str, str], streams: tuple[Connection, ...]) -> None:
    """Be the process that `python COMMAND` would have started."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing has closed it
    sys.argv = command
    sys.path.insert(0, str(PROGRAMS))
    atexit.unregister(core._at_exit)
    atexit.register(core._at_exit)  # from Python 3.13 on multiprocessing drops what was registered before its fork
    try:
        runpy.run_path(command[0], run_name="__main__")
    finally:  # as at the end of an interpreter; from Python 3.13 on multiprocessing does it too
        threading._shutdown()  # type: ignore[attr-defined]  # not public
        atexit._run_exitfuncs()


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
