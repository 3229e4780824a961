"""Lanes in SQL: one at a time, in order, whatever crosses what. The second half steps through the races of lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from planner import pages_of_doing, without_autovacuum
from statements import column, put, row, rows, state, take, value

Connect = Callable[..., psycopg.Connection]

LOOK = "SELECT pgqueue.promote_all()"  # the tick: looks at every check


def taken(conn: psycopg.Connection, n: int = 10) -> list[Any]:
    return column(conn, "SELECT id FROM pgqueue.take_many(ARRAY ['q'], %s)", n)


def checks(conn: psycopg.Connection) -> list[Any]:
    return column(conn, "SELECT lane FROM pgqueue.lane_check ORDER BY lane")


def settle(conn: psycopg.Connection, verb: str, id: int, **options: Any) -> None:
    """By the session that took it."""
    named = "".join(f", {name} => %s" for name in options)
    session = value(conn, "SELECT session_id FROM pgqueue.take WHERE task_id = %s", id)
    assert row(
        conn, f"SELECT problem FROM pgqueue.{verb}(%s, session => %s{named})", id, session, *options.values()
    ) == (None,)


@pytest.fixture(autouse=True)
def looked(db: psycopg.Connection, impatient: None) -> None:
    db.execute(LOOK)  # the first tick of all counts what is there, and has all lanes looked at


# --- one at a time, in order


def test_the_second_task_of_a_lane_waits_for_the_first(db: psycopg.Connection) -> None:
    first, second = put(db, "q", lane="a"), put(db, "q", lane="a")
    assert (state(db, first), state(db, second)) == ("ready", "blocked")
    assert taken(db) == [first]
    assert taken(db) == []
    settle(db, "ack", first)
    assert state(db, second) == "ready"
    assert taken(db) == [second]


def test_a_batch_has_one_task_of_each_lane_and_all_that_are_in_none(db: psycopg.Connection) -> None:
    one, _, free, other, _ = (put(db, "q", **({"lane": lane} if lane else {})) for lane in ("a", "a", "", "b", "b"))
    late = put(db, "q")
    assert taken(db) == [one, free, other, late]


def test_lanes_of_two_queues_are_two_lanes(db: psycopg.Connection) -> None:
    put(db, "q", lane="a")
    put(db, "r", lane="a")
    assert len(rows(db, "SELECT FROM pgqueue.take_many(ARRAY ['q', 'r'], 9)")) == 2


@pytest.mark.parametrize(
    ("verb", "options"), [("ack", {}), ("release", {"delay": "1 h"}), ("bury", {}), ("delete", {}), ("expire", {})]
)
def test_who_leaves_frees_the_lane(db: psycopg.Connection, verb: str, options: dict[str, str]) -> None:
    first, second, third = (put(db, "q", lane="a") for _ in range(3))
    token = take(db, "q")[1]
    if verb == "bury":
        rows(db, "SELECT pgqueue.bury(%s, %s)", first, token)
    elif verb == "delete":
        rows(db, "SELECT pgqueue.delete(%s)", first)
    elif verb == "expire":
        db.execute("UPDATE pgqueue.task SET expires_at = now() - interval '1 s' WHERE id = %s", [first])
        db.execute("UPDATE pgqueue.take SET deadline = now() - interval '1 s'")
    else:
        settle(db, verb, first, **options)
    assert taken(db) == [second]
    assert state(db, third) == "blocked"


@pytest.mark.parametrize("how", ["release", "deadline", "session"])
def test_who_comes_back_goes_first_again(db: psycopg.Connection, connect: Connect, how: str) -> None:
    first, second = put(db, "q", lane="a"), put(db, "q", lane="a")
    if how == "session":
        other = connect()
        assert taken(other) == [first]
        rows(other, "SELECT pgqueue.close_session()")
    else:
        assert taken(db) == [first]
        if how == "release":
            settle(db, "release", first)
        else:
            db.execute("UPDATE pgqueue.take SET deadline = now() - interval '1 s'")
    assert (state(db, first), state(db, second)) == ("ready", "blocked")
    assert taken(db) == [first]


def test_a_task_that_has_expired_is_in_nobodys_way(db: psycopg.Connection) -> None:
    first, second = put(db, "q", lane="a"), put(db, "q", lane="a")
    db.execute("UPDATE pgqueue.task SET expires_at = now() - interval '1 s' WHERE id = %s", [first])
    assert taken(db) == [second]


def test_raw_sql_frees_a_lane_with_the_next_tick(db: psycopg.Connection) -> None:
    first, second, third = (put(db, "q", lane="a") for _ in range(3))
    db.execute("DELETE FROM pgqueue.task WHERE id = %s", [first])
    db.execute(LOOK)
    assert taken(db) == [second]
    db.execute("UPDATE pgqueue.task SET state = 'B' WHERE id = %s", [second])  # an update is seen at once
    db.execute("DELETE FROM pgqueue.take")
    assert taken(db) == [third]


def test_kicked_and_delayed_tasks_join_at_their_place(db: psycopg.Connection) -> None:
    buried, later, last = put(db, "q", lane="a"), put(db, "q", lane="a", delay="1 h"), put(db, "q", lane="a")
    rows(db, "SELECT pgqueue.bury(%s)", buried)
    assert taken(db) == [last]
    rows(db, "SELECT pgqueue.kick('q')")
    db.execute("UPDATE pgqueue.task SET run_at = now() WHERE id = %s", [later])
    assert taken(db) == []
    assert state(db, buried) == "blocked"
    settle(db, "ack", last)
    for id in (buried, later):
        assert taken(db) == [id]
        settle(db, "ack", id)


def test_a_kicked_task_of_a_free_lane_is_ready_at_once(db: psycopg.Connection) -> None:
    id = put(db, "q", lane="a")
    rows(db, "SELECT pgqueue.bury(%s)", id)
    rows(db, "SELECT pgqueue.kick('q')")
    assert state(db, id) == "ready"


# --- priorities


def test_an_urgent_task_goes_first_in_a_lane_that_nobody_is_in(db: psycopg.Connection) -> None:
    slow, fast = put(db, "q", lane="a"), put(db, "q", lane="a", priority=-1)
    assert (state(db, slow), state(db, fast)) == ("blocked", "ready")
    assert taken(db) == [fast]
    settle(db, "ack", fast)
    assert taken(db) == [slow]


def test_a_put_says_whether_its_task_is_next(db: psycopg.Connection) -> None:
    query = "SELECT state FROM pgqueue.put('q', '1', lane => 'a', priority => %s)"
    assert [value(db, query, priority) for priority in (0, 0, -1)] == ["ready", "blocked", "ready"]
    assert len(taken(db)) == 1
    assert value(db, query, -2) == "blocked"


@pytest.mark.parametrize("verb", ["ack", "release"])
def test_an_urgent_task_waits_for_a_busy_lane_and_is_next(db: psycopg.Connection, verb: str) -> None:
    held = put(db, "q", lane="a")
    taken(db)
    normal, fast = put(db, "q", lane="a"), put(db, "q", lane="a", priority=-1)
    assert (state(db, normal), state(db, fast)) == ("blocked", "blocked")
    assert taken(db) == []
    settle(db, verb, held)
    assert taken(db) == [fast]


def test_a_release_with_another_priority_lets_the_next_go_first(db: psycopg.Connection) -> None:
    first, second = put(db, "q", lane="a"), put(db, "q", lane="a")
    taken(db)
    settle(db, "release", first, priority=5)
    assert (state(db, first), state(db, second)) == ("blocked", "ready")
    assert taken(db) == [second]
    settle(db, "ack", second)
    assert taken(db) == [first]


# --- a task that is tried again: the lane waits for it


def hold_lane(conn: psycopg.Connection, id: int, **options: Any) -> None:
    """Release a taken task with a delay, as a worker does after a failed attempt."""
    settle(conn, "release", id, **({"delay": "1 h", "hold_lane": True} | options))


def make_due(conn: psycopg.Connection, id: int) -> None:
    conn.execute("UPDATE pgqueue.task SET run_at = clock_timestamp() WHERE id = %s", [id])


def test_a_lane_waits_for_a_task_that_is_tried_again(db: psycopg.Connection) -> None:
    """Through several failures, whatever is put or looked at meanwhile; then the lane goes on in order."""
    first, second, third = (put(db, "q", lane="a") for _ in range(3))
    other, free = put(db, "q", lane="b"), put(db, "q")
    for attempt in range(3):
        assert taken(db) == [first] + [other, free] * (attempt == 0)
        hold_lane(db, first, error="it failed")
        put(db, "q", lane="a")
        db.execute(LOOK)
        assert taken(db) == []
        assert [state(db, id) for id in (first, second, third)] == ["delayed", "blocked", "blocked"]
        make_due(db, first)
    for id in (first, second, third):
        assert taken(db) == [id]
        settle(db, "ack", id)


def test_fail_with_a_delay_holds_the_lane(db: psycopg.Connection) -> None:
    first, second = put(db, "q", lane="a"), put(db, "q", lane="a")
    token = take(db, "q")[1]
    rows(db, "SELECT pgqueue.fail(%s, %s, 'it failed', delay => '1 h')", first, token)
    assert taken(db) == []
    assert [state(db, id) for id in (first, second)] == ["delayed", "blocked"]


def test_a_task_that_is_put_with_a_delay_blocks_nobody(db: psycopg.Connection) -> None:
    later, now = put(db, "q", lane="a", delay="1 h"), put(db, "q", lane="a")
    assert taken(db) == [now]
    hold_lane(db, now)
    assert state(db, later) == "delayed"


@pytest.mark.parametrize(
    "verb", ["kick_task", "bury", "delete", "take_id", "replace", "raw update", "raw delete", "limit"]
)
def test_who_ends_the_delay_frees_the_lane(db: psycopg.Connection, verb: str) -> None:
    """Or the task itself is next, where it is ready again."""
    first = put(db, "q", lane="a", key="k")
    second, third = put(db, "q", lane="a"), put(db, "q", lane="a")
    taken(db)
    hold_lane(db, first, error="it failed")
    if verb == "replace":
        assert put(db, "q", lane="b", key="k", if_exists="replace", delay="1 h") == first
    elif verb == "raw update":
        db.execute("UPDATE pgqueue.task SET state = 'B' WHERE id = %s", [first])
    elif verb == "raw delete":
        db.execute("DELETE FROM pgqueue.task WHERE id = %s", [first])
        db.execute(LOOK)
    elif verb == "limit":
        db.execute("UPDATE pgqueue.queue SET max_takes = 2")
        make_due(db, first)
        assert taken(db) == [first]
        hold_lane(db, first, error="it failed")
        assert state(db, first) == "buried"
    else:
        rows(db, f"SELECT pgqueue.{verb}(%s)", first)
    if verb in ("kick_task", "take_id"):
        assert taken(db) == ([first] if verb == "kick_task" else [])
        settle(db, "ack", first)
    assert taken(db) == [second]
    assert state(db, third) == "blocked"


def test_a_task_that_holds_its_lane_is_due_before_it_expires(db: psycopg.Connection) -> None:
    first, second = put(db, "q", lane="a", ttl="1 min"), put(db, "q", lane="a")
    taken(db)
    hold_lane(db, first)
    assert value(db, "SELECT run_at < expires_at FROM pgqueue.tasks WHERE id = %s", first)
    db.execute(
        "UPDATE pgqueue.task SET run_at = clock_timestamp(), expires_at = clock_timestamp() WHERE id = %s", [first]
    )
    assert taken(db) == [second]
    assert state(db, first) is None


def test_an_urgent_task_goes_before_one_that_is_tried_again(db: psycopg.Connection) -> None:
    first, second = put(db, "q", lane="a"), put(db, "q", lane="a")
    taken(db)
    hold_lane(db, first)
    urgent = put(db, "q", lane="a", priority=-1)
    assert taken(db) == [urgent]
    settle(db, "ack", urgent)
    assert taken(db) == []
    assert [state(db, id) for id in (first, second)] == ["delayed", "blocked"]


def test_a_retry_with_another_priority_lets_the_next_go_first(db: psycopg.Connection) -> None:
    first, second = put(db, "q", lane="a"), put(db, "q", lane="a")
    taken(db)
    hold_lane(db, first, priority=1)
    assert taken(db) == [second]


def test_what_is_told_of_a_lane_that_waits_for_a_retry(db: psycopg.Connection) -> None:
    first, second = put(db, "q", lane="a"), put(db, "q", lane="a")
    taken(db)
    hold_lane(db, first)
    taken(db)
    assert 3590 < value(db, "SELECT seconds FROM pgqueue.next_due(ARRAY ['q'])") <= 3600
    assert row(db, "SELECT ready, delayed, blocked, taken FROM pgqueue.stats") == (0, 1, 1, 0)
    detail = value(db, "SELECT detail FROM pgqueue.why(%s)", second)
    assert detail.startswith(f'in lane "a", behind task {first}, which is delayed until ')
    assert column(db, "SELECT id FROM pgqueue.find_tasks('q', 'delayed')") == [first]
    assert column(db, "SELECT id FROM pgqueue.find_tasks('q', 'blocked')") == [second]
    make_due(db, first)
    assert value(db, "SELECT seconds FROM pgqueue.next_due(ARRAY ['q'])") == 0
    assert state(db, second) == "blocked"


def test_a_retry_is_released_while_a_put_behind_it_is_open(db: psycopg.Connection, connect: Connect) -> None:
    """T1 puts behind the task while it is taken; T2 releases it; T1 commits. The check of T1 must not unblock."""
    first = put(db, "q", lane="a")
    taken(db)
    t1 = connect(autocommit=False)
    second = put(t1, "q", lane="a")
    hold_lane(db, first)
    t1.commit()
    db.execute(LOOK)
    assert taken(db) == []
    assert state(db, second) == "blocked"
    assert checks(db) == []


def test_a_retry_that_is_due_in_an_open_transaction_keeps_its_lane(db: psycopg.Connection, connect: Connect) -> None:
    """T1 pops the first task, which became due: until T1 ends no other taker gets the second. T1 rolls back."""
    first, second = put(db, "q", lane="a"), put(db, "q", lane="a")
    taken(db)
    hold_lane(db, first)
    make_due(db, first)
    t1 = connect(autocommit=False)
    assert column(t1, "SELECT id FROM pgqueue.pop('q')") == [first]
    assert taken(db) == []
    t1.rollback()
    assert taken(db) == [first]
    settle(db, "ack", first)
    assert taken(db) == [second]


def test_a_retry_at_repeatable_read_holds_its_lane(db: psycopg.Connection, connect: Connect) -> None:
    first, second = put(db, "q", lane="a"), put(db, "q", lane="a")
    taken(db)
    strict = connect(options="-c default_transaction_isolation=repeatable\\ read")
    hold_lane(strict, first)
    assert taken(db) == []
    make_due(strict, first)
    rows(strict, LOOK)
    assert taken(db) == [first]
    settle(strict, "ack", first)
    assert taken(db) == [second]


# --- what is told, and counted


def test_a_taker_is_told_to_look_again_only_if_that_may_help(db: psycopg.Connection) -> None:
    def due() -> Any:
        return value(db, "SELECT seconds FROM pgqueue.next_due(ARRAY ['q'])")

    first, _ = put(db, "q", lane="a"), put(db, "q", lane="a")
    assert due() == 0
    assert taken(db) == [first]
    assert taken(db) == []
    assert due() is None
    put(db, "q", lane="a", priority=-1)
    assert taken(db) == []
    assert due() is None
    settle(db, "ack", first)
    assert due() == 0


def test_checks_are_gone_once_a_claim_found_nothing(db: psycopg.Connection) -> None:
    for _ in range(3):
        put(db, "q", lane="a")
    assert checks(db) == ["a", "a"]
    assert len(taken(db)) == 1
    assert taken(db) == []
    assert checks(db) == []


def test_the_statistics_count_a_task_that_is_unblocked(db: psycopg.Connection) -> None:
    first, _ = put(db, "q", lane="a"), put(db, "q", lane="a")
    query = "SELECT ready, blocked, taken FROM pgqueue.stats"
    assert row(db, query) == (1, 1, 0)
    taken(db)
    assert row(db, query) == (0, 1, 1)
    settle(db, "ack", first)
    assert row(db, query) == (1, 0, 0)


# --- what it costs


@pytest.mark.slow
@pytest.mark.parametrize("head", ["ready", "tried again"])
@pytest.mark.parametrize("statistics", ["of an empty table", "of dead rows", "right"])
def test_a_claim_costs_the_same_whatever_waits_in_a_busy_lane(
    db: psycopg.Connection, statistics: str, head: str
) -> None:
    """Also with plans that were cached before the backlog came."""
    without_autovacuum(db, "task", "take", "lane_check")
    db.execute("TRUNCATE pgqueue.task CASCADE")
    if statistics == "of dead rows":
        for _ in range(20):
            put(db, "q")
        db.execute("DELETE FROM pgqueue.task")
    db.execute("ANALYZE pgqueue.task, pgqueue.take, pgqueue.lane_check")
    claim, ack = "SELECT * FROM pgqueue.take('q')", "SELECT pgqueue.ack(task_id) FROM pgqueue.take WHERE lane <> 'busy'"

    def cost() -> int:
        return pages_of_doing(db, claim) + pages_of_doing(db, ack)

    first = put(db, "q", lane="busy")
    if head == "tried again":
        assert taken(db) == [first]
        hold_lane(db, first)
    for lane in "abc" * 4:
        put(db, "q", lane=lane)
    rows(db, LOOK)  # else some claim, by chance, looks at all the checks that these puts left
    before = max(cost() for _ in range(10))
    db.execute(
        "INSERT INTO pgqueue.task (queue_id, state, lane, data)"
        " SELECT queue_id, 'L', lane, data FROM pgqueue.task, generate_series(1, 30000) WHERE lane = 'busy'"
    )
    for lane in "abc" * 4:
        put(db, "q", lane=lane)
    rows(db, LOOK)
    if statistics == "right":
        db.execute("VACUUM ANALYZE pgqueue.task")
        rows(db, claim), rows(db, ack)  # plans are made anew, and that reads catalogs
    after = [cost() for _ in range(10)]
    assert max(after) < 1.5 * before + 30, (before, after)


# --- races: a head that goes, and a task that comes behind it


def test_a_put_behind_a_task_that_is_acked_meanwhile(db: psycopg.Connection, connect: Connect) -> None:
    first, producer = put(db, "q", lane="a"), connect()
    taken(db)
    producer.execute("BEGIN")
    second = put(producer, "q", lane="a")
    settle(db, "ack", first)
    assert taken(db) == []
    assert checks(db) == []
    producer.execute("COMMIT")
    assert taken(db) == [second]


def test_a_put_commits_behind_a_task_while_its_ack_is_open(db: psycopg.Connection, connect: Connect) -> None:
    """The put's check is dropped, for its looker still sees the task that goes. The ack's own check is left."""
    first, acker = put(db, "q", lane="a"), connect()
    session = value(acker, "SELECT pgqueue.open_session()")
    assert taken(acker) == [first]
    acker.execute("BEGIN")
    rows(acker, "SELECT pgqueue.ack(%s, session => %s)", first, session)
    second = put(db, "q", lane="a")
    db.execute(LOOK)
    assert checks(db) == []
    acker.execute("COMMIT")
    assert checks(db) == ["a"]
    assert taken(db) == [second]


def test_nobody_drops_his_own_check(db: psycopg.Connection, connect: Connect) -> None:
    """He looks before he commits; what is put in between has gone behind the task that he acks."""
    first, acker = put(db, "q", lane="a"), connect()
    session = value(acker, "SELECT pgqueue.open_session()")
    assert taken(acker) == [first]
    acker.execute("BEGIN")
    rows(acker, "SELECT pgqueue.ack(%s, session => %s)", first, session)
    assert taken(acker) == []  # looks at all checks
    second = put(db, "q", lane="a")
    db.execute(LOOK)
    assert checks(db) == []
    acker.execute("COMMIT")
    assert taken(db) == [second]


def test_an_ack_that_is_rolled_back_leaves_all_as_it_was(db: psycopg.Connection, connect: Connect) -> None:
    (first, second), acker = (put(db, "q", lane="a") for _ in range(2)), connect()
    session = value(acker, "SELECT pgqueue.open_session()")
    assert taken(acker) == [first]
    acker.execute("BEGIN")
    rows(acker, "SELECT pgqueue.ack(%s, session => %s)", first, session)
    assert taken(db) == []
    acker.execute("ROLLBACK")
    assert (state(db, first), state(db, second)) == ("taken", "blocked")
    settle(db, "ack", first)
    assert taken(db) == [second]


def test_a_put_whose_transaction_stays_open_keeps_nobody_from_anything(
    db: psycopg.Connection, connect: Connect
) -> None:
    first, producer = put(db, "q", lane="a"), connect()
    producer.execute("BEGIN")
    behind, urgent = put(producer, "q", lane="a"), put(producer, "q", lane="a", priority=-1)
    second = put(db, "q", lane="a")
    for id in (first, second):
        assert taken(db) == [id]
        settle(db, "ack", id)
    producer.execute("COMMIT")
    for id in (urgent, behind):
        assert taken(db) == [id]
        settle(db, "ack", id)


def test_a_head_that_somebody_has_locked_is_waited_for_in_the_lane_alone(
    db: psycopg.Connection, connect: Connect
) -> None:
    """Not the one behind it is taken; and the check stays until the lock has gone."""
    (first, second, _), other = (put(db, "q", lane="a") for _ in range(3)), connect()
    elsewhere = put(db, "q", lane="b")
    assert taken(db, 1) == [first]
    other.execute("BEGIN")
    other.execute("SELECT FROM pgqueue.task WHERE id = %s FOR UPDATE", [second])
    settle(db, "ack", first)
    assert taken(db) == [elsewhere]
    assert taken(db) == []
    assert set(checks(db)) == {"a"}
    other.execute("COMMIT")
    assert taken(db) == [second]


def test_an_ack_at_repeatable_read_frees_the_lane(db: psycopg.Connection, connect: Connect) -> None:
    (first, second), acker = (put(db, "q", lane="a") for _ in range(2)), connect()
    session = value(acker, "SELECT pgqueue.open_session()")
    assert taken(acker) == [first]
    acker.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    rows(acker, "SELECT pgqueue.ack(%s, session => %s)", first, session)
    acker.execute("COMMIT")
    assert state(db, second) == "blocked"
    db.execute(LOOK)
    assert state(db, second) == "ready"
    assert taken(db) == [second]


def test_a_put_does_not_touch_a_head_that_is_left_to_its_check(db: psycopg.Connection, connect: Connect) -> None:
    """With it in a transaction that stays open, nobody could take it."""
    (first, second), acker, producer = (put(db, "q", lane="a") for _ in range(2)), connect(), connect()
    session = value(acker, "SELECT pgqueue.open_session()")
    assert taken(acker) == [first]
    acker.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    rows(acker, "SELECT pgqueue.ack(%s, session => %s)", first, session)
    acker.execute("COMMIT")
    producer.execute("BEGIN")
    put(producer, "q", lane="a")
    assert taken(db) == [second]


def test_a_put_at_repeatable_read_sees_a_head_that_is_long_gone(db: psycopg.Connection, connect: Connect) -> None:
    first, producer = put(db, "q", lane="a"), connect()
    producer.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    producer.execute("SELECT 1 FROM pgqueue.queue")
    taken(db)
    settle(db, "ack", first)
    assert taken(db) == []
    second = put(producer, "q", lane="a")
    producer.execute("COMMIT")
    assert taken(db) == [second]


# --- races: two who want into one lane


def test_two_claims_see_different_heads(db: psycopg.Connection, connect: Connect) -> None:
    """The second would wait at the unique index of the takes, with the row of its task locked."""
    first, other = put(db, "q", lane="a"), connect()
    other.execute("BEGIN")
    assert taken(other) == [first]
    urgent, elsewhere = put(db, "q", lane="a", priority=-1), put(db, "q", lane="b")
    assert state(db, urgent) == "ready"  # as far as anybody can see
    assert taken(db) == [elsewhere]
    other.execute("COMMIT")
    assert taken(db) == []
    assert state(db, urgent) == "blocked"


def test_a_claim_with_an_old_snapshot_cannot_take_from_a_busy_lane(db: psycopg.Connection, connect: Connect) -> None:
    put(db, "q", lane="a")
    other = connect()
    other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    value(other, "SELECT count(*) FROM pgqueue.task")
    urgent = put(db, "q", lane="a", priority=-1)
    assert taken(db) == [urgent]
    with pytest.raises(psycopg.errors.SerializationFailure):
        taken(other)
    other.execute("ROLLBACK")
    assert taken(other) == []


def test_a_pop_has_its_lane_until_it_commits(db: psycopg.Connection, connect: Connect) -> None:
    (first, second), other = (put(db, "q", lane="a") for _ in range(2)), connect()
    other.execute("BEGIN")
    assert column(other, "SELECT id FROM pgqueue.pop('q', 10)") == [first]
    urgent = put(db, "q", lane="a", priority=-1)
    assert taken(db) == []
    other.execute("COMMIT")
    assert taken(db) == [urgent]
    settle(db, "ack", urgent)
    assert taken(db) == [second]


def test_a_pop_that_is_rolled_back_gives_the_lane_back(db: psycopg.Connection, connect: Connect) -> None:
    (first, _), other = (put(db, "q", lane="a") for _ in range(2)), connect()
    other.execute("BEGIN")
    assert column(other, "SELECT id FROM pgqueue.pop('q')") == [first]
    assert taken(db) == []
    other.execute("ROLLBACK")
    assert taken(db) == [first]


def test_a_lane_whose_latch_a_collision_holds_is_only_late(db: psycopg.Connection, connect: Connect) -> None:
    id, other = put(db, "q", lane="a"), connect()
    other.execute("BEGIN")
    assert value(other, "SELECT pgqueue._latched(pgqueue.queue_id('q'), 'a')")
    assert taken(db) == []
    assert value(db, "SELECT seconds FROM pgqueue.next_due(ARRAY ['q'])") == 0
    other.execute("COMMIT")
    assert taken(db) == [id]


def test_what_was_put_into_a_lane_while_the_queue_was_deleted_goes_with_a_tick(
    db: psycopg.Connection, connect: Connect
) -> None:
    put(db, "q", lane="a")
    producer = connect()
    producer.execute("BEGIN")
    put(producer, "q", lane="a")
    rows(db, "SELECT pgqueue.delete_queue('q')")
    producer.execute("COMMIT")
    db.execute(LOOK)
    assert value(db, "SELECT count(*) FROM pgqueue.task") == 0
    db.execute(LOOK)
    assert checks(db) == []


@pytest.mark.slow
def test_a_lane_with_very_many_checks_does_not_hide_another(db: psycopg.Connection) -> None:
    """Whoever finds nothing goes through all of them. The one in z is of the put that waits there."""
    db.execute("SELECT p.id FROM generate_series(1, 2500) i, pgqueue.put('q', to_jsonb(i), lane => 'a') p")
    put(db, "q", lane="z")
    last = put(db, "q", lane="z")
    assert len(taken(db)) == 2
    db.execute(
        "DELETE FROM pgqueue.task t USING pgqueue.take k WHERE k.task_id = t.id AND t.lane = 'z'"
    )  # tells nobody
    db.execute("DELETE FROM pgqueue.take WHERE lane = 'z'")
    assert taken(db) == [last]
