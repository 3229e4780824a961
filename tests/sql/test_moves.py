"""The moves of tasks (moves.sql): each is written once, and each inline copy on the hot path does the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from statements import column, put, row, rows, state, take, value
from stepping import waiting

import pgqueue.sql
from pgqueue import sql as schema

Connect = Callable[..., psycopg.Connection]

FUNCTION = re.compile(r"FUNCTION pgqueue\.(\w+)\((?:(?!FUNCTION pgqueue).)*?AS \$\$(.*?)\$\$;", re.DOTALL)
UPDATE = re.compile(r"UPDATE pgqueue\.task\b[^;]*?(?:SET|,)\s+state = ")
DELETE = re.compile(r"DELETE FROM pgqueue\.(task|take)\b")

# The functions of the moves, each with the number of its statements that change a state.
CHANGES = dict.fromkeys(
    (
        *("_come_back", "_move_behind", "_make_ready", "_delay", "_await_slots"),
        *("_end_limit_wait", "_call_up", "_bury", "_put_over", "_ask_holders", "_keep_tasks"),
        "_unblock",  # of a lane: count.sql
        "_move",  # into another queue, with the copies for others: dead.sql
    ),
    1,
)
INLINE_CHANGES = {"release": 1, "bury": 1}
ENDS = {("_delete_tasks", "task"), ("_untake", "take"), ("_drop_take", "take"), ("_drop_takes", "take")}
INLINE_ENDS = {("ack", "take"), ("ack", "task"), ("ack_many", "task")}
REPAIR = {("_correct_counts", "take")}  # after raw SQL, in the one snapshot that counts everything


def bodies() -> dict[str, str]:
    """The body of each function, without comments."""
    text = "".join(re.sub(r"--[^\n]*", "", schema.read(file)) for file in schema.CODE)
    return dict(FUNCTION.findall(text))


def test_no_other_statement_changes_a_state() -> None:
    found = {name: len(UPDATE.findall(body)) for name, body in bodies().items()}
    assert {name: n for name, n in found.items() if n} == {**CHANGES, **INLINE_CHANGES}


def test_no_other_statement_ends_a_task_or_a_take() -> None:
    found = {(name, table) for name, body in bodies().items() for table in DELETE.findall(body)}
    assert found == ENDS | INLINE_ENDS | REPAIR


def inserted(body: str) -> set[str]:
    """The columns that the body's INSERT into `task` names."""
    (columns,) = re.findall(r"INSERT INTO pgqueue\.task[^(]*\(([^)]*)\)", body)
    return set(re.findall(r"\w+", columns))


def test_a_task_keeps_every_column_on_another_server(db: psycopg.Connection) -> None:
    """A done task stays, and so does one of a flow."""
    every = column(db, "SELECT attname FROM pg_attribute WHERE attrelid = 'pgqueue.task'::regclass AND attnum > 0")
    assert set(every) - inserted(bodies()["move_in"]) == {"done_at", "followed"}


def test_a_put_that_replaces_a_task_sets_every_column_of_a_put() -> None:
    replaced = bodies()["_put_over"].split("UPDATE pgqueue.task", 1)[1].split("WHERE", 1)[0]
    left = inserted(bodies()["_put_special"]) - set(re.findall(r"(\w+) = ", replaced))
    assert left == {"queue_id", "key", "created_at", "followed", "xid"}  # the task stays, at its place


def test_the_table_of_moves_names_every_function() -> None:
    head = (Path(pgqueue.sql.__file__).parent / "3_moves/moves.sql").read_text("utf-8").split("CREATE OR", 1)[0]
    named = set(re.findall(r"\b_\w+", head))
    assert named >= CHANGES.keys() | {"_given_back", "_end_cancelled", "_delete_tasks"}


# --- the inline copies

TAKEN = {
    "plain": "SELECT pgqueue.put(queue, '1')",
    "lane": "SELECT pgqueue.put(queue, '1', lane => 'a'), pgqueue.put(queue, '2', lane => 'a')",
    "limit": "SELECT pgqueue.set_limit(queue, concurrency => 1), pgqueue.put(queue, '1'), pgqueue.put(queue, '2')",
    "flow": """
        SELECT pgqueue.put_graph(jsonb_build_array(
                   jsonb_build_object('queue', queue, 'data', 1),
                   jsonb_build_object('queue', queue, 'data', 2, 'after', '[-1]'::jsonb)))""",
    "kept": "SELECT pgqueue.put(queue, '1')",
    "capacity": "SELECT pgqueue.put(queue, '1')",
    "dead letter": "SELECT pgqueue.put(queue, '1')",
    "expires": "SELECT pgqueue.put(queue, '1', ttl => '1 h')",
    "suspect": "SELECT pgqueue.put(queue, '1')",
    "cancelled": "SELECT pgqueue.put(queue, '1')",
}
QUEUES = {"kept": ", keep_done => '1 h'", "capacity": ", capacity => 5", "dead letter": ", dead_letter => 'dead'"}
DROP = "SELECT pgqueue._drop_take(%(id)s, %(token)s, NULL)"
NOTE = "SELECT pgqueue._note((SELECT queue_id FROM pgqueue.task WHERE id = %(id)s), '{}', ARRAY [%(id)s])"
CANCELLED = "SELECT pgqueue._end_cancelled(queue_id, ARRAY [id]) FROM pgqueue.task WHERE id = %(id)s AND state = 'C'"
TWINS = {
    "ack": (["SELECT pgqueue.ack(%(id)s, %(token)s)"], [DROP, "SELECT pgqueue._end_tasks(ARRAY [%(id)s])"]),
    "ack_many": (
        ["SELECT pgqueue.ack_many(ARRAY [%(id)s], ARRAY [%(token)s])"],
        [DROP, "SELECT pgqueue._end_tasks(ARRAY [%(id)s])"],
    ),
    "release": (
        ["SELECT pgqueue.release(%(id)s, %(token)s)"],
        [DROP, "SELECT pgqueue._come_back(%(id)s)", NOTE.format("release"), CANCELLED],
    ),
    "bury": (
        ["SELECT pgqueue.bury(%(id)s, %(token)s)"],
        [
            DROP,
            "SELECT pgqueue._bury(ARRAY [id], ARRAY [NULL]) FROM pgqueue.task WHERE id = %(id)s AND state <> 'C'",
            "UPDATE pgqueue.task SET suspect = NULL, killed_after = NULL WHERE id = %(id)s",
            NOTE.format("bury"),
            "SELECT pgqueue._die(ARRAY [t.id], 'rejected') FROM pgqueue.task t JOIN pgqueue.queue q ON q.id = queue_id"
            " WHERE t.id = %(id)s AND dead_letter IS NOT NULL",
            CANCELLED,
        ],
    ),
}


def outcome(db: psycopg.Connection, queue: str) -> tuple[Any, ...]:
    """The rows of the queue's tasks and takes, its counts and calls, and the checks that were left."""
    of_queue = "queue_id = (SELECT id FROM pgqueue.queue WHERE name = %s)"
    return (
        rows(
            db,
            f"""
            SELECT data, state, priority, attempts, error, run_at IS NOT NULL, ready_at IS NOT NULL, suspect,
                   buried_at IS NOT NULL, done_at IS NOT NULL, expires_at IS NOT NULL, killed_after, releases,
                   timeouts, buries, kicks, holds_lane, followed, split_part(meter, ':', 2)
              FROM pgqueue.task WHERE {of_queue} ORDER BY id""",
            queue,
        ),
        rows(db, f"SELECT lane FROM pgqueue.take WHERE {of_queue}", queue),
        row(
            db,
            f"""
            SELECT sum(standing), sum(delayed), sum(blocked), sum(buried), sum(taken), sum(kept)
              FROM pgqueue.delta WHERE {of_queue}""",
            queue,
        ),
        rows(
            db,
            f"SELECT verb, sum(calls) FROM pgqueue.delta WHERE {of_queue} AND calls > 0 GROUP BY 1 ORDER BY 1",
            queue,
        ),
        rows(db, f"SELECT DISTINCT lane FROM pgqueue.lane_check WHERE {of_queue}", queue),
        rows(db, f"SELECT DISTINCT split_part(meter, ':', 2) FROM pgqueue.meter_check WHERE {of_queue}", queue),
        row(db, f"SELECT count(*) FROM pgqueue.flow_check WHERE {of_queue}", queue),
        rows(db, f"SELECT error, cancelled FROM pgqueue.result WHERE {of_queue}", queue),
        value(
            db,
            "SELECT array_agg(d.state ORDER BY d.task_id) FROM pgqueue.dependency d JOIN pgqueue.task t"
            f" ON t.id = d.task_id WHERE t.{of_queue}",
            queue,
        ),
    )


@pytest.mark.parametrize("kind", TAKEN)
@pytest.mark.parametrize("verb", TWINS)
def test_an_inline_copy_does_what_its_function_does(db: psycopg.Connection, verb: str, kind: str) -> None:
    found = []
    db.execute("SELECT pgqueue.declare_exchange('dead')")  # no queue is bound: a task stays, buried
    for queue, calls in zip(["inline", "called"], TWINS[verb], strict=True):
        db.execute(f"SELECT pgqueue.create_queue('{queue}'{QUEUES.get(kind, '')})")
        db.execute(re.sub(r"\bqueue\b(?=[,)])", f"'{queue}'", TAKEN[kind]))
        with db.transaction():
            db.execute("SELECT setseed(0.5)")  # the claims of both queues look at the checks of lanes, or neither
            id, token = take(db, queue)
            if kind == "suspect":
                db.execute("UPDATE pgqueue.task SET suspect = 1, killed_after = '1 min' WHERE id = %s", [id])
            elif kind == "cancelled":
                db.execute("SELECT pgqueue.cancel(%s)", [id])
            for call in calls:
                # As the helpers of a public function.
                db.execute("SET LOCAL search_path = pg_catalog, pg_temp, pg_temp")
                db.execute(call, {"id": id, "token": token})
            found.append(outcome(db, queue))
    assert found[0] == found[1]


# --- races


def test_a_delete_waits_for_a_touch_and_ends_the_take(db: psycopg.Connection, connect: Connect) -> None:
    """The touched take has moved to a place that the snapshot of the statement that locked it does not show."""
    toucher = connect(autocommit=False)
    put(db, "q", ttr="1 min")
    id, token = take(db, "q")
    toucher.execute("SELECT pgqueue.touch(%s, %s, more => '1 min')", [id, token])
    with waiting(connect(), db, "SELECT pgqueue.delete(%s)", id) as deleted:
        toucher.commit()
    assert deleted.result() == [(True,)]
    assert column(db, "SELECT task_id FROM pgqueue.take") == []
    assert row(db, "SELECT total, taken FROM pgqueue.stats") == (0, 0)


def test_a_take_that_is_being_settled_is_left_alone(db: psycopg.Connection, connect: Connect) -> None:
    acker = connect(autocommit=False)
    put(db, "q")
    id, token = take(db, "q")
    acker.execute("SELECT pgqueue.ack(%s, %s)", [id, token])
    assert value(db, "SELECT pgqueue.release_all('q')") == 0
    acker.rollback()
    assert state(db, id) == "taken"
    assert value(db, "SELECT pgqueue.release_all('q')") == 1
    assert row(db, "SELECT total, taken FROM pgqueue.stats") == (1, 0)
