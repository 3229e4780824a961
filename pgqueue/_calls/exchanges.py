"""Calls of 6_families/exchanges.sql and wills.sql: exchanges, bindings, wills; and the deaths of a dead letter."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .._values import arguments
from .._values.record import Record
from .call import Call, call, nothing, query, scalar
from .options import TaskOptions

TYPES = ("fanout", "direct", "topic", "mqtt")


@dataclass(frozen=True, slots=True)
class Death(Record):
    """The deaths of a task in one queue for one reason: see client.exchanges.deaths().

    Attributes:
        queue: the queue's name.
        reason: rejected (buried), delivery_limit (its max_takes), expired (its ttl) or maxlen.
        count: the number of these deaths.
        time: the time of the last one.
    """

    queue: str
    reason: str
    count: int
    time: datetime


@dataclass(frozen=True, slots=True)
class ExchangeInfo(Record):
    """An exchange; see Exchanges.list().

    Attributes:
        name: its name.
        type: fanout, direct, topic or mqtt.
        durable: whether it outlives the client that declared it.
        bindings: how many there are.
        retained: how many messages it retains for queues that are bound later.
        created_at: when it was declared.
        unmatched: how many messages matched no binding, since then or since a crash of the server.
        unmatched_at: when the last of them was published; None: there was none.
    """

    name: str
    type: str
    durable: bool
    bindings: int
    retained: int
    created_at: datetime
    unmatched: int
    unmatched_at: datetime | None


@dataclass(frozen=True, slots=True)
class Binding(Record):
    """A binding; see Exchanges.bindings().

    Attributes:
        exchange: the exchange's name.
        key: the key, or the mask for keys, under which a task has to be published.
        queue: the name of the queue that gets the task.
    """

    exchange: str
    key: str
    queue: str


def list_exchanges() -> Call[list[ExchangeInfo]]:
    """By name."""
    return query(
        "SELECT name, type, durable, bindings, retained, created_at, unmatched, unmatched_at"
        " FROM pgqueue.exchanges ORDER BY name",
        (),
        lambda rows: [ExchangeInfo(*row) for row in rows],
    )


def list_bindings(exchange: str | None, queue: str | None) -> Call[list[Binding]]:
    """By exchange, key and queue. Of this exchange, to this queue; None: of all, to all."""
    of = None if exchange is None else _exchange(exchange)
    to = None if queue is None else arguments.queue_name(queue)
    return query(
        "SELECT exchange, key, queue FROM pgqueue.bindings"
        " WHERE (%s::pg_catalog.text IS NULL OR exchange OPERATOR(pg_catalog.=) %s::pg_catalog.text)"
        " AND (%s::pg_catalog.text IS NULL OR queue OPERATOR(pg_catalog.=) %s::pg_catalog.text) ORDER BY exchange,"
        " key, queue",
        (of, of, to, to),
        lambda rows: [Binding(*row) for row in rows],
    )


def declare_exchange(name: str, type: str, durable: bool, session: int | None = None) -> Call[None]:
    if type not in TYPES:
        raise ValueError(f"an exchange is {', '.join(TYPES[:-1])} or {TYPES[-1]}, not {type!r}")
    known, lasting = _named_exchange(name), arguments.flag("durable", durable)
    return call("declare_exchange", None, nothing, name=known, type=type, durable=lasting, session=session)


def delete_exchange(name: str) -> Call[None]:
    return call("delete_exchange", None, nothing, name=_named_exchange(name))


def bind(queue: str, exchange: str, key: str) -> Call[bool]:
    return call("bind", None, scalar, **_binding(queue, exchange, key))


def unbind(queue: str, exchange: str, key: str) -> Call[bool]:
    return call("unbind", None, scalar, **_binding(queue, exchange, key))


def publish(exchange: str, key: str, text: str, options: TaskOptions, retain: bool) -> Call[int]:
    return call(
        "publish",
        None,
        scalar,
        exchange=_exchange(exchange),
        key=arguments.key("key", key),
        data=text,
        priority=options.priority,
        delay=options.delay,
        ttr=options.ttr,
        ttl=options.ttl,
        retain=arguments.flag("retain", retain),
        run_at=options.run_at,
    )


def set_will(exchange: str, key: str, text: str, retain: bool, session: int | None = None) -> Call[None]:
    return call(
        "set_will",
        None,
        nothing,
        exchange=_exchange(exchange),
        key=arguments.key("key", key),
        data=text,
        retain=arguments.flag("retain", retain),
        session=session,
    )


def clear_will(session: int | None = None) -> Call[bool]:
    return call("clear_will", None, scalar, session=session)


def deaths(id: int) -> Call[list[Death]]:
    return query(
        "SELECT died_in, reason, count, died_at FROM pgqueue.dead_letters WHERE id OPERATOR(pg_catalog.=) %s::bigint",
        (id,),
        lambda rows: [Death(*row) for row in rows],
    )


def _binding(queue: str, exchange: str, key: str) -> dict[str, Any]:
    return {
        "queue": arguments.queue_name(queue),
        "exchange": _named_exchange(exchange),
        "key": arguments.key("key", key),
    }


def _exchange(value: object) -> str:
    """An exchange's name, also that of the default exchange."""
    return arguments.key("exchange", value)


def _named_exchange(value: object) -> str:
    if value == "":
        raise ValueError("the default exchange leads to each queue by its name: it is always there, without bindings")
    return _exchange(value)
