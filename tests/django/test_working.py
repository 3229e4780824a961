"""Handlers of a Django project at work: found in its apps, and with connections as tidy as a request's."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import errands
import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections, transaction
from django.db.backends.signals import connection_created
from django.test import override_settings
from django_orders.models import Order
from eventually import eventually
from psycopg.conninfo import make_conninfo
from statements import column, value
from tasking import backend

from pgqueue.contrib.django import client, handler, queue, working

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("no_handlers")]

LEFT_OPEN = "a handler left a transaction open on the database 'default': it is rolled back"


@pytest.fixture(params=[None, 0, "pool"], ids=["kept", "closed", "pool"])
def database(request, dsn, point):
    """Django's database with each way to keep connections."""
    pooled = request.param == "pool"
    point("default", dsn, CONN_MAX_AGE=0 if pooled else request.param, OPTIONS={"pool": True} if pooled else {})


@pytest.fixture
def opened():
    """Every connection that Django opens, as a list; the pool's are opened elsewhere."""
    raw = []

    def note(connection, **kwargs):
        raw.append(connection.connection)

    connection_created.connect(note)
    yield raw
    connection_created.disconnect(note)


@contextmanager
def at_work(*databases, **options):
    workers = working.workers(databases, **({"concurrency": 1} | options))
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(working.run, workers)
        try:
            yield
        finally:
            for worker in workers:
                worker.stop()
            running.result(30)


def done(name="tidy", using="default"):
    return client(using).queue(name).stats()["done"]


def test_a_handler_stays_callable_and_is_one(django_db):
    @handler("mail")
    def send(data):
        return data

    assert send(5) == 5
    handler("mail")(send)  # loaded anew
    with pytest.raises(ImproperlyConfigured, match=r"the queue 'mail' has two handlers, .*\.send and .*\.other"):

        @handler("mail")
        def other(data): ...

    for wrong in ({"queue": ""}, {"queue": "mail", "keep_result": 0}):
        with pytest.raises(ValueError, match=r"name|keep_result"):
            handler(**wrong)
    handler("mail", using="nowhere")(send)
    with pytest.raises(ImproperlyConfigured, match="no database 'nowhere'"):
        working.workers([])
    with pytest.raises(ImproperlyConfigured, match="no handler is registered for the database 'other'"):
        working.workers(["other"])


def test_without_handlers():
    with pytest.raises(ImproperlyConfigured, match="no handler is registered: put @handler"):
        working.workers([])


def test_work_and_its_results(django_db):
    handler("double", keep_result=60)(lambda data: data * 2)

    @handler("double-async", keep_result=60)
    async def double(data, task):
        return task.data * 2

    tasks = [queue(name).put(21) for name in ("double", "double-async")]
    with at_work():
        assert [client().results.get(task, 30) for task in tasks] == [42, 42]


def test_a_transaction_that_was_left_open_ends_with_its_task(database, db, caplog):
    seen = []

    @handler("tidy")
    def leave_open(how):
        seen.append((connection.in_atomic_block, connection.get_autocommit(), Order.objects.count()))
        if how == "atomic":
            transaction.atomic().__enter__()
        elif how == "autocommit":
            transaction.set_autocommit(False)
        Order.objects.create(item=str(how))

    queue("tidy").put_many(["atomic", "autocommit", "committed", "last"])
    with at_work():
        eventually(lambda: done() == 4)
    assert seen == [(False, True, 0), (False, True, 0), (False, True, 0), (False, True, 1)]
    assert column(db, "SELECT item FROM django_orders_order ORDER BY id") == ["committed", "last"]
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [LEFT_OPEN]


def test_a_connection_that_broke_is_not_handed_on(database, dsn, db):
    """The task that it broke under fails, and is tried again on another one."""
    pids, broken = [], threading.Event()

    @handler("tidy")
    def work(data):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])
            if data == "break" and not broken.is_set():
                broken.set()
                db.execute("SELECT pg_terminate_backend(%s::int)", [pids[-1]])
                eventually(lambda: value(db, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pids[0]) == 0)
                cursor.execute("SELECT 1")

    queue("tidy").put_many(["break", "next"])
    with at_work(retry_delay=0):
        eventually(lambda: done() == 2)
    assert len(pids) == 3
    assert pids[0] not in pids[1:]


def test_connections_are_kept_as_long_as_the_settings_say(dsn, point, opened):
    pids = []

    @handler("tidy")
    def work(data):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])

    for max_age in (None, 0):
        pids.clear()
        point("default", dsn, CONN_MAX_AGE=max_age)
        before = done()
        queue("tidy").put_many(range(3))
        with at_work():
            eventually(lambda before=before: done() == before + 3)
            if max_age == 0:  # the last one too, although no task comes after it
                ours = connection.connection
                eventually(lambda ours=ours: all(raw.closed for raw in opened if raw is not ours))
        assert len(set(pids)) == (1 if max_age is None else 3)
        connection.close()
        assert all(raw.closed for raw in opened)


def test_queries_are_not_kept(django_db):
    counts = []

    @handler("tidy")
    def work(data):
        Order.objects.count()
        counts.append(len(connection.queries))

    queue("tidy").put_many(range(3))
    with override_settings(DEBUG=True), at_work():
        eventually(lambda: done() == 3)
    assert counts == [1, 1, 1]


def test_async_handlers_leave_nothing_behind(database, db, opened, caplog):
    """Each has a thread for its ORM, as a request has under ASGI, and its connection goes with it."""
    threads, together = set(), threading.Barrier(3)

    @handler("tidy")
    async def work(data):
        await Order.objects.acreate(item=str(data))
        assert await Order.objects.filter(item=str(data)).aexists()
        threads.add(await sync_to_async(lambda: (together.wait(30), threading.get_ident())[1])())
        if data == 0:
            await sync_to_async(transaction.atomic().__enter__)()
            await Order.objects.acreate(item="not committed")

    queue("tidy").put_many(range(3))
    with at_work(concurrency=3):
        eventually(lambda: done() == 3)
    assert len(threads) == 3
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [LEFT_OPEN]
    assert sorted(column(db, "SELECT item FROM django_orders_order")) == ["0", "1", "2"]
    connection.close()
    assert all(raw.closed for raw in opened) or connection.pool  # type: ignore[attr-defined]


def test_tasks_of_the_framework_are_served_too(django_db):
    handled = []
    handler("mail")(handled.append)
    with override_settings(TASKS={"default": backend("default", "more")}):
        result = errands.add.enqueue(1, b=2)
        queue("mail").put(1)
        with at_work():
            eventually(lambda: result.refresh() or result.is_finished)
            eventually(lambda: handled)
    assert result.return_value == 3


def test_handlers_of_several_databases(dsn, other_dsn, point):
    point("default", dsn)
    point("other", other_dsn)
    handled = []
    for alias in ("default", "other"):
        handler("mail", using=alias)(lambda data, alias=alias: handled.append((alias, data)))
        queue("mail", alias).put(1)
    with at_work():
        eventually(lambda: len(handled) == 2)
    assert sorted(handled) == [("default", 1), ("other", 1)]
    queue("mail", "other").put(2)
    with at_work("default"):
        queue("mail").put(2)
        eventually(lambda: len(handled) == 3)
    assert handled[2] == ("default", 2)
    connections["other"].close()


@pytest.mark.slow
def test_when_one_of_several_cannot_work_none_does(dsn, point):
    """The server has no database of the name that `other` gives."""
    point("default", dsn)
    point("other", make_conninfo(dsn, dbname="none"))
    for alias in ("default", "other"):
        handler("mail", using=alias)(print)
    with pytest.raises(Exception, match="cannot connect to PostgreSQL"):
        working.run(working.workers([]))
