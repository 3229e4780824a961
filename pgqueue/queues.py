"""A queue and its tasks, as the blocking shell offers them. A method makes a Call and runs it; see calls/.

aqueues.py is the mirror, with the same names. The docstrings stand here, for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack, overload

from . import arguments, calls
from .borrowed import Conn
from .calls import Call, Fence, Refused, Return, counting, putting
from .calls.counting import Stats
from .calls.putting import PutArguments, PutManyArguments, PutManyOptions, PutOptions
from .changes import QueueChanges
from .claims import QueueClaims
from .handing import TaskHanding
from .management import QueueManagement
from .outcomes import QueueOutcomes, TaskOutcomes
from .picking import QueuePicking, TaskPicking
from .puts import Put
from .task import TaskLike, from_found, from_placed, from_popped, named, settled

if TYPE_CHECKING:
    from .client import Client


SettleMany = Callable[[calls.Named, Fence], Call[list[Refused]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(TaskHanding, TaskOutcomes, TaskPicking):
    """A task, with the verbs that settle it.

    A task that was taken has a token, and its verbs count as long as that take does: past its deadline, or once this
    process was taken for dead, they say what became of the task and change nothing.
    """

    _queue: Queue = field(repr=False, compare=False)

    def ack(self, *, put: Sequence[Put] = (), conn: Conn | None = None) -> Task:
        """Say that the task is done: it goes, or is kept as its queue's keep_done says. As Tarantool's ack and
        beanstalkd's delete.

        Args:
            put: tasks that this one hands on to: they are put if and when it is acked, or nothing happens at all.
            conn: a connection of the caller's, to ack in its transaction.

        Returns:
            The task, in the state `done`.

        Raises:
            TaskNotFound: it is gone already.
            TaskNotTaken: the take has ended, by its deadline or because this process was taken for dead.
            TaskTakenByOther: the same, and somebody else has taken it since.
            BadData, PutRefused: of a task that it hands on to; it is still taken then.
        """
        return settled(self, self._queue._ack(self.id, self.token, put, conn))

    def release(
        self,
        delay: float = 0,
        *,
        every: float | None = None,
        priority: int | None = None,
        error: str | None = None,
        conn: Conn | None = None,
    ) -> Task:
        """Give the task back: ready at its old place in the queue, or after a delay. As beanstalkd's release.

        Args:
            delay: seconds until it is ready.
            every: seconds from when it was taken until it is ready: what is done every so often, however long it takes.
                At once if that time is over.
            priority: from now on; None leaves it.
            error: why it failed; counts as an attempt and is kept with the task.
            conn: a connection of the caller's, to release in its transaction.

        Raises:
            ValueError: the delay is negative, NaN or not a number.
            TakeLost: as for ack.
        """
        how = Return(delay, every, priority, error)
        return settled(self, self._queue._release(self.id, self.token, how, conn))

    def bury(self, *, priority: int | None = None, error: str | None = None, conn: Conn | None = None) -> Task:
        """Set the task aside until somebody kicks it. As beanstalkd's bury.

        Args:
            priority: from now on; None leaves it.
            error: why; kept with the task.
            conn: a connection of the caller's, to bury in its transaction.

        Raises:
            TakeLost: as for ack.
        """
        return settled(self, self._queue._bury(self.id, self.token, priority, error, conn))

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


class Queue(QueueOutcomes, QueueClaims[Task], QueueChanges, QueueManagement, QueuePicking[Task]):
    """A queue by name, from Client.queue(). It is made in the database by its first put or waiting take."""

    _client: Client
    _task_type = Task

    def __init__(self, client: Client, name: str) -> None:
        self.name = arguments.queue_name(name)
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @overload
    def put(
        self, data: Any, *, timeout: None = None, conn: Conn | None = None, **options: Unpack[PutArguments]
    ) -> Task: ...
    @overload
    def put(self, data: Any, *, timeout: float, conn: None = None, **options: Unpack[PutArguments]) -> Task | None: ...
    def put(
        self,
        data: Any,
        *,
        timeout: float | None = None,
        conn: Conn | None = None,
        **options: Unpack[PutArguments],
    ) -> Task | None:
        """Add a task.

        Args:
            data: anything that JSON can hold.
            priority: lower is taken first; default the queue's, else 0.
            delay: seconds until it can be taken; default the queue's, else 0.
            ttr: time to run, in seconds: a take that lasts longer is given back; default the queue's, else no limit.
            ttl: time to live, in seconds from when it is ready: what nobody took by then expires; default the queue's,
                else no limit.
            lane: tasks of one lane are handled strictly one after another, by (priority, id); 1 to 255 bytes. As the
                utube of Tarantool's queue. Default: in no lane.
            key: at most one task of the queue has it that is not done; 1 to 255 bytes. Default: none.
            if_exists: what to do when there is a task with that key: `ignore` this one (the default), raise an `error`,
                or `replace` that one's data and options.
            sender: a UUID of whoever puts it, for listings that leave out one's own.
            timeout: seconds to wait for room in a queue that has a capacity. None (the default) does not wait.
            conn: a connection of the caller's. The task then exists if and when the caller's transaction commits:
                one statement is sent, and nothing is committed, rolled back or opened.

        Returns:
            The task: `ready`, `delayed`, or `blocked` when its lane is busy. With a key it is the one that is there
            now, and `existed` tells whether it was there before. None if there was no room within the timeout.

        Raises:
            BadData: JSON or jsonb cannot hold the data, or it is over max_data_size; names the place.
            ValueError: another argument is out of range, or the queue's type lacks it.
            QueueFull: there is no room, and no timeout was given.
            KeyExists: with if_exists="error".
            KeyTaken: the task to replace is taken.
            DataTooBig: the data is over the queue's max_size.
            QueueDraining: the queue takes no more tasks.
            ConnectionLost: whether the task was put is unknown.
        """
        client, put = self._client, PutOptions.of(options)
        call = putting.put(self.name, client._encode(data), put)
        placed = client._put(self.name, call, put, conn, timeout)
        if placed.id is None and timeout is not None:
            return None
        return from_placed(Task, placed, self.name, data, put, _queue=self)

    def put_many(
        self, items: Iterable[Any], *, conn: Conn | None = None, **options: Unpack[PutManyArguments]
    ) -> list[int]:
        """Add a task for each item: all of them or, on any error, none.

        Args:
            items: the data of each task. May be a generator; without `conn` it is read while the server works.
            lane: one lane for all, or a sequence with one for each item.
            key: a sequence with a key for each item; None is none.
            priority, delay, ttr, ttl, if_exists, sender, conn: as for put, for every item.

        Returns:
            The ids, in the order of the items. With keys, of the tasks that are there now.

        Raises:
            BadData: as for put; the path begins with the item's index, as in `[17]$.name`.
            QueueFull: there is no room for all of them.
            ValueError, KeyExists, KeyTaken, DataTooBig, QueueDraining, ConnectionLost: as for put.
        """
        return self._client._put_many(self.name, items, PutManyOptions.of(options), conn)

    def take(self, timeout: float | None = None, *, deadline_soon: bool = False) -> Task | None:
        """Take the next task: the lowest (priority, id) that is ready.

        Args:
            timeout: seconds to wait for one. 0 does not wait, None waits for ever. It governs waiting only: a task
                that was claimed is returned, however late.
            deadline_soon: do not wait while a task that this client holds already is to be settled within a second.

        Returns:
            The task, or None when none came, or when the client is closed meanwhile.

        Raises:
            DeadlineSoon: as was asked for, instead of waiting on. As beanstalkd's DEADLINE_SOON.
            ServerError: the server cannot be reached, for longer than both timeout and connect_timeout.
            ClosedError: the client is closed.
        """
        return next(iter(self._client._take([self.name], 1, timeout, deadline_soon)), None)

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

    def ack(self, task: TaskLike, *, put: Sequence[Put] = (), conn: Conn | None = None) -> None:
        """Ack a task, by its id too, if this client's session holds it; see Task.ack.

        Raises:
            TaskIdRequired: the id is not an int or a string of digits.
            TakeLost: as for Task.ack.
        """
        self._ack(*named(task), put, conn)

    def ack_many(self, tasks: Iterable[TaskLike], *, conn: Conn | None = None) -> None:
        """Ack tasks in one statement.

        Raises:
            TakeLost: for the first that could not be acked; the others were.
        """
        self._settle_many(calls.ack_many, tasks, conn)

    def release(
        self,
        task: TaskLike,
        delay: float = 0,
        *,
        every: float | None = None,
        priority: int | None = None,
        error: str | None = None,
        conn: Conn | None = None,
    ) -> None:
        """Give a task back, by its id too, if this client's session holds it; see Task.release."""
        self._release(*named(task), Return(delay, every, priority, error), conn)

    def release_many(self, tasks: Iterable[TaskLike], *, conn: Conn | None = None) -> None:
        """Give tasks back, untouched, in one statement. Raises as ack_many."""
        self._settle_many(calls.release_many, tasks, conn)

    def bury(
        self, task: TaskLike, *, priority: int | None = None, error: str | None = None, conn: Conn | None = None
    ) -> None:
        """Set a task aside. By id alone anybody may, in any state, as in Tarantool's queue; see Task.bury."""
        self._bury(*named(task), priority, error, conn)

    def touch(self, task: TaskLike, more: float | None = None, *, conn: Conn | None = None) -> None:
        """Keep a task for longer, by its id too, if this client's session holds it; see Task.touch."""
        self._touch(*named(task), more, conn)

    def peek(self, task: TaskLike) -> Task:
        """The task as it is now, whoever holds it. Raises TaskNotFound if it is gone."""
        return from_found(Task, self._client._run(calls.peek(named(task)[0])), _queue=self)

    def stats(self) -> Stats:
        """How many tasks are in which state, and how often each verb was called, whatever the backlog.

        Returns:
            A dict. Tasks by state: total (all that are not done), ready, delayed, taken, buried, blocked, and kept, the
            done ones that are still there. done: how many were acked or deleted, or expired, in all.
            oldest_ready_age: for how many seconds the oldest ready task has been there, None if nothing is ready.
            calls: a dict of how many tasks each verb was called for: put, take, ack, release, bury, kick, delete,
            touch; and delay, ttr and ttl, which count the tasks whose time was over. As Tarantool's queue counts: an
            ack is no delete, and a task that expires counts as ttl and as delete. done and calls begin anew after a
            crash of the server. All zero for a queue that does not exist.
        """
        return self._client._run(counting.stats(self.name))

    # --- shared by Queue's verbs and Task's

    def _ack(self, id: int, token: int | None, put: Sequence[Put], conn: Conn | None) -> str:
        client = self._client
        call = calls.ack(id, client._fence(token), client._encode_puts(put))
        for one in put:
            client._prepare_put(one.queue, conn, in_lanes=one.options.in_lanes)
        return client._run(call, conn)

    def _release(self, id: int, token: int | None, how: Return, conn: Conn | None) -> str:
        return self._client._run(calls.release(id, self._client._fence(token), how), conn, relaxed=True)

    def _bury(self, id: int, token: int | None, priority: int | None, error: str | None, conn: Conn | None) -> str:
        return self._client._run(calls.bury(id, self._client._fence(token), error, priority), conn)

    def _touch(self, id: int, token: int | None, more: float | None, conn: Conn | None) -> str:
        return self._client._run(calls.touch(id, self._client._fence(token), more), conn, relaxed=True)

    def _settle_many(self, make: SettleMany, tasks: Iterable[TaskLike], conn: Conn | None) -> None:
        fence = self._client._fence(None)
        call = make([named(task) for task in tasks], fence)
        calls.insist(self._client._run(call, conn), fence)
