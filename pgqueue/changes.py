"""Hearing what becomes of tasks, being one of several that act as one, and reloading. Both shells.

An observer is an ear (switchboard.py) without a buffer, on the channel of its queue's changes (changes.sql). A
client has one for a queue, as Tarantool's queue has one callback for a tube; what makes it the one is that it stands
in `core.observers`. Replacing it is one assignment there, while both have an ear, so no change falls in between.

After a lost connection it asks to observe anew: if the session was given up, so was what it observed.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

from . import arguments, waits
from .base import mirrors
from .calls import changes as calls
from .calls.changes import Change
from .calls.putting import queue_ids
from .core import Core
from .errors import ConnectionLost
from .flows import Flow, Run
from .listener import Listener
from .shell import AsyncShell, LoopSignal, Shell
from .switchboard import Ear, Gap
from .waits import MakeSignal, TimeLeft

log = logging.getLogger("pgqueue")
OnChange = Callable[[Change], Any]


class Observer:
    """A callback on the changes of one queue; `run` calls it with each, and does not raise."""

    def __init__(
        self,
        core: Core,
        listener: Listener,
        queue: str,
        queue_id: int,
        callback: OnChange,
        run: Callable[[OnChange, Change], None],
        make_signal: MakeSignal,
    ) -> None:
        self.callback = callback
        self.queue_id = queue_id
        self.ear = Ear(calls.channel(queue_id), make_signal, tell=self._tell)
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
        for change in calls.changes(self._queue, heard):
            self._run(self.callback, change)


def run(callback: OnChange, change: Change) -> None:
    try:
        callback(change)
    except Exception:
        log.exception("the callback for changes of queue %r failed", change.queue)


def on_this_loop() -> Callable[[OnChange, Change], None]:
    loop = asyncio.get_running_loop()

    def run_there(callback: OnChange, change: Change) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(run, callback, change)

    return run_there


def observe(
    core: Core,
    listener: Listener,
    make_signal: MakeSignal,
    queue: str,
    callback: OnChange,
    run: Callable[[OnChange, Change], None],
) -> Flow[OnChange | None]:
    """Put a callback in the place of the one that there is, if any, and return that."""
    ids: dict[str, int] = yield Run(queue_ids([queue]))
    new = Observer(core, listener, queue, ids[queue], callback, run, make_signal)
    old: Observer | None = None
    try:
        yield from waits.enter(listener, new.ear, TimeLeft(None))
        old = core.exchange_observer(queue, new)
        yield from waits.ask(listener, make_signal, calls.observe(new.queue_id))
    except BaseException:
        if core.observers.get(queue) is new:
            core.exchange_observer(queue, old)
        listener.switchboard.leave(new.ear)
        raise
    if old is None:
        return None
    listener.switchboard.leave(old.ear)
    return old.callback


def unobserve(core: Core, listener: Listener, make_signal: MakeSignal, queue: str) -> Flow[OnChange | None]:
    """Take the callback away, and return it."""
    old: Observer | None = core.exchange_observer(queue, None)
    if old is None:
        return None
    listener.switchboard.leave(old.ear)
    with contextlib.suppress(ConnectionLost):  # then the end of the session does it
        yield from waits.ask(listener, make_signal, calls.unobserve(old.queue_id))
        if queue in core.observers:  # somebody was quicker, and we have just undone it
            yield from waits.ask(listener, make_signal, calls.observe(old.queue_id))
    return old.callback


def identify(listener: Listener, make_signal: MakeSignal, identity: UUID | None) -> Flow[str]:
    found = yield from waits.ask(listener, make_signal, calls.identify(identity))
    listener.identity = found
    return found


def checked(callback: object) -> None:
    if callback is not None and (not callable(callback) or inspect.iscoroutinefunction(callback)):
        raise ValueError(f"callback must be a plain function, or None, not {callback!r}")


class Changes(Shell):
    def identify(self, identity: str | UUID | None = None) -> str:
        """Who this client is; or, with an identity, be that one from now on. As Tarantool's queue.identify.

        Clients of one identity settle each other's tasks by id, and inherit each other's takes: what one has taken
        when it is killed or closed goes to another that is left, once its session_grace is over; the last one's tasks
        are ready again. So a process that starts anew joins its old identity within that time, and goes on.
        Only takes are shared: locks, ephemeral nodes, exclusive queues and wills end with their own client.

        Args:
            identity: what identify() returned, here or elsewhere. None: this client's own, made now if it has none.

        Returns:
            The identity, a UUID as text.

        Raises:
            ValueError: it is not a UUID.
            NoIdentity: nobody has this identity, or who had it was gone for longer than its session_grace.
            ConnectionLost: whether it took effect is unknown; ask again.
            ClosedError: the client is closed.
        """
        wanted = arguments.uuid("identity", identity)
        return self._drive(identify(self._listener(), threading.Event, wanted))

    def reload(self) -> None:
        """Replace the client's background thread, for a program that loads its code anew while it runs.

        The old thread is joined first. All else lives on and nothing is sent to the server: the session and what it has
        taken, takers that wait, subscriptions, locks, callbacks. Does nothing if no thread was needed so far.

        Raises:
            ClosedError: the client is closed.
            RuntimeError: it was called by a callback, in the very thread.
        """
        self._core.reload()


@mirrors(Changes)
class AsyncChanges(AsyncShell):
    async def identify(self, identity: str | UUID | None = None) -> str:
        wanted = arguments.uuid("identity", identity)
        return await self._drive(identify(await self._listener(), LoopSignal, wanted))

    async def reload(self) -> None:
        await asyncio.to_thread(self._core.reload)


class QueueChanges:
    _client: Changes
    name: str

    def on_task_change(self, callback: OnChange | None) -> OnChange | None:
        """Call a function with every Change of this queue's tasks from now on, whoever makes it. As Tarantool's.

        A change is told once its transaction has committed, in the order of the commits. Changes that are made while
        the connection is lost are missed, with a warning in the log; so are those of a queue that was deleted and made
        anew. Each change of an observed queue is a NOTIFY; a queue that nobody observes pays nothing.

        Args:
            callback: a plain function. It is called in the client's listener thread, for asyncio in this event loop,
                and must return soon: whatever waits, waits for it. An exception in it is logged. None: no more calls.

        Returns:
            The callback that this client had for the queue before, or None.

        Raises:
            ValueError: it is not a function, or an `async` one.
            ConnectionLost: nothing was changed; ask again.
            ClosedError: the client is closed.
        """
        checked(callback)
        core = self._client._core
        if callback is not None:
            flow = observe(core, self._client._listener(), threading.Event, self.name, callback, run)
        elif self.name in core.observers:
            flow = unobserve(core, self._client._listener(), threading.Event, self.name)
        else:
            return None
        return self._client._drive(flow)


@mirrors(QueueChanges)
class AsyncQueueChanges:
    _client: AsyncChanges
    name: str

    async def on_task_change(self, callback: OnChange | None) -> OnChange | None:
        checked(callback)
        core = self._client._core
        if callback is not None:
            flow = observe(core, await self._client._listener(), LoopSignal, self.name, callback, on_this_loop())
        elif self.name in core.observers:
            flow = unobserve(core, await self._client._listener(), LoopSignal, self.name)
        else:
            return None
        return await self._client._drive(flow)
