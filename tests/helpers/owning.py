"""A victim: a role with a session and everything that can hang on one; and its rows, to compare before and after."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import sql
from statements import put, row, rows, take, value

TABLES = (
    *("session", "take", "task", "node", "will", "observer", "lock_holder", "lock_ticket"),
    *("claim", "taker", "exchange", "queue", "progress", "result"),
)


class Roles(NamedTuple):
    """Roles that grant_to has let in; `member` is a member of `victim`."""

    victim: str
    other: str
    member: str


@contextmanager
def three_roles(db: psycopg.Connection) -> Iterator[Roles]:
    roles = Roles(*(f"pgqueue_test_{uuid.uuid4().hex[:12]}" for _ in range(3)))
    for name in roles:
        db.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))
        db.execute("SELECT pgqueue.grant_to(%s)", [name])
    db.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(roles.victim), sql.Identifier(roles.member)))
    yield roles
    for name in reversed(roles):
        db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


@dataclass
class Victim:
    """`id` is taken in the queue q, under `token`; the queue mine is exclusive; `claim` has a message of messages."""

    conn: psycopg.Connection
    role: str
    session: int
    identity: str
    id: int
    token: int
    lock: int
    claim: int
    message: int

    @property
    def names(self) -> dict[str, Any]:
        """For the statements of a test."""
        return self.__dict__ | {"named": self.session}


def make_victim(connect: Callable[..., psycopg.Connection], role: str, grace: str = "1 h") -> Victim:
    conn, rival = (connect(options=f"-c role={role}") for _ in range(2))
    session = value(conn, "SELECT pgqueue.open_session(grace => %s, label => 'victim')", grace)
    identity = value(conn, "SELECT pgqueue.identify()")
    conn.execute(
        "SELECT pgqueue.create_queue('mine', exclusive => true), pgqueue.create_queue('leaving', auto_delete => true)"
    )
    for queue in ("q", "q", "mine", "messages", "leaving"):
        put(conn, queue)
    conn.execute("SELECT FROM pgqueue.take('leaving')")
    id, token = take(conn, "q")
    conn.execute("SELECT pgqueue.declare_exchange('temporary', durable => false)")
    conn.execute("SELECT pgqueue.set_will('', 'q', '\"farewell\"')")
    conn.execute("SELECT pgqueue.observe(pgqueue.queue_id('messages'))")
    conn.execute("SELECT pgqueue.create_node('/node'), pgqueue.create_node('/ephemeral', ephemeral => true)")
    conn.execute("SELECT pgqueue.ask_lock('held', false, 7, false)")
    rival.execute("SELECT pgqueue.try_lock('wanted')")
    conn.execute("SELECT pgqueue.ask_lock('wanted', false, 8, true)")
    claimed = row(conn, "SELECT claim, id FROM pgqueue.claim_messages('messages', ttl => '1 h')")
    assert claimed is not None
    return Victim(conn, role, session, str(identity), id, token, 7, *claimed)


def belongings(db: psycopg.Connection, *without: str) -> dict[str, list[str]]:
    """All rows of everything that a session can have."""
    return {
        table: sorted(str(found[0]) for found in rows(db, f"SELECT t::text FROM pgqueue.{table} t"))
        for table in TABLES
        if table not in without
    }


def forge(conn: psycopg.Connection, session: object) -> None:
    """Let the connection claim that this is its session."""
    conn.execute("SELECT set_config('pgqueue.session', %s, false)", [str(session)])


def refused(conn: psycopg.Connection, statement: str, *args: Any, sqlstate: str = "42501") -> str:
    """The message of the error; a call that waits for a lock fails with another one."""
    conn.execute("SET lock_timeout = '5 s'")
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(statement, args[0] if args and isinstance(args[0], dict) else args)
    assert caught.value.sqlstate == sqlstate, caught.value
    return str(caught.value.diag.message_primary)
