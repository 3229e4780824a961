"""The Flask example with the commands of its docstring: over HTTP, with a request rolled back and a worker killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from commands import environment
from eventually import eventually
from sites import CHECKOUT, free_port, serving, started
from statements import column, value

pytestmark = pytest.mark.once

FLASK = ["flask", "--app", "examples.flask_app"]


def flask(dsn, *arguments):
    command = [sys.executable, "-m", *FLASK, *arguments]
    settings = environment(PGQUEUE_DSN=dsn)
    return subprocess.run(command, cwd=CHECKOUT, env=settings, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def dsn(pg_server):
    name = pg_server.create()
    for command in (["pgqueue", "migrate", "up"], ["create-tables"]):
        done = flask(pg_server.dsn(name), *command)
        assert done.returncode == 0, done.stderr
    yield pg_server.dsn(name)
    pg_server.drop(name)


@pytest.fixture
def db(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture(scope="module")
def site(dsn):
    port = free_port()
    with serving([*FLASK, "run", "--port", str(port)], port, settings={"PGQUEUE_DSN": dsn}) as it:
        yield it


def worker(dsn, **settings):
    return started(*FLASK, "pgqueue", "worker", settings={"PGQUEUE_DSN": dsn, **settings})


def place(site, amount):
    status, answer = site.post("/orders", {"to": "ada@example.org", "amount": amount})
    return (status, json.loads(answer)["order"]) if status == 201 else (status, None)


@pytest.mark.slow
def test_orders_are_mailed_exactly_if_they_are_placed(site, dsn, db):
    assert place(site, 2000) == (403, None)
    assert (column(db, 'SELECT id FROM "order"'), column(db, "SELECT id FROM pgqueue.tasks")) == ([], [])
    status, order = place(site, 7)
    assert (status, json.loads(site.get(f"/orders/{order}"))) == (201, {"to": "ada@example.org", "mailed": False})
    assert column(db, "SELECT data FROM pgqueue.tasks") == [{"order": order}]
    with worker(dsn) as process, ThreadPoolExecutor(1) as threads:
        eventually(lambda: json.loads(site.get(f"/orders/{order}"))["mailed"])
        poll = threads.submit(site.get, "/mailed")
        while not poll.done():  # it hears of the first that is mailed once it waits
            placed = place(site, 8)[1]
            eventually(lambda: value(db, 'SELECT bool_and(mailed) FROM "order"'))
        assert order < int(poll.result()) <= placed
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert column(db, "SELECT id FROM pgqueue.tasks") == []


@pytest.mark.slow
def test_another_worker_mails_what_a_killed_one_had_taken(site, dsn, db):
    with worker(dsn, FLASK_MAIL_SECONDS="3600") as slow:
        _, order = place(site, 7)
        eventually(lambda: column(db, "SELECT state FROM pgqueue.tasks") == ["taken"])
        slow.kill()
        slow.wait()
    with worker(dsn):
        eventually(lambda: json.loads(site.get(f"/orders/{order}"))["mailed"])
    assert column(db, "SELECT id FROM pgqueue.tasks") == []


@pytest.mark.slow
def test_its_commands(dsn, db):
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT pgqueue.put('audit', '1')")
    assert "audit" in flask(dsn, "pgqueue", "stats").stdout
