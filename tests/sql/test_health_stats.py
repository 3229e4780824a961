"""The numbers that the checks of health compare: those of the view stats, for every kind of queue and of reader."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
from rights_victim import restrict
from statements import column, put, rows, value

SHORT = """
SELECT queue, total, ready, buried, clock_timestamp() - CASE WHEN ready > 0 THEN ready_since END
  FROM pgqueue._health_stats() ORDER BY 1
"""
LONG = "SELECT queue, total, ready, buried, oldest_ready_age FROM pgqueue.stats ORDER BY 1"
PAST = "now() - interval '5 s'"

KINDS = {
    "plain": "",
    "aged": "UPDATE pgqueue.task SET created_at = now() - {n} * interval '1 h' WHERE id = {id}",
    "kicked": "UPDATE pgqueue.task SET ready_at = now() - {n} * interval '1 h' WHERE id = {id}",
    "urgent": "UPDATE pgqueue.task SET priority = -{n} WHERE id = {id}",
    "expired": "UPDATE pgqueue.task SET expires_at = " + PAST + " WHERE id = {id}",
    "delayed": "UPDATE pgqueue.task SET state = 'D', run_at = now() + interval '1 h' WHERE id = {id}",
    "due": "UPDATE pgqueue.task SET state = 'D', run_at = now() - {n} * interval '1 min' WHERE id = {id}",
    "buried": "SELECT pgqueue.bury({id})",
    "expired when buried": "SELECT pgqueue.bury({id}); UPDATE pgqueue.task SET expires_at = "
    + PAST
    + " WHERE id = {id}",
    "taken": "SELECT pgqueue.take_id({id})",
    "overdue": "SELECT pgqueue.take_id({id}); UPDATE pgqueue.take SET deadline = " + PAST + " WHERE task_id = {id}",
    "dear": "INSERT INTO pgqueue.oldest SELECT queue_id, now(), '3 ms', now() - interval '{n} h'"
    " FROM pgqueue.task WHERE id = {id} ON CONFLICT DO NOTHING",
}


def fill(conn: psycopg.Connection, chance: random.Random) -> None:
    for q in range(6):
        value(conn, "SELECT pgqueue.queue_id(%s)", [f"q{q}"])
        kinds = chance.sample(list(KINDS), 3)
        for _ in range(chance.randrange(7)):
            id = put(conn, f"q{q}")
            conn.execute(KINDS[chance.choice(kinds)].format(n=chance.randrange(1, 99), id=id).encode())


def short_is_long(conn: psycopg.Connection) -> None:
    """Both in one snapshot; the clock goes on between them."""
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        short, long = rows(conn, SHORT), rows(conn, LONG)
    assert [row[:-1] for row in short] == [row[:-1] for row in long]
    for *numbers, a, b in [(*one[:-1], one[-1], other[-1]) for one, other in zip(short, long, strict=True)]:
        assert (a is None) is (b is None), numbers
        assert a is None or abs((a - b).total_seconds()) < 2, numbers


@pytest.mark.parametrize("seed", range(20))
def test_health_compares_the_numbers_of_stats(db: psycopg.Connection, seed: int) -> None:
    """Counted anew, by counters alone, and by counters and deltas."""
    chance = random.Random(seed)
    fill(db, chance)
    assert not value(db, "SELECT pgqueue._is_counted()")
    short_is_long(db)
    db.execute("SELECT pgqueue._fold_deltas()")
    assert value(db, "SELECT pgqueue._is_counted()")
    short_is_long(db)
    fill(db, chance)
    short_is_long(db)


def test_a_queue_in_which_nothing_is_special_is_not_looked_at_in_full(db: psycopg.Connection) -> None:
    """That is what makes health cheap: without it the other tests would pass as well."""
    put(db, "plain")
    put(db, "special", priority=1)
    put(db, "special", priority=2)
    db.execute("SELECT pgqueue._fold_deltas()")
    db.execute("ALTER FUNCTION pgqueue._queue_stats(int[]) RENAME TO looked_at")
    db.execute("""
        CREATE FUNCTION pgqueue._queue_stats(ids int[])
        RETURNS TABLE (id int, queue text, total bigint, ready bigint, delayed bigint, taken bigint, buried bigint,
                       blocked bigint, done bigint, kept bigint, oldest_ready_age interval, calls jsonb)
        LANGUAGE sql AS $$ SELECT * FROM pgqueue.looked_at(ids) UNION ALL
                           SELECT * FROM pgqueue.looked_at(ids) $$""")
    assert column(db, "SELECT queue FROM pgqueue._health_stats() ORDER BY 1") == ["plain", "special", "special"]


def test_a_put_that_commits_after_a_fold_counts(db: psycopg.Connection, connect: Any) -> None:
    late = connect()
    put(db, "q")
    late.execute("BEGIN")
    put(late, "q")
    db.execute("SELECT pgqueue._fold_deltas(true)")
    put(db, "q")
    short_is_long(db)
    late.execute("COMMIT")
    assert value(db, "SELECT total FROM pgqueue._health_stats()") == 3
    short_is_long(db)


@pytest.mark.parametrize(
    ("grant", "seen"),
    [
        ("SELECT pgqueue.grant_monitor(%s)", ["open", "other", "secret"]),
        ("SELECT pgqueue.grant_to(%s)", ["open", "other"]),
        ("SELECT pgqueue.grant_to(%s, pattern => 'o*')", ["open", "other"]),
        ("SELECT pgqueue.grant('secret', %s)", ["secret"]),
        ("SELECT pgqueue.grant('open', %s, ARRAY ['put'])", []),
    ],
    ids=["monitor", "all", "pattern", "one", "put"],
)
def test_a_reader_has_the_numbers_of_the_queues_that_it_may_see(
    db: psycopg.Connection, connect: Any, make: Any, grant: str, seen: list[str]
) -> None:
    for name in ("open", "other", "secret"):
        put(db, name)
    restrict(db, "secret")
    db.execute("SELECT pgqueue._fold_deltas(true)")
    reader = connect(options=f"-c role={make(grant)}")
    assert column(reader, "SELECT queue FROM pgqueue._health_stats() ORDER BY 1") == seen
    short_is_long(reader)
    assert value(reader, "SELECT value FROM pgqueue.health WHERE name = 'unattended'") == len(seen)


def test_every_check_has_its_row_whether_clients_are_there_or_not(db: psycopg.Connection, connect: Any) -> None:
    names = column(db, "SELECT name FROM pgqueue.health ORDER BY 1")
    assert len(names) == len(set(names)) == 22
    put(db, "q")
    connect().execute("SELECT pgqueue.open_session()")
    assert column(db, "SELECT name FROM pgqueue.health ORDER BY 1") == names


def test_of_queues_that_it_may_not_see_a_role_is_told_nothing(db: psycopg.Connection, connect: Any, make: Any) -> None:
    put(db, "open")
    db.execute("SELECT pgqueue.set_limit('open', concurrency => 1)")
    put(db, "open")
    asked = "SELECT pgqueue._could_begin_now('{open}')"
    assert value(db, asked) == 1
    role = make("SELECT pgqueue.grant('open', %s, ARRAY ['put'])")
    assert value(connect(options=f"-c role={role}"), asked) == 0
