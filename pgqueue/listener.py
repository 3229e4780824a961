"""The one thread and dedicated connection of a client that takes: it listens, holds the session, and sweeps.

Theory of operation
-------------------
The connection is this thread's alone. Other threads leave work (a hub to reconcile, a job to run) and write a byte
into a pipe; the thread sleeps in a selector over that pipe and the connection's socket. psycopg's own notifies()
would hold the connection's lock for as long as it waits, and wakes ten times a second.

    connect -> open the session -> wake everybody -> [ reconcile the hub, jobs, ticks, notifications, sleep ] ...
       ^                                                              |
       '---------------- pause, growing to 5 s <------ lost ----------'

- The session's advisory lock lives on this connection, so the connection's life is the session's. After a loss the
  session is opened again by its id, and takes live on if that was quick enough (session.sql).
- What was notified while nobody listened is gone: after each connect everybody looks again.
- Notifications are read before sleeping, always: some arrive with the answers to our own statements.
- No put runs here: the probe for waiters cannot see the locks of its own connection (signal.sql).
- A tick gives back what dead sessions held, and makes ready what is due. A tick that took long is followed by a
  rest REST times as long, since under a held snapshot it walks over dead rows.
- Half-open connections: the kernel is told to give up after about 11 s without an answer, on both ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import tuple_row

from . import calls
from .calls import Call
from .forks import detach
from .hub import Hub, Signal

T = TypeVar("T")
log = logging.getLogger("pgqueue")

TICK = 0.25  # seconds between sweeps, jittered
REST = 10.0
PAUSE = (0.02, 5.0)  # before connecting anew: first and longest, seconds
HALF_OPEN: dict[str, Any] = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10000,
}
SETTINGS = """
    SET statement_timeout = 0; SET idle_session_timeout = 0; SET lock_timeout = '2s';
    SET default_transaction_isolation = 'read committed'; SET synchronous_commit = off;
    SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3;
    SET tcp_user_timeout = 10000; SET client_connection_check_interval = 0;
"""


class Listener:
    """Starts its thread when made. `hub` is for takers; `session` is the session's id while it is alive."""

    def __init__(self, conninfo: str, label: str, *, grace: float, idle_timeout: float) -> None:
        self.hub = Hub(idle_timeout)
        self.session: int | None = None
        self.failure: Exception | None = None  # why there is no session
        self._conninfo = make_conninfo(conninfo, application_name="pgqueue listener", **HALF_OPEN)
        self._label = label
        self._grace = grace
        self.last_session: int | None = None
        self._jobs: deque[Call[Any]] = deque()
        self._waiting: list[Signal] = []  # for a session
        self._lock = threading.Lock()
        self.stopping = False
        self._conn: psycopg.Connection[Any] | None = None
        self._pipe = socket.socketpair()
        for end in self._pipe:
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pipe[0], selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="pgqueue-listener", daemon=True)
        self._thread.start()

    # --- for other threads

    def when_session(self, signal: Signal) -> None:
        """Set `signal` as soon as there is a session, or the news that there is none."""
        with self._lock:
            self._waiting.append(signal)
            if self.session is not None or self.stopping:
                signal.set()

    def later(self, call: Call[Any]) -> None:
        """Run a call on the listener's connection, soon; again after a failure."""
        self._jobs.append(call)
        self.poke()

    def poke(self) -> None:
        """Make the thread look at its hub and jobs."""
        with contextlib.suppress(OSError):  # full: it will look anyway; closed: it is gone
            self._pipe[1].send(b"\0")

    def stop(self) -> None:
        """Give back all that is taken, end the session and the thread, and wake everybody."""
        self.stopping = True
        self.poke()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's connection."""
        if self._conn is not None:
            detach(self._conn)
        self._selector.close()
        for end in self._pipe:
            end.close()

    # --- the thread

    def _run(self) -> None:
        pause = PAUSE[0]
        while not self.stopping:
            try:
                with self._connect() as self._conn, self._selected(self._conn):
                    self._serve(self._conn)
            except Exception as error:  # of whatever kind: without this thread nobody is woken
                if self.session is not None:  # and not at the connect: a standby lets us in, and then refuses a session
                    pause = PAUSE[0]
                self._disconnected(error)
                self._sleep(random.uniform(pause / 2, pause))
                pause = min(pause * 2, PAUSE[1])
        self._tell()
        self.hub.close()
        self._selector.close()
        for end in self._pipe:
            end.close()

    def _connect(self) -> psycopg.Connection[Any]:
        conn = psycopg.connect(self._conninfo, autocommit=True, row_factory=tuple_row, connect_timeout=10)
        conn.add_notify_handler(lambda note: self._notified(note.channel))
        conn.execute(SETTINGS)
        if conn.info.server_version >= 170000:
            conn.execute("SET transaction_timeout = 0")
        return conn

    def _serve(self, conn: psycopg.Connection[Any]) -> None:
        opened = self._do(conn, calls.open_session(self.last_session, self._grace, self._label))
        if self.last_session not in (None, opened):
            log.warning("the session of %s was given up: what it had taken is ready again", self._label)
        self.last_session = self.session = opened
        self._tell()
        self.hub.wake_all()
        sweeps = Ticks(TICK)
        promotions = Ticks(TICK)
        while not self.stopping:
            self._run_jobs(conn)
            again = self._reconcile(conn)
            sweeps.run(lambda: self._do(conn, calls.sweep()))
            promotions.run(lambda: self._do(conn, calls.promote_all()))
            self._read(conn)
            self._sleep(min(again, sweeps.at, promotions.at) - time.monotonic())
            self._read(conn)  # a taker waits for this more than for all of the above
        self.session = None
        self._do(conn, calls.close_session())

    def _run_jobs(self, conn: psycopg.Connection[Any]) -> None:
        with contextlib.suppress(psycopg.errors.LockNotAvailable):  # then at the next tick
            while self._jobs:
                self._do(conn, self._jobs[0])
                self._jobs.popleft()

    def _reconcile(self, conn: psycopg.Connection[Any]) -> float:
        """Send what the hub plans; returns when it wants to be asked again."""
        plan = self.hub.plan()
        if plan.disarm:
            self._do(conn, calls.disarm(plan.disarm))
        if plan.unlisten or plan.listen:
            conn.execute(
                sql.SQL("; ").join(
                    sql.SQL(verb).format(sql.Identifier(calls.channel(id)))
                    for verb, ids in (("UNLISTEN {}", plan.unlisten), ("LISTEN {}", plan.listen))
                    for id in ids
                )
            )
            self.hub.listening(plan.listen)
        if plan.arm:
            self.hub.armed(self._do(conn, calls.arm(plan.arm)))
        if plan.drain:
            self.hub.drained(self._do(conn, calls.drain(plan.drain)))
        return 0.0 if plan.arm or plan.drain else plan.again

    def _do(self, conn: psycopg.Connection[Any], call: Call[T]) -> T:
        return call.read(conn.execute(call.sql, call.args).fetchall())

    def _read(self, conn: psycopg.Connection[Any]) -> None:
        conn.pgconn.consume_input()  # raises when the server has gone
        while note := conn.pgconn.notifies():
            self._notified(note.relname.decode())

    def _notified(self, channel: str) -> None:
        queue = calls.queue_of(channel)
        if queue is not None:
            self.hub.signal([queue])

    @contextlib.contextmanager
    def _selected(self, conn: psycopg.Connection[Any]) -> Iterator[None]:
        key = self._selector.register(conn.fileno(), selectors.EVENT_READ)
        try:
            yield
        finally:
            self._selector.unregister(key.fd)

    def _sleep(self, seconds: float) -> None:
        self._selector.select(max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            self._pipe[0].recv(4096)

    def _tell(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for signal in waiting:
            signal.set()

    def _disconnected(self, error: Exception) -> None:
        self.session = None
        self.failure = error
        self._conn = None
        self.hub.disconnected()
        self._tell()
        if not self.stopping:
            log.warning(
                "the listener of %s lost its connection and tries again: %s",
                self._label,
                str(error).strip(),
                exc_info=not isinstance(error, psycopg.Error),
            )


class Ticks:
    """When to do a periodic piece of work: jittered, earlier if it asks for that, later if it took long."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self.at = 0.0

    def run(self, work: Callable[[], float | None]) -> None:
        began = time.monotonic()
        if began < self.at:
            return
        sooner = work()
        now = time.monotonic()
        pause = self._interval * random.uniform(0.8, 1.0)
        self.at = now + max(pause if sooner is None else min(pause, sooner), REST * (now - began))


def label() -> str:
    """What others see of this process: host, process id and program."""
    return f"{socket.gethostname()}:{os.getpid()}:{os.path.basename(sys.argv[0] or 'python')}"
