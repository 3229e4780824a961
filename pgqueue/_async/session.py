"""Sessions within a client's: several holders of tasks over one client. From client.session()."""

from __future__ import annotations

import threading
from typing import Any, Self, TypeVar, cast

from .._calls.call import Call, Fence
from .._calls.session import close_session
from .._engine.awaiting import Conn
from .._engine.listener import Listener
from .._engine.shell import ShellBase
from .._engine.within import Within
from .._values import arguments
from ..errors import ClosedError
from .exchanges import AsyncExchanges
from .queues import AsyncQueues
from .settle import OPEN
from .shell import AsyncShell

T = TypeVar("T")


class AsyncSession(AsyncQueues):
    """A holder of tasks: takes, deadlines, and exclusive and temporary queues of its own, over a client's connections.

    It has the client's verbs for queues. A task that it took is settled by its id in the same session only;
    `take(deadline_soon=True)` looks at its takes only; from an exclusive queue that it made only it may take; and a
    queue with `auto_delete` ends when the last session that took from it has ended. In the view `takes` its label is
    the holder.

    The end of a `with` block, and close(), give back at once all that it took and did not settle, and end its queues.
    The end of its client does so too. The death of the process frees all of its sessions as it frees the client's:
    within a second. After a lost connection to the server it goes on as its client does.

    Attributes:
        exchanges: publishing, exchanges that end with the session, and its will.
    """

    def __init__(self, shell: AsyncShell, label: str | None) -> None:
        self.shell: AsyncSessionShell = AsyncSessionShell(shell, label)
        self.exchanges = AsyncExchanges(self.shell)

    async def close(self) -> None:
        """Give back all that was taken and not settled, and end the queues of the session. May be called twice.

        Takes that wait return None, and later ones raise ClosedError. While the server is away, the client closes the
        session as soon as it is back.
        """
        await self.shell.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shell.label}>"


class AsyncSessionShell(AsyncShell):
    """The client's shell, with the listener and the fence of a session within the client's."""

    def __init__(self, shell: AsyncShell, label: str | None) -> None:
        ShellBase.__init__(self, shell.core)
        self.connections, self.together = shell.connections, shell.together
        self.label = shell.core.label if label is None else f"{shell.core.label} {arguments.label('label', label)}"
        self._shell = shell
        self._within: Within | None = None  # from its first take on
        self._closed = False
        self._lock = threading.Lock()

    async def listener(self) -> Listener:
        """The client's listener, with this session. Raises ClosedError if the session is closed."""
        outer = await self._shell.listener()
        with self._lock:
            if self._closed:
                raise ClosedError("the session is closed")
            if self._within is None or self._within.outer is not outer:  # in a fork it is another listener
                self._within = Within(outer, self.label)
            return cast(Listener, self._within)

    @property
    def running_listener(self) -> Listener | None:
        within = self._within
        if within is None or self._closed or self.core.running_listener is not within.outer:
            return None
        return cast(Listener, within)

    def fence(self, token: int | None = None) -> Fence:
        return Fence(token, self._within.last if self._within else None, self.label)

    def joined(self, *, waiting: bool = False) -> Any:
        return self._shell.joined(waiting=waiting)

    async def run(
        self, call: Call[T], conn: Conn | None = None, *, relaxed: bool = False, within: float | None = None
    ) -> T:
        return await self._shell.run(call, conn, relaxed=relaxed, within=within)

    async def close(self) -> None:
        """End the session, and leave the client as it is."""
        with self._lock:
            self._closed, within = True, self._within
        if within is None or (opened := within.close()) is None or self.core.running_listener is not within.outer:
            return
        ending = close_session(opened)
        try:
            await self.connections.run(ending, relaxed=True)
        except OPEN:
            within.later(ending)
        except BaseException:  # a coroutine is cancelled, for example
            within.later(ending)
            raise
