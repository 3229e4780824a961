"""Several servers in place of one client: a verb goes to the server of its task, to the home server, or to all.

There is no coordinator: each server is a whole pgqueue, and each class here names the families of its verbs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from .._calls import servers as table_calls
from .._calls.call import Call
from .._calls.limits import Scope, Terms, set_limit
from .._engine.awaiting import Conn
from .._engine.cluster import merging
from .._engine.cluster.following import Following
from .._engine.cluster.members import Listed, Listing, of_citus, of_table
from .._engine.cluster.placing import choose
from .._engine.cluster.servers import Place
from .._records.puts import Put
from .._records.task import TaskLike
from .._values import arguments
from .._values.arguments import Seconds
from .audit import AsyncAudit
from .batches import AsyncBatch, AsyncBatches
from .client import AsyncClient
from .cluster_queue import AsyncClusterQueue, popped
from .exchanges import AsyncExchanges
from .families import at_each, at_home, by_task, made_at_home, over_all
from .groups import AsyncGroups
from .handlers import AsyncHandlers
from .limits import AsyncLimits
from .members import AsyncMembers
from .nodes import AsyncNodes
from .privileges import AsyncPrivileges
from .results import AsyncResults
from .sources import told
from .statuses import AsyncStatuses
from .task import AsyncTask


class AsyncClusterResults:
    """Outcomes and results of tasks, as `cluster.results`: a task's id names its server."""

    def __init__(self, members: AsyncMembers) -> None:
        self._members = members

    def _at(self, client: AsyncClient) -> AsyncResults:
        return client.results

    outcome = by_task(AsyncResults.outcome)
    attempts = by_task(AsyncResults.attempts)
    get = by_task(AsyncResults.get)
    report = by_task(AsyncResults.report)


class AsyncClusterBatches:
    """Batches of tasks, as `cluster.batches`: each batch is on one server, which its id names."""

    def __init__(self, members: AsyncMembers) -> None:
        self._members = members

    def _at(self, client: AsyncClient) -> AsyncBatches:
        return client.batches

    get = by_task(AsyncBatches.get)
    failures = by_task(AsyncBatches.failures)
    newest = over_all(AsyncBatches.newest, merging.joined)


class AsyncClusterLimits:
    """Limits of jobs and queues, as `cluster.limits`: each server has all of them, and counts its own tasks."""

    def __init__(self, members: AsyncMembers) -> None:
        self._members = members

    def _at(self, client: AsyncClient) -> AsyncLimits:
        return client.limits

    async def set(
        self,
        queue: str,
        job: str | None = None,
        *,
        concurrency: int | None = None,
        rate: int | None = None,
        per: Seconds = 1,
        burst: int | None = None,
        argument: str | None = None,
        scope: Scope = "server",
    ) -> None:
        """Limit the tasks of a job, or of a queue, on every server. As Limits.set.

        A server that fails does not stop the others; then the first error is raised, and the call is to be repeated.

        Args:
            queue, job, concurrency, rate, per, burst, argument: those of Limits.set.
            scope: the servers whose tasks the limit counts together. "server": each server counts its own tasks, so a
                concurrency of 2 on three servers lets 6 tasks run. "home": new tasks of the limit go to the home server
                alone, whatever place or key they have, so 2 run. Those that other servers have already, or get by a
                dead letter, run beside these.

        Raises:
            NoQueue, NotAllowed: as Limits.set, on one of the servers.
            ServerError, ConnectionLost: a server could not be reached. Until it has the limit too, it accepts tasks.
            ValueError: an argument is not valid; or the scope is "home" and the servers are not numbered.
        """
        if scope not in ("server", "home"):
            raise ValueError(f'scope must be "server" or "home", not {scope!r}')
        terms = Terms(concurrency=concurrency, rate=rate, per=per, burst=burst, argument=argument)
        home = await self._members.number_of_home() if scope == "home" else None
        await self._members.tell_all(lambda client: client.shell.run(set_limit(queue, job, terms, home)))
        self._members.kept.forget()

    declare = at_each(AsyncLimits.declare, merging.first)
    drop = at_each(AsyncLimits.drop, any)
    list = over_all(AsyncLimits.list, merging.joined)


class AsyncClusterPrivileges:
    """The rights of roles to queues, as `cluster.privileges`: each server has all of them."""

    def __init__(self, members: AsyncMembers) -> None:
        self._members = members

    def _at(self, client: AsyncClient) -> AsyncPrivileges:
        return client.privileges

    grant = at_each(AsyncPrivileges.grant, merging.first)
    grant_to = at_each(AsyncPrivileges.grant_to, merging.first)
    revoke = at_each(AsyncPrivileges.revoke, merging.first)
    revoke_from = at_each(AsyncPrivileges.revoke_from, merging.first)
    restrict = at_each(AsyncPrivileges.restrict, merging.first)
    list = over_all(AsyncPrivileges.list, merging.joined)


#: Verbs of a client that are one server's.
NOT_HERE = {
    "consumer": "a consumer takes from one server: use cluster.clients[index].consumer()",
    "identify": "an identity is one server's: use cluster.clients[index].identify()",
    "session": "a session is one server's: use cluster.clients[index].session()",
    "shell": "a cluster has a shell for each server: use cluster.clients[index].shell",
}


class AsyncCluster(AsyncHandlers):
    """Several servers, each with a pgqueue of its own, in place of one client. Connects at its first call.

    Args:
        servers: a DSN or a Client for each; the first one is the home server. A place selects a server by their order
            and number, so these have to be the same in every process that puts. Two that are the same database are
            refused at the first call that reaches both.
        connect_timeout: seconds after which a server counts as down; for the clients that are made here from DSNs.
        retry: seconds for which a server that could not be reached is passed over, until one call tries it again.

    Attributes:
        batches: batches of tasks, each on one server.
        limits: how many tasks of a job or a queue run at once on each server, and how many begin in a time.
        privileges: the rights of roles to queues, the same on each server.
        results: outcomes, results and progress of tasks.
        handlers, jobs, middleware: as those of a Client.

    Raises:
        ValueError: there is no server, one is neither a DSN nor a Client, or a time is not valid.

    Clients that were made here are closed at the end of a `with` block and by close(); those that were given stay open.
    """

    def __init__(
        self, servers: Sequence[str | AsyncClient], *, connect_timeout: Seconds = 2.0, retry: Seconds = 5.0
    ) -> None:
        made = [AsyncClient(given, connect_timeout=connect_timeout) for given in _dsns(servers, AsyncClient)]
        own = made.copy()
        clients = [given if isinstance(given, AsyncClient) else made.pop(0) for given in servers]
        self._have(AsyncMembers(clients, arguments.required_seconds("retry", retry, positive=True)), own)

    def _have(
        self, members: AsyncMembers, own: list[AsyncClient], following: Following[AsyncClient] | None = None
    ) -> None:
        self._members = members
        self._own = own
        self._following = following
        self._begin()

    def _begin(self) -> None:
        self._begin_handlers()
        self.batches = AsyncClusterBatches(self._members)
        self.limits = AsyncClusterLimits(self._members)
        self.privileges = AsyncClusterPrivileges(self._members)
        self.results = AsyncClusterResults(self._members)
        self.schedules = self.home.schedules

    @classmethod
    def over(cls, members: AsyncMembers) -> Self:
        """A cluster of these servers, whose clients stay open. For integrations."""
        self = cls.__new__(cls)
        self._have(members, [])
        return self

    @classmethod
    async def from_server(
        cls, dsn: str | Sequence[str], *, connect_timeout: Seconds = 2.0, retry: Seconds = 5.0
    ) -> Self:
        """The cluster that a server belongs to, by its table of servers, whose changes are followed.

        Servers that are added get puts and takes from then on. One that is draining gets no put that may be on another
        server, and is still taken from. One that is gone is left: tasks that were taken from it can still be settled.
        A server that is down, or is not the one that the table means, rests, and a warning names it: a standby, an old
        primary, one with another number, or with a schema that this library does not know. The others go on.

        Args:
            dsn: a server of the cluster, or a list of some: the first that answers is asked. The table has no
                passwords: libpq finds them in a password file or a service file.
            connect_timeout: as for the class.
            retry: as for the class.

        Raises:
            ServerError: none of these servers answers.
            ClusterError: the server belongs to no cluster.
            SchemaError, SetupError: the server cannot be used by this library.
        """

        def read(asked: str) -> Call[Listing]:
            return table_calls.servers().then(lambda table: of_table(table, asked))

        return await cls._following_of(dsn, read, None, connect_timeout, retry)

    @classmethod
    async def from_citus(cls, dsn: str, *, connect_timeout: Seconds = 2.0, retry: Seconds = 5.0) -> Self:
        """The nodes of Citus with shards, each with a pgqueue of its own. Otherwise as from_server().

        The catalogue of the node that is asked is read again every 5 s. A node keeps its keys while its groupid stays,
        as after a fail-over. The node with the lowest groupid is the home server.

        Args:
            dsn: a node of Citus, for example the coordinator. The other nodes are reached by the same DSN with another
                host and port.

        Raises:
            ServerError: the node does not answer.
            ClusterError: its catalogue cannot be read, or has no node with shards.
        """
        return await cls._following_of(dsn, of_citus, dsn, connect_timeout, retry)

    @classmethod
    async def _following_of(
        cls,
        dsn: str | Sequence[str],
        read: Callable[[str], Call[Listing]],
        citus: str | None,
        connect_timeout: Seconds,
        retry: Seconds,
    ) -> Self:
        members = AsyncMembers([], arguments.required_seconds("retry", retry, positive=True))
        listing = await told([dsn] if isinstance(dsn, str) else dsn, read, connect_timeout)

        def make(listed: Listed) -> AsyncClient:
            return AsyncClient(listed.dsn, listen_dsn=listed.listen_dsn, connect_timeout=connect_timeout)

        self = cls.__new__(cls)
        self._have(members, [], Following(members, make, listing, citus))
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.clients)} servers>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    if not TYPE_CHECKING:  # with it, a type checker would find any attribute

        def __getattr__(self, name: str) -> object:
            reason = NOT_HERE.get(name, f"{type(self).__name__!r} object has no attribute {name!r}")
            raise AttributeError(reason, name=name, obj=self)

    def _at(self, client: AsyncClient) -> AsyncClient:
        return client

    # --- servers

    @property
    def clients(self) -> list[AsyncClient]:
        """The client of each server, in their order."""
        return [server.client for server in self._members.all]

    @property
    def home(self) -> AsyncClient:
        """The client of the home server, which has the objects that exist once in the cluster."""
        return self._members.home.client

    def client(self, place: Place) -> AsyncClient:
        """The client of the server that a place names, for example for puts in a transaction.

        Raises:
            ValueError: the place is not an int, a string or bytes.
        """
        return self._members.placed(place).client

    def on_change(self, callback: Callable[[], object]) -> None:
        """Call a function whenever the list of servers was replaced, in another thread. It must not raise or block.

        For integrations."""
        self._members.on_change(callback)

    def off_change(self, callback: Callable[[], object]) -> None:
        """Call this function no more."""
        self._members.off_change(callback)

    async def close(self) -> None:
        """Close the clients that were made here, as Client.close(). May be called twice."""
        if self._following is not None:
            self._following.close()
        for client in self._made_here():
            await client.close()

    def _made_here(self) -> list[AsyncClient]:
        if self._following is None:
            return self._own
        return [server.client for server in (*self._members.all, *self._members.left)]

    state = over_all(AsyncClient.state, merging.states)
    reload = at_each(AsyncClient.reload, merging.first)

    # --- objects that exist once in the cluster, on the home server

    @property
    def audit(self) -> AsyncAudit:
        """The calls of operators' verbs on the home server."""
        return self.home.audit

    @property
    def exchanges(self) -> AsyncExchanges:
        """Publishing through exchanges and bindings. Its tasks are on the home server."""
        return self.home.exchanges

    @property
    def groups(self) -> AsyncGroups:
        """Groups of processes."""
        return self.home.groups

    @property
    def nodes(self) -> AsyncNodes:
        """A tree of small values with versions and owners."""
        return self.home.nodes

    @property
    def statuses(self) -> AsyncStatuses:
        """Status by key."""
        return self.home.statuses

    dsn = at_home(AsyncClient.dsn)
    elect = made_at_home(AsyncClient.elect)
    lock = made_at_home(AsyncClient.lock)
    try_lock = at_home(AsyncClient.try_lock)
    post = at_home(AsyncClient.post)
    subscribe = at_home(AsyncClient.subscribe)
    wait = at_home(AsyncClient.wait)

    # --- one task: its id names its server

    cancel = by_task(AsyncClient.cancel)
    delete = by_task(AsyncClient.delete)
    kick = by_task(AsyncClient.kick)
    peek = by_task(AsyncClient.peek)
    put_again = by_task(AsyncClient.put_again)

    async def cancel_many(self, tasks: Iterable[TaskLike], reason: str | None = None) -> dict[int, str]:
        """Cancel many tasks, in one statement for each of their servers. Returns the state of each by its id."""
        answers = await self._members.ask_parts(tasks, lambda client, part: client.cancel_many(part, reason))
        return merging.outcomes(answers)

    # --- tasks that belong together, on one server

    async def put_graph(
        self, puts: Sequence[Put], *, place: Place | None = None, conn: Conn | None = None
    ) -> list[int]:
        """Put tasks that wait for each other, on one server. As Client.put_graph, with its errors and those of a put.

        Args:
            puts: the tasks.
            place: as for ClusterQueue.put. None: the servers in turn; the lanes and keys of the puts select none. All
                are put on the home server if it keeps the limit of one of them.
            conn: the caller's connection, which decides the server.
        """
        members = self._members
        if conn is not None:
            server = await members.of_connection(conn)
            return await members.ask(server, lambda client: client.put_graph(puts, conn=conn))
        tasks = ((one.queue, one.data) for one in puts if isinstance(one, Put))  # put_graph refuses others
        return await members.put(tasks, lambda client: client.put_graph(puts), place)

    def batch(
        self,
        then: Put | Sequence[Put] = (),
        *,
        name: str | None = None,
        place: Place | None = None,
        conn: Conn | None = None,
    ) -> AsyncBatch:
        """Open a batch on one server; its tasks are put there as well. As Client.batch.

        Args:
            then, name: as for Client.batch.
            place: as for ClusterQueue.put. None: the servers in turn. A batch of another server refuses the tasks of a
                limit that the home server keeps: open it with `cluster.home.batch()`.
            conn: the caller's connection. It has to lead to the server of the place, which is needed then.

        Raises:
            ValueError: the name or the place is not valid, or there is a connection without a place.
        """
        if conn is not None and place is None:
            raise ValueError("a batch with conn needs the place that names the server of the connection")
        first, _ = choose(self._members, place, {})
        return first.client.batch(then, name=name, conn=conn)

    # --- queues

    def queue(self, name: str) -> AsyncClusterQueue:
        """The queue of this name on all servers. Raises ValueError for a name that is not valid."""
        return AsyncClusterQueue(self._members, name)

    async def create_queue(self, name: str, *, if_not_exists: bool = False, **options: Any) -> AsyncClusterQueue:
        """Make a queue with options on every server. As Client.create_queue; its limits are those of each server."""
        await self._members.tell_all(lambda client: client.create_queue(name, if_not_exists=if_not_exists, **options))
        return self.queue(name)

    delete_queue = at_each(AsyncClient.delete_queue, sum)
    drain = at_each(AsyncClient.drain, merging.first)
    queues = over_all(AsyncClient.queues, merging.queues)
    stats = over_all(AsyncClient.stats, merging.stats)
    history = over_all(AsyncClient.history, merging.history)
    job_stats = over_all(AsyncClient.job_stats, merging.job_stats)
    workers = over_all(AsyncClient.workers, merging.joined)

    async def take(self, queues: Sequence[str], timeout: Seconds | None = None) -> AsyncTask | None:
        """Take the next task of several queues of a server. Otherwise as ClusterQueue.take."""
        tasks = await self.take_many(queues, 1, timeout)
        return tasks[0] if tasks else None

    async def take_many(self, queues: Sequence[str], n: int, timeout: Seconds | None = None) -> list[AsyncTask]:
        """Take up to `n` tasks of several queues, server by server. Otherwise as ClusterQueue.take_many."""
        return await self._members.take(
            arguments.queue_names(queues), arguments.count("n", n), arguments.timeout(timeout)
        )

    async def pop(self, queues: Sequence[str], n: int = 1, timeout: Seconds | None = 0) -> list[AsyncTask]:
        """Take and ack up to `n` tasks of several queues, server by server. Otherwise as Client.pop."""
        tasks = await self.take_many(queues, n, timeout)
        for task in tasks:
            await task.ack()
        return [popped(task) for task in tasks]


def _dsns(servers: Sequence[object], kind: type) -> list[str]:
    """Those of the servers that are given by their DSN."""
    if isinstance(servers, str) or not servers:
        raise ValueError(f"a list of DSNs or {kind.__name__}s is needed, not {servers!r}")
    for given in servers:
        if not isinstance(given, str | kind):
            raise ValueError(f"a server is a DSN or {kind.__name__}, not {given!r}")
    return [given for given in servers if isinstance(given, str)]
