"""wait, post and subscribe: pub-sub on PostgreSQL's channels, as lapis' wait and post. Both shells."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Self

from . import arguments, waits
from .base import mirrors
from .borrowed import AsyncConn, Conn
from .calls import channels as calls
from .errors import ClosedError
from .listener import Listener
from .shell import AsyncShell, LoopSignal, Shell
from .switchboard import Ear, Gap
from .waits import TimeLeft

log = logging.getLogger("pgqueue")
OnGap = Callable[[str], Any]


class Subscription:
    """What is posted to a channel, from Client.subscribe(). Iterate over it, or ask get() for the next payload.

    It hears everything that is posted after subscribe() returned, whether or not somebody is asking. The iteration
    ends when close() is called or the client is closed.

    Attributes:
        channel: its name.
        gaps: how often payloads may have been missed: the buffer was full, or the connection was lost.
    """

    def __init__(self, client: Channels, listener: Listener, ear: Ear, on_gap: OnGap | None) -> None:
        self.channel = ear.channel
        self.gaps = 0
        self._client = client
        self._listener = listener
        self._ear = ear
        self._on_gap = on_gap
        self._closed = False

    def get(self, timeout: float | None = None) -> str:
        """The next payload.

        Args:
            timeout: seconds to wait for it; None waits for ever.

        Raises:
            TimeoutError: nothing came in time.
            ClosedError: the subscription or the client is closed.
        """
        left = TimeLeft(arguments.timeout(timeout))
        while not self._closed:
            heard = self._client._drive(waits.next_payload(self._listener, threading.Event, self._ear, left))
            if isinstance(heard, str):
                return heard
            if heard is None:
                raise TimeoutError(f"nothing was posted to {self.channel!r} within {timeout} s")
            _tell(self, heard, self._on_gap)
        raise ClosedError(f"the subscription to {self.channel!r} is closed")

    def close(self) -> None:
        """Hear nothing more; a blocked iteration ends. May be called twice."""
        self._closed = True
        self._listener.switchboard.hang_up(self._ear)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        try:
            return self.get()
        except ClosedError:
            raise StopIteration from None


@mirrors(Subscription)
class AsyncSubscription:
    def __init__(self, client: AsyncChannels, listener: Listener, ear: Ear, on_gap: OnGap | None) -> None:
        self.channel = ear.channel
        self.gaps = 0
        self._client = client
        self._listener = listener
        self._ear = ear
        self._on_gap = on_gap
        self._closed = False

    async def get(self, timeout: float | None = None) -> str:
        left = TimeLeft(arguments.timeout(timeout))
        while not self._closed:
            heard = await self._client._drive(waits.next_payload(self._listener, LoopSignal, self._ear, left))
            if isinstance(heard, str):
                return heard
            if heard is None:
                raise TimeoutError(f"nothing was posted to {self.channel!r} within {timeout} s")
            _tell(self, heard, self._on_gap)
        raise ClosedError(f"the subscription to {self.channel!r} is closed")

    async def close(self) -> None:
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


def _tell(subscription: Subscription | AsyncSubscription, gap: Gap, on_gap: OnGap | None) -> None:
    subscription.gaps += 1
    if on_gap is not None:
        on_gap(gap.reason)
    else:
        log.warning("payloads of %r may have been missed: %s", subscription.channel, gap.reason)


class Channels(Shell):
    def wait(self, channel: str, timeout: float | None = None) -> str:
        """Wait for the next payload on a channel, and return it. All who wait get it. As lapis' wait.

        Only what is posted after the call counts, and what is posted between two calls is missed: see subscribe().

        Args:
            channel: any name of 1 to 63 bytes, as it stands: upper case and quotes are kept.
            timeout: seconds to wait; None waits for ever.

        Raises:
            TimeoutError: nothing was posted in time.
            ValueError: the channel's name cannot be.
            ClosedError: the client is closed, also meanwhile.
        """
        channel, timeout = arguments.channel_name(channel), arguments.timeout(timeout)
        return self._drive(waits.wait(self._listener(), threading.Event, channel, timeout))

    def post(self, channel: str, payload: str = "", *, conn: Conn | None = None) -> None:
        """Send a payload to all who wait on a channel. As lapis' post, and as NOTIFY in psql.

        Args:
            channel: as for wait.
            payload: a string of any size. Above 7999 bytes it goes through a table, from which it is removed later.
            conn: a connection of the caller's: it is sent when its transaction commits, and never if it rolls back. The
                same payload posted twice in one transaction arrives once.

        Raises:
            ValueError: the channel's name, or the payload, cannot be.
        """
        self._run(calls.post(channel, payload), conn, relaxed=True)

    def subscribe(self, channel: str, *, buffer: int = 1000, on_gap: OnGap | None = None) -> Subscription:
        """Hear everything that is posted to a channel from now on, in its order.

        Args:
            channel: as for wait.
            buffer: how many payloads to keep for a slow reader; beyond it the oldest are dropped, and that is a gap.
            on_gap: called with the reason, before the next payload, when some may be missing: the buffer was full, or
                the connection was lost and is there again. By default it is logged.

        Raises:
            ValueError: an argument cannot be.
            ClosedError: the client is closed.
        """
        listener = self._listener()
        ear = Ear(arguments.channel_name(channel), threading.Event, arguments.count("buffer", buffer))
        try:
            self._drive(waits.enter(listener, ear, TimeLeft(None)))
        except BaseException:
            listener.switchboard.leave(ear)
            raise
        return Subscription(self, listener, ear, on_gap)


@mirrors(Channels)
class AsyncChannels(AsyncShell):
    async def wait(self, channel: str, timeout: float | None = None) -> str:
        channel, timeout = arguments.channel_name(channel), arguments.timeout(timeout)
        return await self._drive(waits.wait(await self._listener(), LoopSignal, channel, timeout))

    async def post(self, channel: str, payload: str = "", *, conn: AsyncConn | None = None) -> None:
        await self._run(calls.post(channel, payload), conn, relaxed=True)

    async def subscribe(self, channel: str, *, buffer: int = 1000, on_gap: OnGap | None = None) -> AsyncSubscription:
        listener = await self._listener()
        ear = Ear(arguments.channel_name(channel), LoopSignal, arguments.count("buffer", buffer))
        try:
            await self._drive(waits.enter(listener, ear, TimeLeft(None)))
        except BaseException:
            listener.switchboard.leave(ear)
            raise
        return AsyncSubscription(self, listener, ear, on_gap)
