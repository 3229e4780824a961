"""Channels: how their queues, exchanges and bindings are declared, and how they end.

An exclusive queue ends with the connection, which is a session. After a crash of the server another session takes its
place. A take would then make a plain queue that no exchange reaches, so the channel raises ConnectionLost, and its user
declares the queue again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments

from ... import errors
from .messages import queue_options

if TYPE_CHECKING:
    from ...types import Session

GRACE = 2.0  # seconds in which the session of a killed process has ended: half a second, and a sweep
AGAIN = 0.1  # seconds


class Declaring(virtual.Channel):
    """The part of a channel that declares."""

    connection: Any

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self._passing: set[str] = set()  # queues whose end is the channel's
        self._declared: dict[str, int | None] = {}  # queues that end with a session, and the session at that time

    @property
    def pgqueue(self) -> Session:
        assert self.connection is not None, "the channel is closed"
        session: Session = self.connection.pgqueue
        return session

    def check_session(self) -> None:
        """Raises ConnectionLost if the session has ended, and with it queues of the channel."""
        assert self.connection is not None
        session = self.connection.session
        if ended := [queue for queue, before in self._declared.items() if before != session]:
            raise errors.ConnectionLost(f"the session has ended, and with it {', '.join(ended)}: connect again")

    def delete_passing(self) -> None:
        """Delete the queues that end with the channel."""
        for queue in self._passing:
            with contextlib.suppress(errors.Error):  # it is gone, or its session ends it
                self.pgqueue.delete_queue(queue, if_unused=True)

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        type = type or "direct"
        exchange = exchange or f"amq.{type}"
        if passive:
            if exchange not in self.get_exchanges():
                raise ChannelError(f"NOT_FOUND - no exchange {exchange!r}", (50, 10), "Channel.exchange_declare", "404")
            return
        if type not in ("direct", "fanout", "topic"):
            raise ChannelError(
                f"pgqueue has no exchanges of the type {type!r}, for {exchange!r}: direct, fanout, topic"
            )
        self.pgqueue.exchanges.declare(exchange, type)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        with contextlib.suppress(errors.NoExchange):
            if not (if_unused and self.pgqueue.exchanges.bindings(exchange)):
                self.pgqueue.exchanges.delete(exchange)

    def _new_queue(self, queue: str, **options: Any) -> None:
        """Make the queue, unless there is one.

        A queue with `auto_delete` is deleted once its last consumer's channel closes, or its process has ended; an
        exclusive one with its connection, which alone consumes it.
        """
        given = queue_options(options.get("arguments"))
        if options.get("exclusive"):
            given["exclusive"] = True
        elif options.get("auto_delete"):
            given["auto_delete"] = True
        self._create(queue, given)
        if options.get("auto_delete"):
            self._passing.add(queue)
        if options.get("auto_delete") or options.get("exclusive"):
            assert self.connection is not None
            self._declared[queue] = self.connection.session

    def _create(self, queue: str, options: dict[str, Any]) -> None:
        """An exclusive queue of a killed process, which is started again, is still there for a moment."""
        until = time.monotonic() + GRACE
        while True:
            try:
                self.pgqueue.create_queue(queue, if_not_exists=True, **cast(Any, options))
            except errors.QueueExclusive:
                if time.monotonic() > until:
                    raise
                time.sleep(AGAIN)
            else:
                return

    def prepare_queue_arguments(self, arguments: dict[str, Any], **options: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments, **options)

    def _has_queue(self, queue: str, **options: Any) -> bool:
        try:
            self.pgqueue.queue(queue).info()
        except errors.NoQueue:
            return False
        return True

    def _size(self, queue: str) -> int:
        stats = self.pgqueue.queue(queue).stats()
        return stats["ready"] + stats["blocked"]  # with those that wait for a limit

    def _purge(self, queue: str) -> int:
        try:
            return self.pgqueue.queue(queue).truncate(states=["ready", "delayed", "blocked", "waiting"])
        except errors.NoQueue:
            return 0

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any) -> None:
        self._passing.discard(queue)
        self._declared.pop(queue, None)
        with contextlib.suppress(errors.NoQueue, errors.QueueInUse):
            self.pgqueue.delete_queue(queue, if_empty=if_empty, if_unused=if_unused, force=not if_unused)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        exchange = exchange or "amq.direct"
        try:
            self.pgqueue.exchanges.bind(queue, exchange, routing_key or "")
        except errors.NoExchange:
            self.pgqueue.exchanges.declare(exchange, "direct")
            self.pgqueue.exchanges.bind(queue, exchange, routing_key or "")

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        with contextlib.suppress(errors.NoQueue, errors.NoExchange):
            self.pgqueue.exchanges.unbind(queue, exchange or "amq.direct", routing_key or "")

    def get_exchanges(self) -> list[str]:
        return [known.name for known in self.pgqueue.exchanges.list()]

    def get_table(self, exchange: str) -> list[tuple[str, None, str]]:
        return [(known.key, None, known.queue) for known in self.pgqueue.exchanges.bindings(exchange)]

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        return ((known.queue, known.exchange, known.key) for known in self.pgqueue.exchanges.bindings())
