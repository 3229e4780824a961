"""Channels: the verbs of AMQP, as kombu's virtual transports have them, on queues and exchanges of pgqueue.

A channel that consumes has a consumer (`client.consumer()`), whose prefetch is the channel's. A message's delivery tag
names the take, so an ack after the task was given back settles no later take of it. Exchanges and bindings are
pgqueue's, in the database (declaring.py): every producer sees them, and a publish is one statement.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from queue import Empty
from typing import TYPE_CHECKING, Any, Protocol

from kombu.transport import virtual

from ... import Consumer, TakeLost, Task, errors
from ..._values.logs import log
from ..._values.marked import text_of
from .declaring import Declaring
from .messages import Message, data_of, message_of, options_of

if TYPE_CHECKING:
    from ...types import Session


#: The errors after which a consumer continues by itself. A lost ack is not repeated: the task is given back.
PASSING = (errors.ConnectionLost, errors.ServerError, errors.LockBlocked)


class Connection(Protocol):
    """A channel's connection: the transport."""

    _callbacks: dict[str, Callable[[Message], None]]  # kombu's

    @property
    def pgqueue(self) -> Session: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def session(self) -> int | None: ...
    def joined(self) -> Any: ...
    def watch(self, consumer: Consumer) -> None: ...
    def unwatch(self, consumer: Consumer) -> None: ...


class QoS(virtual.QoS):
    """Which messages of a channel are not acked. Giving them back is left to the consumer."""

    channel: Channel
    restore_at_shutdown = False

    def ack(self, delivery_tag: str) -> None:
        super().ack(delivery_tag)
        self.channel.settle(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        super().ack(delivery_tag)
        self.channel.reject(delivery_tag, requeue)

    def restore_unacked(self) -> list[Any]:
        self._flush()
        self._delivered.clear()
        self.channel.give_back()
        return []


class Channel(Declaring):
    """A channel of AMQP."""

    QoS = QoS
    supports_fanout = True
    do_restore = False
    connection: Connection | None
    from_transport_options = (*virtual.Channel.from_transport_options, "hold_delayed")
    hold_delayed = False

    def __init__(self, connection: Connection, **options: Any) -> None:
        super().__init__(connection, **options)
        self.consumer: Consumer | None = None
        self._tags = itertools.count(1)
        self._tasks: dict[str, Task] = {}  # those that are not settled, by their tag
        self._callbacks: dict[str, Callable[[Message], None]] = {}

    # --- receiving

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], None], consumer_tag: str, **options: Any
    ) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        assert self.connection is not None
        deliver = self.connection._callbacks[queue]

        def delivered(message: Message) -> None:
            if no_ack:
                self.settle(message["properties"]["delivery_tag"])
            deliver(message)

        self._callbacks[queue] = delivered
        self._consume()

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._callbacks.pop(queue, None)
            self._consume()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        if self.consumer is not None and self.consumer.prefetch != (prefetch_count or None):
            self._consume()

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        message = super().basic_get(queue, no_ack=no_ack, **options)
        if message is not None and no_ack:
            self.settle(message.delivery_tag)
        return message

    def deliver(self) -> bool:
        """Hand the tasks that are ready to their callbacks. Returns whether there was one.

        Raises:
            ConnectionLost: the session has ended, and with it queues of the channel. kombu's users connect and
                declare them again.
        """
        if self.consumer is None:
            return False
        self.check_session()
        try:
            tasks = self.consumer.receive()
        except errors.QueueExclusive:
            self.check_session()
            raise
        except TakeLost as error:
            log.warning("an ack came too late: %s", error)
            return False
        except PASSING as error:
            log.warning("a channel waits for the server: %s", error)
            return False
        for task in tasks:
            if self.closed:  # by a callback, which has given back the rest
                break
            if callback := self._callbacks.get(task.queue):
                callback(self._received(task))
            else:  # a callback before it has cancelled this consumer
                self._give_back([task])
        return bool(tasks)

    def _consume(self) -> None:
        """Have the consumer take from the queues that are consumed now."""
        if self.consumer is None:
            if not self._active_queues:
                return
            self.consumer = self.pgqueue.consumer()
            assert self.connection is not None
            self.connection.watch(self.consumer)
        self.consumer.change(list(dict.fromkeys(self._active_queues)), self.qos.prefetch_count or None)

    def _get(self, queue: str, timeout: float | None = None) -> Message:
        task = self.pgqueue.queue(queue).take(0)
        if task is None:
            raise Empty
        return self._received(task)

    def _received(self, task: Task) -> Message:
        message = message_of(task.data, task.id, task.queue)
        tag = str(next(self._tags))
        message["properties"] = {**message["properties"], "delivery_tag": tag}
        info = message["properties"].get("delivery_info") or {}
        message["properties"]["delivery_info"] = {**info, "redelivered": task.redelivered}
        self._tasks[tag] = task
        return message

    # --- settling

    def settle(self, tag: str) -> None:
        """Ack, with the acks of other messages if the channel consumes. Safe from any thread."""
        task = self._tasks.pop(tag, None)
        if task is None:
            return
        if self.consumer is not None:
            with contextlib.suppress(ValueError):  # it came by basic_get
                self.consumer.ack(task)
                return
        try:
            task.ack()
        except TakeLost as error:
            log.warning("an ack came too late: %s", error)

    def reject(self, tag: str, requeue: bool) -> None:
        """Give a message back, which counts as an attempt and marks it as redelivered; or drop it.

        A dropped message is published to the dead letter exchange of its queue, if that has one.
        """
        task = self._tasks.get(tag)
        if task is None:
            return
        if not requeue and not self.pgqueue.queue(task.queue).info().dead_letter:
            self.settle(tag)
            return
        del self._tasks[tag]
        self._let_go(task)
        try:
            if requeue:
                task.release(error="requeued by a consumer")
            else:
                task.bury(error="rejected by a consumer")
        except TakeLost as error:
            log.warning("a message was rejected too late: %s", error)

    def give_back(self) -> None:
        """Give back all messages that are not settled."""
        tasks, self._tasks = list(self._tasks.values()), {}
        self._give_back(tasks)

    def _give_back(self, tasks: list[Task]) -> None:
        for task in tasks:
            self._let_go(task)
        if tasks:
            try:
                self.pgqueue.queue(tasks[0].queue).release_many(tasks)
            except TakeLost as error:
                log.warning("a message was given back too late: %s", error)

    def _let_go(self, task: Task) -> None:
        if self.consumer is not None:
            with contextlib.suppress(ValueError):  # it came by basic_get
                self.consumer.settled(task)

    def close(self) -> None:
        """Cancel the consumers, give back unsettled messages, and delete the queues that end with the channel."""
        if self.closed:
            return
        connection, consumer = self.connection, self.consumer
        try:
            if connection is not None and connection.is_open:
                if consumer is not None:
                    connection.unwatch(consumer)
                    consumer.change((), 0)
                with contextlib.suppress(errors.Error):  # the client gives them back as soon as it can
                    if consumer is not None:
                        consumer.flush()
                    self.give_back()
                self.delete_passing()
        finally:
            self.consumer = None
            if consumer is not None:
                with contextlib.suppress(errors.Error):
                    consumer.close()
            super().close()

    # --- sending

    def basic_publish(self, message: Message, exchange: str, routing_key: str, **options: Any) -> None:
        self._inplace_augment_message(message, exchange, routing_key)
        if not exchange:
            self._put(routing_key, message)
            return
        try:
            reached = self.pgqueue.exchanges.publish(
                exchange, routing_key or "", data_of(message), conn=self._joined(), **self._options(message)
            )
        except errors.NoExchange:
            reached = 0  # as with other virtual transports
        if not reached and self.deadletter_queue:
            self._put(self.deadletter_queue, message)

    def encode_body(self, body: str | bytes, encoding: str | None = None) -> tuple[str | bytes, None]:
        return (text_of(body) if isinstance(body, bytes) else body), None

    def _put(self, queue: str, message: Message, **options: Any) -> None:
        self.pgqueue.queue(queue).put(data_of(message), conn=self._joined(), **self._options(message))

    def _options(self, message: Message) -> Any:
        return options_of(message, self._get_message_priority(message), self.hold_delayed)

    def _joined(self) -> Any:
        """The application's connection, if it is in a transaction that the message is to be part of."""
        assert self.connection is not None
        return self.connection.joined()
