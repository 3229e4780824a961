"""What a user meets when something is wrong: each error by its class, with a message that says what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from statements import rows, value

import pgqueue
from pgqueue import errors
from pgqueue import sql as schema
from pgqueue.errors import SetupError

pytestmark = pytest.mark.once


@pytest.mark.slow
async def test_no_server(shell, tmp_path):
    client = shell.client(f"host={tmp_path} dbname=nowhere", connect_timeout=1)
    with pytest.raises(pgqueue.ServerError, match=f"cannot connect to PostgreSQL.*{tmp_path}"):
        await client.queue("q").put("x")
    with pytest.raises(pgqueue.ServerError):
        await client.queue("q").take(0)


@pytest.mark.slow
async def test_connection_errors_are_those_after_which_the_same_call_may_succeed(shell, queue, db, dsn, tmp_path):
    absent = shell.client(f"host={tmp_path} dbname=nowhere", connect_timeout=1)
    standby = shell.client(make_conninfo(dsn, options="-c default_transaction_read_only=on"))
    conn = await shell.connection()
    db.execute("SELECT pg_terminate_backend(%s::int)", [conn.info.backend_pid])
    for kind, put in {
        errors.ServerError: absent.queue("q").put(1),
        errors.NotRunning: standby.queue("q").put(1),
        errors.ConnectionLost: queue.put(1, conn=conn),
    }.items():
        with pytest.raises(errors.CONNECTION_ERRORS) as caught:
            await put
        assert issubclass(caught.type, kind)
    for other in (errors.Error, errors.SchemaError, errors.SetupError, errors.TakeLost, errors.ClosedError):
        assert not issubclass(other, errors.CONNECTION_ERRORS)


async def test_no_such_role(shell, dsn):
    client = shell.client(make_conninfo(dsn, user="nobody_of_that_name", password="sesame"))
    with pytest.raises(pgqueue.ServerError, match="nobody_of_that_name") as caught:
        await client.queue("q").put("x")
    assert "sesame" not in str(caught.value)


async def test_not_a_dsn(shell):
    with pytest.raises(pgqueue.ServerError, match="not a DSN"):
        await shell.client("mysql://nowhere").queue("q").put("x")


async def test_schema_missing(shell, empty_dsn):
    with pytest.raises(pgqueue.SchemaError, match="`pgqueue migrate up`"):
        await shell.client(empty_dsn).queue("q").put("x")


@pytest.mark.parametrize(("version", "advice"), [("0000", "pgqueue migrate up"), ("9999", "upgrade the library")])
async def test_schema_of_another_version(shell, db, version, advice):
    assert schema.OLDEST > "0000"
    db.execute("UPDATE pgqueue.schema_version SET version_num = %s", [version])
    with pytest.raises(pgqueue.SchemaError, match=f"{version}.*{advice}"):
        await shell.client().queue("q").put("x")


async def test_a_role_without_rights(shell, dsn, db):
    role = f"stranger_{os.getpid()}_{shell.name}"
    db.execute(f"CREATE ROLE {role} LOGIN")
    try:
        with pytest.raises(SetupError, match="grant_to"):
            await shell.client(make_conninfo(dsn, user=role)).queue("q").put("x")
    finally:
        db.execute(f"DROP ROLE {role}")


CIRCLE: dict = {}
CIRCLE["me"] = CIRCLE
BAD = [
    ({"a": [1, float("nan")]}, r"$.a[1]", "NaN|nan"),
    ({"a": {"b": {"$bytes": "x"}}}, r"$.a.b", "bytes"),
    ([1, {"deep": object()}], r"$[1].deep", "object"),
    ({"s": {"a\0b": 1}}, "$.s.a\0b", "u0000"),
    ({"k\0": 1}, "$.k\0", "u0000"),
    ([{"\ud800": 1}], "$[0].\ud800", "surrogate"),
    (CIRCLE, r"$.me", "itself"),
    ({(1, 2): 3}, r"$", "key"),
    ("x" * 2_000_000, r"$", "max_data_size"),
]


@pytest.mark.parametrize(
    ("data", "path", "reason"), BAD, ids=lambda value: str(value)[:20].encode("unicode_escape").decode()
)
async def test_data_that_json_cannot_hold(queue, db, data, path, reason):
    with pytest.raises(pgqueue.BadData, match=reason) as caught:
        await queue.put(data)
    assert caught.value.path == path
    assert isinstance(caught.value, ValueError)
    assert rows(db, "SELECT * FROM pgqueue.tasks") == []


async def test_a_backslash_and_u0000_are_not_a_nul(queue):
    await queue.put("\\u0000 \\\\u0000 ü 😀")
    assert (await queue.take(0)).data == "\\u0000 \\\\u0000 ü 😀"


async def test_the_largest_data_can_be_chosen(shell):
    queue = shell.client(max_data_size=10).queue("q")
    await queue.put("x" * 8)
    with pytest.raises(pgqueue.BadData, match=r"11 bytes.*limit is 10"):
        await queue.put("x" * 9)


@pytest.mark.parametrize("conn", [False, True])
async def test_one_bad_item_of_ten_thousand(shell, queue, db, conn):
    items: list[dict[str, float]] = [{"n": n} for n in range(10_000)]
    items[7_777]["n"] = float("inf")
    connection = await shell.connection() if conn else None
    with pytest.raises(pgqueue.BadData) as caught:
        await queue.put_many(items, conn=connection)
    assert caught.value.path == "[7777]$.n"
    assert value(db, "SELECT count(*) FROM pgqueue.tasks") == 0


@pytest.mark.parametrize("options", [{"priority": 2**31}, {"priority": 1.5}, {"priority": "1"}, {"priority": True}])
async def test_a_priority_that_cannot_be(queue, options):
    with pytest.raises(ValueError, match="priority"):
        await queue.put("x", **options)


@pytest.mark.parametrize("ttr", [0, -1, float("nan"), "1"])
async def test_a_ttr_that_cannot_be(queue, ttr):
    with pytest.raises(ValueError, match="ttr"):
        await queue.put("x", ttr=ttr)


async def test_numbers_and_timeouts_that_cannot_be(client, queue):
    for n in (0, -1, 1.5, None, True):
        with pytest.raises(ValueError, match="n must be"):
            await queue.take_many(n, 0)
    for timeout in ("1", float("nan"), True):
        with pytest.raises(ValueError, match="timeout"):
            await queue.take(timeout)
    for queues in ([], "q", [""]):
        with pytest.raises(ValueError, match="queue"):
            await client.take(queues, 0)


async def test_a_closed_client(client, queue):
    await client.close()
    await client.close()
    for call in (lambda: queue.take(0), lambda: queue.put("x"), queue.stats):
        with pytest.raises(pgqueue.ClosedError):
            await call()


async def test_ack_after_the_session_was_lost(shell, queue, db, dsn):
    """Its listener is kept from coming back while others give its tasks away."""
    await queue.put("x")
    task = await queue.take(0)
    db.execute("DELETE FROM pgqueue.take")
    db.execute("DELETE FROM pgqueue.session")
    with pytest.raises(pgqueue.TaskNotTaken):
        await task.ack()
    other = await shell.client().queue("q").take(5)
    with pytest.raises(pgqueue.TaskTakenByOther):
        await task.ack()
    await other.ack()
    with pytest.raises(pgqueue.TaskNotFound):
        await task.ack()


FORK = """
import os, sys
import pgqueue

client = pgqueue.Client(sys.argv[1], poll=None)
queue = client.queue("q")
queue.put_many(["parent's", "child's"])
mine = queue.take(0)
child = os.fork()
if child == 0:
    task = queue.take(5)
    assert task.data == "child's", task
    task.ack()
    queue.put("from the child")
    client.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert queue.take(5).data == "from the child"
mine.ack()
client.close()
"""


@pytest.mark.slow
def test_a_fork_takes_and_puts_and_leaves_its_parent_alone(dsn):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK, dsn], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


ORPHAN = """
import os, sys, time
import pgqueue

client = pgqueue.Client(sys.argv[1])
client.queue("q").take(5)
if os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()     # outlives its parent, with copies of its sockets
    os._exit(0)
os.waitpid(-1, 0)
"""


@pytest.mark.slow
def test_a_childs_copies_do_not_keep_a_dead_parents_session(dsn, db):
    with pgqueue.Client(dsn) as client:
        queue = client.queue("q")
        queue.put("x")
        parent = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", ORPHAN, dsn],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert parent.stdout.readline() == "forked\n"
        parent.kill()
        parent.wait()
        try:
            assert queue.take(30).data == "x"
        finally:
            parent.stdin.close()
            parent.stdout.close()


def test_an_installed_server_error_is_not_an_import_error():
    assert issubclass(pgqueue.ServerError, pgqueue.Error)
    assert not issubclass(psycopg.Error, pgqueue.Error)


def test_the_tree_in_the_docstring_has_every_public_error():
    classes = {
        name for name, one in vars(errors).items() if isinstance(one, type) and one.__module__ == errors.__name__
    }
    public = {name for name in classes if not (getattr(errors, name).__doc__ or "").startswith("Internal")}
    assert len(public) > 40
    assert [name for name in public if not re.search(rf"\b{name}\b", errors.__doc__)] == []
