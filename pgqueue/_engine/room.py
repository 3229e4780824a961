"""Puts into a queue that may be full: a flow, as in flows.py, for both shells.

A put that waits for room sleeps as a take does, on a channel of its own: that of the queue's negated id. Each
transaction that makes room in a queue with a capacity signals this channel (sql/2_base/count.sql), and the theory of
operation of sql/2_base/wake.sql holds for it word for word: a put that finds the queue full after its waiter is armed
cannot have missed a signal.
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
    """As arguments.timeout. Raises ValueError for a wait in a transaction: no room is made before its commit."""
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
    """Put as soon as there is room. Returns the answer; FULL after `timeout` seconds, or when the client closes."""
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
                listener.hub.signal([channel])  # one notification may stand for more room than this put uses
    return placed
