"""The ways to put a task do the same: put and put_many, _put_task, and puts as JSON."""

from __future__ import annotations

from itertools import product
from typing import Any

import psycopg
import pytest
from sampling import sampled
from statements import row, rows

TYPES = {
    "priority": "int",
    "delay": "interval",
    "ttr": "interval",
    "ttl": "interval",
    "lane": "text",
    "key": "text",
    "if_exists": "text",
    "sender": "uuid",
    "run_at": "timestamptz",
    "unique_for": "interval",
    "after": "bigint[]",
    "on_failure": "text",
    "batch": "bigint",
}
SENDER = "'00000000-0000-0000-0000-000000000001'"
MOST = {"priority": "2", "ttr": "'1 min'", "ttl": "'1 hour'", "lane": "'a'", "key": "'k'", "sender": SENDER}
FIRST = "(SELECT ARRAY [min(t.id)] FROM pgqueue.task t)"
BATCH = "(SELECT max(b.id) FROM pgqueue.batch b)"
FLOW = {"after": FIRST, "on_failure": "'bury'", "batch": BATCH}

# The options of a put as SQL; the queue's options are the same for all ways.
OPTIONS: dict[str, dict[str, str]] = {
    "none": {},
    "priority and ttr": {"priority": "3", "ttr": "'1 min'"},
    "ttl": {"ttl": "'1 hour'"},
    "delay": {"delay": "'1 day'", "ttl": "'1 hour'"},
    "run_at": {"run_at": "(now() + interval '2 days')"},
    "lane": {"lane": "'a'", "priority": "2"},
    "delayed lane": {"lane": "'a'", "delay": "'1 day'"},
    "sender": {"sender": SENDER},
    "key": {"key": "'k'"},
    "unique": {"unique_for": "'1 hour'"},
    "after": {"after": FIRST},
    "delayed after": {"after": FIRST, "delay": "'1 day'", "ttl": "'1 hour'"},
    "batch": {"batch": BATCH},
    "all but a flow": {**MOST, "if_exists": "'ignore'", "delay": "'1 day'", "unique_for": "'1 hour'"},
    "all but unique": {**MOST, "if_exists": "'ignore'", "run_at": "(now() + interval '2 days')", **FLOW},
}
QUEUES = {
    "plain": "",
    "defaults": ", priority => 7, ttr => '2 min', ttl => '3 hours'",
    "delay": ", delay => '1 hour'",
    "capacity": ", capacity => 5",
    "listed": ", listed => true",
    "maxlen": ", maxlen => 3",
}
DATA = '{"job": "mail", "args": [1]}'


def ways(options: dict[str, str]) -> dict[str, str]:
    """Each puts one task with these options into the queue of its own name."""
    given = {name: f"{value}::{TYPES[name]}" for name, value in options.items()}
    put = "put_flow" if {"after", "batch"} & set(given) else "put"
    many = {"lane": "lanes", "key": "keys"}
    each = [f", {many[name]} => ARRAY [{sql}]" if name in many else f", {name} => {sql}" for name, sql in given.items()]
    fields = [f", {name} => {sql}" for name, sql in given.items()]
    members = [
        f", '{name}', {f'extract(epoch FROM {sql})' if TYPES[name] == 'interval' else sql}"
        for name, sql in given.items()
    ]
    return {
        "put": f"SELECT pgqueue.{put}('put', '{DATA}'{''.join(fields)})",
        "put_many": f"SELECT pgqueue.{put}_many('put_many', '[{DATA}]'{''.join(each)})",
        "door": f"""
            SELECT pgqueue._put_task(pgqueue._queue_of_put('door'), pgqueue._specify('{DATA}'{"".join(fields)}))""",
        "json": f"""
            SELECT pgqueue.put_graph(jsonb_build_array(jsonb_build_object(
                       'queue', 'json', 'data', '{DATA}'::jsonb{"".join(members)})))""",
    }


def outcome(db: psycopg.Connection, queue: str) -> tuple[Any, ...]:
    """The rows of the queue's tasks, its counts and calls, what its tasks wait for, and the checks of its puts."""
    return (
        rows(
            db,
            """
            SELECT t.meter, t.routing_key, t.priority, t.state, t.ttr, t.attempts, t.data, t.lane, t.key, t.sender,
                   t.xid IS NOT NULL, t.ready_at, t.buried_at, t.followed, t.holds_lane,
                   round(extract(epoch FROM t.run_at - t.created_at) / 60),
                   round(extract(epoch FROM t.expires_at - t.created_at) / 60)
              FROM pgqueue.task t JOIN pgqueue.queue q ON q.id = t.queue_id WHERE q.name = %s ORDER BY t.id""",
            queue,
        ),
        row(
            db,
            """
            SELECT sum(d.standing), sum(d.delayed), sum(d.blocked), sum(d.buried), sum(d.taken), sum(d.kept),
                   sum(d.calls) FILTER (WHERE d.verb = 'put'), sum(d.calls)
              FROM pgqueue.delta d JOIN pgqueue.queue q ON q.id = d.queue_id WHERE q.name = %s""",
            queue,
        ),
        rows(
            db,
            "SELECT DISTINCT c.lane FROM pgqueue.lane_check c JOIN pgqueue.queue q ON q.id = c.queue_id"
            " WHERE q.name = %s",
            queue,
        ),
        rows(
            db,
            "SELECT split_part(c.meter, ':', 2) FROM pgqueue.meter_check c JOIN pgqueue.queue q ON q.id = c.queue_id"
            " WHERE q.name = %s GROUP BY 1",
            queue,
        ),
        rows(
            db,
            """
            SELECT w.run_at > now(), w.delay, w.ttl, w.on_failure, w.opened, m.state,
                   (SELECT count(*) FROM pgqueue.dependency d WHERE d.task_id = t.id AND d.state = 'O'),
                   (SELECT count(*) FROM pgqueue.flow_check c WHERE c.id = t.id)
              FROM pgqueue.task t JOIN pgqueue.queue q ON q.id = t.queue_id
              LEFT JOIN pgqueue.dependant w ON w.task_id = t.id LEFT JOIN pgqueue.member m ON m.task_id = t.id
             WHERE q.name = %s ORDER BY t.id""",
            queue,
        ),
        rows(
            db,
            "SELECT r.key, t.key = r.key FROM pgqueue.recent_key r JOIN pgqueue.queue q ON q.id = r.queue_id"
            " LEFT JOIN pgqueue.task t ON t.id = r.task_id WHERE q.name = %s",
            queue,
        ),
    )


@pytest.mark.parametrize(("of_queue", "options"), sampled([*product(QUEUES, OPTIONS)], keep=31))
def test_each_way_puts_the_same(db: psycopg.Connection, of_queue: str, options: str) -> None:
    db.execute("SELECT pgqueue.put('other', '1'), pgqueue.create_batch()")
    found = {}
    for way, call in ways(OPTIONS[options]).items():
        db.execute(f"SELECT pgqueue.create_queue('{way}'{QUEUES[of_queue]})")
        with db.transaction():
            for _ in range(2):  # the second one finds the first: in its lane, by its key, and in the counts
                db.execute(call)
            found[way] = outcome(db, way)
    assert len(found["put"][0]) == (1 if {"key", "unique_for"} & set(OPTIONS[options]) else 2)
    assert {way: found[way] for way in found if found[way] != found["put"]} == {}


def test_a_task_that_waits_for_a_limit_is_put_the_same_way(db: psycopg.Connection) -> None:
    found = {}
    for way, call in ways({}).items():
        db.execute(f"SELECT pgqueue.create_queue('{way}'), pgqueue.set_limit('{way}', concurrency => 1)")
        with db.transaction():
            db.execute(call)
            tasks, *rest = outcome(db, way)
        found[way] = ([task[1:] for task in tasks], *rest)  # a meter begins with the limit's id
    assert found["put"][0][0][2] == "W"
    assert {way: found[way] for way in found if found[way] != found["put"]} == {}


def test_a_published_message_is_put_the_same_way_but_for_its_key(db: psycopg.Connection) -> None:
    for way in ("put", "publish"):
        db.execute(f"SELECT pgqueue.create_queue('{way}', ttl => '1 hour', listed => true)")
    db.execute("SELECT pgqueue.put('put', '1', 3, '1 day'), pgqueue.publish('', 'publish', '1', 3, '1 day')")
    found = {way: outcome(db, way) for way in ("put", "publish")}
    (task,), *rest = found["publish"]
    assert task[1] == "publish"
    assert ([(task[0], None, *task[2:])], *rest) == found["put"]
