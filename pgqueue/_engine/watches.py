"""Watches of nodes: the looks at a node, the changes that are heard, and the one-shot Watch. Both shells.

An observer looks at a node once LISTEN is committed, and keeps the snapshot of that look. From then on it hears of
every change, and the snapshot tells which of the changes the look has already seen (sql/6_families/nodes.sql). After a
gap, when a change may have been missed, the observer begins again with a new ear and compares the new look with the
last one.
"""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar

from .._calls import nodes as calls
from .._calls.call import Call
from .._calls.nodes import Node, NodeEvent, Seen
from ..errors import ClosedError, ConnectionLost
from . import waits
from .door import without_session
from .listener import Listener
from .outages import Pauses
from .steps import Flow, Run, Wait
from .switchboard import Ear, Gap
from .waits import MakeSignal, TimeLeft

T = TypeVar("T")


class Observer(Generic[T]):
    """Watches the node of a path: its data if `changes` is "changed", its list of children if it is "children"."""

    seen: Seen[T]

    def __init__(
        self, listener: Listener, make_signal: MakeSignal, path: str, changes: str, look: Call[Seen[T]]
    ) -> None:
        self.path = path
        self.closed = False
        self._listener = listener
        self._make_signal = make_signal
        self._changes = changes
        self._look = look
        self._channel = ""
        self._ear = self._new_ear()
        self._pauses = Pauses()  # after a connection that broke during a look
        self._missed = True  # a change may have been missed since the last look

    def begin(self, timeout: float) -> Flow[Self]:
        """Look for the first time. Raises ServerError when the listener is not connected in time."""
        try:
            if not (yield from self.observe(TimeLeft(timeout))):
                raise without_session("nothing can be watched", self._listener.failure)
            return self
        except BaseException:
            self.close()
            raise

    def observe(self, left: TimeLeft) -> Flow[bool]:
        """Look, so that every later change is heard. False if the time was over before.

        Raises:
            ClosedError: the watch or the client is closed.
        """
        self._missed = True
        if not self._channel:
            self._channel = yield Run(calls.channel(self.path))
        self._listener.switchboard.leave(self._ear)
        self._ear = self._new_ear()
        self._check()  # once the new ear is set: a close() in another thread has to find it
        if not (yield from waits.enter(self._listener, self._ear, left)):
            return False
        self._check()
        self.seen = yield Run(self._look)
        self._missed = False
        self._pauses.succeeded()
        return True

    def event(self, left: TimeLeft) -> Flow[str | None]:
        """The first change after the last look; None when the time is over. May be called again after an error.

        Raises:
            ClosedError: the watch or the client is closed.
        """
        while True:
            self._check()
            if self._missed:
                before = self.seen
                try:
                    if not (yield from self.observe(left)):
                        return None
                except ConnectionLost:
                    if left.over():
                        raise
                    yield Wait(self._make_signal(), self._pauses.failed())
                    continue
                if kind := before.difference(self.seen, self._changes):
                    return kind
            heard = yield from waits.next_payload(self._listener, self._make_signal, self._ear, left)
            if heard is None:
                return None
            if isinstance(heard, Gap):
                self._channel = ""  # the server may be another one, restored from a backup, with another secret
                self._missed = True  # look again with a new ear: there may be no LISTEN for this one yet
            elif kind := self.seen.news(heard, self._changes):
                return kind

    def close(self) -> None:
        """Stop hearing. A wait for an event raises ClosedError. May be called in any thread."""
        self.closed = True
        ear = self._ear
        self._listener.switchboard.hang_up(ear)
        ear.ready.set()

    def _check(self) -> None:
        if self.closed:
            self._listener.switchboard.leave(self._ear)  # close() may have run before it entered
            raise ClosedError(f"the watch of {self.path} is over")

    def _new_ear(self) -> Ear:
        return Ear(self._channel, self._make_signal)


Seeing = Observer[tuple[Node | None, list[str] | None]]


def observer(listener: Listener, make_signal: MakeSignal, path: str, children: bool) -> Seeing:
    return Observer(listener, make_signal, path, "children" if children else "changed", calls.look(path, children))


def fired(observer: Observer[Any], kind: str | None, timeout: float | None) -> NodeEvent:
    if kind is None:
        raise TimeoutError(f"nothing happened to {observer.path} within {timeout} s")
    observer.close()
    return NodeEvent(kind, observer.path)
