"""Making what lives as long as the client's session: a call that names the session, and is refused if that is dead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from .borrowed import AsyncConn, Conn
from .calls import Call
from .errors import ClosedError, ConnectionLost, ServerError, SessionDead
from .flows import Flow, Wait
from .listener import Listener
from .shell import AsyncShell, LoopSignal, Shell
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


class Ephemeral(Shell):
    def _run_for_session(self, make: Callable[[int], Call[T]], conn: Conn | None) -> T:
        listener, left = self._listener(), TimeLeft(self._core.settings.connect_timeout)
        while True:
            own = self._drive(session(listener, threading.Event, left))
            try:
                return self._run(make(own), conn)
            except SessionDead as error:
                self._drive(refused(error, threading.Event, left, conn is not None))


class AsyncEphemeral(AsyncShell):
    async def _run_for_session(self, make: Callable[[int], Call[T]], conn: AsyncConn | None) -> T:
        listener, left = await self._listener(), TimeLeft(self._core.settings.connect_timeout)
        while True:
            own = await self._drive(session(listener, LoopSignal, left))
            try:
                return await self._run(make(own), conn)
            except SessionDead as error:
                await self._drive(refused(error, LoopSignal, left, conn is not None))
