"""The statements of the rate limiter backend, over the public functions of SQL: status by key."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from ..._calls.call import Call, Rows, query

LOWEST, HIGHEST = -(2**63), 2**63 - 1  # of a bigint

_COUNTER = "coalesce(pgqueue.get_status(key => {})::bigint, 0)"
_TTL = "ttl => pg_catalog.make_interval(secs => %s::float)"


def lock(names: Iterable[str]) -> Call[bool]:
    """Lock names until the end of the transaction, whose commit need not be durable."""
    return query(
        "SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_advisory_xact_lock(number)"
        " FROM pg_catalog.unnest(%s::bigint[]) number",
        (sorted({_number(name) for name in names}),),
        bool,
    )


def add(key: str, value: int, ttl: float) -> Call[bool]:
    """Set a counter that does not exist."""
    return query(
        "SELECT pgqueue.set_status(key => %s::pg_catalog.text, value => pg_catalog.to_jsonb(%s::bigint),"
        f" {_TTL}, if_absent => true)",
        (key, value, ttl),
        _is_set,
    )


def change(
    key: str,
    amount: int,
    ttl: float,
    *,
    lowest: int = LOWEST,
    highest: int = HIGHEST,
    summed: Iterable[str] = (),
) -> Call[bool]:
    """Add to a counter unless it would leave its bounds, or the sum of counters would be over the highest value."""
    return query(
        f"SELECT pgqueue.set_status(key => new.key, value => pg_catalog.to_jsonb(new.value), {_TTL})"
        f" FROM (SELECT asked.key, {_COUNTER.format('asked.key')} OPERATOR(pg_catalog.+) %s::bigint AS value,"
        f" %s::bigint OPERATOR(pg_catalog.+) (SELECT coalesce(pg_catalog.sum({_COUNTER.format('other')}), 0)"
        " FROM pg_catalog.unnest(%s::pg_catalog.text[]) other) AS total"
        " FROM (SELECT %s::pg_catalog.text AS key) asked OFFSET 0) new"
        " WHERE new.value OPERATOR(pg_catalog.>=) %s::bigint AND new.value OPERATOR(pg_catalog.<=) %s::bigint"
        " AND new.total OPERATOR(pg_catalog.<=) %s::bigint",
        (ttl, amount, amount, list(summed), key, lowest, highest, highest),
        _is_set,
    )


def _is_set(rows: Rows) -> bool:
    return bool(rows) and bool(rows[0][0])


def _number(name: str) -> int:
    """The advisory lock of a name: a bigint, as that of a lock by name, with a digest of its own."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8, person=b"pgqueue-limit").digest(), signed=True)
