"""The statistics of jobs: what workers count, how it is folded, and which roles see it."""

from __future__ import annotations

import json
import random
from typing import Any

import psycopg
import pytest
from eventually import eventually
from rights_victim import refused, restrict
from statements import column, put, row, rows, value

BOUNDS = 21
NUMBERS = ("done", "failed", "retried", "timeouts", "cancelled")


def counts(**at: int) -> list[int]:
    """A histogram with these numbers in these buckets: b3=5."""
    found = [0] * (BOUNDS + 1)
    for name, n in at.items():
        found[int(name[1:])] = n
    return found


def runs(queue: str = "q", job: str = "j", **numbers: Any) -> dict[str, Any]:
    return {"queue": queue, "job": job, "waits": counts(b0=1), "runs": counts(b0=1), "done": 1, **numbers}


def count(conn: psycopg.Connection, *given: dict[str, Any], writer: int = 1, batch: int = 1) -> int:
    return int(value(conn, "SELECT pgqueue.count_runs(%s, %s, %s::jsonb)", writer, batch, json.dumps(given)))


def age(conn: psycopg.Connection, by: str) -> None:
    """Let everything that was counted be so much older."""
    conn.execute("UPDATE pgqueue.tally_part SET at = at - %s::interval", [by])
    conn.execute(
        "UPDATE pgqueue.tally SET at = at - %s::interval, last_at = last_at - %s::interval WHERE period <> 'all'",
        [by, by],
    )
    conn.execute("UPDATE pgqueue.tally SET last_at = last_at - %s::interval WHERE period = 'all'", [by])


def total(conn: psycopg.Connection) -> tuple[Any, ...] | None:
    return row(conn, "SELECT done, failed, ran, runs FROM pgqueue.job_runs(NULL) WHERE job = 'j'")


@pytest.fixture(autouse=True)
def queue(db: psycopg.Connection) -> None:
    put(db, "q")


def test_the_bounds_are_those_of_the_library(db: psycopg.Connection) -> None:
    from pgqueue._calls.tallies import BOUNDS as ours

    assert tuple(value(db, "SELECT pgqueue.run_bounds()")) == ours


def test_calls_of_several_workers_add_up(db: psycopg.Connection) -> None:
    assert count(db, runs(done=3, ran=1.5), runs(job="k", failed=1)) == 2
    assert count(db, runs(done=4, ran=0.5, runs=counts(b0=1, b7=2)), batch=2) == 1
    assert count(db, runs(retried=2), writer=2) == 1
    assert rows(db, "SELECT job, done, failed, retried, ran FROM pgqueue.job_runs() ORDER BY 1") == [
        ("j", 8, 0, 2, 2.0),
        ("k", 1, 1, 0, 0.0),
    ]
    assert value(db, "SELECT runs FROM pgqueue.job_runs() WHERE job = 'j'") == counts(b0=3, b7=2)


def test_a_repeated_call_counts_once(db: psycopg.Connection) -> None:
    count(db, runs(), batch=7)
    assert count(db, runs(), batch=7) == 0
    assert count(db, runs(), batch=6) == 0
    age(db, "1 min")
    assert count(db, runs(), batch=7) == 0, "the minute was over in between"
    assert count(db, runs(), batch=8) == 1
    assert value(db, "SELECT done FROM pgqueue.job_runs()") == 2


def test_workers_do_not_wait_for_each_other(db: psycopg.Connection, connect: Any) -> None:
    other = connect(options="-c lock_timeout=500")
    with db.transaction():
        count(db, runs())
        assert count(other, runs(), writer=2) == 1


def test_each_run_is_counted_once_at_every_age(db: psycopg.Connection) -> None:
    """Folded by minutes, hours and days: in one row at any time; and the sum of all times stays."""
    chance = random.Random(1)
    expected = 0
    for batch, step in enumerate(["1 min", "4 min", "50 min", "2 h", "1 d", "3 d", "40 d", "1 min", "46 d", "5 d"], 1):
        n = chance.randrange(1, 9)
        count(db, runs(done=n, ran=float(n), runs=counts(b2=n)), batch=batch, writer=batch)
        expected += n
        if batch == 7:
            continue  # without a fold in between
        db.execute("SELECT pgqueue.clean_up()")
        assert total(db) == (expected, 0, float(expected), counts(b2=expected))
        kept = value(db, "SELECT sum(done) FROM pgqueue.tally WHERE period <> 'all'") or 0
        fresh = value(db, "SELECT coalesce(sum(done), 0) FROM pgqueue.tally_part")
        assert kept + fresh == expected or batch > 8, step
        age(db, step)
    db.execute("SELECT pgqueue.clean_up()")
    periods = dict(rows(db, "SELECT period, count(*) FROM pgqueue.tally GROUP BY 1"))
    assert periods["day"] >= 2
    assert value(db, "SELECT max(now() - at) < '91 d' FROM pgqueue.job_history")
    assert total(db) == (expected, 0, float(expected), counts(b2=expected)), "counters never fall"


def test_what_did_not_run_for_long_is_forgotten(db: psycopg.Connection) -> None:
    count(db, runs())
    age(db, "5 min")
    db.execute("SELECT pgqueue.clean_up()")
    age(db, "91 d")
    db.execute("SELECT pgqueue.clean_up()")
    assert column(db, "SELECT job FROM pgqueue.tally") == []


def test_a_deleted_queue_has_no_statistics(db: psycopg.Connection) -> None:
    count(db, runs())
    age(db, "5 min")
    db.execute("SELECT pgqueue.clean_up(), pgqueue.delete_queue('q', force => true)")
    assert rows(db, "SELECT * FROM pgqueue.job_stats") == []
    assert count(db, runs(), batch=2) == 0
    db.execute("SELECT pgqueue.clean_up()")
    assert column(db, "SELECT job FROM pgqueue.tally") == []


def test_a_fold_passes_a_row_that_a_worker_has_locked(db: psycopg.Connection, connect: Any) -> None:
    count(db, runs(), writer=1)
    count(db, runs(), writer=2)
    age(db, "5 min")
    other = connect()
    with other.transaction():
        other.execute("SELECT FROM pgqueue.tally_part WHERE writer = 1 FOR UPDATE")
        db.execute("SET lock_timeout = '500ms'")
        db.execute("SELECT pgqueue.clean_up()")
        assert column(db, "SELECT writer FROM pgqueue.tally_part") == [1]
        assert total(db) == (2, 0, 0.0, counts(b0=2))
    db.execute("SELECT pgqueue.clean_up()")
    assert total(db) == (2, 0, 0.0, counts(b0=2))
    assert column(db, "SELECT writer FROM pgqueue.tally_part") == []


def test_a_reader_sees_each_run_once_while_folds_go_on(db: psycopg.Connection, connect: Any) -> None:
    """A snapshot has a run either before its fold or after it."""
    for writer in range(1, 40):
        count(db, runs(), writer=writer)
    age(db, "5 min")
    reader, folder = connect(), connect()
    with reader.transaction():
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        before = total(reader)
        folder.execute("SELECT pgqueue.clean_up()")
        assert total(reader) == before
    assert total(reader) == before == (39, 0, 0.0, counts(b0=39))


@pytest.mark.parametrize(
    ("histogram", "half", "most"),
    [
        (counts(), None, None),
        (counts(b0=100), 0.0005, 0.00095),
        (counts(b9=100), 0.75, 0.975),
        (counts(b0=50, b9=50), 0.001, 0.95),
        (counts(b21=3), 14400.0, 14400.0),
        (counts(b0=1, b21=1), 0.001, 14400.0),
    ],
    ids=["none", "first", "one", "two", "last", "both ends"],
)
def test_percentiles_lie_in_their_bucket(
    db: psycopg.Connection, histogram: list[int], half: float | None, most: float | None
) -> None:
    found = row(db, "SELECT pgqueue._percentile(%s, 0.5), pgqueue._percentile(%s, 0.95)", histogram, histogram)
    assert found == (pytest.approx(half), pytest.approx(most))


def test_percentiles_are_near_those_of_the_values(db: psycopg.Connection) -> None:
    bounds = value(db, "SELECT pgqueue.run_bounds()")
    chance = random.Random(2)
    seconds = sorted(chance.lognormvariate(-2, 1.5) for _ in range(5000))
    found = [sum(low < s <= high for s in seconds) for low, high in zip([0, *bounds], [*bounds, 1e9], strict=True)]
    for share in (0.5, 0.95):
        estimate = value(db, "SELECT pgqueue._percentile(%s::bigint[], %s)", found, share)
        assert estimate == pytest.approx(seconds[int(share * 5000)], rel=0.3)


def test_job_stats_say_what_workers_have_now(db: psycopg.Connection) -> None:
    """Only of registered workers, and only under names of their jobs: other data is not for monitors."""
    for data in ({"job": "shop.send", "args": {}}, {"job": "secret"}, "plain", {"job": "shop.send"}, {"job": ["x"]}):
        db.execute("SELECT pgqueue.put('jobs', %s::jsonb)", [json.dumps(data)])
    db.execute("SELECT pgqueue.register_worker(1, '{jobs}', '{shop.send,shop.bill}')")
    db.execute("SELECT pgqueue.take_many('{jobs}', 5)")
    assert rows(db, "SELECT queue, job, taken, done, run_p50 FROM pgqueue.job_stats ORDER BY 2") == [
        ("jobs", "", 3, 0, None),
        ("jobs", "shop.send", 2, 0, None),
    ]
    db.execute("SELECT pgqueue.unregister_worker(1)")
    assert rows(db, "SELECT * FROM pgqueue.job_stats") == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"waits": [1]}, 'a histogram of job "j" must be 22 numbers'),
        ({"runs": counts(b1=-1)}, "must be 22 numbers from 0"),
        ({"runs": counts(b1=10**10)}, "must be 22 numbers from 0 to 1000000000"),
        ({"runs": [counts(), counts()]}, "must be 22 numbers"),
        ({"runs": [None, *counts()[1:]]}, "must be 22 numbers"),
        ({"runs": None}, "must be 22 numbers"),
        ({"runs": "x"}, "runs: "),
        ({"done": -1}, "out of range"),
        ({"done": 10**18}, "out of range"),
        ({"done": 10**30}, "runs: "),
        ({"ran": "NaN"}, "out of range"),
        ({"waited": "infinity"}, "out of range"),
        ({"ran": -1}, "out of range"),
        ({"job": None}, "job cannot be NULL"),
        ({"job": "j" * 256}, "at most 255 bytes"),
        ({"queue": None}, "cannot be NULL"),
    ],
    ids=str,
)
def test_what_cannot_be_added_up_is_refused(db: psycopg.Connection, given: dict[str, Any], says: str) -> None:
    with pytest.raises(psycopg.Error, match=says) as caught:
        count(db, runs(**given))
    assert caught.value.sqlstate == "PQ002"
    assert rows(db, "SELECT * FROM pgqueue.tally_part") == []


def test_a_job_that_is_named_twice_in_a_call_is_refused(db: psycopg.Connection) -> None:
    with pytest.raises(psycopg.Error) as caught:
        count(db, runs(), runs())
    assert caught.value.sqlstate == "PQ002"


def test_too_many_names_become_one(db: psycopg.Connection) -> None:
    db.execute(
        "INSERT INTO pgqueue.tally SELECT '-infinity', now(), q.id, 1, 0, 0, 0, 0, 0, 0, 'all', 'old' || n,"
        " array_fill(0, '{22}'), array_fill(0, '{22}') FROM pgqueue.queue q, generate_series(1, 1000) n"
    )
    count(db, runs(job="new"), runs(job="old7"), runs(job="newer"))
    age(db, "5 min")
    db.execute("SELECT pgqueue.clean_up()")
    assert rows(db, "SELECT job, done FROM pgqueue.tally WHERE period = 'minute' ORDER BY 1") == [
        ("(others)", 2),
        ("old7", 1),
    ]


def test_a_role_counts_and_sees_what_it_may_take_from_and_look_into(
    db: psycopg.Connection, connect: Any, make: Any
) -> None:
    put(db, "secret")
    restrict(db, "secret")
    count(db, runs(queue="secret"), runs())
    user = connect(options=f"-c role={make()}")
    monitor = connect(options=f"-c role={make('SELECT pgqueue.grant_monitor(%s)')}")
    assert count(user, runs(), writer=2) == 1
    refused(user, "SELECT pgqueue.count_runs(3, 1, %s::jsonb)", json.dumps([runs(queue="secret")]))
    refused(monitor, "SELECT pgqueue.count_runs(3, 1, %s::jsonb)", json.dumps([runs()]))
    assert column(user, "SELECT DISTINCT queue FROM pgqueue.job_stats") == ["q"]
    assert column(monitor, "SELECT DISTINCT queue FROM pgqueue.job_stats ORDER BY 1") == ["q", "secret"]
    age(db, "5 min")
    db.execute("SELECT pgqueue.clean_up()")
    assert column(user, "SELECT DISTINCT queue FROM pgqueue.job_history") == ["q"]
    assert column(monitor, "SELECT DISTINCT queue FROM pgqueue.job_history ORDER BY 1") == ["q", "secret"]


# --- time to start


def test_a_claim_says_for_how_long_its_tasks_were_ready(db: psycopg.Connection) -> None:
    first, kicked, late = put(db, "w"), put(db, "w"), put(db, "w", delay="1 h")
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '1 h' WHERE id IN (%s, %s)", [first, kicked])
    db.execute("UPDATE pgqueue.task SET ready_at = now() - interval '5 s' WHERE id = %s", [kicked])
    db.execute("UPDATE pgqueue.task SET run_at = now() - interval '1 min' WHERE id = %s", [late])
    assert value(db, "SELECT waited FROM pgqueue.take_many('{w}', 1)") == pytest.approx(3600, abs=5)
    found = dict(rows(db, "SELECT id, waited FROM pgqueue.take_many('{w}', 5)"))
    assert found == {kicked: pytest.approx(5, abs=5), late: pytest.approx(60, abs=5)}


def test_a_claim_in_lanes_says_so_too(db: psycopg.Connection) -> None:
    put(db, "lanes", lane="a")
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '1 h'")
    assert value(db, "SELECT waited FROM pgqueue.take_many('{lanes}', 5)") == pytest.approx(3600, abs=5)


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "now() + interval '1 h'"])
def test_a_moment_that_only_raw_sql_writes_does_not_stop_a_claim(db: psycopg.Connection, moment: str) -> None:
    literal = moment if "(" in moment else f"'{moment}'"
    db.execute(f"UPDATE pgqueue.task SET created_at = {literal}".encode())
    assert value(db, "SELECT waited FROM pgqueue.take_many('{q}', 1)") == 0


# --- workers


def test_a_worker_registers_and_ends_with_its_session(db: psycopg.Connection, connect: Any) -> None:
    conn = connect()
    session = value(conn, "SELECT pgqueue.open_session(label => 'web1:4711:worker.py', grace => '0')")
    conn.execute("SELECT pgqueue.register_worker(2, '{mail,bills}', '{shop.send}', 8, '{\"grace\": 30}', '0.1')")
    columns = "session, number, name, host, pid, state, queues, jobs, concurrency, limits, version"
    found = row(db, f"SELECT {columns} FROM pgqueue.workers")
    assert found == (
        *(session, 2, "web1:4711:worker.py", "web1", 4711, "connected", ["mail", "bills"], ["shop.send"], 8),
        *({"grace": 30}, "0.1"),
    )
    conn.close()

    def swept() -> bool:
        db.execute("SELECT pgqueue.sweep()")
        return rows(db, "SELECT * FROM pgqueue.worker") == []

    assert eventually(swept)


def test_a_registration_that_comes_after_its_sessions_end_is_removed(db: psycopg.Connection) -> None:
    db.execute(
        "INSERT INTO pgqueue.worker VALUES (12345, 1, 1, now(), 'late', '{q}', '{}', '{}', '')",
    )
    assert rows(db, "SELECT * FROM pgqueue.workers") == []
    db.execute("SELECT pgqueue.clean_up()")
    assert rows(db, "SELECT * FROM pgqueue.worker") == []


def test_a_dead_session_registers_no_worker(db: psycopg.Connection) -> None:
    with pytest.raises(psycopg.Error) as caught:
        db.execute("SELECT pgqueue.register_worker(1, '{q}', session => 12345)")
    assert caught.value.sqlstate == "PQ004"


def test_a_locked_table_does_not_stop_the_cleaning(db: psycopg.Connection, connect: Any) -> None:
    other = connect()
    with other.transaction():
        other.execute("LOCK TABLE pgqueue.tally, pgqueue.worker")
        db.execute("SET lock_timeout = '500ms'")
        db.execute("SELECT pgqueue.clean_up()")


# --- the check `unserved`


@pytest.fixture
def unserved(db: psycopg.Connection) -> Any:
    """A queue with a task that waits for an hour, and a sample of a minute ago; workers were here once."""
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '1 h'")
    db.execute("SELECT pgqueue.promote_all()")
    db.execute("UPDATE pgqueue.sample SET sampled_at = now() - interval '1 min'")
    count(db, runs(queue="q"))
    age(db, "5 min")
    db.execute("SELECT pgqueue.clean_up()")

    def check() -> tuple[Any, ...] | None:
        return row(db, "SELECT status, value, detail FROM pgqueue.health WHERE name = 'unserved'")

    assert check() == ("warn", 1.0, "no worker serves q")
    return check


WELL = ("ok", 0.0, "")


def test_a_registered_worker_serves_its_queues(db: psycopg.Connection, unserved: Any) -> None:
    db.execute("SELECT pgqueue.register_worker(1, '{other}')")
    assert unserved()[0] == "warn"
    db.execute("SELECT pgqueue.register_worker(1, '{other,q}')")
    assert unserved() == WELL


def test_a_taker_without_a_registration_serves_too(db: psycopg.Connection, unserved: Any) -> None:
    put(db, "q")
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '1 h'")
    db.execute("SELECT pgqueue.take('q')")
    assert unserved() == WELL, "it has a task"
    db.execute("SELECT pgqueue.release_all('q')")
    assert unserved() == WELL, "it took one within the last minutes"


def test_a_taker_that_waits_serves(db: psycopg.Connection, connect: Any, unserved: Any) -> None:
    waiting = connect()
    waiting.execute("SELECT pgqueue.open_session()")
    waiting.execute("SELECT pgqueue.arm(ARRAY [pgqueue.queue_id('q')])")
    assert unserved() == WELL


AN_HOUR_AGO = "UPDATE pgqueue.task SET created_at = now() - interval '1 h'"
SPENT = "UPDATE pgqueue.bucket SET tokens = 0, filled_at = now() - interval '{}'"


def limited(db: psycopg.Connection, terms: str) -> None:
    """q has a limit, and as by a taker that came an hour ago, spent the token and went, no session."""
    db.execute("SELECT pgqueue.delete(id) FROM pgqueue.task")
    db.execute(f"SELECT pgqueue.set_limit('q', {terms})".encode())
    put(db, "q")
    assert column(db, "SELECT pgqueue.ack(id) FROM pgqueue.take('q')")
    db.execute("DELETE FROM pgqueue.sample")
    db.execute("SELECT pgqueue.promote_all()")
    db.execute("UPDATE pgqueue.sample SET sampled_at = now() - interval '1 min'")


@pytest.mark.parametrize(
    ("terms", "changes", "warns"),
    [
        ("concurrency => 1", [AN_HOUR_AGO], True),
        ("concurrency => 1", [], False),
        ("rate => 1, per => '10 min'", [AN_HOUR_AGO, SPENT.format("11 min 5 s")], True),
        ("rate => 1, per => '10 min'", [AN_HOUR_AGO, SPENT.format("9 min")], False),
        ("rate => 1, per => '10 min'", [AN_HOUR_AGO, "DELETE FROM pgqueue.bucket"], True),
        ("rate => 1, per => '10 min'", [AN_HOUR_AGO], False),
        ("concurrency => 1", [AN_HOUR_AGO, "UPDATE pgqueue.task SET expires_at = now()"], False),
    ],
    ids=["a slot", "young", "a token", "no token yet", "a full bucket", "a spent one", "expired"],
)
def test_tasks_that_could_begin_by_their_limit_want_a_taker(
    db: psycopg.Connection, unserved: Any, terms: str, changes: list[str], warns: bool
) -> None:
    limited(db, terms)
    put(db, "q")
    for change in changes:
        db.execute(change.encode())
    assert value(db, "SELECT count(*) FROM pgqueue.task WHERE state = 'R'") == 0
    assert unserved() == (("warn", 1.0, "no worker serves q") if warns else WELL)


def test_what_waited_before_and_is_gone_hides_nothing(db: psycopg.Connection, unserved: Any) -> None:
    limited(db, "concurrency => 1, argument => 'key'")
    db.execute("SELECT pgqueue.put('q', jsonb_build_object('key', i)) FROM generate_series(1, 300) i")
    db.execute("SELECT pgqueue.delete(id) FROM pgqueue.task")
    assert unserved() == WELL
    put(db, "q")
    db.execute(AN_HOUR_AGO.encode())
    assert unserved()[0] == "warn"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE pgqueue.task SET created_at = now() - interval '10 s'; DELETE FROM pgqueue.oldest",
        "SELECT pgqueue.pause_queue('q', '1 h')",
        "SELECT pgqueue.create_queue('source', dead_letter => '', dead_letter_key => 'q')",
        "DELETE FROM pgqueue.tally",
        "DELETE FROM pgqueue.sample",
        "SELECT pgqueue.delete(id) FROM pgqueue.task",
    ],
    ids=["young", "paused", "dead letters", "no worker was ever here", "no tick", "empty"],
)
def test_it_is_silent_where_it_would_be_a_false_alarm(db: psycopg.Connection, unserved: Any, change: str) -> None:
    db.execute(change.encode())
    assert unserved() == WELL


@pytest.mark.parametrize(
    ("kind", "bound", "key", "silent"),
    [
        ("direct", "dead", "dead", True),
        ("direct", "dead", None, True),  # under the keys of their puts
        ("direct", "orders", "dead", False),
        ("topic", "dead.*", "dead.source", True),
        ("topic", "dead.*", "orders.source", True),  # patterns are not compared
        ("topic", "dead.*", None, True),
        ("fanout", "", "dead", True),
    ],
)
def test_it_is_silent_for_a_queue_that_is_bound_to_the_exchange_of_dead_letters(
    db: psycopg.Connection, unserved: Any, kind: str, bound: str, key: str | None, silent: bool
) -> None:
    db.execute("SELECT pgqueue.declare_exchange('letters', %s)", [kind])
    db.execute("SELECT pgqueue.bind('q', 'letters', %s)", [bound])
    assert unserved()[0] == "warn"
    db.execute("SELECT pgqueue.create_queue('source', dead_letter => 'letters', dead_letter_key => %s)", [key])
    assert (unserved() == WELL) is silent
