"""Jobs of Django's apps: puts in Django's transaction, runs with tidy connections, beside handlers and django.tasks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import errands
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django_orders.models import Order
from eventually import eventually
from statements import column, rows
from tasking import Status, backend, passes

from pgqueue import BadArguments, Retry, Task
from pgqueue.contrib.django import client, clients, handler, job, queue, working
from pgqueue.contrib.django.testing import queued, run_tasks

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("no_handlers")]


@contextmanager
def at_work(*databases, **options):
    workers = working.workers(databases, **({"concurrency": 2} | options))
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(working.run, workers)
        try:
            yield
        finally:
            for worker in workers:
                worker.stop()
            running.result(30)


def test_a_put_is_part_of_djangos_transaction(django_db, db):
    @job("mail", priority=5)
    def send(to: str): ...

    with transaction.atomic(), CaptureQueriesContext(connection) as captured:
        send.put("ada")
        send.options(key="bob").put(to="bob")
        send.put_many([("eve",)])
        assert column(db, "SELECT data FROM pgqueue.tasks") == []
    assert len(captured) == 3
    with transaction.atomic():
        send.put("gone")
        transaction.set_rollback(True)
    put = rows(db, "SELECT data -> 'args' ->> 'to', queue, priority, key FROM pgqueue.tasks ORDER BY id")
    assert put == [("ada", "mail", 5, None), ("bob", "mail", 5, "bob"), ("eve", "mail", 5, None)]
    with pytest.raises(BadArguments, match="to"):
        send.put(7)  # type: ignore[arg-type]


async def test_a_put_that_is_awaited_counts_at_once(django_db, db):
    @job()
    async def send(to: str): ...

    await send.aput("ada")
    await client().aio.close()
    assert column(db, "SELECT data -> 'args' ->> 'to' FROM pgqueue.tasks") == ["ada"]


def test_jobs_handlers_and_tasks_of_the_framework_in_one_worker(django_db):
    """Jobs and tasks of the framework may share a queue."""
    around, threads = [], set()

    class Middleware:
        @contextmanager
        def run(self, run):
            around.append((run.job, run.attempt))
            yield

    client().middleware.append(Middleware())
    handled = threading.Event()
    handler("plain")(lambda data: handled.set())

    @job(keep_result=60, name="save", retry=Retry(delay=0))
    def save(task: Task, item: str) -> int:
        threads.add(threading.current_thread().name)
        order = Order.objects.create(item=item)
        if not task.attempts:
            raise LookupError(item)
        return order.pk

    @job(keep_result=60, name="asave")
    async def asave(item: str) -> int:
        return (await Order.objects.acreate(item=item)).pk

    clients.close()  # as a test runner does: jobs and middleware outlive the client
    with override_settings(TASKS={"default": backend("default")}):
        results = [errands.make_user.enqueue("ada"), errands.make_user_async.enqueue("bob")]
        tasks = [save.put("tea"), asave.put("milk")]
        queue("plain").put(1)
        with at_work():
            found = {Order.objects.get(pk=client().results.get(task, 30)).item for task in tasks}
            eventually(lambda: [one.refresh() or one.status for one in results] == [Status.SUCCESSFUL] * 2)
            assert handled.wait(30)
    assert found == {"tea", "milk"}
    assert {("save", 1), ("save", 2), ("asave", 1), ("errands.make_user", 1)} <= set(around)
    assert all(name.startswith("pgqueue-runner") for name in threads)
    assert Order.objects.filter(item="tea").count() == 2


def test_a_transaction_that_a_job_left_open_is_not_passed_on(django_db, caplog):
    seen = []

    @job(name="leave", keep_result=60)
    def leave(item: str) -> None:
        seen.append(connection.in_atomic_block)
        transaction.atomic().__enter__()
        Order.objects.create(item=item)

    tasks = [leave.put("tea"), leave.put("milk")]
    with at_work(concurrency=1):
        for task in tasks:
            client().results.get(task, 30)
    assert seen == [False, False]
    assert not Order.objects.exists()
    assert "left a transaction open" in caplog.text


def test_chosen_queues_of_several_databases(dsn, other_dsn, point):
    point("default", dsn)
    point("other", other_dsn)
    ran = []
    for using in ("default", "other"):
        for name in ("mail", "reports"):
            job(name, using=using, name=name)(lambda using=using, name=name: ran.append((using, name)))
    handler("alone", using="other")(print)

    def served(**options):
        return [sorted(worker._queues or ()) for worker in working.workers([], **options)]

    assert served() == [["mail", "reports"], ["alone", "mail", "reports"]]
    assert served(queues=["mail"]) == [["mail"], ["mail"]]
    assert served(queues=["alone"]) == [["alone"]]
    assert served(exclude=["mail", "alone"]) == [["reports"], ["reports"]]
    for options in ({"queues": ["none"]}, {"exclude": ["none"]}):
        with pytest.raises(ImproperlyConfigured, match="none of the databases has a handler for the queue 'none'"):
            working.workers([], **options)
    for using in ("default", "other"):
        for name in ("mail", "reports"):
            queue(name, using).put({"job": name, "args": {}})
    with at_work(queues=["mail"]):
        eventually(lambda: len(ran) == 2)
    assert sorted(ran) == [("default", "mail"), ("other", "mail")]


def test_queues_that_only_the_worker_names(django_db):
    with override_settings(TASKS={"default": backend("default"), "any": backend()}):
        result = errands.add.using(backend="any", queue_name="rare").enqueue(1)
        with at_work(queues=["rare", "default"]):
            eventually(lambda: result.refresh() or result.status == Status.SUCCESSFUL)


def test_a_worker_declares_the_limits_of_jobs(django_db, db):
    @job("mail", name="send", concurrency=1, limit_by="to")
    def send(to: str): ...

    send.put("ada")
    with at_work():
        eventually(lambda: rows(db, "SELECT count(*) FROM pgqueue.tasks") == [(0,)])
    assert rows(db, "SELECT queue, job, concurrency, argument FROM pgqueue.limits") == [("mail", "send", 1, "to")]


def test_jobs_that_cannot_be(django_db):
    with pytest.raises(ValueError, match="isolation is 'thread' or 'process', not 'fork'"):
        job(isolation="fork")  # type: ignore[arg-type]
    with pytest.raises(ImproperlyConfigured, match="no database 'nowhere'"):
        job(using="nowhere")(lambda: None)
    job("mail", name="one")(lambda: None)
    with pytest.raises(ValueError, match="two jobs are named 'one'"):
        job("mail", name="one")(lambda: 1)
    handler("mail")(print)
    with pytest.raises(ValueError, match="queue 'mail' has a handler and jobs"):
        working.workers([])


def test_in_a_testcase(django_db, db):
    @job("mail", name="buy", retry=Retry(attempts=1))
    def buy(item: str):
        Order.objects.create(item=item)
        if item == "gone":
            raise LookupError(item)
        note.put(item)

    @job("mail", name="note", keep_result=60)
    async def note(item: str):
        return (await Order.objects.acreate(item=f"note of {item}")).item

    class Case(TestCase):
        def test_one(self):
            buy.put("tea")
            ran = run_tasks()
            assert [task.queue for task in ran] == ["mail", "mail"]
            assert sorted(Order.objects.values_list("item", flat=True)) == ["note of tea", "tea"]
            with connection.cursor() as cursor:
                cursor.execute("SELECT result FROM pgqueue.results")
                assert cursor.fetchall() == [('"note of tea"',)]

        def test_failure(self):
            buy.put("gone")
            with self.assertRaisesMessage(LookupError, "gone"):
                run_tasks("mail")
            assert [task.state for task in queued("mail")] == ["buried"]

    passes(Case)
    assert column(db, "SELECT count(*) FROM pgqueue.tasks") == [0]
