"""The blocking shell: Client, Queue and Task. A method makes a Call and runs it; what it may be asked is in calls.py.

aclient.py is its mirror, with the same names. The docstrings stand here, for both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import psycopg

from . import arguments, calls, flows
from .calls import Call, Fence, Options, Refused
from .calls.routes import QueueOptions, create_queue
from .channels import Channels
from .locks import Locking
from .nodes import Nodes
from .outcomes import QueueOutcomes, TaskOutcomes
from .routing import Routing
from .statuses import Statuses
from .task import Stats, TaskLike, from_found, from_popped, from_taken, named, settled

if TYPE_CHECKING:
    from .aclient import AsyncClient

Conn = psycopg.Connection[Any]

SettleMany = Callable[[calls.Named, Fence], Call[list[Refused]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(TaskOutcomes):
    """A task, with the verbs that settle it.

    A task that was taken has a token, and its verbs count as long as that take does: past its deadline, or once this
    process was taken for dead, they say what became of the task and change nothing.
    """

    _queue: Queue = field(repr=False, compare=False)

    def ack(self, *, conn: Conn | None = None) -> Task:
        """Say that the task is done: it goes. As Tarantool's ack and beanstalkd's delete.

        Args:
            conn: a connection of the caller's, to ack in its transaction.

        Returns:
            The task, in the state `done`.

        Raises:
            TaskNotFound: it is gone already.
            TaskNotTaken: the take has ended, by its deadline or because this process was taken for dead.
            TaskTakenByOther: the same, and somebody else has taken it since.
        """
        return settled(self, self._queue._ack(self.id, self.token, conn))

    def release(self, delay: float = 0, *, error: str | None = None, conn: Conn | None = None) -> Task:
        """Give the task back: ready at its old place in the queue, or after a delay. As beanstalkd's release.

        Args:
            delay: seconds until it is ready.
            error: why it failed; counts as an attempt and is kept with the task.
            conn: a connection of the caller's, to release in its transaction.

        Raises:
            ValueError: the delay is negative, NaN or not a number.
            TakeLost: as for ack.
        """
        return settled(self, self._queue._release(self.id, self.token, delay, error, conn))

    def bury(self, *, error: str | None = None, conn: Conn | None = None) -> Task:
        """Set the task aside until somebody kicks it. As beanstalkd's bury.

        Args:
            error: why; kept with the task.
            conn: a connection of the caller's, to bury in its transaction.

        Raises:
            TakeLost: as for ack.
        """
        return settled(self, self._queue._bury(self.id, self.token, error, conn))

    def touch(self, more: float | None = None, *, conn: Conn | None = None) -> Task:
        """Keep the task for longer. Without a time to run there is no deadline, and nothing changes.

        Args:
            more: seconds to add to the deadline. None sets it to the task's ttr from now, as beanstalkd's touch.
            conn: a connection of the caller's, to touch in its transaction.

        Raises:
            ValueError: negative, NaN or not a number.
            TakeLost: as for ack.
        """
        return settled(self, self._queue._touch(self.id, self.token, more, conn))

    def peek(self) -> Task:
        """The task as it is now. Raises TaskNotFound if it is gone."""
        return self._queue.peek(self.id)

    def delete(self) -> None:
        """Remove the task, in whatever state it is. Raises TaskNotFound if it is gone."""
        self._queue.delete(self.id)


class Queue(QueueOutcomes):
    """A queue by name, from Client.queue(). It is made in the database by its first put or waiting take."""

    _client: Client

    def __init__(self, client: Client, name: str) -> None:
        self.name = arguments.queue_name(name)
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def put(
        self,
        data: Any,
        *,
        priority: int | None = None,
        delay: float | None = None,
        ttr: float | None = None,
        ttl: float | None = None,
        conn: Conn | None = None,
    ) -> Task:
        """Add a task.

        Args:
            data: anything that JSON can hold.
            priority: lower is taken first; default the queue's, else 0.
            delay: seconds until it can be taken; default the queue's, else 0.
            ttr: time to run, in seconds: a take that lasts longer is given back; default the queue's, else no limit.
            ttl: time to live, in seconds from when it is ready: what nobody took by then expires; default the queue's,
                else no limit.
            conn: a connection of the caller's. The task then exists if and when the caller's transaction commits:
                one statement is sent, and nothing is committed, rolled back or opened.

        Returns:
            The task, `ready` or `delayed`.

        Raises:
            BadData: JSON or jsonb cannot hold the data, or it is over max_data_size; names the place.
            ValueError: another argument is out of range.
            ConnectionLost: whether the task was put is unknown.
        """
        client = self._client
        text = client._encode(data)
        options = Options(priority, delay, ttr, ttl)
        id, state = client._put(self.name, calls.put(self.name, text, options), conn)
        return Task(id=id, queue=self.name, state=state, data=data, _queue=self)

    def put_many(
        self,
        items: Iterable[Any],
        *,
        priority: int | None = None,
        delay: float | None = None,
        ttr: float | None = None,
        ttl: float | None = None,
        conn: Conn | None = None,
    ) -> list[int]:
        """Add a task for each item: all of them or, on any error, none.

        Args:
            items: the data of each task. May be a generator; without `conn` it is read while the server works.
            priority, delay, ttr, ttl, conn: as for put, for every item.

        Returns:
            The ids, in the order of the items.

        Raises:
            BadData: as for put; the path begins with the item's index, as in `[17]$.name`.
            ValueError, ConnectionLost: as for put.
        """
        options = Options(priority, delay, ttr, ttl)
        client = self._client
        if conn is not None:
            return client._put(self.name, calls.put_many(self.name, client._encode_many(items), options), conn)
        many = (calls.put_many(self.name, text, options) for text in client._encode_chunks(items))
        return [id for ids in client._connections.run_all(many) for id in ids]

    def take(self, timeout: float | None = None) -> Task | None:
        """Take the next task: the lowest (priority, id) that is ready.

        Args:
            timeout: seconds to wait for one. 0 does not wait, None waits for ever. It governs waiting only: a task
                that was claimed is returned, however late.

        Returns:
            The task, or None when none came, or when the client is closed meanwhile.

        Raises:
            ServerError: the server cannot be reached, for longer than both timeout and connect_timeout.
            ClosedError: the client is closed.
        """
        return next(iter(self._client._take([self.name], 1, timeout)), None)

    def take_many(self, n: int, timeout: float | None = None) -> list[Task]:
        """Take up to `n` tasks at once, as soon as there is one; otherwise as take. An empty list if none came."""
        return self._client._take([self.name], n, timeout)

    def pop(self, n: int = 1, *, conn: Conn | None = None) -> list[Task]:
        """Take up to `n` tasks and ack them, in one statement; does not wait.

        In the caller's transaction this is exactly once: gone when it commits, there again when it rolls back. On
        a connection of ours it is at most once, as Redis' LPOP.
        """
        call = calls.pop(self.name, n, self._client._fence(None).session)
        rows = self._client._run(call, conn)
        return [from_popped(Task, row, self.name, _queue=self) for row in rows]

    def ack(self, task: TaskLike, *, conn: Conn | None = None) -> None:
        """Ack a task, by its id too, if this client's session holds it; see Task.ack.

        Raises:
            TaskIdRequired: the id is not an int or a string of digits.
            TakeLost: as for Task.ack.
        """
        self._ack(*named(task), conn)

    def ack_many(self, tasks: Iterable[TaskLike], *, conn: Conn | None = None) -> None:
        """Ack tasks in one statement.

        Raises:
            TakeLost: for the first that could not be acked; the others were.
        """
        self._settle_many(calls.ack_many, tasks, conn)

    def release(self, task: TaskLike, delay: float = 0, *, error: str | None = None, conn: Conn | None = None) -> None:
        """Give a task back, by its id too, if this client's session holds it; see Task.release."""
        self._release(*named(task), delay, error, conn)

    def release_many(self, tasks: Iterable[TaskLike], *, conn: Conn | None = None) -> None:
        """Give tasks back, untouched, in one statement. Raises as ack_many."""
        self._settle_many(calls.release_many, tasks, conn)

    def bury(self, task: TaskLike, *, error: str | None = None, conn: Conn | None = None) -> None:
        """Set a task aside. By id alone anybody may, in any state, as in Tarantool's queue; see Task.bury."""
        self._bury(*named(task), error, conn)

    def touch(self, task: TaskLike, more: float | None = None, *, conn: Conn | None = None) -> None:
        """Keep a task for longer, by its id too, if this client's session holds it; see Task.touch."""
        self._touch(*named(task), more, conn)

    def peek(self, task: TaskLike) -> Task:
        """The task as it is now, whoever holds it. Raises TaskNotFound if it is gone."""
        return from_found(Task, self._client._run(calls.peek(named(task)[0])), _queue=self)

    def delete(self, task: TaskLike, *, conn: Conn | None = None) -> None:
        """Remove a task, in whatever state it is. Raises TaskNotFound if it is gone."""
        self._client._run(calls.delete(named(task)[0]), conn)

    def kick(self, n: int = 1) -> int:
        """Make up to `n` buried tasks ready, lowest (priority, id) first; returns how many. As beanstalkd's kick."""
        return self._client._run(calls.kick(self.name, n))

    def stats(self) -> Stats:
        """How many tasks are in which state: total, ready, delayed, taken, buried."""
        return self._client._run(calls.stats(self.name))

    # --- shared by Queue's verbs and Task's

    def _ack(self, id: int, token: int | None, conn: Conn | None) -> str:
        return self._client._run(calls.ack(id, self._client._fence(token)), conn)

    def _release(self, id: int, token: int | None, delay: float, error: str | None, conn: Conn | None) -> str:
        call = calls.release(id, self._client._fence(token), delay, error)
        return self._client._run(call, conn, relaxed=True)

    def _bury(self, id: int, token: int | None, error: str | None, conn: Conn | None) -> str:
        return self._client._run(calls.bury(id, self._client._fence(token), error), conn)

    def _touch(self, id: int, token: int | None, more: float | None, conn: Conn | None) -> str:
        return self._client._run(calls.touch(id, self._client._fence(token), more), conn, relaxed=True)

    def _settle_many(self, make: SettleMany, tasks: Iterable[TaskLike], conn: Conn | None) -> None:
        fence = self._client._fence(None)
        call = make([named(task) for task in tasks], fence)
        calls.insist(self._client._run(call, conn), fence)


class Client(Channels, Locking, Nodes, Routing, Statuses):
    """Where queues live: one a process, safe in every thread. Connects at its first call.

    Args:
        dsn: a PostgreSQL URI or conninfo string; default PGQUEUE_DSN, else DATABASE_URL, else the embedded server.
        listen_dsn: a direct way to the same database, when `dsn` leads through a transaction pooler.
        pool_size: how many connections a pool may have; there are two, one of them for claims.
        connect_timeout: seconds to wait for a connection, and for a server that restarts.
        session_grace: seconds for which this process may be gone before its tasks go to others; may be 0.
        poll: seconds after which a waiting take looks again though nothing woke it, as a backstop; None for never.
        idle_timeout: seconds after which a queue that nobody waits for is not listened to any more.
        max_data_size: the largest task data, in bytes of JSON.

    At the end of a `with` block, at close() and at the end of the process, what was taken and not settled is given
    back at once. A process that is killed needs none of these: the others give back its tasks within a second.
    """

    def _open(self) -> None:
        super()._open()
        self._aio: AsyncClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def queue(self, name: str) -> Queue:
        """The queue of this name. Asks nothing of the database. Raises ValueError for a name that cannot be."""
        return Queue(self, name)

    def create_queue(
        self,
        name: str,
        *,
        priority: int | None = None,
        delay: float | None = None,
        ttr: float | None = None,
        ttl: float | None = None,
        maxlen: int | None = None,
        max_takes: int | None = None,
        dead_letter: str | None = None,
        dead_letter_key: str | None = None,
        exclusive: bool = False,
        auto_delete: bool = False,
    ) -> Queue:
        """Make a queue with options; docs/routing.md has those that AMQP has too.

        Args:
            priority: default priority of its tasks.
            delay: default delay, in seconds.
            ttr: default time to run, in seconds.
            ttl: default time to live, in seconds.
            maxlen: how many ready tasks it keeps; beyond it the oldest go.
            max_takes: a task that came back so often goes.
            dead_letter: the exchange that gets the tasks that are buried, expire, or go by the two limits above; "" is
                the default one.
            dead_letter_key: the key under which it gets them; default the task's own. With "" the name of a queue,
                which is made if need be.
            exclusive: only this client may take from it, and it ends with this client.
            auto_delete: it goes when the last client that took from it has ended.

        Raises:
            QueueExists: there is one of this name.
            NoExchange: there is no such exchange for dead letters.
            ValueError: the name or an option cannot be.
        """
        queue = Queue(self, name)
        options = QueueOptions(
            priority=priority,
            delay=delay,
            ttr=ttr,
            ttl=ttl,
            maxlen=maxlen,
            max_takes=max_takes,
            dead_letter=dead_letter,
            dead_letter_key=dead_letter_key,
            exclusive=exclusive,
            auto_delete=auto_delete,
        )
        call = create_queue(name, options)
        self._on_session(call) if exclusive else self._run(call)
        return queue

    def take(self, queues: Sequence[str], timeout: float | None = None) -> Task | None:
        """Take the next task of several queues: the lowest (priority, id) of all. As beanstalkd's reserve.

        Otherwise as Queue.take; the task says which queue it is from.
        """
        return next(iter(self._take(arguments.queue_names(queues), 1, timeout)), None)

    def take_many(self, queues: Sequence[str], n: int, timeout: float | None = None) -> list[Task]:
        """Take up to `n` tasks of several queues; the queue whose next task is the lowest serves first."""
        return self._take(arguments.queue_names(queues), n, timeout)

    @property
    def aio(self) -> AsyncClient:
        """The same client for asyncio: it shares listener and session, and has connections of its own.

        `await client.aio.close()` closes both.
        """
        from .aclient import AsyncClient

        if self._aio is None:
            self._aio = AsyncClient._over(self._core)
        return self._aio

    def close(self) -> None:
        """Give back all that was taken and not settled; blocked takes return None. May be called twice."""
        self._core.close()
        self._connections.close()

    def _take(self, queues: list[str], n: int, timeout: float | None) -> list[Task]:
        n, timeout = arguments.count("n", n), arguments.timeout(timeout)
        flow = flows.take(self._core, self._core.listener(), threading.Event, queues, n, timeout)
        return self._made(self._drive(flow), lambda row: from_taken(Task, row, _queue=Queue(self, row.queue)))
