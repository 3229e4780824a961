"""The statements of the result backend, over the public functions and views of SQL: status by key."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..._calls.call import Call, nothing, query
from ..._values import data

# A status of the result of a task: {"state": "SUCCESS", "text": "..."}; bytes, if the serializer writes them.


class Set(NamedTuple):
    """A status to set.

    Attributes:
        key: of the status.
        value: as the text of JSON.
        ttl: seconds; None: permanent.
    """

    key: str
    value: str
    ttl: float | None


_GIVEN = "%s::pg_catalog.text, %s::pg_catalog.jsonb, pg_catalog.make_interval(secs => %s::float)"


def store(result: Set, part: Set | None = None) -> Call[None]:
    """Set the status of a task, and of its part in a chord if there is one, in one transaction.

    The status of a task that has succeeded stays: a lost run that fails later does not overwrite it.
    """
    asked = f"(SELECT {_GIVEN} OFFSET 0) asked(key, value, ttl)"
    stored = (
        "CASE WHEN pg_catalog.jsonb_extract_path_text(pgqueue.get_status(key => asked.key), 'state')"
        " OPERATOR(pg_catalog.=) 'SUCCESS' THEN false"
        " ELSE pgqueue.set_status(key => asked.key, value => asked.value, ttl => asked.ttl) END"
    )
    if part is None:
        return query(f"SELECT {stored} FROM {asked}", result, nothing)
    return query(f"SELECT {stored}, pgqueue.set_status({_GIVEN}) FROM {asked}", (*part, *result), nothing)


def set_status(status: Set) -> Call[None]:
    """Set a status whatever it was."""
    return query(f"SELECT pgqueue.set_status({_GIVEN})", status, nothing)


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


def chord(added: str, claim: str, parts: str, size: str) -> Call[Chord]:
    """How far a chord is, by the prefixes of its added members and its parts, and the keys of its claim and size.

    The four are given in the order of the keys, so one scan of an index reads all of them, in one snapshot.
    """
    return query(
        "SELECT pg_catalog.max(s.value::pg_catalog.text) FILTER (WHERE s.key OPERATOR(pg_catalog.=) asked.size),"
        " pg_catalog.max(s.value::pg_catalog.text) FILTER (WHERE s.key OPERATOR(pg_catalog.=) asked.claim),"
        " pg_catalog.count(*) FILTER (WHERE s.key OPERATOR(pg_catalog.<) asked.claim),"
        " pg_catalog.count(*) FILTER (WHERE s.key OPERATOR(pg_catalog.>) asked.parts"
        " AND s.key OPERATOR(pg_catalog.<) asked.size)"
        " FROM (SELECT %s::pg_catalog.text AS added, %s::pg_catalog.text AS claim, %s::pg_catalog.text AS parts,"
        " %s::pg_catalog.text AS size) asked,"
        " pgqueue.statuses s"
        " WHERE s.key OPERATOR(pg_catalog.>) asked.added AND s.key OPERATOR(pg_catalog.<=) asked.size",
        (added, claim, parts, size),
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
