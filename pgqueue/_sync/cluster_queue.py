# Generated from pgqueue/_async/cluster_queue.py by tools/blocking.py: edit that file, not this one.

"""A queue over several servers, with the verbs of a queue on one; see the families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, Unpack

from .._calls.find import FilterArguments, State
from .._calls.put_options import PutArguments, PutManyArguments
from .._calls.stats import Stats, summed
from .._engine.blocking import Answer, Conn
from .._engine.cluster import merging
from .._engine.cluster.placing import agree, joined
from .._engine.cluster.servers import UNREACHABLE, Place, Server
from .._records.task import DONE, TaskLike, TaskPage, bind, home_of
from .._values import arguments
from .._values.arguments import Seconds
from .._values.logs import log
from .client import Client
from .families import at_each, by_task, over_all
from .members import Members
from .queue import Queue
from .task import Task

T = TypeVar("T")


class ClusterQueue:
    """A queue over the servers of a cluster, from Cluster.queue(). Order, lanes and keys hold on each server.

    Attributes:
        name: its name.
    """

    def __init__(self, members: Members, name: str) -> None:
        self.name = arguments.queue_name(name)
        self._members = members

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def queues(self) -> list[Queue]:
        """The queue on each server, in their order: for verbs of a single server, for example its messages."""
        return [server.client.queue(self.name) for server in self._members.all]

    def _at(self, client: Client) -> Queue:
        return client.queue(self.name)

    # --- puts: a task has one place

    def put(
        self,
        data: Any,
        *,
        place: Place | None = None,
        timeout: Seconds | None = 0,
        conn: Conn | None = None,
        **options: Unpack[PutArguments],
    ) -> Task | None:
        """Add a task on the server that its place names or, if that cannot be reached, on the next one that can.

        Args:
            data: anything that JSON can hold, and bytes.
            place: tasks of one place are on one server, for example those of one user. Of strings and bytes few move
                to another server when one is added to the end of the list; an int is the server's index, modulo the
                number of servers. None, the default, uses the lane, else the key, as the place, and then no other
                server; without both it takes the servers in turn.
            timeout: seconds to wait for room, or a timedelta; see Queue.put.
            conn: the caller's connection, which decides the server: that which it leads to.
            options: those of Queue.put. Their promises hold on one server: a put with a place that fails over
                meets neither its lane nor its key. A task that is put after others, or into a batch, is put on the
                server of these, and on no other.

        A task whose limit the home server keeps (limits.set with scope="home") is put there, and not where its place or
        its key says.

        Returns:
            As Queue.put. The task's id names its server.

        Raises:
            ServerError: none of the servers can be reached, or not the only one that may have the task: after 0.3 s if
                that one refuses connections, after its connect_timeout if it does not answer.
            ConnectionLost: whether the task was put is unknown, so it was not put elsewhere. That server rests now: a
                second put that may use another server is sent to the next one.
            LimitElsewhere: the home server keeps the task's limit, and `after`, the batch or the connection is of
                another server.
            BadData, PutRefused, ValueError: as for Queue.put, and for a place of another type; the tasks of
                `after` are on several servers; the connection leads to another server than the place, the lane or the
                key; two servers of the list are the same database, or have the same number.
        """

        def put(queue: Queue) -> Task | None:
            if conn is not None:
                return queue.put(data, conn=conn, **options)
            return queue.put(data, timeout=timeout, **options)

        return self._put(put, [data], place, conn, options, waits=timeout != 0)

    def put_many(
        self,
        items: Iterable[Any],
        *,
        place: Place | None = None,
        conn: Conn | None = None,
        **options: Unpack[PutManyArguments],
    ) -> list[int]:
        """Add many tasks on one server, in one transaction: all of them or none. As Queue.put_many.

        Args:
            items: the data of each task.
            place, conn: as for put. Several lanes, and keys, need a place, since they may belong to different servers.
            options: those of Queue.put_many.

        Raises:
            ServerError, ConnectionLost: as for put.
            BadData, PutRefused, ValueError: as for put and for Queue.put_many; several lanes, or keys, have no place.
        """
        whole = [*items]
        if place is None and conn is None and not isinstance(lane := options.get("lane"), str | None):
            raise ValueError(f"lanes of each task, {lane!r}, need a place, or one put_many for each lane")
        if place is None and conn is None and options.get("key") is not None:
            raise ValueError("keys need a place, or a put for each, so that each key meets its like on one server")
        return self._put(lambda queue: queue.put_many(whole, conn=conn, **options), whole, place, conn, options)

    def put_unique(
        self, data: Any, *, place: Place | None = None, conn: Conn | None = None, **options: Unpack[PutArguments]
    ) -> Task | None:
        """Put a task unless the queue has an unfinished one like it. As Queue.put_unique; it needs a key or a place."""
        alike: Mapping[str, Any] = {"unique_data": True, **options}
        return self._put(lambda queue: queue.put_unique(data, conn=conn, **options), [data], place, conn, alike)

    def urgent(
        self, data: Any, *, place: Place | None = None, conn: Conn | None = None, **options: Unpack[PutArguments]
    ) -> Task:
        """Put a task ahead of all that are ready on its server. As Queue.urgent."""
        return self._put(lambda queue: queue.urgent(data, conn=conn, **options), [data], place, conn, options)

    def _put(
        self,
        verb: Callable[[Queue], Answer[T]],
        data: Sequence[Any],
        place: Place | None,
        conn: Conn | None,
        options: Mapping[str, Any],
        *,
        waits: bool = False,
    ) -> T:
        members = self._members
        named = [one for one in joined(options) if place is None or not isinstance(one, int | str)]  # SQL checks ids
        servers = [members.having(one) for one in named]
        if conn is not None:
            server = members.of_connection(conn)
            agree(members, server, place, options)
            return members.ask(server, lambda client: verb(self._at(client)))
        tasks = ((self.name, one) for one in data)  # read only while a limit is known to be kept
        return members.put(tasks, lambda client: verb(self._at(client)), place, options, servers, waits=waits)

    # --- takes: from all servers

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
        return self._members.take([self.name], arguments.count("n", n), arguments.timeout(timeout))

    def pop(self, n: int = 1, timeout: Seconds | None = 0, *, conn: Conn | None = None) -> list[Task]:
        """Take and ack up to `n` tasks, server by server, as soon as there is one. Otherwise as Queue.pop.

        With `conn` only the server that it leads to is asked, in the caller's transaction.
        """
        members, count = self._members, arguments.count("n", n)
        if conn is not None:
            server = members.of_connection(conn)
            return members.ask(server, lambda client: self._at(client).pop(count, timeout, conn=conn))
        tasks = members.take([self.name], count, arguments.timeout(timeout))
        self.ack_many(tasks)
        return [popped(task) for task in tasks]

    # --- one task: its id names its server

    ack = by_task(Queue.ack)
    bury = by_task(Queue.bury)
    delete = by_task(Queue.delete)
    fail = by_task(Queue.fail)
    finish = by_task(Queue.finish)
    kick_task = by_task(Queue.kick_task)
    peek = by_task(Queue.peek)
    release = by_task(Queue.release)
    requeue = by_task(Queue.requeue)
    take_id = by_task(Queue.take_id)
    task_stats = by_task(Queue.task_stats)
    touch = by_task(Queue.touch)

    def cancel(
        self,
        task: TaskLike | None = None,
        *,
        key: str | None = None,
        reason: str | None = None,
        conn: Conn | None = None,
    ) -> str:
        """Cancel a task by its id, or the task with a key on the key's server. As Queue.cancel."""
        members = self._members
        server = members.placed(key) if task is None and key is not None else members.having(task)
        return members.ask(server, lambda client: self._at(client).cancel(task, key=key, reason=reason, conn=conn))

    def ack_many(self, tasks: Iterable[TaskLike]) -> None:
        """Ack tasks, in one statement for each server that they came from. All servers are asked.

        Raises:
            TakeLost, ServerError, ConnectionLost: of the first server that failed; the tasks of the others are acked.
            ValueError: a task is from none of these servers.
        """
        self._members.ask_parts(tasks, lambda client, part: self._at(client).ack_many(part))

    def release_many(self, tasks: Iterable[TaskLike]) -> None:
        """Give back tasks, in one statement for each server that they came from. As ack_many."""
        self._members.ask_parts(tasks, lambda client, part: self._at(client).release_many(part))

    # --- all servers

    cancel_all = at_each(Queue.cancel_all, sum)
    delete_all = at_each(Queue.delete_all, sum)
    kick_all = at_each(Queue.kick_all, sum)
    put_again_all = at_each(Queue.put_again_all, sum)
    release_all = at_each(Queue.release_all, sum)
    truncate = at_each(Queue.truncate, sum)
    alter = at_each(Queue.alter, merging.first)
    pause = at_each(Queue.pause, merging.first)
    drain = at_each(Queue.drain, merging.first)
    on_task_change = at_each(Queue.on_task_change, merging.first)
    stats = over_all(Queue.stats, summed)
    history = over_all(Queue.history, merging.history)
    info = over_all(Queue.info, merging.first)

    def rename(self, name: str) -> None:
        """Give the queue, and this handle, another name on every server. As Queue.rename."""
        self._members.tell_all(lambda client: self._at(client).rename(name))
        self.name = name

    def stats_by_server(self) -> list[Stats | None]:
        """The stats of each server, in their order; None for one that cannot be reached. Raises as stats."""
        return self._members.ask_all(lambda client: self._at(client).stats())

    def kick(self, n: int = 1, *, delayed: bool = False) -> int:
        """Make up to `n` buried tasks ready, server by server, or delayed ones. As Queue.kick."""
        kicked = 0
        for server in self._members.all:
            if kicked < n:
                kicked += self._kick(server, n - kicked, delayed)
        return kicked

    def _kick(self, server: Server[Client], n: int, delayed: bool) -> int:
        return self._members.ask(server, lambda client: self._at(client).kick(n, delayed=delayed))

    def peek_next(self, state: str = "ready") -> Task | None:
        """The next task in this state: of the servers' next ones the lowest (priority, id). As Queue.peek_next."""
        found = self._members.ask_all(lambda client: self._at(client).peek_next(state))
        return min((task for task in found if task is not None), key=_order, default=None)

    def tasks(
        self, state: State, *, limit: int = 100, marker: str | None = None, **which: Unpack[FilterArguments]
    ) -> TaskPage[Task]:
        """A page of the tasks in a state, server by server. As Queue.tasks.

        A server that cannot be reached is left out, with a warning in the log.
        """
        members, found = self._members, list[Task]()
        servers = members.all
        index, rest = _place_of(marker, len(servers))
        while index < len(servers) and len(found) < limit:
            page = self._page(servers[index], state, limit - len(found), rest, which)
            found += page.tasks
            index, rest = (index, page.marker) if page.marker is not None else (index + 1, None)
        return TaskPage(found, f"{index}:{rest or ''}" if index < len(servers) else None)

    def _page(
        self, server: Server[Client], state: State, limit: int, marker: str | None, which: FilterArguments
    ) -> TaskPage[Task]:
        """A page of one server; an empty one if that cannot be reached."""
        try:
            return self._members.ask(
                server, lambda client: self._at(client).tasks(state, limit=limit, marker=marker, **which)
            )
        except UNREACHABLE as error:
            log.warning("%s is left out: %s", self._members.name(server), error)
            return TaskPage([], None)


def popped(task: Task) -> Task:
    """A task that was taken and acked."""
    return bind(replace(task, state=DONE, token=None), home_of(task))


def _order(task: Task) -> tuple[int, int]:
    return task.priority or 0, task.id


def _place_of(marker: str | None, servers: int) -> tuple[int, str | None]:
    """The index of the server of a marker, and that server's own marker."""
    if marker is None:
        return 0, None
    index, colon, rest = marker.partition(":")
    if not (colon and index.isdecimal() and int(index) < servers):
        raise ValueError(f"a marker comes from the page before, and is not {marker!r}")
    return int(index), rest or None
