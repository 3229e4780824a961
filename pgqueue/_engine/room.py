"""Putting into a queue that may be full: a flow, as in flows.py, for both shells.

Who waits for room sleeps as takers do, on a channel of its own: that of the queue's negated id. Whatever makes room in
a queue with a capacity signals it (count.sql), and wake.sql's theory of operation holds for it word for word: the put
that finds the queue full after the waiter is armed cannot have missed anything.
"""

from __future__ import annotations

from collections.abc import Callable

from .._calls.call import Call
from .._calls.put import FULL, Placed, queue_ids
from .._values import arguments
from .._values.arguments import Seconds
from .core import Core
from .flows import Flow, Run, Wait
from .hub import Signal, Waiter
from .listener import Listener
from .waits import TimeLeft


def check(timeout: Seconds | None, *, in_transaction: bool) -> float | None:
    """As arguments.timeout. Raises ValueError for a wait in a transaction: no room could be made before it commits."""
    seconds = arguments.timeout(timeout)
    if seconds != 0 and in_transaction:
        raise ValueError("a put with conn cannot wait for room: the tasks that it waits for are acked after its commit")
    return seconds


def put(
    core: Core,
    listener: Listener,
    make_signal: Callable[[], Signal],
    queue: str,
    call: Call[Placed],
    timeout: float | None,
) -> Flow[Placed]:
    """The answer to the put, as soon as there is room; FULL after `timeout` seconds, or when the client closes."""
    left = TimeLeft(timeout)
    placed: Placed = yield Run(call, relaxed=False)
    while placed.state == FULL and not left.over() and not listener.stopping:
        ids: dict[str, int] = yield Run(queue_ids([queue]))
        channel = -ids[queue]
        waiter = Waiter((channel,), make_signal)
        try:
            if listener.hub.enter(waiter):
                listener.poke()
            yield Wait(waiter.armed, left.seconds())
            placed = yield Run(call, relaxed=False)
            if placed.state == FULL:
                yield Wait(waiter.woken, left.at_most(core.settings.poll or float("inf")).seconds())
        finally:
            if listener.hub.leave(waiter):
                listener.poke()
            if waiter.woken.is_set():
                listener.hub.signal([channel])  # one notification may stand for more room than we use
    return placed
