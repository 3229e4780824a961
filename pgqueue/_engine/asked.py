"""Calls that other threads ask for and that the listener's thread runs, once each, in their order."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import psycopg

from .._calls.call import Call
from .._calls.sqlstates import translate
from .retries import Conn, do, lives
from .steps import Signal

T = TypeVar("T")
PATIENCE = 10.0  # seconds to try a call while a table that it needs is locked
PAUSE = 0.05  # seconds between these attempts


class Asked(Generic[T]):
    """A call for the listener's connection. `done` is set when the call has succeeded or failed."""

    def __init__(self, call: Call[T], done: Signal) -> None:
        self.call = call
        self.done = done
        self.until = time.monotonic() + PATIENCE
        self._result: T | None = None
        self._error: Exception | None = None

    def outcome(self) -> T:
        """The result of a call that is done; raises its error."""
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def succeeded(self, result: T) -> None:
        self._result = result
        self.done.set()

    def failed(self, error: Exception) -> None:
        self._error = error
        self.done.set()


class Asks:
    """The calls that wait for the listener's thread.

    A call that a locked table refused has had no effect, and the connection does not wait for the lock: the call is
    first in line again. No later call overtakes it, since a call may undo an earlier one (locks.py).
    """

    def __init__(self) -> None:
        self.at = float("inf")  # the monotonic time of the next attempt, if a call was refused
        self._waiting: deque[Asked[Any]] = deque()

    def add(self, asked: Asked[Any]) -> None:
        self._waiting.append(asked)

    def withdraw(self, asked: Asked[Any]) -> None:
        """Do not run this call, unless it is under way."""
        with contextlib.suppress(ValueError):
            self._waiting.remove(asked)

    def run(self, conn: Conn) -> None:
        """Run the calls. A lost connection raises, and leaves the call that it broke to refuse()."""
        if self.at < float("inf") and time.monotonic() < self.at:
            return
        self.at = float("inf")
        while self._waiting and self.at == float("inf"):
            asked = self._waiting.popleft()
            try:
                result = do(conn, asked.call)
            except Exception as error:
                if not lives(conn):
                    self._waiting.appendleft(asked)  # refused with the others, after the holders of locks were told
                    raise
                if isinstance(error, psycopg.errors.LockNotAvailable) and time.monotonic() < asked.until:
                    self._waiting.appendleft(asked)
                    self.at = time.monotonic() + PAUSE
                else:
                    asked.failed(translate(error, lost=False) if isinstance(error, psycopg.Error) else error)
            else:
                asked.succeeded(result)

    def refuse(self, error: Exception) -> None:
        """Fail all calls that wait."""
        self.at = float("inf")
        while self._waiting:
            self._waiting.popleft().failed(error)


class Done(threading.Event):
    """A signal that calls back once it is set."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.Lock()
        self._call: Callable[[], None] | None = None

    def set(self) -> None:
        with self._turn:
            super().set()
            call, self._call = self._call, None
        if call is not None:
            call()

    def then(self, call: Callable[[], None]) -> None:
        with self._turn:
            if not self.is_set():
                self._call = call
                return
        call()
