"""The helpers for tests of Django projects, used as such tests use them: inside TestCases."""

from __future__ import annotations

import errands
import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django_orders.models import Order
from statements import column
from tasking import Status, backend, passes

from pgqueue.contrib.django import client, handler, queue
from pgqueue.contrib.django.testing import QueuesCleared, clear, queued, run_tasks

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("no_handlers")]


def test_in_a_testcase(django_db, db):
    @handler("orders")
    def make(data):
        Order.objects.create(item=data["item"])
        if data["item"] == "tea":
            queue("mail").put("made")

    @handler("mail")
    async def send(data, task):
        await Order.objects.acreate(item=f"{data} by {task.queue}")

    class Case(TestCase):
        def test_one(self):
            queue("orders").put_many([{"item": "milk"}, {"item": "tea"}])
            assert [task.data["item"] for task in queued("orders")] == ["milk", "tea"]
            assert [(task.queue, task.data) for task in run_tasks()] == [
                ("orders", {"item": "milk"}),
                ("orders", {"item": "tea"}),
                ("mail", "made"),
            ]
            assert queued("orders") == queued("mail") == run_tasks() == []
            assert sorted(Order.objects.values_list("item", flat=True)) == ["made by mail", "milk", "tea"]
            assert queue("orders").stats()["done"] == 2

        def test_one_queue(self):
            assert Order.objects.count() == 0
            queue("orders").put({"item": "tea"})
            with self.assertNumQueries(2):  # nothing of the other test is left
                assert [len(queued(name)) for name in ("orders", "mail")] == [1, 0]
            assert [task.queue for task in run_tasks("orders")] == ["orders"]
            assert [task.data for task in queued("mail")] == ["made"]

        def test_outside_of_it_there_is_nothing(self):
            queue("mail").put("x")
            run_tasks()
            assert column(db, "SELECT count(*) FROM pgqueue.tasks") == [0]

    passes(Case)
    assert column(db, "SELECT count(*) FROM django_orders_order") == [0]
    assert column(db, "SELECT count(*) FROM pgqueue.tasks") == [0]


def test_a_handler_that_fails(django_db):
    @handler("mail")
    def send(data):
        raise KeyError(data)

    @handler("settled")
    def bury_and_fail(data, task):
        task.bury(error="mine")
        raise KeyError(data)

    @handler("broken")
    def break_the_transaction(data):
        Order.objects.create(pk=1)
        Order.objects.create(pk=1)

    class Case(TestCase):
        def test_its_error_is_seen(self):
            queue("mail").put("ada")
            for attempt in (1, 2):
                with self.assertRaisesMessage(KeyError, "ada"):
                    run_tasks()
                (task,) = queued("mail")
                assert (task.state, task.attempts) == ("ready", attempt)
                assert task.error.startswith("KeyError: 'ada'")

        def test_it_may_have_settled_its_task(self):
            queue("settled").put("bob")
            with self.assertRaisesMessage(KeyError, "bob"):
                run_tasks()
            assert [(task.state, task.error) for task in queued("settled")] == [("buried", "mine")]

        def test_even_if_the_transaction_is_broken(self):
            with self.assertRaises(Exception) as caught, transaction.atomic():  # noqa: PT027 as unittest has it
                queue("broken").put(1)
                run_tasks("broken")
            assert type(caught.exception).__name__ == "IntegrityError"

    passes(Case)


def test_handlers_that_settle_their_task_themselves(django_db):
    @handler("sync")
    def choose(verb, task):
        getattr(task, verb)()

    @handler("async")
    async def choose_async(verb, task):
        await getattr(task, verb)()

    @handler("joined")
    def ack_in_a_transaction(data, task):
        with transaction.atomic():
            task.ack(conn=connection)

    class Case(TestCase):
        def test_in_a_transaction(self):
            queue("joined").put(1)
            assert len(run_tasks("joined")) == 1
            assert queued("joined") == []

        def test_verbs(self):
            for name in ("sync", "async"):
                queue(name).put_many(["ack", "bury"])
                assert len(run_tasks(name)) == 2
                assert [(task.data, task.state) for task in queued(name)] == [("bury", "buried")]

    passes(Case)


def test_results_are_kept(django_db):
    handler("double", keep_result=60)(lambda data: data * 2)

    @handler("double-async", keep_result=60)
    async def double(data):
        return await sync_to_async(lambda: data * 2)()

    for name in ("double", "double-async"):
        task = queue(name).put(21)
        run_tasks(name)
        assert client().results.get(task, 5) == 42


def test_what_is_not_ready_is_not_run(django_db):
    handler("mail")(print)
    queue("mail").put("later", delay=60)
    assert run_tasks() == []
    assert [task.state for task in queued("mail")] == ["delayed"]


def test_it_ends(django_db):
    with pytest.raises(ValueError, match="for any queue"):
        run_tasks()
    handler("again")(lambda data: queue("again").put(data))
    with pytest.raises(ValueError, match="for 'mail'"):
        run_tasks("mail")
    queue("again").put(1)
    with pytest.raises(RuntimeError, match="10 tasks were run"):
        run_tasks(limit=10)
    assert [task.state for task in queued("again")] == ["ready"]


def test_in_a_transactiontestcase(django_db, db):
    handled = []
    handler("mail")(handled.append)

    class Flushed(TransactionTestCase):
        def test_it(self):
            queue("mail").put_many([1, 2])
            assert len(run_tasks(limit=1000)) == 2
            queue("mail").put("left")

    class Cleared(QueuesCleared):
        def test_it(self):
            assert [task.data for task in queued("mail")] == ["left"]
            queue("mail").put(3)

    passes(Flushed)
    assert handled == [1, 2]
    passes(Cleared)
    assert column(db, "SELECT count(*) FROM pgqueue.tasks") == [0]
    queue("mail").put(4)
    clear()
    assert queued("mail") == []


def test_another_database(dsn, other_dsn, point):
    point("default", dsn)
    point("other", other_dsn)
    handled = []
    handler("mail", using="other")(handled.append)
    queue("mail", "other").put(1)
    assert [task.data for task in run_tasks(using="other")] == [1]
    assert handled == [1]
    with pytest.raises(ValueError, match="no handler"):
        run_tasks("mail")


def test_the_connection_stays_as_it_is(django_db):
    """A worker closes connections around a task; a test would lose its transaction."""
    handler("mail")(lambda data: Order.objects.create(item=data))
    with transaction.atomic():
        queue("mail").put("tea")
        run_tasks()
        assert connection.in_atomic_block
    assert Order.objects.count() == 1


def test_tasks_of_the_framework(django_db, db):
    """Those of django.tasks, too: a TestCase sees their results."""

    class Case(TestCase):
        def test_it(self):
            result = errands.add.enqueue(1, b=2)
            assert [task.queue for task in run_tasks()] == ["default"]
            result.refresh()
            assert result.return_value == 3

        def test_failure(self):
            result = errands.fail.enqueue("no")
            run_tasks()
            result.refresh()
            assert result.status == Status.FAILED

        def test_async(self):
            result = errands.make_user_async.enqueue("ada")
            run_tasks()
            result.refresh()
            assert result.status == Status.SUCCESSFUL, result.errors
            assert User.objects.get().username == "ada"

    with override_settings(TASKS={"default": backend("default")}):
        passes(Case)
    assert column(db, "SELECT count(*) FROM pgqueue.tasks") == [0]


@pytest.mark.parametrize("task", [errands.end, errands.end_async])
def test_an_exit_of_the_frameworks_tasks(django_db, task):
    """It is in the result, as any other error is. An interrupt is the user's, and ends the tests."""
    with override_settings(TASKS={"default": backend("default")}):
        result, after = task.enqueue("SystemExit"), errands.add.enqueue(1)
        run_tasks()
        result.refresh()
        after.refresh()
        assert (result.status, result.errors[0].exception_class) == (Status.FAILED, SystemExit)
        assert after.status == Status.SUCCESSFUL
        task.enqueue("KeyboardInterrupt")
        with pytest.raises(KeyboardInterrupt):
            run_tasks()


def test_tasks_of_a_backend_without_queues(django_db):
    @client().job("jobs")
    def double(number: int) -> int:
        return 2 * number

    with override_settings(TASKS={"default": backend()}):
        assert run_tasks() == []
        queue("plain").put({"item": "tea"})
        double.options(queue="apart").put(1)
        results = [errands.add.using(queue_name=name).enqueue(1) for name in ("first", "second")]
        maker = errands.make_user.using(queue_name="first").enqueue("ada")  # puts a task into the queue "default"
        assert [task.queue for task in run_tasks("second")] == ["second"]
        assert sorted(task.queue for task in run_tasks()) == ["default", "first", "first"]
        for result in (*results, maker):
            result.refresh()
            assert result.status == Status.SUCCESSFUL
        assert [len(queued(name)) for name in ("plain", "apart")] == [1, 1]


def test_an_entry_of_tasks_that_cannot_be_made(django_db, caplog):
    """The others work, and the log names it."""
    missing = {"BACKEND": "does.not.exist"}
    with override_settings(TASKS={"default": backend("default"), "missing": missing}):
        result = errands.add.enqueue(1)
        run_tasks()
        result.refresh()
        assert result.return_value == 1
    assert "TASKS['missing'] is left out: Could not find backend 'does.not.exist'" in caplog.text
