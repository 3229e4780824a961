"""A task with the verbs that settle it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, Unpack

from .._calls import cancel as cancel_calls
from .._calls import flows as flow_calls
from .._calls import pick as calls
from .._calls.pick import TaskStats
from .._calls.put_options import PutArguments
from .._calls.results import Outcome
from .._calls.settle import Return
from .._engine.awaiting import Conn
from .._records.puts import Put
from .._records.task import TaskRecord, from_found, moved, settled, touched
from .._values.arguments import Seconds
from ..errors import TaskNotTaken
from . import settle, steps
from .cancellation import AsyncCancellation
from .results import AsyncResults
from .settle import GIVEN_UP, KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncTask(TaskRecord):
    """A task, with the verbs that settle it.

    The verbs of a taken task present its token, and count as long as that take lasts. Past its deadline, or once this
    process was presumed dead, they change nothing, and their error names the state of the task.
    """

    async def ack(self, *, put: Sequence[Put] = (), conn: Conn | None = None) -> Self:
        """Mark the task as done: it is removed, or kept as its queue's keep_done says. As Tarantool's ack and
        beanstalkd's delete.

        Args:
            put: tasks that are put with the ack, in one statement: both happen, or neither.
            conn: the caller's connection, to ack in its transaction.

        Returns:
            The task, in the state `done`.

        Raises:
            TaskNotFound: it is gone already.
            TaskNotTaken: the take has ended, by its deadline or because this process was presumed dead.
            TaskTakenByOther: the same, and another client has taken it since.
            BadData, PutRefused: for a task of `put`; this one is still taken then.
        """
        return settled(self, await settle.ack(self._home, self.id, self.token, put, conn))

    async def forward(
        self, queue: str, data: Any = None, *, conn: Conn | None = None, **options: Unpack[PutArguments]
    ) -> Self:
        """Hand the task on: one statement acks it here and puts it there, so it is always in exactly one of the queues.

        Args:
            queue: the name of the queue that gets it, as a new task. May be the task's own.
            data: of the new task; None, the default, is this task's data. (`ack(put=[Put(queue, None)])` puts a null.)
            options: those of Queue.put. This task's own options are not copied.
            conn: the caller's connection, to hand on in its transaction.

        Returns:
            The task, in the state `done`.

        Raises:
            TakeLost: as for ack; nothing is put.
            BadData, ValueError, PutRefused: as for Queue.put; the task is still taken.
        """
        put = Put(queue, self.data if data is None else data, **options)
        return await self.ack(put=[put], conn=conn)

    async def release(
        self,
        delay: Seconds = 0,
        *,
        every: Seconds | None = None,
        hold_lane: bool = False,
        priority: int | None = None,
        error: str | None = None,
        conn: Conn | None = None,
    ) -> Self:
        """Give the task back: ready at its old place in the queue, or after a delay. As beanstalkd's release.

        Args:
            delay: seconds, or a timedelta, until it is ready.
            every: seconds from the take until it is ready again, for work that is due at a fixed interval, however long
                it takes. At once if that time has passed.
            hold_lane: whether the lane of the task waits for it during the delay, as for a worker's retry; else the
                next task of the lane can be taken. Without a lane or a delay nothing changes.
            priority: from now on; None leaves it.
            error: the error of a failed attempt; kept with the task, and counted as an attempt.
            conn: the caller's connection, to release in its transaction.

        Raises:
            ValueError: the delay is negative, NaN or not a duration.
            TakeLost: as for ack.
        """
        how = Return(delay, every, priority, error, hold_lane)
        state = await settle.release(self._home, self.id, self.token, how, conn)
        return settled(self, state, priority=priority, error=error)

    async def bury(self, *, priority: int | None = None, error: str | None = None, conn: Conn | None = None) -> Self:
        """Set the task aside until it is kicked. As beanstalkd's bury.

        Args:
            priority: from now on; None leaves it.
            error: why; kept with the task.
            conn: the caller's connection, to bury in its transaction.

        Raises:
            TakeLost: as for ack.
        """
        state = await settle.bury(self._home, self.id, self.token, priority, error, conn)
        return settled(self, state, priority=priority, error=error)

    async def touch(self, more: Seconds | None = None, *, conn: Conn | None = None) -> Self:
        """Keep the task for longer. Without a time to run there is no deadline, and nothing changes.

        Args:
            more: seconds, or a timedelta, to add to the deadline. None sets it to the task's ttr from now, as
                beanstalkd's touch, unless it is later than that: a touch never shortens the time.
            conn: the caller's connection, to touch in its transaction.

        Raises:
            ValueError: negative, NaN or not a duration.
            TakeLost: as for ack.
        """
        return touched(self, *await settle.touch(self._home, self.id, self.token, more, conn))

    async def finish(self, result: Any = None, *, keep: Seconds = KEEP, conn: Conn | None = None) -> Self:
        """Ack the task and keep its result, both or neither. A worker does so for a handler with keep_result.

        Args:
            result: anything that JSON can hold, and bytes; results.get() returns it.
            keep: seconds, or a timedelta, for which to keep it; default one hour.
            conn: the caller's connection, to finish in its transaction.

        Returns:
            The task, in the state `done`.

        Raises:
            BadData: JSON or jsonb cannot hold the result, or it is over max_data_size.
            ValueError: `keep` is not above 0.
            TakeLost: as for ack; nothing is kept.
        """
        return settled(self, await settle.finish(self._home, self.id, self.token, result, keep, conn))

    async def fail(self, error: str | None = None, *, keep: Seconds = KEEP, conn: Conn | None = None) -> Self:
        """Bury the task and record that it failed for good: a wait for its result raises TaskFailed.

        Args:
            error: why.
            keep: seconds, or a timedelta, for which to keep that record; default one hour.
            conn: the caller's connection, to fail in its transaction.

        Raises:
            ValueError: `keep` is not above 0.
            TakeLost: as for ack.
        """
        state = await settle.fail(self._home, self.id, self.token, error, keep, conn)
        return settled(self, state, error=GIVEN_UP if error is None else error)

    async def requeue(self, *, conn: Conn | None = None) -> Self:
        """Give the task back behind all others of its priority; see Queue.requeue. Returns it with its new id."""
        return moved(self, *await settle.requeue(self._home, self.id, self.token, conn))

    async def progress(self, value: Any) -> None:
        """Report how far the task is, for outcome() and follow(). The report lasts as long as this take.

        Args:
            value: anything that JSON can hold, and bytes. Each report is a commit and a notification of its own.

        Raises:
            BadData: JSON or jsonb cannot hold the value, or it is over max_data_size.
            TakeLost: as for ack: stop working on the task then.
        """
        await AsyncResults(self._home).report(self, value)

    async def step(self, name: str, function: Callable[[], Any], *, conn: Conn | None = None) -> Any:
        """Do a part of the task once: call the function and record its value, unless a value is recorded already.

        A process that takes the task after a crash or a failed attempt gets the recorded value, and the function is
        not called. A step whose record was not committed runs again. As in DBOS and absurd.

        Args:
            name: of the step, unique within the task; 1 to 255 bytes.
            function: called without arguments; AsyncTask also accepts a coroutine function. It must
                return a value that JSON can hold, or bytes. If it raises, nothing is recorded.
            conn: the caller's connection. The record is then committed with the caller's transaction, together with
                everything that the function does in it: both take effect once, or neither does.

        Returns:
            The value as JSON gives it back, in the first run too: a tuple is returned as a list.

        Raises:
            BadData: JSON or jsonb cannot hold the value. The function has run, and will run again.
            TakeLost: as for ack; before the function runs, or after it, when its value is not recorded.
            ValueError: the name has no or too many bytes.
            TypeError: a coroutine function, for a Task that is not an AsyncTask.
        """
        return await steps.step(self._home, self.id, self.token, name, function, conn)

    async def results(self) -> list[Outcome]:
        """The tasks that this one was put `after`, in that order: for each its state, result and error.

        A result is there if the task's holder kept one, by finish() or keep_result; it is kept until this task is
        gone. The state is done, failed, cancelled, gone, or open if this task did not wait for its end. The result of
        a batch has the numbers of its tasks, `total` and `failed`.

        Raises:
            NotAllowed: this client does not hold the task, and may not look into its queue.
        """
        found: list[Outcome] = await self._home.run(flow_calls.predecessors(self.id, self._home.fence(self.token)))
        return found

    async def peek(self) -> Self:
        """The task as it is now. Raises TaskNotFound if it is gone."""
        return from_found(type(self), await self._home.run(calls.peek(self.id)), self._home)

    async def delete(self, *, strict: bool = False) -> None:
        """Remove the task in any state; see Queue.delete. Raises TaskNotFound if it is gone."""
        await self._home.run(calls.delete_one(self.id, self._home.fence(self.token), strict))

    async def kick(self) -> bool:
        """Make the task ready, if it is buried or delayed; see Queue.kick_task."""
        return await self._home.run(calls.kick_task(self.id)) is not None

    async def cancel(self, reason: str | None = None, *, conn: Conn | None = None) -> str:
        """Cancel the task; see Client.cancel. Returns its state: `cancelled`, or `cancelling` while it is taken."""
        state: str = await self._home.run(cancel_calls.cancel(self.id, reason), conn)
        return state

    @property
    def cancelled(self) -> AsyncCancellation:
        """Whether the task was cancelled since this client took it: true or false, with `wait()` and `reason`.

        The first use begins to watch the take, and waits for nothing. From then on a cancellation is seen within some
        milliseconds, without a question to the server.

        Raises:
            TaskNotTaken: this is not a task that the client has taken.
        """
        try:
            watched = self._watched
        except AttributeError:
            if self.token is None:
                raise TaskNotTaken(
                    f"task {self.id} is not taken by this client: only its taker hears that it is cancelled", self.id
                ) from None
            watched = self._home.watch(self.id, self.token)
            object.__setattr__(self, "_watched", watched)
        return AsyncCancellation(watched)

    async def stats(self) -> TaskStats:
        """The history of the task; see Queue.task_stats."""
        found: TaskStats = await self._home.run(calls.task_stats(self.id))
        return found

    async def outcome(self) -> Outcome:
        """The outcome of the task, also after its end; see Client.results.outcome."""
        return await AsyncResults(self._home).outcome(self)

    async def result(self, timeout: Seconds | None = None) -> Any:
        """Wait for the task's result, and return it; see Client.results.get."""
        return await AsyncResults(self._home).get(self, timeout)

    def follow(self, timeout: Seconds | None = None) -> AsyncIterator[Outcome]:
        """The task's outcome now, and again at each change, until it has ended; see Client.results.follow."""
        return AsyncResults(self._home).follow(self, timeout)
