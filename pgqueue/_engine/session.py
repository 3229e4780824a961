"""Making what lives as long as the client's session: a call that names the session, and is refused if that is dead."""

from __future__ import annotations

from typing import TypeVar

from ..errors import ClosedError, ConnectionLost, ServerError, SessionDead
from .flows import Flow, Wait
from .listener import Listener
from .waits import MakeSignal, TimeLeft

T = TypeVar("T")

PAUSE = 0.05  # after a refusal, seconds: the listener has yet to notice, or is coming back


def session(listener: Listener, make_signal: MakeSignal, left: TimeLeft) -> Flow[int]:
    """The session, as soon as there is one.

    Raises:
        ServerError: the server could not be reached in time.
        ClosedError: the client is closed.
    """
    while (found := listener.session) is None:
        if listener.stopping:
            raise ClosedError("the client is closed")
        if left.over():
            raise ServerError(f"nothing can be held without a session: {listener.failure}")
        signal = make_signal()
        listener.when_session(signal)
        yield Wait(signal, left.seconds())
    return found


def refused(error: SessionDead, make_signal: MakeSignal, left: TimeLeft, in_transaction: bool) -> Flow[None]:
    """Pause before the next attempt, if there can be one."""
    if in_transaction:
        raise ConnectionLost(
            f"the listener had lost its connection: nothing was created ({error}); repeat it"
        ) from error
    if left.over():
        raise ServerError(f"nothing can be held without a session: {error}") from error
    yield Wait(make_signal(), PAUSE)
