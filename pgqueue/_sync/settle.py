# Generated from pgqueue/_async/settle.py by tools/blocking.py: edit that file, not this one.

"""Ending a take: ack, release, bury and the like. As functions by id and token, and as the verbs of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._calls import ack as ack_calls
from .._calls import pick as pick_calls
from .._calls import results as result_calls
from .._calls import settle as calls
from .._calls.call import Call, Fence, Named, Refused, insist
from .._calls.settle import Return
from .._engine.blocking import Conn
from .._records.puts import Put
from .._records.task import TaskLike, named
from .._values.arguments import Seconds
from .shell import Shell

KEEP = 3600.0  # seconds for which a result is kept
SettleMany = Callable[[Named, Fence], Call[list[Refused]]]


def ack(shell: Shell, id: int, token: int | None, put: Sequence[Put], conn: Conn | None) -> str:
    call = ack_calls.ack(id, shell.fence(token), shell.encode_puts(put))
    for one in put:
        shell.prepare_put(one.queue, conn, in_lanes=one.options.in_lanes, waits=one.options.waits)
    return shell.ended(shell.run(call, conn), conn)


def release(shell: Shell, id: int, token: int | None, how: Return, conn: Conn | None) -> str:
    return shell.ended(shell.run(calls.release(id, shell.fence(token), how), conn, relaxed=True), conn)


def bury(shell: Shell, id: int, token: int | None, priority: int | None, error: str | None, conn: Conn | None) -> str:
    return shell.ended(shell.run(calls.bury(id, shell.fence(token), error, priority), conn), conn)


def touch(shell: Shell, id: int, token: int | None, more: Seconds | None, conn: Conn | None) -> str:
    return shell.run(calls.touch(id, shell.fence(token), more), conn, relaxed=True)


def finish(shell: Shell, id: int, token: int | None, result: Any, keep: Seconds, conn: Conn | None) -> str:
    return shell.ended(shell.run(result_calls.finish(id, shell.fence(token), shell.encode(result), keep), conn), conn)


def fail(shell: Shell, id: int, token: int | None, error: str | None, keep: Seconds, conn: Conn | None) -> str:
    return shell.ended(shell.run(result_calls.fail(id, shell.fence(token), error, keep), conn), conn)


def requeue(shell: Shell, id: int, token: int | None, conn: Conn | None) -> tuple[int, str]:
    return shell.run(pick_calls.requeue(id, shell.fence(token)), conn)


class Settling:
    """The verbs of a queue that end a take which the task's id, or a task, names."""

    _shell: Shell

    def ack(self, task: TaskLike, *, put: Sequence[Put] = (), conn: Conn | None = None) -> None:
        """Ack a task, by its id too, if this client's session holds it; see Task.ack.

        Raises:
            TaskIdRequired: the id is not an int or a string of digits.
            TakeLost: as for Task.ack.
        """
        ack(self._shell, *named(task), put, conn)

    def ack_many(self, tasks: Iterable[TaskLike], *, conn: Conn | None = None) -> None:
        """Ack tasks in one statement.

        Raises:
            TakeLost: for the first that could not be acked; the others were.
        """
        self._settle_many(ack_calls.ack_many, tasks, conn)

    def release(
        self,
        task: TaskLike,
        delay: Seconds = 0,
        *,
        every: Seconds | None = None,
        hold_lane: bool = False,
        priority: int | None = None,
        error: str | None = None,
        conn: Conn | None = None,
    ) -> None:
        """Give a task back, by its id too, if this client's session holds it; see Task.release."""
        release(self._shell, *named(task), Return(delay, every, priority, error, hold_lane), conn)

    def release_many(self, tasks: Iterable[TaskLike], *, conn: Conn | None = None) -> None:
        """Give tasks back in one statement, without a delay.

        Raises:
            TakeLost: for the first that could not be released; the others were.
        """
        self._settle_many(calls.release_many, tasks, conn)

    def bury(
        self, task: TaskLike, *, priority: int | None = None, error: str | None = None, conn: Conn | None = None
    ) -> None:
        """Bury a task; see Task.bury. By its id alone, any client may, also while the task is ready."""
        bury(self._shell, *named(task), priority, error, conn)

    def touch(self, task: TaskLike, more: Seconds | None = None, *, conn: Conn | None = None) -> None:
        """Keep a task for longer, by its id too, if this client's session holds it; see Task.touch."""
        touch(self._shell, *named(task), more, conn)

    def finish(self, task: TaskLike, result: Any = None, *, keep: Seconds = KEEP, conn: Conn | None = None) -> None:
        """Ack a task and keep its result, by its id too, if this client's session holds it; see Task.finish."""
        finish(self._shell, *named(task), result, keep, conn)

    def fail(self, task: TaskLike, error: str | None = None, *, keep: Seconds = KEEP, conn: Conn | None = None) -> None:
        """Bury a task and keep that it failed; see Task.fail. By its id alone, any client may, as with bury."""
        fail(self._shell, *named(task), error, keep, conn)

    def requeue(self, task: TaskLike, *, conn: Conn | None = None) -> int:
        """Give a task back behind all others of its priority, by its id too, if this client's session holds it.

        The place in a queue is (priority, id), so the task gets a new id; everything else of it stays.

        Returns:
            The new id.

        Raises:
            TakeLost: as for Task.ack.
        """
        return (requeue(self._shell, *named(task), conn))[0]

    def _settle_many(self, make: SettleMany, tasks: Iterable[TaskLike], conn: Conn | None) -> None:
        fence = self._shell.fence()
        call = make([named(task) for task in tasks], fence)
        insist(self._shell.run(call, conn), fence)
