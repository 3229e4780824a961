"""Grants and revokes: each undoes exactly the other, patterns are literal, and the mark `guarded` follows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from eventually import eventually
from psycopg import sql
from roles import Roles, made
from sampling import sampled
from statements import column, put, rows, value

pytestmark = pytest.mark.once  # rules of our own, the same on every server

Connect = Any
VERBS = ("put", "take", "look", "manage", "share", "monitor")
OF_A_QUEUE = ("put", "take", "look", "manage", "monitor")

#: All that a grant may change.
RIGHTS = """
    SELECT 'function', p.oid::regprocedure::text, array_to_string(p.proacl, ' ') FROM pg_proc p
     WHERE p.pronamespace = 'pgqueue'::regnamespace
     UNION ALL
    SELECT 'relation', c.oid::regclass::text, array_to_string(c.relacl, ' ') FROM pg_class c
     WHERE c.relnamespace = 'pgqueue'::regnamespace
     UNION ALL
    SELECT 'schema', n.nspname, array_to_string(n.nspacl, ' ') FROM pg_namespace n WHERE n.nspname = 'pgqueue'
     UNION ALL
    SELECT 'privilege', p.role::regrole::text, concat_ws(' ', p.verb, p.queue_id, p.pattern)
      FROM pgqueue.privilege p
     UNION ALL
    SELECT 'queue', q.name, concat_ws(' ', q.restricted, q.guarded) FROM pgqueue.queue q
     ORDER BY 1, 2, 3"""

#: A grant with its arguments, and the revoke with the same ones.
PAIRS = [
    *((("grant_to", "revoke_from"), (list(verbs), "*")) for verbs in [VERBS[:5], *((verb,) for verb in VERBS)]),
    *((("grant_to", "revoke_from"), ([verb], "a*")) for verb in OF_A_QUEUE),
    *((("grant", "revoke"), ([verb],)) for verb in OF_A_QUEUE),
    (("grant_to", "revoke_from"), ()),
    (("grant_to", "revoke_from"), (None, "a*")),
    (("grant", "revoke"), ()),
    (("grant_monitor", "revoke_monitor"), ()),
]


@pytest.fixture
def roles(dsn: str, db: psycopg.Connection) -> Iterator[Roles]:
    with made(dsn, db) as roles:
        yield roles


def call(db: psycopg.Connection, function: str, role: str, arguments: tuple[Any, ...]) -> None:
    """A grant or a revoke; one of a queue is of the queue `q`."""
    given = ["q"] if function in ("grant", "revoke") else []
    query = sql.SQL("SELECT pgqueue.{}({}quote_ident(%s)::regrole{})").format(
        sql.Identifier(function), sql.SQL("%s, " * len(given)), sql.SQL(", %s" * len(arguments))
    )
    db.execute(query, [*given, role, *arguments])


def fails(conn: psycopg.Connection, sqlstate: str, statement: str, *args: Any) -> str:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(statement, args)
    assert caught.value.sqlstate == sqlstate, caught.value
    return str(caught.value.diag.message_primary)


def guarded(db: psycopg.Connection) -> list[bool]:
    return column(db, "SELECT guarded FROM pgqueue.queue ORDER BY name")


# --- a revoke undoes a grant


@pytest.mark.parametrize(("names", "arguments"), sampled(PAIRS, keep=7), ids=str)
def test_a_revoke_undoes_its_grant(
    db: psycopg.Connection, roles: Roles, names: tuple[str, str], arguments: tuple[Any, ...]
) -> None:
    """Twice: the first grant to any role also writes down the owner's own rights."""
    put(db, "q")
    call(db, "grant_to", roles(), ())
    role = roles()
    before = rows(db, RIGHTS)
    for _ in range(2):
        call(db, names[0], role, arguments)
        granted = rows(db, RIGHTS)
        assert granted != before
        call(db, names[0], role, arguments)
        assert rows(db, RIGHTS) == granted
        call(db, names[1], role, arguments)
        assert rows(db, RIGHTS) == before
    call(db, names[1], role, arguments)
    assert rows(db, RIGHTS) == before


NESTED = [
    (("grant_to", "revoke_from"), (["put", "take"], "*")),
    (("grant_to", "revoke_from"), (["put", "look"], "a*")),
    (("grant_to", "revoke_from"), (["put"], "*a")),
    (("grant", "revoke"), (["take", "manage"],)),
    (("grant_monitor", "revoke_monitor"), ()),
]


@pytest.mark.parametrize(("one", "other"), sampled([*itertools.permutations(NESTED, 2)], keep=7), ids=str)
def test_of_two_grants_one_is_revoked(db: psycopg.Connection, roles: Roles, one: Any, other: Any) -> None:
    """The rights are then as if only the other grant had been made."""
    put(db, "q")
    call(db, "grant_to", roles(), ())
    role = roles()
    call(db, other[0][0], role, other[1])
    alone = rows(db, RIGHTS)
    call(db, one[0][0], role, one[1])
    call(db, one[0][1], role, one[1])
    assert rows(db, RIGHTS) == alone


def test_of_a_grant_of_two_verbs_one_is_revoked(db: psycopg.Connection, connect: Connect, roles: Roles) -> None:
    role = roles("put", "take")
    user = connect(user=role)
    call(db, "revoke_from", role, (["put"],))
    fails(user, "42501", "SELECT pgqueue.put('q', '1')")
    put(db, "q")
    assert rows(user, "SELECT id FROM pgqueue.pop('q')")


def test_a_restriction_is_no_part_of_a_grant(db: psycopg.Connection, roles: Roles) -> None:
    call(db, "grant_to", roles(), ())
    role = roles()
    db.execute("SELECT pgqueue.restrict_queue('q')")
    before = rows(db, RIGHTS)
    call(db, "grant", role, ())
    call(db, "revoke", role, ())
    assert value(db, "SELECT restricted FROM pgqueue.queue")
    assert rows(db, RIGHTS) == before


# --- what is granted wrongly


WRONG = [
    ("grant_to(%s, '{read}')", "PQ002"),
    ("grant_to(%s, '{}')", "PQ002"),
    ("grant_to(%s, ARRAY[NULL])", "PQ002"),
    ("grant_to(%s, '{put,PUT}')", "PQ002"),
    ("grant_to(%s, '{share}', 'a*')", "PQ002"),
    ("grant_to(%s, '{put,share}', '**')", "PQ002"),
    ("revoke_from(%s, '{read}')", "PQ002"),
    ("grant('q', %s, '{share}')", "PQ002"),
    ("grant('q', %s, '{}')", "PQ002"),
    ("grant('q', %s, NULL)", "PQ002"),
    ("revoke('q', %s, '{read}')", "PQ002"),
    ("revoke('q', %s, NULL)", "PQ002"),
    ("grant_to(%s, '{put}', '')", "PQ001"),
    ("grant_to(%s, '{put}', NULL)", "PQ001"),
    ("grant_to(%s, '{put}', repeat('a', 201))", "PQ001"),
    ("grant('', %s)", "PQ001"),
    ("revoke('nowhere', %s)", "PQ032"),
]


@pytest.mark.parametrize(("statement", "sqlstate"), WRONG)
def test_a_wrong_grant_is_refused(db: psycopg.Connection, roles: Roles, statement: str, sqlstate: str) -> None:
    role = roles()
    put(db, "q")
    before = rows(db, RIGHTS)
    fails(db, sqlstate, f"SELECT pgqueue.{statement}", role)
    assert rows(db, RIGHTS) == before


# --- patterns


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("a%", ["a%"], ["a", "ab", "a\\%"]),
        ("a_", ["a_"], ["ab", "a", "a\\_"]),
        ("a\\", ["a\\"], ["a", "a\\\\", "ab"]),
        ("a\\*", ["a\\", "a\\b"], ["a", "a*", "ab"]),
        ("\\%_*", ["\\%_", "\\%_x"], ["%_", "\\x_", "\\%x"]),
        ("a*z", ["az", "a*z", "abcz"], ["a", "z", "bz", "azb", "AZ"]),
        ("*a*", ["a", "bab", "a\n"], ["b", "A"]),
        ("a?[b]", ["a?[b]"], ["axb", "a?b"]),
        ("a", ["a"], ["a ", "aa", "A"]),
        ("*", ["a", "%", "\\", "*", "\n"], []),
    ],
)
def test_of_a_pattern_only_the_star_is_special(
    db: psycopg.Connection, connect: Connect, roles: Roles, pattern: str, matching: list[str], others: list[str]
) -> None:
    for name in (*matching, *others):
        put(db, name)
    user = connect(user=roles("put", "take", pattern=pattern))
    for name in matching:
        put(user, name)
        assert rows(user, "SELECT id FROM pgqueue.pop(%s)", name)
    for name in others:
        fails(user, "42501", "SELECT pgqueue.put(%s, '1')", name)
        fails(user, "42501", "SELECT pgqueue.pop(%s)", name)


def test_a_queue_that_does_not_exist_is_created_within_the_pattern_only(
    db: psycopg.Connection, connect: Connect, roles: Roles
) -> None:
    user = connect(user=roles("put", "take", "manage", pattern="a.*"))
    for created in ("put('a.1', '1')", "create_queue('a.3')", "queue_id('a.4')"):
        user.execute(f"SELECT pgqueue.{created}")
    for refused in ("put('b', '1')", "create_queue('b')", "queue_id('b')"):
        fails(user, "42501", f"SELECT pgqueue.{refused}")
    assert column(db, "SELECT name FROM pgqueue.queues ORDER BY 1") == ["a.1", "a.3", "a.4"]


def test_a_restricted_queue_is_closed_to_patterns(db: psycopg.Connection, connect: Connect, roles: Roles) -> None:
    for name in ("a", "b"):
        put(db, name)
    by_name, by_star, granted = roles("put", pattern="a"), roles("put"), roles()
    db.execute("SELECT pgqueue.restrict_queue('a')")
    call(db, "grant_to", granted, (["put"], "b"))
    for role in (by_name, by_star, granted):
        fails(connect(user=role), "42501", "SELECT pgqueue.put('a', '1')")
    db.execute("SELECT pgqueue.grant('a', %s, '{put}')", [granted])
    put(connect(user=granted), "a")
    put(connect(user=by_star), "b")


def test_a_monitor_sees_a_restricted_queue(db: psycopg.Connection, connect: Connect, roles: Roles) -> None:
    put(db, "q")
    db.execute("SELECT pgqueue.restrict_queue('q')")
    monitor = connect(user=roles("monitor"))
    assert rows(monitor, "SELECT queue, data FROM pgqueue.tasks") == [("q", None)]
    assert rows(monitor, "SELECT queue, state, data, error FROM pgqueue.find_tasks('q', 'ready')") == [
        ("q", "ready", None, None)
    ]


def test_a_look_at_a_queue_that_is_not_granted_is_refused(
    db: psycopg.Connection, connect: Connect, roles: Roles
) -> None:
    for name in ("a", "b"):
        put(db, name)
    user = connect(user=roles("look", pattern="a"))
    assert rows(user, "SELECT data FROM pgqueue.find_tasks('a', 'ready')") == [("data",)]
    fails(user, "42501", "SELECT * FROM pgqueue.find_tasks('b', 'ready')")
    fails(connect(user=roles("put", "take", "manage")), "42501", "SELECT * FROM pgqueue.find_tasks('a', 'ready')")


# --- names


def test_a_rename_carries_no_queue_into_a_foreign_pattern(
    db: psycopg.Connection, connect: Connect, roles: Roles
) -> None:
    mine = connect(user=roles("put", "take", "look", "manage", pattern="mine.*"))
    put(db, "mine.a"), put(db, "theirs.a")
    fails(mine, "42501", "SELECT pgqueue.rename_queue('mine.a', 'theirs.b')")
    fails(mine, "42501", "SELECT pgqueue.rename_queue('theirs.a', 'mine.b')")
    mine.execute("SELECT pgqueue.rename_queue('mine.a', 'mine.b')")
    assert column(db, "SELECT name FROM pgqueue.queues ORDER BY 1") == ["mine.b", "theirs.a"]


def test_a_privilege_of_one_queue_follows_its_new_name(db: psycopg.Connection, connect: Connect, roles: Roles) -> None:
    put(db, "a")
    role = roles()
    db.execute("SELECT pgqueue.grant('a', %s)", [role])
    db.execute("SELECT pgqueue.rename_queue('a', 'b')")
    put(db, "a")
    user = connect(user=role)
    put(user, "b")
    fails(user, "42501", "SELECT pgqueue.put('a', '1')")


def test_a_deleted_queue_leaves_no_privilege_to_the_next_of_its_name(
    db: psycopg.Connection, connect: Connect, roles: Roles
) -> None:
    role, all_but = roles(), roles("put")
    db.execute("SELECT pgqueue.grant('q', %s)", [role])
    db.execute("SELECT pgqueue.delete_queue('q')")
    put(db, "q")
    fails(connect(user=role), "42501", "SELECT pgqueue.put('q', '1')")
    put(connect(user=all_but), "q")


# --- the mark


def test_the_mark_follows_the_grants(db: psycopg.Connection, roles: Roles) -> None:
    put(db, "a"), put(db, "b")
    role = roles("put", "take", "look", "manage", "share", "monitor")
    assert guarded(db) == [False, False]
    one = roles()
    db.execute("SELECT pgqueue.grant('a', %s, '{put}')", [one])
    assert guarded(db) == [True, True]
    put(db, "c")
    assert guarded(db) == [True, True, True]
    db.execute("SELECT pgqueue.revoke('a', %s, '{put}')", [one])
    assert guarded(db) == [False, False, False]
    db.execute("SELECT pgqueue.revoke_from(%s, '{look}')", [role])
    assert guarded(db) == [True, True, True]
    db.execute("SELECT pgqueue.grant_to(%s, '{look}')", [role])
    assert guarded(db) == [False, False, False]
    db.execute("SELECT pgqueue.restrict_queue('b')")
    assert guarded(db) == [False, True, False]
    db.execute("SELECT pgqueue.restrict_queue('b', false)")
    assert guarded(db) == [False, False, False]


def test_the_mark_of_a_dropped_role_goes_with_clean_up(db: psycopg.Connection, roles: Roles) -> None:
    put(db, "q")
    roles("put")
    assert guarded(db) == [True]
    roles.drop()
    db.execute("SELECT pgqueue.clean_up()")
    assert guarded(db) == [False]
    assert rows(db, "SELECT * FROM pgqueue.privileges") == []


def waits(db: psycopg.Connection, conn: psycopg.Connection) -> bool:
    return bool(value(db, "SELECT cardinality(pg_blocking_pids(%s)) > 0", conn.info.backend_pid))


@pytest.mark.parametrize("create", ["put('new', '1')", "create_queue('new')", "queue_id('new')"])
def test_a_queue_that_is_created_during_a_grant_is_guarded(
    db: psycopg.Connection, connect: Connect, roles: Roles, create: str
) -> None:
    """T1 grants and T2 creates: T2 waits for T1 and sees its row."""
    grants, creates = connect(autocommit=False), connect()
    role = roles()
    grants.execute("SELECT pgqueue.grant('q', %s, '{put}')", [role])
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(creates.execute, f"SELECT pgqueue.{create}")
        try:
            eventually(lambda: waits(db, creates))
        finally:
            grants.commit()
        done.result(30)
    assert guarded(db) == [True, True]


@pytest.mark.parametrize("create", ["put('new', '1')", "create_queue('new')", "queue_id('new')"])
def test_a_grant_during_the_creation_of_a_queue_guards_it(
    db: psycopg.Connection, connect: Connect, roles: Roles, create: str
) -> None:
    """T2 creates and T1 grants: T1 waits for T2 and marks its queue."""
    creates, grants = connect(autocommit=False), connect()
    role = roles()
    creates.execute(f"SELECT pgqueue.{create}")
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(grants.execute, "SELECT pgqueue.grant_to(%s, '{put}')", [role])
        try:
            eventually(lambda: waits(db, grants))
        finally:
            creates.commit()
        done.result(30)
    assert guarded(db) == [True]


def test_clean_up_corrects_the_mark_of_a_creation_with_an_older_snapshot(
    db: psycopg.Connection, connect: Connect, roles: Roles
) -> None:
    old = connect(autocommit=False)
    old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    old.execute("SELECT count(*) FROM pgqueue.queue")
    roles("put")
    old.execute("SELECT pgqueue.create_queue('new')")
    old.commit()
    db.execute("SELECT pgqueue.clean_up()")
    assert guarded(db) == [True]
