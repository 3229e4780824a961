"""The two shells of a queue over several servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Self, TypeVar, Unpack

from .. import arguments
from ..aclient import AsyncClient
from ..aqueues import AsyncQueue, AsyncTask
from ..base import ClientBase, mirrors
from ..calls.counting import Stats
from ..calls.putting import PutArguments
from ..client import Client
from ..queues import Queue, Task
from ..shell import drive, drive_async
from . import flows, races
from .flows import Ask, Flow, Race
from .servers import Servers, ShardKey

C = TypeVar("C", bound=ClientBase)
T = TypeVar("T")


class _Queue(Generic[C]):
    def __init__(self, servers: Servers[C], name: str) -> None:
        self.name = arguments.queue_name(name)
        self._servers = servers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class ShardedQueue(_Queue[Client]):
    """A queue over several servers, from Shards.queue()."""

    @property
    def queues(self) -> list[Queue]:
        """The queue on each server, in their order: for what is done on one server, as kick."""
        return [server.client.queue(self.name) for server in self._servers.all]

    def put(self, data: Any, *, shard_key: ShardKey | None = None, **options: Unpack[PutArguments]) -> Task:
        """Add a task on the server that its key names or, if that cannot be reached, on the next one that can.

        Args:
            data: anything that JSON can hold.
            shard_key: what is to lie together, as a user's id: an int counts modulo the number of servers, a string or
                bytes by their CRC-32. None, the default, is the servers in turn.
            options: those of Queue.put. What they promise holds on one server: a lane or a key should be the shard key
                as well, and a put that fails over meets neither.

        Returns:
            The task, on the server where it lies.

        Raises:
            ServerError: none of the servers can be reached.
            ConnectionLost: whether the task was put is unknown, so it was not put elsewhere. That server rests now: a
                second put goes to the next one.
            BadData, PutRefused, ValueError: as for Queue.put, and for a shard key of another type.
        """
        task: Task = self._drive(flows.put(self._servers, shard_key, data, options))
        return task

    def take(self, timeout: float | None = None) -> Task | None:
        """Take the next task of a server, beginning at each of them in turn. Otherwise as take_many."""
        return next(iter(self.take_many(1, timeout)), None)

    def take_many(self, n: int, timeout: float | None = None) -> list[Task]:
        """Take up to `n` tasks, server by server, as soon as there is one. Each server gives its own in their order.

        Args:
            n: how many at most.
            timeout: seconds to wait for one, at all servers at once. 0 does not wait, None waits for ever. A server
                that has only just failed may add its connect_timeout.

        Returns:
            The tasks, each of which is settled on the server that it came from. An empty list if none came, or when a
            client is closed meanwhile.

        Raises:
            ServerError: none of the servers can be reached.
            ClosedError: a client is closed.
        """
        return self._drive(flows.take(self._servers, arguments.count("n", n), arguments.timeout(timeout)))

    def ack_many(self, tasks: Iterable[Task]) -> None:
        """Ack tasks, in one statement for each server that they came from. All servers are asked.

        Raises:
            TakeLost, ServerError, ConnectionLost: of the first server that failed; what the others acked is acked.
            ValueError: a task is from none of these servers.
        """
        self._drive(flows.ack_many(self._servers, tasks))

    def stats(self) -> Stats:
        """How many tasks are in which state, on all servers that can be reached. Raises ServerError if none can."""
        return flows.summed(self.stats_by_server())

    def stats_by_server(self) -> list[Stats | None]:
        """The same of each server, in their order; None of one that cannot be reached. Raises as stats."""
        return self._drive(flows.stats(self._servers))

    def _drive(self, flow: Flow[T]) -> T:
        return drive(flow, self._perform)

    def _perform(self, step: Ask | Race) -> object:
        if isinstance(step, Race):
            return races.run(step, self.name)
        if step.server.failed:
            step.server.check()
        return step.verb(step.server.client.queue(self.name))


@mirrors(ShardedQueue)
class AsyncShardedQueue(_Queue[AsyncClient]):
    @property
    def queues(self) -> list[AsyncQueue]:
        return [server.client.queue(self.name) for server in self._servers.all]

    async def put(self, data: Any, *, shard_key: ShardKey | None = None, **options: Unpack[PutArguments]) -> AsyncTask:
        task: AsyncTask = await self._drive(flows.put(self._servers, shard_key, data, options))
        return task

    async def take(self, timeout: float | None = None) -> AsyncTask | None:
        return next(iter(await self.take_many(1, timeout)), None)

    async def take_many(self, n: int, timeout: float | None = None) -> list[AsyncTask]:
        return await self._drive(flows.take(self._servers, arguments.count("n", n), arguments.timeout(timeout)))

    async def ack_many(self, tasks: Iterable[AsyncTask]) -> None:
        await self._drive(flows.ack_many(self._servers, tasks))

    async def stats(self) -> Stats:
        return flows.summed(await self.stats_by_server())

    async def stats_by_server(self) -> list[Stats | None]:
        return await self._drive(flows.stats(self._servers))

    async def _drive(self, flow: Flow[T]) -> T:
        return await drive_async(flow, self._perform)

    async def _perform(self, step: Ask | Race) -> object:
        if isinstance(step, Race):
            return await races.run_async(step, self.name)
        if step.server.failed:
            await asyncio.to_thread(step.server.check)
        return await step.verb(step.server.client.queue(self.name))


class Shards:
    """Several servers, each with a pgqueue of its own, used as one. Connects at its first call.

    Args:
        servers: a DSN or a Client for each. Their order and number are what shard keys count by, so they have to be the
            same in every process that puts.
        connect_timeout: seconds after which a server counts as down; for the clients that are made here of DSNs.
        retry: seconds for which a server that could not be reached is passed over, until one call tries it again.

    Raises:
        ValueError: there is no server, one is neither a DSN nor a Client, or a time cannot be.

    Clients that were made here are closed at the end of a `with` block and by close(); those that were given stay open.
    """

    def __init__(self, servers: Sequence[str | Client], *, connect_timeout: float = 2.0, retry: float = 5.0) -> None:
        made = [Client(given, connect_timeout=connect_timeout) for given in _dsns(servers, Client)]
        self._own = made.copy()
        self.clients = [given if isinstance(given, Client) else made.pop(0) for given in servers]
        self._servers = Servers(self.clients, _retry(retry))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def queue(self, name: str) -> ShardedQueue:
        """The queue of this name on all servers. Raises ValueError for a name that cannot be."""
        return ShardedQueue(self._servers, name)

    def home(self, shard_key: ShardKey) -> Client:
        """The client of the server that a key names. Raises ValueError for a key of another type."""
        return self.clients[self._servers.home(shard_key)]

    def close(self) -> None:
        """Close the clients that were made here, as Client.close(). May be called twice."""
        for client in self._own:
            client.close()


@mirrors(Shards)
class AsyncShards:
    def __init__(
        self, servers: Sequence[str | AsyncClient], *, connect_timeout: float = 2.0, retry: float = 5.0
    ) -> None:
        made = [AsyncClient(given, connect_timeout=connect_timeout) for given in _dsns(servers, AsyncClient)]
        self._own = made.copy()
        self.clients = [given if isinstance(given, AsyncClient) else made.pop(0) for given in servers]
        self._servers = Servers(self.clients, _retry(retry))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def queue(self, name: str) -> AsyncShardedQueue:
        return AsyncShardedQueue(self._servers, name)

    def home(self, shard_key: ShardKey) -> AsyncClient:
        return self.clients[self._servers.home(shard_key)]

    async def close(self) -> None:
        for client in self._own:
            await client.close()


def _dsns(servers: Sequence[object], kind: type) -> list[str]:
    """Those of the servers that are given by their DSN."""
    if isinstance(servers, str) or not servers:
        raise ValueError(f"a list of DSNs or {kind.__name__}s is needed, not {servers!r}")
    for given in servers:
        if not isinstance(given, str | kind):
            raise ValueError(f"a server is a DSN or {kind.__name__}, not {given!r}")
    return [given for given in servers if isinstance(given, str)]


def _retry(seconds: float) -> float:
    if arguments.seconds("retry", seconds, positive=True) is None:
        raise ValueError("retry must be a number of seconds, not None")
    return seconds
