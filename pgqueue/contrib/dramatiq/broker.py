"""The broker: Dramatiq's queues, messages and dead letters in PostgreSQL."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from dramatiq import Broker, Consumer, Message, Middleware
from dramatiq.common import q_name, xq_name
from dramatiq.errors import QueueJoinTimeout

from ... import Client, errors
from ..._calls.find import State
from .clients import client_of, connected
from .consumers import PgqueueConsumer
from .messages import canonical, data_of

#: For how long a dead letter is kept, in milliseconds: as with the other brokers of Dramatiq.
DEAD_MESSAGE_TTL = 86_400_000 * 7

#: The states of messages that no worker processes. Those behind others come first: the end of a ready one makes one of
#: them ready.
UNHELD: tuple[State, ...] = ("blocked", "waiting", "ready", "delayed", "buried")


class Counts(NamedTuple):
    """How many messages a queue has."""

    ready: int
    delayed: int
    dead: int


class PgqueueBroker(Broker):
    """A broker on pgqueue. It connects at its first call.

    Args:
        url: a PostgreSQL URI or conninfo string; default PGQUEUE_DSN, else DATABASE_URL, else the embedded server.
        middleware: as for every broker of Dramatiq.
        client: a pgqueue client to use, in place of the URL and the options. close() leaves it open.
        connection: a function that returns the application's connection, or session of SQLAlchemy, whose transaction
            the messages that are sent now are part of; None: they are sent at once.
        dead_message_ttl: milliseconds for which a dead letter is kept; default seven days. For queues that are new.
        options: those of pgqueue.Client, for example pool_size. The default of max_data_size is 64 MB.

    Attributes:
        client: the pgqueue client, for backends and for the application.
        queues: the names of the declared queues.

    Raises:
        ValueError: the URL or an option is not valid.
        TypeError: there is no such option.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        middleware: list[Middleware] | None = None,
        client: Client | None = None,
        connection: Callable[[], Any] | None = None,
        dead_message_ttl: int = DEAD_MESSAGE_TTL,
        **options: Any,
    ) -> None:
        super().__init__(middleware)
        self.client = client_of(url, client, options)
        self.queues: set[str] = set()
        self.dead_message_ttl = dead_message_ttl
        self._owns_client = client is None
        self._connection = connection
        self._made: set[str] = set()  # queues that this process has found in the database, or made

    def close(self) -> None:
        """Close the client, which gives back all messages that are not settled. Later calls raise ConnectionClosed."""
        if self._owns_client:
            self.client.close()

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue. It is made in the database when it is used.

        There is no delay queue: delayed messages are delayed tasks of their queue.

        Raises:
            ValueError: the name is not valid, or over 197 characters long.
        """
        name = q_name(queue_name)
        if name in self.queues:
            return
        for checked in (name, xq_name(name)):
            self.client.queue(checked)
        self.emit_before("declare_queue", name)
        self.queues.add(name)
        self.emit_after("declare_queue", name)

    def get_declared_queues(self) -> set[str]:
        """The names of all queues that were declared on this broker."""
        return self.queues.copy()

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """A consumer of a queue, or of its dead letters by the name with `.XQ`.

        Args:
            queue_name: the queue, which is declared if it is not yet.
            prefetch: how many messages it has at most that are not settled.
            timeout: milliseconds after which it returns None if there was no message.

        Raises:
            ConnectionClosed: the server cannot be reached.
        """
        self.declare_queue(queue_name)
        with connected():
            self._made.discard(q_name(queue_name))  # perhaps deleted since
            self._make(q_name(queue_name))
        return PgqueueConsumer(self.client, queue_name, prefetch, timeout)

    def enqueue(self, message: Message[Any], *, delay: int | None = None, conn: Any = None) -> Message[Any]:
        """Send a message. Its queue is not declared: the queue of another service gets no consumer here.

        Args:
            message: the message. Its option `broker_priority` is that of RabbitMQ's broker, the highest first; without
                it the priority is the actor's, the lowest first.
            delay: milliseconds until it can be taken.
            conn: the caller's connection: the message is sent when its transaction commits. Default: the result of the
                function `connection`.

        Returns:
            The message, for its canonical queue.

        Raises:
            ConnectionClosed: the server cannot be reached, or the broker is closed. If the connection broke during
                the call it is unknown whether the message was sent.
            SchemaError, DataTooBig, QueueFull, ValueError: as for pgqueue's Queue.put.
        """
        message = canonical(message, message.queue_name)
        self.logger.debug("Enqueueing message %r on queue %r.", message.message_id, message.queue_name)
        self.emit_before("enqueue", message, delay)
        with connected():
            self._make(message.queue_name)
            self.client.queue(message.queue_name).put(
                data_of(message),
                delay=max(delay or 0, 0) / 1000,
                priority=self._priority(message),
                conn=conn if conn is not None else self._connection and self._connection(),
            )
        self.emit_after("enqueue", message, delay)
        return message

    def flush(self, queue_name: str) -> None:
        """Drop all messages of a queue, and its dead letters. Those that are being processed stay."""
        for name in (q_name(queue_name), xq_name(queue_name)):
            with connected(), contextlib.suppress(errors.NoQueue):
                for state in UNHELD:
                    self.client.queue(name).delete_all(state)

    def flush_all(self) -> None:
        """Drop all messages of all declared queues."""
        for queue_name in self.get_declared_queues():
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until all messages of a queue are processed, also delayed ones. For tests.

        Args:
            queue_name: the queue.
            interval: milliseconds between two looks.
            timeout: milliseconds to wait; None waits without limit.

        Raises:
            QueueJoinTimeout: they were not processed in time.
        """
        end = float("inf") if timeout is None else time.monotonic() + timeout / 1000
        while self._unsettled(queue_name):
            if time.monotonic() >= end:
                raise QueueJoinTimeout(queue_name)
            time.sleep(interval / 1000)

    def get_queue_message_counts(self, queue_name: str) -> Counts:
        """How many messages of a queue are ready, delayed and dead letters. Those that wait for a limit are ready."""
        with connected():
            queue, dead = (self.client.queue(name(queue_name)).stats() for name in (q_name, xq_name))
        return Counts(queue["ready"] + queue["blocked"], queue["delayed"], dead["ready"] + dead["blocked"])

    def _unsettled(self, queue_name: str) -> int:
        with connected():
            stats = self.client.queue(q_name(queue_name)).stats()
        return stats["total"] - stats["buried"]

    def _priority(self, message: Message[Any]) -> int:
        if (priority := message.options.get("broker_priority")) is not None:
            return -int(priority)
        actor = self.actors.get(message.actor_name)
        return 0 if actor is None else int(actor.priority)

    def _make(self, name: str) -> None:
        """Make a queue and the one of its dead letters, unless they are there."""
        if name in self._made:
            return
        letters: Any = {"dead_letter": "", "dead_letter_key": xq_name(name)}
        with contextlib.suppress(errors.NotAllowed, errors.NoQueue):  # a role may lack the right to make it, or to see
            self.client.create_queue(xq_name(name), if_not_exists=True, ttl=self.dead_message_ttl / 1000)
            queue = self.client.create_queue(name, if_not_exists=True, **letters)
            if queue.info().dead_letter is None:  # a put has made it
                queue.alter(**letters)
        self._made.add(name)
