# Generated from pgqueue/_async/cluster.py by tools/blocking.py: edit that file, not this one.

"""A queue over several servers; see _engine/cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeVar, Unpack

import psycopg

from .._calls import servers as table_calls
from .._calls.call import Call
from .._calls.put_options import PutArguments
from .._calls.stats import Stats
from .._engine.blocking import drive, in_thread
from .._engine.cluster import flows
from .._engine.cluster.blocking import race
from .._engine.cluster.flows import Ask, Flow, Race
from .._engine.cluster.following import Following
from .._engine.cluster.members import Listed, Listing, none_told, of_citus, of_table, unreadable
from .._engine.cluster.servers import UNREACHABLE, Place, Servers
from .._values import arguments
from .._values.arguments import Seconds
from ..errors import ClusterError, NotAllowed
from .client import Client
from .queue import Queue
from .take import take
from .task import Task

T = TypeVar("T")


class ClusterQueue:
    """A queue over several servers, from Cluster.queue()."""

    def __init__(self, servers: Servers[Client], name: str) -> None:
        self.name = arguments.queue_name(name)
        self._servers = servers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def queues(self) -> list[Queue]:
        """The queue on each server, in their order: for verbs of a single server, for example kick."""
        return [server.client.queue(self.name) for server in self._servers.all]

    def put(self, data: Any, *, place: Place | None = None, **options: Unpack[PutArguments]) -> Task:
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
        task: Task = self._drive(flows.put(self._servers, place, data, options))
        return task

    def take(self, timeout: Seconds | None = None) -> Task | None:
        """Take the next task of a server, beginning at each of them in turn. Otherwise as take_many."""
        tasks = self.take_many(1, timeout)
        return tasks[0] if tasks else None

    def take_many(self, n: int, timeout: Seconds | None = None) -> list[Task]:
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
        return self._drive(flows.take(self._servers, arguments.count("n", n), arguments.timeout(timeout)))

    def ack_many(self, tasks: Iterable[Task]) -> None:
        """Ack tasks, in one statement for each server that they came from. All servers are asked.

        Raises:
            TakeLost, ServerError, ConnectionLost: of the first server that failed; the tasks of the others are acked.
            ValueError: a task is from none of these servers.
        """
        self._drive(flows.ack_many(self._servers, tasks))

    def stats(self) -> Stats:
        """The number of tasks in each state, on all servers that can be reached. Raises ServerError if none can."""
        return flows.summed(self.stats_by_server())

    def stats_by_server(self) -> list[Stats | None]:
        """The stats of each server, in their order; None for one that cannot be reached. Raises as stats."""
        return self._drive(flows.stats(self._servers))

    def _drive(self, flow: Flow[T]) -> T:
        return drive(flow, self._perform)

    def _perform(self, step: Ask | Race) -> object:
        if isinstance(step, Race):
            return race(step, self.name, take)
        if step.server.unchecked:
            in_thread(step.server.check)
        return step.verb(step.server.client.queue(self.name))


class Cluster:
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
        self, servers: Sequence[str | Client], *, connect_timeout: Seconds = 2.0, retry: Seconds = 5.0
    ) -> None:
        made = [Client(given, connect_timeout=connect_timeout) for given in _dsns(servers, Client)]
        own = made.copy()
        clients = [given if isinstance(given, Client) else made.pop(0) for given in servers]
        self._begin(clients, own, retry)

    def _begin(self, clients: Sequence[Client], own: list[Client], retry: Seconds) -> None:
        self._own = own
        self._servers = Servers(clients, arguments.required_seconds("retry", retry, positive=True))
        self._following: Following[Client] | None = None

    @classmethod
    def from_server(cls, dsn: str | Sequence[str], *, connect_timeout: Seconds = 2.0, retry: Seconds = 5.0) -> Self:
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

        return cls._following_of(dsn, read, None, connect_timeout, retry)

    @classmethod
    def from_citus(cls, dsn: str, *, connect_timeout: Seconds = 2.0, retry: Seconds = 5.0) -> Self:
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
        return cls._following_of(dsn, of_citus, dsn, connect_timeout, retry)

    @classmethod
    def _following_of(
        cls,
        dsn: str | Sequence[str],
        read: Callable[[str], Call[Listing]],
        citus: str | None,
        connect_timeout: Seconds,
        retry: Seconds,
    ) -> Self:
        listing = _told([dsn] if isinstance(dsn, str) else dsn, read, connect_timeout)

        def make(listed: Listed) -> Client:
            return Client(listed.dsn, listen_dsn=listed.listen_dsn, connect_timeout=connect_timeout)

        self = cls.__new__(cls)
        self._begin([], [], retry)
        self._following = Following(self._servers, make, listing, citus)
        return self

    @property
    def clients(self) -> list[Client]:
        """The client of each server, in their order."""
        return [server.client for server in self._servers.all]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def queue(self, name: str) -> ClusterQueue:
        """The queue of this name on all servers. Raises ValueError for a name that is not valid."""
        return ClusterQueue(self._servers, name)

    def home(self, place: Place) -> Client:
        """The client of the server that a key names. Raises ValueError for a key of another type."""
        return self.clients[self._servers.home(place)]

    def close(self) -> None:
        """Close the clients that were made here, as Client.close(). May be called twice."""
        made = []
        if self._following is not None:
            self._following.close()
            made = [server.client for server in (*self._servers.all, *self._servers.left)]
        for client in (*self._own, *made):
            client.close()


def _told(dsns: Sequence[str], read: Callable[[str], Call[Listing]], connect_timeout: Seconds) -> Listing:
    """The listing of the first server that answers."""
    failures: list[Exception] = []
    for dsn in dsns:
        with Client(dsn, connect_timeout=connect_timeout) as client:
            try:
                return client.shell.run(read(dsn))
            except (*UNREACHABLE, ClusterError) as error:
                failures.append(error)
            except (psycopg.Error, NotAllowed) as error:
                failures.append(unreadable(dsn, error))
    if len(failures) == 1:
        raise failures[0]
    raise none_told(failures)


def _dsns(servers: Sequence[object], kind: type) -> list[str]:
    """Those of the servers that are given by their DSN."""
    if isinstance(servers, str) or not servers:
        raise ValueError(f"a list of DSNs or {kind.__name__}s is needed, not {servers!r}")
    for given in servers:
        if not isinstance(given, str | kind):
            raise ValueError(f"a server is a DSN or {kind.__name__}, not {given!r}")
    return [given for given in servers if isinstance(given, str)]
