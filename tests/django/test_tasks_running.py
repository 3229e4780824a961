"""django.tasks as its documentation has it, from the worker on: results, errors, context, signals."""

from __future__ import annotations

from datetime import timedelta

import errands
import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from errands import framework
from eventually import eventually
from statements import column, value
from tasking import (
    Status,
    connected,
    done,
    failed,
    reaches,
    receiving,
    working,
)

import pgqueue
from pgqueue.contrib.django import PgqueueBackend, clients, queue
from pgqueue.contrib.django.results import TRACEBACK, error_of

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("tasks_configured")]


# --- what succeeds


@pytest.mark.parametrize("task", [errands.add, errands.add_slowly], ids=lambda task: task.name)
def test_a_task_that_succeeds(task):
    before = timezone.now()
    result = task.enqueue(1, b=2)
    with working():
        done(result)
    assert (result.return_value, result.is_finished, result.errors) == (3, True, [])
    assert before <= result.enqueued_at <= result.started_at <= result.finished_at <= timezone.now()
    assert result.last_attempted_at == result.started_at
    assert (result.worker_ids, result.attempts) == ([clients.client().shell.core.label], 1)
    assert framework.default_task_backend.get_result(result.id) == result


def test_a_task_that_runs():
    result = errands.wait.enqueue()
    with working():
        assert errands.begun.wait(10)
        found = reaches(errands.wait.get_result(result.id), Status.RUNNING)
        assert (found.attempts, found.worker_ids) == (1, [clients.client().shell.core.label])
        assert found.enqueued_at <= found.started_at == found.last_attempted_at <= timezone.now()
        assert (found.finished_at, found.is_finished) == (None, False)
        with pytest.raises(ValueError, match="Task has not finished yet"):
            found.return_value  # noqa: B018
        errands.go_on.set()
        done(result)
    assert found.status == Status.RUNNING  # as it was when it was retrieved
    found.refresh()
    assert (found.status, found.return_value) == (Status.SUCCESSFUL, "went on")


@pytest.mark.parametrize("returned", [None, 0, "text", [1, {"a": None}], 2.5])
def test_a_return_value_is_kept_as_json(returned):
    result = errands.echo.enqueue(returned)
    with working():
        assert done(result).return_value == returned


def test_takes_context():
    result = errands.note.enqueue(1, b=2)
    waiting = errands.note_async.enqueue("x")
    with working():
        assert done(result).return_value == {"attempt": 1}
        done(waiting)
    context, args, kwargs = next(seen for seen in errands.seen if len(seen) == 3)
    assert isinstance(context, framework.TaskContext)
    assert (args, kwargs, context.attempt) == ((1,), {"b": 2}, 1)
    assert context.task_result.id == result.id
    assert context.task_result.task.priority == 2


def test_higher_priorities_run_first():
    for priority in (0, 100, -100, 7):
        last = errands.note.using(priority=priority).enqueue(priority)
    with working(concurrency=1):
        eventually(lambda: len(errands.seen) == 4, within=10)
        done(last)
    assert [args for _, args, _ in errands.seen] == [(100,), (7,), (0,), (-100,)]


def test_nothing_runs_before_its_run_after():
    moment = timezone.now() + timedelta(seconds=0.3)
    result = errands.add.using(run_after=moment).enqueue(1)
    with working():
        assert done(result).started_at >= moment


@pytest.mark.parametrize("task", [errands.make_user, errands.make_user_async], ids=lambda task: task.name)
def test_a_task_may_use_the_orm_and_enqueue(task):
    result = task.enqueue("ada")
    with working():
        follower = errands.add.get_result(done(result).return_value)
        assert done(follower).return_value == User.objects.get(username="ada").pk


# --- what fails


@pytest.mark.parametrize(
    ("task", "kind"), [(errands.fail, ValueError), (errands.fail_async, LookupError)], ids=["sync", "async"]
)
def test_a_task_that_fails(task, kind):
    result = task.enqueue("no such page")
    with working():
        failed(result)
    (error,) = result.errors
    assert error.exception_class is kind
    assert error.exception_class_path == f"builtins.{kind.__name__}"
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert error.traceback.endswith(f"{kind.__name__}: no such page\n")
    assert (result.attempts, result.is_finished) == (1, True)
    assert result.started_at <= result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        result.return_value  # noqa: B018


def test_a_tuple_comes_back_as_a_list():
    """The documentation's own example."""
    result = errands.double_dictionary.enqueue((1, 2, 3))
    with working():
        assert "TypeError: unhashable type: 'list'" in failed(result).errors[0].traceback


@pytest.mark.parametrize(
    ("what", "kind"),
    [("object", TypeError), ("nan", pgqueue.BadData), ("nul", pgqueue.BadData), ("much", pgqueue.BadData)],
)
def test_a_return_value_that_cannot_be_kept_is_a_failure(what, kind):
    result = errands.answer.enqueue(what)
    with working():
        assert issubclass(failed(result).errors[0].exception_class, kind)


def test_arguments_that_do_not_fit_are_a_failure():
    result = errands.add.enqueue(1, 2, 3, c=4)
    with working():
        assert failed(result).errors[0].exception_class is TypeError


def test_leaving_is_a_failure_and_the_worker_goes_on():
    result, after = errands.leave.enqueue(1), errands.add.enqueue(1)
    with working(concurrency=1):
        assert failed(result).errors[0].exception_class is SystemExit
        done(after)


def test_any_message_of_an_error_is_kept():
    """Asked directly: what the framework logs of such a message, pytest-xdist cannot send."""
    assert error_of(ValueError("a\0b\udc80")).traceback == "ValueError: a\\0b\\udc80\n"
    assert len(error_of(ValueError("x" * 10**6)).traceback) == TRACEBACK


def test_a_task_that_is_gone(monkeypatch):
    result = errands.goes.enqueue()
    monkeypatch.delattr(errands, "goes")
    with working():
        failed(result)
    assert result.errors[0].exception_class is ImportError
    assert 'does not define a "goes"' in result.errors[0].traceback
    found = framework.default_task_backend.get_result(result.id)
    assert (found.status, found.task.module_path) == (Status.FAILED, "errands.goes")


@pytest.mark.parametrize("path", ["errands.no_task", "os.getcwd", "nothing.like.it", "errands", ""])
def test_only_tasks_are_run(path):
    put = queue("default").put({"task": path})
    with working():
        result = failed(framework.default_task_backend.get_result(str(put.id)))
    assert result.errors[0].exception_class in (TypeError, ImportError, ModuleNotFoundError)


@pytest.mark.parametrize("order", [{"to": "ada"}, [1], {"task": 7}, {"task": "errands.add", "args": "abc"}])
def test_what_is_no_order_is_buried(db, order):
    queue("default").put(order)
    with working():
        eventually(lambda: column(db, "SELECT state FROM pgqueue.tasks") == ["buried"], within=10)
    assert "not a task of django.tasks" in value(db, "SELECT error FROM pgqueue.tasks")


# --- signals


def test_signals_of_a_task_that_succeeds():
    signals = framework.signals
    with receiving(signals.task_enqueued, signals.task_started, signals.task_finished) as told:
        result = errands.add.enqueue(1)
        with working():
            done(result)
    assert told == [
        (signals.task_enqueued, PgqueueBackend, result.id, Status.READY),
        (signals.task_started, PgqueueBackend, result.id, Status.RUNNING),
        (signals.task_finished, PgqueueBackend, result.id, Status.SUCCESSFUL),
    ]


def test_signals_of_a_task_that_fails():
    signals = framework.signals
    with receiving(signals.task_started, signals.task_finished) as told:
        result = errands.fail.enqueue("x")
        with working():
            failed(result)
        # Sent once it is settled: whoever is told finds it so.
        eventually(lambda: len(told) == 2, within=10)
    assert [status for *_, status in told] == [Status.RUNNING, Status.FAILED]


def test_a_receiver_that_raises_harms_nobody():
    def receiver(**kwargs):
        raise ZeroDivisionError

    result = errands.add.enqueue(1)
    with connected(receiver, framework.signals.task_started, framework.signals.task_finished), working():
        assert done(result).attempts == 1
