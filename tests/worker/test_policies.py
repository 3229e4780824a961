"""One policy for all causes: its Retry decides on what raises, what is over its time, and what dies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from eventually import eventually
from running import running
from statements import row

import pgqueue
from pgqueue import ProcessDied, Retry, SoftTimeLimit, TimeLimitExceeded, Worker, checkpoint

pytestmark = pytest.mark.once

LIMITS = {"timeout": 0.2}
SOFT = {"soft_timeout": 0.2, "timeout": 30}


@pytest.fixture
def client(blocking: Callable[..., pgqueue.Client]) -> pgqueue.Client:
    return blocking()


def decided(error: type[BaseException]) -> list[tuple[dict[str, Any], bool]]:
    """Policies, and whether a task that failed by this error is tried again."""
    return [
        ({}, True),
        ({"on": OSError}, False),
        ({"on": (OSError, error)}, True),
        ({"never": OSError}, True),
        ({"never": error}, False),
        ({"choose": lambda attempts, raised: None if isinstance(raised, error) else 0}, False),
        ({"choose": lambda attempts, raised: 0 if type(raised) is error else None}, True),
    ]


def expected(error: type[BaseException]) -> list[int]:
    return [2 if again else 1 for _, again in decided(error)]


def attempts(db: Any, tasks: list[Any], within: float = 30) -> list[int]:
    """How often each task has failed, once all are buried."""
    eventually(lambda: all(task.peek().state == "buried" for task in tasks), within)
    return [task.peek().attempts for task in tasks]


def retry(policy: dict[str, Any]) -> Retry:
    return Retry(**({"attempts": 2, "delay": 0} | policy))


@pytest.mark.parametrize("error", [TimeLimitExceeded, SoftTimeLimit, KeyError])
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_policy_decides_on_whatever_ends_a_handler(db, client, kind, error):
    over = threading.Event()

    def fails() -> None:
        if error is KeyError:
            raise KeyError
        while not over.wait(0.01):
            checkpoint()

    async def fails_async() -> None:
        if error is KeyError:
            raise KeyError
        await asyncio.sleep(60)

    options = SOFT if error is SoftTimeLimit else LIMITS
    function = fails if kind == "thread" else fails_async
    jobs = [
        client.job("q", name=f"fails {n}", retry=retry(policy), **options)(function)
        for n, (policy, _) in enumerate(decided(error))
    ]
    # A thread that is written off holds its task: it is not begun again in this process, so another one tries it.
    with running(Worker(client, concurrency=8, grace=1)):
        tasks = [job.put() for job in jobs]
        if kind == "thread" and error is TimeLimitExceeded:
            eventually(lambda: all(task.peek().attempts == 1 for task in tasks))
            states = [task.peek().state for task in tasks]
            over.set()
            assert [state != "buried" for state in states] == [again for _, again in decided(error)]
        else:
            assert attempts(db, tasks) == expected(error)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "error"), [("killed", ProcessDied), ("hung", TimeLimitExceeded)])
def test_a_policy_decides_on_a_process_that_dies_or_is_killed(db, crunch, how, error):
    for policy, again in decided(error):
        crunch.client.job_defaults(retry=retry(policy), timeout=0.3 if how == "hung" else 60)
        with running(Worker(crunch.client, concurrency=1, grace=1)):
            assert attempts(db, [crunch.fall.put(how)]) == [2 if again else 1], policy


def test_a_task_that_was_taken_too_often_is_buried_whatever_attempts_it_has_left(db, client):
    ran = []

    @client.job("q", retry=Retry(attempts=20, takes=3, delay=0))
    def never_again() -> None:
        ran.append(1)

    task = never_again.put()
    db.execute("UPDATE pgqueue.task SET attempts = 3")  # three workers died
    with running(Worker(client, grace=1)):
        eventually(lambda: task.peek().state == "buried")
    assert row(db, "SELECT attempts, error LIKE 'not tried again: it came back%%' FROM pgqueue.tasks") == (4, True)
    assert ran == []
