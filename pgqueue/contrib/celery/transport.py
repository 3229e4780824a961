"""The transport of kombu: connections, and waiting for messages without a thread and without polling.

A connection is a session of its own in the client that all connections to a URL share: its unacked messages, and its
exclusive queues, end with it. Each channel that consumes has a consumer with a descriptor. The transport's selector
watches these; an event loop, such as that of Celery's worker, watches the descriptor of the selector. So a worker
sleeps until a message is ready.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
from kombu.transport import virtual
from kombu.utils.imports import symbol_by_name

from ... import Client, Consumer, errors
from ..._values.version import VERSION
from . import urls
from .channels import Channel
from .clients import CLIENTS

if TYPE_CHECKING:
    from ...types import Session

IDLE = 0.1  # seconds of a wait without a consumer


class Transport(virtual.Transport):
    """kombu's transport for URLs such as pgqueue://user:password@host:port/database; see urls.py.

    Options, for `Connection(transport_options=...)` and Celery's `broker_transport_options`:

        connection: a function, or its name as "module:function": returns the application's connection, or session of
            SQLAlchemy, whose transaction the messages that are sent now are part of; None: they are sent at once.
        hold_delayed: whether workers hold the messages that are for later, as with other brokers; default False: such a
            message is a delayed task, and reaches a worker when it is due.
        deadletter_queue: the queue of messages that no binding matches.

    And those of urls.URL_OPTIONS.
    """

    Channel = Channel
    can_parse_url = True
    default_port = 5432
    driver_type = driver_name = "pgqueue"
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    connection_errors = (
        *virtual.Transport.connection_errors,
        *(*errors.CONNECTION_ERRORS, errors.ClosedError, psycopg.OperationalError),
    )
    channel_errors = (
        *virtual.Transport.channel_errors,
        *(errors.NoQueue, errors.QueueExclusive, errors.ExchangeExists, errors.PutRefused),
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self._client: Client | None = None
        self._session: Session | None = None
        self._selector: selectors.BaseSelector | None = None
        self._loop: Any = None
        given = client.transport_options.get("connection")
        self._connection: Callable[[], Any] = symbol_by_name(given) if isinstance(given, str) else given or _none

    @property
    def pgqueue(self) -> Session:
        """The connection's session in the client of its database. Raises ClosedError if the connection is closed."""
        if self._session is None:
            raise errors.ClosedError("the connection to pgqueue is closed")
        return self._session

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @property
    def session(self) -> int | None:
        """The session in which queues end with this process. It is another one after the old one was given up."""
        return self.pgqueue.shell.core.fence(None).session

    def joined(self) -> Any:
        return self._connection()

    def driver_version(self) -> str:
        return VERSION

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        url = urls.of_connection(self.client)
        return url if include_password else urls.shown(url)

    # --- connections

    def establish_connection(self) -> Any:
        self._client = CLIENTS.borrow(urls.of_connection(self.client), self.client.transport_options)
        try:
            self._session = self._client.session()
            self._client.shell.core.listener(0)  # one attempt: kombu repeats it, or tries another server
            self._selector = selectors.DefaultSelector()
            return super().establish_connection()
        except BaseException:
            self._end()
            raise

    def close_connection(self, connection: Any) -> None:
        try:
            super().close_connection(connection)
        finally:
            self._end()

    def verify_connection(self, connection: Any) -> bool:
        return self.is_open

    def _end(self) -> None:
        selector, self._selector = self._selector, None
        if selector is not None:
            if self._loop is not None:
                self._loop.remove_reader(_descriptor(selector))
                self._loop = None
            selector.close()
        client, self._client = self._client, None
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(errors.Error):  # the client's end ends it too
                session.close()
        if client is not None:
            CLIENTS.give_back(client)

    # --- waiting

    def watch(self, consumer: Consumer) -> None:
        """Wait for this consumer too."""
        if self._selector is not None:
            self._selector.register(consumer, selectors.EVENT_READ)

    def unwatch(self, consumer: Consumer) -> None:
        if self._selector is not None and consumer.fileno() >= 0:
            self._selector.unregister(consumer)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver the messages that are ready, or wait for one. Raises TimeoutError after `timeout` seconds."""
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while not self._deliver_all():
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("no message came")
            if self._selector is None:
                raise errors.ClosedError("the connection to pgqueue is closed")
            wait = left if self._selector.get_map() else min(left, IDLE)
            self._selector.select(None if wait == float("inf") else wait)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages from an event loop of kombu, such as that of Celery's worker."""
        assert self._selector is not None
        self._loop = loop
        loop.add_reader(_descriptor(self._selector), self._deliver_all)

    def _deliver_all(self) -> bool:
        delivered = [channel.deliver() for channel in list(self.channels)]
        return any(delivered)


def _descriptor(selector: Any) -> int:
    """Of epoll and kqueue, which the systems that pgqueue runs on have."""
    descriptor: int = selector.fileno()
    return descriptor


def _none() -> None:
    return None
