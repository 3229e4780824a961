"""Watching a node, one event at a time. See _engine/watches.py for why no event is missed."""

from __future__ import annotations

from typing import Self

from .._calls.nodes import NodeEvent
from .._engine.waits import TimeLeft
from .._engine.watches import Seeing, fired
from .._values import arguments
from .._values.arguments import Seconds
from .shell import AsyncShell


class AsyncWatch:
    """A one-shot watch of a node, from client.nodes.watch(). No event after its node was read is missed.

    Attributes:
        path: of the node that is watched.
        node: as it was when the watch began, None if there was none.
        children: the names of its children at that moment, sorted; None if its data is watched.
    """

    def __init__(self, shell: AsyncShell, observer: Seeing) -> None:
        self.path = observer.path
        self.node, self.children = observer.seen.value
        self._shell = shell
        self._observer = observer

    async def wait(self, timeout: Seconds | None = None) -> NodeEvent:
        """Wait for the first event after the node was read. The event ends the watch; make a new one for the next.

        Args:
            timeout: seconds to wait, or a timedelta; None waits without limit, 0 does not wait. A TimeoutError does not
                end the watch: wait again.

        Raises:
            TimeoutError: nothing happened in time.
            ClosedError: the watch is over, or it or the client is closed.
        """
        seconds = arguments.timeout(timeout)
        kind = await self._shell.drive(self._observer.event(TimeLeft(seconds)))
        return fired(self._observer, kind, seconds)

    async def close(self) -> None:
        """End the watch before its event; a wait in another thread raises ClosedError. May be called twice."""
        self._observer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
