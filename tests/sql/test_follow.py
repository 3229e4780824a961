"""Followed tasks: which ends are told to what follows them, and that tasks without a mark pay nothing: follow.sql."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from eventually import eventually
from statements import column, put, row, rows, state, take, value
from stepping import die, waiting

Connect = Callable[..., psycopg.Connection]

# In place of the hooks: note what they are told.
NOTE = """
CREATE TABLE public.told (n serial, queue text, ids bigint[], how text);
CREATE TABLE public.waits (id bigint);
CREATE OR REPLACE FUNCTION pgqueue._follow_tasks(queue_id int, ids bigint[], how text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.told (queue, ids, how) SELECT (SELECT name FROM pgqueue.queue WHERE id = queue_id), ids, how;
END $$;
CREATE OR REPLACE FUNCTION pgqueue._waits_for_tasks(t pgqueue.task) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$ BEGIN RETURN EXISTS (SELECT FROM public.waits w WHERE w.id = t.id); END $$;
"""


HOOKS = """
SELECT pg_get_functiondef(oid) FROM pg_proc
 WHERE pronamespace = 'pgqueue'::regnamespace AND proname IN ('_follow_tasks', '_waits_for_tasks')
"""


@pytest.fixture
def noted(db: psycopg.Connection) -> Iterator[Callable[[], list[tuple[list[int], str]]]]:
    """What the hooks were told since the last call: ids and how."""
    hooks = column(db, HOOKS)
    db.execute(NOTE)
    yield lambda: rows(db, "DELETE FROM public.told RETURNING ids, how")
    db.execute("DROP TABLE public.told, public.waits")
    for hook in hooks:
        db.execute(hook)


def mark(db: psycopg.Connection, *ids: int) -> None:
    db.execute("UPDATE pgqueue.task SET followed = true WHERE id = ANY (%s)", [list(ids)])


def followed(db: psycopg.Connection, queue: str = "q", **options: Any) -> int:
    id = put(db, queue, **options)
    mark(db, id)
    return id


def test_an_ack_tells_what_follows(db, noted):
    id, plain = followed(db, "q"), put(db, "q")
    assert value(db, "SELECT state FROM pgqueue.ack(%s, %s)", *take(db, "q")) == "done"
    assert value(db, "SELECT state FROM pgqueue.ack(%s, %s)", *take(db, "q")) == "done"
    assert noted() == [([id], "done")]
    assert [state(db, id), state(db, plain)] == [None, None]
    assert row(db, "SELECT total, taken, done FROM pgqueue.stats") == (0, 0, 2)


def test_ack_many_tells_of_the_followed_ones_only(db, noted):
    ids = [put(db, "q") for _ in range(6)]
    mark(db, ids[1], ids[4])
    taken = rows(db, "SELECT id, token FROM pgqueue.take_many('{q}', 10)")
    assert rows(db, "SELECT id FROM pgqueue.ack_many(%s, %s)", *map(list, zip(*taken, strict=True))) == []
    assert noted() == [([ids[1], ids[4]], "done")]
    assert row(db, "SELECT total, taken, done FROM pgqueue.stats") == (0, 0, 6)


def test_a_kept_task_has_ended_once(db, noted):
    db.execute("SELECT pgqueue.create_queue('q', keep_done => '1 h')")
    id = followed(db)
    db.execute("SELECT FROM pgqueue.ack(%s, %s)", take(db, "q"))
    assert (noted(), state(db, id)) == ([([id], "done")], "done")
    db.execute("SELECT pgqueue.delete(%s)", [id])
    assert noted() == []


ENDS = {
    "SELECT pgqueue.delete({id})": "deleted",
    "SELECT pgqueue.truncate_queue('q')": "deleted",
    "SELECT pgqueue.delete_queue('q', force => true)": "deleted",
    "SELECT pgqueue.alter_queue('q', '{{\"maxlen\": 1}}')": "deleted",
    "SELECT FROM pgqueue.bury({id})": "buried",
    "SELECT id FROM pgqueue.pop('q')": "done",
}


@pytest.mark.parametrize("call", ENDS)
def test_each_way_out_is_told_once(db, noted, call):
    id = followed(db)
    put(db, "q")
    db.execute(call.format(id=id))
    assert noted() == [([id], ENDS[call])]


def test_expiry_and_dead_letters_are_told(db, noted):
    old = followed(db, ttl="1 ms")
    eventually(lambda: value(db, "SELECT statement_timestamp() > expires_at FROM pgqueue.task WHERE id = %s", old))
    db.execute("SELECT pgqueue.promote_all()")
    assert noted() == [([old], "expired")]
    db.execute("SELECT pgqueue.queue_id('dead')")
    db.execute("SELECT pgqueue.create_queue('lost', dead_letter => '', dead_letter_key => 'dead')")
    rejected = followed(db, "lost")
    db.execute("SELECT FROM pgqueue.bury(%s, %s)", take(db, "lost"))
    assert noted() == [([rejected], "dead")]


def test_the_last_attempt_is_told_as_a_burial(db, noted):
    db.execute("SELECT pgqueue.create_queue('q', max_takes => 1)")
    id = followed(db)
    db.execute("SELECT FROM pgqueue.release(%s, %s, error => 'no')", take(db, "q"))
    assert (noted(), state(db, id)) == ([([id], "buried")], "buried")


@pytest.mark.parametrize("call", [
    "SELECT FROM pgqueue.release({id}, {token})",
    "SELECT FROM pgqueue.release({id}, {token}, delay => '1 h')",
    "SELECT FROM pgqueue.release_many(ARRAY [{id}], ARRAY [{token}])",
    "SELECT FROM pgqueue.requeue({id}, {token})",
    "SELECT pgqueue.release_all('q')",
    "SELECT pgqueue.undo_take({token})",
    "SELECT pgqueue.close_session()",
])  # fmt: skip
def test_a_way_back_is_no_end(db, noted, call):
    id = followed(db)
    _, token = take(db, "q")
    db.execute(call.format(id=id, token=token))
    assert (noted(), state(db, id) in ("ready", "delayed")) == ([], True)


def test_a_deadline_and_a_death_are_no_ends(db, noted, connect):
    id = followed(db, ttr="1 ms")
    take(db, "q")
    eventually(lambda: value(db, "SELECT deadline < statement_timestamp() FROM pgqueue.take"))
    db.execute("SELECT pgqueue.promote_all()")
    assert (noted(), state(db, id)) == ([], "ready")
    db.execute("UPDATE pgqueue.task SET ttr = NULL")
    taker = connect()
    taker.execute("SELECT pgqueue.open_session(grace => '0')")
    take(taker, "q")
    die(taker, db)
    db.execute("SELECT FROM pgqueue.sweep()")
    assert (noted(), state(db, id)) == ([], "ready")


def test_a_followed_task_keeps_its_id_when_it_is_requeued(db, noted):
    id = followed(db)
    put(db, "q")
    assert row(db, "SELECT new_id, state FROM pgqueue.requeue(%s, %s)", *take(db, "q")) == (id, "ready")


READY = {
    "SELECT pgqueue.kick('q')": "SELECT FROM pgqueue.bury({id})",
    "SELECT FROM pgqueue.kick_task({id})": "SELECT FROM pgqueue.bury({id})",
    "SELECT pgqueue.promote_all()": "UPDATE pgqueue.task SET state = 'D', run_at = now()",
}


@pytest.mark.parametrize("call", READY)
def test_a_task_that_waits_becomes_waiting_and_is_never_taken(db, noted, call):
    id = followed(db)
    db.execute(READY[call].format(id=id))
    db.execute("INSERT INTO public.waits VALUES (%s)", [id])
    db.execute(call.format(id=id))
    assert state(db, id) == "waiting"
    assert column(db, "SELECT id FROM pgqueue.find_tasks('q', 'waiting')") == [id]
    assert rows(db, "SELECT id FROM pgqueue.take('q')") == rows(db, "SELECT id FROM pgqueue.pop('q')") == []
    assert row(db, "SELECT token, problem FROM pgqueue.take_id(%s)", id) == (None, "busy")
    assert row(db, "SELECT total, ready, blocked FROM pgqueue.stats") == (1, 0, 1)
    db.execute("DELETE FROM public.waits")
    assert value(db, "SELECT pgqueue._make_ready(queue_id, ARRAY [id], NULL) FROM pgqueue.task") == 1
    assert take(db, "q")[0] == id


def test_a_release_may_end_as_waiting(db, noted):
    id = followed(db)
    taken = take(db, "q")
    db.execute("INSERT INTO public.waits VALUES (%s)", [id])
    assert value(db, "SELECT state FROM pgqueue.release(%s, %s)", *taken) == "waiting"
    assert rows(db, "SELECT id FROM pgqueue.take('q')") == []


@pytest.mark.parametrize("call", [
    "SELECT FROM pgqueue.bury({id})",
    "SELECT pgqueue.delete({id})",
    "SELECT pgqueue.truncate_queue('q')",
    "SELECT pgqueue.delete_queue('q')",
    "UPDATE pgqueue.task SET expires_at = now(); SELECT pgqueue.promote_all()",
])  # fmt: skip
def test_a_waiting_task_can_end_in_every_other_way(db, noted, call):
    id = followed(db)
    db.execute("UPDATE pgqueue.task SET state = 'W'")
    db.execute(call.format(id=id))
    assert state(db, id) in ("buried", None)
    assert [ids for ids, how in noted()] == [[id]]


def test_counts_of_waiting_and_cancelling_tasks_are_the_same_when_counted_anew(db, noted):
    for kind in "WCRC":
        db.execute("UPDATE pgqueue.task SET state = %s WHERE id = %s", [kind, followed(db)])
    query = "SELECT standing, delayed, buried, blocked FROM pgqueue.{}(NULL)"
    assert row(db, query.format("_known")) == row(db, query.format("_count_anew")) == (3, 0, 0, 1)


@pytest.mark.parametrize("call", ["ack(%s, %s)", "ack_many(ARRAY [%s], ARRAY [%s])"])
def test_a_mark_that_comes_while_the_task_is_acked_is_seen(db, noted, connect, call):
    """T1 marks the task, T2 acks it: the DELETE of T2 waits for T1, and reads the row anew."""
    id = put(db, "q")
    taken = take(db, "q")
    marker = connect(autocommit=False)
    mark(marker, id)
    with waiting(connect(), db, f"SELECT FROM pgqueue.{call}", *taken):
        marker.commit()
    assert (noted(), state(db, id)) == ([([id], "done")], None)


def test_an_ack_that_was_first_leaves_nothing_to_mark(db, noted, connect):
    put(db, "q")
    id, token = take(db, "q")
    acker = connect(autocommit=False)
    acker.execute("SELECT FROM pgqueue.ack(%s, %s)", [id, token])
    with waiting(connect(), db, "UPDATE pgqueue.task SET followed = true WHERE id = %s RETURNING id", id) as marked:
        acker.commit()
    assert (marked.result(), noted()) == ([], [])


def test_a_plain_queue_pays_nothing(db):
    """Its puts, claims and acks call no function of this, and touch none of its tables."""
    db.execute("SELECT pgqueue.queue_id('q'), pgqueue.open_session(grace => '1 h')")
    db.execute("SET track_functions = 'pl'")
    with db.transaction():
        put(db, "q")
        db.execute("SELECT FROM pgqueue.ack(%s, %s)", take(db, "q"))
        db.execute("SELECT pgqueue.put_many('q', '[1, 2, 3]')")
        taken = rows(db, "SELECT id, token FROM pgqueue.take_many('{q}', 10)")
        assert rows(db, "SELECT id FROM pgqueue.ack_many(%s, %s)", *map(list, zip(*taken, strict=True))) == []
        called = set(column(db, "SELECT funcname FROM pg_stat_xact_user_functions WHERE schemaname = 'pgqueue'"))
        touched = set(
            column(
                db,
                "SELECT relname FROM pg_stat_xact_user_tables WHERE schemaname = 'pgqueue'"
                " AND seq_scan + coalesce(idx_scan, 0) + n_tup_ins + n_tup_upd + n_tup_del > 0",
            )
        )
    assert {"put", "take", "ack", "ack_many"} <= called
    assert called & {"_end_tasks", "_delete_tasks", "_follow", "_follow_each", "_ready_state", "_given_back"} == set()
    assert {"task", "take", "delta"} <= touched
    assert touched & {"attempt", "cancellation", "result"} == set()
