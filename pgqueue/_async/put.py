"""Putting tasks into a queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, Unpack, overload

from .._calls import pick as pick_calls
from .._calls import put as calls
from .._calls.put import Placed
from .._calls.put_options import PutArguments, PutManyArguments, PutManyOptions, PutOptions
from .._engine import room
from .._engine.awaiting import Conn, Signal
from .._records.task import from_placed
from .._values.arguments import Seconds
from .shell import AsyncShell
from .task import AsyncTask


class AsyncPutting:
    """The verbs of a queue that put."""

    name: str
    _shell: AsyncShell

    @overload
    async def put(
        self, data: Any, *, timeout: Literal[0] = 0, conn: Conn | None = None, **options: Unpack[PutArguments]
    ) -> AsyncTask: ...
    @overload
    async def put(
        self, data: Any, *, timeout: Seconds | None, conn: None = None, **options: Unpack[PutArguments]
    ) -> AsyncTask | None: ...
    async def put(
        self,
        data: Any,
        *,
        timeout: Seconds | None = 0,
        conn: Conn | None = None,
        **options: Unpack[PutArguments],
    ) -> AsyncTask | None:
        """Add a task to the queue, and return it.

        Options that are not given have the queue's defaults; see Client.create_queue(). A queue that was created
        without options, or by its first put, has priority 0, no delay, no ttr and no ttl. The task has no lane and no
        key, and waits for no other task. `if_exists` is `ignore`. A full queue refuses the put at once.

        For example, with `await` for asyncio::

            queue.put({"to": "ada"})
            queue.put({"to": "bob"}, priority=-1, delay=60)  # in a minute, before those of priority 0
            queue.put({"to": "ada"}, key="reminder:ada", if_exists="replace")
            with psycopg.connect(dsn) as conn:
                conn.execute("INSERT INTO orders VALUES (7)")
                queue.put({"order": 7}, conn=conn)  # committed with the order, or rolled back with it

        Args:
            data: anything that JSON can hold, and bytes; the keys of a dict must be strings.
            priority: the lowest is taken first.
            delay: seconds, or a timedelta, until the task can be taken.
            run_at: in place of a delay, when the task can be taken: a datetime with a time zone. A past one means now.
            ttr: time to run, in seconds or as a timedelta: a take that lasts longer is given back.
            ttl: time to live, in seconds or as a timedelta, from when the task is ready: it expires if it is not taken
                by then.
            lane: tasks of one lane are handled strictly one after another, by (priority, id); 1 to 255 bytes. As the
                utube of Tarantool's queue.
            key: at most one task of the queue that is neither done nor expired has it; 1 to 255 bytes.
            if_exists: for a key that such a task has: `ignore` this put, raise an `error`, or `replace` that task's
                data and options.
            sender: the UUID of the sender, for listings that leave out their reader's own messages.
            after: tasks, batches or ids, one or a sequence: the task is `waiting` until all of them have ended. One
                that is gone counts as done, unless it is known to have failed or to have been cancelled. The task's
                delay, run_at and ttl count from then on.
            on_failure: if one of them fails, expires, or is deleted or cancelled: `wait` (the default) until it is
                kicked and done, `bury` this task, or `run` it. With `wait`, a task after one that cannot be done any
                more is buried.
            batch: an open batch, to which the task belongs; see Client.batch.
            unique_data: True: the key is a digest of the data, so that no two unfinished tasks have equal data. The
                headers of a job's task do not count. Default: False.
            unique_for: seconds, or a timedelta, over 0, for which no other put with this option and this key, or
                without a key with equal data, puts a task, even if this one is done or deleted by then. A rollback
                frees the key. Default: as long as the task is not done.
            timeout: seconds to wait for room in a queue that has a capacity, or a timedelta; None waits without limit,
                0, the default, does not wait.
            conn: the caller's connection. The task then exists if and when the caller's transaction commits: pgqueue
                sends one statement, and does not open, commit or roll back a transaction.

        Returns:
            The task: `ready`, `delayed`, `blocked` when its lane is busy, or `waiting` for others. With a key it is the
            task that now has the key, and `existed` says whether that was in the queue before; with unique_for its
            state is `unknown` if it has ended. None if the put waited and there was no room in time.

        Raises:
            BadData: JSON or jsonb cannot hold the data, or it is over max_data_size; names the place.
            ValueError: another argument is out of range, or the queue's type lacks it.
            QueueFull: there is no room, and the put was not to wait.
            KeyExists: with if_exists="error".
            KeyTaken: the task to replace is taken.
            DataTooBig: the data is over the queue's max_size.
            QueueDraining: the queue accepts no more tasks.
            BatchError: there is no such batch, or it is closed; or a batch of `after` is open.
            LockBlocked: until the end of the time another backend kept all puts out of a queue with a capacity.
            ConnectionLost: whether the task was put is unknown.
        """
        put = PutOptions.of(options)
        seconds: float | None = 0.0
        if timeout != 0:
            joins = conn is not None or self._shell.joined(waiting=True) is not None
            seconds = room.check(timeout, in_transaction=joins)
        placed = await self._place(data, put, conn, seconds)
        if placed.id is None and seconds != 0:
            return None
        return from_placed(AsyncTask, placed, self.name, data, put, self._shell)

    async def put_many(
        self, items: Iterable[Any], *, conn: Conn | None = None, **options: Unpack[PutManyArguments]
    ) -> list[int]:
        """Add many tasks, in one transaction: all of them or none.

        Args:
            items: the data of each task. May be a generator; without `conn` it is read while the server works.
            lane: one lane for all, or a sequence with one for each item.
            key: a sequence with a key for each item; None for an item without one.
            priority, delay, run_at, ttr, ttl, if_exists, sender: as for put, for every item.
            unique_data, unique_for, after, on_failure, batch, conn: the same.

        Returns:
            The ids, in the order of the items. With keys, the ids of the tasks that now have them.

        Raises:
            BadData: as for put; the path begins with the item's index, as in `[17]$.name`.
            QueueFull: there is no room for all of them.
            ValueError: as for put; or more than 100,000 items that need one call: with `conn`, keys, or a lane each.
            KeyExists, KeyTaken, DataTooBig, QueueDraining, ConnectionLost: as for put.
        """
        shell, put = self._shell, PutManyOptions.of(options)
        if conn is None:
            conn = shell.joined()
        await shell.prepare_put(self.name, conn, in_lanes=put.in_lanes, waits=put.waits)
        if conn is not None or put.whole:
            return await shell.run(calls.put_many(self.name, shell.encode_many(items), put), conn)
        many = (calls.put_many(self.name, text, put, alone=True) for text in shell.encode_chunks(items))
        return [id for ids in await shell.connections.run_all(many) for id in ids]

    async def put_unique(
        self, data: Any, *, conn: Conn | None = None, **options: Unpack[PutArguments]
    ) -> AsyncTask | None:
        """Put a task unless the queue has an unfinished one like it.

        Args:
            data: anything that JSON can hold, and bytes.
            conn, options: as for put. The task is unique by its key, by default a digest of the data, see unique_data.
                With unique_for a task that has ended counts as well, for that time.

        Returns:
            The task, or None if there was one already.

        Raises:
            PutRefused, ConnectionLost: as put.
        """
        put = replace(PutOptions.of(options), if_exists="ignore")
        put = put if put.key is not None else replace(put, unique_data=True)
        placed = await self._place(data, put, conn)
        return None if placed.existed else from_placed(AsyncTask, placed, self.name, data, put, self._shell)

    async def urgent(self, data: Any, *, conn: Conn | None = None, **options: Unpack[PutArguments]) -> AsyncTask:
        """Put a task ahead of all that are ready now, with any priority.

        Args:
            data: anything that JSON can hold, and bytes.
            conn, options: as for put, except the priority, which is 1 below the lowest.

        Raises:
            PutRefused, ConnectionLost: as put.
            ValueError: also where the queue's type has no priority.
        """
        priority = await self._shell.run(pick_calls.urgent_priority(self.name), conn)
        put = replace(PutOptions.of(options), priority=priority)
        return from_placed(AsyncTask, await self._place(data, put, conn), self.name, data, put, self._shell)

    async def _place(self, data: Any, put: PutOptions, conn: Conn | None, timeout: float | None = 0) -> Placed:
        shell = self._shell
        if conn is None:
            conn = shell.joined(waiting=timeout != 0)
        text = shell.encode(data)
        if shell.together is not None and put.usual and conn is None and timeout == 0:
            return await shell.together.put(self.name, text, put)
        call = calls.put(self.name, text, put, alone=conn is None)
        await shell.prepare_put(self.name, conn, in_lanes=put.in_lanes, waits=put.waits)
        if timeout == 0:
            return await shell.run(call, conn)
        return await shell.drive(room.put(shell.core, await shell.listener(), Signal, self.name, call, timeout))
