"""Exchanges and bindings as in AMQP, retained messages and last wills as in MQTT."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Any

from .._calls import exchanges as calls
from .._calls.exchanges import Binding, Death, ExchangeInfo
from .._calls.options import TaskOptions
from .._engine.awaiting import Conn
from .._records.task import TaskLike, named
from .._values.arguments import Seconds
from ..errors import Unroutable
from .shell import AsyncShell


class AsyncExchanges:
    """Exchanges, as `client.exchanges`: tasks are published to them, and their bindings lead to queues."""

    def __init__(self, shell: AsyncShell) -> None:
        self._shell = shell

    async def declare(self, name: str, type: str = "direct", *, durable: bool = True) -> None:
        """Make an exchange, unless it exists already. As AMQP's exchange.declare.

        Args:
            name: 1 to 255 bytes. The exchange named "" always exists: it leads to the queue that the key names.
            type: `direct` (the keys are equal), `fanout` (the key is ignored), `topic` (words between dots; in a
                binding `*` is one word and `#` any number of them) or `mqtt` (levels between slashes; in a binding
                `+` is one level, and `#` at the end the level above and all that is below).
            durable: False for an exchange that ends with this client.

        Raises:
            ExchangeExists: it exists as another type, or as another client's.
            ValueError: an argument is not valid.
        """
        if durable:
            return await self._shell.run(calls.declare_exchange(name, type, durable))
        return await self._shell.for_session(lambda own: calls.declare_exchange(name, type, durable, own), None)

    async def delete(self, name: str) -> None:
        """Remove an exchange with its bindings and retained messages. Raises NoExchange."""
        await self._shell.run(calls.delete_exchange(name))

    async def list(self) -> list[ExchangeInfo]:
        """Every exchange, by name. The default exchange, which always exists, is not among them."""
        return await self._shell.run(calls.list_exchanges())

    async def bind(self, queue: str, exchange: str, key: str = "") -> bool:
        """Let a queue have the tasks that are published to an exchange under a matching key. As AMQP's queue.bind.

        A queue gets a task once, however many of its bindings match. A message that the exchange retains under a
        matching key is put into the queue at once.

        Args:
            queue, exchange: their names; both have to exist.
            key: the key to match, up to 255 bytes; a mask with an exchange of the type `topic` or `mqtt`.

        Returns:
            False if it was bound so already.

        Raises:
            NoQueue, NoExchange: it does not exist.
            ValueError: an argument is not valid.
        """
        return await self._shell.run(calls.bind(queue, exchange, key))

    async def unbind(self, queue: str, exchange: str, key: str = "") -> bool:
        """Undo a bind. Returns False if there was none; raises NoQueue, NoExchange, ValueError as bind."""
        return await self._shell.run(calls.unbind(queue, exchange, key))

    async def bindings(self, exchange: str | None = None, queue: str | None = None) -> builtins.list[Binding]:
        """The bindings of queues to exchanges, sorted by exchange, key and queue.

        Args:
            exchange: only the bindings of this exchange; None for those of every exchange. An exchange that does not
                exist has none.
            queue: only the bindings of this queue; None for those of every queue.

        Raises:
            ValueError: a name is not valid.
        """
        return await self._shell.run(calls.list_bindings(exchange, queue))

    async def publish(
        self,
        exchange: str,
        key: str,
        data: Any,
        *,
        mandatory: bool = False,
        priority: int | None = None,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        ttr: Seconds | None = None,
        ttl: Seconds | None = None,
        retain: bool = False,
        conn: Conn | None = None,
    ) -> int:
        """Put a task into every queue that is bound with a matching key. As AMQP's basic.publish.

        Args:
            exchange: its name, or "" for the queue that is named `key`.
            key: up to 255 bytes; without wildcards.
            data: anything that JSON can hold, and bytes.
            mandatory: raise Unroutable when no queue is bound with a matching key; else the task is dropped, and 0
                returned.
            priority, delay, run_at, ttr, ttl: as for Queue.put; default each queue's.
            retain: keep it as the last message of its key, for queues that are bound later; None as data ends that.
            conn: the caller's connection, to publish in its transaction. Unroutable does not abort it.

        Returns:
            The number of queues into which it was put.

        Raises:
            Unroutable: mandatory is set, and no queue is bound with a matching key.
            NoExchange: there is no such exchange.
            BadData, ValueError: an argument is not valid.
            ConnectionLost: whether it was published is unknown.
        """
        options = TaskOptions(priority, delay, ttr, ttl, run_at)
        queues = await self._shell.run(calls.publish(exchange, key, self._shell.encode(data), options, retain), conn)
        if mandatory and queues == 0:
            raise Unroutable(f"no queue is bound to exchange {exchange!r} with a key that matches {key!r}")
        return queues

    async def set_will(self, exchange: str, key: str, data: Any, *, retain: bool = False) -> None:
        """Publish this if the client dies, and never if it is closed. As MQTT's will.

        A client has one will; a second one replaces it. It is published when the other clients presume this one dead,
        after its session_grace. A crash of the server ends it, as it ends the session.

        Args:
            exchange, key, data, retain: as for publish.

        Raises:
            NoExchange: there is no such exchange.
            BadData, ValueError: an argument is not valid.
        """
        text = self._shell.encode(data)
        await self._shell.for_session(lambda own: calls.set_will(exchange, key, text, retain, own), None)

    async def clear_will(self) -> bool:
        """Remove the will. Returns False if there was none."""
        return await self._shell.for_session(calls.clear_will, None)

    async def deaths(self, task: TaskLike) -> builtins.list[Death]:
        """The deaths of a dead letter, the last one first; empty for a task that never died. As AMQP's x-death.

        Raises:
            TaskIdRequired: the id is not an int or a string of digits.
        """
        return await self._shell.run(calls.deaths(named(task)[0]))
