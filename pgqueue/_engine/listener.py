"""The listener: a client's one thread with a dedicated connection. It listens, holds the session, and sweeps.

Theory of operation
-------------------
Only this thread uses the connection. Other threads leave work (a hub to reconcile, a job to run) and write a byte
into a pipe; the thread sleeps in a selector over that pipe and the connection's socket. psycopg's own notifies()
would hold the connection's lock for as long as it waits, and wakes ten times a second.

    connect -> open the session -> wake all waiters -> [ reconcile the hub, jobs, ticks, notifications, sleep ] ...
       ^                                                              |
       '---------------- pause, growing to 5 s <------ lost ----------'

- This connection holds the session's advisory lock, so the session lives as long as the connection. After a loss the
  listener opens the session again by its id; if that was quick enough, the takes live on (sql/2_base/session.sql).
- Notifications that were sent while the listener was disconnected are gone: after each connect every waiter looks
  again.
- The thread always reads notifications before it sleeps: some arrive with the answers to its own statements.
- No put runs on this connection: the probe for waiters cannot see the locks of its own connection
  (sql/2_base/wake.sql).
- A tick releases the takes of dead sessions and makes ready the tasks that are due. A tick that took long is followed
  by a rest REST times as long, since under a held snapshot it walks over dead rows.
- reload() replaces the thread by another one. All state that outlives a turn of the loop, the connection included,
  belongs to the listener and not to the thread. So the next thread goes on where this one stopped: it sends nothing to
  the server, and no waiter is woken.
- Half-open connections: the kernel is told to give up after about 11 s without an answer, on both ends.
"""

from __future__ import annotations

import contextlib
import logging
import random
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from .._calls import channels
from .._calls import session as session_calls
from .._calls import wake as wake_calls
from .._calls.call import Call
from ..errors import ClosedError, ConnectionLost, translate
from . import direct
from .asked import Asked
from .forks import detach
from .hub import Hub, Signal
from .switchboard import Switchboard
from .ticks import Ticks

T = TypeVar("T")
log = logging.getLogger("pgqueue")

TICK = 0.25  # seconds between sweeps, jittered
CLEANING = 10.0  # seconds between removals of obsolete rows
PAUSE = (0.02, 5.0)  # before connecting anew: first and longest, seconds


class Listener:
    """Starts its thread when made. Takers wait in `hub`, waiters on a named channel in `switchboard`.

    `session` is the session's id while it is alive. The thread calls each function in `on_lost` when the connection
    breaks.
    """

    def __init__(self, conninfo: str, label: str, *, grace: float, idle_timeout: float) -> None:
        self.hub = Hub(idle_timeout)
        self.switchboard = Switchboard(idle_timeout)
        self.on_lost: list[Callable[[], None]] = []
        self.session: int | None = None
        self.failure: Exception | None = None  # why there is no session
        self._conninfo = conninfo
        self._label = label
        self._grace = grace
        self.last_session: int | None = None
        self.identity: str | None = None  # of this session, and of the next if this one is given up; 2_base/session.sql
        self._jobs: deque[Call[Any]] = deque()
        self._asked: deque[Asked[Any]] = deque()
        self._posted: deque[tuple[str, str]] = deque()
        self._waiting: list[Signal] = []  # for a session
        self._lock = threading.Lock()
        self.stopping = False
        self._conn: psycopg.Connection[Any] | None = None
        self._pipe = socket.socketpair()
        for end in self._pipe:
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pipe[0], selectors.EVENT_READ)
        self._handing_over = False  # the thread leaves everything to the next one
        self._replacing = threading.Lock()
        self._start()

    # --- for other threads

    def when_session(self, signal: Signal) -> None:
        """Set `signal` as soon as there is a session, or an attempt to connect has failed, or the client closes."""
        with self._lock:
            self._waiting.append(signal)
            if self.session is not None or self.stopping:
                signal.set()

    def later(self, call: Call[Any]) -> None:
        """Run a call on the listener's connection soon, and repeat it if the connection breaks."""
        self._jobs.append(call)
        self.poke()

    def ask(self, call: Call[T], done: Signal) -> Asked[T]:
        """Run a call on the listener's connection, once, and set `done`. For state that this connection holds."""
        asked = Asked(call, done)
        with self._lock:
            if self.stopping:
                asked.failed(ClosedError("the client is closed"))
            else:
                self._asked.append(asked)
        self.poke()
        return asked

    def poke(self) -> None:
        """Make the thread look at its hub and jobs."""
        with contextlib.suppress(OSError):  # full: it will look anyway; closed: it is gone
            self._pipe[1].send(b"\0")

    def stop(self) -> None:
        """Release all takes, end the session and the thread, and wake all waiters."""
        with self._lock:
            self.stopping = True
        self.poke()
        if self._thread is not threading.current_thread():
            with self._replacing:
                self._thread.join()

    def reload(self) -> None:
        """Replace the thread, once it has ended, by one that goes on with its connection and its waiters."""
        if self._thread is threading.current_thread():
            raise RuntimeError("reload() in a callback would wait for the end of the thread that it runs in")
        with self._replacing:
            if self._thread.is_alive():
                self._handing_over = True
                self.poke()
                self._thread.join()
                self._handing_over = False
                self._start()  # also while the listener is stopping: a thread has to end it

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="pgqueue-listener", daemon=True)
        self._thread.start()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's connection."""
        self.stopping = True
        self.switchboard.after_fork()
        if self._conn is not None:
            detach(self._conn)
        self._selector.close()
        for end in self._pipe:
            end.close()

    # --- the thread

    def _run(self) -> None:
        pause = PAUSE[0]
        while not (self.stopping or self._handing_over):
            try:
                self._serve(self._conn or self._connect())
            except Exception as error:  # of any kind: without this thread no taker is woken
                if self.session is not None:  # else keep the pause: a standby connects, but refuses a session
                    pause = PAUSE[0]
                self._disconnected(error)
                self._sleep(random.uniform(pause / 2, pause))
                pause = min(pause * 2, PAUSE[1])
        if not self._handing_over:
            self._end()

    def _connect(self) -> psycopg.Connection[Any]:
        conn = direct.connect(self._conninfo, self._notified)
        self._selected = self._selector.register(conn.fileno(), selectors.EVENT_READ)
        self._conn = conn
        opened = self._do(conn, session_calls.open_session(self.last_session, self._grace, self._label, self.identity))
        if self.last_session not in (None, opened):
            log.warning("the session of %s was given up: what it had taken is ready again", self._label)
        self.last_session = self.session = opened
        self._tell()
        self.hub.wake_all()
        return conn

    def _serve(self, conn: psycopg.Connection[Any]) -> None:
        sweeps = Ticks(TICK)
        promotions = Ticks(TICK)
        cleanings = Ticks(CLEANING)
        while not (self.stopping or self._handing_over):
            self._run_jobs(conn)
            again = self._reconcile(conn)
            self._answer(conn)
            sweeps.run(lambda: self._do(conn, session_calls.sweep()))
            promotions.run(lambda: self._do(conn, session_calls.promote_all()))
            cleanings.run(lambda: self._do(conn, session_calls.clean_up()))
            self._read(conn)
            self._sleep(min(again, sweeps.at, promotions.at, cleanings.at) - time.monotonic())
            if self._read(conn):  # a taker may be waiting for a notification
                time.sleep(0)  # give the interpreter to the woken thread at once, not when this one sleeps

    def _end(self) -> None:
        try:
            if self._conn is not None:
                self.session = None
                self._do(self._conn, session_calls.close_session())
        except Exception as error:
            self._disconnected(error)
        self._hang_up()
        self._tell()
        self._refuse(ClosedError("the client is closed"))
        self.hub.close()
        self.switchboard.close()
        self._selector.close()
        for end in self._pipe:
            end.close()

    def _run_jobs(self, conn: psycopg.Connection[Any]) -> None:
        with contextlib.suppress(psycopg.errors.LockNotAvailable):  # then at the next tick
            while self._jobs:
                self._do(conn, self._jobs[0])
                self._jobs.popleft()

    def _reconcile(self, conn: psycopg.Connection[Any]) -> float:
        """Send the statements that the hub and the switchboard plan. Returns the time of the next plan."""
        plan = self.hub.plan()
        off, on, ask_again = self.switchboard.plan()
        if plan.disarm:
            self._do(conn, wake_calls.disarm(plan.disarm))
        if plan.unlisten or plan.listen or off or on:
            self._listen(
                conn, [*map(wake_calls.channel, plan.unlisten), *off], [*map(wake_calls.channel, plan.listen), *on]
            )
            self.hub.listening(plan.listen)
            self.switchboard.listening(on)
        if plan.arm:
            self.hub.armed(self._do(conn, wake_calls.arm(plan.arm)))
        if plan.arm_again:
            self.hub.drained(self._do(conn, wake_calls.arm_again(plan.arm_again)))
        return 0.0 if plan.arm or plan.arm_again else min(plan.again, ask_again)

    def _listen(self, conn: psycopg.Connection[Any], off: list[str], on: list[str]) -> None:
        """Send all of them in one round trip. Identifiers are quoted: LISTEN Foo would listen to foo."""
        verbs = [("UNLISTEN {}", name) for name in off] + [("LISTEN {}", name) for name in on]
        conn.execute(sql.SQL("; ").join(sql.SQL(verb).format(sql.Identifier(name)) for verb, name in verbs))

    def _answer(self, conn: psycopg.Connection[Any]) -> None:
        """Run the calls that other threads asked for. A broken connection refuses those that were not begun."""
        while self._asked:
            asked = self._asked.popleft()
            try:
                result = self._do(conn, asked.call)
            except psycopg.Error as error:
                if conn.closed:
                    self._asked.appendleft(asked)  # refused with the others, after on_lost has told the holders
                    raise
                asked.failed(translate(error, lost=False))
            except Exception as error:
                asked.failed(error)
            else:
                asked.succeeded(result)

    def _refuse(self, error: Exception) -> None:
        while self._asked:
            self._asked.popleft().failed(error)

    def _do(self, conn: psycopg.Connection[Any], call: Call[T]) -> T:
        return call.read(conn.execute(call.sql, call.args).fetchall())

    def _read(self, conn: psycopg.Connection[Any]) -> bool:
        """Handle the notifications that have arrived. Returns whether there were any."""
        conn.pgconn.consume_input()  # raises when the server has gone
        any_came = bool(self._posted)
        while note := conn.pgconn.notifies():
            any_came = True
            self._notified(note.relname.decode(), note.extra.decode())
        self._deliver(conn)
        return any_came

    def _notified(self, channel: str, payload: str) -> None:
        queue = wake_calls.queue_of(channel)
        if queue is not None:
            self.hub.signal([queue])
        else:
            self._posted.append((channel, payload))

    def _deliver(self, conn: psycopg.Connection[Any]) -> None:
        """Deliver the posted payloads, in their order.

        They are not delivered as they arrive: a large payload has to be fetched, and another call may be under way.
        """
        while self._posted:
            channel, payload = self._posted.popleft()
            id = channels.stored(payload)
            whole = payload if id is None else self._do(conn, channels.fetch(id))
            self.switchboard.deliver(channel, whole)

    def _sleep(self, seconds: float) -> None:
        self._selector.select(max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            self._pipe[0].recv(4096)

    def _tell(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for signal in waiting:
            signal.set()

    def _hang_up(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            self._selector.unregister(self._selected.fd)
            conn.close()

    def _disconnected(self, error: Exception) -> None:
        self.session = None
        self.failure = error
        self._hang_up()
        self.hub.disconnected()
        self.switchboard.disconnected()
        self._posted.clear()
        for tell in list(self.on_lost):
            tell()
        self._refuse(ConnectionLost("the listener's connection broke"))
        self._tell()
        if not self.stopping:
            log.warning(
                "the listener of %s lost its connection and tries again: %s",
                self._label,
                str(error).strip(),
                exc_info=not isinstance(error, psycopg.Error),
            )
