"""Exchanges and bindings as in AMQP, retained messages and last wills as in MQTT. Both shells."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from . import waits
from .base import mirrors
from .borrowed import AsyncConn, Conn
from .calls import Call, Options
from .calls import routes as calls
from .calls.routes import Death
from .errors import Unroutable
from .shell import AsyncShell, LoopSignal, Shell
from .task import TaskLike, named

T = TypeVar("T")


class Routing(Shell):
    def declare_exchange(self, name: str, type: str = "direct", *, durable: bool = True) -> None:
        """Make an exchange, unless it is there already. As AMQP's exchange.declare.

        Args:
            name: 1 to 255 bytes. The one named "" is always there: it leads to the queue whose name is the key.
            type: `direct` (the keys are equal), `fanout` (the key is ignored), `topic` (words between dots; in a
                binding `*` is one word and `#` any number of them) or `mqtt` (levels between slashes; in a binding
                `+` is one level, and `#` at the end the level above and all that is below).
            durable: False for one that ends with this client.

        Raises:
            ExchangeExists: it is there as another type, or another client's.
            ValueError: an argument cannot be.
        """
        call = calls.declare_exchange(name, type, durable)
        return self._run(call) if durable else self._on_session(call)

    def delete_exchange(self, name: str) -> None:
        """Remove an exchange with its bindings and retained messages. Raises NoExchange."""
        self._run(calls.delete_exchange(name))

    def bind(self, queue: str, exchange: str, key: str = "") -> bool:
        """Let a queue have what is published to an exchange under a matching key. As AMQP's queue.bind.

        A queue gets a task once, however many of its bindings match. What is retained at the exchange under a key
        that matches is put into the queue at once.

        Args:
            queue, exchange: their names; both have to be there.
            key: what to match, up to 255 bytes; a mask with an exchange of the type `topic` or `mqtt`.

        Returns:
            False if it was bound so already.

        Raises:
            NoQueue, NoExchange: it is not there.
            ValueError: an argument cannot be.
        """
        return self._run(calls.bind(queue, exchange, key))

    def unbind(self, queue: str, exchange: str, key: str = "") -> bool:
        """Undo a bind. Returns False if there was none; raises NoQueue, NoExchange, ValueError as bind."""
        return self._run(calls.unbind(queue, exchange, key))

    def publish(
        self,
        exchange: str,
        key: str,
        data: Any,
        *,
        mandatory: bool = False,
        priority: int | None = None,
        delay: float | None = None,
        ttr: float | None = None,
        ttl: float | None = None,
        retain: bool = False,
        conn: Conn | None = None,
    ) -> int:
        """Put a task into every queue that is bound with a matching key. As AMQP's basic.publish.

        Args:
            exchange: its name, or "" for the queue that is named `key`.
            key: up to 255 bytes; without wildcards.
            data: anything that JSON can hold.
            mandatory: raise Unroutable when no queue is bound so; else it is dropped, and 0 returned.
            priority, delay, ttr, ttl: as for Queue.put; default each queue's.
            retain: keep it as the last one of its key, for queues that are bound later; None as data ends that.
            conn: a connection of the caller's, to publish in its transaction. Unroutable does not abort it.

        Returns:
            How many queues it went to.

        Raises:
            Unroutable: it is mandatory and went nowhere.
            NoExchange: there is no such exchange.
            BadData, ValueError: an argument cannot be.
            ConnectionLost: whether it was published is unknown.
        """
        call = calls.publish(exchange, key, self._encode(data), Options(priority, delay, ttr, ttl), retain)
        return _went_to(self._run(call, conn), exchange, key, mandatory)

    def set_will(self, exchange: str, key: str, data: Any, *, retain: bool = False) -> None:
        """What to publish if this client dies, and never if it is closed. As MQTT's will.

        There is one a client; a second one replaces it. It goes out when the others take the client for dead, after
        its session_grace. A crash of the server ends it, as it ends the session.

        Args:
            exchange, key, data, retain: as for publish.

        Raises:
            NoExchange: there is no such exchange.
            BadData, ValueError: an argument cannot be.
        """
        self._on_session(calls.set_will(exchange, key, self._encode(data), retain))

    def clear_will(self) -> bool:
        """Take the will back. Returns False if there was none."""
        return self._on_session(calls.clear_will())

    def deaths(self, task: TaskLike) -> list[Death]:
        """Where a dead letter died before, the last death first; empty if it never did. As AMQP's x-death.

        Raises:
            TaskIdRequired: the id is not an int or a string of digits.
        """
        return self._run(calls.deaths(named(task)[0]))

    def _on_session(self, call: Call[T]) -> T:
        """On the listener's connection: what it declares lasts as long as the session."""
        return self._drive(waits.ask(self._listener(), threading.Event, call))


@mirrors(Routing)
class AsyncRouting(AsyncShell):
    async def declare_exchange(self, name: str, type: str = "direct", *, durable: bool = True) -> None:
        call = calls.declare_exchange(name, type, durable)
        return await (self._run(call) if durable else self._on_session(call))

    async def delete_exchange(self, name: str) -> None:
        await self._run(calls.delete_exchange(name))

    async def bind(self, queue: str, exchange: str, key: str = "") -> bool:
        return await self._run(calls.bind(queue, exchange, key))

    async def unbind(self, queue: str, exchange: str, key: str = "") -> bool:
        return await self._run(calls.unbind(queue, exchange, key))

    async def publish(
        self,
        exchange: str,
        key: str,
        data: Any,
        *,
        mandatory: bool = False,
        priority: int | None = None,
        delay: float | None = None,
        ttr: float | None = None,
        ttl: float | None = None,
        retain: bool = False,
        conn: AsyncConn | None = None,
    ) -> int:
        call = calls.publish(exchange, key, self._encode(data), Options(priority, delay, ttr, ttl), retain)
        return _went_to(await self._run(call, conn), exchange, key, mandatory)

    async def set_will(self, exchange: str, key: str, data: Any, *, retain: bool = False) -> None:
        await self._on_session(calls.set_will(exchange, key, self._encode(data), retain))

    async def clear_will(self) -> bool:
        return await self._on_session(calls.clear_will())

    async def deaths(self, task: TaskLike) -> list[Death]:
        return await self._run(calls.deaths(named(task)[0]))

    async def _on_session(self, call: Call[T]) -> T:
        return await self._drive(waits.ask(await self._listener(), LoopSignal, call))


def _went_to(queues: int, exchange: str, key: str, mandatory: bool) -> int:
    if mandatory and queues == 0:
        raise Unroutable(f"no queue is bound to exchange {exchange!r} with a key that matches {key!r}")
    return queues
