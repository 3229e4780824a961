"""The types of Tarantool's queue, in SQL: what a queue of each type lacks, at its creation and at every verb."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from statements import put, rows, state, take, value

LACKS = {
    "fifo": {"priority", "delay", "ttr", "ttl", "lane", "capacity", "touch"},
    "fifottl": {"lane", "capacity"},
    "utube": {"priority", "delay", "ttr", "ttl", "capacity", "touch"},
    "utubettl": {"capacity"},
    "limfifottl": {"lane"},
}
SAID = {"priority": "1", "delay": "'1 h'", "ttr": "'1 h'", "ttl": "'1 h'", "lane": "'a'", "capacity": "5"}


def fails(conn: psycopg.Connection, sqlstate: str, statement: str, *args: Any) -> str:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(statement, args)
    assert caught.value.sqlstate == sqlstate, caught.value
    return str(caught.value.diag.message_primary)


def create(conn: psycopg.Connection, name: str, options: str = "") -> int:
    return int(value(conn, f"SELECT pgqueue.create_queue(%s{options and ', ' + options})", name))


@pytest.mark.parametrize("type", LACKS)
@pytest.mark.parametrize("name", ["priority", "delay", "ttr", "ttl", "lane"])
def test_a_put_cannot_have_what_the_type_lacks(db: psycopg.Connection, type: str, name: str) -> None:
    create(db, "q", f"type => '{type}'")
    statement = f"SELECT state FROM pgqueue.put('q', '1', {name} => {SAID[name]})"
    if name in LACKS[type]:
        assert fails(db, "PQ002", statement) == f"a queue of the type {type} has no {name}"
        many = statement.replace("put(", "put_many(").replace("lane =>", "lanes =>").replace("'a'", "'{a}'")
        fails(db, "PQ002", many.replace("state FROM ", "").replace("'1',", "'[1]',"))
        assert value(db, "SELECT count(*) FROM pgqueue.task") == 0
    else:
        assert value(db, statement) == ("delayed" if name == "delay" else "ready")


@pytest.mark.parametrize("type", LACKS)
@pytest.mark.parametrize("name", ["priority", "delay", "ttr", "ttl", "capacity"])
def test_a_queue_cannot_have_what_its_type_lacks(db: psycopg.Connection, type: str, name: str) -> None:
    statement = f"SELECT pgqueue.create_queue('q', type => '{type}', {name} => {SAID[name]})"
    if name in LACKS[type]:
        assert fails(db, "PQ002", statement) == f"a queue of the type {type} has no {name}"
        assert rows(db, "SELECT FROM pgqueue.queue") == []
        create(db, "q", f"type => '{type}'")
        given = {"priority": 1, "delay": 5, "ttr": 5, "ttl": 5, "capacity": 5}[name]
        fails(db, "PQ002", f"""SELECT pgqueue.alter_queue('q', '{{"{name}": {given}}}')""")
    else:
        db.execute(statement)


@pytest.mark.parametrize("type", LACKS)
def test_a_touch_of_a_task_without_time_is_an_error(db: psycopg.Connection, type: str) -> None:
    create(db, "q", f"type => '{type}'")
    put(db, "q")
    id, token = take(db, "q")
    for more in ("NULL", "'0'", "'1 s'"):
        statement = f"SELECT state FROM pgqueue.touch(%s, %s, more => {more})"
        if "touch" in LACKS[type]:
            assert fails(db, "PQ002", statement, id, token) == f"a queue of the type {type} has no touch"
        else:
            assert value(db, statement, id, token) == "taken"
    assert state(db, id) == "taken"


def test_a_release_and_a_burial_cannot_have_what_the_type_lacks(db: psycopg.Connection) -> None:
    create(db, "q", "type => 'fifo'")
    put(db, "q")
    id, token = take(db, "q")
    for said in ("release(%s, %s, delay => '1 s')", "release(%s, %s, priority => 1)", "bury(%s, %s, priority => 1)"):
        fails(db, "PQ002", f"SELECT pgqueue.{said}", id, token)
        assert state(db, id) == "taken"
    fails(db, "PQ002", "SELECT pgqueue.release(%s, %s, every => '1 h')", id, token)
    assert value(db, "SELECT state FROM pgqueue.release(%s, %s, delay => '0')", id, token) == "ready"


@pytest.mark.parametrize("type", ["fifo", "utube"])
def test_the_pause_after_an_attempt_is_no_option_of_the_type(db: psycopg.Connection, type: str) -> None:
    """It is the worker's, as is the pause of a task that it leaves to others: with an error, or not counted."""
    create(db, "q", f"type => '{type}'")
    for said in (
        "fail(%s, %s, 'boom', delay => '1 h')",
        "fail(%s, %s, 'later', delay => '1 h', counts => false)",
        "release(%s, %s, error => 'boom', delay => '1 h')",
        "release(%s, %s, counts => false, delay => '1 h', hold_lane => true)",
    ):
        put(db, "q")
        id, token = take(db, "q")
        assert value(db, f"SELECT state FROM pgqueue.{said}", id, token) == state(db, id) == "delayed"
        assert value(db, "SELECT count(*) FROM pgqueue.attempts WHERE id = %s", id) == (
            "fail" in said or "boom" in said
        )


def test_what_a_failed_attempt_cannot_have(db: psycopg.Connection) -> None:
    create(db, "q", "type => 'fifo'")
    put(db, "q")
    id, token = take(db, "q")
    for said in ("release(%s, %s, error => 'boom', priority => 1)", "release(%s, %s, error => 'boom', every => '1 h')"):
        fails(db, "PQ002", f"SELECT pgqueue.{said}", id, token)
        assert (state(db, id), rows(db, "SELECT FROM pgqueue.attempts")) == ("taken", [])


def test_nothing_said_is_nothing_lacked(db: psycopg.Connection) -> None:
    create(db, "q", "type => 'fifo'")
    assert value(db, "SELECT state FROM pgqueue.put('q', '1', priority => 0, delay => '0')") == "ready"


def test_an_unknown_queue_type_is_refused(db: psycopg.Connection) -> None:
    fails(db, "PQ002", "SELECT pgqueue.create_queue('q', type => 'x')")
    assert rows(db, "SELECT FROM pgqueue.queue") == []
