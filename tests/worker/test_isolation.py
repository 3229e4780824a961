"""Jobs with isolation="process" in a worker: results, failures, limits, crashes, and what happens to neighbours."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dying import alive
from eventually import eventually, in_time
from running import running
from statements import column, row, rows
from steady import steady

import pgqueue
from pgqueue import Worker
from pgqueue.jobs.middleware import Running
from pgqueue.worker.health import Report

pytestmark = pytest.mark.once

RUNS = int(os.environ.get("PGQUEUE_TEST_RUNS", "10"))
BOUND = 0.5  # seconds after a limit


def working(client: pgqueue.Client, **options: Any) -> AbstractContextManager[Worker]:
    return running(Worker(client, **({"retry_delay": 0, "grace": 0, "concurrency": 4} | options)))


@pytest.fixture
def worked(crunch: ModuleType) -> Iterator[ModuleType]:
    with working(crunch.client):
        yield crunch


@pytest.mark.slow
def test_arguments_and_results_cross_the_processes(worked):
    assert worked.add.put(1).result(30) == 2
    assert worked.add.put(1, b=5).result(30) == 6
    assert worked.later.put("x").result(30) == "x"
    assert worked.pid.put().result(30) != os.getpid()
    assert worked.add(1, 2) == 3


@pytest.mark.slow
def test_bytes_cross_the_processes(worked):
    assert worked.give_bytes.put().result(30) == {"body": [b"\xff"], "title": "a\0b"}
    assert worked.later.put("a\0b").result(30) == "a\0b"


@pytest.mark.slow
def test_a_job_in_a_process_reaches_its_task_by_the_worker_and_the_database_by_its_own_client(db, worked):
    put = worked.with_task.put()
    assert put.result(30) == [put.id, "crunch", 0]
    id = worked.with_database.put("2026-11-22").result(30)
    assert row(db, "SELECT id, data ->> 'day' FROM pgqueue.tasks") == (id, "2026-11-22")


@pytest.mark.slow
def test_middleware_surrounds_the_run_in_the_worker(crunch):
    seen: list[Any] = []

    class Noting:
        @contextlib.contextmanager
        def run(self, run: Running) -> Iterator[None]:
            seen.append((run.job, os.getpid()))
            try:
                yield
            except BaseException as error:
                seen.append(type(error))
                raise

    crunch.client.middleware.append(Noting())
    with working(crunch.client):
        assert crunch.add.put(1).result(30) == 2
        crunch.fail.put("value")
        eventually(lambda: crunch.client.queue("crunch").stats()["buried"] == 1)
    assert seen == [(crunch.add.name, os.getpid()), (crunch.fail.name, os.getpid()), ValueError]


@pytest.mark.slow
@pytest.mark.parametrize("logger", ["pgqueue", "crunch"])
def test_a_log_that_raises_ends_nothing(crunch, logger):
    """The worker's own records, and those of the process, which the worker logs."""
    told: list[logging.LogRecord] = []

    def fail(record: logging.LogRecord) -> bool:
        told.append(record)
        raise RuntimeError("outside of a request")

    log = logging.getLogger(logger)
    with working(crunch.client) as worker:
        log.addFilter(fail)
        try:
            crunch.fail.put("value")
            eventually(lambda: crunch.client.queue("crunch").stats()["buried"] == 1)
            assert crunch.add.put(1).result(30) == 2
            assert worker.report() == Report(live=True, ready=True)
        finally:
            log.removeFilter(fail)
    assert told


@pytest.mark.slow
def test_the_levels_of_the_workers_loggers_hold_in_a_process(crunch, caplog):
    with caplog.at_level(logging.ERROR, logger="crunch"), working(crunch.client):
        crunch.fail.put("value")
        eventually(lambda: crunch.client.queue("crunch").stats()["buried"] == 1, within=30)
        crunch.log.setLevel(logging.DEBUG)  # of the worker, which would handle the record
        crunch.fail.put("value")
        eventually(lambda: crunch.client.queue("crunch").stats()["buried"] == 2, within=30)
    assert not [record for record in caplog.records if record.name == "crunch"]


@pytest.mark.slow
def test_errors_keep_their_class_for_the_policy_and_their_traceback(db, worked, caplog):
    queue = worked.client.queue("crunch")
    once, thrice, never = (worked.fail.put(how) for how in ("value", "os", "bury"))
    eventually(lambda: queue.stats()["buried"] == 3)
    attempts = dict(rows(db, "SELECT id, attempts FROM pgqueue.tasks"))
    assert (attempts[once.id], attempts[thrice.id], attempts[never.id]) == (1, 3, 1)
    errors = dict(rows(db, "SELECT id, error FROM pgqueue.tasks"))
    assert errors[once.id].startswith("ValueError: wrong (crunch.py:")
    assert errors[never.id].endswith("never again")
    assert any(record.name == "crunch" and record.getMessage() == "failing" for record in caplog.records)


def test_wrong_arguments_are_buried_without_a_process(db, worked):
    worked.client.queue("crunch").put({"job": "crunch.add", "args": {"a": "one"}})
    eventually(lambda: worked.client.queue("crunch").stats()["buried"] == 1)
    assert "crunch.add" in column(db, "SELECT error FROM pgqueue.tasks")[0]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "said"), [("segfault", "SIGSEGV"), ("exit", "exit code 3"), ("kill", "SIGKILL")])
def test_a_crash_fails_its_task_and_no_other(db, worked, how, said, capfd):
    queue = worked.client.queue("crunch")
    dead = [worked.die.put(how) for _ in range(3)]
    alive = [worked.add.put(n) for n in range(10)]
    assert [one.result(60) for one in alive] == [n + 1 for n in range(10)]
    eventually(lambda: queue.stats()["buried"] == 3)
    found = rows(db, "SELECT id, attempts, error FROM pgqueue.tasks ORDER BY id")
    assert [(id, attempts) for id, attempts, _ in found] == [(one.id, 1) for one in dead]
    assert all(said in error for *_, error in found)


@pytest.mark.slow
@pytest.mark.parametrize("in_c", [False, True])
def test_a_process_that_hangs_is_killed_in_time(dsn, db, worked, tmp_path, in_c, record_property):
    """Ten of them; the other tasks of the queue go on."""
    begun, queue, ended = tmp_path / "begun", worked.client.queue("crunch"), dict[int, float]()

    def all_ended() -> bool:
        for id in column(db, "SELECT id FROM pgqueue.tasks WHERE state = 'buried'"):
            ended.setdefault(id, time.time())
        return len(ended) == RUNS

    with steady(dsn) as watch:
        for _ in range(RUNS):
            worked.hang.put(str(begun), in_c)
        neighbours = [worked.add.put(n) for n in range(5)]
        eventually(all_ended, within=60)
    assert [one.result(60) for one in neighbours] == [1, 2, 3, 4, 5]
    assert queue.stats()["buried"] == RUNS
    began = [line.split() for line in begun.read_text().splitlines()]
    spans = zip(sorted(float(at) for at, _ in began), sorted(ended.values()), strict=True)
    late = sorted(end - begin - 0.5 - watch.lost(begin, end) for begin, end in spans)
    record_property("late", [round(one, 3) for one in late])
    assert late[int(0.8 * RUNS)] < BOUND, late
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for _, pid in began))
    assert column(db, "SELECT DISTINCT error FROM pgqueue.tasks") == ["it ran for longer than its time limit of 0.5 s"]


@pytest.mark.slow
def test_a_soft_limit_is_raised_in_a_process(worked):
    assert worked.soft.put().result(30) == "in time"


@pytest.mark.slow
def test_a_stop_releases_what_runs_in_a_process(db, crunch, tmp_path):
    begun = tmp_path / "begun"
    with working(crunch.client, grace=0.5):
        crunch.hang.options().put(str(begun))
        eventually(lambda: begun.exists() and begun.read_text())
    found = row(db, "SELECT state, attempts FROM pgqueue.tasks")
    assert found in (("ready", 0), ("buried", 1))  # the grace and the limit end together


@pytest.mark.slow
def test_a_cancelled_process_is_killed_and_its_task_ends_as_cancelled(crunch, tmp_path):
    begun, numbers = tmp_path / "begun", iter(range(1000))

    def median() -> float:
        seconds = []
        for _ in range(RUNS):
            path = Path(f"{begun}{next(numbers)}")
            put = crunch.stay.put(str(path))
            pid = int(eventually(lambda path=path: path.exists() and path.read_text()))  # type: ignore[misc]
            began = time.monotonic()
            crunch.client.cancel(put, "not wanted any more")
            eventually(lambda pid=pid: not runs(pid))  # type: ignore[misc]
            seconds.append(time.monotonic() - began)
            eventually(lambda put=put: crunch.client.results.attempts(put))  # type: ignore[misc]
            (attempt,) = crunch.client.results.attempts(put)
            assert (attempt.state, attempt.error) == ("cancelled", "it was cancelled: not wanted any more")
        return sorted(seconds)[RUNS // 2]

    with working(crunch.client):
        in_time(median, within=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["charge", "charge_async"])
def test_a_step_in_a_process_is_not_run_again_after_a_crash(worked, tmp_path, name):
    path = tmp_path / "charges"
    put = getattr(worked, name).put(str(path))
    assert put.result(30) == [[7, "é"], None]
    assert path.read_text() == "charged\n"
    assert put.outcome().state == "done"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gather", "gather_async"])
def test_a_task_in_a_process_gets_the_results_of_those_before_it(worked, name):
    added, failed = worked.add.put(1), worked.fail.put("value")
    found = getattr(worked, name).options(after=[added, failed], on_failure="run").put().result(30)
    assert found[0] == [added.id, "done", "crunch", 2, None]
    assert found[1][:4] == [failed.id, "failed", "crunch", None]
    assert found[1][4].startswith("ValueError: wrong (crunch.py:")


@pytest.mark.slow
def test_bad_steps_in_a_process_are_the_errors_of_a_thread(worked, db):
    said = worked.bad_steps.put().result(30)
    assert [one.partition(":")[0] for one in said] == [
        *("ValueError", "BadData", "BadData", "TypeError", "ZeroDivisionError", "ValueError")
    ]
    assert "takes no conn" in said[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["watch", "watch_async"])
def test_a_process_that_looks_for_its_cancellation_is_told_and_not_killed(worked, tmp_path, name):
    begun = tmp_path / "begun"
    put = getattr(worked, name).put(str(begun))
    pid = int(eventually(lambda: begun.exists() and begun.read_text()))
    put.cancel("enough")
    assert put.result(30) == [False, True, True, "enough"]
    assert runs(pid)


@pytest.mark.slow
def test_a_process_that_looks_and_hangs_is_killed_at_its_limit(worked, tmp_path):
    begun = tmp_path / "begun"
    put = worked.watch_and_hang.put(str(begun))
    pid = int(eventually(lambda: begun.exists() and begun.read_text()))
    put.cancel("enough")
    eventually(lambda: not runs(pid))
    eventually(lambda: put.outcome().state == "cancelled")


@pytest.mark.slow
def test_a_cancel_at_any_moment_ends_the_task_once_and_harms_no_other(worked):
    chance = random.Random(7)
    for _ in range(RUNS):
        put = worked.look_once.put()
        time.sleep(chance.uniform(0, 0.02))
        with contextlib.suppress(pgqueue.TaskNotFound):  # it is done
            put.cancel("not wanted")
        eventually(lambda put=put: put.outcome().state in ("done", "cancelled"))  # type: ignore[misc]
        assert worked.add.put(1).result(30) == 2


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_job_that_a_process_cannot_import_is_refused(dsn, blocking):
    client = blocking()

    @client.job(queue="q", isolation="process")
    def local() -> None: ...

    with pytest.raises(ValueError, match=r"test_isolation.py:\d+\) has isolation='process', and is defined in a func"):
        Worker(client)


def test_a_job_under_another_name_than_its_functions_is_refused(crunch):
    other = crunch.client.job(queue="q", name="other", isolation="process")(crunch.__dict__["_hidden"])
    assert other.name == "other"
    with pytest.raises(ValueError, match=r"isolation='process', and is not crunch._hidden: a process has to import it"):
        Worker(crunch.client)


@pytest.mark.parametrize("wrong", [{"max_child_tasks": 0}, {"max_child_memory": -1}, {"max_child_tasks": "many"}])
def test_bounds_of_children_that_cannot_be_are_refused(crunch, wrong):
    with pytest.raises(ValueError, match="max_child"):
        Worker(crunch.client, **wrong)


@pytest.mark.slow
def test_the_traceback_of_a_child_begins_in_the_job(db, worked):
    for job in (worked.fail, worked.fail_deep):
        put = job.put("value") if job is worked.fail else job.put()
        eventually(lambda put=put: put.peek().state == "buried", within=30)
        (attempt,) = worked.client.results.attempts(put)
        assert attempt.traceback.rstrip().endswith(("ValueError: wrong", "ValueError: deep inside"))
        assert "crunch.py" in attempt.traceback
        assert "/pgqueue/worker/" not in attempt.traceback
        assert "/pgqueue/jobs/" not in attempt.traceback


@pytest.mark.slow
@pytest.mark.skipif(not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists(), reason="needs Linux's /proc")
def test_a_time_limit_kills_programs_with_a_session_of_their_own(worked, tmp_path):
    put = worked.hang_with_programs.put(str(tmp_path / "pids"))
    eventually(lambda: put.peek().state == "buried", within=30)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3
    eventually(lambda: not any(alive(pid) for pid in pids))
