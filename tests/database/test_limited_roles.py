"""Programs of roles that have one verb only: what such a program needs works, without an error or a line in the log."""

from __future__ import annotations

import asyncio
import logging
import socket
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from commands import Commands, started
from eventually import eventually, soon
from roles import Roles, made
from servers import Server
from statements import column, put, rows, value

import pgqueue
from pgqueue.errors import NotAllowed
from pgqueue.monitors.alerts import Monitor
from pgqueue.monitors.graphite import GraphiteReporter


@pytest.fixture
def roles(dsn: str, db: psycopg.Connection) -> Iterator[Roles]:
    with made(dsn, db) as roles:
        yield roles


@pytest.fixture(autouse=True)
def quiet(pg_server: Server, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No test writes a warning. The server of the run may: it begins with the first test of the process."""
    caplog.clear()
    yield
    found = [record for when in ("setup", "call") for record in caplog.get_records(when)]
    assert [record.getMessage() for record in found if record.levelno >= logging.WARNING] == []


async def test_a_role_that_may_only_put(shell: Any, roles: Roles, db: psycopg.Connection) -> None:
    role = roles("put")
    client = shell.client(roles.dsn(role))
    queue = client.queue("q")
    task = await queue.put({"n": 1}, delay=1, priority=3, ttr=5, ttl=60)
    await queue.put(2, key="k")
    await queue.put(2, key="k")
    await queue.put(3, lane="l")
    await queue.urgent(4)
    await queue.put_many([5, 6])
    assert await client.exchanges.publish("", "q", 7) == 1
    connection = await shell.connection()
    await connection.execute(f"SET ROLE {role}")
    await queue.put(8, conn=connection)
    await connection.commit()
    assert column(db, "SELECT id FROM pgqueue.tasks ORDER BY id")[0] == task.id
    assert len(column(db, "SELECT id FROM pgqueue.tasks")) == 8
    for call in (queue.take(0), queue.pop(), queue.truncate(), client.statuses.set("s", 1), queue.bury(task.id)):
        with pytest.raises(NotAllowed):
            await call
    with pytest.raises(pgqueue.TaskNotFound):
        await queue.peek(task.id)
    await client.close()
    assert value(db, "SELECT count(*) FROM pgqueue.sessions") == 0


async def test_a_put_into_a_full_queue_waits_for_room(shell: Any, roles: Roles, db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('q', capacity => 1)")
    queue = shell.client(roles.dsn(roles("put"))).queue("q")
    await queue.put(1)
    assert await queue.put(2, timeout=0.05) is None
    waiting = asyncio.ensure_future(queue.put(2, timeout=10))
    await soon(lambda: value(db, "SELECT count(*) FROM pgqueue.sessions"))
    db.execute("SELECT pgqueue.pop('q')")
    assert await waiting


async def test_a_role_that_may_only_take(shell: Any, roles: Roles, db: psycopg.Connection) -> None:
    client = shell.client(roles.dsn(roles("take")))
    queue = client.queue("q")
    for n in range(8):
        put(db, "q", str(n))
    one, two, three = await queue.take_many(3, 5)
    await one.touch(60)
    await one.progress({"percent": 50})
    await one.ack()
    await two.release(delay=0.01)
    await three.bury(error="broken")
    claim = await queue.messages.claim(1, ttl=60)
    await queue.messages.renew(claim, ttl=120)
    await queue.messages.delete(claim.messages[0], claim)
    await (await client.take(["q", "r"], 5)).ack()
    assert len(await queue.pop(2)) == 2
    await soon(lambda: value(db, "SELECT count(*) = 2 FROM pgqueue.tasks WHERE state = 'ready'"))
    held = await queue.take(0)
    for call in (queue.put(1), queue.truncate(), queue.kick()):
        with pytest.raises(NotAllowed):
            await call
    with pytest.raises(pgqueue.TaskNotFound):
        await queue.peek(held.id)
    await client.close()
    assert value(db, "SELECT count(*) FROM pgqueue.takes") == 0
    assert await shell.client(roles.dsn(roles("take"))).identify()


async def test_a_waiting_take_of_a_role_that_may_only_take_is_woken(shell: Any, roles: Roles, db: Any) -> None:
    queue = shell.client(roles.dsn(roles("take"))).queue("q")
    waiting = asyncio.ensure_future(queue.take(10))
    await soon(lambda: value(db, "SELECT count(*) FROM pgqueue.queues"))
    put(db, "q", delay="0.1 s")
    assert await waiting


@pytest.mark.once
def test_a_worker_of_a_role_that_may_only_take(dsn: str, roles: Roles, db: psycopg.Connection, caplog: Any) -> None:
    seen: list[Any] = []
    with pgqueue.Client(roles.dsn(roles("take")), poll=None) as client:

        @client.handler("q", keep_result=60)
        def handle(data: Any) -> Any:
            seen.append(data)
            if data == "fails":
                raise RuntimeError("no")
            return data

        worker = pgqueue.Worker(client, max_attempts=2, retry_delay=0.01, concurrency=2)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            good, bad = put(db, "q", "works"), put(db, "q", "fails")
            eventually(lambda: rows(db, "SELECT state FROM pgqueue.tasks") == [("buried",)])
        finally:
            worker.stop()
            thread.join()
    assert sorted(seen) == ["fails", "fails", "works"]
    assert rows(db, "SELECT state, result FROM pgqueue.outcome(%s)", good) == [("done", "works")]
    assert rows(db, "SELECT state FROM pgqueue.outcome(%s)", bad) == [("failed",)]
    caplog.clear()  # the worker logs each failure of a handler


@pytest.mark.slow
@pytest.mark.once
def test_pgqueue_worker_of_a_role_that_may_only_take(roles: Roles, db: psycopg.Connection, tmp_path: Path) -> None:
    module = """
        import pgqueue

        client = pgqueue.Client()

        @client.handler("q")
        def handle(data):
            if data == "fails":
                raise RuntimeError("no")
    """
    (tmp_path / "handlers.py").write_text(textwrap.dedent(module))
    put(db, "q", "works"), put(db, "q", "fails")
    settings = {"PGQUEUE_DSN": roles.dsn(roles("take"))}
    command = ("worker", "handlers:client", "--max-attempts", "2", "--retry-delay", "0.01")
    with started(*command, settings=settings, cwd=tmp_path, stderr=-1, text=True) as worker:
        eventually(lambda: rows(db, "SELECT state FROM pgqueue.tasks") == [("buried",)])
        worker.terminate()
        _, log = worker.communicate(timeout=20)
    assert worker.returncode == 0
    assert "RuntimeError" in log
    assert "permission" not in log
    assert "may not" not in log


@pytest.mark.slow
@pytest.mark.once
def test_a_monitors_client_and_commands(roles: Roles, db: psycopg.Connection) -> None:
    secret = put(db, "q", "secret", key="k")
    monitor = Commands(roles.dsn(roles("monitor")))
    assert monitor.json("stats")[0]["ready"] == 1
    assert [queue["name"] for queue in monitor.json("queues")] == ["q"]
    assert "oldest_ready" in {check["name"] for check in monitor.json("health")}
    assert {line["verb"] for line in monitor.json("privileges")} == {"monitor"}
    for arguments in (("stats", "q"), ("queues",), ("privileges",), ("exchanges",), ("bindings",)):
        assert monitor.lines(*arguments)
    (listed,) = monitor.json("list", "q")
    assert (listed["id"], listed["state"], listed["data"], listed["key"]) == (secret, "ready", None, None)
    assert [monitor.json(*look)[0]["data"] for look in (("peek", secret), ("peek-next", "q"))] == [None, None]
    for refused in (("put", "q", "1"), ("take", "q", "--timeout", "0"), ("truncate", "q", "--yes")):
        assert "permission denied" in monitor.fails(1, *refused)


@pytest.mark.once
def test_the_monitors_work_for_a_role_that_may_only_monitor(
    roles: Roles, db: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    put(db, "q", "secret")
    alerts: list[Any] = []
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as carbon,
        pgqueue.Client(roles.dsn(roles("monitor"))) as client,
    ):
        carbon.bind(("127.0.0.1", 0))
        carbon.settimeout(10)
        with GraphiteReporter(client, "127.0.0.1", carbon.getsockname()[1], "udp", interval=0.05):
            eventually(lambda: b"pgqueue.q.ready 1 " in carbon.recv(65536))
        with Monitor(client, callback=alerts.append, age=0.001, interval=0.05):
            eventually(lambda: alerts)
    assert alerts[0].name == "q"
    caplog.clear()  # an alert is a warning


async def test_a_role_that_may_only_share(shell: Any, roles: Roles) -> None:
    one, other = shell.client(roles.dsn(roles("share"))), shell.client(roles.dsn(roles("share")))
    async with one.lock("l", timeout=5):
        assert await other.try_lock("l") is None
    subscription = await other.subscribe("c")
    await one.post("c", "hello")
    await one.post("c", "x" * 10_000)  # stored, and fetched by its receiver
    assert await subscription.get(30) == "hello"
    assert await subscription.get(30) == "x" * 10_000
    await subscription.close()
    election = one.elect("leader")
    await election.wait(30)
    await election.close()
    await one.statuses.set("s", {"a": 1})
    assert await other.statuses.get("s") == {"a": 1}
    await one.nodes.create("/a", 1)
    assert (await other.nodes.get("/a")).data == 1
    await one.groups.join("g")
    await one.exchanges.declare("e")
    await one.close()
    await other.close()


async def test_a_role_that_may_only_share_has_no_queue(shell: Any, roles: Roles) -> None:
    client = shell.client(roles.dsn(roles("share")))
    for call in (client.queue("q").put(1), client.queue("q").pop(), client.queue("q").truncate()):
        with pytest.raises(NotAllowed):
            await call


async def test_a_role_that_may_only_look(shell: Any, roles: Roles, db: psycopg.Connection) -> None:
    id = put(db, "q")
    client = shell.client(roles.dsn(roles("look")))
    assert (await client.queue("q").peek(id)).data == "data"
    assert (await client.queue("q").peek_next()).id == id
    assert (await client.queue("q").stats())["ready"] == 1
    assert (await client.results.outcome(id)).state == "ready"
    with pytest.raises(TimeoutError):
        await client.results.get(id, timeout=0.05)
