"""Cancelling tasks, and what becomes of those that were taken: cancelled.sql and cancel.sql."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from eventually import eventually
from statements import column, notifications, put, row, rows, state, take, value
from stepping import die, waiting

Connect = Callable[..., psycopg.Connection]

CANCEL = "SELECT state, problem FROM pgqueue.cancel(%s, %s)"
OUTCOME = "SELECT state, error FROM pgqueue.outcome(%s)"
COUNTS = "SELECT total, ready, delayed, taken, buried, blocked FROM pgqueue.stats WHERE queue = 'q'"


def cancel(conn: psycopg.Connection, id: int, reason: str | None = "no more") -> tuple[str | None, str | None]:
    return row(conn, CANCEL, id, reason)


def cancelled(db: psycopg.Connection, id: int) -> bool:
    """It is gone, was not taken again, and left nothing behind."""
    assert rows(db, "SELECT FROM pgqueue.take WHERE task_id = %s", id) == []
    assert rows(db, "SELECT FROM pgqueue.cancellation WHERE task_id = %s", id) == []
    return row(db, OUTCOME, id)[0] == "cancelled"


# --- tasks that are not taken


@pytest.mark.parametrize("now", [
    "SELECT 1",
    "UPDATE pgqueue.task SET state = 'D', run_at = now() + interval '1 h'",
    "SELECT FROM pgqueue.bury({id})",
    "UPDATE pgqueue.task SET state = 'W', followed = true",
])  # fmt: skip
def test_a_task_that_is_not_taken_is_gone_at_once(db, now):
    id = put(db, "q", key="k")
    db.execute(now.format(id=id))
    assert cancel(db, id) == ("cancelled", None)
    assert row(db, OUTCOME, id) == ("cancelled", "no more")
    assert row(db, COUNTS) == (0, 0, 0, 0, 0, 0)
    assert cancel(db, id) == ("cancelled", "ended")
    assert put(db, "q", key="k") > id


def test_a_task_behind_another_in_its_lane_and_the_head_of_it(db):
    first, second, third = (put(db, "q", lane="l") for _ in range(3))
    assert cancel(db, second) == cancel(db, first) == ("cancelled", None)
    assert take(db, "q")[0] == third


def test_the_reason_is_optional(db):
    id = put(db, "q")
    assert cancel(db, id, None) == ("cancelled", None)
    assert row(db, OUTCOME, id) == ("cancelled", "it was cancelled")


def test_what_has_ended_or_never_was(db):
    done, kept, failed = put(db, "q"), put(db, "q"), put(db, "q")
    db.execute("SELECT FROM pgqueue.ack(%s, %s)", take(db, "q"))
    db.execute("SELECT FROM pgqueue.finish(%s, %s)", take(db, "q"))
    db.execute("SELECT FROM pgqueue.fail(%s, %s, 'no')", take(db, "q"))
    db.execute("SELECT pgqueue.delete(%s)", [failed])
    assert [cancel(db, id) for id in (done, kept, failed, 10**6)] == [
        (None, "not found"), ("done", "ended"), ("failed", "ended"), (None, "not found"),
    ]  # fmt: skip


def test_a_done_task_that_is_kept_is_done(db):
    db.execute("SELECT pgqueue.create_queue('q', keep_done => '1 h')")
    id = put(db, "q")
    db.execute("SELECT FROM pgqueue.ack(%s, %s)", take(db, "q"))
    assert (cancel(db, id), state(db, id)) == (("done", "ended"), "done")


def test_by_key(db):
    id = put(db, "q", key="k")
    assert row(db, "SELECT id, state, problem FROM pgqueue.cancel_key('q', 'k')") == (id, "cancelled", None)
    assert row(db, "SELECT id, state, problem FROM pgqueue.cancel_key('q', 'k')") == (None, None, "not found")
    with pytest.raises(psycopg.Error, match="there is no queue"):
        db.execute("SELECT pgqueue.cancel_key('nowhere', 'k')")


def test_many_in_the_order_of_the_ids_given(db):
    taken, ready = put(db, "q"), put(db, "other")
    take(db, "q")
    assert rows(db, "SELECT id, state, problem FROM pgqueue.cancel_many(%s, 'x')", [ready, 999, taken]) == [
        (ready, "cancelled", None), (999, None, "not found"), (taken, "cancelling", None),
    ]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), [
    ("SELECT pgqueue.cancel(1, repeat('x', 100000))", "at most 65536 bytes"),
    ("SELECT pgqueue.cancel_many('{1,NULL}')", "ids has a NULL"),
    ("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pgqueue.cancel(1)", "READ COMMITTED, not at REPEATABLE READ"),
])  # fmt: skip
def test_bad_input(db, call, message):
    with pytest.raises(psycopg.Error, match=message) as caught:
        db.execute(call)
    assert caught.value.sqlstate == "PQ002"


# --- tasks that are taken


@pytest.fixture
def taken(db: psycopg.Connection) -> tuple[int, int]:
    """A task that was cancelled while it was taken."""
    put(db, "q")
    id, token = take(db, "q")
    assert cancel(db, id) == ("cancelling", None)
    return id, token


def test_a_taken_task_is_cancelling_until_its_take_ends(db, taken):
    id, token = taken
    assert state(db, id) == "cancelling"
    assert row(db, COUNTS) == (1, 0, 0, 1, 0, 0)
    assert column(db, "SELECT id FROM pgqueue.find_tasks('q', 'cancelling')") == [id]
    assert row(db, "SELECT id, queue, reason, session IS NOT NULL FROM pgqueue.cancellations") == (
        id, "q", "no more", True,
    )  # fmt: skip
    assert rows(db, "SELECT * FROM pgqueue.cancelled_takes(ARRAY [%s], ARRAY [%s])", id, token) == [(id, "no more")]
    assert rows(db, "SELECT * FROM pgqueue.cancelled_takes(ARRAY [%s], ARRAY [1])", id) == []
    assert cancel(db, id, "again") == ("cancelling", None)
    assert row(db, "SELECT problem FROM pgqueue.take_id(%s)", id) == ("taken by another",)
    db.execute("SELECT pgqueue.promote_all()")
    assert state(db, id) == "cancelling"


def test_its_holder_is_told(db, connect):
    put(db, "q")
    put(db, "q")
    holder, listener = connect(), connect()
    session = value(holder, "SELECT pgqueue.open_session(grace => '1 h')")
    (id, _), (other, _) = take(holder, "q"), take(holder, "q")
    listener.execute(f'LISTEN "pgqueue:session:{session}"')
    db.execute("SELECT pgqueue.cancel_many(ARRAY [%s, %s])", [id, other])
    assert notifications(listener, db) == [f"pgqueue:session:{session}"]


def test_its_holder_may_still_finish(db, taken):
    id, token = taken
    assert value(db, "SELECT state FROM pgqueue.finish(%s, %s, result => '1')", id, token) == "done"
    assert row(db, OUTCOME, id) == ("done", None)
    assert rows(db, "SELECT FROM pgqueue.cancellation") == []
    assert row(db, COUNTS) == (0, 0, 0, 0, 0, 0)


def test_ack_many_may_too(db, taken):
    assert rows(db, "SELECT FROM pgqueue.ack_many(ARRAY [%s], ARRAY [%s])", *taken) == []
    assert (rows(db, "SELECT FROM pgqueue.task"), rows(db, "SELECT FROM pgqueue.cancellation")) == ([], [])


WAYS = {
    "SELECT state FROM pgqueue.release({id}, {token})": "cancelled",
    "SELECT state FROM pgqueue.release({id}, {token}, delay => '1 h', error => 'no')": "cancelled",
    "SELECT state FROM pgqueue.bury({id}, {token}, 'no')": "cancelled",
    "SELECT state FROM pgqueue.bury({id})": "cancelled",
    "SELECT state FROM pgqueue.fail({id}, {token}, 'no')": "cancelled",
    "SELECT state FROM pgqueue.fail({id}, {token}, 'no', delay => '1 s')": "cancelled",
    "SELECT state FROM pgqueue.requeue({id}, {token})": "cancelled",
    "SELECT count(*) FROM pgqueue.release_many(ARRAY [{id}], ARRAY [{token}])": 0,
    "SELECT pgqueue.release_all('q')": 1,
    "SELECT pgqueue.undo_take({token})": 1,
    "SELECT pgqueue.close_session()": 1,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_other_end_of_its_take_cancels_it(db, taken, way):
    id, token = taken
    assert value(db, way.format(id=id, token=token)) == WAYS[way]
    assert cancelled(db, id)
    assert row(db, OUTCOME, id)[1] == "no more"
    assert row(db, COUNTS) == (0, 0, 0, 0, 0, 0)
    assert rows(db, "SELECT FROM pgqueue.take('q')") == []


def test_a_deadline_and_a_death_cancel_it(db, connect):
    db.execute("SELECT pgqueue.create_queue('q', max_takes => 1)")
    for ttr in ("1 s", None):
        id = put(db, "q", ttr=ttr)
        taker = connect()
        taker.execute("SELECT pgqueue.open_session(grace => '0')")
        take(taker, "q")
        assert cancel(db, id) == ("cancelling", None)
        if ttr:
            db.execute("UPDATE pgqueue.take SET deadline = now()")
            db.execute("SELECT pgqueue.promote_all()")
        else:
            die(taker, db)
            db.execute("SELECT FROM pgqueue.sweep()")
        assert cancelled(db, id)


def test_a_task_past_its_deadline_is_not_taken_any_more(db):
    id = put(db, "q", ttr="1 ms")
    take(db, "q")
    eventually(lambda: value(db, "SELECT deadline < clock_timestamp() FROM pgqueue.take"))
    assert cancel(db, id) == ("cancelled", None)
    assert row(db, COUNTS) == (0, 0, 0, 0, 0, 0)


def test_the_ticks_end_what_lost_its_take_by_a_crash(db, taken):
    db.execute("TRUNCATE pgqueue.take")  # as the server does with an unlogged table
    assert rows(db, "SELECT FROM pgqueue.take('q')") == []
    db.execute("SELECT pgqueue.promote_all()")
    assert cancelled(db, taken[0])


@pytest.mark.parametrize("keep", [None, "1 h"])
@pytest.mark.parametrize("verb", ["release", "ack"])
def test_a_cancelled_task_keeps_its_lane_until_its_take_ends(db, verb, keep):
    db.execute("SELECT pgqueue.create_queue('q', keep_done => %s)", [keep])
    first, second = put(db, "q", lane="l"), put(db, "q", lane="l")
    taken = take(db, "q")
    assert cancel(db, first) == ("cancelling", None)
    assert rows(db, "SELECT FROM pgqueue.take('q')") == []
    assert state(db, second) == "blocked"
    db.execute("SELECT pgqueue.promote_all()")
    db.execute(f"SELECT FROM pgqueue.{verb}(%s, %s)", taken)
    assert state(db, second) == "ready"
    assert take(db, "q")[0] == second


@pytest.mark.parametrize("if_exists", ["ignore", "replace"])
def test_a_put_with_its_key(db, if_exists):
    id = put(db, "q", key="k", ttr="1 h")
    take(db, "q")
    cancel(db, id)
    assert put(db, "q", key="k") == id  # it is there until its take ends
    with pytest.raises(psycopg.Error, match="is taken: it cannot be replaced"):
        put(db, "q", key="k", if_exists="replace")
    db.execute("UPDATE pgqueue.take SET deadline = now()")
    new = put(db, "q", key="k", if_exists=if_exists)
    assert new > id
    assert cancelled(db, id)
    assert take(db, "q")[0] == new


def test_a_kick_cannot_bring_it_back(db, taken):
    assert value(db, "SELECT pgqueue.kick('q', 10, delayed => true)") == 0
    assert row(db, "SELECT state, problem FROM pgqueue.kick_task(%s)", taken[0]) == ("cancelling", "not buried")


def test_a_delete_deletes(db, taken):
    assert value(db, "SELECT pgqueue.delete(%s)", taken[0]) is True
    assert row(db, OUTCOME, taken[0]) == ("unknown", None)
    assert rows(db, "SELECT FROM pgqueue.cancellation") == rows(db, "SELECT FROM pgqueue.take") == []


def test_delete_strict_leaves_it_to_its_holder(db, taken, connect):
    assert row(connect(), "SELECT state, problem FROM pgqueue.delete_strict(%s)", taken[0]) == (
        "cancelling", "taken by another",
    )  # fmt: skip


def test_cleaning_forgets_what_raw_sql_left(db, taken):
    db.execute("DELETE FROM pgqueue.task")
    db.execute("UPDATE pgqueue.cancellation SET asked_at = now() - interval '2 min'")
    db.execute("SELECT pgqueue.clean_up()")
    assert rows(db, "SELECT FROM pgqueue.cancellation") == []


# --- races: T1 cancels, T2 ends the take


ENDS = {
    "SELECT state FROM pgqueue.ack({id}, {token})": "done",
    "SELECT state FROM pgqueue.finish({id}, {token})": "done",
    "SELECT state FROM pgqueue.release({id}, {token})": "cancelled",
    "SELECT state FROM pgqueue.bury({id}, {token}, 'no')": "cancelled",
    "SELECT state FROM pgqueue.fail({id}, {token}, 'no', delay => '0')": "cancelled",
    "SELECT state FROM pgqueue.requeue({id}, {token})": "cancelled",
}


@pytest.mark.parametrize("end", ENDS)
def test_an_end_that_waits_for_the_cancel_sees_it(db, connect, end):
    put(db, "q")
    id, token = take(db, "q")
    canceller = connect(autocommit=False)
    assert cancel(canceller, id) == ("cancelling", None)
    with waiting(connect(), db, end.format(id=id, token=token)) as ended:
        canceller.commit()
    assert ended.result() == [(ENDS[end],)]
    assert state(db, id) is None
    assert rows(db, "SELECT FROM pgqueue.cancellation") == []


@pytest.mark.parametrize("end", ENDS)
def test_a_cancel_that_waits_for_the_end_sees_what_became_of_the_task(db, connect, end):
    put(db, "q")
    id, token = take(db, "q")
    holder = connect(autocommit=False)
    (ended,) = row(holder, end.format(id=id, token=token))
    with waiting(connect(), db, CANCEL, id, "no") as answer:
        holder.commit()
    if ended == "done":
        assert answer.result() in ([("done", "ended")], [(None, "not found")])
        assert state(db, id) is None
    elif "requeue" in end:
        assert answer.result() == [(None, "not found")]  # it has another id
    else:
        assert answer.result() == [("cancelled", None)]


def test_a_cancel_does_not_wait_for_a_deadline_or_a_touch_under_way(db, connect):
    """T2 has the take, and no row of the task: T1 leaves the end to the tick."""
    put(db, "q", ttr="1 h")
    id, token = take(db, "q")
    ender = connect(autocommit=False)
    ender.execute("SELECT FROM pgqueue.release_many(ARRAY [%s], ARRAY [%s])", [id, token])
    assert cancel(db, id) == ("cancelling", None)
    ender.commit()
    assert rows(db, "SELECT FROM pgqueue.take('q')") == []
    db.execute("SELECT pgqueue.promote_all()")
    assert cancelled(db, id)


def test_a_cancel_that_was_first_keeps_a_sweep_off_until_it_has_ended(db, connect):
    id = put(db, "q")
    taker, canceller = connect(), connect(autocommit=False)
    taker.execute("SELECT pgqueue.open_session(grace => '0')")
    take(taker, "q")
    assert cancel(canceller, id) == ("cancelling", None)
    die(taker, db)
    assert value(db, "SELECT freed FROM pgqueue.sweep()") == 0
    canceller.commit()
    assert value(db, "SELECT freed FROM pgqueue.sweep()") == 1
    assert cancelled(db, id)


def test_a_claim_under_way_and_a_cancel(db, connect):
    """T2 claims and commits its take; T1, which waited for the row, sees the take in its next snapshot."""
    id = put(db, "q")
    claimer = connect(autocommit=False)
    claimer.execute("SELECT pgqueue.open_session(grace => '1 h')")
    claimer.commit()
    _, token = take(claimer, "q")
    with waiting(connect(), db, CANCEL, id, "no") as answer:
        claimer.commit()
    assert answer.result() == [("cancelling", None)]
    assert value(db, "SELECT state FROM pgqueue.release(%s, %s)", id, token) == "cancelled"


def test_a_claim_passes_over_a_task_that_is_being_cancelled(db, connect):
    id, other = put(db, "q"), put(db, "q")
    canceller = connect(autocommit=False)
    assert cancel(canceller, id) == ("cancelled", None)
    assert take(db, "q")[0] == other
    canceller.rollback()
    assert take(db, "q")[0] == id


def test_two_cancels_of_the_same_tasks_do_not_deadlock(db, connect):
    ids = [put(db, "q") for _ in range(4)]
    first = connect(autocommit=False)
    first.execute("SELECT FROM pgqueue.cancel_many(%s)", [ids])
    query = "SELECT id, state, problem FROM pgqueue.cancel_many(%s)"
    with waiting(connect(), db, query, ids[::-1]) as second:
        first.commit()
    assert second.result() == [(id, "cancelled", "ended") for id in ids[::-1]]


def test_a_waiter_for_the_outcome_is_told(db, connect):
    id, waiter = put(db, "q"), connect()
    waiter.execute(f'LISTEN "pgqueue:task:{id}"')
    waiter.execute("SELECT pgqueue.await_ends(ARRAY [%s])", [id])
    cancel(db, id)
    assert notifications(waiter, db) == [f"pgqueue:task:{id}"]
