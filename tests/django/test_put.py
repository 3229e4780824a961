"""A put in Django's own transaction: rolled back means gone, committed means there, with Django's pool and without."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from datetime import timedelta

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import DataError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext, override_settings
from django_orders.models import Order
from statements import column

import pgqueue
from pgqueue.contrib.django import client, clients, queue

pytestmark = pytest.mark.once  # what Django does; the statements are those of other connections

QUEUES = "SELECT name FROM pgqueue.queues ORDER BY name"
DATA = "SELECT data FROM pgqueue.tasks ORDER BY id"


class Rollback(Exception):
    pass


@contextmanager
def rolled_back(using="default"):
    """An atomic block that an error ends."""
    with suppress(Rollback), transaction.atomic(using=using):
        yield
        raise Rollback


@pytest.fixture(params=[False, True], ids=["no pool", "pool"])
def pooled(request, dsn, point):
    options = {"CONN_MAX_AGE": 0, "OPTIONS": {"pool": True}} if request.param else {}
    point("default", dsn, **options)


@pytest.mark.parametrize("new", [True, False], ids=["new queue", "known queue"])
def test_as_the_very_first_statement(pooled, db, new):
    mail = queue("mail")
    if not new:
        mail.put("before")
        db.execute("SELECT pgqueue.truncate_queue('mail')")
    with rolled_back():
        assert mail.put({"n": 1}).state == "ready"
        assert mail.stats()["ready"] == 1
        assert column(db, DATA) == []
    assert column(db, DATA) == []
    with transaction.atomic():
        mail.put({"n": 2})
        mail.put_many([{"n": 3}, {"n": 4}], delay=60)
        assert column(db, DATA) == []
    assert column(db, DATA) == [{"n": 2}, {"n": 3}, {"n": 4}]


@pytest.mark.parametrize(
    "put",
    [
        lambda task: queue("new").put("x"),
        lambda task: queue("new").put("x", timeout=timedelta()),
        lambda task: queue("new").put_many(["x"]),
        lambda task: queue("new").put_unique("x"),
        lambda task: queue("new").urgent("x"),
        lambda task: task.ack(put=[pgqueue.Put("new", "x")]),
        lambda task: task.forward("new", "x"),
    ],
    ids=["put", "put at once", "put_many", "put_unique", "urgent", "ack", "forward"],
)
def test_a_new_queue_is_there_for_others_before_the_commit(pooled, db, put):
    queue("old").put("x")
    task = queue("old").take(0)
    with rolled_back():
        put(task)
        assert column(db, QUEUES) == ["new", "old"]
    assert column(db, "SELECT queue FROM pgqueue.tasks") == ["old"]
    client().close()


@pytest.mark.parametrize("verb", ["put", "put_unique", "urgent"])
def test_a_task_that_a_put_waits_for_can_be_acked_before_the_commit(pooled, db, verb):
    before = queue("mail").put("before")
    with transaction.atomic():
        assert getattr(queue("mail"), verb)("after", after=before).state == "waiting"
        assert column(db, "SELECT id FROM pgqueue.task FOR UPDATE SKIP LOCKED") == [before.id]


def test_with_the_data_that_it_is_about(pooled, db):
    with rolled_back():
        queue("mail").put({"order": Order.objects.create(item="tea").pk})
    assert (Order.objects.count(), column(db, DATA)) == (0, [])
    with transaction.atomic():
        order = Order.objects.create(item="tea")
        queue("mail").put({"order": order.pk})
    assert column(db, DATA) == [{"order": order.pk}]


def test_in_savepoints(pooled, db):
    with transaction.atomic():
        with rolled_back():
            queue("mail").put("in the first")
        with transaction.atomic():
            queue("mail").put("in the second")
        queue("mail").put("outside", lane="a")
    assert column(db, DATA) == ["in the second", "outside"]


def test_without_a_transaction(pooled, db):
    queue("mail").put("at once")
    assert column(db, DATA) == ["at once"]


def test_on_the_connection_that_is_given(pooled, db):
    """The other spelling: any queue of a client, or of any other, takes Django's connection."""
    with rolled_back():
        client().queue("mail").put("gone", conn=connection)
    with transaction.atomic():
        client().queue("mail").put("there", conn=connections["default"])
        client().queue("mail").put("by itself")
        assert column(db, DATA) == ["by itself"]
    assert column(db, DATA) == ["there", "by itself"]


def test_done_exactly_once(pooled, db):
    mail = queue("mail")
    mail.put_many(["one", "two"])
    with rolled_back():
        assert [task.data for task in mail.pop()] == ["one"]
    with transaction.atomic():
        assert [task.data for task in mail.pop()] == ["one"]
        assert column(db, DATA) == ["one", "two"]
    task = mail.take(0)
    with rolled_back():
        task.ack()
    assert task.peek().state == "taken"
    with transaction.atomic():
        task.ack()
    assert column(db, DATA) == []
    client().close()


def test_instrumentation_sees_one_statement(django_db):
    queue("mail").put("a queue is looked up only once")
    seen = []

    def wrapper(execute, sql, params, many, context):
        seen.append(sql)
        return execute(sql, params, many, context)

    with CaptureQueriesContext(connection) as captured, connection.execute_wrapper(wrapper):
        queue("mail").put({"n": 1})
        queue("mail").put_many([1, 2])
    assert len(captured) == len(seen) == 2
    assert "pgqueue.put(" in captured[0]["sql"]
    assert '{"n":1}' in captured[0]["sql"]


def test_an_error_breaks_the_block_it_is_in(django_db, db):
    client().create_queue("small", max_size=10)
    with transaction.atomic():
        with pytest.raises(pgqueue.errors.DataTooBig), transaction.atomic():
            queue("small").put("x" * 100)
        queue("small").put("fits")

    @transaction.atomic
    def fail():
        queue("small").put("gone")
        queue("small").put("x" * 100)

    with pytest.raises(pgqueue.errors.DataTooBig):
        fail()
    assert column(db, DATA) == ["fits"]


def test_after_an_error_that_is_ignored_the_block_says_so(django_db, db):
    with transaction.atomic():
        with pytest.raises(ValueError, match="lane"):
            queue("mail").put("x", lane="")  # not sent
        queue("mail").put("before")
    with transaction.atomic():
        with pytest.raises(DataError), connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            queue("mail").put("after")
    assert column(db, DATA) == ["before"]


def test_a_full_queue_is_waited_for_outside_of_a_transaction_only(django_db):
    client().create_queue("one", capacity=1)
    one = queue("one")
    assert one.put(1, timeout=5).state == "ready"
    with pytest.raises(pgqueue.QueueFull):
        one.put(2, timeout=0)
    assert one.put(2, timeout=0.05) is None
    with transaction.atomic(), pytest.raises(ValueError, match="cannot wait for room"):
        one.put(2, timeout=5)
    transaction.set_autocommit(False)
    with pytest.raises(ValueError, match="cannot wait for room"):
        one.put(2, timeout=5)
    transaction.set_autocommit(True)
    client().close()


@pytest.mark.parametrize("timeout", [5, None, timedelta(seconds=5)], ids=str)
def test_a_pop_waits_outside_of_a_transaction_only(pooled, db, timeout):
    """Its connection is its own, so a rollback could not bring the tasks back."""
    mail = queue("mail")
    mail.put_many([1, 2, 3])
    with transaction.atomic(), pytest.raises(ValueError, match="cannot wait"):
        mail.pop(timeout=timeout)
    with transaction.atomic(), pytest.raises(ValueError, match="cannot wait"):
        mail.pop(timeout=timeout, conn=connection)
    with transaction.atomic(), pytest.raises(ValueError, match="several queues"):
        clients.joined().pop(["mail", "letters"])
    with rolled_back():
        assert [task.data for task in mail.pop(2, timedelta())] == [1, 2]
    assert column(db, DATA) == [1, 2, 3]
    assert [task.data for task in mail.pop(timeout=timeout)] == [1]
    transaction.set_autocommit(False)
    with pytest.raises(ValueError, match="cannot wait"):
        mail.pop(timeout=timeout)
    transaction.set_autocommit(True)
    assert [task.data for task in client().queue("mail").pop(2, timeout)] == [2, 3]
    client().close()


def test_what_django_reads_its_own_way(django_db):
    """JSON is JSON and times have a zone, whatever the loaders of Django's connection make of them."""
    with override_settings(USE_TZ=False):
        connection.close()
        task = queue("mail").put({"n": 1}, delay=60)
        assert task.peek().run_at.tzinfo is not None
    assert task.peek().data == {"n": 1}
    assert queue("mail").stats()["calls"]["put"] == 1


def test_several_databases(dsn, other_dsn, point):
    point("default", dsn)
    point("other", other_dsn)
    assert client() is client("default") is not client("other")
    with rolled_back(using="other"):
        queue("mail").put("of default, which is in no transaction")
        queue("mail", using="other").put("gone")
    queue("mail", using="other").put("of other")
    assert [task.data for task in queue("mail").pop(9)] == ["of default, which is in no transaction"]
    assert [task.data for task in queue("mail", using="other").pop(9)] == ["of other"]


def test_each_thread_has_its_own_transaction(django_db, db):
    inside, go_on = threading.Event(), threading.Event()

    def other():
        with transaction.atomic():
            queue("mail").put("thread")
            inside.set()
            go_on.wait(30)
        connection.close()

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(30)
    queue("mail").put("main")
    assert column(db, DATA) == ["main"]
    go_on.set()
    thread.join()
    assert column(db, DATA) == ["thread", "main"]


async def test_from_async_code(django_db, db):
    """Django's transactions are synchronous; pgqueue's own connections are for async code."""

    def order():
        with transaction.atomic():
            queue("mail").put("in a transaction")

    async with ThreadSensitiveContext():
        await sync_to_async(order)()
        await sync_to_async(connections.close_all)()
    assert await sync_to_async(column)(db, DATA) == ["in a transaction"]
    async with pgqueue.AsyncClient(client().shell.core.settings.dsn) as awaiting:
        with pytest.raises(TypeError, match="sync_to_async"):
            await awaiting.queue("new").put(1, conn=connection)  # type: ignore[call-overload]  # on purpose
    assert await sync_to_async(column)(db, QUEUES) == ["mail"]


@pytest.mark.parametrize(("conn", "says"), [(connections["lite"], "'lite' is SQLite"), (Order, "ModelBase")])
def test_what_is_no_connection_to_postgresql(django_db, db, conn, says):
    with pytest.raises(TypeError, match=says):
        client().queue("mail").put(1, conn=conn)
    assert column(db, QUEUES) == []  # nothing was sent
