"""post in SQL: NOTIFY for payloads of any size, at commit."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql
from statements import column, value

MARK = "\x01pgqueue:"


@pytest.fixture
def listening(dsn):
    """Listen on a channel; returns a connection whose notifications are read with heard()."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


def heard(listening: psycopg.Connection, db: psycopg.Connection) -> list[tuple[str, str]]:
    """What was notified so far: what is sent now arrives after all that was committed before."""
    listening.execute("LISTEN over")
    db.execute("NOTIFY over")
    notes = []
    for note in listening.notifies(timeout=10):
        if note.channel == "over":
            return notes
        notes.append((note.channel, note.payload))
    raise AssertionError("the marker did not arrive")


@pytest.mark.parametrize("channel", ["foo", 'a"b; drop', "Case", "ü" * 31, "x" * 63, "pgqueue"])
def test_a_post_is_a_notification(db, listening, channel):
    listening.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    db.execute("SELECT pgqueue.post(%s, 'bar')", [channel])
    db.execute("SELECT pgqueue.post(%s)", [channel])
    assert heard(listening, db) == [(channel, "bar"), (channel, "")]


def test_it_arrives_at_commit_and_never_after_a_rollback(db, listening):
    listening.execute("LISTEN foo")
    db.execute("BEGIN")
    db.execute("SELECT pgqueue.post('foo', 'undone')")
    db.execute("ROLLBACK")
    db.execute("BEGIN")
    db.execute("SELECT pgqueue.post('foo', 'first')")
    db.execute("SELECT pgqueue.post('foo', repeat('x', 9000))")
    assert heard(listening, listening) == []
    db.execute("COMMIT")
    (_, first), (_, second) = heard(listening, db)
    assert first == "first"
    assert second.startswith(MARK)


@pytest.mark.parametrize("size", [7999, 8000, 1_000_000])
def test_a_large_payload_is_kept_in_a_table(db, listening, size):
    listening.execute("LISTEN foo")
    db.execute("SELECT pgqueue.post('foo', repeat('ü', %s / 2) || repeat('x', %s %% 2))", [size, size])
    ((_, payload),) = heard(listening, db)
    if size > 7999:
        payload = value(db, "SELECT pgqueue.stored_payload(%s)", int(payload.removeprefix(MARK)))
    assert len(payload.encode()) == size


def test_a_payload_that_looks_like_the_mark_is_taken_as_it_is(db, listening):
    listening.execute("LISTEN foo")
    db.execute("SELECT pgqueue.post('foo', %s)", [MARK + "1"])
    ((_, payload),) = heard(listening, db)
    assert value(db, "SELECT pgqueue.stored_payload(%s)", int(payload.removeprefix(MARK))) == MARK + "1"


def test_large_payloads_go_a_minute_after_they_were_first_seen(db):
    """Not a minute after the post, which may be long before its commit."""
    db.execute("SELECT pgqueue.post('foo', repeat('x', 8000))")
    for _ in range(2):
        db.execute("SELECT pgqueue.clean_up()")
        assert column(db, "SELECT seen_at IS NOT NULL FROM pgqueue.payload") == [True]
    db.execute("UPDATE pgqueue.payload SET seen_at = seen_at - interval '61 s'")
    db.execute("SELECT pgqueue.post('foo', repeat('y', 8000))")
    db.execute("SELECT pgqueue.clean_up()")
    assert column(db, "SELECT left(payload, 1) FROM pgqueue.payload") == ["y"]
    assert value(db, "SELECT pgqueue.stored_payload(4711)") is None


@pytest.mark.parametrize("channel", [None, "", "x" * 64, "ü" * 32, "pgqueue:1", "pgqueue:"])
def test_channels_that_cannot_be(db, channel):
    with pytest.raises(psycopg.Error) as raised:
        db.execute("SELECT pgqueue.post(%s, 'x')", [channel])
    assert raised.value.sqlstate == "PQ001"
