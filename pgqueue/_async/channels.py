"""wait, post and subscribe: pub-sub on PostgreSQL's channels, as lapis' wait and post."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from .._calls import channels as calls
from .._engine import waits
from .._engine.awaiting import Conn, Signal
from .._engine.listener import Listener
from .._engine.switchboard import Ear
from .._engine.waits import TimeLeft
from .._values import arguments
from .._values.arguments import Seconds
from .._values.logs import log
from ..errors import ClosedError
from .shell import AsyncShell

OnGap = Callable[[str], Any]


class AsyncSubscription:
    """The payloads of a channel, from Client.subscribe(). Iterate over it, or ask get() for the next one.

    It hears every payload that is posted after subscribe() returned, whether or not a call is waiting. The iteration
    ends when close() is called or the client is closed.

    Attributes:
        channel: its name.
        gaps: how often payloads may have been missed: the buffer was full, or the connection was lost.
    """

    def __init__(self, shell: AsyncShell, listener: Listener, ear: Ear, on_gap: OnGap | None) -> None:
        self.channel = ear.channel
        self.gaps = 0
        self._shell = shell
        self._listener = listener
        self._ear = ear
        self._on_gap = on_gap
        self._closed = False

    async def get(self, timeout: Seconds | None = None) -> str:
        """The next payload.

        Args:
            timeout: seconds to wait for it, or a timedelta; None waits without limit, 0 does not wait.

        Raises:
            TimeoutError: nothing was posted in time.
            ClosedError: the subscription or the client is closed.
        """
        left = TimeLeft(arguments.timeout(timeout))
        while not self._closed:
            heard = await self._shell.drive(waits.next_payload(self._listener, Signal, self._ear, left))
            if isinstance(heard, str):
                return heard
            if heard is None:
                raise TimeoutError(f"nothing was posted to {self.channel!r} within {timeout} s")
            self._tell(heard.reason)
        raise ClosedError(f"the subscription to {self.channel!r} is closed")

    async def close(self) -> None:
        """Stop listening; a blocked iteration ends. May be called twice."""
        self._closed = True
        self._listener.switchboard.hang_up(self._ear)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        try:
            return await self.get()
        except ClosedError:
            raise StopAsyncIteration from None

    def _tell(self, reason: str) -> None:
        self.gaps += 1
        if self._on_gap is not None:
            self._on_gap(reason)
        else:
            log.warning("payloads of %r may have been missed: %s", self.channel, reason)


class AsyncChannels:
    """The verbs of a client on named channels."""

    shell: AsyncShell

    async def wait(self, channel: str, timeout: Seconds | None = None) -> str:
        """Wait for the next payload on a channel, and return it. Every waiting call gets it. As lapis' wait.

        Only payloads that are posted after the call count, and those between two calls are missed: see subscribe().

        Args:
            channel: any name of 1 to 63 bytes, taken literally: upper case and quotes are kept.
            timeout: seconds to wait, or a timedelta; None waits without limit, 0 does not wait.

        Raises:
            TimeoutError: nothing was posted in time.
            ValueError: the channel's name is not valid.
            ClosedError: the client is closed, also while waiting.
        """
        channel, seconds = arguments.channel_name(channel), arguments.timeout(timeout)
        return await self.shell.drive(waits.wait(await self.shell.listener(), Signal, channel, seconds))

    async def post(self, channel: str, payload: str = "", *, conn: Conn | None = None) -> None:
        """Send a payload to every call that waits on a channel. As lapis' post, and as NOTIFY in psql.

        Args:
            channel: as for wait.
            payload: a string of up to 64 MiB. Above 7999 bytes it is stored in a table, from which it is removed later.
            conn: the caller's connection: the payload is sent when its transaction commits, and never if it rolls
                back. The same payload of up to 7999 bytes, posted twice in one transaction, arrives once.

        Raises:
            ValueError: the channel's name, or the payload, is not valid.
        """
        await self.shell.run(calls.post(channel, payload), conn, relaxed=True)

    async def subscribe(self, channel: str, *, buffer: int = 1000, on_gap: OnGap | None = None) -> AsyncSubscription:
        """Hear every payload that is posted to a channel from now on, in order.

        Args:
            channel: as for wait.
            buffer: how many payloads to keep for a slow reader; beyond that the oldest are dropped, which is a gap.
            on_gap: called with the reason, before the next payload, when payloads may be missing: the buffer was full,
                or the connection was lost and is back. By default it is logged.

        Raises:
            ValueError: an argument is not valid.
            ServerError: the server could not be reached within connect_timeout.
            ClosedError: the client is closed.
        """
        listener = await self.shell.listener()
        ear = Ear(arguments.channel_name(channel), Signal, arguments.count("buffer", buffer))
        try:
            await self.shell.drive(waits.entered(listener, ear, self.shell.settings.patience))
        except BaseException:
            listener.switchboard.leave(ear)
            raise
        return AsyncSubscription(self.shell, listener, ear, on_gap)
