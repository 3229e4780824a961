"""Consumers: the sources of messages for Dramatiq's worker, one for each queue.

The consumer's thread waits in the database, and worker threads ack: an ack wakes the thread, which sends it with all
others that are due. The session of the process holds the takes, so a killed worker's messages are ready again within a
second.

A message that the worker has got stays taken when its consumer closes, for example after an error or for a pause, since
the worker still works on it. The worker then settles it with the next consumer, which leaves that to the first one, and
the ack is sent alone. The worker calls requeue() with the messages that it has not begun.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from dramatiq import Consumer, MessageProxy
from dramatiq.errors import DecodeError
from dramatiq.logging import get_logger

from ... import Client, TakeLost, Task
from .clients import connected
from .messages import message_of


class TakenMessage(MessageProxy):
    """A message with the task that carries it, and the consumer that took it."""

    def __init__(self, message: Any, task: Task, taker: PgqueueConsumer) -> None:
        super().__init__(message)
        self.task = task
        self.taker = taker


class PgqueueConsumer(Consumer):
    """Iterates over the messages of a queue; None after `timeout` without one.

    Args:
        client: the broker's.
        queue: the name of the queue.
        prefetch: how many messages it has at most that are not settled.
        timeout: milliseconds that a step waits for a message.
    """

    def __init__(self, client: Client, queue: str, prefetch: int, timeout: int) -> None:
        self.logger = get_logger(__name__, type(self))
        self._queue = client.queue(queue)
        self._timeout = timeout / 1000
        self._lock = threading.Lock()  # an ack while close() sends the acks would stay unsent
        self._tasks: deque[Task] = deque()  # taken, and not yet handed out
        self._out: dict[int, Task] = {}  # handed out, by id() of the task
        with connected():
            self._consumer = client.consumer([queue], prefetch)

    def __next__(self) -> MessageProxy | None:
        if not self._tasks:
            with connected(), self._late("a message was settled too late"):
                self._tasks.extend(self._consumer.receive(self._timeout))
        if not self._tasks:
            return None
        task = self._tasks.popleft()
        try:
            message = message_of(task.data, task.id, task.queue)
        except DecodeError as error:
            self.logger.exception("Failed to decode the message of task %d.", task.id)
            self._bury(task, error)
            return None
        self._out[id(task)] = task
        return TakenMessage(message, task, self)

    def ack(self, message: Any) -> None:
        """Ack a message with the thread's next step. Safe from any thread."""
        if self._settle(message):
            message.taker._ack(message.task)

    def nack(self, message: Any) -> None:
        """Move a message to the dead letter queue, with its error. Safe from any thread."""
        if self._settle(message):
            message.taker._bury(message.task, message._exception)

    def requeue(self, messages: Iterable[Any]) -> None:
        """Give messages back to their queue."""
        settled = [message for message in messages if self._settle(message)]
        for message in settled:
            message.taker._let_go(message.task)
        if settled:
            with connected(), self._late("a message was given back too late"):
                self._queue.release_many([message.task for message in settled])

    def close(self) -> None:
        """Send the acks that are due, and give back the messages that the worker has not got."""
        with self._lock, connected(), self._late("an ack came too late"):
            for task in list(self._out.values()):
                self._let_go(task)
            self._consumer.close()

    def _settle(self, message: Any) -> bool:
        """Whether a message is to be settled now: it was taken, and not settled before."""
        if isinstance(message, TakenMessage) and message.taker._out.pop(id(message.task), None) is not None:
            return True
        self.logger.warning("The message %r was settled before, or not taken.", getattr(message, "message_id", message))
        return False

    def _ack(self, task: Task) -> None:
        with self._lock, contextlib.suppress(ValueError):  # the consumer has closed
            self._consumer.ack(task)
            return
        with connected(), self._late("an ack came too late"):
            task.ack()

    def _bury(self, task: Task, error: BaseException | None) -> None:
        self._let_go(task)
        with connected(), self._late("a message was rejected too late"):
            task.bury(error="rejected" if error is None else f"{type(error).__name__}: {error}")

    def _let_go(self, task: Task) -> None:
        with contextlib.suppress(ValueError):  # the consumer has closed
            self._consumer.settled(task)

    @contextlib.contextmanager
    def _late(self, what: str) -> Iterator[None]:
        try:
            yield
        except TakeLost as error:
            self.logger.warning("%s: %s", what, error)
