"""django.tasks as its documentation has it, up to the worker: enqueueing, transactions, looking results up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import errands
import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext, override_settings
from django.utils import timezone
from errands import framework
from statements import column, rows, value
from tasking import Status, TaskResultDoesNotExist, TaskResultMismatch, backend

from pgqueue import BadData
from pgqueue.contrib.django import PgqueueBackend, queue

TASKS = {"default": backend("default", "emails"), "reserve": backend("reserve"), "any": backend()}


@pytest.fixture(autouse=True)
def _tasks(django_db):
    with override_settings(TASKS=TASKS):
        yield


@pytest.fixture
async def in_thread():
    """Django's awaiting functions work in a thread that outlives the test: its connection must not."""

    def let_go():
        connections["default"].close()
        del connections["default"]

    yield
    await sync_to_async(let_go)()


def queued(db):
    return column(db, "SELECT data ->> 'job' FROM pgqueue.tasks ORDER BY id")


# --- enqueueing


def test_enqueue_returns_a_result_that_is_ready(db):
    before = timezone.now()
    result = errands.add.enqueue(1, b=2)
    assert result.task == errands.add
    assert isinstance(result.id, str)
    assert 0 < len(result.id) < 64
    assert result.status == Status.READY
    assert before <= result.enqueued_at <= timezone.now()
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
    assert (result.args, result.kwargs, result.backend) == ([1], {"b": 2}, "default")
    assert (result.errors, result.worker_ids, result.attempts, result.is_finished) == ([], [], 0, False)
    with pytest.raises(ValueError, match="Task has not finished yet"):
        result.return_value  # noqa: B018  # the property raises
    assert rows(db, "SELECT id::text, queue, priority, state FROM pgqueue.tasks") == [
        (result.id, "default", 0, "ready")
    ]


async def test_aenqueue_does_the_same(db, in_thread):
    result = await errands.add_slowly.aenqueue(1, b=2)
    assert (result.status, result.args, result.kwargs) == (Status.READY, [1], {"b": 2})
    assert queued(db) == ["errands.add_slowly"]


def test_arguments_become_what_json_makes_of_them(db):
    result = errands.add.enqueue((1, 2), b=b"bytes")
    assert (result.args, result.kwargs) == ([[1, 2]], {"b": "bytes"})
    assert rows(db, "SELECT data -> 'args' -> 'args', data -> 'args' -> 'kwargs' FROM pgqueue.tasks") == [
        ([[1, 2]], {"b": "bytes"})
    ]


@pytest.mark.parametrize(
    "argument", [datetime.now(), {1, 2}, object(), User(username="ada")], ids=lambda a: str(type(a))
)
def test_arguments_have_to_be_json(db, argument):
    for args, kwargs in (([argument], {}), ([1], {"b": {"deep": [argument]}})):
        with pytest.raises(TypeError):
            errands.add.enqueue(*args, **kwargs)
    assert queued(db) == []


@pytest.mark.parametrize("argument", [float("nan"), {"a\0b": 1}, "x" * 2**20])
def test_arguments_have_to_be_jsonb_and_of_some_size(db, argument):
    with pytest.raises(BadData):
        errands.add.enqueue(argument)
    assert queued(db) == []


def test_a_higher_priority_is_taken_first():
    for priority in (0, 100, -100, 7):
        errands.add.using(priority=priority).enqueue(priority)
    taken = queue("default").take_many(10)
    assert [task.data["args"]["args"] for task in taken] == [[100], [7], [0], [-100]]


def test_run_after_holds_a_task_back(db):
    moment = timezone.now() + timedelta(hours=1)
    result = errands.add.using(run_after=moment).enqueue(1)
    state, run_at = rows(db, "SELECT state, run_at FROM pgqueue.tasks")[0]
    assert state == "delayed"
    assert abs(run_at - moment) < timedelta(seconds=5)
    assert errands.add.get_result(result.id).task.run_after == moment
    assert errands.add.get_result(result.id).status == Status.READY


def test_a_run_after_that_is_past_is_now(db):
    errands.add.using(run_after=datetime(2001, 1, 1, tzinfo=UTC)).enqueue(1)
    assert column(db, "SELECT state FROM pgqueue.tasks") == ["ready"]


def test_without_time_zones_run_after_is_local(db):
    with override_settings(USE_TZ=False):
        moment = datetime.now() + timedelta(hours=1)
        result = errands.add.using(run_after=moment).enqueue(1)
        found = errands.add.get_result(result.id)
    assert abs(value(db, "SELECT run_at FROM pgqueue.tasks") - moment.astimezone(UTC)) < timedelta(seconds=5)
    assert (found.task.run_after, found.enqueued_at) == (moment, result.enqueued_at)
    assert timezone.is_naive(found.enqueued_at)


def test_it_is_told_that_a_task_was_enqueued():
    told = []

    def receiver(sender, task_result, **kwargs):
        told.append((sender, task_result))

    framework.signals.task_enqueued.connect(receiver)
    try:
        result = errands.add.enqueue(1)
    finally:
        framework.signals.task_enqueued.disconnect(receiver)
    assert told == [(PgqueueBackend, result)]


def test_with_queues_empty_any_queue_will_do(db):
    errands.add.using(backend="any", queue_name="nobody has named it").enqueue(1)
    assert column(db, "SELECT queue FROM pgqueue.tasks") == ["nobody has named it"]


# --- transactions


def test_enqueue_is_one_statement_that_django_sees():
    with CaptureQueriesContext(connection) as captured:
        errands.add.enqueue(1)
    assert len(captured) == 1


def test_an_enqueue_commits_with_its_transaction(db):
    with transaction.atomic():
        errands.add.enqueue(1)
        User.objects.create(username="ada")
        assert queued(db) == []
    assert queued(db) == ["errands.add"]


def test_an_enqueue_that_is_rolled_back_never_was(db):
    with transaction.atomic():
        result = errands.add.enqueue(1)
        User.objects.create(username="ada")
        assert errands.add.get_result(result.id).status == Status.READY
        transaction.set_rollback(True)
    assert queued(db) == []
    assert not User.objects.exists()
    with pytest.raises(TaskResultDoesNotExist):
        errands.add.get_result(result.id)


def test_an_enqueue_is_rolled_back_with_its_savepoint(db):
    with transaction.atomic():
        errands.add.enqueue(1)
        with transaction.atomic():
            errands.fail.enqueue("gone")
            transaction.set_rollback(True)
    assert queued(db) == ["errands.add"]


def test_on_commit_as_the_documentation_has_it(db):
    with transaction.atomic():
        transaction.on_commit(partial(errands.add.enqueue, 1, b=2))
    assert queued(db) == ["errands.add"]


# --- looking results up


def test_a_result_is_found_by_its_id():
    result = errands.add.using(priority=5, queue_name="emails").enqueue(1, b=[2])
    for found in (errands.add.get_result(result.id), framework.default_task_backend.get_result(result.id)):
        assert found == result


async def test_a_result_is_found_awaiting(in_thread):
    result = await errands.add.aenqueue(1)
    assert await errands.add.aget_result(result.id) == result
    assert await framework.default_task_backend.aget_result(result.id) == result
    await result.arefresh()
    assert result.status == Status.READY
    with pytest.raises(TaskResultMismatch):
        await errands.fail.aget_result(result.id)
    with pytest.raises(TaskResultDoesNotExist):
        await errands.add.aget_result("0")


def test_looking_up_is_one_statement():
    result = errands.add.enqueue(1)
    with CaptureQueriesContext(connection) as captured:
        result.refresh()
    assert len(captured) == 1


def test_a_result_of_another_task():
    result = errands.add.enqueue(1)
    with pytest.raises(TaskResultMismatch, match=r"errands\.add"):
        errands.fail.get_result(result.id)


@pytest.mark.parametrize("id", ["", "0", "-1", "x", "1.0", " 1", "1\0", "9" * 19, "9" * 99, "٣", None, 2.5, "999999"])
def test_a_result_that_there_is_not(id):
    errands.add.enqueue(1)
    with pytest.raises(TaskResultDoesNotExist):
        framework.default_task_backend.get_result(id)


def test_a_result_of_another_backend_or_of_none():
    with override_settings(TASKS=TASKS | {"reserve": backend("default", "reserve")}):
        elsewhere = errands.add.using(backend="reserve", queue_name="reserve").enqueue(1)
    by_hand = queue("default").put({"to": "ada@example.org"})
    for id in (elsewhere.id, str(by_hand.id)):
        with pytest.raises(TaskResultDoesNotExist):
            framework.default_task_backend.get_result(id)


def test_a_deleted_task_has_no_result():
    result = errands.add.enqueue(1)
    queue("default").delete(int(result.id))
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
