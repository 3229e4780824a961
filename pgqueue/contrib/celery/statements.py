"""The statements of the result backend, over the public functions and views of SQL: status by key."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..._calls.call import Call, nothing, query
from ..._values import data

# A status of the result of a task: {"state": "SUCCESS", "text": "..."}; bytes, if the serializer writes them.


def store(key: str, text: str, ttl: float | None) -> Call[None]:
    """Set the status of a task, unless it has succeeded: a lost run that fails later does not overwrite that."""
    return query(
        "SELECT pgqueue.set_status(key => asked.key, value => asked.value,"
        " ttl => pg_catalog.make_interval(secs => %s::float))"
        " FROM (SELECT %s::pg_catalog.text AS key, %s::pg_catalog.jsonb AS value OFFSET 0) asked"
        " WHERE coalesce(pg_catalog.jsonb_extract_path_text(pgqueue.get_status(key => asked.key), 'state')"
        " OPERATOR(pg_catalog.<>) 'SUCCESS', true)",
        (ttl, key, text),
        nothing,
    )


class Chord(NamedTuple):
    """A chord while its header runs.

    Attributes:
        size: how many members it had when it was put; None: not known yet, or it is over.
        added: how many members were added by members that ran.
        parts: how many members have ended.
        claim: the member that publishes, or has published, the body.
    """

    size: int | None
    added: int
    parts: int
    claim: dict[str, Any] | None

    @property
    def is_complete(self) -> bool:
        return self.size is not None and self.parts >= self.size + self.added


_COUNT = (
    "(SELECT pg_catalog.count(*) FROM pgqueue.statuses s WHERE s.key OPERATOR(pg_catalog.>) %s::pg_catalog.text"
    " AND s.key OPERATOR(pg_catalog.<) %s::pg_catalog.text)"
)


def chord(size: str, claim: str, added: str, parts: str) -> Call[Chord]:
    """How far a chord is, by the keys of its size and claim, and the prefixes of its added members and its parts."""
    return query(
        "SELECT pgqueue.get_status(key => %s::pg_catalog.text)::pg_catalog.text,"
        f" pgqueue.get_status(key => %s::pg_catalog.text)::pg_catalog.text, {_COUNT}, {_COUNT}",
        (size, claim, *between(added), *between(parts)),
        lambda rows: Chord(data.decode_if_any(rows[0][0]), rows[0][2], rows[0][3], data.decode_if_any(rows[0][1])),
    )


def values(prefix: str) -> Call[list[Any]]:
    """The statuses of all keys with the prefix, by their keys."""
    return query(
        "SELECT s.value::pg_catalog.text FROM pgqueue.statuses s WHERE s.key OPERATOR(pg_catalog.>) %s::pg_catalog.text"
        " AND s.key OPERATOR(pg_catalog.<) %s::pg_catalog.text ORDER BY s.key",
        between(prefix),
        lambda rows: [data.decode(row[0]) for row in rows],
    )


def delete_all(prefix: str) -> Call[None]:
    """Remove the statuses of all keys with the prefix."""
    return query(
        "SELECT pgqueue.delete_status(key => s.key) FROM pgqueue.statuses s"
        " WHERE s.key OPERATOR(pg_catalog.>) %s::pg_catalog.text"
        " AND s.key OPERATOR(pg_catalog.<) %s::pg_catalog.text",
        between(prefix),
        nothing,
    )


def expire(key: str, ttl: float | None) -> Call[None]:
    """Set the ttl of a key's status, from now on, if there is one."""
    return query(
        "SELECT pgqueue.set_status(key => s.key, value => s.value, ttl => pg_catalog.make_interval(secs => %s::float))"
        " FROM pgqueue.statuses s WHERE s.key OPERATOR(pg_catalog.=) %s::pg_catalog.text",
        (ttl, key),
        nothing,
    )


def between(prefix: str) -> tuple[str, str]:
    """The bounds of the keys that begin with the prefix, which ends in an ASCII character: keys are in byte order."""
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)
