"""Middleware around the puts and the runs of jobs, on both shells and in a worker."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
import pytest
from eventually import eventually
from running import running
from statements import column, value

import pgqueue
from pgqueue import Worker
from pgqueue.jobs.middleware import Order, Running
from pgqueue.testing import drain as drain_here

pytestmark = pytest.mark.once

Blocking = Callable[..., pgqueue.Client]
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")


class Tenant:
    """Carries a variable of the put to the run."""

    @contextmanager
    def put(self, order: Order) -> Iterator[None]:
        order.headers["tenant"] = tenant.get()
        yield

    @contextmanager
    def run(self, run: Running) -> Iterator[None]:
        token = tenant.set(run.headers["tenant"])
        try:
            yield
        finally:
            tenant.reset(token)


class Noting:
    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.runs: list[Running] = []
        self.ends: list[tuple[str, bool]] = []

    @contextmanager
    def put(self, order: Order) -> Iterator[None]:
        yield
        self.orders.append(order)

    @contextmanager
    def run(self, run: Running) -> Iterator[None]:
        self.runs.append(run)
        try:
            yield
        except BaseException as error:
            self.ends.append((type(error).__name__, run.buries(error)))
            raise


def working(client: Any, **options: Any) -> AbstractContextManager[Worker]:
    return running(Worker(client, **options))


def drain(client: pgqueue.Client, queue: str = "q", **options: Any) -> None:
    with working(client, **options):
        eventually(lambda: (s := client.queue(queue).stats())["total"] == s["buried"])


def test_what_a_put_sets_a_run_sees(blocking: Blocking) -> None:
    """In a thread, in a coroutine, and in an async job of a queue that has a sync one too."""
    client = blocking()
    client.middleware.append(Tenant())
    seen: dict[str, str] = {}

    @client.job(queue="q")
    def sync() -> None:
        seen["sync"] = tenant.get()

    @client.job(queue="q")
    async def mixed() -> None:
        seen["mixed"] = tenant.get()

    @client.job(queue="async")
    async def pure() -> None:
        seen["pure"] = tenant.get()

    token = tenant.set("ada")
    for job in (sync, mixed, pure):
        job.put()
    tenant.reset(token)
    with working(client):
        eventually(lambda: len(seen) == 3)
    assert seen == dict.fromkeys(("sync", "mixed", "pure"), "ada")


@pytest.mark.slow
async def test_every_kind_of_put_is_surrounded(blocking: Blocking, db: psycopg.Connection) -> None:
    client, noting = blocking(), Noting()
    client.middleware.extend([noting, Tenant()])

    @client.job(queue="q")
    def send(to: str, n: int = 1) -> None: ...

    task = send.put("ada")
    awaited = await send.options(headers={"own": "x"}).aput("bob", n=2)
    many = send.put_many([("eve",), {"to": "dan"}])
    awaited_many = await send.aput_many([("fay",)])
    by_json = send.options(headers={"own": "y"}).put_json({"to": "hal"})
    awaited_json = await send.options().aput_json({"to": "ivy"})
    prepared = send.prepare("gil")
    assert prepared.data["headers"] == {"tenant": "none"}
    assert [order.ids for order in noting.orders] == [
        [task.id], [awaited.id], many, awaited_many, [by_json.id], [awaited_json.id], []
    ]  # fmt: skip
    assert [order.args for order in noting.orders][:3] == [
        [{"to": "ada"}],
        [{"to": "bob", "n": 2}],
        [{"to": "eve"}, {"to": "dan"}],
    ]
    assert {(order.job, order.queue) for order in noting.orders} == {(send.name, "q")}
    headers = column(db, "SELECT data -> 'headers' FROM pgqueue.tasks ORDER BY id")
    plain = {"tenant": "none"}
    assert headers == [plain, plain | {"own": "x"}, plain, plain, plain, plain | {"own": "y"}, plain]


def test_a_run_says_what_it_is_of(blocking: Blocking, db: psycopg.Connection) -> None:
    client, noting = blocking(), Noting()

    @client.job(queue="q", middleware=[noting])
    def send(to: str) -> int:
        return 5

    @client.job(queue="q")
    def other() -> None: ...

    task = send.options(headers={"own": "x"}).put("ada")
    other.put()
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '100 s'")
    drain(client)
    (run,) = noting.runs
    assert (run.job, run.queue, run.id, run.attempt, run.args, run.headers, run.result) == (
        *(send.name, "q", task.id, 1, {"to": "ada"}, {"own": "x"}, 5),
    )
    assert 100 <= run.waited < 120
    assert [order.job for order in noting.orders] == [send.name]


def test_a_run_knows_whether_its_failure_is_the_last(blocking: Blocking) -> None:
    client, noting = blocking(), Noting()
    client.middleware.append(noting)

    @client.job(queue="q", retry=pgqueue.Retry(attempts=3, delay=0))
    def fail() -> None:
        raise LookupError("no")

    fail.put()
    drain(client)
    assert noting.ends == [("LookupError", False), ("LookupError", False), ("LookupError", True)]
    assert [run.attempt for run in noting.runs] == [1, 2, 3]


def test_an_exception_of_a_middleware_refuses_a_put_and_fails_a_run(blocking: Blocking, db: psycopg.Connection) -> None:
    client = blocking()

    class Guard:
        @contextmanager
        def put(self, order: Order) -> Iterator[None]:
            if order.args[0]["to"] == "eve":
                raise PermissionError("not eve")
            yield

        @contextmanager
        def run(self, run: Running) -> Iterator[None]:
            raise PermissionError("nobody")
            yield

    called = []

    @client.job(queue="q", middleware=[Guard()], retry=pgqueue.Retry(attempts=1))
    def send(to: str) -> None:
        called.append(to)

    with pytest.raises(PermissionError, match="not eve"):
        send.put("eve")
    send.put("ada")
    drain(client)
    assert "PermissionError: nobody" in value(db, "SELECT error FROM pgqueue.tasks")
    assert called == []


@pytest.mark.parametrize("header", [5, None, b"x"], ids=str)
def test_a_header_that_is_no_string_is_refused(blocking: Blocking, header: Any) -> None:
    client = blocking()

    class Wrong:
        @contextmanager
        def put(self, order: Order) -> Iterator[None]:
            order.headers["x"] = header
            yield

    client.middleware.append(Wrong())

    @client.job(queue="q")
    def send() -> None: ...

    with pytest.raises(ValueError, match=r"headers are strings, not 'x': .*, which a middleware has set"):
        send.put()


def test_what_is_no_middleware_is_refused(blocking: Blocking) -> None:
    client = blocking()
    with pytest.raises(ValueError, match="a middleware is an object with a method"):
        client.job(queue="q", middleware=[5])
    client.middleware.append(Tenant)

    @client.job(queue="q")
    def send() -> None: ...

    with pytest.raises(ValueError, match="a middleware is an object with a method"):
        send.put()


def test_runs_are_counted_by_their_jobs(blocking: Blocking, db: psycopg.Connection) -> None:
    """Also those of aliases, of what is no job, and of a mixed queue."""
    client = blocking()

    @client.job(queue="q", name="shop.send", aliases=["old.send"])
    def send(fails: bool) -> None:
        if fails:
            raise pgqueue.Bury("no such address")

    @client.job(queue="q", name="shop.bill", retry=pgqueue.Retry(attempts=2, delay=0))
    async def bill(fails: bool) -> None:
        if fails:
            raise LookupError

    for job in (send, bill):
        job.put_many([(False,), (False,), (True,)])
    client.queue("q").put({"job": "old.send", "args": {"fails": False}})
    client.queue("q").put({"job": None, "args": {}})
    drain(client)
    found = db.execute("SELECT job, done, failed, retried FROM pgqueue.job_stats ORDER BY 1").fetchall()
    assert found == [("", 0, 1, 0), ("shop.bill", 2, 1, 1), ("shop.send", 3, 1, 0)]
    with working(client):
        jobs = "SELECT jobs FROM pgqueue.workers"
        assert eventually(lambda: column(db, jobs), 10) == [["shop.bill", "shop.send"]]


def test_a_test_without_a_worker_has_middleware_too(blocking: Blocking) -> None:
    client, noting = blocking(), Noting()
    client.middleware.append(noting)

    @client.job(queue="q")
    def sync(n: int) -> None: ...

    @client.job(queue="other")
    async def pure(n: int) -> None: ...

    sync.put(1)
    pure.put(2)
    drain_here(client)
    assert [(run.job, run.args) for run in noting.runs] == [(sync.name, {"n": 1}), (pure.name, {"n": 2})]
    assert all(run.waited < 60 for run in noting.runs)
