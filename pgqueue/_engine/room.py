"""Puts into a queue that may be full: a flow (steps.py), for both shells.

A put that waits for room sleeps as a take does, on a channel of its own: that of the queue's negated id. Each
transaction that makes room in a queue with a capacity signals this channel (sql/3_moves/count.sql), and the theory of
operation of sql/2_base/wake.sql holds for it unchanged: a put that finds the queue full after its waiter is armed
cannot have missed a signal.

Puts into a queue with a capacity are made one after another, by a lock that a producer's transaction keeps until its
end. An attempt waits for the lock as long as this put waits for room, and no longer than a call may last.
"""

from __future__ import annotations

from collections.abc import Callable

from .._calls.call import Call
from .._calls.put import FULL, Placed, patient, queue_ids
from .._values import arguments
from .._values.arguments import Seconds
from ..errors import LockBlocked
from .core import Core
from .listener import Listener
from .steps import Flow, Run, Signal, Wait
from .waiters import Waiter
from .waits import TimeLeft

LEAST = 0.05  # seconds for which an attempt waits for the lock


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
    """Put as soon as there is room. Returns the answer; FULL after `timeout` seconds, or when the client closes.

    Raises:
        LockBlocked: at the end of the time, another backend still has the lock that puts into this queue take in turns.
    """
    left = TimeLeft(timeout)
    placed = yield from _attempt(core, listener, call, left)
    while placed.state == FULL and not left.over() and not listener.stopping:
        ids: dict[str, int] = yield Run(queue_ids([queue]))
        channel = -ids[queue]
        waiter = Waiter((channel,), make_signal)
        try:
            if listener.hub.enter(waiter):
                listener.poke()
            yield Wait(waiter.armed, left.seconds())
            placed = yield from _attempt(core, listener, call, left)
            if placed.state == FULL:
                yield Wait(waiter.woken, left.at_most(core.settings.poll or float("inf")).seconds())
        finally:
            if listener.hub.leave(waiter):
                listener.poke()
            if waiter.woken.is_set():
                listener.hub.signal([channel])  # one notification may announce more room than this put uses
    return placed


def _attempt(core: Core, listener: Listener, call: Call[Placed], left: TimeLeft) -> Flow[Placed]:
    while True:
        seconds = min(left.at_most(core.settings.lock_patience).seconds() or 0.0, 1e6)
        try:
            placed: Placed = yield Run(patient(call, max(seconds, LEAST)), relaxed=False)
        except LockBlocked:
            if left.over() or listener.stopping:
                raise
        else:
            return placed
