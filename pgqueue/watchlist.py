"""The queues that one takes from, kept as beanstalkd keeps them for a connection. Both shells."""

from __future__ import annotations

from .aclient import AsyncClient
from .aqueues import AsyncTask
from .arguments import queue_name
from .base import mirrors
from .client import Client
from .errors import NotIgnored
from .queues import Task

DEFAULT = "default"


class _Watched:
    def __init__(self, queues: tuple[str, ...]) -> None:
        self._queues = dict.fromkeys(map(queue_name, queues or (DEFAULT,)))

    @property
    def queues(self) -> list[str]:
        """The names of the queues that are watched, in the order in which they were added."""
        return list(self._queues)

    def watch(self, queue: str) -> int:
        """Take from this queue too, from the next take on; returns how many are watched now. As beanstalkd's watch."""
        self._queues[queue_name(queue)] = None
        return len(self._queues)

    def ignore(self, queue: str) -> int:
        """Take from it no more; returns how many are watched now. As beanstalkd's ignore.

        Raises:
            NotIgnored: it is the only one.
        """
        if list(self._queues) == [queue]:
            raise NotIgnored(f"{queue!r} is the last queue of this watch list: watch another one before it is ignored")
        self._queues.pop(queue, None)
        return len(self._queues)


class WatchList(_Watched):
    """The queues that one takes from. As a connection to beanstalkd has: watch, ignore, reserve.

    What to put into is not its matter: `client.queue(name).put(...)` is beanstalkd's use and put.

    Args:
        client: to take with.
        queues: their names; without any, the one that is named "default".
    """

    def __init__(self, client: Client, *queues: str) -> None:
        super().__init__(queues)
        self._client = client

    def take(self, timeout: float | None = None, *, deadline_soon: bool = False) -> Task | None:
        """Take the next task of them all: the lowest (priority, id); see Client.take and Queue.take."""
        return self._client.take(self.queues, timeout, deadline_soon=deadline_soon)


@mirrors(WatchList)
class AsyncWatchList(_Watched):
    def __init__(self, client: AsyncClient, *queues: str) -> None:
        super().__init__(queues)
        self._client = client

    async def take(self, timeout: float | None = None, *, deadline_soon: bool = False) -> AsyncTask | None:
        return await self._client.take(self.queues, timeout, deadline_soon=deadline_soon)
