"""The queues that a consumer takes from, kept as beanstalkd keeps them for a connection."""

from __future__ import annotations

from .._records.watchlist import Watched
from .._values.arguments import Seconds
from .client import AsyncClient
from .task import AsyncTask


class AsyncWatchList(Watched):
    """The queues that a consumer takes from. As a connection to beanstalkd has: watch, ignore, reserve.

    It has nothing to do with puts: `client.queue(name).put(...)` is beanstalkd's use and put.

    Args:
        client: to take with.
        queues: their names; without any, the one that is named "default".
    """

    def __init__(self, client: AsyncClient, *queues: str) -> None:
        super().__init__(queues)
        self._client = client

    async def take(self, timeout: Seconds | None = None, *, deadline_soon: bool = False) -> AsyncTask | None:
        """Take the next task of them all: the lowest (priority, id); see Client.take and Queue.take."""
        return await self._client.take(self.queues, timeout, deadline_soon=deadline_soon)
