"""Rolling deployments: a worker leaves tasks that it cannot run to workers that can, for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from eventually import eventually
from running import running
from statements import column, row

import pgqueue
from pgqueue import Retry, Worker
from pgqueue._calls.take import Taken
from pgqueue.jobs.retry import Newer
from pgqueue.worker import newer

pytestmark = pytest.mark.once

Blocking = Callable[..., pgqueue.Client]


@contextmanager
def working(client: pgqueue.Client) -> Iterator[None]:
    with running(Worker(client, concurrency=2, grace=1, schedules=False)):
        yield


def old(x: int, y: str = "a") -> str:
    return f"old {x} {y}"


def added_required(x: int, y: str, z: int) -> str:
    return f"new {x} {y} {z}"


def added_default(x: int, y: str = "a", z: int = 1) -> str:
    return f"new {x} {y} {z}"


def other_type(x: str, y: str = "a") -> str:
    return f"new {x} {y}"


def is_async(function: Callable[..., Any]) -> Callable[..., Any]:
    async def made(x: int, y: str = "a") -> str:
        return str(function(x, y))

    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_task_of_newer_code_waits_for_a_worker_that_has_it(
    db, blocking: Blocking, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """Each time that the delay is over, either worker may be the first to take it."""
    monkeypatch.setattr(newer, "LONGEST", newer.FIRST)
    behind, ahead = blocking(), blocking()
    behind.job("q", name="known")(old if kind == "thread" else is_async(old))
    policy: Any = {"keep_result": 60, "retry": Retry(attempts=1)}
    given: dict[Callable[..., Any], tuple[Any, ...]] = {
        added_required: (1, "b", 2),
        added_default: (1, "b", 2),
        other_type: ("1",),
    }
    with working(behind):
        new = ahead.job("q", name="unknown", **policy)(old)
        tasks: list[Any] = [new.put(1)]
        results = ["old 1 a"]
        for function, args in given.items():
            behind.job("q", name=function.__name__)(old)
            tasks.append(ahead.job("q", name=function.__name__, **policy)(function).put(*args))
            results.append(function(*args))
        eventually(lambda: column(db, "SELECT DISTINCT state FROM pgqueue.tasks") == ["delayed"])
        with working(ahead):
            assert [task.result(30) for task in tasks] == results
    assert row(db, "SELECT count(*) FROM pgqueue.attempts") == (0,)


@pytest.mark.slow
def test_a_task_waits_for_a_bounded_time(db, blocking: Blocking, monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.setattr(newer, "WAIT", 0.2)
    monkeypatch.setattr(newer, "FIRST", 0.05)
    client = blocking()
    client.job("q", name="known")(old)
    task = client.queue("q").put({"job": "unknown", "args": {}})
    with working(client):
        eventually(lambda: task.peek().state == "buried")
    found = task.peek()
    assert (found.attempts, found.error) == (1, "there is no job 'unknown' in this worker: it has known")
    (said,) = [one.message for one in caplog.records if "other code" in one.message]
    assert said.endswith(f"for example {task.id}: {found.error}")


@pytest.mark.parametrize("by", ["SQL", "this code"])
def test_wrong_arguments_for_the_present_signature_are_buried_at_once(blocking: Blocking, by: str):
    client = blocking()
    known = client.job("q", name="known")(old)
    sig = {} if by == "SQL" else {"sig": known.version}
    task = client.queue("q").put({"job": "known", "args": {"x": "1"}} | sig)
    with working(client):
        eventually(lambda: task.peek().state == "buried")


def test_tasks_that_wait_do_not_spin(monkeypatch: pytest.MonkeyPatch):
    """A task that comes back as soon as it may: how often a worker takes it."""
    now = 0.0
    monkeypatch.setattr(newer, "time", SimpleNamespace(monotonic=lambda: now))
    waiting, task, why = newer.Waiting(), Taken(1, 1, 0, 0, None, "null", "q"), Newer("why")
    delays = list[float]()
    while (delay := waiting.delay(task, why)) is not None:
        delays.append(delay)
        now += delay
    assert delays[:7] == [0.5, 1, 2, 4, 8, 10, 10]
    assert len(delays) < 100
    assert 900 <= now < 910
    assert waiting.delay(task, why) == 0.5  # it was kicked
    now += 2000
    waiting.delay(task._replace(id=2), why)
    assert list(waiting._met) == [2]  # another worker has taken the other one


@pytest.mark.parametrize("change", [added_required, added_default, other_type])
def test_the_version_of_a_job_is_that_of_its_signature(blocking: Blocking, change: Callable[..., Any]):
    one, other = blocking(), blocking()
    assert one.job(name="a")(old).version == other.job(name="a")(old).version != other.job(name="b")(change).version
