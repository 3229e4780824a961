"""Claims of messages, by SQL: made, looked at, and brought to their end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
from statements import column, put, rows, value


def claim(conn: psycopg.Connection, n: int = 10, ttl: str = "60 s", grace: str = "60 s", queue: str = "q") -> Any:
    """The claim's id and those of its messages; (None, []) if there was nothing."""
    found = rows(conn, "SELECT claim, id FROM pgqueue.claim_messages(%s, %s, %s, %s)", queue, n, ttl, grace)
    return (found[0][0] if found else None), [id for _, id in found]


def held(conn: psycopg.Connection, claim: int, queue: str = "q") -> list[int] | None:
    """What the claim holds; None if there is no such claim."""
    found = column(conn, "SELECT id FROM pgqueue.get_claim(%s, %s)", queue, claim)
    return [id for id in found if id is not None] if found else None


def problem(conn: psycopg.Connection, id: int, claim: int | None = None, queue: str = "q") -> str | None:
    return value(conn, "SELECT pgqueue.delete_message(%s, %s, %s)", queue, id, claim)


def age(conn: psycopg.Connection, claim: int, by: str = "1 h") -> None:
    """Let so much time pass for a claim and its messages."""
    conn.execute("UPDATE pgqueue.claim SET expires_at = expires_at - %s::interval WHERE token = %s", [by, claim])
    conn.execute("UPDATE pgqueue.take SET deadline = deadline - %s::interval WHERE token = %s", [by, claim])


def life(conn: psycopg.Connection, id: int) -> timedelta:
    """How long the message lives from now on."""
    return value(conn, "SELECT expires_at - clock_timestamp() FROM pgqueue.tasks WHERE id = %s", id)


def filled(conn: psycopg.Connection, n: int) -> list[int]:
    return [put(conn, "q") for _ in range(n)]
