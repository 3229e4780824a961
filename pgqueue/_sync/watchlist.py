# Generated from pgqueue/_async/watchlist.py by tools/blocking.py: edit that file, not this one.

"""The queues that a consumer takes from, kept as beanstalkd keeps them for a connection."""

from __future__ import annotations

from .._records.watchlist import Watched
from .._values.arguments import Seconds
from .client import Client
from .task import Task


class WatchList(Watched):
    """The queues that a consumer takes from. As a connection to beanstalkd has: watch, ignore, reserve.

    It has nothing to do with puts: `client.queue(name).put(...)` is beanstalkd's use and put.

    Args:
        client: to take with.
        queues: their names; without any, the one that is named "default".
    """

    def __init__(self, client: Client, *queues: str) -> None:
        super().__init__(queues)
        self._client = client

    def take(self, timeout: Seconds | None = None, *, deadline_soon: bool = False) -> Task | None:
        """Take the next task of them all: the lowest (priority, id); see Client.take and Queue.take."""
        return self._client.take(self.queues, timeout, deadline_soon=deadline_soon)
