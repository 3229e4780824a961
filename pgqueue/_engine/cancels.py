"""Which of the takes of this client were cancelled. The listener's thread hears it; runs and tasks are told.

Theory of operation
-------------------
A cancel of a task that is taken sends NOTIFY on the channel of the session that has it (sql/5_verbs/settle/cancel.sql),
with the task's id. A notification is a hint: each one makes the listener ask the server, by id and token, whether the
takes that this client has of these tasks were cancelled. So a forged notification costs a question, and a repeated one
changes nothing.

Two kinds of holders are told. A worker has thousands of takes, and none of them may cost anything: it is a *source*,
which is asked for its takes when a notification arrives. A take of `Task.cancelled` is *watched*: one object for each,
kept as long as its task.

No cancellation is missed by a holder that is there when it happens:

  before LISTEN            the first LISTEN of a session, and each one after a lost connection, asks about all takes.
  before the take is known the claim's answer is on its way while the notification is read. The id is kept for KEEP
                           seconds in `unknown`, and a fetcher that has taken tasks asks about those (`seen`). A watched
                           take is asked about when it is first watched.
  the question fails       it is asked again, about all takes, by the next LISTEN. On a living connection it is repeated
                           after LATER seconds.

The channel belongs to the session. A session that was given up has lost its takes, so a new session begins with a new
ear. While there is no holder there is no ear: each NOTIFY of the database costs each connection that listens.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from .._calls import cancel as calls
from .._values.logs import log
from ..errors import ClosedError, ConnectionLost
from .asked import Asked, Done
from .owners import later
from .steps import Signal
from .switchboard import Ear, Gap, Switchboard

Take = tuple[int, int]  # a task's id, and the token of its take
Ask = Callable[[Any, Signal], Asked[Any]]

KEEP = 10.0  # seconds for which an id without a take is remembered
MOST = 1000  # such ids
LATER = 0.25  # seconds before a question is asked again
TRIES = 40  # times


class Source(Protocol):
    """Holds takes. Its methods are called in the listener's thread, and do not wait."""

    def takes(self, ids: Collection[int] | None) -> Iterable[Take]:
        """Its takes of these tasks; None: all of its takes."""

    def cancelled(self, id: int, token: int, reason: str | None) -> None:
        """One of its takes was cancelled. May be called more than once for one take, and late."""


class Watched:
    """A take that is watched for a Task."""

    def __init__(self, id: int, token: int) -> None:
        self.id = id
        self.token = token
        self.is_set = False
        self.reason: str | None = None
        self._lock = threading.Lock()
        self._signals: list[Signal] = []

    def when(self, signal: Signal) -> None:
        """Set `signal` once the take is cancelled."""
        with self._lock:
            self._signals.append(signal)
            if self.is_set:
                signal.set()

    def forget(self, signal: Signal) -> None:
        with self._lock:
            self._signals.remove(signal)

    def set(self, reason: str | None) -> None:
        with self._lock:
            self.reason, self.is_set = reason, True
            signals = list(self._signals)
        for signal in signals:
            signal.set()


class Cancels:
    """The cancellations of one listener. `ask` runs a call on its connection, and sets a signal."""

    def __init__(self, switchboard: Switchboard, ask: Ask, poke: Callable[[], None]) -> None:
        self._switchboard = switchboard
        self._ask = ask
        self._poke = poke
        self._lock = threading.Lock()
        self._session: int | None = None
        self._ear: Ear | None = None
        self._sources: list[Source] = []
        self._watched: weakref.WeakValueDictionary[Take, Watched] = weakref.WeakValueDictionary()
        self.unknown: dict[int, float] = {}  # ids that no take had, and until when they are kept

    # --- for other threads

    def add(self, source: Source) -> None:
        with self._lock:
            self._sources.append(source)
        self._hear()

    def remove(self, source: Source) -> None:
        with self._lock:
            self._sources.remove(source)

    def watch(self, id: int, token: int) -> Watched:
        """Watch a take, for as long as the caller keeps the returned object."""
        with self._lock:
            watched = self._watched.get((id, token))
            if watched is not None:
                return watched
            watched = self._watched[id, token] = Watched(id, token)
        self._hear()
        self._look([(id, token)])
        return watched

    def seen(self, takes: Iterable[Take]) -> None:
        """These were taken just now: ask about those that were cancelled before they were known here."""
        now = time.monotonic()
        for id, until in list(self.unknown.items()):
            if until < now:
                self.unknown.pop(id, None)
        if found := [take for take in takes if take[0] in self.unknown]:
            self._look(found)

    # --- the listener's thread

    def opened(self, session: int) -> None:
        """The session of the listener's connection."""
        with self._lock:
            changed, self._session = session != self._session, session
            old, self._ear = (self._ear, None) if changed else (None, self._ear)
            wanted = bool(self._sources or self._watched)
        if old is not None:
            self._switchboard.leave(old)
        if wanted:
            self._hear()

    def _hear(self) -> None:
        """Enter an ear on the session's channel. Once LISTEN is committed it asks about all takes."""
        with self._lock:
            if self._ear is not None or self._session is None:
                return
            channel = calls.session_channel(self._session)
            self._ear = ear = Ear(channel, Done, tell=self._heard)
        assert isinstance(ear.ready, Done)
        ear.ready.then(lambda: self._look(None))
        if self._switchboard.enter(ear):
            self._poke()

    def _heard(self, payload: str | Gap) -> None:
        if isinstance(payload, Gap):
            self._look(None)
            return
        ids = calls.ids_of(payload)
        takes = self._takes(ids)
        held = {id for id, _ in takes}
        until = time.monotonic() + KEEP
        for id in ids:
            if id not in held:
                self.unknown[id] = until
        while len(self.unknown) > MOST:
            self.unknown.pop(next(iter(self.unknown)), None)
        if takes:
            self._look(takes)

    def _takes(self, ids: list[int] | None) -> list[Take]:
        with self._lock:
            sources, watched = list(self._sources), list(self._watched)
        named = None if ids is None else set(ids)
        found = {take for take in watched if named is None or take[0] in named}
        for source in sources:
            found.update(source.takes(named))
        return list(found)

    def _look(self, takes: list[Take] | None, tries: int = TRIES) -> None:
        """Ask the server about these takes; None: about all. Does not wait."""
        if takes is None and not (takes := self._takes(None)):
            return
        tokens = dict(takes)
        done = Done()
        asked = self._ask(calls.cancelled_takes(takes), done)

        def answered() -> None:
            try:
                reasons = asked.outcome()
            except (ClosedError, ConnectionLost):
                return  # the next connection asks about all
            except Exception as error:
                log.warning("which tasks were cancelled is not known, asked again in %s s: %s", LATER, error)
                if tries:
                    later(LATER, "pgqueue-cancels", self._look, takes, tries - 1)
                return
            for id, reason in reasons.items():
                self._tell(id, tokens[id], reason)

        done.then(answered)  # another thread than the listener's may get here after the answer

    def _tell(self, id: int, token: int, reason: str | None) -> None:
        self.unknown.pop(id, None)
        with self._lock:
            sources, watched = list(self._sources), self._watched.get((id, token))
        if watched is not None:
            watched.set(reason)
        for source in sources:
            try:
                source.cancelled(id, token, reason)
            except Exception:
                log.exception("the handler of task %s was not told of its cancellation", id)
