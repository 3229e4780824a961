"""Outages of the server: the errors that mean one, the pauses, and the log. One policy for all.

The listener and its statements (retries.py), the pools, the first call of a client, calls for a session, watches, the
clock, the supervisor, the owners of threads (owners.py) and a worker's threads each have Pauses of their own, since
each of them may be refused for a reason of its own. They are computed here only; tests/project/test_pauses.py finds a
pause that grows elsewhere, and names the rules for the few that stay:

- A pause doubles with each failure, up to LONGEST, and is random between a half and the whole of that. Nothing shortens
  it: a thread that is woken in its pause, for example by a poke of the listener, goes on pausing. At first a poke ended
  the pause, and a thread that poked whenever the connection was lost connected 700 times a second.
- LONGEST is less than a second, so a call that begins once the server is back has its connection within a second. If a
  caller could cut a pause short, pauses could be longer, but then many callers would be a storm.

All of them share the log of their client: an outage is one warning, when it is first met, and another one every TELL
seconds while it lasts. The first success tells how long it took. An outage that is met again within SAME seconds of its
end goes on: where the server has no connection left, one part of a client is served while another one is refused, and
each refusal would be an outage of its own.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from threading import Thread
from typing import TypeVar

import psycopg

from .._values.logs import log
from ..errors import ConnectionLost, Error, ServerError
from .scarcity import limit_of

T = TypeVar("T")


FIRST, LONGEST = 0.02, 0.6  # seconds
TELL = 30.0  # seconds between two warnings of one outage
MOVES_ON = 0.3  # seconds for a server to connect a call that may go to another one
REFUSED = 0.3  # seconds after which a call gives up a server that refuses it
SAME = 1.0  # seconds without it after which an outage is a new one

#: The errors of a call that met the outage: the same call may succeed later. _calls/sqlstates.py decides which errors
#: mean that a connection is lost.
AWAY = (ServerError, ConnectionLost)


class Absent(ServerError):
    """The first connection of a client: no server answers, it is just starting, or it has no connection left.

    A refusal for another reason is no Absent.
    """


#: The errors of the first connection after which another attempt makes sense.
COMING = (Absent, ConnectionLost)


class Slow(ServerError):
    """A server has not connected this call within MOVES_ON, nor refused it, and may connect the next one."""


def slow() -> Slow:
    return Slow(f"the server has not connected within {MOVES_ON:g} s")


_moves_on = ContextVar("pgqueue_moves_on", default=False)
_fails_soon = ContextVar("pgqueue_fails_soon", default=False)


@contextmanager
def _true(flag: ContextVar[bool]) -> Iterator[None]:
    token = flag.set(True)
    try:
        yield
    finally:
        flag.reset(token)


def moving_on() -> AbstractContextManager[None]:
    """The calls within this block may go to another server."""
    return _true(_moves_on)


def failing_soon() -> AbstractContextManager[None]:
    """The calls within this block have one server, but a server that refuses them must not hold up their caller."""
    return _true(_fails_soon)


def moves_on() -> bool:
    """Whether this call gives up a server that has not connected it after MOVES_ON seconds.

    A statement that was sent is never given up for that: it may have been executed, and would be repeated elsewhere.
    """
    return _moves_on.get()


def is_hasty() -> bool:
    """Whether this call looks after MOVES_ON seconds whether to give up the server."""
    return _moves_on.get() or _fails_soon.get()


def gives_up(reason: BaseException) -> bool:
    """Whether this call gives up a server that has refused it for this reason for REFUSED seconds.

    A call that cannot go elsewhere waits on at a limit of connections: the server is there.
    """
    return _moves_on.get() or (_fails_soon.get() and limit_of(reason) is None)


def connected(work: Callable[[], T]) -> T:
    """Do work that connects. If this call moves on, the work goes on in a thread of its own, for the calls after it.

    libpq tries to connect for two seconds at least, so a shorter try would need a loop of its own, and would never
    reach a server that is slow.

    Raises:
        Slow: the call moves on.
    """
    if not moves_on():
        return work()
    done: Future[T] = Future()
    Thread(target=_complete, args=(done, work), name="pgqueue-connecting", daemon=True).start()
    try:
        return done.result(MOVES_ON)
    except TimeoutError:
        raise slow() from None


def _complete(done: Future[T], work: Callable[[], T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)


class Pauses:
    """The pauses of one thread, or of one kind of attempt; `first` and `longest` in seconds."""

    def __init__(self, first: float | None = None, longest: float | None = None) -> None:
        self.at = 0.0  # the monotonic time before which there is no attempt
        self._first = FIRST if first is None else first
        self._longest = LONGEST if longest is None else longest
        self._next = self._first

    def failed(self, grows: bool = True) -> float:
        """An attempt has failed. Returns for how many seconds to pause; `grows`: whether the next pause is longer."""
        pause = random.uniform(self._next / 2, self._next)
        if grows:
            self._next = min(2 * self._next, self._longest)
        self.at = time.monotonic() + pause
        return pause

    def succeeded(self) -> None:
        self.at, self._next = 0.0, self._first

    def left(self) -> float:
        """For how many seconds to pause still; not positive: no more."""
        return self.at - time.monotonic()


class Outage:
    """The log of one client about its server. Thread-safe."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._lock = threading.RLock()  # a signal's handler may call in here
        self._since: float | None = None  # None: the server is there
        self._began, self._ended = 0.0, float("-inf")  # of the last outage
        self._tell_at = 0.0
        self._told = False  # since the last success

    def met(self, error: BaseException) -> None:
        """A part of the client could not reach the server, or has lost it. Warns at once, then every TELL seconds."""
        with self._lock:
            now = time.monotonic()
            if self._since is None:
                if now - self._ended >= SAME:
                    self._began = self._tell_at = now
                self._since = self._began
            if now < self._tell_at:
                return
            self._tell_at, self._told = now + TELL, True
            lasted = now - self._since
        text = str(error).strip() or type(error).__name__
        unexpected = not isinstance(error, Error | psycopg.Error)
        if lasted < TELL / 2:
            log.warning("%s cannot reach its server and tries again: %s", self._label, text, exc_info=unexpected)
        else:
            log.warning("%s tries again, for %.0f s now: %s", self._label, lasted, text, exc_info=unexpected)

    def over(self) -> None:
        """A part of the client has reached the server."""
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
            told, self._told = self._told, False
            self._ended = time.monotonic()
        if since is not None and told:
            log.info("%s reached its server again, after %.1f s", self._label, self._ended - since)
