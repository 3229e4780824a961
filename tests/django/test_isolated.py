"""Jobs and tasks with isolation="process" in a Django project, whose worker is a process of its own."""

from __future__ import annotations

import os
import signal

import pytest
from django.core.exceptions import ImproperlyConfigured
from eventually import eventually
from statements import column, row
from tasking import configured

from pgqueue.contrib.django import job, queue, working
from pgqueue.contrib.django.options import Options
from pgqueue.contrib.django.testing import run_tasks

pytestmark = pytest.mark.once


def buried(db, task):
    """The error of a task, once it is buried."""
    find = "SELECT error FROM pgqueue.tasks WHERE state = 'buried' AND id = %s"
    return eventually(lambda: column(db, find, task.id), within=60)[0]


def noted(path):
    """The process that has noted itself."""
    eventually(path.exists, within=60)
    return int(path.read_text())


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_job_runs_in_a_child_with_django_and_connections_of_its_own(project, db):
    with project.working() as worker:
        user, pid, backend, model = project.result(project.put("make", name="ada"))
        assert pid != worker.pid
        assert model == f"model of {pid}"
        assert row(db, "SELECT id, username FROM auth_user") == (user, "ada")
        other, its_pid, its_backend = project.result(project.put("follow", "light", user=user))
        assert (other, its_pid) == ("ada", worker.pid)
        assert its_backend != backend
        again, same_pid = project.result(project.put("make-async", name="bob"))
        assert row(db, "SELECT username FROM auth_user WHERE id = %s", again) == ("bob",)
        assert same_pid == pid
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    assert project.log.count("made ada") == 1


@pytest.mark.slow
def test_a_transaction_that_was_left_open_ends_with_its_job(project, db):
    with project.working("-c", "1"):
        assert project.result(project.put("leave-open", how="atomic")) == [False, 0]
        assert project.result(project.put("leave-open", how="")) == [False, 0]
    assert "a handler left a transaction open on the database 'default': it is rolled back" in project.log


@pytest.mark.slow
@pytest.mark.parametrize(("how", "says"), [("segfault", "SIGSEGV"), ("exit", "exit code 3")])
def test_a_crash_fails_its_task_alone(project, db, how, says):
    with project.working():
        dead = project.put("die", how=how)
        assert says in buried(db, dead)
        assert project.result(project.put("leave-open", how="")) == [False, 0]


@pytest.mark.slow
def test_a_kill_from_outside_a_time_limit_and_a_cancel_end_the_child(project, db, tmp_path):
    with project.working():
        killed = project.put("stay", path=str(tmp_path / "killed"))
        os.kill(noted(tmp_path / "killed"), signal.SIGKILL)
        assert "SIGKILL" in buried(db, killed)
        hangs = project.put("hang", path=str(tmp_path / "hangs"))
        assert buried(db, hangs) == "it ran for longer than its time limit of 0.5 s"
        eventually(lambda: not runs(noted(tmp_path / "hangs")))
        cancelled = project.put("stay", path=str(tmp_path / "cancelled"))
        pid = noted(tmp_path / "cancelled")
        project.client.cancel(cancelled.id, "enough")
        eventually(lambda: not runs(pid), within=10)
        eventually(lambda: project.client.results.outcome(cancelled).state == "cancelled", within=10)
        assert project.result(project.put("soft")) == "in time"


@pytest.mark.slow
def test_no_child_outlives_a_worker_that_is_killed(project, tmp_path):
    with project.working() as worker:
        project.put("stay", path=str(tmp_path / "stays"))
        pid = noted(tmp_path / "stays")
        worker.kill()
        eventually(lambda: not runs(pid), within=10)


@pytest.mark.slow
def test_a_project_that_cannot_be_set_up_fails_the_task_and_the_next_child_tries_again(project, db, tmp_path):
    with project.working():
        eventually(lambda: "working on" in project.log, within=60)
        (tmp_path / "broken").touch()
        sure = project.put("sure")
        attempts = "SELECT error FROM pgqueue.attempts WHERE id = %s"
        eventually(lambda: column(db, attempts, sure.id), within=60)
        (tmp_path / "broken").unlink()
        assert project.result(sure) == "open"
        assert column(db, attempts, sure.id)[0].startswith("RuntimeError: the shop is closed (apps.py:")


@pytest.mark.slow
def test_tasks_of_djangos_framework(project, db):
    with project.working() as worker:
        sum, pid = project.result(added := project.enqueue("add", 1, 2))["return_value"]
        assert (sum, pid != worker.pid) == (3, True)
        status, attempts, errors, value, in_order, who = project.look(added)
        assert (status, attempts, errors, value, in_order) == ("SUCCESSFUL", 1, [], [3, pid], True)
        assert who.split(":")[1] == str(worker.pid)
        name, other = project.result(project.enqueue("add_async", 1, 2))["return_value"]
        assert (name, other != worker.pid) == ("1+2", True)
        assert column(db, "SELECT username FROM auth_user") == ["1+2"]
        second = project.enqueue("second")
        seen = project.result(second)["return_value"]
        assert seen == [2, str(second.id), "builtins.LookupError", 2]
        status, attempts, errors, value, _, _ = project.look(second)
        assert (status, attempts, errors, value) == ("SUCCESSFUL", 2, ["builtins.LookupError"], seen)


@pytest.mark.slow
def test_tasks_of_djangos_framework_that_fail(project, db):
    with project.working():
        crashed, unstorable = project.enqueue("crash"), project.enqueue("unstorable")
        assert "SIGABRT" in buried(db, crashed)
        assert "TypeError: Unsupported type: <class 'object'>" in buried(db, unstorable)
        status, attempts, errors, *_ = project.look(crashed)
        assert (status, attempts, errors) == ("FAILED", 2, ["pgqueue.errors.ProcessDied"] * 2)
        missing = project.enqueue("missing")
        assert "missing" in buried(db, missing)
        assert project.look(unstorable)[:2] == ["FAILED", 2]


# --- in the process of a test


def test_settings_without_a_module_have_no_child_processes(django_db, no_handlers):
    job("heavy", name="heavy", isolation="process")(abs_of)
    says = "heavy has isolation='process', and a child process cannot know these settings"
    with configured(), pytest.raises(ImproperlyConfigured, match=says):
        working.workers([])


def test_in_a_test_isolated_jobs_run_in_its_process(django_db, no_handlers):
    seen = []
    heavy = job("heavy", name="heavy", isolation="process")(lambda n: seen.append(n))
    heavy.put(n=7)
    run_tasks()
    assert (seen, queue("heavy").stats()["ready"]) == ([7], 0)


def test_isolation_of_a_backend_is_checked():
    assert Options.of({"isolation": "process"}).isolation == "process"
    with pytest.raises(ValueError, match="isolation is 'thread' or 'process', not 'fork'"):
        Options.of({"isolation": "fork"})


def abs_of(n: int) -> int:
    return abs(n)
