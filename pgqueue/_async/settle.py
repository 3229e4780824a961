"""Ending a take: ack, release, bury and the like. As functions by id and token, and as the verbs of a queue.

A call that ends a take may fail: its connection is lost, a disk is full, a lock is not granted, Ctrl-C cuts it off. The
caller then seldom settles the task again, and a living client would hold it indefinitely, with its lane. So `_end`,
which all of these verbs call, leaves no take in doubt:

- A call whose connection was lost is sent again on another one, in the rest of its time. The token is the fence: if the
  first call took effect, the second one is refused, and changes nothing. It is refused as well if the first call had no
  effect, and the task was returned with its session and another client has taken or acked it. So the caller then gets
  the first error. A missing task is no proof of an ack: T1's ack is lost in a crash of the server, T2 takes the task
  and acks it, and T1's second ack would report T2's success.
- If the call fails for good, the listener gives the take back, and repeats that until it is done. So the caller gets no
  error, and the verb is done; or TakeLost or a refusal such as QueueFull, and it is not done; or any other error, and
  it is not done, or for ConnectionLost perhaps done, and the client no longer holds the task.

A task that is named by its id alone has no token. A repetition could then meet a later take of the same session, so
there is none. In a worker the run settles the tasks that its handler could not (handlers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from time import monotonic
from typing import Any, TypeVar

import psycopg

from .._calls import ack as ack_calls
from .._calls import pick as pick_calls
from .._calls import results as result_calls
from .._calls import settle as calls
from .._calls.call import Call, Fence, Named, Refused, Rows, insist
from .._calls.settle import Return
from .._engine.awaiting import Conn, begin, end
from .._records.puts import Put
from .._records.task import TaskLike, named
from .._values.arguments import Seconds
from ..errors import CallTimeout, ConnectionLost, LockBlocked, ServerError, TakeLost
from .shell import AsyncShell

T = TypeVar("T")

KEEP = 3600.0  # seconds for which a result is kept
GIVEN_UP = "it was given up"  # the error of a task that fails without one, as 6_families/results.sql says
AGAIN = 0.1  # seconds that a repetition needs at least
#: The errors after which a take may still be held. After any other refusal by pgqueue the caller decides.
OPEN = (ConnectionLost, ServerError, LockBlocked, psycopg.Error)
SettleMany = Callable[[Named, Fence], Call[list[Refused]]]


async def ack(shell: AsyncShell, id: int, token: int | None, put: Sequence[Put], conn: Conn | None) -> str:
    call = ack_calls.ack(id, shell.fence(token), shell.encode_puts(put))
    for one in put:
        await shell.prepare_put(one.queue, conn, in_lanes=one.options.in_lanes, waits=one.options.waits)
    return shell.ended(await _end(shell, call, [(id, token)], conn), conn)


async def release(shell: AsyncShell, id: int, token: int | None, how: Return, conn: Conn | None) -> str:
    call = calls.release(id, shell.fence(token), how)
    return shell.ended(await _end(shell, call, [(id, token)], conn, relaxed=True), conn)


async def bury(
    shell: AsyncShell, id: int, token: int | None, priority: int | None, error: str | None, conn: Conn | None
) -> str:
    call = calls.bury(id, shell.fence(token), error, priority)
    return shell.ended(await _end(shell, call, [(id, token)], conn), conn)


async def touch(
    shell: AsyncShell, id: int, token: int | None, more: Seconds | None, conn: Conn | None
) -> tuple[str, datetime | None]:
    return await shell.run(calls.touch(id, shell.fence(token), more), conn, relaxed=True)


async def finish(shell: AsyncShell, id: int, token: int | None, result: Any, keep: Seconds, conn: Conn | None) -> str:
    call = result_calls.finish(id, shell.fence(token), shell.encode(result), keep)
    return shell.ended(await _end(shell, call, [(id, token)], conn), conn)


async def fail(
    shell: AsyncShell, id: int, token: int | None, error: str | None, keep: Seconds, conn: Conn | None
) -> str:
    call = result_calls.fail(id, shell.fence(token), error, keep)
    return shell.ended(await _end(shell, call, [(id, token)], conn), conn)


async def requeue(shell: AsyncShell, id: int, token: int | None, conn: Conn | None) -> tuple[int, str]:
    return await _end(shell, pick_calls.requeue(id, shell.fence(token)), [(id, token)], conn)


async def ack_many(shell: AsyncShell, tasks: Iterable[TaskLike], conn: Conn | None = None) -> None:
    await _end_many(shell, ack_calls.ack_many, tasks, conn)


async def release_many(shell: AsyncShell, tasks: Iterable[TaskLike], conn: Conn | None = None) -> None:
    await _end_many(shell, calls.release_many, tasks, conn)


async def _end_many(shell: AsyncShell, make: SettleMany, tasks: Iterable[TaskLike], conn: Conn | None) -> None:
    fence, takes = shell.fence(), [named(task) for task in tasks]
    call = make(takes, fence)

    def read(rows: Rows) -> None:
        insist(call.read(rows), fence)

    await _end(shell, call.reading(read), takes, conn)


async def _end(shell: AsyncShell, call: Call[T], takes: Named, conn: Conn | None, *, relaxed: bool = False) -> T:
    """Run a call that ends takes, the ids of the tasks each with its token, and leave none of them in doubt."""
    if conn is not None:
        return await shell.run(call, conn, relaxed=relaxed)
    began, duties, held = monotonic(), shell.duties, Held(shell, takes)
    begin(duties, held)
    try:
        try:
            done = await shell.run(call, relaxed=relaxed)
        except ConnectionLost as lost:
            left = shell.settings.call_timeout - (monotonic() - began)
            if isinstance(lost, CallTimeout) or left < AGAIN or any(token is None for _, token in takes):
                raise
            done = await _again(shell, call, lost, relaxed, left)
    except BaseException as error:
        if isinstance(error, OPEN) or not isinstance(error, Exception):
            held.fulfil()
        end(duties, held)
        raise
    end(duties, held)
    return done


class Held:
    """The takes that a call is about to end: the duty (_engine/duties.py) to give them back if it does not."""

    __slots__ = ("_shell", "_takes")

    def __init__(self, shell: AsyncShell, takes: Named) -> None:
        self._shell = shell
        self._takes = takes

    def fulfil(self) -> None:
        self._shell.left(self._takes)


async def _again(shell: AsyncShell, call: Call[T], lost: ConnectionLost, relaxed: bool, left: float) -> T:
    try:
        return await shell.run(call, relaxed=relaxed, within=left)
    except TakeLost:
        raise lost from None


class AsyncSettling:
    """The verbs of a queue that end a take which the task's id, or a task, names."""

    _shell: AsyncShell

    async def ack(self, task: TaskLike, *, put: Sequence[Put] = (), conn: Conn | None = None) -> None:
        """Ack a task, by its id too, if this client's session holds it; see Task.ack.

        Raises:
            TaskIdRequired: the id is not an int or a string of digits.
            TakeLost: as for Task.ack.
        """
        await ack(self._shell, *named(task), put, conn)

    async def ack_many(self, tasks: Iterable[TaskLike], *, conn: Conn | None = None) -> None:
        """Ack tasks in one statement.

        Raises:
            TakeLost: for one that could not be acked; the others were.
        """
        await ack_many(self._shell, tasks, conn)

    async def release(
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
        await release(self._shell, *named(task), Return(delay, every, priority, error, hold_lane), conn)

    async def release_many(self, tasks: Iterable[TaskLike], *, conn: Conn | None = None) -> None:
        """Give tasks back in one statement, without a delay.

        Raises:
            TakeLost: for one that could not be released; the others were.
        """
        await release_many(self._shell, tasks, conn)

    async def bury(
        self, task: TaskLike, *, priority: int | None = None, error: str | None = None, conn: Conn | None = None
    ) -> None:
        """Bury a task; see Task.bury. By its id alone, any client may, also while the task is ready."""
        await bury(self._shell, *named(task), priority, error, conn)

    async def touch(self, task: TaskLike, more: Seconds | None = None, *, conn: Conn | None = None) -> None:
        """Keep a task for longer, by its id too, if this client's session holds it; see Task.touch."""
        await touch(self._shell, *named(task), more, conn)

    async def finish(
        self, task: TaskLike, result: Any = None, *, keep: Seconds = KEEP, conn: Conn | None = None
    ) -> None:
        """Ack a task and keep its result, by its id too, if this client's session holds it; see Task.finish."""
        await finish(self._shell, *named(task), result, keep, conn)

    async def fail(
        self, task: TaskLike, error: str | None = None, *, keep: Seconds = KEEP, conn: Conn | None = None
    ) -> None:
        """Bury a task and keep that it failed; see Task.fail. By its id alone, any client may, as with bury."""
        await fail(self._shell, *named(task), error, keep, conn)

    async def requeue(self, task: TaskLike, *, conn: Conn | None = None) -> int:
        """Give a task back behind all others of its priority, by its id too, if this client's session holds it.

        The place in a queue is (priority, id), so the task gets a new id; everything else of it stays.

        Returns:
            The new id.

        Raises:
            TakeLost: as for Task.ack.
        """
        return (await requeue(self._shell, *named(task), conn))[0]
