"""Jobs on a real database: put by every kind of client and by SQL, run by workers in threads and coroutines."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from eventually import eventually

import pgqueue
from pgqueue import AsyncTask, BadArguments, Bury, Retry, RetryLater, Task, Worker

pytestmark = pytest.mark.once

Work = Callable[..., Worker]


def state(client: pgqueue.Client, task: Task) -> str:
    return client.results.outcome(task.id).state


def buried(client: pgqueue.Client, id: int) -> str:
    """The error of the task, once it is buried."""
    queue = client.queue("any")
    found = eventually(lambda: (one := queue.peek(id)).state == "buried" and one)
    assert found.attempts <= 1
    return str(found.error)


def test_jobs_of_one_queue_run_by_name_in_threads_and_in_a_loop(client: pgqueue.Client, work: Work) -> None:
    where: dict[str, str] = {}

    @client.job("mail", keep_result=60)
    def add(a: int, b: int = 2) -> int:
        where["add"] = threading.current_thread().name
        return a + b

    @client.job("mail", keep_result=60)
    async def later(at: datetime) -> datetime:
        where["later"] = threading.current_thread().name
        await asyncio.sleep(0)
        return at

    tasks = [add.put(1), add.put(a=1, b=5), later.put(datetime(2026, 1, 1, tzinfo=UTC))]
    work()
    assert [task.result(30) for task in tasks] == [3, 6, "2026-01-01T00:00:00Z"]
    assert where["add"].startswith("pgqueue-runner")
    assert where["later"] == "pgqueue-bridge"


def test_names_that_json_escapes_are_told_apart(client: pgqueue.Client, work: Work) -> None:
    ran: list[str] = []
    jobs = []
    for name in ('a"b', "a\\", "a", "ab", "\u00e4"):

        @client.job("odd", name=name)
        def job(name: str) -> None:
            ran.append(name)

        jobs.append((name, job))
    expected = [name for _ in range(3) for name, job in jobs if job.put(name)]
    work(concurrency=1)
    eventually(lambda: sorted(ran) == sorted(expected))


def test_async_jobs_alone_run_as_coroutines_and_a_sync_one_beside_them(client: pgqueue.Client, work: Work) -> None:
    where: list[str] = []

    @client.job("mail", keep_result=60)
    async def send(task: AsyncTask, to: str) -> str:
        where.append(threading.current_thread().name)
        return f"{task.id} {to}"

    @client.job("other", keep_result=60)
    def count() -> int:
        where.append(threading.current_thread().name)
        return 3

    sent = send.put("ada")
    counted = count.options(queue="mail").put()
    work(queues=["mail"])
    assert (sent.result(30), counted.result(30)) == (f"{sent.id} ada", 3)
    assert where[0] == "pgqueue-loop" or where[1] == "pgqueue-loop"
    assert len(set(where)) == 2


@pytest.mark.slow
def test_sql_puts_the_same_task(client: pgqueue.Client, work: Work, db: psycopg.Connection) -> None:
    done: list[Any] = []
    client.job("mail", name='shop."send"')(lambda to, n=1: done.append((to, n)))
    client.job("mail", name="shop.send")(lambda to, n=1: done.append((to, n)))
    for data in (
        {"args": {"to": "ada"}, "job": "shop.send"},
        {"job": "shop.send", "args": {"to": "bob", "n": 2}, "v": 1, "headers": {}},
        {"job": 'shop."send"', "args": {"to": "cid"}},
    ):
        db.execute("SELECT pgqueue.put('mail', %s)", [json.dumps(data)])
    work()
    eventually(lambda: sorted(done) == [("ada", 1), ("bob", 2), ("cid", 1)])


UNRUNNABLE = [
    ({"job": "count", "args": {}}, "job count: args: lacks 'n' (its parameters: n)"),
    ({"job": "count", "args": {"n": 1, "m": 2}}, "job count: args: has unknown 'm' (its parameters: n)"),
    ({"job": "count", "args": {"n": "1"}}, "job count: args.n: Input should be a valid integer, not '1'"),
    ({"job": 7}, "mail is a queue of jobs, and the task's data is not that of a job"),
    ([1], "mail is a queue of jobs, and the task's data is not that of a job"),
    (None, "mail is a queue of jobs, and the task's data is not that of a job"),
]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_can_never_run_is_buried_at_once_with_the_difference(
    client: pgqueue.Client, work: Work, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran = []
    if kind == "sync":

        @client.job("mail", name="count", retry=Retry(attempts=20))
        def count(n: int) -> None:
            ran.append(n)
    else:

        @client.job("mail", name="count", retry=Retry(attempts=20))
        async def count_async(n: int) -> None:
            ran.append(n)

    tasks = [client.queue("mail").put(data) for data, _ in UNRUNNABLE]
    work()
    for task, (_, said) in zip(tasks, UNRUNNABLE, strict=True):
        assert buried(client, task.id).startswith(said)
    assert ran == []
    assert not any(record.exc_info for record in caplog.records)  # no frame of the user's is in it


def test_an_upgrade_makes_old_arguments_fit(client: pgqueue.Client, work: Work) -> None:
    ran: list[str] = []

    @client.job("mail", name="shop.send", aliases=["send"])
    def send(address: str, copies: int = 1) -> None:
        ran.append(f"{address} {copies}")

    @send.upgrade
    def send_upgrade(args: dict[str, Any]) -> dict[str, Any]:
        return {"address": args["to"]}

    put = client.queue("mail").put
    put({"job": "send", "args": {"to": "ada"}})
    put({"job": "shop.send", "args": {"address": "bob"}})
    worse = put({"job": "send", "args": {"colour": 1}})
    odd = put({"job": "send", "args": {"to": 5}})
    work()
    eventually(lambda: sorted(ran) == ["ada 1", "bob 1"])
    assert "its upgrade failed: KeyError('to')" in buried(client, worse.id)
    assert "valid string, not 5, after its upgrade" in buried(client, odd.id)


def test_a_result_that_cannot_be_kept_buries_the_task_that_has_run(client: pgqueue.Client, work: Work) -> None:
    runs: list[int] = []

    @client.job("mail", keep_result=60)
    def give(n: int):
        runs.append(n)
        return object() if n == 1 else {"\0": 1}

    tasks = [give.put(1), give.put(2)]
    work()
    for task in tasks:
        with pytest.raises(pgqueue.TaskFailed, match="has run, and its result cannot be kept"):
            task.result(30)
    assert sorted(runs) == [1, 2]


def test_a_job_is_tried_again_by_its_own_policy(client: pgqueue.Client, work: Work) -> None:
    tried: list[tuple[str, int]] = []

    @client.job("mail", retry=Retry(attempts=3, delay=0.01, on=OSError))
    def send(task: Task, kind: str) -> None:
        tried.append((kind, task.attempts))
        raise OSError(kind) if kind != "value" else ValueError(kind)

    tasks = {
        "os": send.put("os"),
        "value": send.put("value"),
        "once": send.options(attempts=1).put("once"),
        "more": send.options(attempts=4).put("more"),
    }
    work()
    states = {kind: lambda one=task: state(client, one) for kind, task in tasks.items()}
    eventually(lambda: {kind: look() for kind, look in states.items()} == dict.fromkeys(tasks, "buried"))
    assert {kind: sum(one == kind for one, _ in tried) for kind in tasks} == {"os": 3, "value": 1, "once": 1, "more": 4}
    line = send.function.__code__.co_firstlineno + 3
    assert client.queue("mail").peek(tasks["os"]).error == f"OSError: os (test_jobs.py:{line}, in send)"


@pytest.mark.parametrize("plain", [False, True], ids=["job", "handler"])
def test_what_a_handler_raises_decides(client: pgqueue.Client, work: Work, plain: bool) -> None:
    """In jobs and in plain handlers."""
    tried: list[str] = []
    seen = threading.Event()

    def decide(what: str) -> None:
        tried.append(what)
        if what == "bury":
            raise Bury("no such user")
        if what == "wait" and tried.count("wait") < 4:
            raise RetryLater(0.01, "not there yet", counts=False)
        if what == "later":
            raise RetryLater(3600, "busy")
        seen.set()

    if plain:
        client.handler("mail")(decide)
        put: Callable[[str], Task] = client.queue("mail").put
    else:
        put = client.job("mail", retry=Retry(attempts=2))(decide).put
    tasks = {what: put(what) for what in ("bury", "wait", "later")}
    work()
    assert buried(client, tasks["bury"].id) == "no such user"
    assert seen.wait(30)
    assert tried.count("wait") == 4  # more than the policy's attempts: they did not count
    later = eventually(lambda: (one := client.queue("mail").peek(tasks["later"])).state == "delayed" and one)
    assert (later.error, later.attempts) == ("busy", 1)


@pytest.mark.slow
@pytest.mark.parametrize("hold", [True, False])
def test_a_lane_is_held_during_a_retry_unless_told_otherwise(client: pgqueue.Client, work: Work, hold: bool) -> None:
    ran: list[int] = []

    @client.job("mail", retry=Retry(attempts=2, delay=1.0, jitter=False, hold_lane=hold))
    def send(task: Task, n: int) -> None:
        ran.append(n)
        if n == 1 and task.attempts == 0:
            raise OSError

    for n in (1, 2):
        send.options(lane="ada").put(n)
    work()
    eventually(lambda: len(ran) == 3)
    assert ran == ([1, 1, 2] if hold else [1, 2, 1])


def test_a_worker_serves_chosen_queues(client: pgqueue.Client, work: Work) -> None:
    done: list[str] = []
    for queue in ("mail", "reports", "slow"):
        client.job(queue, name=queue)(lambda queue=queue: done.append(queue))
    client.handler("raw")(lambda data: done.append("raw"))
    for queue in ("mail", "reports", "slow"):
        client.jobs[queue].put()
    client.queue("raw").put(1)
    work(queues=["mail", "reports"], exclude=["reports"])
    eventually(lambda: done == ["mail"])
    work(exclude=["slow"])
    eventually(lambda: sorted(done) == ["mail", "raw", "reports"])
    assert client.queue("slow").stats()["ready"] == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exclude": ["nope"]}, "queue 'nope' cannot be excluded: there are mail"),
        ({"exclude": ["mail"]}, "no queue is left"),
        ({"queues": "mail"}, "lists of names"),
        ({"queues": []}, "at least one"),
        ({"queues": ["nope"]}, "there is no handler for queue 'nope', only for mail"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(client: pgqueue.Client, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Worker(client, {"mail": print}, **options)


def test_a_queue_has_one_kind_of_handler(client: pgqueue.Client) -> None:
    with pytest.raises(ValueError, match="needs a handler or a job"):
        Worker(client)
    client.handler("mail")(print)
    client.job("mail")(lambda: None)
    with pytest.raises(ValueError, match="queue 'mail' has a handler and jobs"):
        Worker(client)


# --- puts


async def test_both_clients_have_both_puts(dsn: str, awaiting: Callable[..., pgqueue.AsyncClient]) -> None:
    client = awaiting()
    with pgqueue.Client(dsn) as blocking:
        for owner in (client, blocking):

            @owner.job("mail", name="send")
            def send(to: str) -> None: ...

            here = await send.aput("ada")
            there = await asyncio.to_thread(send.put, "bob")
            assert (type(here), type(there)) == (AsyncTask, Task)
            many = await send.aput_many([("cid",), {"to": "dot"}])
            more = await asyncio.to_thread(send.options(priority=2).put_many, [("eve",)])
            names = [
                (await client.queue("mail").peek(id)).data["args"]["to"] for id in [here.id, there.id, *many, *more]
            ]
            assert names == ["ada", "bob", "cid", "dot", "eve"]
        await blocking.aio.close()


def test_a_put_is_part_of_the_callers_transaction(client: pgqueue.Client, dsn: str) -> None:
    @client.job("mail")
    def send(to: str) -> None: ...

    with psycopg.connect(dsn) as connection:
        send.options(conn=connection).put("ada")
        connection.rollback()
        send.options(conn=connection, key="k").put("bob")
    assert send.options(key="k").put("cid").existed
    assert client.queue("mail").stats()["ready"] == 1


def test_put_many_puts_all_or_nothing(client: pgqueue.Client) -> None:
    @client.job("mail")
    def send(to: str) -> None: ...

    for wrong in ([("ada",), (1,)], [("ada",), {"t": 1}], [("ada",), "bob"]):
        with pytest.raises(ValueError, match=r"args|tuple or a mapping"):
            send.put_many(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="key for each"):
        send.options(key="k").put_many([("ada",)])
    assert client.stats() == {}
    assert len(send.put_many(("x",) for _ in range(2500))) == 2500


def test_a_job_hands_on_to_another_in_its_ack(client: pgqueue.Client, work: Work) -> None:
    done: list[str] = []

    @client.job("mail")
    def first(task: Task) -> None:
        task.ack(put=[second.prepare("ada")])

    @client.job("mail")
    def second(to: str) -> None:
        done.append(to)

    first.put()
    work()
    eventually(lambda: done == ["ada"])
    with pytest.raises(BadArguments):
        second.prepare(1)  # type: ignore[arg-type]


# --- batch handlers


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_batch_handler_settles_each_task(client: pgqueue.Client, work: Work, kind: str) -> None:
    sizes: list[int] = []
    done: list[int] = []

    def handle(tasks: list[Any]) -> dict[int, Any]:
        sizes.append(len(tasks))
        done.extend(task.data for task in tasks)
        return {task.id: OSError("bad") for task in tasks if task.data == 3}

    if kind == "sync":
        client.batch_handler("rows", 10)(handle)
    else:

        @client.batch_handler("rows", 10)
        async def handle_async(tasks: list[Any]) -> dict[int, Any]:
            for task in tasks:
                if task.data == 5:
                    await task.bury(error="five")
            return handle(tasks)

    ids = client.queue("rows").put_many(range(40))
    work(max_attempts=2)
    eventually(lambda: client.queue("rows").stats()["total"] == client.queue("rows").stats()["buried"])
    assert max(sizes) <= 10 < sum(sizes)
    assert any(size > 1 for size in sizes)
    assert sorted(done) == sorted([*range(40), 3])
    three = client.queue("rows").peek(ids[3])
    assert (three.state, three.attempts, three.error) == ("buried", 2, "OSError: bad")
    assert client.queue("rows").stats()["buried"] == (1 if kind == "sync" else 2)


def test_a_batch_handler_that_raises_fails_what_it_has_not_settled(client: pgqueue.Client, work: Work) -> None:
    calls: list[list[int]] = []

    @client.batch_handler("rows", 5)
    def handle(tasks: list[Task]) -> None:
        calls.append([task.data for task in tasks])
        for task in tasks:
            if task.data == 1:
                task.ack()
        raise OSError("disk")

    client.queue("rows").put_many([1, 2, 3])
    work(max_attempts=1, concurrency=1)
    eventually(lambda: client.queue("rows").stats()["buried"] == 2)
    assert client.queue("rows").stats()["total"] == 2
    assert sorted(one for call in calls for one in call) == [1, 2, 3]


@pytest.mark.parametrize(("queue", "n"), [("", 1), ("q", 0), ("q", True), ("q", 1.5)])
def test_a_batch_that_cannot_be_is_refused(client: pgqueue.Client, queue: str, n: Any) -> None:
    with pytest.raises(ValueError, match=r"name|n must"):
        client.batch_handler(queue, n)


@pytest.mark.slow
def test_a_handler_that_hangs_in_a_batch_is_written_off_once(client: pgqueue.Client, work: Work) -> None:
    hold, done = threading.Event(), list[int]()

    @client.batch_handler("rows", 10)
    def handle(tasks: list[Task]) -> None:
        if any(task.data < 10 for task in tasks):
            hold.wait(30)
        done.extend(task.data for task in tasks)

    client.queue("rows").put_many(range(10))
    work(max_attempts=1, concurrency=1, time_limit=0.5)
    eventually(lambda: client.queue("rows").stats()["buried"] == 10)
    client.queue("rows").put(10)
    eventually(lambda: 10 in done)
    assert sum(thread.name.startswith("pgqueue-runner") for thread in threading.enumerate()) <= 12
    hold.set()


def test_failures_are_logged_with_their_traceback(
    client: pgqueue.Client, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pgqueue")

    @client.job("mail", name="shop.fail", retry=Retry(attempts=1))
    def fail() -> None:
        raise ZeroDivisionError("oh")

    task = fail.put()
    work()
    buried(client, task.id)
    record = next(one for one in caplog.records if "is buried" in one.message)
    assert record.message.startswith(f"shop.fail, task {task.id} of mail, is buried after 1 attempts: ZeroDivision")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)
    assert [frame.name for frame in traceback.extract_tb(record.exc_info[2])] == ["fail"]  # none of the worker's
