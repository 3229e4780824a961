"""What is ours in django.tasks: attempts, kills, how long results are kept, tasks from SQL, several backends."""

from __future__ import annotations

import signal
import subprocess
import sys

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
from statements import column, value
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
from pgqueue.contrib.django.results import LOST, story_key
from pgqueue.contrib.django.testing import run_tasks

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
            eventually(lambda: column(db, "SELECT attempts FROM pgqueue.tasks") == [1], within=10)
        result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (Status.READY, 1, 1)
    assert result.started_at == result.last_attempted_at
    assert result.finished_at is None


def test_what_failed_can_be_kicked(db):
    result = errands.fail_until.enqueue(2)
    with working():
        failed(result)
        assert queue("default").kick() == 1
        done(result)
    assert (result.return_value, result.attempts, len(result.errors)) == (2, 2, 1)


def test_what_a_person_buried_has_failed():
    result = errands.add.enqueue(1)
    queue("default").bury(int(result.id), error="not today")
    result.refresh()
    assert (result.status, result.attempts) == (Status.FAILED, 0)
    assert result.errors[0].exception_class is pgqueue.TaskFailed
    assert result.errors[0].traceback == "not today"


def test_attempts_whose_workers_died_are_counted(dsn):
    result = errands.note.enqueue()
    with psycopg.connect(dsn, autocommit=True) as taker:
        taker.execute("SELECT pgqueue.take('default')")
        result.refresh()
        assert (result.status, result.attempts) == (Status.RUNNING, 1)
    with working():
        assert done(result).return_value == {"attempt": 2}
    assert result.worker_ids == [LOST, clients.client().shell.core.label]
    assert result.errors == []


def test_a_task_whose_worker_is_killed_runs_again(dsn, tmp_path):
    result = errands.die_once.enqueue(str(tmp_path / "died"))
    killed = subprocess.run([sys.executable, PROGRAMS / "django_worker.py", dsn], timeout=60, stderr=subprocess.PIPE)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with working():
        done(result)
    assert (result.return_value, result.attempts) == ("lived", 2)
    assert result.worker_ids == [LOST, clients.client().shell.core.label]


def test_a_failure_that_became_a_dead_letter(db):
    queue("default").put({"task": "errands.add"})
    queue("default").alter(dead_letter="", dead_letter_key="dead")
    result = errands.fail.enqueue("x")
    with working():
        failed(result)
    assert column(db, "SELECT queue FROM pgqueue.tasks WHERE id = %s", int(result.id)) == ["dead"]
    assert (result.task.queue_name, result.errors[0].exception_class) == ("default", ValueError)


def test_errors_that_are_too_large_are_not_in_the_way():
    with override_settings(PGQUEUE={"default": {"max_data_size": 300}}):
        result = errands.fail.enqueue("x")
        with working():
            failed(result)
    assert result.errors[0].exception_class is pgqueue.TaskFailed
    assert result.errors[0].traceback.startswith("ValueError: x (errands.py:")


def test_an_interrupt_is_left_to_the_worker(db):
    result = errands.interrupt.enqueue()
    with working(retry_delay=1e6, max_retry_delay=1e6):
        eventually(lambda: column(db, "SELECT attempts FROM pgqueue.tasks") == [1], within=10)
    result.refresh()
    assert result.status == Status.READY
    assert value(db, "SELECT error FROM pgqueue.tasks").startswith("KeyboardInterrupt")


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
            eventually(lambda: result.refresh(), within=10)


def test_a_failure_is_told_as_long_as_the_task_is_buried():
    with configured(keep_results=0.05):
        result = errands.fail.enqueue("x")
        with working():
            failed(result)
        eventually(lambda: clients.client().statuses.get(story_key(int(result.id))) is None, within=10)
        result.refresh()
        assert result.status == Status.FAILED
        assert result.errors[0].traceback.startswith("ValueError: x")
        queue("default").delete(int(result.id))
        with pytest.raises(TaskResultDoesNotExist):
            eventually(lambda: result.refresh(), within=10)


def test_a_queue_that_keeps_what_is_done():
    queue("default").put({"task": "errands.add", "args": [1]})
    queue("default").alter(keep_done=3600)
    result = errands.add.enqueue(1)
    with working():
        assert done(result).return_value == 1


# --- from SQL, and several at once


def test_sql_can_put_a_task(db):
    id = value(db, """SELECT id FROM pgqueue.put('default', '{"task": "errands.add", "args": [1, 2]}')""")
    with working():
        result = done(errands.add.get_result(str(id)))
    assert (result.return_value, result.enqueued_at, result.task.priority) == (3, None, 0)


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
