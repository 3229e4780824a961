"""The blocking client. aclient.py is its mirror, with the same names; the docstrings stand here, for both."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from . import arguments, flows, room
from .borrowed import Conn
from .calls import Call, putting
from .calls.management import QueueArguments
from .calls.putting import Placed, PutManyOptions, PutOptions
from .changes import Changes
from .channels import Channels
from .locks import Locking
from .management import Management
from .nodes import Nodes
from .queues import Queue, Task
from .statuses import Statuses
from .task import from_taken

if TYPE_CHECKING:
    from .aclient import AsyncClient


class Client(Channels, Locking, Nodes, Statuses, Changes, Management):
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
    back at once. A process that is killed needs none of these: the others give back its tasks within a second. A client
    with an identity keeps its tasks for session_grace, in either case; see identify().
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

    def create_queue(self, name: str, *, if_not_exists: bool = False, **options: Unpack[QueueArguments]) -> Queue:
        """Make a queue with options; docs/guides/queues.md and docs/guides/routing.md tell more of them.

        Args:
            name: 1 to 200 characters.
            if_not_exists: the one that is there will do, with the options that it has.
            type: as in Tarantool's queue: fifo, fifottl, utube, utubettl or limfifottl. Its puts cannot have what a
                queue of this type lacks. None: they can have anything.
            priority: default priority of its tasks.
            delay: default delay, in seconds.
            ttr: default time to run, in seconds.
            ttl: default time to live, in seconds.
            capacity: how many tasks it holds in all, in whatever state; a put into a full one waits or is refused. 0 is
                unlimited, as None.
            maxlen: how many ready tasks it keeps; beyond it the oldest go.
            max_size: the largest data of a task, in bytes of JSON.
            max_takes: a task that came back so often goes.
            keep_done: for how many seconds tasks that were acked are kept; None: not at all.
            dead_letter: the exchange that gets the tasks that are buried, expire, or go by maxlen or max_takes; "" is
                the default one.
            dead_letter_key: the key under which it gets them; default the task's own. With "" the name of a queue,
                which is made if need be.
            exclusive: only this client may take from it, and it ends with this client.
            temporary: it ends with this client.
            auto_delete: it goes when the last client that took from it has ended.
            listed: its tasks can be listed by Queue.messages.
            metadata: anything that JSON can hold, for whoever uses the queue.

        Raises:
            QueueExists: there is one of this name.
            NoExchange: there is no such exchange for dead letters.
            ValueError: the name or an option cannot be, there is no such option, or the type lacks it.
        """
        queue = Queue(self, name)
        self._create_queue(name, options, if_not_exists)
        return queue

    def take(self, queues: Sequence[str], timeout: float | None = None, *, deadline_soon: bool = False) -> Task | None:
        """Take the next task of several queues: the lowest (priority, id) of all. As beanstalkd's reserve.

        Otherwise as Queue.take; the task says which queue it is from.
        """
        return next(iter(self._take(arguments.queue_names(queues), 1, timeout, deadline_soon)), None)

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

    def _put(
        self, queue: str, call: Call[Placed], options: PutOptions, conn: Conn | None, timeout: float | None
    ) -> Placed:
        timeout = room.check(timeout, in_transaction=conn is not None)
        self._prepare_put(queue, conn, in_lanes=options.in_lanes)
        if timeout is None or timeout == 0:
            return self._run(call, conn)
        return self._drive(room.put(self._core, self._listener(), threading.Event, queue, call, timeout))

    def _put_many(self, queue: str, items: Iterable[Any], options: PutManyOptions, conn: Conn | None) -> list[int]:
        self._prepare_put(queue, conn, in_lanes=options.in_lanes)
        if conn is not None or options.whole:
            return self._run(putting.put_many(queue, self._encode_many(items), options), conn)
        many = (putting.put_many(queue, text, options) for text in self._encode_chunks(items))
        return [id for ids in self._connections.run_all(many) for id in ids]

    def _take(self, queues: list[str], n: int, timeout: float | None, deadline_soon: bool = False) -> list[Task]:
        n, timeout = arguments.count("n", n), arguments.timeout(timeout)
        listener = self._core.listener()
        flow = flows.take(self._core, listener, threading.Event, queues, n, timeout, deadline_soon=deadline_soon)
        return self._made(self._drive(flow), lambda row: from_taken(Task, row, _queue=Queue(self, row.queue)))
