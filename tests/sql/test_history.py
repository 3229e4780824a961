"""The history of queues: every call is in one row of it, whatever ticks, crashes, rolls back, or is deleted."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from minutes import pass_minutes, shift_history, write_minute
from rights_victim import restrict
from statements import column, put, row, rows, take, value

Connect = Callable[..., psycopg.Connection]
CALLS = "puts, takes, acks, done, releases, buries, timeouts"
TICK = "SELECT pgqueue.promote_all()"


def summed(conn: psycopg.Connection, queue: str = "q") -> tuple[Any, ...]:
    """What the history has of a queue in all."""
    found = row(
        conn,
        "SELECT sum(puts), sum(takes), sum(acks), sum(done), sum(releases), sum(buries), sum(timeouts)"
        " FROM pgqueue.queue_history WHERE queue = %s",
        queue,
    )
    assert found is not None
    return tuple(int(n or 0) for n in found)


def minutes(conn: psycopg.Connection, queue: str = "q", columns: str = "puts") -> list[Any]:
    """A column of the minutes of a queue, the oldest first."""
    return column(conn, f"SELECT {columns} FROM pgqueue.queue_history WHERE queue = %s ORDER BY at", queue)


# --- writing


def test_a_minute_has_its_calls_and_the_length_at_its_end(db: psycopg.Connection) -> None:
    for _ in range(6):
        put(db, "q")
    put(db, "q", delay="1 h")
    for verb in ("ack", "bury", "release"):
        db.execute(f"SELECT pgqueue.{verb}(%s, %s)", take(db, "q"))
    db.execute("SELECT pgqueue.delete(4)")
    take(db, "q")
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '90 s'")
    write_minute(db)
    found = rows(db, f"SELECT period, {CALLS}, ready, most_ready, taken, delayed, buried FROM pgqueue.queue_history")
    assert found == [("minute", 7, 4, 1, 2, 1, 1, 0, 2, 2, 1, 1, 1)]
    assert row(
        db,
        "SELECT date_trunc('minute', at) = at, now() - at BETWEEN '1 min' AND '3 min',"
        " oldest_ready_age BETWEEN '90 s' AND '3 min' FROM pgqueue.queue_history",
    ) == (True, True, True)


def test_timeouts_are_counted(db: psycopg.Connection) -> None:
    put(db, "q", ttr="1 s")
    take(db, "q")
    db.execute("UPDATE pgqueue.take SET deadline = now() - interval '1 s'")
    write_minute(db)
    assert minutes(db, columns="timeouts") == [1]


def test_a_minute_is_written_once(db: psycopg.Connection) -> None:
    put(db, "q")
    write_minute(db)
    put(db, "q")
    written = value(db, "SELECT last_value >> 31 FROM pgqueue.history_turn")
    for _ in range(3):
        db.execute(TICK)
    if value(db, "SELECT last_value >> 31 FROM pgqueue.history_turn") == written:  # a minute may be over by itself
        assert minutes(db) == [1]
    write_minute(db)
    assert summed(db)[0] == 2


def test_an_empty_queue_without_calls_gets_no_row(db: psycopg.Connection) -> None:
    put(db, "q")
    db.execute("SELECT pgqueue.ack(id, token) FROM pgqueue.take('q')")
    db.execute("SELECT pgqueue.create_queue('idle')")
    for _ in range(4):
        write_minute(db)
    assert minutes(db) == [1]
    assert minutes(db, "idle") == []


def test_a_queue_that_stands_still_has_a_row_for_each_minute(db: psycopg.Connection) -> None:
    put(db, "q")
    for _ in range(3):
        write_minute(db)
    assert minutes(db, columns="ready") == [1, 1, 1]
    assert minutes(db) == [1, 0, 0]
    assert value(db, "SELECT count(*) FROM pgqueue.history_mark") == 1


@pytest.mark.parametrize("how", ["SELECT pgqueue.truncate_queue('q')", "TRUNCATE pgqueue.task"])
def test_a_queue_that_was_emptied_at_once_is_seen_empty(db: psycopg.Connection, how: str) -> None:
    put(db, "q")
    write_minute(db)
    db.execute(how)  # type: ignore[arg-type]
    write_minute(db)
    write_minute(db)
    assert minutes(db, columns="ready") == [1, 0]
    assert all(n >= 0 for n in summed(db))


# --- races


def test_two_sessions_in_the_same_minute_write_it_once(db: psycopg.Connection, connect: Connect) -> None:
    """T1 has written the minute and is open: T2 passes by, and does not wait; nor is anything left for T2 after it."""
    put(db, "q")
    other = connect(options="-c lock_timeout=500")
    pass_minutes(db)
    with db.transaction():
        db.execute(TICK)
        other.execute(TICK)
        assert rows(other, "SELECT FROM pgqueue.history") == []
    other.execute(TICK)
    assert summed(db)[0] == 1
    assert len(minutes(db)) == 1 or minutes(db, columns="ready") == [1, 1]  # a minute that was over by itself


def test_what_a_round_wrote_that_rolled_back_comes_in_the_next_minute(db: psycopg.Connection) -> None:
    put(db, "q")
    pass_minutes(db)
    with db.transaction(force_rollback=True):
        db.execute(TICK)
        assert summed(db)[0] == 1
    assert minutes(db) == []
    write_minute(db)
    assert minutes(db) == [1]


def test_a_minute_that_is_written_twice_adds_up(db: psycopg.Connection) -> None:
    """After a step back of the clock the same minute comes again."""
    put(db, "q")
    write_minute(db)
    put(db, "q")
    written = "to_timestamp(60 * (last_value >> 31))"
    db.execute(
        f"SELECT pgqueue._write_minute({written}, ARRAY (SELECT id FROM pgqueue.queue)) FROM pgqueue.history_turn"
    )
    assert rows(db, "SELECT puts, ready, most_ready FROM pgqueue.queue_history") == [(2, 2, 2)]


def test_every_call_is_in_one_minute_while_sessions_put_tick_and_roll_back(
    db: psycopg.Connection, connect: Connect
) -> None:
    db.execute("SELECT pgqueue.create_queue('q')")

    def client(seed: int) -> int:
        chance, conn, n = random.Random(seed), connect(), 0
        for _ in range(40):
            if chance.random() < 0.5:
                keep = chance.random() < 0.7
                with conn.transaction(force_rollback=not keep):
                    put(conn, "q")
                    conn.execute(TICK)
                n += keep
            else:
                put(conn, "q")
                n += 1
                # The same minute again, and all at once: turns are made new under each other's feet.
                conn.execute(
                    "SELECT setval('pgqueue.history_turn', (last_value >> 31 << 31) - 1)"
                    " FROM pgqueue.history_turn WHERE is_called"
                )
                conn.execute(TICK)
        return n

    with ThreadPoolExecutor(4) as pool:
        n = sum(pool.map(client, range(4)))
    write_minute(db)
    assert summed(db)[0] == n
    assert value(db, "SELECT count(*) FROM pgqueue.history_mark") == 1


def test_a_call_that_commits_late_is_counted_in_a_later_minute(db: psycopg.Connection, connect: Connect) -> None:
    other = connect()
    put(db, "q")
    with other.transaction():
        put(other, "q")
        write_minute(db)
        assert minutes(db) == [1]
    write_minute(db)
    assert minutes(db) == [1, 1]


# --- what happens to counters and queues


def crash(conn: psycopg.Connection) -> None:
    """What a crash of the server leaves of the UNLOGGED tables."""
    with conn.transaction():
        conn.execute("SET LOCAL session_replication_role = replica")  # a crash fires no triggers
        conn.execute(
            "TRUNCATE pgqueue.delta, pgqueue.counter, pgqueue.fold, pgqueue.recount, pgqueue.take, pgqueue.sample,"
            " pgqueue.history_mark"
        )
        conn.execute("SELECT setval('pgqueue.history_turn', 0, false)")


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_after_a_crash_the_next_minutes_are_exact(db: psycopg.Connection, after: int) -> None:
    for _ in range(3):
        put(db, "q")
    write_minute(db)
    crash(db)
    for _ in range(after):
        put(db, "q")
    write_minute(db)
    write_minute(db)
    assert minutes(db) == [3, after, 0]
    assert minutes(db, columns="ready") == [3, 3 + after, 3 + after]


def test_counters_that_were_emptied_by_hand_never_give_a_negative_number(db: psycopg.Connection) -> None:
    for _ in range(3):
        put(db, "q")
    write_minute(db)
    db.execute("TRUNCATE pgqueue.delta, pgqueue.counter, pgqueue.fold")
    put(db, "q")
    write_minute(db)
    assert minutes(db) == [3, 1]


def test_the_history_stays_with_a_queue_that_is_renamed_and_ends_with_it(db: psycopg.Connection) -> None:
    put(db, "q")
    write_minute(db)
    db.execute("SELECT pgqueue.rename_queue('q', 'other')")
    put(db, "other")
    write_minute(db)
    assert minutes(db, "other") == [1, 1]
    db.execute("SELECT pgqueue.delete_queue('other')")
    assert rows(db, "SELECT * FROM pgqueue.queue_history") == []
    put(db, "other")
    write_minute(db)
    assert minutes(db, "other") == [1]
    db.execute("SELECT pgqueue.clean_up()")
    assert column(db, "SELECT DISTINCT queue_id FROM pgqueue.history") == column(db, "SELECT id FROM pgqueue.queue")
    assert value(db, "SELECT count(*) FROM pgqueue.history_mark") == 1


# --- rounds


@pytest.mark.slow
def test_a_round_has_a_thousand_queues_and_the_next_tick_goes_on(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.put('q' || n, '1') FROM generate_series(1, 2100) n")
    pass_minutes(db)
    counts = []
    for _ in range(4):
        db.execute(TICK)
        counts.append(value(db, "SELECT count(*) FROM pgqueue.history"))
    if len(column(db, "SELECT DISTINCT at FROM pgqueue.history")) == 1:
        assert counts == [1000, 2000, 2100, 2100]
    assert rows(db, "SELECT sum(puts), count(DISTINCT queue) FROM pgqueue.queue_history") == [(2100, 2100)]


def test_a_round_that_was_left_long_ago_begins_anew(db: psycopg.Connection) -> None:
    put(db, "q")
    db.execute(
        "SELECT setval('pgqueue.history_turn',"
        " ((floor(extract(epoch FROM clock_timestamp()) / 60)::bigint - 60) << 31) + 5)"
    )
    db.execute(TICK)
    assert value(db, "SELECT now() - at < '3 min' FROM pgqueue.queue_history") is True


def test_an_error_is_a_warning_and_the_tick_does_the_rest(db: psycopg.Connection) -> None:
    put(db, "q")
    id = put(db, "q", delay="1 h")
    db.execute("UPDATE pgqueue.task SET run_at = now() - interval '1 s' WHERE id = %s", [id])
    pass_minutes(db)
    told: list[tuple[str | None, str | None]] = []
    db.add_notice_handler(lambda one: told.append((one.severity, one.message_primary)))
    db.execute("ALTER TABLE pgqueue.history ADD CONSTRAINT broken CHECK (false)")
    db.execute(TICK)
    assert [severity for severity, _ in told] == ["WARNING"]
    assert re.match("pgqueue: 1 queues get no row for the minute .*broken", str(told[0][1]))
    assert value(db, "SELECT ready FROM pgqueue.stats") == 2
    assert value(db, "SELECT count(*) FROM pgqueue.sample") == 1
    db.execute("ALTER TABLE pgqueue.history DROP CONSTRAINT broken")
    write_minute(db)
    assert minutes(db) == [2], "the next minute has what that one lacks"


def test_a_locked_history_keeps_no_tick_waiting(db: psycopg.Connection, connect: Connect) -> None:
    put(db, "q")
    pass_minutes(db)
    other = connect()
    db.execute("SET lock_timeout = '500ms'")
    with other.transaction():
        other.execute("LOCK TABLE pgqueue.history")
        db.execute(TICK)
    db.execute(TICK)
    assert minutes(db) == [1]


def test_an_older_snapshot_writes_nothing(db: psycopg.Connection) -> None:
    put(db, "q")
    pass_minutes(db)
    with db.transaction():
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        db.execute(TICK)
    assert minutes(db) == []


# --- folding


def test_each_call_is_in_one_row_at_every_age(db: psycopg.Connection) -> None:
    chance, expected = random.Random(1), 0
    for step in ["1 min", "20 min", "1 h", "1 d", "2 h", "3 d", "20 d", "12 d", "1 min", "200 d", "3 d"]:
        for _ in range(n := chance.randrange(1, 5)):
            put(db, "q")
        expected += n
        write_minute(db)
        assert summed(db)[0] == expected
        shift_history(db, step)
        db.execute("SELECT pgqueue.clean_up()")
        assert summed(db)[0] == expected, step
    periods = dict(rows(db, "SELECT period, count(*) FROM pgqueue.queue_history GROUP BY 1"))
    assert set(periods) == {"hour", "day"}
    shift_history(db, "400 d")
    db.execute("SELECT pgqueue.clean_up(), pgqueue.clean_up()")
    assert minutes(db) == []


def test_a_folded_hour_has_the_last_length_and_the_most(db: psycopg.Connection) -> None:
    put(db, "q")
    id = value(db, "SELECT id FROM pgqueue.queue")
    db.execute(
        "INSERT INTO pgqueue.history SELECT date_trunc('hour', now() - interval '2 d', 'UTC') + n * interval '1 min',"
        " 1, 2, 3, 4, 5, 6, 7, %s, n, 100 - n, n, n, n, n, 60 - n, 'm' FROM generate_series(0, 59) n",
        [id],
    )
    db.execute("SELECT pgqueue.clean_up()")
    assert rows(
        db,
        f"SELECT at = date_trunc('hour', now() - interval '2 d', 'UTC'), period, {CALLS}, ready, most_ready, taken,"
        " extract(epoch FROM oldest_ready_age)::int"
        " FROM pgqueue.queue_history",
    ) == [(True, "hour", 60, 120, 180, 180 + 240, 300, 360, 420, 59, 100, 59, 60)]


def test_a_cleaning_folds_a_hundred_queues_and_all_have_their_turn(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.put('q' || n, '1') FROM generate_series(1, 150) n")
    write_minute(db)
    shift_history(db, "3 d")
    folded = []
    for turn in range(3):
        db.execute("SELECT pgqueue._fold_history(%s)", [turn])
        folded.append(value(db, "SELECT count(*) FROM pgqueue.queue_history WHERE period = 'hour'"))
    assert folded == [100, 150, 150]


# --- reading


def fill(conn: psycopg.Connection) -> None:
    """A put in each minute of two hours, of `q`, and one in every tenth of `other`."""
    put(conn, "q")
    put(conn, "other")
    conn.execute(
        "INSERT INTO pgqueue.history SELECT date_trunc('minute', now()) - n * interval '1 min', 1, 0, 0, 0, 0, 0, 0,"
        " q.id, n, n, 0, 0, 0, 0, n, 'm' FROM pgqueue.queue q, generate_series(1, 120) n"
        " WHERE q.name = 'q' OR n % 10 = 0"
    )


def test_history_adds_up_to_the_spacing(db: psycopg.Connection) -> None:
    fill(db)
    found = rows(db, "SELECT at, puts, ready, most_ready FROM pgqueue.history('{q}', '1 h', '5 min')")
    assert len(found) in (12, 13)
    assert {puts for _, puts, _, _ in found[:-1]} == {5}
    assert all(at.minute % 5 == 0 and most == ready + 4 for at, _, ready, most in found[:-1])
    assert value(db, "SELECT sum(puts) FROM pgqueue.history('{q}', '3 h', '1 h')") == 120
    assert value(db, "SELECT sum(puts) FROM pgqueue.history('{other,none}', '3 h')") == 12
    assert value(db, "SELECT count(DISTINCT queue) FROM pgqueue.history(NULL, '1 h')") == 2


@pytest.mark.parametrize(
    ("since", "step"),
    [
        ("30 min", "1 min"),
        ("1 h", "1 min"),
        ("3 h", "2 min"),
        ("1 day", "15 min"),
        ("7 days", "2 h"),
        ("31 days", "8 h"),
        ("366 days", "4 days"),
    ],
)
def test_the_usual_spacing_gives_up_to_a_hundred_periods(db: psycopg.Connection, since: str, step: str) -> None:
    assert value(db, "SELECT usual = %s::interval FROM pgqueue._history_spacing(%s)", step, since) is True


@pytest.mark.parametrize(
    ("since", "every"),
    [
        ("-1 s", None),
        ("367 days", None),
        (None, None),
        ("1 h", "59 s"),
        ("1 h", "90 s"),
        ("2 days", "1 min"),
        ("2 days", "90 min"),
        ("40 days", "1 h"),
        ("1 h", "-1 min"),
        ("1 h", "0"),
        ("1 h", "3 years"),
        ("1 year", None),
        ("1 h", "1 month"),
    ],
)
def test_a_spacing_that_the_rows_do_not_have_is_refused(
    db: psycopg.Connection, since: str | None, every: str | None
) -> None:
    query = "SELECT * FROM pgqueue.history('{q}', %s, %s)"
    if since == "1 year" or every == "1 month":
        assert rows(db, query, since, every) == []
        return
    with pytest.raises(psycopg.Error) as caught:
        rows(db, query, since, every)
    assert caught.value.sqlstate == "PQ002"


def test_a_role_sees_the_history_of_queues_that_it_may_look_into(
    db: psycopg.Connection, connect: Connect, make: Any
) -> None:
    put(db, "q")
    put(db, "secret")
    restrict(db, "secret")
    write_minute(db)
    user = connect(options=f"-c role={make()}")
    monitor = connect(options=f"-c role={make('SELECT pgqueue.grant_monitor(%s)')}")
    for query in ("SELECT DISTINCT queue FROM pgqueue.queue_history", "SELECT DISTINCT queue FROM pgqueue.history()"):
        assert column(user, query) == ["q"]
        assert column(monitor, f"{query} ORDER BY 1") == ["q", "secret"]
