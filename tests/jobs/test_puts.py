"""What a put of a job may say beside its arguments: that it is unique, what it waits for, and its batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from eventually import eventually
from statements import rows

import pgqueue
from pgqueue import Retry, Task, Worker
from pgqueue.testing import without_database

pytestmark = pytest.mark.once


def args(db: psycopg.Connection) -> list[Any]:
    return [one for (one,) in rows(db, "SELECT data -> 'args' FROM pgqueue.tasks ORDER BY id")]


# --- unique


@pytest.fixture(params=["database", "memory"])
def where(request: pytest.FixtureRequest, client: pgqueue.Client) -> Any:
    """A client's jobs with a database and without one."""
    if request.param == "database":
        yield client
        return
    with without_database(client):
        yield client


def test_a_job_is_unique_by_its_arguments_until_it_is_done(where):
    @where.job("mail", name="digest", unique_data=True)
    def digest(user: int, day: str = "today") -> None: ...

    first = digest.put(7)
    again = digest.options(headers={"trace": "1"}, priority=3).put(user=7)
    assert (first.existed, again.existed, again.id) == (False, True, first.id)
    assert not digest.put(8).existed
    assert not digest.put(7, day="today").existed  # other arguments, though the same call
    assert not digest.options(unique_data=False).put(7).existed
    assert not digest.options(key="another").put(7).existed
    assert digest.options(key="another").put(9).existed
    assert digest.put_many([(7,), (10,), {"user": 10}])[:2] == [first.id, digest.put(10).id]
    with pytest.raises(pgqueue.KeyExists):
        digest.options(if_exists="error").put(7)


def test_unique_tasks_are_put_again_once_they_are_done(client, db):
    digest = client.job("mail", name="digest", unique_data=True)(lambda user: None)
    first = digest.put(7)
    client.queue("mail").take(timeout=5).ack()
    assert digest.put(7).id != first.id


def test_a_job_is_unique_within_a_time_also_once_it_is_done(client, db):
    @client.job("mail", name="digest", unique_for=timedelta(hours=1))
    def digest(user: int) -> None: ...

    first = digest.put(7)
    client.queue("mail").take(timeout=5).ack()
    again = digest.put(7)
    assert (again.id, again.existed, again.state) == (first.id, True, "unknown")
    assert digest.put_many([(7,), (8,)])[0] == first.id
    assert not digest.options(unique_for=None).put(7).existed
    db.execute("UPDATE pgqueue.recent_key SET expires_at = clock_timestamp()")
    client.queue("mail").truncate()
    assert not digest.put(7).existed


def test_a_time_without_a_database_goes_by_the_clock_of_the_test(client):
    with without_database(client) as tasks:
        digest = client.job("mail", name="digest", unique_for=60)(lambda user: None)
        assert not digest.put(7).existed
        tasks.run()
        assert digest.put(7).existed
        tasks.advance(61)
        assert not digest.put(7).existed


async def test_async_puts_are_unique_too_and_prepared_ones(client, db):
    digest = client.job("mail", name="digest", unique_data=True)(lambda user: None)
    tasks = await asyncio.gather(*(digest.aput(7) for _ in range(20)))
    assert len({task.id for task in tasks}) == 1
    assert sum(not task.existed for task in tasks) == 1
    assert await digest.aput_many([(7,), (7,)]) == [tasks[0].id] * 2
    await asyncio.to_thread(client.put_graph, [digest.prepare(7), digest.prepare(8)])
    assert args(db) == [{"user": 7}, {"user": 8}]
    await client.aio.close()


def test_defaults_make_jobs_unique_and_a_job_says_otherwise(client):
    client.job_defaults(unique_data=True)
    one = client.job("mail", name="one")(lambda: None)
    other = client.job("mail", name="other", unique_data=False)(lambda: None)
    assert [one.put().existed, one.put().existed] == [False, True]
    assert [other.put().existed, other.put().existed] == [False, False]


@pytest.mark.parametrize(
    "wrong",
    [{"unique_data": 1}, {"unique_data": "yes"}, {"unique_for": 0}, {"unique_for": -1}, {"unique_for": "day"}],
    ids=repr,
)
def test_a_unique_job_that_makes_no_sense_is_an_error(client, wrong):
    with pytest.raises(ValueError, match="unique_"):
        client.job("mail", **wrong)
    with pytest.raises(ValueError, match="unique_"):
        client.job("mail", name="some")(lambda: None).options(**wrong)


def test_a_time_and_a_flow_are_an_error(client):
    digest = client.job("mail", name="digest", unique_for=60)(lambda user: None)
    first = digest.put(7)
    with pytest.raises(ValueError, match="cannot be unique for a time"):
        digest.options(after=first).put(8)
    assert digest.options(after=first, unique_for=None).put(8).state == "waiting"


# --- flows


def finish(client: pgqueue.Client, done: Callable[[], bool]) -> None:
    """Run a worker until something holds."""
    worker = Worker(client, concurrency=2, retry_delay=0)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        eventually(done)
    finally:
        worker.stop()
        thread.join(30)


def test_a_job_waits_for_others_and_reads_their_results(client):
    seen: list[Any] = []
    client.job_defaults(queue="work", keep_result=60)

    @client.job(name="double")
    def double(n: int) -> int:
        return 2 * n

    @client.job(name="total")
    def total(task: Task, more: int) -> None:
        seen.append((more, [one.result for one in task.results()]))

    parts = [double.put(1), double.put(2)]
    waiting = total.options(after=parts).put(5)
    assert waiting.state == "waiting"
    assert total.options(after=parts[0]).put_many([(6,)])
    finish(client, lambda: len(seen) == 2)
    assert sorted(seen) == [(5, [2, 4]), (6, [2])]


def test_a_failed_job_does_to_the_next_what_on_failure_says(client, db):
    ran: list[str] = []
    client.job_defaults(queue="work", retry=Retry(attempts=1))

    @client.job(name="fail")
    def fail() -> None:
        raise ValueError("no luck")

    @client.job(name="next")
    def then(how: str) -> None:
        ran.append(how)

    failing = fail.put()
    waits, buried, _ = (then.options(after=[failing], on_failure=how).put(how) for how in ("wait", "bury", "run"))
    finish(client, lambda: ran == ["run"] and buried.peek().state == "buried")
    assert waits.peek().state == "waiting"
    assert f"task {failing.id}" in str(buried.peek().error)


async def test_async_puts_wait_too(client):
    step = client.job("work", name="step")(lambda n: None)
    first = await step.aput(1)
    second = await step.options(after=first, on_failure="run").aput(2)
    assert second.state == "waiting"
    await client.aio.close()


def test_a_batch_of_a_job_calls_back_a_job_with_its_arguments(client):
    seen: list[Any] = []
    client.job_defaults(queue="work")

    @client.job(name="send")
    def send(to: int) -> None: ...

    @client.job(name="report")
    def report(task: Task, to: str) -> None:
        (batch,) = task.results()
        seen.append((to, batch.result))

    with client.batch(report.prepare("ada"), name="newsletter") as batch:
        send.options(batch=batch).put(0)
        send.options(batch=batch).put_many([(n,) for n in range(1, 10)])
    finish(client, lambda: bool(seen))
    assert seen == [("ada", {"total": 10, "failed": 0})]
    assert batch.progress().state == "done"


def test_a_graph_of_jobs_goes_in_one_call(client):
    order: list[str] = []
    step = client.job("work", name="step")(lambda name: order.append(name))
    first = step.prepare("split")
    group = [step.options(after=first).prepare(f"part {n}") for n in range(3)]
    client.put_graph([first, *group, step.options(after=group).prepare("join")])
    finish(client, lambda: len(order) == 5)
    assert (order[0], order[-1]) == ("split", "join")


def test_a_put_that_cannot_wait_is_an_error(client):
    step = client.job("work", name="step")(lambda n: None)
    with pytest.raises(ValueError, match="on_failure"):
        step.options(after=1, on_failure="retry")
    with pytest.raises(ValueError, match="task"):
        step.options(after="nothing")
    with pytest.raises(ValueError, match=r"never put|no put"):
        step.options(after=10**12).put(1)
    with pytest.raises(pgqueue.errors.BatchError):
        step.options(batch=10**12).put(1)
