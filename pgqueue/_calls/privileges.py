"""Calls of 2_base/rights.sql and 8_grants/grants.sql: the privileges of roles on queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from .._values import arguments
from .._values.record import Record
from .call import Call, call, nothing, query

Verb = Literal["put", "take", "look", "manage", "share", "monitor"]
VERBS: tuple[Verb, ...] = get_args(Verb)
LONGEST_ROLE = 63  # bytes: PostgreSQL cuts a longer name, and would find another role


@dataclass(frozen=True, slots=True)
class Privilege(Record):
    """A privilege of a role; see Privileges.list(). Either `queue` or `pattern` is None.

    Attributes:
        role: the role; its members that inherit have the privilege too.
        verb: put, take (and settle), look, manage, share (objects that belong to no queue) or monitor (no data).
        queue: the queue that the role was granted.
        pattern: the names of the queues that the role was granted, where `*` matches any characters.
    """

    role: str
    verb: Verb
    queue: str | None
    pattern: str | None


def list_privileges(role: str | None, queue: str | None) -> Call[list[Privilege]]:
    """By role, queue, pattern and verb. `queue`: only those of this very queue."""
    named = None if role is None else _role(role)
    of = None if queue is None else arguments.queue_name(queue)
    return query(
        "SELECT role, verb, queue, pattern FROM pgqueue.privileges"
        " WHERE (%s::pg_catalog.text IS NULL OR role OPERATOR(pg_catalog.=) %s::pg_catalog.text)"
        " AND (%s::pg_catalog.text IS NULL OR queue OPERATOR(pg_catalog.=) %s::pg_catalog.text)"
        " ORDER BY role, queue NULLS FIRST, pattern, pg_catalog.array_position(%s::pg_catalog.text[], verb)",
        (named, named, of, of, [*VERBS]),
        lambda rows: [Privilege(*row) for row in rows],
    )


def grant_to(role: str, verbs: Sequence[Verb] | None, pattern: str) -> Call[None]:
    return call("grant_to", None, nothing, role=_role(role), verbs=_verbs(verbs), pattern=_pattern(pattern))


def revoke_from(role: str, verbs: Sequence[Verb] | None, pattern: str) -> Call[None]:
    return call("revoke_from", None, nothing, role=_role(role), verbs=_verbs(verbs), pattern=_pattern(pattern))


def grant(queue: str, role: str, verbs: Sequence[Verb]) -> Call[None]:
    name = arguments.queue_name(queue)
    return call("grant", None, nothing, queue=name, role=_role(role), verbs=_verbs(verbs))


def revoke(queue: str, role: str, verbs: Sequence[Verb]) -> Call[None]:
    name = arguments.queue_name(queue)
    return call("revoke", None, nothing, queue=name, role=_role(role), verbs=_verbs(verbs))


def restrict_queue(queue: str, on: bool) -> Call[None]:
    name = arguments.queue_name(queue)
    return call("restrict_queue", None, nothing, queue=name, enabled=arguments.flag("on", on))


def _role(value: object) -> str:
    """A role's name as PostgreSQL stores it, without quotes."""
    if not isinstance(value, str):
        raise ValueError(f"a role's name is a string, not {value!r}")
    if not 1 <= len(arguments.text(value, "a role's name").encode()) <= LONGEST_ROLE:
        raise ValueError(f"a role's name has 1 to {LONGEST_ROLE} bytes, this one has {len(value.encode())}")
    return value


def _pattern(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a pattern is a string, not {value!r}")
    return arguments.text(value, "a pattern")  # the server checks its length


def _verbs(value: Sequence[Verb] | None) -> list[Verb] | None:
    """Verbs as a list. None: those of the SQL function."""
    if value is None:
        return None
    if isinstance(value, str):
        raise ValueError(f"verbs is a list of verbs, not the string {value!r}")
    for verb in value:
        if verb not in VERBS:
            raise ValueError(f"a verb is one of {', '.join(VERBS)}, not {verb!r}")
    return cast("list[Verb]", [*value])
