"""A consumer: takes tasks ahead, for a worker or a bridge that has an event loop, or threads, of its own.

A take that waits is a flow (_engine/takes.py). Queue.take performs it in one piece. A consumer performs it without
waiting, and leaves it at its next wait. The end of the wait, a signal of the listener's thread or a moment, rings the
consumer's bell (_engine/bells.py), whose descriptor an event loop waits for. So a consumer needs no thread, and asks
the database only when there may be a task.

The flow is left while the program works. A put that calls this process then waits for its next receive(), or until a
tick calls another process, half a second later at most (sql/2_base/line.sql). While as many tasks are held as
`prefetch` allows, there is no flow, and no put calls the process.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Self

from .._calls.take import Taken
from .._engine import takes
from .._engine.awaiting import rung
from .._engine.bells import Bell, Ring
from .._engine.listener import Listener
from .._engine.shell import UNREADABLE
from .._engine.steps import Flow, Step, Wait
from .._engine.waits import TimeLeft
from .._records.task import from_taken, named
from .._values import arguments
from .._values.arguments import Seconds
from ..errors import ClosedError, TakeLost
from .settle import ack_many, release_many
from .shell import AsyncShell
from .task import AsyncTask

AT_ONCE = 200  # tasks of a claim, at most
GATHER = 0.002  # seconds for which a consumer that is full waits for further acks


class AsyncConsumer:
    """Takes tasks of several queues ahead, and acks them in batches. From Client.consumer().

    receive() returns the tasks that are there, and the rest of the time fileno() is a descriptor to wait for: it is
    readable when receive() may have tasks, or acks to send. For example with `selectors`::

        selector.register(consumer, selectors.EVENT_READ)
        while selector.select():
            for task in consumer.receive():
                work(task.data)
                consumer.ack(task)

    One thread, or coroutine, at a time uses a consumer; ack() and fileno() are safe from any thread.

    Attributes:
        queues: the names of the queues from which it takes.
        prefetch: how many tasks it holds at most; None for any number.
    """

    def __init__(self, shell: AsyncShell, listener: Listener, queues: Sequence[str], prefetch: int | None) -> None:
        self.queues, self.prefetch = _checked(queues, prefetch)
        self._shell = shell
        self._listener = listener
        self._bell = Bell()  # after the checks: it has to be closed
        self._flow: Flow[list[Taken]] | None = None
        self._take: takes.Take | None = None  # of the flow
        self._asked = 0  # how many tasks it is to take
        self._step: Step | None = None  # the wait at which the flow was left
        self._until = float("inf")  # the end of this wait
        self._held: dict[tuple[int, int | None], AsyncTask] = {}  # by take: a task may be taken again while it is held
        self._acks: deque[AsyncTask] = deque()
        self._told = False  # that receive() has something to do
        self._gathers = False  # an alarm will tell it
        self._looked = False  # the last take got less than it asked for: there was no more, or it claimed singly
        self._got = 0  # tasks since the last wait
        self._singly = False  # the last wait was for one task
        self._closed = False
        listener.uses.add(self)
        self._bell.ring()  # the first receive() begins to wait

    def fileno(self) -> int:
        """The descriptor that is readable when receive() has something to do; -1 once the consumer is closed."""
        return self._bell.fileno()

    def change(self, queues: Sequence[str], prefetch: int | None) -> None:
        """Take from other queues from now on, and hold another number of tasks. Those that are held stay.

        Args:
            queues: the names; none: it takes nothing until the next change.
            prefetch: how many tasks to hold at most; 0: it takes none; None: any number.

        Raises:
            ValueError: a name or the number is not valid.
        """
        self.queues, self.prefetch = _checked(queues, prefetch)
        self._leave()
        self._looked = False
        self._bell.ring()

    async def receive(self, timeout: Seconds | None = 0) -> list[AsyncTask]:
        """Send the acks that are due, and take the tasks that are ready.

        Args:
            timeout: seconds to wait for a task, or a timedelta; 0, the default, does not wait, None waits without
                limit.

        Returns:
            The tasks, in the order of Queue.take_many; after a wait perhaps one, and the next call returns the others.
            An empty list if none was ready in time, if there is no room for one, or while the client connects: it does
            not mean that the queues are empty.

        Raises:
            TakeLost: an ack was too late; the others of its batch were made. The next call goes on.
            ServerError, ConnectionLost, LockBlocked: as for Queue.take and Task.ack. The next call goes on.
            ClosedError: the consumer or its client is closed, or this is a fork of the process that made it.
        """
        left = TimeLeft(arguments.timeout(timeout))
        while True:
            self._check()
            self._bell.quiet()  # before the looks: a ring from here on is for the next call
            await self.flush()
            tasks = await self._advance()
            if self._gathers:  # an ack during the claim has set an alarm, which the end of the claim has dropped
                self._bell.ring()
            if tasks or left.over():
                return tasks
            await rung(self._bell, left.at_most(max(0.0, self._until - monotonic())).seconds())

    def ack(self, task: AsyncTask) -> None:
        """Ack a task with the next receive() or flush().

        The descriptor becomes readable for it: at once, or, while `prefetch` allows no further task, as soon as half of
        the tasks are acked, or after two milliseconds.

        Raises:
            ValueError: the consumer does not hold the task.
        """
        self._let_go(task)
        self._acks.append(task)
        self._call_soon()

    def settled(self, task: AsyncTask) -> None:
        """Stop holding a task that was settled by one of its own verbs, for example task.bury().

        Raises:
            ValueError: the consumer does not hold the task.
        """
        self._let_go(task)
        if self._flow is None:
            self._call_soon()  # there is room again

    async def flush(self) -> None:
        """Send the acks that are due. Raises as receive()."""
        self._told = self._gathers = False  # before the look: an ack from here on tells it again
        acks = []
        with contextlib.suppress(IndexError):
            while True:
                acks.append(self._acks.popleft())
        if len(acks) == 1:
            await acks[0].ack()  # costs the server a third of a batch
        elif acks:
            await ack_many(self._shell, acks)

    async def close(self) -> None:
        """Send the acks that are due, and give back the tasks that are held. May be called twice.

        Raises:
            TakeLost: an ack was too late.
            ServerError, ConnectionLost: the server did not answer; the client gives the tasks back as soon as it does.
        """
        if self._closed:
            return
        self._closed = True
        self._listener.uses.remove(self)
        held, self._held = list(self._held.values()), {}
        self._leave()
        try:
            if self._shell.running_listener is self._listener:  # otherwise its end gave them back
                try:
                    await self.flush()
                finally:
                    with contextlib.suppress(TakeLost):
                        await release_many(self._shell, held)
        finally:
            self._bell.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __len__(self) -> int:
        """How many tasks it holds."""
        return len(self._held)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self.queues) or 'no queue'}, holding {len(self._held)}>"

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed")
        if self._shell.running_listener is not self._listener:
            raise ClosedError(
                "the client or session of this consumer is closed, or this is a fork of the process that made it"
            )

    def _let_go(self, task: AsyncTask) -> None:
        if self._held.pop(named(task), None) is None:
            raise ValueError(f"task {task.id} is not held by this consumer: it was settled before, or is another one's")

    def _call_soon(self) -> None:
        """Have receive() called: at once, or, by a consumer that was full, once half of its tasks are settled.

        After GATHER seconds fewer are enough. So a statement acks several tasks, and a claim takes several, while the
        program works on the others.
        """
        if self._told:
            return
        if self._flow is not None or self._room() >= max(1, self._most() // 2):
            self._told = True
            self._bell.ring()
        elif not self._gathers:
            self._gathers = True
            if self._listener.alarms.set(self._bell, monotonic() + GATHER):
                self._listener.poke()

    def _ring(self) -> Ring:
        return Ring(self._bell)

    def _most(self) -> int:
        return AT_ONCE if self.prefetch is None else min(AT_ONCE, self.prefetch)

    def _room(self) -> int:
        return AT_ONCE if self.prefetch is None else min(AT_ONCE, self.prefetch - len(self._held))

    async def _advance(self) -> list[AsyncTask]:
        """Perform the take up to its next wait, or to its end."""
        if self._flow is None:
            if not self.queues or (room := self._room()) <= 0:
                return []
            self._asked, core = room, self._shell.core
            self._take = takes.take(core, self._listener, self._ring, self.queues, room, None, looked=self._looked)
            self._flow = self._take.run()
        rows: list[Taken] = []
        try:
            if (found := await self._pieces(self._flow)) is None:
                self._waits()
                return []
            rows = found
            tasks = self._shell.made(rows, lambda row: from_taken(AsyncTask, row, self._shell))
            self._held.update((named(task), task) for task in tasks)
        except BaseException as error:
            if not isinstance(error, UNREADABLE):  # those are buried
                self._shell.give_back((row.id, row.token) for row in rows)
            raise
        self._looked = len(rows) < self._asked
        self._got += len(rows)
        if not tasks:
            self._check()
        elif self._room() > 0:
            self._bell.ring()  # the next receive() begins to wait for more, although no ack has made room
        return tasks

    def _waits(self) -> None:
        """Choose the claim after this wait: of one task, if the wait before was for one, or else of all.

        Where tasks come one by one, a claim of one costs the server two thirds of a claim of several, which it would
        cost for several queues too. Where several come at once it would be a claim more, and a look.
        """
        if self._got:
            self._singly, self._got = self._got == 1 and len(self.queues) == 1, 0
        if self._take is not None:
            self._take.singly = self._singly

    async def _pieces(self, flow: Flow[list[Taken]]) -> list[Taken] | None:
        """The result of the flow; None: it has reached a wait, and is left there."""
        try:
            step = self._step or next(flow)
            while not self._is_wait(step):
                try:
                    answer = None if isinstance(step, Wait) else await self._shell.perform(step)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as done:
            self._leave()
            rows: list[Taken] = done.value
            return rows
        except BaseException:
            self._leave()
            raise
        return None

    def _is_wait(self, step: Step) -> bool:
        """Whether the step is a wait that is not over, at which the flow is left."""
        if not isinstance(step, Wait):
            return False
        if step is not self._step:
            self._step, self._until = step, float("inf") if step.seconds is None else monotonic() + step.seconds
            self._listener.alarms.drop(self._bell)
            if step.seconds is not None and self._listener.alarms.set(self._bell, self._until):
                self._listener.poke()
        return not step.signal.is_set() and monotonic() < self._until

    def _leave(self) -> None:
        """End the take. A claim of it that is under way is undone."""
        flow, self._flow, self._step, self._until = self._flow, None, None, float("inf")
        self._listener.alarms.drop(self._bell)
        if flow is not None:
            flow.close()


def _checked(queues: Sequence[str], prefetch: int | None) -> tuple[tuple[str, ...], int | None]:
    names = arguments.queue_names(queues) if queues else []
    return tuple(names), arguments.integer("prefetch", prefetch, 0)
