"""The part of a client that both shells share: its settings, its server and its listener.

A Client and its mirror `client.aio` share one core, hence one listener thread, one session and one advisory lock.
The core connects at the first call and starts the listener at the first take. Threads share all of it. The dictionaries
of ids and cursors need no lock, since no entry is ever removed: the ids are replaced as a whole.

If the server is absent at the first call, the call waits for it as every later call does: it asks again, without the
lock, with the pauses of outages.py, which all threads share. So fifty threads make no more attempts than one, and each
ends when its own time is over.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Set
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from .._calls.call import Fence
from .._values import arguments, data
from .._values.arguments import Seconds
from ..errors import ClosedError, Error
from . import door, dsn, forks
from .cursor import ClaimCursor
from .duties import Duties
from .labels import new_label
from .listener import Listener
from .outages import COMING, REFUSED, Outage, Pauses, Slow, connected, gives_up
from .scarcity import Scarcity

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of a client, checked; Client's docstring explains them. Times in seconds."""

    dsn: str | None = field(repr=False)  # may hold a password
    listen_dsn: str | None = field(repr=False)
    pool_size: int
    connect_timeout: float
    call_timeout: float  # inf: without limit
    session_grace: float
    poll: float | None
    idle_timeout: float
    max_data_size: int
    share_commits: bool

    @classmethod
    def of(
        cls,
        *,
        dsn: str | None = None,
        listen_dsn: str | None = None,
        pool_size: int = 5,
        connect_timeout: Seconds = 10.0,
        call_timeout: Seconds | None = 15.0,
        session_grace: Seconds = 0.5,
        poll: Seconds | None = 30.0,
        idle_timeout: Seconds = 15.0,
        max_data_size: int = data.MAX_SIZE,
        share_commits: bool = True,
    ) -> Settings:
        """Settings from the arguments of a client. Raises ValueError."""
        patience = arguments.seconds("call_timeout", call_timeout, positive=True)
        return cls(
            dsn=dsn,
            listen_dsn=listen_dsn,
            pool_size=arguments.count("pool_size", pool_size),
            connect_timeout=arguments.required_seconds("connect_timeout", connect_timeout, positive=True),
            call_timeout=float("inf") if patience is None else patience,
            session_grace=arguments.required_seconds("session_grace", session_grace),
            poll=arguments.seconds("poll", poll, positive=True),
            idle_timeout=arguments.required_seconds("idle_timeout", idle_timeout),
            max_data_size=arguments.count("max_data_size", max_data_size),
            share_commits=arguments.flag("share_commits", share_commits),
        )

    @property
    def patience(self) -> float:
        """For how long a call waits for a connection to the server, seconds."""
        return min(self.connect_timeout, self.call_timeout)

    @property
    def lock_patience(self) -> float:
        """For how long a call waits for an advisory lock."""
        return lock_patience(self.call_timeout)


def lock_patience(seconds: float) -> float:
    """For how long a call of `seconds` waits for an advisory lock: the server can still name its holder then."""
    return max(0.6 * seconds, seconds - 2.0)


class Core:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.label = new_label()
        self.outage = Outage(self.label)
        self.scarcity = Scarcity()
        self.duties = Duties()
        self.closed = False
        self.queue_ids: dict[str, int] = {}
        self.queue_ids_session: int | None = None  # the session under which the ids were read; see takes.py
        self.queues_with_flows: set[str] = set()  # as queues_with_lanes, of tasks that wait for others
        self.queues_with_lanes: set[str] = set()  # queues that this client has told to use lanes; only grows
        self.cursors: dict[str, ClaimCursor] = {}
        self.observers: dict[str, Any] = {}  # one a queue; see changes.py
        self.patience = settings.patience  # seconds for which the first call waits for an absent server
        self._lock = threading.Lock()
        self._address: str | None = None
        self._conninfo: str | None = None  # the address, once it was checked
        self._failure: Error | None = None  # of the last check that failed
        self._failed_at = 0.0
        self._pauses = Pauses()  # between two attempts while the server is absent
        self._listener: Listener | None = None
        forks.register(self)

    def address(self) -> str:
        """The connection string, unchecked. Raises ServerError if the embedded server cannot be started."""
        with self._lock:
            return self._resolved()

    def conninfo(self, within: float | None = None) -> str:
        """The connection string. The first call checks that the server can be reached and that its schema fits.

        Args:
            within: for how many seconds to wait for an absent server; 0: one attempt. Default: `patience`.

        Raises:
            ServerError: the server cannot be reached, or refuses the connection.
            SetupError: a pooler, the role or the database is set up so that pgqueue cannot work.
            SchemaError: the version of pgqueue's schema in the database does not fit this library.
            ClosedError: the client is closed.
        """
        return self._patiently(self._checked_conninfo, within)

    def pause(self) -> float:
        """For how many seconds there is no attempt to find an absent server."""
        return max(self._pauses.left(), 0.0)

    def check(self) -> None:
        """Connect again, in one attempt. Raises as conninfo()."""
        door.check(self.conninfo(0), pooled=bool(self.settings.listen_dsn), timeout=self.settings.patience)

    def listener(self, within: float | None = None) -> Listener:
        """The listener, which the first call starts. Takes and raises as conninfo()."""
        return self._patiently(self._started_listener, within)

    @property
    def running_listener(self) -> Listener | None:
        """The listener if it runs already: then a coroutine gets it without leaving the event loop."""
        return None if self.closed else self._listener

    def fence(self, token: int | None) -> Fence:
        """The proof that a settling call presents: a take's token, or the session, even while it reconnects."""
        return Fence(token, self._listener.last_session if self._listener else None, self.label)

    def exchange_observer(self, queue: str, new: Any) -> Any:
        """Replace the queue's observer, None for none. Returns the old one, or None."""
        with self._lock:
            old = self.observers.get(queue)
            if new is None:
                self.observers.pop(queue, None)
            else:
                self.observers[queue] = new
            return old

    def reload(self) -> None:
        """Replace the listener's thread, if there is a listener. Raises ClosedError, RuntimeError."""
        with self._lock:
            if self.closed:
                raise ClosedError("the client is closed")
            listener = self._listener
        if listener is not None:
            listener.reload()

    def handle_here(self) -> None:
        """This context runs a worker's handlers, which must not close the client under it."""
        _handling.set({*_handling.get(), self})

    def close(self) -> None:
        """Release all takes and end the listener. Does nothing the second time. Raises RuntimeError in a handler."""
        if self in _handling.get():
            raise RuntimeError("a handler cannot close the client of its worker: stop the worker first, from outside")
        with self._lock:
            self.closed = True
            listener = self._listener
        if listener is not None:
            listener.stop()
            _listening.discard(self)

    def _patiently(self, check: Callable[[float], T], within: float | None) -> T:
        """Run a check; again while the server is absent, or lost during the check, which changes nothing.

        `check` gets the seconds for an answer.
        """
        end = (began := time.monotonic()) + (self.patience if within is None else within)
        while True:
            left = end - time.monotonic()
            try:
                made = connected(partial(self._once, partial(check, max(left, door.ATTEMPT))))
            except Slow:
                if (failure := self._failure) is None:  # read once: another thread may connect just now
                    raise
                raise type(failure)(*failure.args) from failure  # of the attempt before: it says why
            except COMING as error:
                if gives_up(error):
                    end = min(end, began + REFUSED)
                if (left := end - time.monotonic()) <= 0:
                    raise
                self.outage.met(error)
                self.scarcity.refused(self, error)
            else:
                self.scarcity.served(self)
                return made
            time.sleep(min(self.pause(), left))

    # As a part of the client that needs a connection, for a check (scarcity.py).

    needs, is_pool = 1, False

    def held(self) -> int:
        return 0

    def give_way(self) -> None:
        """Only pools are asked."""

    def _once(self, check: Callable[[], T]) -> T:
        """Run a check under the lock. If it fails, the threads that waited for the lock during it fail with it.

        Otherwise each of them would try in its turn, and the last of 50 threads would wait 50 times as long.
        """
        began = time.monotonic()
        with self._lock:
            if self._failure is not None and (self._failed_at >= began or self._pauses.left() > 0):
                raise type(self._failure)(*self._failure.args) from self._failure
            try:
                made = check()
            except Error as error:
                self._failure, self._failed_at = error, time.monotonic()
                if isinstance(error, COMING):
                    self._pauses.failed()
                raise
            self._failure = None
            self._pauses.succeeded()
            return made

    def _resolved(self) -> str:
        if self._address is None:
            self._address = dsn.resolve(self.settings.dsn)
        return self._address

    def _checked_conninfo(self, left: float) -> str:
        if self.closed:
            raise ClosedError("the client is closed")
        if self._conninfo is None:
            address = self._resolved()
            door.check(address, pooled=bool(self.settings.listen_dsn), timeout=left)
            self._conninfo = address
            self.outage.over()
        return self._conninfo

    def _started_listener(self, left: float) -> Listener:
        settings, direct = self.settings, self._checked_conninfo(left)
        if self._listener is None:
            if settings.listen_dsn:
                direct = dsn.plain(settings.listen_dsn)
                door.check_listening(direct, left)
            self._listener = Listener(
                direct,
                self.label,
                grace=settings.session_grace,
                idle_timeout=settings.idle_timeout,
                call_timeout=settings.call_timeout,
                outage=self.outage,
                scarcity=self.scarcity,
                duties=self.duties,
            )
            _listening.add(self)
        return self._listener

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        if self._listener is not None:
            self._listener.abandon()
            self._listener = None
            _listening.discard(self)
        self.observers = {}
        self.label = new_label()
        self.outage = Outage(self.label)
        self.scarcity = Scarcity()
        self._pauses = Pauses()


#: The cores whose worker runs its handlers in this context. Other threads that a handler starts do not have them.
_handling: ContextVar[Set[Core]] = ContextVar("pgqueue_handling", default=frozenset())  # never changed

#: References to cores, since a listener's thread and its takes outlive a client that was dropped without a close.
_listening: set[Core] = set()


def _at_exit() -> None:
    """Close the clients that the program did not close: their tasks are ready again at once."""
    for core in list(_listening):
        core.close()


atexit.register(_at_exit)
