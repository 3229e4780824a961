"""What is ours in django.tasks: attempts, kills, how long results are kept, tasks from SQL, several backends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import errands
import psycopg
import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test.utils import override_settings
from errands import framework
from eventually import eventually
from processes import PROGRAMS
from statements import column, row, value
from tasking import (
    Status,
    TaskResultDoesNotExist,
    backend,
    configured,
    done,
    failed,
    reaches,
    receiving,
    working,
)

import pgqueue
from pgqueue.contrib.django import clients, queue
from pgqueue.contrib.django.backend import register
from pgqueue.contrib.django.testing import run_tasks
from pgqueue.worker.served import Served

pytestmark = pytest.mark.usefixtures("tasks_configured")


# --- more than one attempt


def test_a_failed_task_is_not_tried_again():
    result = errands.fail_until.enqueue(2)
    with working():
        assert failed(result).attempts == 1


def test_tried_again_until_it_succeeds():
    with configured(max_attempts=3, retry_delay=0):
        result = errands.fail_until.enqueue(3)
        with working():
            done(result)
    assert (result.return_value, result.attempts, len(result.worker_ids)) == (3, 3, 3)
    assert [error.traceback.splitlines()[-1] for error in result.errors] == [
        "ValueError: attempt 1",
        "ValueError: attempt 2",
    ]
    assert result.started_at < result.last_attempted_at < result.finished_at


def test_tried_again_and_failed_for_good():
    with configured(max_attempts=3, retry_delay=0):
        result = errands.fail_until.enqueue(9)
        with receiving(framework.signals.task_finished) as told, working():
            failed(result)
    assert (result.attempts, len(result.errors)) == (3, 3)
    assert [status for *_, status in told] == [Status.FAILED]


def test_between_two_attempts_it_is_ready(db):
    with configured(max_attempts=2, retry_delay=1e6, max_retry_delay=1e6):
        result = errands.fail_until.enqueue(2)
        with working():
            eventually(lambda: column(db, "SELECT attempts FROM pgqueue.tasks") == [1])
        result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (Status.READY, 1, 1)
    assert result.started_at == result.last_attempted_at
    assert result.finished_at is None


def test_what_failed_can_be_kicked(db, tmp_path):
    cause = tmp_path / "cause"
    result = errands.fail_without.enqueue(str(cause))
    with working():
        failed(result)
        cause.touch()
        assert queue("default").kick() == 1
        done(result)
    assert (result.return_value, result.attempts, len(result.errors)) == (1, 2, 1)


def test_what_a_person_buried_has_failed():
    result = errands.add.enqueue(1)
    queue("default").bury(int(result.id), error="not today")
    result.refresh()
    assert (result.status, result.attempts) == (Status.FAILED, 0)
    assert result.errors[0].exception_class is pgqueue.TaskFailed
    assert result.errors[0].traceback == "not today"


@pytest.mark.slow
def test_attempts_whose_workers_died_are_counted(dsn):
    result = errands.note.enqueue()
    with psycopg.connect(dsn, autocommit=True) as taker:
        taker.execute("SELECT pgqueue.take('default')")
        result.refresh()
        assert (result.status, result.attempts) == (Status.RUNNING, 1)
    with working():
        assert done(result).return_value == {"attempt": 2}
    assert len(result.worker_ids) == 2
    assert result.worker_ids[1] == clients.client().shell.core.label
    assert result.errors == []


@pytest.mark.slow
def test_a_task_whose_worker_is_killed_runs_again(dsn, tmp_path):
    result = errands.die_once.enqueue(str(tmp_path / "died"))
    killed = subprocess.run([sys.executable, PROGRAMS / "django_worker.py", dsn], timeout=60, stderr=subprocess.PIPE)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with working():
        done(result)
    assert (result.return_value, result.attempts) == ("lived", 2)
    assert result.worker_ids[0].endswith(":django_worker.py")
    assert result.worker_ids[1] == clients.client().shell.core.label
    assert result.errors == []


def test_a_failure_that_became_a_dead_letter(db):
    queue("default").put({"job": "errands.add"})
    queue("default").alter(dead_letter="", dead_letter_key="dead")
    result = errands.fail.enqueue("x")
    with working():
        failed(result)
    assert column(db, "SELECT queue FROM pgqueue.tasks WHERE id = %s", int(result.id)) == ["dead"]
    assert (result.task.queue_name, result.errors[0].exception_class) == ("default", ValueError)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_error_that_would_end_a_program_counts_by_the_backends_attempts(db, error, kind):
    """The worker's own policy would try it 20 times, with an hour between two attempts."""
    end = errands.end if kind == "sync" else errands.end_async
    with configured(max_attempts=2, retry_delay=0):
        result = end.enqueue(error.__name__)
        with working(retry_delay=1e6, max_retry_delay=1e6):
            failed(result)
            eventually(lambda: row(db, "SELECT state, attempts FROM pgqueue.tasks") == ("buried", 2))
    assert [one.exception_class for one in result.errors] == [error, error]
    assert value(db, "SELECT error FROM pgqueue.tasks").startswith(error.__name__)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_attempt_that_takes_too_long_has_failed(kind):
    """A thread goes on. That its function returns in the end is no success of the task, so no signal tells of it."""
    hang = errands.hang if kind == "sync" else errands.hang_async
    ended = threading.Event()

    class Watching:
        """Outside of the backend's own middleware."""

        @contextmanager
        def run(self, run):
            try:
                yield
            finally:
                if run.job == hang.module_path:
                    ended.set()

    watching = Watching()
    with configured(timeout=2), receiving(framework.signals.task_finished) as told:
        clients.client().middleware.append(watching)
        try:
            result, after = hang.enqueue(), errands.add.enqueue(1)
            with working(concurrency=1):
                (error,) = failed(result).errors
                assert done(after).return_value == 1
                errands.go_on.set()
                assert ended.wait(30)
        finally:
            clients.client().middleware.remove(watching)
    assert error.exception_class is TimeoutError
    assert result.attempts == 1
    finished = [one for _, _, id, one in told if id == result.id]
    assert finished == ([] if kind == "sync" else [Status.FAILED])


def test_a_task_may_say_what_becomes_of_it():
    with configured(max_attempts=5):
        buried, later = errands.give_up.enqueue("Bury"), errands.give_up.enqueue("RetryLater")
        with working():
            assert failed(buried).errors[0].traceback.endswith("Bury: no use\n")
            assert done(later).return_value == 2


def test_middleware_and_statistics_know_a_task_by_its_path(db):
    class Middleware:
        @contextmanager
        def put(self, order):
            order.headers["from"] = "a request"
            yield

        @contextmanager
        def run(self, run):
            ran.append((run.job, run.headers, run.args["args"]))
            yield

    ran, middleware = [], Middleware()
    clients.client().middleware.append(middleware)
    try:
        result = errands.add.enqueue(1)
        with working():
            done(result)
    finally:
        clients.client().middleware.remove(middleware)
    assert ran == [("errands.add", {"from": "a request"}, [1])]
    eventually(lambda: column(db, "SELECT job FROM pgqueue.job_stats") == ["errands.add"])


@pytest.mark.parametrize(("attempts", "most"), [(1, 20), (30, 30)])
def test_a_worker_knows_the_limit_of_tasks_before_it_has_imported_one(attempts, most):
    """It registers that limit at its start; the database charges no death of its neighbours' taker without it."""
    with configured(max_attempts=attempts):
        register(clients.client())
        assert [len(tasks) for tasks in clients.client().registries.values()] == [0]
        assert Served.of(clients.client()).max_attempts(pgqueue.Retry(attempts=50)) == most


def test_a_task_that_kills_its_workers_is_not_run_for_ever(db):
    result = errands.add.enqueue(1)
    db.execute("UPDATE pgqueue.task SET attempts = 20")
    with working():
        (error,) = failed(result).errors
    assert (error.exception_class, result.attempts) == (pgqueue.TaskFailed, 21)
    assert error.traceback.startswith("not tried again: it came back too often")


def test_tasks_run_inside_a_test_and_its_transaction():
    with transaction.atomic():
        result, other = errands.make_user.enqueue("ada"), errands.fail.enqueue("x")
        run_tasks()
        result.refresh()
        other.refresh()
        assert errands.add.get_result(result.return_value).return_value == User.objects.get().pk
        assert (other.status, other.errors[0].exception_class) == (Status.FAILED, ValueError)
        transaction.set_rollback(True)
    for one in (result, other):
        with pytest.raises(TaskResultDoesNotExist):
            one.refresh()


# --- keeping


def test_a_result_is_kept_for_its_time():
    with configured(keep_results=0.05):
        result = errands.add.enqueue(1)
        with working(), pytest.raises(TaskResultDoesNotExist):
            eventually(lambda: result.refresh())


def test_a_failure_is_told_as_long_as_the_task_is_buried(db):
    with configured(keep_results=0.05):
        result = errands.fail.enqueue("x")
        with working():
            failed(result)
        eventually(lambda: column(db, "SELECT id FROM pgqueue.results") == [])
        result.refresh()
        assert result.status == Status.FAILED
        assert result.errors[0].traceback.endswith("ValueError: x\n")
        queue("default").delete(int(result.id))
        with pytest.raises(TaskResultDoesNotExist):
            eventually(lambda: result.refresh())


def test_a_queue_that_keeps_what_is_done():
    queue("default").put({"job": "errands.add", "args": {"args": [1]}})
    queue("default").alter(keep_done=3600)
    result = errands.add.enqueue(1)
    with working():
        assert done(result).return_value == 1


# --- from SQL, and several at once


def test_sql_can_put_a_task(db):
    id = value(db, """SELECT id FROM pgqueue.put('default', '{"job": "errands.add", "args": {"args": [1, 2]}}')""")
    with working():
        result = done(errands.add.get_result(str(id)))
    assert (result.return_value, result.enqueued_at, result.task.priority) == (3, None, 0)


@pytest.mark.slow
def test_backends_with_queues_and_databases_of_their_own(pg_server, django_template, point):
    name = pg_server.create(django_template)
    point("other", pg_server.dsn(name))
    tasks = {
        "default": backend("default", "mail"),
        "slow": backend("slow"),
        "elsewhere": backend("default", database="other"),
        "at once": {"BACKEND": f"{framework.__name__}.backends.immediate.ImmediateBackend"},
    }
    with override_settings(TASKS=tasks):
        results = [
            errands.add.enqueue(1),
            errands.add.using(queue_name="mail").enqueue(2),
            errands.add.using(backend="slow", queue_name="slow").enqueue(3),
        ]
        away = errands.add.using(backend="elsewhere").enqueue(4)
        with working():
            assert [done(result).return_value for result in results] == [1, 2, 3]
            assert reaches(away, Status.READY)
        with working("other"):
            assert done(away).return_value == 4
    clients.close()
    pg_server.drop(name)


def test_a_queue_has_one_handler(db):
    client = clients.client()
    register(client)
    register(client)  # a reload: once more is no harm
    client.handler("default")(print)
    with pytest.raises(ImproperlyConfigured, match="the queue 'default' of TASKS\\['default'\\] has a handler already"):
        register(client)
