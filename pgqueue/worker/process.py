"""A child process, as its worker sees it; children.py has the theory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ProcessDied
from ..jobs.setups import ChildSetup
from .frames import Frames
from .remote import SOFT, Failed, hear_log, tell_error, tell_levels
from .runs import Run

START = 60.0  # seconds for a child to start and to import its modules
CHECK = 0.1  # seconds between two looks at a process without a pidfd

Answers = Callable[[Any], Any]  # of the worker, to the requests of a child


class Child:
    """One process. It can end the run that it is lent for."""

    def __init__(self, modules: Sequence[str], setup: ChildSetup | None = None) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "pgqueue.worker.child", str(theirs.fileno()), str(os.getpid())]
        with theirs:
            try:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0
                )
            except BaseException:
                ours.close()
                raise
        self.served = self.memory = 0
        self.killed = self.spoiled = False
        self._frames = Frames(ours)
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._ready = False
        self._poll = select.poll()
        self._poll.register(ours, select.POLLIN)
        self._pidfd = _pidfd(self.process.pid)
        if self._pidfd is not None:
            self._poll.register(self._pidfd, select.POLLIN)
        with contextlib.suppress(OSError):  # it died at once: serve() says so
            self._frames.send(
                {
                    "path": sys.path,
                    "modules": list(modules),
                    "levels": tell_levels(),
                    "setup": setup and dataclasses.asdict(setup),
                }
            )

    # --- the ender of its run

    def end(self, run: Run) -> None:
        with self._lock:
            if self._run is run:
                run.ended_at = time.monotonic()
                self._kill()

    def soften(self, run: Run) -> None:
        with self._lock:
            if self._run is run and self._ready:
                self.process.send_signal(SOFT)

    def abandon(self) -> bool:
        return False

    def occupant(self) -> object:
        return None

    def stack(self) -> str:
        return f"process {self.process.pid} cannot be killed"

    # --- for its pool

    @contextlib.contextmanager
    def lent(self, run: Run) -> Iterator[None]:
        """Within this block the run is the child's, and ends with it."""
        before = run.ender  # the loop, if a coroutine waits for the thread that lends the child
        with self._lock:
            self._run, run.ender = run, self
        try:
            yield
        finally:
            with self._lock:
                self._run, run.ender = None, before

    def serve(self, run: Run, order: Mapping[str, Any], answers: Answers) -> Any:
        """Have the order done; its run must be the child's. Returns the result, or None: see run.unkept.

        Raises:
            ProcessDied: the process has ended.
            Failed: the handler, or an import before it, has raised.
        """
        if not self._ready:
            self._wait_for("ready", lambda asked: None)
            self._ready = True
        run.began = time.monotonic()
        self.served += 1
        with contextlib.suppress(OSError):  # it has ended, as the next line finds
            self._frames.send({"order": order, "number": self.served})
        answer = self._wait_for("done", lambda asked: self._answer(run, answers, *asked))
        self.memory, self.spoiled = answer["memory"], "spoiled" in answer
        if failure := answer.get("failed"):
            raise Failed(failure)
        run.unkept = answer.get("unkept")
        return answer["done"]

    def kill(self) -> None:
        with self._lock:
            self._kill()

    def ask_to_leave(self) -> None:
        with contextlib.suppress(OSError):
            self._frames.send({"leave": True})

    def reap(self, until: float) -> None:
        """Wait for its end until then, kill it after that, and close its descriptors."""
        try:
            self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # processes that its handlers have left behind
        self._frames.socket.close()
        if self._pidfd is not None:
            os.close(self._pidfd)

    def _kill(self) -> None:
        self.killed = True
        if self.process.returncode is None:  # else another process may have its id
            programs = _descendants(self.process.pid)  # also those with a session of their own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            for pid in programs:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _answer(self, run: Run, answers: Answers, number: int, key: int, verb: str, given: Any, named: Any) -> None:
        if number != self.served:
            said: Any = [tell_error(RuntimeError("the handler of this task has returned")), None]
        elif verb == "watch":
            run.told = functools.partial(self._tell_cancelled, number)
            said = [None, [run.reason] if run.cancelled else None]
        else:
            said = answers([verb, given, named])
        with contextlib.suppress(OSError):
            self._frames.send({"answer": [key, *said]})

    def _tell_cancelled(self, number: int, reason: str | None) -> None:
        with contextlib.suppress(OSError):
            self._frames.send({"cancelled": [number, reason]})

    def _wait_for(self, what: str, answer: Callable[[Any], None]) -> Any:
        """The message with `what`. Those before it are log records and questions."""
        while True:
            message = self._next()
            if what in message:
                return message
            if "log" in message:
                hear_log(message["log"])
            elif "ask" in message:
                answer(message["ask"])

    def _next(self) -> Any:
        while (message := self._frames.next()) is None:
            ready = {fd for fd, _ in self._poll.poll(None if self._pidfd is not None else CHECK * 1000)}
            if self._frames.socket.fileno() in ready:
                if self._frames.fill():
                    continue
            elif not ready and self.process.poll() is None:
                continue
            self.process.wait()
            raise ProcessDied(f"the process of the handler {_end(self.process.returncode)}")
        return message


def _pidfd(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended; None where the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _descendants(pid: int) -> list[int]:
    """The processes that it has started, and those that they have, where /proc tells; no daemons."""
    found, left = list[int](), [pid]
    while left:
        with contextlib.suppress(OSError):
            for children in Path(f"/proc/{left.pop()}/task").glob("*/children"):
                started = [int(child) for child in children.read_text().split()]
                found += started
                left += started
    return found


def _end(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
