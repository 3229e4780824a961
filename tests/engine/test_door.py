"""Errors at the door: what is set up so that pgqueue cannot work is one error, at once, which names the remedy."""

from __future__ import annotations

import os

import pytest
from eventually import Stopwatch
from poolers import PROGRAM, pgbouncer
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from servers import Server

import pgqueue
from pgqueue import migrate
from pgqueue.errors import NotRunning, SetupError

AT_ONCE = 12.0  # seconds

with_pgbouncer = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")


def one_error(match, dsn, call=lambda queue: queue.put(1), kind=SetupError, **options):
    took = Stopwatch()
    with pgqueue.Client(dsn, **options) as client, pytest.raises(kind, match=match):
        call(client.queue("q"))
    assert took() < AT_ONCE


def take(queue):
    queue.take(0)


# --- poolers


@with_pgbouncer
@pytest.mark.parametrize("mode", ["transaction", "session", "statement"])
def test_a_pooler_without_listen_dsn(dsn, mode):
    with pgbouncer(dsn, mode) as pooled:
        one_error("dsn leads through a pooler.*unsupported startup parameter.*listen_dsn", pooled)


@with_pgbouncer
@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_pooler_that_ignores_options_without_listen_dsn(dsn, mode):
    with pgbouncer(dsn, mode, ignore_startup_parameters="options") as pooled:
        one_error("dsn leads through a pooler, which ignores.*`options`.*listen_dsn", pooled)


@with_pgbouncer
@pytest.mark.parametrize(
    "settings",
    [{}, {"ignore_startup_parameters": "options"}, {"server_round_robin": 1}, {"default_pool_size": 1}],
    ids=["plain", "ignores options", "round robin", "one connection"],
)
def test_listen_dsn_through_a_pooler_in_transaction_mode(dsn, settings):
    with pgbouncer(dsn, "transaction", **settings) as pooled:
        one_error("listen_dsn leads through a pooler in transaction mode.*session", dsn, take, listen_dsn=pooled)


@with_pgbouncer
def test_a_busy_pooler_in_transaction_mode_is_found_too(dsn):
    """Other clients hold connections of the server, and give the pooler more than one to choose from."""
    with pgbouncer(dsn, "transaction") as pooled:
        busy = [pgqueue.Client(pooled, listen_dsn=dsn) for _ in range(3)]
        for client in busy:
            client.queue("q").put(1)
        one_error("transaction mode", dsn, take, listen_dsn=pooled)
        for client in busy:
            client.close()


@with_pgbouncer
def test_a_pooler_in_statement_mode(dsn):
    with pgbouncer(dsn, "statement") as pooled:
        one_error("statement mode.*pool_mode", pooled, listen_dsn=dsn)
        one_error("statement mode.*pool_mode", dsn, take, listen_dsn=pooled)


@with_pgbouncer
@pytest.mark.parametrize("mode", ["transaction", "session"])
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "session pooler"])
def test_poolers_that_work(dsn, mode, direct):
    with (
        pgbouncer(dsn, mode) as pooled,
        pgbouncer(dsn, "session") as other,
        pgqueue.Client(pooled, listen_dsn=dsn if direct else other) as client,
    ):
        queue = client.queue("q")
        queue.put_many(range(20))
        for number in range(20):
            task = queue.take(1)
            assert task.data == number
            task.ack()
        with client.lock("l", timeout=5):
            assert client.try_lock("l") is None


@with_pgbouncer
def test_an_isolation_level_that_a_pooler_keeps(dsn, db):
    role = f"careful_{os.getpid()}"
    db.execute(f"CREATE ROLE {role} LOGIN; SELECT pgqueue.grant_to('{role}')")
    db.execute(f"ALTER ROLE {role} SET default_transaction_isolation = 'repeatable read'")
    try:
        own = make_conninfo(dsn, user=role)
        with pgqueue.Client(own) as client:  # without a pooler pgqueue overrides it
            client.queue("q").put(1)
            client.queue("q").take(0).ack()
        with pgbouncer(own, "transaction") as pooled:
            match = f"default_transaction_isolation is 'repeatable read'.*ALTER ROLE \"{role}\""
            one_error(match, pooled, listen_dsn=own)
    finally:
        db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


# --- roles and databases


@pytest.mark.slow
@pytest.mark.parametrize("call", [lambda queue: queue.put(1), take], ids=["put", "take"])
def test_a_database_that_is_read_only_by_default(dsn, db, call):
    name = sql.Identifier(str(conninfo_to_dict(dsn)["dbname"]))
    db.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
    one_error("default_transaction_read_only is on.*ALTER ROLE", dsn, call, NotRunning, connect_timeout=1)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "EUC_JP"])
def test_databases_of_other_encodings_work(pg_server: Server, encoding: str):
    name = f"pgqueue_test_{encoding.lower()}_{os.getpid()}"
    make = sql.SQL("CREATE DATABASE {} ENCODING {} LOCALE 'C' TEMPLATE template0")
    text = "漢字" if encoding == "EUC_JP" else "Grüße"
    with pg_server.connect() as admin:
        admin.execute(make.format(sql.Identifier(name), sql.Literal(encoding)))
    try:
        dsn = pg_server.dsn(name)
        migrate.up(dsn)
        with pgqueue.Client(dsn) as client:
            queue = client.queue(text)
            queue.put({text: text})
            task = queue.take(1)
            assert (task.queue, task.data) == (text, {text: text})
            task.ack()
            hearing = client.subscribe(text)
            client.post(text, text)
            assert hearing.get(30) == text
            if encoding != "SQL_ASCII":
                with pytest.raises(ValueError, match="encoding of this database lacks"):
                    queue.put("\N{SNOWMAN} \N{GREEK SMALL LETTER FINAL SIGMA} \N{THAI CHARACTER KO KAI}")
    finally:
        pg_server.drop(name)
