"""A queue over several servers; see _engine/cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self, TypeVar, Unpack

from .._calls.put_options import PutArguments
from .._calls.stats import Stats
from .._engine.awaiting import drive, in_thread
from .._engine.cluster import flows
from .._engine.cluster.flows import Ask, Flow
from .._engine.cluster.servers import Place, Servers
from .._values import arguments
from .._values.arguments import Seconds
from .client import AsyncClient
from .cluster_take import take_from_all
from .queue import AsyncQueue
from .task import AsyncTask

T = TypeVar("T")


class AsyncClusterQueue:
    """A queue over several servers, from Cluster.queue()."""

    def __init__(self, servers: Servers[AsyncClient], name: str) -> None:
        self.name = arguments.queue_name(name)
        self._servers = servers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def queues(self) -> list[AsyncQueue]:
        """The queue on each server, in their order: for verbs of a single server, for example kick."""
        return [server.client.queue(self.name) for server in self._servers.all]

    async def put(self, data: Any, *, place: Place | None = None, **options: Unpack[PutArguments]) -> AsyncTask:
        """Add a task on the server that its key names or, if that cannot be reached, on the next one that can.

        Args:
            data: anything that JSON can hold, and bytes.
            place: tasks of one key are on one server, for example those of one user. Of strings and bytes few move
                to another server when one is added to the end of the list; an int is the server's index, modulo the
                number of servers. None, the default, uses the lane, else the key, as the place, and then no other
                server; without both it takes the servers in turn.
            options: those of Queue.put. Their promises hold on one server: a put with a place that fails over
                meets neither its lane nor its key. A task that is put after others, or into a batch, is put on the
                server of these, and on no other; ids need a place, which names their server.

        Returns:
            The task, on the server that has it.

        Raises:
            ServerError: none of the servers can be reached, or not the only one that may have the task.
            ConnectionLost: whether the task was put is unknown, so it was not put elsewhere. That server rests now: a
                second put that may use another server is sent to the next one.
            BadData, PutRefused, ValueError: as for Queue.put, and for a place of another type; the tasks of
                `after` are on several servers; `conn` is given: use home() for a put in a transaction; two servers of
                the list are the same database, or have the same number.
        """
        task: AsyncTask = await self._drive(flows.put(self._servers, place, data, options))
        return task

    async def take(self, timeout: Seconds | None = None) -> AsyncTask | None:
        """Take the next task of a server, beginning at each of them in turn. Otherwise as take_many."""
        tasks = await self.take_many(1, timeout)
        return tasks[0] if tasks else None

    async def take_many(self, n: int, timeout: Seconds | None = None) -> list[AsyncTask]:
        """Take up to `n` tasks, server by server, as soon as there is one. Each server gives its own in their order.

        Args:
            n: how many at most.
            timeout: seconds to wait for one, at all servers at once, or a timedelta; None waits without limit, 0 does
                not wait. A server that has only just failed may add its connect_timeout.

        Returns:
            The tasks, each of which is settled on its own server. An empty list if none was ready in time, or when a
            client is closed while waiting.

        Raises:
            ServerError: none of the servers can be reached.
            ClosedError: a client is closed.
        """
        count, seconds = arguments.count("n", n), arguments.timeout(timeout)
        return await take_from_all(self._servers, [self.name], count, seconds)

    async def ack_many(self, tasks: Iterable[AsyncTask]) -> None:
        """Ack tasks, in one statement for each server that they came from. All servers are asked.

        Raises:
            TakeLost, ServerError, ConnectionLost: of the first server that failed; the tasks of the others are acked.
            ValueError: a task is from none of these servers.
        """
        await self._drive(flows.ack_many(self._servers, tasks))

    async def stats(self) -> Stats:
        """The number of tasks in each state, on all servers that can be reached. Raises ServerError if none can."""
        return flows.summed(await self.stats_by_server())

    async def stats_by_server(self) -> list[Stats | None]:
        """The stats of each server, in their order; None for one that cannot be reached. Raises as stats."""
        return await self._drive(flows.stats(self._servers))

    async def _drive(self, flow: Flow[T]) -> T:
        return await drive(flow, self._perform)

    async def _perform(self, step: Ask) -> object:
        if step.server.failed:
            await in_thread(step.server.check)
        return await step.verb(step.server.client.queue(self.name))


class AsyncCluster:
    """Several servers, each with a pgqueue of its own, used as one. Connects at its first call.

    Args:
        servers: a DSN or a Client for each. A place selects a server by their order and number, so these have to be
            the same in every process that puts. Two that are the same database are refused at the first call that
            reaches both.
        connect_timeout: seconds after which a server counts as down; for the clients that are made here from DSNs.
        retry: seconds for which a server that could not be reached is passed over, until one call tries it again.

    Raises:
        ValueError: there is no server, one is neither a DSN nor a Client, or a time is not valid.

    Clients that were made here are closed at the end of a `with` block and by close(); those that were given stay open.
    """

    def __init__(
        self, servers: Sequence[str | AsyncClient], *, connect_timeout: Seconds = 2.0, retry: Seconds = 5.0
    ) -> None:
        made = [AsyncClient(given, connect_timeout=connect_timeout) for given in _dsns(servers, AsyncClient)]
        self._own = made.copy()
        self.clients = [given if isinstance(given, AsyncClient) else made.pop(0) for given in servers]
        self._servers = Servers(self.clients, arguments.required_seconds("retry", retry, positive=True))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def queue(self, name: str) -> AsyncClusterQueue:
        """The queue of this name on all servers. Raises ValueError for a name that is not valid."""
        return AsyncClusterQueue(self._servers, name)

    def home(self, place: Place) -> AsyncClient:
        """The client of the server that a key names. Raises ValueError for a key of another type."""
        return self.clients[self._servers.home(place)]

    async def close(self) -> None:
        """Close the clients that were made here, as Client.close(). May be called twice."""
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
