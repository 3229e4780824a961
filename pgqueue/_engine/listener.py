"""The listener: a client's one thread with a dedicated connection. It listens, holds the session, and sweeps.

Theory of operation
-------------------
Only this thread uses the connection. Other threads leave work (a hub to reconcile, a job to run) and write a byte
into a pipe; the thread sleeps in a selector over that pipe and the connection's socket. psycopg's own notifies()
would hold the connection's lock for as long as it waits, and wakes ten times a second.

    connect -> open the session -> wake all waiters -> [ reconcile the hub, jobs, ticks, notifications, sleep ] ...
       ^                                                              |
       '--------------- pause, growing to 0.6 s <----- lost ----------'

- A statement that fails costs itself only; a dead connection is lost (retries.py). The pause before the next connection
  grows until a connection has served a whole round (outages.py). A poke does not end it.
- This connection waits for no lock. Ticks leave out locked rows (sql/2_base/nowait.sql), and LOCK_TIMEOUT ends every
  other wait. Only the opening and the end of the session wait, for claims under way.
- This connection holds the session's advisory lock, so the session lives as long as the connection. After a loss the
  listener opens the session again by its id; if that was quick enough, the takes live on (sql/2_base/session.sql).
- Notifications that were sent while the listener was disconnected are gone: after each connect every waiter looks
  again.
- A notification is a hint, since each role that may connect to the database can send any payload on any channel
  (docs/deployment/connect.md). Nothing here raises for one: a payload without pgqueue's form is dropped, or delivered
  unchanged on a channel of the application; one with the form makes a client look. A flood of them costs one look at a
  time: a waiter that was woken is out of the hub until it has looked, and a waiter on a channel forgets before each
  look the payloads that arrived until then. Payloads that wait for their delivery have a limit (posts.py,
  switchboard.py).
- The thread always reads notifications before it sleeps: some arrive with the answers to its own statements.
- No put runs on this connection: the probe for waiters cannot see the locks of its own connection
  (sql/2_base/wake.sql).
- The first cleaning is at a random moment of its first interval. It costs the server 18 ms on a new connection: a
  process that lives for a second seldom pays for it, and of many such processes some do.
- A tick releases the takes of dead sessions and makes ready the tasks that are due. It is left out if another client
  has just done so (sql/7_operations/ticks.sql). Ticks that take long are followed by rests REST times as long, since
  under a held snapshot they walk over dead rows.
- reload() replaces the thread by another one. All state that outlives a turn of the loop, the connection included,
  belongs to the listener and not to the thread. So the next thread goes on where this one stopped: it sends nothing to
  the server, and no waiter is woken.
- Half-open connections: the kernel is told to give up after about 11 s without an answer, on both ends.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

from .._calls import session as session_calls
from .._calls import wake as wake_calls
from .._calls.call import Call
from .._values.logs import log
from ..errors import ClosedError, ConnectionLost
from . import direct
from .asked import Asked, Asks
from .bells import Alarms
from .cancels import Cancels
from .duties import Duties
from .forks import detach
from .hub import Hub
from .jobs import Jobs, Kept
from .outages import Outage, Pauses
from .owners import Owned
from .plans import Plans
from .posts import Posts
from .retries import do
from .scarcity import Scarcity
from .steps import Signal
from .switchboard import Switchboard
from .ticks import Tick, Ticks, Work, within
from .uses import Uses

T = TypeVar("T")

TICK = 0.25  # seconds between sweeps, jittered
CLEANING = 10.0  # seconds between removals of obsolete rows
LOCK_TIMEOUT = "SET lock_timeout = '10ms'; SET pgqueue.listener = 'yes'"  # while the session is open
PATIENCE = "SET lock_timeout = '2s'"  # before it closes


class Listener:
    """Starts its thread when made. Takers wait in `hub`, waiters on a named channel in `switchboard`.

    `session` is the session's id while it is alive; `ending` is the error of calls after the end. The thread calls each
    function in `on_lost` when the connection breaks.
    """

    def __init__(
        self,
        conninfo: str,
        label: str,
        *,
        grace: float,
        idle_timeout: float,
        call_timeout: float = 15.0,
        outage: Outage | None = None,
        scarcity: Scarcity | None = None,
        duties: Duties | None = None,
    ) -> None:
        self.outage = outage or Outage(label)
        self._scarcity = scarcity or Scarcity()
        self._duties = duties or Duties()
        self.call_timeout = call_timeout
        self.hub = Hub(idle_timeout)
        self.switchboard = Switchboard(idle_timeout)
        self.on_lost: list[Callable[[], None]] = []
        self.session: int | None = None
        self.failure: BaseException | None = None  # why there is no session
        self._conninfo = conninfo
        self._label = label
        self._grace = grace
        self.last_session: int | None = None
        self.identity: str | None = None  # of this session, and of the next if this one is given up; 2_base/session.sql
        self._jobs = Jobs(label)
        self._asks = Asks()
        self._posts = Posts(self.switchboard, label)
        self.cancels = Cancels(self.switchboard, self.ask, self.poke)
        self._plans = Plans(self.hub, self.switchboard, label)
        self.alarms = Alarms()
        self.uses = Uses(self.hub, label)
        self._expiring = True  # whether a queue may expire, as far as is known
        self._waiting: list[Signal] = []  # for a session
        self._lock = threading.Lock()
        self.stopping = False
        self.ending = "the client is closed"
        self._pauses = Pauses()
        self._call_channel: str | None = None
        self._deregistered = False  # found by a sweep: the session of this connection has no row any more
        self._conn: psycopg.Connection[Any] | None = None
        self._backend: direct.Backend | None = None  # of the last connection
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

    def refused(self, session: int) -> None:
        """The server has refused a call for this session. The next sweep tells."""

    def later(self, call: Call[Any]) -> None:
        """Run a call on the listener's connection soon, and repeat it if it fails or the connection breaks."""
        self._jobs.later(call)
        self.poke()

    def keep(self, call: Call[Any]) -> Kept:
        """Run a call on the listener's connection soon, and again on each new one, until its drop()."""
        kept = self._jobs.keep(call)
        self.poke()
        return kept

    def undo(self, token: int) -> None:
        """Give back all tasks taken under this token, and refuse its claim if that is still on its way."""
        self._jobs.undo(token)
        self.poke()

    def ask(self, call: Call[T], done: Signal) -> Asked[T]:
        """Run a call on the listener's connection, once, and set `done`. For state that this connection holds."""
        asked = Asked(call, done)
        with self._lock:
            if self.stopping:
                asked.failed(ClosedError("the client is closed"))
            else:
                self._asks.add(asked)
        self.poke()
        return asked

    def withdraw(self, asked: Asked[Any]) -> None:
        """Do not run a call that was asked for, unless it is under way."""
        self._asks.withdraw(asked)

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
                self._thread.join(min(self.call_timeout, threading.TIMEOUT_MAX))

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
        self._thread = Owned("pgqueue-listener", self._run, lambda: self.stopping or self._handing_over)
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

    # --- as a part of its client that needs a connection (scarcity.py)

    needs, is_pool = 1, False

    def held(self) -> int:
        return int(self._conn is not None)

    def give_way(self) -> None:
        """Only pools are asked."""

    # --- the thread

    def _run(self) -> None:
        while not (self.stopping or self._handing_over):
            try:
                self._serve(self._conn or self._connect())
            except BaseException as error:  # of any kind: without this thread no taker is woken
                self._disconnected(error)
                self._pause(self._pauses.failed())
        if not self._handing_over:
            self._end()

    def _connect(self) -> psycopg.Connection[Any]:
        conn = direct.connect(self._conninfo, self._notified, self.call_timeout)
        self._selected = self._selector.register(conn.fileno(), selectors.EVENT_READ)
        self._conn = conn
        self._scarcity.served(self)
        self._backend = direct.succeed(conn, self._backend)
        opened = do(conn, session_calls.open_session(self.last_session, self._grace, self._label, self.identity))
        conn.execute(LOCK_TIMEOUT)
        if self.last_session not in (None, opened):
            log.warning("the session of %s was given up: what it had taken is ready again", self._label)
        self.last_session = self.session = opened
        self._call_channel = wake_calls.call_channel(opened)
        self.cancels.opened(opened)
        self._tell()
        self.hub.wake_all()
        return conn

    def _serve(self, conn: psycopg.Connection[Any]) -> None:
        self._ticks = self._make_ticks(conn)
        opened = self.last_session
        assert opened is not None
        while not (self.stopping or self._handing_over):
            self._duties.settle()
            self._jobs.run(conn)
            again = self._plans.reconcile(conn, opened)
            self._asks.run(conn)
            self._ticks.run(conn)
            self.uses.run(conn, self._expiring or self._ticks.clients == 1)  # a client that is alone asks nothing
            if self._deregistered:
                raise ConnectionLost("another connection closed this session, or deleted its row")
            self._read(conn)
            self._pauses.succeeded()  # a whole round: this connection serves
            self.outage.over()
            due = (again, self._ticks.at, self.uses.at, self._jobs.at, self._asks.at, self._posts.at)
            self._sleep(self.alarms.sleep(min(due)) - time.monotonic())
            self.alarms.ring()
            if self._read(conn):  # a taker may be waiting for a notification
                time.sleep(0)  # give the interpreter to the woken thread at once, not when this one sleeps

    def _make_ticks(self, conn: psycopg.Connection[Any]) -> Ticks:
        promotion = "the promotion of tasks that are due by"
        return Ticks(
            f"the question when others ticked, by {self._label}",
            lambda: self._tick_ages(conn),
            Tick(
                TICK,
                Work(f"the sweep by {self._label}", lambda: self._sweep(conn)),
                Work(f"{promotion} {self._label}", lambda: do(conn, session_calls.promote_all()), within(TICK)),
            ),
            Tick(
                CLEANING,
                Work(f"the cleaning by {self._label}", lambda: do(conn, session_calls.clean_up())),
                first=within(CLEANING),
            ),
        )

    def _tick_ages(self, conn: psycopg.Connection[Any]) -> tuple[float | None, float | None]:
        tick, cleaning, alive, self._ticks.clients, self._expiring = do(conn, session_calls.tick_ages())
        self._deregistered = not alive
        return tick, cleaning

    def _sweep(self, conn: psycopg.Connection[Any]) -> float | None:
        again, alive, clients = do(conn, session_calls.sweep())
        self._deregistered = not alive
        self._ticks.clients = clients or self._ticks.clients  # None: another client is sweeping
        return again

    def _end(self) -> None:
        try:
            if self._conn is not None:
                self.session = None
                self._conn.execute(PATIENCE)
                do(self._conn, session_calls.close_session())
                self._read(self._conn)  # puts that were open called until now
                if abandoned := self.hub.abandoned() | self._plans.calls:  # and their takers end without a look
                    do(self._conn, wake_calls.pass_on(sorted(abandoned)))
        except BaseException as error:  # of any kind: waiters have to be told of the end
            self._disconnected(error)
        self._hang_up()
        self._tell()
        self._asks.refuse(ClosedError("the client is closed"))
        self.hub.close()
        self.switchboard.close()
        self._selector.close()
        for end in self._pipe:
            end.close()

    def _read(self, conn: psycopg.Connection[Any]) -> bool:
        """Handle the notifications that have arrived. Returns whether there were any."""
        conn.pgconn.consume_input()  # raises when the server has gone
        any_came = len(self._posts) > 0
        while note := conn.pgconn.notifies():
            any_came = True
            self._notified(direct.decoded(note.relname), direct.decoded(note.extra))
        self._posts.deliver(conn)
        return any_came

    def _notified(self, channel: str, payload: str) -> None:
        queue = wake_calls.queue_of(channel)
        if queue is not None:
            if payload == wake_calls.COME:
                self.hub.come(queue)
            else:
                self.hub.heard(queue)
        elif channel == self._call_channel:
            called = wake_calls.called_for(payload)
            if called is not None:
                self.hub.called(called)
        elif self.switchboard.is_heard(channel):
            self._posts.add(channel, payload)

    def _pause(self, seconds: float) -> None:
        """Sleep for the whole time, unless the thread has to end: a poke is no reason to connect sooner."""
        until = time.monotonic() + seconds
        while not (self.stopping or self._handing_over) and (left := until - time.monotonic()) > 0:
            self._sleep(min(left, self.alarms.sleep(until) - time.monotonic()))
            self.alarms.ring()

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

    def _disconnected(self, error: BaseException) -> None:
        self.session = None
        self._deregistered = False
        self.failure = error
        self._hang_up()
        self.hub.disconnected()
        self.switchboard.disconnected()
        self._plans.disconnected()
        self._jobs.disconnected()
        self._posts.clear()
        for tell in list(self.on_lost):
            tell()
        self._asks.refuse(ConnectionLost("the listener's connection broke"))
        self._tell()
        if not self.stopping:
            self.outage.met(error)
            self._scarcity.refused(self, error)
