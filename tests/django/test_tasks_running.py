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
        assert errands.begun.wait(30)
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
        eventually(lambda: len(errands.seen) == 4)
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


@pytest.mark.parametrize("message", ["a\0b", "of two\nlines: here", "x" * 10**6, ""])
def test_any_message_of_an_error_is_kept(message):
    result = errands.fail_with.enqueue(ascii(message))
    with working():
        (error,) = failed(result).errors
    assert error.exception_class is errands.Odd
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert len(error.traceback) < 20_000


def test_errors_of_every_kind_name_their_class():
    results = [errands.raise_kind.enqueue(kind) for kind in errands.KINDS]
    with working():
        found = [failed(result).errors[0].exception_class.__name__ for result in results]
    assert found == ["SyntaxError", "ExceptionGroup", "KeyError", "Odd"]


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
    put = queue("default").put({"job": path})
    with working():
        result = failed(framework.default_task_backend.get_result(str(put.id)))
    assert result.errors[0].exception_class in (TypeError, ImportError, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"to": "ada"}, "the task's data is not that of a job"),
        ([1], "the task's data is not that of a job"),
        ({"job": 7}, "the task's data is not that of a job"),
        ({"job": "errands.add", "args": "abc"}, "must be an object"),
        ({"job": "errands.add", "args": {"args": "abc"}}, "args.args: must be an array"),
        ({"job": "errands.add", "args": {"a": 1}}, "'a'"),
    ],
)
def test_what_is_no_order_is_buried(db, order, reason):
    queue("default").put(order)
    with working():
        eventually(lambda: column(db, "SELECT state FROM pgqueue.tasks") == ["buried"])
    assert reason in value(db, "SELECT error FROM pgqueue.tasks")


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
    assert [status for *_, status in told] == [Status.RUNNING, Status.FAILED]


def test_a_receiver_that_raises_harms_nobody():
    def receiver(**kwargs):
        raise ZeroDivisionError

    result = errands.add.enqueue(1)
    with connected(receiver, framework.signals.task_started, framework.signals.task_finished), working():
        assert done(result).attempts == 1
