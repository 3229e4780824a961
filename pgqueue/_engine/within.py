"""The listener of a client, as a session within the client's own sees it: sql/2_base/session.sql has the protocol.

A take, a consumer and a call for a session know the session by their listener: its id while it is alive, a signal for
when it is, the waiters in the hub. This class has these three for one session of several, and passes everything else to
the client's listener. So the same takes, consumers and calls serve both.

The session is opened when the first of them asks for it, by the listener's thread. It needs no lock and no renewal: it
lives as long as the session of the client within which it was opened, and after that was given up, a new one is opened.
"""

from __future__ import annotations

import threading
from typing import Any

from .._calls import session as calls
from .._values.logs import log
from ..errors import CONNECTION_ERRORS, ClosedError, SessionDead
from .asked import Asked, Done
from .hub import Hub
from .listener import Listener
from .owners import later
from .steps import Signal
from .waiters import Waiter

AGAIN = 0.1  # seconds after which a session is asked for again that the server has refused as its client's is gone


class Within:
    """A session of several that share a listener."""

    def __init__(self, listener: Listener, label: str) -> None:
        self.outer = listener
        self.hub = Waiters(listener.hub)
        self.last: int | None = None  # its last id, for calls that settle by the session
        self._label = label
        self._lock = threading.Lock()
        self._outer_id: int | None = None  # the client's session within which it was opened
        self._signals: list[Signal] = []  # of those that wait until it is open
        self._asking = False
        self._refusal: Exception | None = None
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.outer, name)

    @property
    def stopping(self) -> bool:
        return self._closed or self.outer.stopping

    @property
    def ending(self) -> str:
        return "the session is closed" if self._closed else self.outer.ending

    @property
    def session(self) -> int | None:
        """Its id while it is open. Raises the server's refusal, if there is one, for example QuotaReached."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal
        outer_id = self.outer.session
        return self.last if outer_id is not None and outer_id == self._outer_id else None

    def when_session(self, signal: Signal) -> None:
        """Set `signal` as soon as it may be open, or an attempt to open it has failed, or it is closed."""
        if (outer_id := self.outer.session) is None:
            self.outer.when_session(signal)
            return
        with self._lock:
            if self._closed or outer_id == self._outer_id:
                signal.set()
                return
            self._signals.append(signal)
            begins, self._asking = not self._asking, True
        if begins:
            done = Done()
            asked = self.outer.ask(calls.open_within(outer_id, self._label), done)
            done.then(lambda: self._answered(asked, outer_id))

    def refused(self, session: int) -> None:
        """The server has refused a call for this session: open a new one."""
        with self._lock:
            if session == self.last:
                self._outer_id = None

    def close(self) -> int | None:
        """Let all go on that wait. Returns the id of the session, if it is to be closed in the database."""
        with self._lock:
            self._closed = True
            signals, self._signals = self._signals, []
        for signal in signals:
            signal.set()
        self.hub.wake()
        return self.last

    def _answered(self, asked: Asked[int], outer_id: int) -> None:
        """Runs in the thread of the listener, unless the answer was there before."""
        opened, pause = None, 0.0
        try:
            opened = asked.outcome()
        except SessionDead:
            pause = AGAIN  # the listener has not noticed yet that it needs another session
        except (*CONNECTION_ERRORS, ClosedError) as error:
            log.debug("a session within that of %s was not opened: %s", self._label, error)
        except Exception as error:
            self._refusal = error
        with self._lock:
            self._asking = False
            signals, self._signals = self._signals, []
            if opened is not None:
                self.last, self._outer_id = opened, outer_id
            is_late = opened is not None and self._closed
        if is_late:
            self.outer.later(calls.close_session(opened))
        for signal in signals:
            if pause:
                later(pause, "pgqueue-session", signal.set)
            else:
                signal.set()


class Waiters:
    """The hub, with a note of the waiters of one session."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._mine: set[Waiter] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hub, name)

    def enter(self, waiter: Waiter) -> bool:
        self._mine.add(waiter)
        return self._hub.enter(waiter)

    def leave(self, waiter: Waiter) -> bool:
        self._mine.discard(waiter)
        return self._hub.leave(waiter)

    def wake(self) -> None:
        """Wake all waiters of the session, which look why."""
        for waiter in list(self._mine):
            waiter.armed.set()
            waiter.woken.set()
