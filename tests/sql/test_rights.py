"""Who may use a queue: pgqueue.grant and revoke."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sampling import sampled
from statements import put, rows, value

Connect = Any


def fails(conn: psycopg.Connection, sqlstate: str, statement: str, *args: Any) -> str:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(statement, args)
    assert caught.value.sqlstate == sqlstate, caught.value
    return str(caught.value.diag.message_primary)


def granted_to(db: psycopg.Connection) -> list[str] | None:
    found: list[str] | None = value(db, "SELECT granted_to FROM pgqueue.queues WHERE name = 'q'")
    return found


@pytest.fixture
def roles(db: psycopg.Connection) -> Iterator[list[str]]:
    """Three roles that grant_to() has let in; the third is a member of the first."""
    names = [f"pgqueue_test_{uuid.uuid4().hex[:12]}" for _ in range(3)]
    for name in names:
        db.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))
        db.execute("SELECT pgqueue.grant_to(%s)", [name])
    db.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(names[0]), sql.Identifier(names[2])))
    yield names
    for name in reversed(names):
        db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


USES = [
    "put('q', '1')",
    "put_many('q', '[1]')",
    "take('q')",
    "take_many('{q}', 2)",
    "pop('q')",
    "take_id(1)",
    "kick('q')",
    "kick_task(3)",
    "bury(1)",
    "delete(1)",
    "delete_strict(2)",
    "release_all('q')",
    "truncate_queue('q')",
    "pause_queue('q', '1 s')",
    "drain_queue('q')",
    "drain_queues()",
    "alter_queue('q', '{}')",
]


@pytest.mark.parametrize("use", sampled(USES, keep=5))
@pytest.mark.parametrize("how", ["ROLE", "SESSION AUTHORIZATION"])
def test_a_restricted_queue_is_for_those_who_were_granted_it(
    db: psycopg.Connection, connect: Connect, roles: list[str], use: str, how: str
) -> None:
    granted, stranger, member = roles
    for _ in range(3):
        put(db, "q")
    db.execute("SELECT pgqueue.bury(3), pgqueue.grant('q', %s), pgqueue.restrict_queue('q')", [granted])
    before = rows(db, "SELECT t::text FROM pgqueue.task t ORDER BY id")
    user = connect()

    user.execute(f"SET {how} {stranger}")
    refusal = fails(user, "42501", f"SELECT pgqueue.{use}")
    assert ('queue "q"' in refusal) is ("q" in use.split("(")[1]), "the name is for callers that said it"
    assert rows(db, "SELECT t::text FROM pgqueue.task t ORDER BY id") == before

    for allowed in (granted, member, "DEFAULT" if how == "SESSION AUTHORIZATION" else "NONE"):
        user.execute(f"SET {how} {allowed}")
        with user.transaction(force_rollback=True):
            user.execute(f"SELECT pgqueue.{use}")


def test_a_revoked_grant_and_an_opened_queue(db: psycopg.Connection, connect: Connect, roles: list[str]) -> None:
    one, other, _ = roles
    user = connect(options=f"-c role={one}")
    put(db, "q")
    db.execute("SELECT pgqueue.grant('q', %s), pgqueue.grant('q', %s), pgqueue.grant('q', %s)", [one, other, one])
    assert granted_to(db) is None
    db.execute("SELECT pgqueue.restrict_queue('q')")
    assert granted_to(db) == sorted([one, other])
    put(user, "q")
    db.execute("SELECT pgqueue.revoke('q', %s)", [one])
    assert one in fails(user, "42501", "SELECT pgqueue.put('q', '1')")
    db.execute("SELECT pgqueue.revoke('q', %s)", [other])
    assert granted_to(db) == []
    fails(user, "42501", "SELECT pgqueue.put('q', '1')")
    db.execute("SELECT pgqueue.restrict_queue('q', false)")
    assert granted_to(db) is None
    put(user, "q")
    assert value(db, "SELECT guarded FROM pgqueue.queue") is False


def test_grant_lets_a_role_in(db: psycopg.Connection, connect: Connect) -> None:
    name = f"pgqueue_test_{uuid.uuid4().hex[:12]}"
    db.execute(f"CREATE ROLE {name}")
    try:
        db.execute("SELECT pgqueue.grant('q', %s)", [name])
        put(connect(options=f"-c role={name}"), "q")
    finally:
        db.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")
        db.execute("SELECT pgqueue.clean_up()")
    assert value(db, "SELECT count(*) FROM pgqueue.privilege") == 0


def test_who_was_granted_a_queue_cannot_grant_it(db: psycopg.Connection, connect: Connect, roles: list[str]) -> None:
    one, other, _ = roles
    db.execute("SELECT pgqueue.grant('q', %s), pgqueue.restrict_queue('q')", [one])
    user = connect(options=f"-c role={one}")
    fails(user, "42501", "SELECT pgqueue.grant('q', %s)", other)
    fails(user, "42501", "SELECT pgqueue.revoke('q', %s)", one)
    fails(user, "42501", "SELECT pgqueue.restrict_queue('q', false)")
    assert granted_to(db) == [one]


@pytest.mark.parametrize(
    "helper",
    [
        "_remove_tasks(1)",
        "_remove_queue(1)",
        "_remove_task(1, 1)",
        "_known_queue('q', 'manage')",
        "_check_right(1, 'put')",
    ],
)
def test_a_helper_called_directly_ends_at_the_tables(
    db: psycopg.Connection, connect: Connect, roles: list[str], helper: str
) -> None:
    put(db, "q")
    fails(connect(options=f"-c role={roles[0]}"), "42501", f"SELECT pgqueue.{helper}")
    assert value(db, "SELECT count(*) FROM pgqueue.tasks") == 1


@pytest.mark.parametrize("use", ["rename_queue('q', 'new')", "delete_queue('q')"])
def test_the_name_of_a_restricted_queue_stays_restricted(
    db: psycopg.Connection, connect: Connect, roles: list[str], use: str
) -> None:
    """Without the queue, the next put would create an open one of this name."""
    db.execute("SELECT pgqueue.grant('q', %s), pgqueue.restrict_queue('q')", [roles[0]])
    user = connect(options=f"-c role={roles[0]}")
    assert "only the owner of the schema" in fails(user, "42501", f"SELECT pgqueue.{use}")
    db.execute(f"SELECT pgqueue.{use}")  # type: ignore[arg-type]
    assert value(db, "SELECT count(*) FROM pgqueue.queues WHERE name = 'q'") == 0
