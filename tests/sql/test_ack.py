"""What an ack leaves: done tasks that are kept, and tasks that are handed on to."""

from __future__ import annotations

import psycopg
import pytest
from eventually import Stopwatch
from statements import column, everything, put, row, rows, state, take, value

ACK = "SELECT state, ids FROM pgqueue.ack(%s, %s, puts => %s)"


def keep(db: psycopg.Connection, queue: str, time: str = "1 h") -> None:
    db.execute("SELECT pgqueue.queue_id(%s)", [queue])
    db.execute("UPDATE pgqueue.queue SET keep_done = %s WHERE name = %s", [time, queue])


def test_a_done_task_is_kept_and_is_nothing_but_history(db):
    keep(db, "q")
    id = put(db, "q", priority=3, ttl="1 h", key="k")
    db.execute("SELECT pgqueue.ack(%s, %s)", take(db, "q"))
    assert row(
        db, "SELECT state, data, priority, key, expires_at, done_at <= now() FROM pgqueue.tasks WHERE id = %s", id
    ) == (("done", "data", 3, "k", None, True))
    before = everything(db, id)
    for verb in ("ack", "release", "touch"):
        assert row(db, f"SELECT state, problem FROM pgqueue.{verb}(%s, 1)", id) == ("done", "not taken")
    assert value(db, "SELECT problem FROM pgqueue.bury(%s)", id) == "not found"
    assert rows(db, "SELECT FROM pgqueue.take('q')") == rows(db, "SELECT FROM pgqueue.pop('q')") == []
    assert value(db, "SELECT pgqueue.kick('q', 100)") == 0
    db.execute("SELECT pgqueue.promote_all(), pgqueue.clean_up()")
    assert everything(db, id) == before


def test_ack_many_of_several_queues_keeps_where_that_is_wanted(db):
    keep(db, "kept")
    ids = [put(db, queue) for queue in ("kept", "plain", "kept", "plain")]
    taken = rows(db, "SELECT id, token FROM pgqueue.take_many('{kept,plain}', 10)")
    assert rows(db, "SELECT id FROM pgqueue.ack_many(%s, %s)", *map(list, zip(*taken, strict=True))) == []
    assert [state(db, id) for id in ids] == ["done", None, "done", None]
    assert rows(db, "SELECT FROM pgqueue.take") == []


def test_pop_keeps_too(db):
    keep(db, "q")
    id = put(db, "q")
    assert column(db, "SELECT id FROM pgqueue.pop('q')") == [id]
    assert state(db, id) == "done"


def test_cleaning_removes_what_was_kept_long_enough(db):
    keep(db, "q", "10 min")
    keep(db, "no longer")
    old, new, left = put(db, "q"), put(db, "q"), put(db, "no longer")
    for queue in ("q", "q", "no longer"):
        db.execute("SELECT pgqueue.ack(%s, %s)", take(db, queue))
    db.execute("UPDATE pgqueue.task SET done_at = now() - interval '11 min' WHERE id = %s", [old])
    db.execute("UPDATE pgqueue.queue SET keep_done = NULL WHERE name = 'no longer'")
    db.execute("SELECT pgqueue.clean_up()")
    assert [state(db, id) for id in (old, new, left)] == [None, "done", None]


def test_a_done_task_can_be_deleted(db):
    keep(db, "q")
    id = put(db, "q")
    db.execute("SELECT pgqueue.ack(%s, %s)", take(db, "q"))
    assert value(db, "SELECT pgqueue.delete(%s)", id) is True
    assert state(db, id) is None


# --- handing on

PUTS = """[{"queue": "a", "data": 1},
           {"queue": "b", "data": null, "priority": -1, "delay": 3600, "ttr": 5, "ttl": 60, "key": "k"}]"""


def test_an_ack_puts_what_it_hands_on_to(db):
    id = put(db, "q")
    done, ids = row(db, ACK, *take(db, "q"), PUTS)
    assert done == "done"
    assert state(db, id) is None
    assert rows(
        db,
        "SELECT id, queue, data, priority, state, ttr::text, key, expires_at - run_at FROM pgqueue.tasks ORDER BY id",
    ) == [
        (ids[0], "a", 1, 0, "ready", None, None, None),
        (ids[1], "b", None, -1, "delayed", "00:00:05", "k", value(db, "SELECT interval '60 s'")),
    ]


@pytest.mark.parametrize(
    ("puts", "sqlstate"),
    [
        ('[{"queue": "a"}, {"queue": ""}]', "PQ001"),
        ('[{"queue": "a"}, {"queue": null}]', "PQ001"),
        ('[{"queue": "a"}, {"queue": "a", "delay": -1}]', "PQ002"),
        ('[{"queue": "a"}, {"queue": "full"}]', "PQ037"),
        ('[{"queue": "a"}, {"queue": "full", "key": "k", "if_exists": "error"}]', "PQ038"),
        ('{"queue": "a"}', "PQ002"),
        ('[{"queue": "a", "priority": "high"}]', "PQ002"),
    ],
)
def test_if_one_put_fails_the_task_is_still_taken_and_nothing_is_put(db, puts, sqlstate):
    put(db, "full", key="k")
    db.execute("UPDATE pgqueue.queue SET capacity = 1 WHERE name = 'full'")
    id = put(db, "q")
    _, token = take(db, "q")
    before = everything(db, id)
    with pytest.raises(psycopg.Error) as caught:
        db.execute(ACK, [id, token, puts])
    assert caught.value.sqlstate == sqlstate
    assert everything(db, id) == before
    assert value(db, "SELECT count(*) FROM pgqueue.tasks") == 2


def test_a_refused_ack_puts_nothing(db):
    id = put(db, "q")
    assert row(db, "SELECT state, problem, ids FROM pgqueue.ack(%s, 1, puts => %s)", id, PUTS) == (
        "ready",
        "not taken",
        None,
    )
    assert value(db, "SELECT count(*) FROM pgqueue.tasks") == 1


# --- giving back


def test_a_release_may_change_the_priority(db):
    first, second = put(db, "q"), put(db, "q")
    db.execute("SELECT pgqueue.release(%s, %s, priority => 7)", take(db, "q"))
    assert take(db, "q")[0] == second
    assert row(db, "SELECT priority, releases FROM pgqueue.tasks WHERE id = %s", first) == (7, 1)


def test_every_counts_from_when_it_was_taken(db):
    id = put(db, "q")
    _, token = take(db, "q")
    db.execute("UPDATE pgqueue.take SET taken_at = taken_at - interval '10 min'")
    assert value(db, "SELECT state FROM pgqueue.release(%s, %s, every => '1 h')", id, token) == "delayed"
    assert 2900 < value(db, "SELECT extract(epoch FROM run_at - now())::float8 FROM pgqueue.tasks") <= 3000


def test_every_that_is_over_is_at_once_and_never_in_the_past(db):
    id = put(db, "q")
    _, token = take(db, "q")
    db.execute("UPDATE pgqueue.take SET taken_at = taken_at - interval '2 h'")
    assert value(db, "SELECT state FROM pgqueue.release(%s, %s, every => '1 h')", id, token) == "ready"
    assert row(db, "SELECT state, run_at FROM pgqueue.tasks") == ("ready", None)


@pytest.mark.parametrize("how", ["every => '0'", "every => '-1 s'", "every => '1 s', delay => '1 s'"])
def test_every_that_cannot_be(db, how):
    id = put(db, "q")
    _, token = take(db, "q")
    before = everything(db, id)
    with pytest.raises(psycopg.Error) as caught:
        db.execute(f"SELECT pgqueue.release(%s, %s, {how})", [id, token])
    assert caught.value.sqlstate == "PQ002"
    assert everything(db, id) == before


def test_a_task_knows_how_often_what_happened_to_it(db):
    id = put(db, "q", ttr="1 h")
    db.execute("SELECT pgqueue.release(%s, %s)", take(db, "q"))
    take(db, "q")
    db.execute("UPDATE pgqueue.take SET deadline = now() - interval '1 s'")
    db.execute("SELECT pgqueue.promote_all()")
    db.execute("SELECT pgqueue.bury(%s, %s)", take(db, "q"))
    db.execute("SELECT pgqueue.kick('q')")
    assert row(db, "SELECT releases, timeouts, buries, kicks, attempts FROM pgqueue.tasks WHERE id = %s", id)[:3] == (
        1,
        1,
        1,
    )


def test_a_take_ends_when_its_task_expires(db):
    """As in Tarantool's queue: the deadline is the sooner of the two, then the task is ready, and expires."""
    passed = Stopwatch()
    id = put(db, "q", ttr="1 h", ttl="30 s")
    left = value(db, "SELECT extract(epoch FROM deadline - now())::float8 FROM pgqueue.take('q')")
    assert 30 - passed() < left <= 30
    db.execute("UPDATE pgqueue.take SET deadline = deadline - interval '1 min'")
    db.execute("UPDATE pgqueue.task SET expires_at = expires_at - interval '1 min'")
    db.execute("SELECT pgqueue.promote_all()")
    assert state(db, id) is None


def test_a_touch_adds_to_the_time_to_live(db):
    id = put(db, "q", ttr="10 s", ttl="30 s")
    _, token = take(db, "q")
    before = row(db, "SELECT deadline, expires_at FROM pgqueue.tasks")
    db.execute("SELECT pgqueue.touch(%s, %s, more => '5 s')", [id, token])
    assert row(db, "SELECT deadline - %s, expires_at - %s FROM pgqueue.tasks", *before) == (
        row(db, "SELECT interval '5 s', interval '5 s'")
    )
