"""Options of jobs and of single puts: which of them counts, and what is refused, with which words."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import timedelta
from typing import Any

import pytest
from eventually import eventually
from running import running
from statements import rows

import pgqueue
from pgqueue import Client, Retry, Worker
from pgqueue._calls.put_options import PutArguments
from pgqueue.errors import ResultUnknown
from pgqueue.jobs.options import JobPutArguments
from pgqueue.testing import drain, without_database

pytestmark = pytest.mark.once

NOWHERE = "postgresql://127.0.0.1:1/nowhere"


# --- defaults of a client


@pytest.mark.parametrize(
    ("policy", "default"),
    [("retry", Retry(attempts=2)), ("timeout", 60), ("soft_timeout", 50), ("keep_result", 5), ("isolation", "process"),
     ("priority", 3), ("ttl", 9), ("ttr", 8), ("unique_data", True), ("unique_for", 7)],
)  # fmt: skip
def test_a_job_can_undo_a_default(policy: str, default: Any):
    client = Client(NOWHERE)
    open_job, without = client.job(name="a")(lambda: None), client.job(name="b", **{policy: None})(lambda: None)
    client.job_defaults(**{policy: default})
    assert getattr(open_job.settings, policy) == default
    assert getattr(without.settings, policy) is None
    client.job_defaults(**{policy: None})
    assert getattr(open_job.settings, policy) is None


# --- policies of one task


@pytest.mark.parametrize("kind", ["thread", "async", "mixed"])
def test_a_put_has_policies_of_its_own(client: Client, kind: str):
    over = threading.Event()

    def work(how: str) -> str:
        if how == "fail":
            raise ValueError(how)
        over.wait(60 if how == "hang" else 0)
        return how

    async def work_async(how: str) -> str:
        if how == "hang":
            await asyncio.sleep(60)
        return work(how)

    policy: Any = {"retry": Retry(attempts=7, delay=0, never=KeyError), "keep_result": 60}
    job = client.job("q", name="work", **policy)(work if kind == "thread" else work_async)
    if kind == "mixed":
        client.job("q", name="sync")(lambda: None)
    with running(Worker(client, concurrency=4, grace=1)):
        once = job.options(retry=Retry(attempts=2, delay=0)).put("fail")
        dropped = job.options(keep_result=0).put("fine")
        hung = job.options(timeout=timedelta(seconds=0.2), attempts=1).put("hang")
        assert job.put("fine").result(30) == "fine"
        assert (eventually(lambda: once.outcome().state == "failed"), once.outcome().attempts) == (True, 2)
        with pytest.raises(ResultUnknown):
            dropped.result(30)
        with pytest.raises(pgqueue.TaskFailed, match=r"time limit of 0\.2 s"):
            hung.result(30)
        over.set()


def test_a_put_may_keep_what_its_job_does_not(client: Client):
    @client.job("q")
    def double(n: int) -> int:
        return 2 * n

    with running(Worker(client, grace=1)):
        assert double.options(keep_result=60).put(4).result(30) == 8


def test_policies_of_a_put_are_json(client: Client, db: Any):
    job = client.job("q", name="job")(lambda: None)
    job.options(retry=Retry(attempts=None, delay=2, jitter=False), timeout=5, keep_result=timedelta(minutes=1)).put()
    job.options(retry=Retry()).put()
    job.put()
    found = [data.get("own") for (data,) in rows(db, "SELECT data FROM pgqueue.tasks ORDER BY id")]
    own = {"timeout": 5, "keep_result": 60, "retry": {"attempts": None, "delay": 2, "jitter": False}}
    assert found == [own, {"retry": {}}, None]


def test_the_code_of_a_retry_stays_that_of_the_job():
    client = Client(NOWHERE)

    @client.job("q", retry=Retry(never=KeyError))
    def fail() -> None:
        raise KeyError

    with pytest.raises(ValueError, match="the Retry of one task has no on, never or choose"):
        fail.options(retry=Retry(on=OSError))
    with without_database(client, propagate=False) as tasks:
        fail.options(retry=Retry(attempts=5)).put()
        (attempt,) = tasks.run()
        assert attempt.state == "buried"


@pytest.mark.parametrize("own", [{"timeout": -1}, {"retry": {"attempts": 0}}, {"retry": {"on": "x"}}, {"retry": 3}])
def test_policies_that_sql_has_put_wrong_bury_the_task(client: Client, db: Any, own: Any):
    ran = list[int]()
    client.job("q", name="job")(lambda: ran.append(1))
    db.execute("SELECT pgqueue.put('q', %s)", [json.dumps({"job": "job", "own": own})])
    with running(Worker(client, grace=1)):
        error = eventually(lambda: rows(db, "SELECT error FROM pgqueue.tasks WHERE state = 'buried'"))
    assert error[0][0].startswith("the task's own policies, {")
    assert ran == []


def test_tests_of_an_application_follow_the_policies_of_a_put(client: Client):
    @client.job("q", timeout=60, retry=Retry(attempts=1))
    def slow(seconds: float) -> None:
        tasks.advance(seconds)

    with without_database(client, propagate=False) as tasks:
        slow.options(timeout=20).put(30)
        assert [one.error for one in tasks.run()] == ["it ran for longer than its timeout of 20 s"]

    @client.job("q")
    def keep() -> int:
        return 7

    task = keep.options(keep_result=60).put()
    drain(client)
    assert task.result(0) == 7


# --- what is no option, and no job


@pytest.mark.parametrize(
    ("options", "meant"),
    [({"countdown": 5}, "delay"), ({"eta": 5}, "run_at"), ({"max_retries": 5}, "attempts"), ({"expires": 5}, "ttl"),
     ({"prioriti": 5}, "priority"), ({"rate": 5}, None), ({"task_id": "x"}, "key")],
)  # fmt: skip
def test_an_option_that_there_is_not_is_told_in_the_callers_words(options: dict[str, Any], meant: str | None):
    job = Client(NOWHERE).job()(lambda: None)
    with pytest.raises(ValueError, match=r"options\(\) has no option") as error:
        job.options(**options)
    assert (f"did you mean {meant}?" in str(error.value)) == (meant is not None)
    listed = str(error.value).partition(" It has ")[2].split(", ")
    assert sorted(listed) == sorted({*PutArguments.__annotations__, *JobPutArguments.__annotations__})


@pytest.mark.parametrize(
    ("options", "meant"),
    [({"max_retries": 5}, r"retry=Retry\(attempts=...\)"), ({"time_limit": 5}, "timeout"),
     ({"autoretry_for": OSError}, r"retry=Retry\(on=...\)"), ({"rate_limit": "5/s"}, r"rate=Rate\(...\)"),
     ({"keep_results": 5}, "keep_result")],
)  # fmt: skip
def test_a_policy_that_there_is_not_is_told_in_the_callers_words(options: dict[str, Any], meant: str):
    with pytest.raises(TypeError, match=rf"job\(\) has no option '\w+': did you mean {meant}\?"):
        Client(NOWHERE).job(**options)
    with pytest.raises(TypeError, match=r"job_defaults\(\) has no option"):
        Client(NOWHERE).job_defaults(**options)


def generator(n: int) -> Any:
    yield n


async def async_generator(n: int) -> Any:
    yield n


class Shop:
    def send(self, to: str) -> None: ...

    @classmethod
    def counted(cls) -> None: ...

    @staticmethod
    def helper(n: int) -> int:
        return n


@pytest.mark.parametrize(
    ("function", "said"),
    [(generator, "is a generator function, whose call runs nothing"), (async_generator, "is a generator function"),
     (Shop.send, "is a method, and a worker has no self for it")],
)  # fmt: skip
def test_what_cannot_be_a_job_is_refused_where_it_is_defined(function: Any, said: str):
    with pytest.raises(ValueError, match=rf"job tests.* \(.*test_options.py:\d+\) {said}"):
        Client(NOWHERE).job()(function)


def test_functions_of_a_class_that_need_no_object_are_jobs():
    client = Client(NOWHERE)
    assert client.job()(Shop.helper)(7) == 7
    assert client.job(name="bound")(Shop.counted)() is None


def test_a_generator_that_a_handler_returns_is_a_failure(client: Client):
    client.handler("q")(lambda data: generator(data))
    task = client.queue("q").put(1)
    with running(Worker(client, max_attempts=1, grace=1)):
        eventually(lambda: task.peek().state == "buried")
    assert "the handler returned a generator" in str(task.peek().error)


# --- results that no job keeps


@pytest.mark.slow
def test_the_result_of_a_job_that_keeps_none_is_not_waited_for(client: Client):
    @client.job("q")
    def forget() -> None: ...

    @client.job("q")
    def may_finish(task: pgqueue.Task) -> None: ...

    for task in (forget.put(), asyncio.run(forget_by(client, forget)), forget.options(delay=9).put()):
        with pytest.raises(ResultUnknown, match=r"job \S+ keeps no results: give it keep_result"):
            task.result()
    for task in (may_finish.put(), forget.options(keep_result=5).put()):
        with pytest.raises(TimeoutError):
            task.result(0)


async def forget_by(client: Client, job: Any) -> Any:
    task = await job.aput()
    with pytest.raises(ResultUnknown):
        await task.result()
    return job.put()
