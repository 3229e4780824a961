"""Whatever ends a thread of a worker, it is logged, and tasks go on being worked off."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from eventually import eventually
from running import running

import pgqueue
from pgqueue import Worker
from pgqueue._engine import owners
from pgqueue.worker.children import Children
from pgqueue.worker.probes import Server

HOME = Path(pgqueue.__path__[0])

pytestmark = [
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.usefixtures("swept"),
    # An event loop that is ended in the midst of a step leaves what it had open to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

#: Owned threads of a child process, of a supervised worker, and of one that serves some servers of a cluster; and the
#: one that starts child processes. It waits in C, and would lose the work that wakes it. They have tests of their own:
#: below, in test_supervisor.py and in test_spread.py.
ELSEWHERE = {"pgqueue-link", "pgqueue-line", "pgqueue-spread", "pgqueue-children"}


class Ended(BaseException):
    """Nothing catches it but what catches everything."""


def end(thread: threading.Thread) -> None:
    """Raise Ended in a thread, where it waits at present."""
    ident = ctypes.c_ulong(thread.ident or 0)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Ended)) == 1


def kind(name: str) -> str:
    return re.sub(r"-[0-9]+$", "", name)


def written() -> set[str]:
    """The names of owned threads in the source of the worker and the engine."""
    texts = [path.read_text("utf-8") for folder in ("worker", "_engine") for path in (HOME / folder).glob("*.py")]
    return {
        kind(name.replace("{next(self._numbers)}", "0"))
        for text in texts
        for name in re.findall(r'Owned\(f?"([^"]+)"', text)
    }


class Jobs:
    """A job for each way to run one. `ask` puts a task of each, and returns the results."""

    def __init__(self, client: pgqueue.Client, add: Any) -> None:
        options: dict[str, Any] = {"keep_result": 60}

        @client.job(queue="threads", **options)
        def plain(n: int) -> int:
            return n

        @client.job(queue="coroutines", **options)
        async def aio(n: int) -> int:
            return n

        @client.job(queue="mixed", **options)
        def sync(n: int) -> int:
            return n

        @client.job(queue="mixed", **options)
        async def bridged(n: int) -> int:
            return n

        self.all = [plain, aio, sync, bridged, add]

    def ask(self) -> None:
        tasks = [job.put(3) for _ in range(4) for job in self.all]
        assert [task.result(30) for task in tasks] == [3, 3, 3, 3, 4] * 4


@pytest.fixture
def jobs(crunch: ModuleType) -> Jobs:
    return Jobs(crunch.client, crunch.add)


@pytest.fixture
def worker(crunch: ModuleType, jobs: Jobs) -> Iterator[Worker]:
    with running(Worker(crunch.client, concurrency=2, grace=5)) as worker:
        server = Server("127.0.0.1", 0, worker.report)
        jobs.ask()
        yield worker
        server.close()


def alive(name: str) -> set[owners.Owned]:
    return {thread for thread in owners.living() if kind(thread.name) == name}


def test_a_worker_goes_on_whichever_of_its_threads_is_ended(worker, jobs, caplog):
    kinds = {kind(thread.name) for thread in owners.living()}
    assert kinds >= written() - ELSEWHERE
    for name in sorted(written() - ELSEWHERE):
        ended_and_replaced(name, worker, jobs, caplog)


def ended_and_replaced(name: str, worker: Worker, jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    n = len(alive(name))
    caplog.clear()
    for thread in alive(name):
        end(thread)
    jobs.ask()
    eventually(lambda: any("Ended" in message for message in caplog.messages))
    eventually(lambda: len(alive(name)) == n)
    eventually(lambda: worker.report() == (True, True, None))
    jobs.ask()


def test_children_are_started_after_an_error_in_the_thread_that_starts_them(crunch, caplog):
    def fail() -> None:
        raise Ended

    children = Children(["crunch"])
    try:
        first = children._lend("crunch")
        children._jobs.put(fail)
        second = children._lend("crunch")
        assert sorted([first.process.pid, second.process.pid]) == children.pids()
        assert any("pgqueue-children was ended by an error" in message for message in caplog.messages)
        for child in (first, second):
            children._take_back(child, "crunch")
    finally:
        children.close()
    eventually(lambda: not children.pids())


def test_a_child_whose_link_is_ended_dies_and_its_task_runs_in_another(crunch):
    with running(Worker(crunch.client, concurrency=1, grace=5)):
        assert crunch.lose_link.put().result(30) == 1
