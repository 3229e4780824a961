"""Waits on named channels, and for the changes that they announce: flows (steps.py), for both shells.

The order is always the same: enter the switchboard, wait until LISTEN is committed, and only then look. The look sees
changes that were committed before it; the ear hears those that are committed after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from .._calls.call import Call
from ..errors import CallTimeout, ClosedError
from .door import without_session
from .listener import Listener
from .steps import Flow, Signal, Wait
from .switchboard import Ear, Gap

T = TypeVar("T")
MakeSignal = Callable[[], Signal]


def finite(seconds: float) -> float | None:
    """A time as Wait has it: None is without limit."""
    return None if seconds == float("inf") else seconds


class TimeLeft:
    """The end of a wait. A timeout of None has no end."""

    def __init__(self, timeout: float | None) -> None:
        self._end = float("inf") if timeout is None else time.monotonic() + timeout

    def seconds(self) -> float | None:
        left = self._end - time.monotonic()
        return finite(max(0.0, left))

    def at_most(self, seconds: float) -> TimeLeft:
        """This end, or `seconds` from now if that is sooner."""
        sooner = TimeLeft(seconds)
        return sooner if sooner._end < self._end else self

    def over(self) -> bool:
        return time.monotonic() >= self._end


def ask(listener: Listener, make_signal: MakeSignal, call: Call[T]) -> Flow[T]:
    """Run a call on the listener's own connection, which holds the session.

    Raises:
        ConnectionLost: the connection broke; whether the call took effect is unknown.
        CallTimeout: likewise, since there was no answer within call_timeout.
        ClosedError: the client is closed.
    """
    asked = listener.ask(call, make_signal())
    yield Wait(asked.done, finite(listener.call_timeout))
    if not asked.done.is_set():
        listener.withdraw(asked)
        raise CallTimeout(f"the listener's connection had no answer for {listener.call_timeout:g} s (call_timeout)")
    return asked.outcome()


def enter(listener: Listener, ear: Ear, left: TimeLeft) -> Flow[bool]:
    """Begin to hear, and wait until the ear is active. False if the time was over before. The caller calls leave()."""
    if listener.switchboard.enter(ear):
        listener.poke()
    if not ear.ready.is_set():
        yield Wait(ear.ready, left.seconds())
    return ear.ready.is_set()


def entered(listener: Listener, ear: Ear, patience: float) -> Flow[None]:
    """As enter(). Raises ServerError or NotRunning if the ear is not active within `patience` seconds."""
    if not (yield from enter(listener, ear, TimeLeft(patience))):
        raise without_session(f"nothing can be heard on {ear.channel!r}", listener.failure)


def next_payload(listener: Listener, make_signal: MakeSignal, ear: Ear, left: TimeLeft) -> Flow[str | Gap | None]:
    """The next payload or gap; None when the time is over.

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
            if heard is None:  # after a gap go on: the lost payload is gone, and a later one is as good
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
    poll: Callable[[], float] = lambda: float("inf"),
) -> Flow[T | None]:
    """Look until `look` finds something, and return that; None when the time is over.

    `look` runs once LISTEN is committed, or the time is over before, then after each payload and after each gap. It
    also runs `poll()` seconds after a look, for changes that are not announced, for example the death of a process.
    """
    left, ear = TimeLeft(timeout), Ear(channel, make_signal)
    try:
        yield from enter(listener, ear, left)
        while True:
            listener.switchboard.forget(ear)  # before the look: a payload that arrives after the look counts
            found = yield from look()
            if found is not None or left.over():
                return found
            yield from next_payload(listener, make_signal, ear, left.at_most(poll()))
    finally:
        listener.switchboard.leave(ear)
