"""Gunicorn with preload_app and four workers, on a client that was at work before the fork."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from eventually import eventually
from processes import PROGRAMS
from sites import free_port, serving
from statements import column, rows, state, value

pytestmark = pytest.mark.once

WORKERS = 4
ALIVE = "SELECT count(*) FROM pgqueue.sessions WHERE missing_since IS NULL"
BACKENDS = "SELECT backend_pid FROM pgqueue.sessions WHERE missing_since IS NULL"


@pytest.fixture
def site(dsn, tmp_path):
    port = free_port()
    command = ["gunicorn", "--preload", "--workers", str(WORKERS), "--bind", f"127.0.0.1:{port}", "--pythonpath"]
    homes = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}  # of its control socket
    with serving([*command, str(PROGRAMS), "preloaded:app"], port, settings={"PGQUEUE_DSN": dsn, **homes}) as it:
        yield it


@pytest.fixture
def here(blocking):
    return blocking()


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def turns(site, here, db):
    """One request for each worker, all at once: a worker of Gunicorn's has one at a time. Gives their pids."""
    here.queue("jobs").put_many(range(WORKERS))
    with here.subscribe("came") as came, ThreadPoolExecutor(WORKERS) as threads:
        waiting = [threads.submit(site.get, "/turn") for _ in range(WORKERS)]
        eventually(lambda: value(db, ALIVE) == WORKERS + 2)  # with the master and this process
        listeners = column(db, BACKENDS)

        def all_went() -> bool:
            here.post("go")  # who was not yet listening hears the next one
            return all(turn.done() for turn in waiting)

        eventually(all_went)
        pids, backends = zip(*(json.loads(turn.result()) for turn in waiting), strict=True)
        assert sorted(came.get(30) for _ in pids) == sorted(map(str, pids))
    assert len({*pids, site.process.pid}) == WORKERS + 1
    assert len({*backends, *listeners}) == WORKERS + WORKERS + 2
    assert sorted(task.data for task in here.queue("done").take_many(100)) == sorted(pids)
    return set(pids)


def the_master_answers(site, here, question):
    here.post("master", question)
    (answer,) = here.queue("answers").take_many(2, timeout=10)
    answer.ack()
    return answer.data == [site.process.pid, question]


@pytest.mark.slow
def test_each_worker_is_a_client_of_its_own(site, here, db):
    assert here.queue("done").take(5).data == "preloaded"
    pids = turns(site, here, db)
    assert the_master_answers(site, here, "after the fork")

    here.queue("jobs").put("held")
    killed, task = json.loads(site.get("/hold"))
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: state(db, task) == "ready")
    here.queue("jobs").pop()
    after = turns(site, here, db)
    assert len(after & pids) == WORKERS - 1
    assert killed not in after
    assert the_master_answers(site, here, "after a kill")

    site.process.send_signal(signal.SIGHUP)
    eventually(lambda: not any(map(exists, after)))
    assert not turns(site, here, db) & after
    assert the_master_answers(site, here, "after a reload")

    site.process.send_signal(signal.SIGTERM)
    assert site.process.wait(30) == 0
    assert rows(db, ALIVE) == [(1,)]
