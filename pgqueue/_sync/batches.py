# Generated from pgqueue/_async/batches.py by tools/blocking.py: edit that file, not this one.

"""Graphs and batches of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from .._calls import flows as calls
from .._calls.flows import BatchInfo
from .._calls.results import Outcome
from .._engine.blocking import Conn
from .._records.puts import Put
from ..errors import BatchError
from .shell import Shell


def prepare(shell: Shell, puts: Sequence[Put], conn: Conn | None, *, waits: bool = False) -> None:
    """Make the queues of puts, in transactions of their own."""
    for one in puts:
        shell.prepare_put(one.queue, conn, in_lanes=one.options.in_lanes, waits=waits or one.options.waits)


class Batch:
    """A set of tasks that ends with the last of them; see Client.batch.

    Attributes:
        name: the name that it was given, or None.
        callbacks: the ids of the tasks that wait for its end, once it is closed.
    """

    def __init__(self, shell: Shell, then: Sequence[Put], name: str | None, conn: Conn | None) -> None:
        self._shell = shell
        self._then = then
        self._conn = conn
        self._id: int | None = None
        self.name = name
        self.callbacks: list[int] = []

    @property
    def id(self) -> int:
        """Its id: a task can be put after it, once it is closed. Raises ValueError before the `with` block begins."""
        if self._id is None:
            raise ValueError("this batch does not exist yet: its `with` block, or open(), makes it")
        return self._id

    def open(self) -> Self:
        """Make the batch, where no `with` block does."""
        self._id = self._shell.run(calls.create_batch(self.name), self._conn)
        return self

    def close(self) -> int:
        """Close the batch, and put the tasks that wait for its end. Waits for transactions that have put into it.

        Returns:
            How many tasks it has. With none it ends at once.

        Raises:
            BatchError: it is closed already, or was forgotten.
            BadData, PutRefused: for a task that waits for it; the batch is still open then.
        """
        prepare(self._shell, self._then, self._conn, waits=True)
        puts = self._shell.encode_puts(self._then)
        total, self.callbacks = self._shell.run(calls.close_batch(self.id, puts), self._conn)
        return total

    def forget(self) -> None:
        """Give up an open batch. Its tasks stay, and nothing waits for their end."""
        self._shell.run(calls.delete_batch(self.id), self._conn)

    def progress(self) -> BatchInfo:
        """How far it is. Raises BatchError if it was forgotten, a day after its end."""
        return Batches(self._shell).get(self.id)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        elif self._conn is None:  # a rollback of the caller's transaction removes it
            self.forget()


class Batches:
    """Batches, as `client.batches`. A role sees its own; monitors see all."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def get(self, id: int) -> BatchInfo:
        """A batch and how far it is: its counts cost as much as it has tasks that are not done.

        Raises:
            BatchError: there is no such batch: it was never made, or was forgotten a day after its end.
        """
        if (found := self._shell.run(calls.batch(id))) is None:
            raise BatchError(f"there is no batch {id}: it was never made, or it ended more than a day ago")
        return found

    def newest(self, limit: int = 100) -> list[BatchInfo]:
        """The newest batches, the last one first."""
        return self._shell.run(calls.batches(limit))

    def failures(self, id: int) -> list[Outcome]:
        """The tasks of a batch that failed, by their ids, with their errors."""
        return self._shell.run(calls.batch_failures(id))


class Flows:
    """The verbs of a client that put graphs and batches."""

    shell: Shell

    def put_graph(self, puts: Sequence[Put], *, conn: Conn | None = None) -> list[int]:
        """Put tasks that wait for each other, all or none.

        Args:
            puts: the tasks. The `after` of a Put may hold earlier Puts of the sequence, tasks and ids.
            conn: the caller's connection, to put in its transaction.

        Returns:
            The ids, in the order of the Puts.

        Raises:
            ValueError: a Put waits for one that is not before it in the sequence, or for a task that was never put.
            BadData, PutRefused: as for Queue.put; nothing is put.
        """
        if (text := self.shell.encode_puts(puts)) is None:
            return []
        if conn is None:
            conn = self.shell.joined()
        prepare(self.shell, puts, conn)
        return self.shell.run(calls.put_graph(text, alone=conn is None), conn)

    def batch(self, then: Put | Sequence[Put] = (), *, name: str | None = None, conn: Conn | None = None) -> Batch:
        """A batch: tasks that are put with `batch=` in the `with` block belong to it, and `then` waits for their end.

        The end of the block closes it, and puts `then`, exactly once. It becomes ready when the last task of the batch
        has ended, at once if the batch is empty. If the block raises, the batch is forgotten; tasks that it has put
        stay. A process that dies in the block leaves a batch that never ends, and is forgotten after a day.

        Args:
            then: a task, or several, for the end of the batch. They run also if tasks of the batch failed, unless
                their on_failure is `wait` or `bury`.
            name: 1 to 255 bytes, for views; need not be unique.
            conn: the caller's connection: the batch, and `then`, exist if and when its transaction commits. The tasks
                of the batch must be put on it as well.

        Raises:
            ValueError: the name is not valid.
        """
        return Batch(self.shell, [then] if isinstance(then, Put) else list(then), name, conn)
