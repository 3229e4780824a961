"""The ways to put a task do the same: the short ways of put and put_many, _put_task, and the puts of an ack."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from statements import row, rows

# The options of put, and of put_many if they differ; the queue's options are the same for all ways.
OPTIONS = {
    "none": ("", ""),
    "priority and ttr": (", priority => 3, ttr => '1 min'", None),
    "ttl": (", ttl => '1 hour'", None),
    "delay": (", delay => '1 day', ttl => '1 hour'", None),
    "run_at": (", run_at => (now() + '2 days')", None),
    "lane": (", lane => 'a', priority => 2", ", lanes => '{a}', priority => 2"),
    "delayed lane": (", lane => 'a', delay => '1 day'", ", lanes => '{a}', delay => '1 day'"),
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


def ways(options: str, many: str) -> dict[str, str]:
    """Each puts one task with these options."""
    quoted = f"'{DATA}'"
    put_options = options.removeprefix(", ")
    given = dict(part.split(" => ") for part in put_options.split(", ")) if put_options else {}
    names = ("priority", "delay", "ttr", "ttl", "lane", "key", "if_exists", "sender", "run_at", "unique_for")
    given = {"if_exists": "'ignore'", **given}
    fields = ", ".join(given.get(name, "NULL") for name in names)
    return {
        "put": f"SELECT pgqueue.put(queue, {quoted}{options})",
        "put_many": f"SELECT pgqueue.put_many(queue, '[{DATA}]'{many})",
        "door": f"""
            SELECT pgqueue._put_task(pgqueue._queue_of_put(queue), pgqueue._specify({quoted}, {fields}))""",
        "ack": f"""
            SELECT pgqueue.put_graph(jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
                       'queue', queue, 'data', {quoted}::jsonb, 'priority', {given.get("priority", "NULL")}::int,
                       'delay', extract(epoch FROM {given.get("delay", "NULL")}::interval),
                       'ttr', extract(epoch FROM {given.get("ttr", "NULL")}::interval),
                       'ttl', extract(epoch FROM {given.get("ttl", "NULL")}::interval),
                       'lane', {given.get("lane", "NULL")}::text,
                       'run_at', {given.get("run_at", "NULL")}::timestamptz))))""",
    }


def outcome(db: psycopg.Connection, queue: str) -> tuple[Any, ...]:
    """The rows of the queue's tasks, its counts and calls, and the checks that its puts left."""
    return (
        rows(
            db,
            """
            SELECT t.priority, t.state, t.ttr, t.attempts, t.data, t.lane, t.key, t.sender, t.routing_key, t.meter,
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
    )


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("of_queue", QUEUES)
def test_each_way_puts_the_same(db: psycopg.Connection, of_queue: str, options: str) -> None:
    one, many = OPTIONS[options]
    found = {}
    for way, call in ways(one, one if many is None else many).items():
        db.execute(f"SELECT pgqueue.create_queue('{way}'{QUEUES[of_queue]})")
        with db.transaction():
            for _ in range(2):  # the second one finds the first: in its lane, and in the counts
                db.execute(call.replace("(queue", f"('{way}'").replace("'queue', queue", f"'queue', '{way}'"))
            found[way] = outcome(db, way)
    assert len(found["put"][0]) == 2
    assert {way: found[way] for way in found if found[way] != found["put"]} == {}


def test_a_task_that_waits_for_a_limit_is_put_the_same_way(db: psycopg.Connection) -> None:
    found = {}
    for way, call in ways("", "").items():
        db.execute(f"SELECT pgqueue.create_queue('{way}'), pgqueue.set_limit('{way}', concurrency => 1)")
        with db.transaction():
            db.execute(call.replace("(queue", f"('{way}'").replace("'queue', queue", f"'queue', '{way}'"))
            tasks, *rest = outcome(db, way)
        found[way] = ([task[:9] + task[10:] for task in tasks], *rest)  # a meter begins with the limit's id
    assert found["put"][0][0][1] == "W"
    assert {way: found[way] for way in found if found[way] != found["put"]} == {}
