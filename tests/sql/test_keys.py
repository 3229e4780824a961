"""A key that at most one task of a queue has, unless it is done: put(key, if_exists) and put_many(keys)."""

from __future__ import annotations

import psycopg
import pytest
from eventually import eventually
from statements import column, everything, put, row, rows, state, take, value
from stepping import waiting

PUT = "SELECT id, state, existed, kept FROM pgqueue.put('q', %s::jsonb, key => %s, if_exists => %s)"


@pytest.fixture(autouse=True)
def queue(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.queue_id('q')")


def keyed(conn: psycopg.Connection, data: str, key: str | None, if_exists: str = "ignore") -> tuple:
    return row(conn, PUT, data, key, if_exists)


def test_the_first_task_stays_and_the_answer_says_which(db):
    id, *rest = keyed(db, "1", "k")
    assert rest == ["ready", False, None]
    assert keyed(db, "2", "k") == (id, "ready", True, 1)
    assert rows(db, "SELECT id, data, key FROM pgqueue.tasks") == [(id, 1, "k")]


def test_keys_are_of_one_queue(db):
    id = keyed(db, "1", "k")[0]
    other = put(db, "other", key="k")
    assert other != id
    assert put(db, "other", key="k2") != other


@pytest.mark.parametrize("prepare", ["", "take", "bury", "delay"])
def test_any_task_that_is_not_done_counts(db, prepare):
    id = keyed(db, "1", "k")[0]
    if prepare:
        _, token = take(db, "q")
        if prepare == "bury":
            db.execute("SELECT pgqueue.bury(%s, %s)", [id, token])
        elif prepare == "delay":
            db.execute("SELECT pgqueue.release(%s, %s, delay => '1 h')", [id, token])
    before = everything(db, id)
    assert keyed(db, "2", "k")[0] == id
    assert everything(db, id) == before


def test_a_done_task_does_not_count(db):
    id = keyed(db, "1", "k")[0]
    db.execute("SELECT pgqueue.ack(%s, %s)", take(db, "q"))
    again = keyed(db, "2", "k")
    assert again[0] != id
    assert again[2] is False


def test_error_names_queue_key_and_task(db):
    id = keyed(db, "1", "k")[0]
    with pytest.raises(psycopg.Error, match=f'"q".*"k".*task {id}') as caught:
        keyed(db, "2", "k", "error")
    assert caught.value.sqlstate == "PQ038"
    assert value(db, "SELECT data FROM pgqueue.tasks") == 1


def test_replace_keeps_the_id_and_nothing_else(db):
    id = keyed(db, "1", "k")[0]
    db.execute("SELECT pgqueue.release(%s, %s, error => 'e')", take(db, "q"))
    db.execute("SELECT pgqueue.bury(%s)", [id])
    new = row(
        db,
        "SELECT id, state, existed, kept FROM pgqueue.put('q', '2', priority => 3, delay => '1 h', ttr => '5 s',"
        " key => 'k', if_exists => 'replace')",
    )
    assert new == (id, "delayed", True, None)
    assert row(db, "SELECT data, priority, attempts, error, ttr::text, state FROM pgqueue.tasks") == (
        (2, 3, 0, None, "00:00:05", "delayed")
    )


def test_replace_replaces_the_lane_too(db):
    first, second = (put(db, "q", lane="a") for _ in range(2))
    id = put(db, "q", lane="a", key="k")
    assert state(db, id) == "blocked"
    assert put(db, "q", lane="b", key="k", if_exists="replace") == id
    assert row(db, "SELECT state, lane FROM pgqueue.tasks WHERE id = %s", id) == ("ready", "b")
    assert put(db, "q", key="k", if_exists="replace", priority=-1) == id
    assert row(db, "SELECT state, lane FROM pgqueue.tasks WHERE id = %s", id) == ("ready", None)
    assert [take(db, "q")[0] for _ in range(2)] == [id, first]
    assert state(db, second) == "blocked"


def test_replace_replaces_the_lane_of_a_task_that_waited_for_another(db):
    other = put(db, "other")
    flow = "SELECT id FROM pgqueue.put_flow('q', '1', lane => 'a', key => 'k', after => ARRAY [%s]::bigint[])"
    id = value(db, flow, other)
    db.execute("SELECT pgqueue.ack(%s, %s)", take(db, "other"))
    db.execute("SELECT pgqueue.promote_all()")
    assert state(db, id) == "ready"
    assert put(db, "q", key="k", if_exists="replace") == id
    assert row(db, "SELECT state, lane FROM pgqueue.tasks WHERE id = %s", id) == ("ready", None)
    first = put(db, "q", lane="b")
    assert put(db, "q", lane="b", key="k", if_exists="replace", priority=1) == id
    assert row(db, "SELECT state, lane FROM pgqueue.tasks WHERE id = %s", id) == ("blocked", "b")
    assert take(db, "q")[0] == first


def test_a_taken_task_is_not_replaced(db):
    id = keyed(db, "1", "k")[0]
    take(db, "q")
    before = everything(db, id)
    with pytest.raises(psycopg.Error, match=f"task {id} .*taken") as caught:
        keyed(db, "2", "k", "replace")
    assert caught.value.sqlstate == "PQ039"
    assert everything(db, id) == before


def test_a_take_that_commits_while_the_replacing_put_waits_for_the_row(db, connect):
    """The put gets the row when the claim has committed its take: it has to look for it then, in a new snapshot."""
    id = keyed(db, "1", "k")[0]
    taker, putter = connect(autocommit=False), connect()
    take(taker, "q")
    with waiting(putter, db, PUT, "2", "k", "replace") as put_:
        taker.commit()
        with pytest.raises(psycopg.Error) as caught:
            put_.result(timeout=30)
    assert caught.value.sqlstate == "PQ039"
    assert value(db, "SELECT data FROM pgqueue.task WHERE id = %s", id) == 1


def test_a_put_waits_for_one_of_the_same_key_that_is_not_committed(db, connect):
    first, second = connect(autocommit=False), connect()
    id = keyed(first, "1", "k")[0]
    with waiting(second, db, PUT, "2", "k", "ignore") as put_:
        first.commit()
        assert put_.result(timeout=30)[0] == (id, "ready", True, 1)


def test_and_puts_its_own_if_that_rolls_back(db, connect):
    first, second = connect(autocommit=False), connect()
    id = keyed(first, "1", "k")[0]
    with waiting(second, db, PUT, "2", "k", "ignore") as put_:
        first.rollback()
        new, *rest = put_.result(timeout=30)[0]
    assert new != id
    assert rest == ["ready", False, None]


# --- tasks that have expired

MODES = pytest.mark.parametrize("if_exists", ["ignore", "error", "replace"])
STRICT = pytest.mark.parametrize("isolation", ["repeatable\\ read", "serializable"])


def keyed_in_any_way(conn: psycopg.Connection, many: bool, if_exists: str) -> int:
    """Put under the key k, by put or put_many."""
    if many:
        query = "SELECT (pgqueue.put_many('q', '[2]', keys => '{k}', if_exists => %s))[1]"
        return int(value(conn, query, if_exists))
    return int(keyed(conn, "2", "k", if_exists)[0])


def expire(conn: psycopg.Connection, id: int) -> None:
    conn.execute("UPDATE pgqueue.task SET expires_at = now() - interval '1 s' WHERE id = %s", [id])
    conn.execute("UPDATE pgqueue.take SET deadline = now() - interval '1 s' WHERE task_id = %s", [id])


@MODES
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("was", ["ready", "taken", "buried", "blocked"])
def test_an_expired_task_does_not_count(db, if_exists, many, was):
    if was == "blocked":
        put(db, "q", lane="a")
    id = put(db, "q", key="k", **({"lane": "a"} if was == "blocked" else {}))
    if was in ("taken", "buried"):
        take(db, "q")
    if was == "buried":
        db.execute("SELECT pgqueue.bury(%s)", [id])
    expire(db, id)
    new = keyed_in_any_way(db, many, if_exists)
    assert new != id
    assert rows(db, "SELECT id, data, state FROM pgqueue.tasks WHERE key = 'k'") == [(new, 2, "ready")]
    assert value(db, "SELECT count(*) FROM pgqueue.task WHERE id = %s", id) == 0
    assert value(db, "SELECT calls->'ttl' FROM pgqueue.stats WHERE queue = 'q'") == 1


def test_a_delayed_task_does_not_expire_and_counts(db):
    id = put(db, "q", key="k", delay="1 h")
    db.execute("UPDATE pgqueue.task SET expires_at = now() - interval '1 s'")
    assert keyed(db, "2", "k")[0] == id


def test_an_expired_task_goes_where_dead_letters_go(db):
    db.execute("SELECT pgqueue.create_queue('dying', dead_letter => '', dead_letter_key => 'dead')")
    id = put(db, "dying", key="k", ttl="1 h")
    expire(db, id)
    new = put(db, "dying", key="k")
    found = rows(db, "SELECT id, queue, key, deaths->0->>'reason' FROM pgqueue.tasks ORDER BY id")
    assert found == [(id, "dead", None, "expired"), (new, "dying", "k", None)]


def test_an_expired_task_makes_room_for_its_successor(db):
    db.execute("SELECT pgqueue.create_queue('small', capacity => 1)")
    for query in (
        "SELECT id FROM pgqueue.put('small', '2', key => 'k')",
        "SELECT (pgqueue.put_many('small', '[3]', keys => '{k}'))[1]",
    ):
        before = value(db, query)
        assert value(db, query) == before
        expire(db, before)
        assert value(db, query) != before


@MODES
def test_two_puts_that_meet_the_same_expired_task(db, connect, if_exists):
    """T1 ends it and puts its own; T2 waits for T1 and meets the task of T1."""
    expire(db, keyed(db, "1", "k")[0])
    t1, t2 = connect(autocommit=False), connect()
    id = keyed(t1, "2", "k", if_exists)[0]
    with waiting(t2, db, PUT, "3", "k", if_exists) as put_:
        t1.commit()
        if if_exists == "error":
            with pytest.raises(psycopg.Error) as caught:
                put_.result(timeout=30)
            assert caught.value.sqlstate == "PQ038"
        else:
            assert put_.result(timeout=30)[0][0] == id
    assert column(db, "SELECT data FROM pgqueue.tasks") == [3 if if_exists == "replace" else 2]


def test_a_put_waits_for_an_ack_that_began_before_the_task_expired(db, connect):
    """T1 acks in time and has not committed; T2 cannot know whether the task is done or dies. T1 rolls back."""
    id = keyed(db, "1", "k")[0]
    t1, t2 = connect(autocommit=False), connect()
    token = take(db, "q")[1]
    db.execute("UPDATE pgqueue.task SET expires_at = clock_timestamp() + interval '0.2 s'")
    assert value(t1, "SELECT state FROM pgqueue.ack(%s, %s)", id, token) == "done"
    eventually(lambda: value(db, "SELECT expires_at < clock_timestamp() FROM pgqueue.task"))
    with waiting(t2, db, PUT, "2", "k", "ignore") as put_:
        t1.rollback()
        held = put_.result(timeout=30)[0]
    assert held == (id, "taken", True, 1)  # its take has no deadline: the holder may still ack


# --- above READ COMMITTED


@STRICT
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("if_exists", ["ignore", "error"])
@pytest.mark.parametrize("end", ["ack", "keep", "delete"])
def test_a_task_that_ended_after_the_snapshot_does_not_count(db, connect, isolation, many, if_exists, end):
    """T2 ends the task after the snapshot of T1, which still shows it."""
    if end == "keep":
        db.execute("SELECT pgqueue.alter_queue('q', '{\"keep_done\": \"1 h\"}')")
    id = keyed(db, "1", "k")[0]
    t1 = connect(autocommit=False, options=f"-c default_transaction_isolation={isolation}")
    assert value(t1, "SELECT count(*) FROM pgqueue.tasks") == 1
    if end == "delete":
        db.execute("SELECT pgqueue.delete(%s)", [id])
    else:
        db.execute("SELECT pgqueue.ack(%s, %s)", take(db, "q"))
    new = keyed_in_any_way(t1, many, if_exists)
    t1.commit()
    assert new != id
    assert rows(db, "SELECT id, data FROM pgqueue.tasks WHERE state = 'ready'") == [(new, 2)]


@STRICT
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("if_exists", ["ignore", "error"])
def test_a_task_that_came_or_changed_after_the_snapshot_is_a_serialization_failure(
    db, connect, isolation, many, if_exists
):
    t1 = connect(autocommit=False, options=f"-c default_transaction_isolation={isolation}")
    rows(t1, "SELECT FROM pgqueue.tasks")
    keyed(db, "1", "k")
    with pytest.raises(psycopg.errors.SerializationFailure):
        keyed_in_any_way(t1, many, if_exists)
    t1.rollback()
    rows(t1, "SELECT FROM pgqueue.tasks")
    db.execute("UPDATE pgqueue.task SET priority = 1")
    with pytest.raises(psycopg.errors.SerializationFailure):
        keyed_in_any_way(t1, many, if_exists)


@STRICT
def test_a_task_that_the_snapshot_shows_counts(db, connect, isolation):
    id = keyed(db, "1", "k")[0]
    strict = connect(options=f"-c default_transaction_isolation={isolation}")
    assert keyed(strict, "2", "k") == (id, "ready", True, 1)
    with pytest.raises(psycopg.Error) as caught:
        keyed(strict, "2", "k", "error")
    assert caught.value.sqlstate == "PQ038"
    with strict.transaction():  # its own tasks too
        mine = keyed(strict, "3", "mine")[0]
        assert keyed(strict, "4", "mine") == (mine, "ready", True, 3)


@STRICT
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("if_exists", ["ignore", "error"])
def test_an_expired_task_is_a_failure_that_a_tick_ends(db, connect, isolation, many, if_exists):
    id = keyed(db, "1", "k")[0]
    expire(db, id)
    strict = connect(options=f"-c default_transaction_isolation={isolation}")
    with pytest.raises(psycopg.errors.SerializationFailure, match=f'task {id} of queue "q".*expired'):
        keyed_in_any_way(strict, many, if_exists)
    db.execute("SELECT pgqueue.promote_all()")
    assert keyed_in_any_way(strict, many, if_exists) != id


@STRICT
def test_replace_needs_read_committed(connect, isolation):
    strict = connect(options=f"-c default_transaction_isolation={isolation}")
    with pytest.raises(psycopg.Error, match="READ COMMITTED") as caught:
        keyed(strict, "1", "k", "replace")
    assert caught.value.sqlstate == "PQ002"


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ("key => ''", "PQ001"),
        ("key => repeat('k', 256)", "PQ001"),
        ("lane => ''", "PQ001"),
        ("lane => repeat('k', 256)", "PQ001"),
        ("key => 'k', if_exists => 'update'", "PQ002"),
        ("key => 'k', if_exists => NULL", "PQ002"),
    ],
)
def test_bad_input(db, options, state):
    for call in (f"pgqueue.put('q', '1', {options})", f"pgqueue.put_many('q', '[1]', {plural(options)})"):
        with pytest.raises(psycopg.Error) as caught:
            db.execute(f"SELECT {call}")
        assert caught.value.sqlstate == state
    assert rows(db, "SELECT FROM pgqueue.tasks") == []


def plural(options: str) -> str:
    for name in ("key", "lane"):
        if options.startswith(f"{name} => "):
            first, *others = options.removeprefix(f"{name} => ").split(", if")
            return f"{name}s => ARRAY [{first}]" + "".join(f", if{other}" for other in others)
    return options


def test_put_many_with_keys_tells_which_tasks_are_there(db):
    id = keyed(db, "0", "b")[0]
    ids = value(db, "SELECT pgqueue.put_many('q', '[1, 2, 3, 4, 5]', keys => '{c,b,a,c,NULL}')")
    assert ids[1] == id
    assert ids[0] == ids[3]
    assert len({*ids}) == 4
    found = dict(rows(db, "SELECT id, data FROM pgqueue.tasks"))
    assert [found[id] for id in ids] == [1, 0, 3, 1, 5]


def test_put_many_is_all_or_nothing(db):
    keyed(db, "0", "b")
    with pytest.raises(psycopg.Error) as caught:
        db.execute("SELECT pgqueue.put_many('q', '[1, 2]', keys => '{a,b}', if_exists => 'error')")
    assert caught.value.sqlstate == "PQ038"
    assert value(db, "SELECT count(*) FROM pgqueue.tasks") == 1


@pytest.mark.parametrize("names", ["keys => '{a}'", "lanes => '{a,b,c}'", "keys => '{a,b,c}'"])
def test_put_many_needs_as_many_names_as_tasks(db, names):
    with pytest.raises(psycopg.Error, match="2 tasks") as caught:
        db.execute(f"SELECT pgqueue.put_many('q', '[1, 2]', {names})")
    assert caught.value.sqlstate == "PQ002"


def test_two_that_share_keys_do_not_deadlock(db, connect):
    """They put in the order of the keys, whatever the order of the tasks; the other order would meet crosswise."""
    first, second = connect(autocommit=False), connect()
    put(first, "q", key="a")
    with waiting(second, db, "SELECT pgqueue.put_many('q', '[1, 2]', keys => '{b,a}')") as many:
        put(first, "q", key="b")
        first.commit()
        ids = many.result(timeout=30)[0][0]
    assert ids == [value(db, "SELECT id FROM pgqueue.task WHERE key = %s", key) for key in "ba"]
    assert [state(db, id) for id in ids] == ["ready", "ready"]
