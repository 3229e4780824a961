"""Callbacks on the changes of a queue's tasks. Both shells.

An observer is an ear (switchboard.py) without a buffer, on the channel of its queue's changes, whose name the server
returns when it registers the session (sql/6_families/changes.sql). A client has one observer for a queue, as
Tarantool's queue has one callback for a tube: the one in `core.observers`. Replacing an observer is one assignment
there, while the old and the new one both have an ear, so no change is lost between them.

After a lost connection the observer registers with the server again: if the old session was given up, its registration
is gone.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

from .._calls import changes as calls
from .._calls.changes import Change
from .._calls.put import queue_ids
from .._values.logs import log
from .._values.printable import line
from ..errors import ConnectionLost, NoQueue
from . import waits
from .core import Core
from .listener import Listener
from .session import session
from .steps import Flow, Run
from .switchboard import Ear, Gap
from .waits import MakeSignal

OnChange = Callable[[Change], Any]


class Observer:
    """A callback on the changes of one queue. `run` calls it with each change and does not raise."""

    def __init__(
        self,
        core: Core,
        listener: Listener,
        queue: str,
        queue_id: int,
        channel: str,
        callback: OnChange,
        run: Callable[[OnChange, Change], None],
        make_signal: MakeSignal,
    ) -> None:
        self.callback = callback
        self.queue_id = queue_id
        self.ear = Ear(channel, make_signal, tell=self._tell)
        self._core = core
        self._listener = listener
        self._queue = queue
        self._run = run

    def _tell(self, heard: str | Gap) -> None:
        if self._core.observers.get(self._queue) is not self:
            return
        if isinstance(heard, Gap):
            log.warning("changes of queue %r may have been missed: %s", self._queue, heard.reason)
            self._listener.ask(calls.observe(self.queue_id), threading.Event())
            return
        changes = calls.changes(self._queue, heard)
        if not changes:
            log.debug("a notification that is no change of queue %r was dropped: %s", self._queue, line(heard[:80]))
        for change in changes:
            self._run(self.callback, change)


def run(callback: OnChange, change: Change) -> None:
    try:
        callback(change)
    except Exception:
        log.exception("the callback for changes of queue %r failed", change.queue)


def observe(
    core: Core,
    listener: Listener,
    make_signal: MakeSignal,
    queue: str,
    callback: OnChange,
    run: Callable[[OnChange, Change], None],
) -> Flow[OnChange | None]:
    """Set the queue's callback. Returns the callback that it replaces, or None.

    The server is asked twice: at first for the channel; and once the callback is set, since another thread T may have
    removed the old callback in between. T unregistered the session, and then found no new callback.
    """
    ids: dict[str, int] = yield Run(queue_ids([queue]))
    yield from session(listener, make_signal, waits.TimeLeft(core.settings.patience))
    channel = yield from waits.ask(listener, make_signal, calls.observe(ids[queue]))
    if channel is None:
        raise NoQueue(f"queue {queue!r} was deleted")
    new = Observer(core, listener, queue, ids[queue], channel, callback, run, make_signal)
    old: Observer | None = None
    try:
        yield from waits.entered(listener, new.ear, core.settings.patience)
        old = core.exchange_observer(queue, new)
        yield from waits.ask(listener, make_signal, calls.observe(new.queue_id))
    except BaseException:
        if core.observers.get(queue) is new:
            core.exchange_observer(queue, old)
        listener.switchboard.leave(new.ear)
        if queue not in core.observers and not listener.stopping:
            listener.later(calls.unobserve(new.queue_id))
        raise
    if old is None:
        return None
    listener.switchboard.leave(old.ear)
    return old.callback


def unobserve(core: Core, listener: Listener, make_signal: MakeSignal, queue: str) -> Flow[OnChange | None]:
    """Remove the queue's callback. Returns it, or None."""
    old: Observer | None = core.exchange_observer(queue, None)
    if old is None:
        return None
    listener.switchboard.leave(old.ear)
    with contextlib.suppress(ConnectionLost):  # then the end of the session stops the observing
        yield from waits.ask(listener, make_signal, calls.unobserve(old.queue_id))
        if queue in core.observers:  # another thread has set one since, and the call above has just undone it
            yield from waits.ask(listener, make_signal, calls.observe(old.queue_id))
    return old.callback


def identify(listener: Listener, make_signal: MakeSignal, identity: UUID | None) -> Flow[str]:
    found = yield from waits.ask(listener, make_signal, calls.identify(identity))
    listener.identity = found
    return found


def checked(callback: object) -> None:
    if callback is not None and (not callable(callback) or inspect.iscoroutinefunction(callback)):
        raise ValueError(f"callback must be a plain function, or None, not {callback!r}")
