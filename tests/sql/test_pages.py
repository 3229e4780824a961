"""Listing messages in SQL: markers, what is hidden, and transactions that commit late."""

from __future__ import annotations

import random
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from planner import pages, without_autovacuum
from statements import column, put, row, rows, state, take, value

Connect = Any


@pytest.fixture
def db(db: psycopg.Connection) -> psycopg.Connection:
    """With a queue that is listed."""
    value(db, "SELECT pgqueue.queue_id('q')")
    db.execute("UPDATE pgqueue.queue SET listed = true")
    return db


def page(
    conn: psycopg.Connection, after: str | None = None, n: int = 10, queue: str = "q", **options: Any
) -> tuple[list[int], str | None]:
    """The ids of a page, and the marker of the last one."""
    names = "".join(f", {name} => %s" for name in options)
    query = f"SELECT id, marker FROM pgqueue.list_messages(%s, %s, %s{names})"
    found = rows(conn, query, queue, after, n, *options.values())
    return [id for id, _ in found], (found[-1][1] if found else after)


def all_pages(conn: psycopg.Connection, n: int = 10) -> list[int]:
    seen: list[int] = []
    ids, marker = page(conn, None, n)
    while ids:
        seen += ids
        ids, marker = page(conn, marker, n)
    return seen


def test_pages_oldest_first(db: psycopg.Connection) -> None:
    ids = [put(db, "q", priority=-i) for i in range(5)]
    first, marker = page(db, n=2)
    second, marker = page(db, marker, n=2)
    third, last = page(db, marker, n=2)
    assert [first, second, third] == [ids[:2], ids[2:4], ids[4:]]
    assert page(db, last) == ([], last)
    ids.append(put(db, "q"))
    assert page(db, last)[0] == ids[5:]


def test_what_a_message_is(db: psycopg.Connection) -> None:
    me = uuid.uuid4()
    put(db, "q", "text", sender=me, priority=3)
    assert row(db, "SELECT state, priority, attempts, sent_by, data FROM pgqueue.list_messages('q')") == (
        "ready", 3, 0, me, "text",
    )  # fmt: skip


def test_a_marker_outlives_its_message(db: psycopg.Connection) -> None:
    """The original starts from the beginning again when the marker's message is deleted, or was the very first."""
    ids = [put(db, "q") for _ in range(3)]
    _, marker = page(db, n=1)
    assert page(db, marker)[0] == ids[1:]
    db.execute("SELECT pgqueue.delete(%s)", [ids[0]])
    assert page(db, marker)[0] == ids[1:]


def test_echo_and_senders(db: psycopg.Connection) -> None:
    me, other = uuid.uuid4(), uuid.uuid4()
    mine, others, nobodys = put(db, "q", sender=me), put(db, "q", sender=other), put(db, "q")
    assert page(db)[0] == [mine, others, nobodys]
    assert page(db, sender=me)[0] == [others, nobodys]
    assert page(db, sender=other)[0] == [mine, nobodys]
    assert page(db, sender=me, echo=True)[0] == [mine, others, nobodys]


def test_claimed_and_delayed_ones_are_asked_for(db: psycopg.Connection) -> None:
    claimed, delayed, taken, buried = put(db, "q"), put(db, "q", delay="1 h"), put(db, "q"), put(db, "q")
    token = value(db, "SELECT claim FROM pgqueue.claim_messages('q', 1)")
    assert take(db, "q")[0] == taken
    db.execute("SELECT pgqueue.bury(%s)", [buried])
    assert page(db)[0] == [buried]
    assert page(db, include_claimed=True)[0] == [claimed, taken, buried]
    assert page(db, include_delayed=True)[0] == [delayed, buried]
    assert page(db, include_claimed=True, include_delayed=True)[0] == [claimed, delayed, taken, buried]
    db.execute("UPDATE pgqueue.take SET deadline = now() - interval '1 s' WHERE token = %s", [token])
    db.execute("UPDATE pgqueue.task SET run_at = now() - interval '1 s' WHERE id = %s", [delayed])
    assert page(db)[0] == [claimed, delayed, buried]


def test_expired_and_done_ones_are_not_there(db: psycopg.Connection) -> None:
    db.execute("UPDATE pgqueue.queue SET keep_done = '1 h'")
    done, expired, left = put(db, "q"), put(db, "q", ttl="1 h"), put(db, "q")
    id, token = take(db, "q")
    db.execute("SELECT pgqueue.ack(%s, %s)", [id, token])
    db.execute("UPDATE pgqueue.task SET expires_at = now() WHERE id = %s", [expired])
    assert state(db, done) == "done"
    assert page(db, include_claimed=True, include_delayed=True)[0] == [left]
    oldest, newest = row(db, "SELECT oldest, newest FROM pgqueue.message_stats('q')") or ()
    assert oldest == newest == value(db, "SELECT created_at FROM pgqueue.tasks WHERE id = %s", left)


def test_what_came_by_another_way_is_listed_too(db: psycopg.Connection) -> None:
    value(db, "SELECT pgqueue.create_queue('dying', dead_letter => '', dead_letter_key => 'q')")
    value(db, "SELECT pgqueue.declare_exchange('all', 'fanout')")
    value(db, "SELECT pgqueue.bind('q', 'all')")
    many = value(db, "SELECT pgqueue.put_many('q', '[1, 2]')")
    value(db, "SELECT pgqueue.publish('all', '', '3')")
    dead = put(db, "dying")
    db.execute("SELECT pgqueue.bury(%s)", [dead])
    assert len(all_pages(db)) == 4
    assert set(many) | {dead} < set(all_pages(db))


def test_copies_of_dead_letters_are_listed_too(db: psycopg.Connection) -> None:
    value(db, "SELECT pgqueue.declare_exchange('dead', 'fanout')")
    for queue in ("p", "q"):
        value(db, "SELECT pgqueue.queue_id(%s)", queue)
        value(db, "SELECT pgqueue.bind(%s, 'dead')", queue)
    db.execute("UPDATE pgqueue.queue SET listed = true")
    value(db, "SELECT pgqueue.create_queue('dying', dead_letter => 'dead')")
    db.execute("SELECT pgqueue.bury(%s)", [put(db, "dying")])
    assert [len(page(db, queue=queue)[0]) for queue in ("p", "q")] == [1, 1]


# --- late commits


def test_a_message_that_is_committed_late_is_not_passed_over(db: psycopg.Connection, connect: Connect) -> None:
    """By id alone it would be: the reader would be past it before it can be seen."""
    late = connect(autocommit=False)
    second = put(late, "q")
    third = put(db, "q")
    assert second < third
    assert page(db) == ([], None)
    late.commit()
    ids, marker = page(db)
    assert ids == [second, third]
    assert page(db, marker)[0] == []


def test_a_message_of_an_older_transaction_is_not_passed_over(db: psycopg.Connection, connect: Connect) -> None:
    """Nor by its transaction's number: one that began earlier may put later."""
    early = connect(autocommit=False)
    value(early, "SELECT pg_current_xact_id()")
    first = put(db, "q")
    assert page(db) == ([], None)
    second = put(early, "q")
    early.commit()
    assert sorted(all_pages(db, 1)) == [first, second]


def test_ones_own_transaction_and_one_that_rolls_back(db: psycopg.Connection, connect: Connect) -> None:
    conn = connect(autocommit=False)
    put(conn, "q")
    assert page(conn)[0] == []
    with conn.transaction():
        put(conn, "q")
    conn.rollback()
    left = put(db, "q")
    assert page(db)[0] == [left]


def test_a_reader_loses_nothing_to_racing_writers(db: psycopg.Connection, connect: Connect) -> None:
    """Writers hold their transactions open over each other's; the reader pages on meanwhile, and sees each once."""

    def write(conn: psycopg.Connection, seed: int) -> list[int]:
        choose, ids = random.Random(seed), []
        for _ in range(40):
            puts = [put(conn, "q") for _ in range(choose.randint(1, 3))]
            conn.execute("SELECT pg_sleep(%s)", [choose.random() / 200])
            if choose.random() < 0.8:
                conn.commit()
                ids += puts
            else:
                conn.rollback()
        return ids

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write, connect(autocommit=False), seed) for seed in range(4)]
        seen: list[int] = []
        marker = None
        overtaken = 0
        while True:
            over = all(writer.done() for writer in writing)
            ids, marker = page(db, marker, 5)
            overtaken += sum(id < max(seen, default=0) for id in ids)
            seen += ids
            if over and not ids:
                break
    assert overtaken > 0  # else the test has shown nothing
    assert len(seen) == len(set(seen))
    assert sorted(seen) == sorted(id for writer in writing for id in writer.result())


# --- refusals


def test_pq060_for_a_queue_that_is_not_listed(db: psycopg.Connection) -> None:
    put(db, "plain")
    with pytest.raises(psycopg.DatabaseError, match='"plain" cannot be listed') as raised:
        page(db, queue="plain")
    assert raised.value.sqlstate == "PQ060"


def test_pq032_for_a_queue_that_does_not_exist(db: psycopg.Connection) -> None:
    with pytest.raises(psycopg.DatabaseError, match='there is no queue "none"') as raised:
        page(db, queue="none")
    assert raised.value.sqlstate == "PQ032"


@pytest.mark.parametrize(
    ("marker", "n"), [("", 1), ("7", 1), ("1.x", 1), ("-1.2", 1), ("1." + "9" * 19, 1), (None, 0), (None, -1)]
)
def test_pq002_for_what_cannot_be(db: psycopg.Connection, marker: str | None, n: int) -> None:
    with pytest.raises(psycopg.DatabaseError, match=r"not the marker|n must be a whole number from 1") as raised:
        page(db, marker, n)
    assert raised.value.sqlstate == "PQ002"


# --- numbers


def test_numbers_of_a_queue(db: psycopg.Connection) -> None:
    stats = "SELECT free, claimed, total, oldest IS NULL, newest IS NULL FROM pgqueue.message_stats(%s)"
    assert row(db, stats, "q") == row(db, stats, "never made") == (0, 0, 0, True, True)
    ids = [put(db, "q"), put(db, "q", delay="1 h"), put(db, "q")]
    put(db, "plain")
    take(db, "q")
    assert row(db, stats, "q") == (2, 1, 3, False, False)
    assert row(db, stats, "plain") == (1, 0, 1, True, True)
    assert row(db, "SELECT oldest, newest FROM pgqueue.message_stats('q')") == tuple(
        column(db, "SELECT created_at FROM pgqueue.tasks WHERE id = ANY (%s) ORDER BY id", [ids[0], ids[2]])
    )


@pytest.mark.parametrize("where", ["at the head", "far behind"])
def test_a_page_costs_the_same_wherever_it_begins(db: psycopg.Connection, where: str) -> None:
    """By the index, also with statistics that know nothing, and not by a walk over what is before the marker."""
    without_autovacuum(db, "task")
    put(db, "q")
    db.execute("ANALYZE pgqueue.task")
    db.execute("INSERT INTO pgqueue.task (queue_id, data, xid) SELECT 1, '0', '3' FROM generate_series(1, 20000)")
    after = f"'3.{19000 if where == 'far behind' else 0}'"
    list_ten = f"SELECT * FROM pgqueue.list_messages('q', {after}, 10)"
    assert len(rows(db, list_ten)) == 10
    assert min(pages(db, list_ten) for _ in range(3)) < 200
