"""Calls that create objects of the client's session, for example an ephemeral node. A dead session is refused."""

from __future__ import annotations

from typing import TypeVar

from ..errors import ClosedError, ConnectionLost, ServerError, SessionDead
from .door import without_session
from .listener import Listener
from .outages import Pauses
from .steps import Flow, Wait
from .waits import MakeSignal, TimeLeft

T = TypeVar("T")


def session(listener: Listener, make_signal: MakeSignal, left: TimeLeft) -> Flow[int]:
    """Wait for the listener's session and return its id.

    Raises:
        ServerError: the server could not be reached in time.
        NotRunning: it is a standby, or read-only.
        ClosedError: the client is closed.
    """
    while (found := listener.session) is None:
        if listener.stopping:
            raise ClosedError(listener.ending)
        if left.over():
            raise without_session("nothing can be created", listener.failure)
        signal = make_signal()
        listener.when_session(signal)
        yield Wait(signal, left.seconds())
    return found


def refused(
    error: SessionDead, make_signal: MakeSignal, left: TimeLeft, pauses: Pauses, in_transaction: bool
) -> Flow[None]:
    """Pause before the next attempt: the listener has not yet noticed that it lost its connection, or is reconnecting.

    Raises an error if the call cannot be repeated or the time is over.
    """
    if in_transaction:
        raise ConnectionLost(
            f"the listener had lost its connection: nothing was created ({error}); repeat it"
        ) from error
    if left.over():
        raise ServerError(f"nothing can be created without a session: {error}") from error
    yield Wait(make_signal(), pauses.failed())
