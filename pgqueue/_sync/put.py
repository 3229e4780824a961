# Generated from pgqueue/_async/put.py by tools/blocking.py: edit that file, not this one.

"""Putting tasks into a queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, Unpack, overload

from .._calls import pick as pick_calls
from .._calls import put as calls
from .._calls.put import Placed, PutArguments, PutManyArguments, PutManyOptions, PutOptions
from .._engine import room
from .._engine.blocking import Conn, Signal
from .._records.task import from_placed
from .._values.arguments import Seconds
from .shell import Shell
from .task import Task


class Putting:
    """The verbs of a queue that put."""

    name: str
    _shell: Shell

    @overload
    def put(
        self, data: Any, *, timeout: Literal[0] = 0, conn: Conn | None = None, **options: Unpack[PutArguments]
    ) -> Task: ...
    @overload
    def put(
        self, data: Any, *, timeout: Seconds | None, conn: None = None, **options: Unpack[PutArguments]
    ) -> Task | None: ...
    def put(
        self,
        data: Any,
        *,
        timeout: Seconds | None = 0,
        conn: Conn | None = None,
        **options: Unpack[PutArguments],
    ) -> Task | None:
        """Add a task.

        Args:
            data: anything that JSON can hold, and bytes; the keys of a dict must be strings.
            priority: lower is taken first; default the queue's, else 0.
            delay: seconds, or a timedelta, until it can be taken; default the queue's, else 0.
            run_at: in place of a delay, when it can be taken: a datetime with a time zone. One that has passed is now.
            ttr: time to run, in seconds or as a timedelta: a take that lasts longer is given back. Default the queue's,
                else no limit.
            ttl: time to live, in seconds or as a timedelta, from when it is ready: it expires if it is not taken by
                then. Default the queue's, else no limit.
            lane: tasks of one lane are handled strictly one after another, by (priority, id); 1 to 255 bytes. As the
                utube of Tarantool's queue. Default: in no lane.
            key: at most one task of the queue that is neither done nor expired has it; 1 to 255 bytes. Default: none.
            if_exists: what to do when there is a task with that key: `ignore` this one (the default), raise an `error`,
                or `replace` that one's data and options.
            sender: the UUID of the sender, for listings that leave out their reader's own messages.
            after: tasks, batches or ids, one or a sequence: the task is `waiting` until all of them have ended. What is
                gone counts as done. Its delay, run_at and ttl count from then on. Default: it waits for nothing.
            on_failure: if one of them fails or is gone without having been done: `wait` (the default) until it is
                kicked and done, `bury` this task, or `run` it. A task that would wait for one that is gone is buried.
            batch: an open batch, to which the task belongs; see Client.batch. Default: none.
            unique_data: True: the key is a digest of the data, so that no two unfinished tasks have equal data. Of a
                job's task the headers do not count. Default: False.
            unique_for: seconds, or a timedelta, over 0, for which no other put with this option and this key, or
                without a key with equal data, puts a task: also if this one is done or deleted by then. A rollback
                frees the key. Default: as long as the task is not done.
            timeout: seconds to wait for room in a queue that has a capacity, or a timedelta; None waits without limit,
                0, the default, does not wait.
            conn: the caller's connection. The task then exists if and when the caller's transaction commits:
                one statement is sent, and nothing is committed, rolled back or opened.

        Returns:
            The task: `ready`, `delayed`, `blocked` when its lane is busy, or `waiting` for others. With a key it is the
            one that is there now, and `existed` says whether it was there before; with unique_for its state is
            `unknown` if it has ended. None if the put waited and there was no room in time.

        Raises:
            BadData: JSON or jsonb cannot hold the data, or it is over max_data_size; names the place.
            ValueError: another argument is out of range, or the queue's type lacks it.
            QueueFull: there is no room, and the put was not to wait.
            KeyExists: with if_exists="error".
            KeyTaken: the task to replace is taken.
            DataTooBig: the data is over the queue's max_size.
            QueueDraining: the queue takes no more tasks.
            BatchError: there is no such batch, or it is closed; or a batch of `after` is open.
            LockBlocked: another backend keeps all puts out of a queue with a capacity, until the end of the time.
            ConnectionLost: whether the task was put is unknown.
        """
        if conn is None:
            conn = self._shell.joined(waiting=timeout != 0)
        put = PutOptions.of(options)
        seconds: float | None = 0.0
        if timeout != 0:
            seconds = room.check(timeout, in_transaction=conn is not None)
        placed = self._place(data, put, conn, seconds)
        if placed.id is None and seconds != 0:
            return None
        return from_placed(Task, placed, self.name, data, put, self._shell)

    def put_many(
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
            The ids, in the order of the items. With keys, of the tasks that are there now.

        Raises:
            BadData: as for put; the path begins with the item's index, as in `[17]$.name`.
            QueueFull: there is no room for all of them.
            ValueError: as for put; or more than 100,000 items that go in one call: with `conn`, keys, or a lane each.
            KeyExists, KeyTaken, DataTooBig, QueueDraining, ConnectionLost: as for put.
        """
        shell, put = self._shell, PutManyOptions.of(options)
        if conn is None:
            conn = shell.joined()
        shell.prepare_put(self.name, conn, in_lanes=put.in_lanes, waits=put.waits)
        if conn is not None or put.whole:
            return shell.run(calls.put_many(self.name, shell.encode_many(items), put), conn)
        many = (calls.put_many(self.name, text, put, alone=True) for text in shell.encode_chunks(items))
        return [id for ids in shell.connections.run_all(many) for id in ids]

    def put_unique(self, data: Any, *, conn: Conn | None = None, **options: Unpack[PutArguments]) -> Task | None:
        """Put a task unless the queue has an unfinished one like it.

        Args:
            data: anything that JSON can hold, and bytes.
            conn, options: as for put; its key is what makes it unique, by default the data, as unique_data says. With
                unique_for a task that has ended counts as well, for that time.

        Returns:
            The task, or None if there was one already.

        Raises:
            PutRefused, ConnectionLost: as put.
        """
        put = replace(PutOptions.of(options), if_exists="ignore")
        put = put if put.key is not None else replace(put, unique_data=True)
        placed = self._place(data, put, conn)
        return None if placed.existed else from_placed(Task, placed, self.name, data, put, self._shell)

    def urgent(self, data: Any, *, conn: Conn | None = None, **options: Unpack[PutArguments]) -> Task:
        """Put a task that comes before all that are ready now, whatever their priority.

        Args:
            data: anything that JSON can hold, and bytes.
            conn, options: as for put, except the priority, which is 1 below the lowest.

        Raises:
            PutRefused, ConnectionLost: as put.
            ValueError: also where the queue's type has no priority.
        """
        priority = self._shell.run(pick_calls.urgent_priority(self.name), conn)
        put = replace(PutOptions.of(options), priority=priority)
        return from_placed(Task, self._place(data, put, conn), self.name, data, put, self._shell)

    def _place(self, data: Any, put: PutOptions, conn: Conn | None, timeout: float | None = 0) -> Placed:
        shell = self._shell
        text = shell.encode(data)
        if shell.together is not None and put.usual and conn is None and timeout == 0:
            return shell.together.put(self.name, text, put)
        call = calls.put(self.name, text, put, alone=conn is None)
        shell.prepare_put(self.name, conn, in_lanes=put.in_lanes, waits=put.waits)
        if timeout == 0:
            return shell.run(call, conn)
        return shell.drive(room.put(shell.core, shell.listener(), Signal, self.name, call, timeout))
