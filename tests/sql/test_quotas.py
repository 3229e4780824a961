"""How many things a role may have made, sizes of data, and that SQL refuses what Python refuses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sampling import sampled
from statements import column, put, row, rows, value

import pgqueue
from pgqueue._calls import channels, exchanges, groups, nodes, statuses
from pgqueue._calls import put as puts
from pgqueue._calls.call import MAX_TEXT, error_text
from pgqueue._calls.queue import QueueOptions
from pgqueue._calls.sqlstates import known
from pgqueue._values import arguments
from pgqueue.errors import QuotaReached

pytestmark = pytest.mark.once  # rules of our own, the same on every server

MB = 1 << 20


def fails(conn: psycopg.Connection, statement: str, *args: Any) -> tuple[str, str]:
    """The SQLSTATE and the message."""
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(statement, args)
    return str(caught.value.sqlstate), str(caught.value.diag.message_primary)


# --- numbers

MAKES = {  # each makes one more, by its number
    "queues": "pgqueue.queue_id('q' || {})",
    "queues by options": "pgqueue.create_queue('q' || {})",
    "queues by a put": "pgqueue.put('q' || {}, '1')",
    "exchanges": "pgqueue.declare_exchange('e' || {})",
    "bindings": "pgqueue.bind('q', 'e', 'k' || {})",
    "batches": "pgqueue.create_batch('b' || {})",
    "nodes": "pgqueue.create_node('/n' || {})",
    "sessions": "pgqueue.open_session(parent => pgqueue.own_session(), label => 's' || {})",
    "nodes of members": "pgqueue.join_group('g', member => 'm' || {})",
}

TABLES = {
    "batches": "pgqueue.batch",
    "sessions": "(SELECT * FROM pgqueue.sessions WHERE parent IS NOT NULL) within",
}


@pytest.fixture
def used(db: psycopg.Connection) -> psycopg.Connection:
    """With a queue and an exchange, a group, and a session."""
    rows(db, "SELECT pgqueue.queue_id('q'), pgqueue.declare_exchange('e'), pgqueue.create_node('/groups')")
    rows(db, "SELECT pgqueue.create_node('/groups/g'), pgqueue.open_session()")
    return db


@pytest.mark.parametrize("how", MAKES)
def test_a_role_makes_so_many_and_no_more(used: psycopg.Connection, how: str) -> None:
    what = how.partition(" ")[0]
    there = value(used, f"SELECT count(*) FROM {TABLES.get(what, 'pgqueue.' + what[:-1])} WHERE role = current_user")
    rows(used, "SELECT pgqueue.set_quota(%s, %s)", what, there + 2)
    for number in (1, 2):
        rows(used, "SELECT " + MAKES[how].format(number))
    state, message = fails(used, "SELECT " + MAKES[how].format(3))
    (me,) = column(used, "SELECT current_user")
    assert (state, message) == ("PQ006", f"role {me} has reached its limit of {there + 2} {what}")
    if how not in ("queues by options", "batches", "nodes", "nodes of members", "sessions"):
        rows(used, "SELECT " + MAKES[how].format(1))  # what is there can be used
    rows(used, "SELECT pgqueue.set_quota(%s, NULL)", what)
    rows(used, "SELECT " + MAKES[how].format(3))


def test_what_is_deleted_does_not_count(db: psycopg.Connection) -> None:
    rows(db, "SELECT pgqueue.set_quota('queues', 1)")
    for name in ("a", "b", "c"):
        rows(db, "SELECT pgqueue.queue_id(%s)", name)
        rows(db, "SELECT pgqueue.delete_queue(%s)", name)


def test_the_limit_holds_within_one_statement(db: psycopg.Connection) -> None:
    rows(db, "SELECT pgqueue.set_quota('queues', 10)")
    assert fails(db, "SELECT pgqueue.queue_id('q' || i) FROM generate_series(1, 11) i")[0] == "PQ006"
    assert column(db, "SELECT name FROM pgqueue.queues") == []


@pytest.fixture
def role(db: psycopg.Connection) -> Iterator[str]:
    """A role that may use the queues."""
    name = f"pgqueue_test_{uuid.uuid4().hex[:12]}"
    db.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))
    db.execute("SELECT pgqueue.grant_to(%s)", [name])
    yield name
    db.execute("RESET ROLE")
    db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def test_each_role_is_counted_by_itself(db: psycopg.Connection, role: str) -> None:
    rows(db, "SELECT pgqueue.set_quota('queues', 1), pgqueue.queue_id('owners')")
    db.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    rows(db, "SELECT pgqueue.queue_id('another')")
    state, message = fails(db, "SELECT pgqueue.queue_id('third')")
    assert (state, message) == ("PQ006", f"role {role} has reached its limit of 1 queues")


def test_only_the_owner_sets_a_limit_and_every_role_sees_it(db: psycopg.Connection, role: str) -> None:
    db.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    assert fails(db, "SELECT pgqueue.set_quota('queues', 5)")[0] == "42501"
    assert row(db, "SELECT number FROM pgqueue.quotas WHERE what = 'queues'") == (10_000,)


@pytest.mark.parametrize(("what", "number"), [("queues", -1), ("tasks", 1), (None, 1)])
def test_a_limit_that_cannot_be(db: psycopg.Connection, what: str | None, number: int) -> None:
    assert fails(db, "SELECT pgqueue.set_quota(%s, %s)", what, number)[0] == "PQ002"


def test_posts_are_limited_by_their_bytes(db: psycopg.Connection) -> None:
    rows(db, "SELECT pgqueue.set_quota('payloads', %s)", 3 * MB)
    for _ in range(2):
        rows(db, "SELECT pgqueue.post('c', repeat('x', %s))", MB)
    assert fails(db, "SELECT pgqueue.post('c', repeat('x', %s))", MB)[0] == "PQ006"
    rows(db, "SELECT pgqueue.post('c', 'short')")  # nothing of it is stored


def test_small_posts_are_added_up_now_and_then(db: psycopg.Connection) -> None:
    rows(db, "SELECT pgqueue.set_quota('payloads', 100000)")
    assert fails(db, "SELECT pgqueue.post('c', repeat('x', 8000)) FROM generate_series(1, 80)")[0] == "PQ006"


async def test_python_raises_limit_reached(client: Any, db: psycopg.Connection) -> None:
    rows(db, "SELECT pgqueue.set_quota('queues', 0)")
    with pytest.raises(QuotaReached, match="has reached its limit of 0 queues"):
        await client.queue("q").put(1)


def test_the_count_walks_no_further_than_the_limit(db: psycopg.Connection) -> None:
    rows(db, "SELECT pgqueue.create_node('/n' || i) FROM generate_series(1, 50) i")
    assert value(db, "SELECT pgqueue._made('nodes', current_user::regrole, 7)") == 7


# --- sizes

HUGE = f"to_jsonb(repeat('x', {64 * MB}))"
STORES = {
    "put": "put('q', {})",
    "put with a key": "put('q', {}, key => 'k')",
    "publish": "publish('e', 'k', {})",
    "publish to none": "publish('', 'none', {})",
    "set_will": "set_will('e', 'k', {})",
    "set_status": "set_status('k', {})",
    "create_node": "create_node('/n', {})",
    "set_node": "set_node('/groups', {})",
    "join_group": "join_group('g', {})",
    "finish": "finish(1, result => {})",
    "progress": "progress(1, value => {})",
    "put_many": "put_many('q', jsonb_build_array(1, {}))",
    "ack": "ack(1, puts => jsonb_build_array(jsonb_build_object('queue', 'q', 'data', {})))",
    "finish_many": "finish_many('{{1}}', results => jsonb_build_array({}))",
    "create_queue": "create_queue('new', metadata => {})",
    "alter_queue": "alter_queue('q', jsonb_build_object('metadata', {}))",
}


@pytest.mark.slow
@pytest.mark.parametrize("call", sampled([*STORES], keep=4))
def test_data_that_is_too_large(used: psycopg.Connection, call: str) -> None:
    state, message = fails(used, "SELECT pgqueue." + STORES[call].format(HUGE))
    assert state == "PQ036"
    assert "bytes, the limit is" in message


@pytest.mark.slow
def test_many_tasks_may_be_larger_together(db: psycopg.Connection) -> None:
    half = f"to_jsonb(repeat('x', {40 * MB}))"
    (ids,) = column(db, f"SELECT pgqueue.put_many('q', jsonb_build_array({half}, {half}))")
    assert len(ids) == 2


def test_a_payload_that_is_too_large(db: psycopg.Connection) -> None:
    assert fails(db, "SELECT pgqueue.post('c', repeat('x', %s))", 64 * MB + 1)[0] == "PQ036"


@pytest.mark.slow
def test_python_raises_data_too_big(dsn: str) -> None:
    big = pytest.raises(pgqueue.errors.DataTooBig, match="the limit is 67108864")
    with pgqueue.Client(dsn, poll=None, max_data_size=500 * MB) as client, big:
        client.queue("q").put("x" * (65 * MB))


def test_what_jsonb_cannot_hold_is_too_big() -> None:
    """PostgreSQL refuses it before a function of ours is called. A string of 257 MB takes half a minute to send."""
    words = "total size of jsonb array elements exceeds the maximum of 268435455 bytes"
    assert isinstance(known("54000", words, None, lost=False), pgqueue.errors.DataTooBig)
    assert known("54000", "row is too big", None, lost=False) is None


def test_a_touch_again_and_again_stays_readable(db: psycopg.Connection) -> None:
    id = put(db, "q", ttr="1 s", ttl="1000000000 s")
    rows(db, "SELECT id FROM pgqueue.take('q')")
    for _ in range(300):
        rows(db, "SELECT pgqueue.touch(%s, more => '1000000000 s')", id)
    deadline, expires_at = rows(db, "SELECT deadline, expires_at FROM pgqueue.tasks")[0]
    assert deadline.year == expires_at.year == 9999


# --- errors of a task


@pytest.mark.parametrize(
    "text", [None, "", "short", "x" * MAX_TEXT, "x" * MAX_TEXT + "x", "ü" * MAX_TEXT, "\ud800" * MAX_TEXT]
)
def test_python_cuts_an_error_and_sql_takes_it(db: psycopg.Connection, text: str | None) -> None:
    cut = error_text(text)
    assert cut == text or (cut.endswith(" [cut]") and MAX_TEXT - 3 <= len(cut.encode()) <= MAX_TEXT)
    id = put(db, "q")
    rows(db, "SELECT pgqueue.bury(%s, error => %s::text)", id, cut)
    assert value(db, "SELECT error FROM pgqueue.tasks") == cut


@pytest.mark.parametrize("call", ["release(1, error => {})", "bury(1, error => {})", "fail(1, error => {})"])
def test_sql_refuses_an_error_that_is_too_long(db: psycopg.Connection, call: str) -> None:
    assert fails(db, "SELECT pgqueue." + call.format(f"repeat('x', {MAX_TEXT + 1})"))[0] == "PQ002"


# --- what Python refuses, SQL refuses

Refused = tuple[Callable[[], Any], str, str]
LIST = "(SELECT array_agg(i) FROM generate_series(1::bigint, 100001) i)"
ITEMS = "(SELECT jsonb_agg(i) FROM generate_series(1, 100001) i)"
REFUSED: list[Refused] = [
    # what Python does, the same in SQL, and its SQLSTATE
    *(
        (lambda name=name: arguments.queue_name(name), f"queue_id({literal})", "PQ001")
        for name, literal in [("", "''"), ("x" * 201, "repeat('x', 201)"), (None, "NULL")]
    ),
    *(
        (lambda options=options: puts.PutOptions(**options), f"put('q', '1', {given})", state)
        for options, given, state in [
            ({"priority": 2**31}, "priority => (2^31)::int8::int", "22003"),
            ({"delay": -1}, "delay => '-1 s'", "PQ002"),
            ({"delay": 1e10}, "delay => '10000000000 s'", "PQ002"),
            ({"ttr": 0}, "ttr => '0'", "PQ002"),
            ({"ttl": 0}, "ttl => '0'", "PQ002"),
            ({"lane": ""}, "lane => ''", "PQ001"),
            ({"lane": "x" * 256}, "lane => repeat('x', 256)", "PQ001"),
            ({"key": ""}, "key => ''", "PQ001"),
            ({"key": "ü" * 128}, "key => repeat('ü', 128)", "PQ001"),
            ({"if_exists": "maybe"}, "key => 'k', if_exists => 'maybe'", "PQ002"),
            ({"if_exists": None}, "key => 'k', if_exists => NULL", "PQ002"),
            ({"sender": "x"}, "sender => 'x'", "22P02"),
        ]
    ),
    *(
        (lambda options=options: QueueOptions(**options), f"create_queue('new', {given})", "PQ002")
        for options, given in [
            ({"ttr": 0}, "ttr => '0'"),
            ({"keep_done": 0}, "keep_done => '0'"),
            ({"maxlen": 0}, "maxlen => 0"),
            ({"max_takes": 0}, "max_takes => 0"),
            ({"max_size": 0}, "max_size => 0"),
            ({"capacity": -1}, "capacity => -1"),
            ({"type": "lifo"}, "type => 'lifo'"),
        ]
    ),
    (lambda: arguments.count("n", 0), "take_many('{q}', 0)", "PQ002"),
    (lambda: arguments.count("n", 0), "pop('q', 0)", "PQ002"),
    (lambda: arguments.count("n", 0), "kick('q', 0)", "PQ002"),
    (lambda: arguments.count("n", 0), "claim_messages('q', 0)", "PQ002"),
    (lambda: arguments.elements("tasks", 100_001), f"ack_many({LIST})", "PQ002"),
    (lambda: arguments.elements("tasks", 100_001), f"release_many({LIST})", "PQ002"),
    (lambda: arguments.elements("items", 100_001), f"put_many('q', {ITEMS})", "PQ002"),
    (lambda: channels.post("", "x"), "post('', 'x')", "PQ001"),
    (lambda: channels.post("c" * 64, "x"), "post(repeat('c', 64), 'x')", "PQ001"),
    (lambda: channels.post("pgqueue:1", "x"), "post('pgqueue:1', 'x')", "PQ001"),
    (lambda: statuses.set_status("", "1", None), "set_status('', '1')", "PQ040"),
    (lambda: statuses.set_status("x" * 201, "1", None), "set_status(repeat('x', 201), '1')", "PQ040"),
    (lambda: statuses.set_status("k", "null", None), "set_status('k', 'null')", "PQ041"),
    (lambda: statuses.set_status("k", "1", 0), "set_status('k', '1', '0')", "PQ042"),
    *(
        (lambda path=path: nodes.path(path), f"create_node({path!r})", "PQ001")
        for path in ("", "a", "/a/", "//", "/.", "/a/..", "/" + "x" * 1024)
    ),
    (lambda: nodes.delete("/", None), "delete_node('/')", "PQ002"),
    (lambda: groups.group_path("a/b"), "join_group('a/b')", "PQ001"),
    (lambda: groups.group_path(""), "join_group('')", "PQ001"),
    (lambda: exchanges.declare_exchange("", "direct", True), "declare_exchange('')", "PQ001"),
    (lambda: exchanges.declare_exchange("x" * 256, "direct", True), "declare_exchange(repeat('x', 256))", "PQ001"),
    (lambda: exchanges.declare_exchange("x", "other", True), "declare_exchange('x', 'other')", "PQ002"),
    (lambda: exchanges.bind("q", "", "k"), "bind('q', '', 'k')", "PQ002"),
    (lambda: exchanges.bind("q", "e", None), "bind('q', 'e', NULL)", "PQ002"),
    (lambda: exchanges.bind("q", "e", "x" * 256), "bind('q', 'e', repeat('x', 256))", "PQ001"),
    (lambda: exchanges.set_will("e", None, "1", False), "set_will('e', NULL, '1')", "PQ001"),
    (lambda: exchanges.set_will("x" * 256, "k", "1", False), "set_will(repeat('x', 256), 'k', '1')", "PQ001"),
]


@pytest.mark.parametrize(("refused", "call", "state"), REFUSED, ids=[call[:60] for _, call, _ in REFUSED])
def test_what_python_refuses_sql_refuses(
    used: psycopg.Connection, refused: Callable[[], Any], call: str, state: str
) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # each has its own words: test_arguments.py
        refused()
    assert fails(used, f"SELECT pgqueue.{call}".replace("%", "%%"))[0] == state
