# Generated from pgqueue/_async/client.py by tools/blocking.py: edit that file, not this one.

"""The client: settings, families, and the verbs on channels, locks and queues."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Self
from uuid import UUID

from .._async.client import AsyncClient
from .._async.shell import AsyncShell
from .._calls import cancel as cancel_calls
from .._calls import find as find_calls
from .._calls import pick as pick_calls
from .._calls import queue as calls
from .._engine import changes
from .._engine.blocking import Conn, Signal, in_thread
from .._engine.core import Core, Settings
from .._records.task import TaskLike, from_found, named
from .._values import arguments, data
from .._values.arguments import Seconds
from .audit import Audit
from .batches import Batches, Flows
from .channels import Channels
from .exchanges import Exchanges
from .groups import Groups
from .handlers import Handlers
from .limits import Limits
from .locks import Locking
from .nodes import Nodes
from .privileges import Privileges
from .queues import Queues
from .results import Results
from .schedules import Schedules
from .session import Session
from .shell import Shell
from .statuses import Statuses
from .task import Task


class Client(Handlers, Queues, Flows, Channels, Locking):
    """A connection to the queues of one database: one a process, safe in every thread. Connects at its first call.

    Args:
        dsn: a PostgreSQL URI or conninfo string; default PGQUEUE_DSN, else DATABASE_URL, else the embedded server.
        listen_dsn: a DSN of the same database without the pooler, if `dsn` leads through a transaction pooler.
        pool_size: the most connections of a pool; there are two pools, one of them for claims.
        connect_timeout: seconds to wait for a connection, and for a server that restarts.
        call_timeout: seconds after which a call without an answer ends with CallTimeout, beyond the time that it was
            asked to wait; None for never.
        session_grace: seconds for which this process may be gone before other clients can take its tasks; may be 0.
        poll: seconds after which a waiting take looks again even without a signal, as a backstop; None for never.
        idle_timeout: seconds without a waiting take after which the listener stops listening to a queue.
        max_data_size: the largest task data, in bytes of JSON.
        share_commits: whether single puts that are made at the same time share one statement and one commit.

    Each time may be a timedelta.

    Attributes:
        audit: the calls of operators' verbs.
        batches: batches of tasks, and how far they are.
        exchanges: publishing through exchanges and bindings.
        groups: groups of processes.
        limits: how many tasks of a job or a queue run at once, and how many begin in a time.
        nodes: a tree of small values with versions and owners.
        privileges: the rights of roles to queues.
        results: outcomes, results and progress of tasks.
        schedules: tasks that are put at set times.
        statuses: status by key.
        handlers: the functions that handler() registered, by queue.
        jobs: the jobs that job() registered, by name.
        middleware: objects that are called around the put and the run of every job, the first one outside.
        shell: runs the library's calls; for integrations.

    At the end of a `with` block, at close() and at the end of the process, every task that was taken and not settled is
    given back at once. A process that is killed needs none of these: other clients give back its tasks within a second.
    A client with an identity keeps its tasks for session_grace, in either case; see identify().
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        listen_dsn: str | None = None,
        pool_size: int = 5,
        connect_timeout: Seconds = 10.0,
        call_timeout: Seconds | None = 15.0,
        session_grace: Seconds = 0.5,
        poll: Seconds | None = 30.0,
        idle_timeout: Seconds = 15.0,
        max_data_size: int = data.MAX_SIZE,
        share_commits: bool = True,
    ) -> None:
        settings = Settings.of(
            dsn=dsn,
            listen_dsn=listen_dsn,
            pool_size=pool_size,
            connect_timeout=connect_timeout,
            call_timeout=call_timeout,
            session_grace=session_grace,
            poll=poll,
            idle_timeout=idle_timeout,
            max_data_size=max_data_size,
            share_commits=share_commits,
        )
        self._begin(Shell(Core(settings)))

    @classmethod
    def over(cls, shell: Shell) -> Self:
        """A client over a shell that exists: the same session, with handlers of its own. For integrations."""
        self = cls.__new__(cls)
        self._begin(shell)
        return self

    def _begin(self, shell: Shell) -> None:
        self.shell = shell
        self.audit = Audit(shell)
        self.batches = Batches(shell)
        self.exchanges = Exchanges(shell)
        self.groups = Groups(shell)
        self.limits = Limits(shell)
        self.nodes = Nodes(shell)
        self.privileges = Privileges(shell)
        self.results = Results(shell)
        self.schedules = Schedules(shell)
        self.statuses = Statuses(shell)
        self._begin_handlers()

    def session(self, label: str | None = None) -> Session:
        """A further holder of tasks in this client, for example for a connection that a program serves.

        It has takes, deadlines, and exclusive and temporary queues of its own, which end when it is closed. It shares
        the client's connections, and its listener. Nothing is sent to the database before its first take.

        Args:
            label: views show it behind the client's own label, as the holder of its tasks. Default: the client's
                label alone.

        Raises:
            ValueError: the label is not valid.
        """
        return Session(self.shell, label)

    def peek(self, task: TaskLike) -> Task:
        """Return the present state of a task, in any queue and state. Raises TaskNotFound if it is gone."""
        return from_found(Task, self.shell.run(pick_calls.peek(named(task)[0])), self.shell)

    def kick(self, task: TaskLike, *, conn: Conn | None = None) -> bool:
        """Make a buried or delayed task of any queue ready, as Queue.kick_task; False if it is neither.

        Raises:
            TaskNotFound: it is gone.
            NotAllowed: the role may not manage the task's queue.
        """
        return self.shell.run(pick_calls.kick_task(named(task)[0]), conn) is not None

    def put_again(self, task: TaskLike, *, conn: Conn | None = None) -> int:
        """Put a new task into the queue of this one, with its data, priority, lane and time to run.

        The task may be in any state, and stays as it is. The new one has no key, and belongs to no flow or batch.

        Args:
            task: the task, or its id.
            conn: the caller's connection, to put in its transaction.

        Returns:
            The id of the new task.

        Raises:
            TaskNotFound: it is gone.
            QueueFull: its queue is full.
            QueueDraining: its queue is draining.
            NotAllowed: the role may not manage the task's queue and put into it.
        """
        return self.shell.run(find_calls.put_again(named(task)[0]), conn)

    def delete(self, task: TaskLike, *, strict: bool = False, conn: Conn | None = None) -> None:
        """Remove a task of any queue, in any state, as Queue.delete.

        Args:
            task: the task, or its id.
            strict: refuse if another client has taken it.
            conn: the caller's connection, to delete in its transaction; if strict, at READ COMMITTED.

        Raises:
            TaskNotFound: it is gone.
            TaskTakenByOther: if strict.
            NotAllowed: the role may not manage the task's queue.
        """
        id, token = named(task)
        self.shell.run(pick_calls.delete_one(id, self.shell.fence(token), strict), conn)

    def cancel(self, task: TaskLike, reason: str | None = None, *, conn: Conn | None = None) -> str:
        """Cancel a task of any queue, in any state.

        A task that is not taken is removed at once. A task that is taken is never taken again, and its taker is told:
        a worker cancels an async handler, and others see `task.cancelled`. The task ends as cancelled when its taker
        releases or fails it, or is gone. If the taker acks it nevertheless, it is done.

        Args:
            task: a task, or its id.
            reason: why; kept as its outcome's error for an hour, and shown to its taker.
            conn: the caller's connection, to cancel in its transaction, at READ COMMITTED. Its taker cannot settle the
                task until that transaction ends.

        Returns:
            `cancelled`; `cancelling` if it is taken; or the state in which it ended before: cancelled, done, failed, or
            `unknown` if it is gone and nothing was kept, or it never existed.

        Raises:
            TaskIdRequired: the id is not an int or a string of digits.
            NotAllowed: the role may not manage the task's queue.
        """
        return self.shell.run(cancel_calls.cancel(named(task)[0], reason), conn)

    def cancel_many(
        self, tasks: Iterable[TaskLike], reason: str | None = None, *, conn: Conn | None = None
    ) -> dict[int, str]:
        """Cancel many tasks in one statement. Returns the state of each by its id, as cancel()."""
        ids = [named(task)[0] for task in tasks]
        return self.shell.run(cancel_calls.cancel_many(ids, reason), conn)

    def identify(self, identity: str | UUID | None = None) -> str:
        """Return the identity of this client; or, with an identity, adopt that one. As Tarantool's queue.identify.

        Clients of one identity settle each other's tasks by id, and inherit each other's takes: when one is killed or
        closed, another of them gets the tasks that it has taken, once its session_grace is over; the last one's tasks
        are ready again. So a restarted process that adopts its old identity within that time keeps its tasks. Only
        takes are shared: locks, ephemeral nodes, exclusive queues and wills end with their own client.

        Args:
            identity: an identity that identify() returned, here or elsewhere. None: this client's own, made now if it
                has none.

        Returns:
            The identity, a UUID as text.

        Raises:
            ValueError: it is not a UUID.
            NoIdentity: no client has this identity, or its last client was gone for longer than its session_grace.
            ConnectionLost: whether it took effect is unknown; call it again.
            ClosedError: the client is closed.
        """
        wanted = arguments.uuid("identity", identity)
        return self.shell.drive(changes.identify(self.shell.listener(), Signal, wanted))

    def state(self) -> str:
        """`running`; or `read only`, for example on a standby: calls raise NotRunning there."""
        return self.shell.run(calls.state())

    def dsn(self) -> str:
        """The DSN of the client's database, for connections of the application's own.

        For example `psycopg.connect(client.dsn())`. The first call of a client finds the database, starts the embedded
        server if no other is named, and checks the schema. The DSN may contain a password.

        Returns:
            A URI or a conninfo string of libpq: the `dsn` of the client, else PGQUEUE_DSN, DATABASE_URL, or that of the
            embedded server.

        Raises:
            ServerError: the server cannot be reached, or refuses the connection.
            SetupError: a pooler, the role or the database is set up so that pgqueue cannot work.
            SchemaError: the schema in the database does not fit this library.
            ClosedError: the client is closed.
        """
        return in_thread(self.shell.core.conninfo)

    def reload(self) -> None:
        """Replace the client's background thread, for a program that reloads its code while it runs.

        The old thread is joined first. Nothing is sent to the server, and everything else stays: the session and its
        takes, waiting takes, subscriptions, locks, callbacks. Does nothing if no thread was needed so far.

        Raises:
            ClosedError: the client is closed.
            RuntimeError: a callback called it, in that very thread.
        """
        in_thread(self.shell.core.reload)

    def close(self) -> None:
        """Give back every task that was taken and not settled; blocked takes return None. May be called twice."""
        self.shell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @functools.cached_property
    def aio(self) -> AsyncClient:
        """The same client for asyncio: it shares listener and session, and has connections of its own.

        `await client.aio.close()` closes both.
        """
        return AsyncClient.over(AsyncShell(self.shell.core))
