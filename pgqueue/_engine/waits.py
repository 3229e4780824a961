"""Waiting on named channels, and for what they announce: flows, as in flows.py, for both shells.

The order is always the same: enter the switchboard, wait until LISTEN is committed, and only then look. Whatever is
committed after the look is heard; whatever was committed before is seen by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from .._calls.call import Call
from ..errors import ClosedError
from .flows import Flow, Wait
from .hub import Signal
from .listener import Listener
from .switchboard import Ear, Gap

T = TypeVar("T")
MakeSignal = Callable[[], Signal]


class TimeLeft:
    """A moment from which nothing is waited for any more; None is never."""

    def __init__(self, timeout: float | None) -> None:
        self._end = float("inf") if timeout is None else time.monotonic() + timeout

    def seconds(self) -> float | None:
        left = self._end - time.monotonic()
        return None if left == float("inf") else max(0.0, left)

    def at_most(self, seconds: float) -> TimeLeft:
        """The same, or so many seconds from now if that is sooner."""
        sooner = TimeLeft(seconds)
        return sooner if sooner._end < self._end else self

    def over(self) -> bool:
        return time.monotonic() >= self._end


def ask(listener: Listener, make_signal: MakeSignal, call: Call[T]) -> Flow[T]:
    """Run a call on the listener's own connection, which holds the session.

    Raises:
        ConnectionLost: it broke; whether the call took effect is unknown.
        ClosedError: the client is closed.
    """
    asked = listener.ask(call, make_signal())
    yield Wait(asked.done, None)
    return asked.outcome()


def enter(listener: Listener, ear: Ear, left: TimeLeft) -> Flow[bool]:
    """Begin to hear, and wait until it is active; False if the time was over before. The caller leaves."""
    if listener.switchboard.enter(ear):
        listener.poke()
    if not ear.ready.is_set():
        yield Wait(ear.ready, left.seconds())
    return ear.ready.is_set()


def next_payload(listener: Listener, make_signal: MakeSignal, ear: Ear, left: TimeLeft) -> Flow[str | Gap | None]:
    """What comes next, a payload or the news of a gap; None when the time is over.

    Raises:
        ClosedError: the client is closed.
    """
    board = listener.switchboard
    while (heard := board.hear(ear)) is None:
        if board.closed or ear.hung_up:
            raise ClosedError("the client is closed" if board.closed else f"no longer subscribed to {ear.channel!r}")
        if left.over():
            return None
        signal = make_signal()
        board.await_next(ear, signal)
        yield Wait(signal, left.seconds())
    return heard


def wait(listener: Listener, make_signal: MakeSignal, channel: str, timeout: float | None) -> Flow[str]:
    """The first payload that is posted from now on. Raises TimeoutError, ClosedError."""
    left, ear = TimeLeft(timeout), Ear(channel, make_signal)
    try:
        yield from enter(listener, ear, left)
        while not isinstance(heard := (yield from next_payload(listener, make_signal, ear, left)), str):
            if heard is None:  # and not a gap: what came meanwhile is lost, and what comes now will do
                raise TimeoutError(f"nothing was posted to {channel!r} within {timeout} s")
        return heard
    finally:
        listener.switchboard.leave(ear)


def until(
    listener: Listener,
    make_signal: MakeSignal,
    channel: str,
    look: Callable[[], Flow[T | None]],
    timeout: float | None,
    poll: float = float("inf"),
) -> Flow[T | None]:
    """What `look` finds: now, or after whatever is announced on the channel; None when the time is over.

    `look` runs once LISTEN is committed, or the time is over before, then after each payload and after a gap; and every
    `poll` seconds, for what announces nothing, as a death.
    """
    left, ear = TimeLeft(timeout), Ear(channel, make_signal)
    try:
        yield from enter(listener, ear, left)
        while True:
            listener.switchboard.forget(ear)  # before the look: what comes after it counts
            found = yield from look()
            if found is not None or left.over():
                return found
            yield from next_payload(listener, make_signal, ear, left.at_most(poll))
    finally:
        listener.switchboard.leave(ear)
