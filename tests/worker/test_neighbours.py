"""What one queue does holds up no other queue of its worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest
from eventually import eventually
from running import running
from sampling import sampled

import pgqueue
from pgqueue import Retry, Worker

pytestmark = pytest.mark.once


@pytest.fixture
def client(blocking: Callable[..., pgqueue.Client]) -> pgqueue.Client:
    return blocking()


@pytest.fixture
def good(client: pgqueue.Client) -> Any:
    @client.job(queue="good", keep_result=60)
    def good(n: int) -> int:
        return n

    return good


def working(client: pgqueue.Client, **options: Any) -> AbstractContextManager[Worker]:
    return running(Worker(client, **({"grace": 5, "concurrency": 2} | options)))


@pytest.fixture
def open_transaction(connect: Callable[..., psycopg.Connection[Any]]) -> Iterator[psycopg.Connection[Any]]:
    conn = connect(autocommit=False)
    yield conn
    conn.rollback()


@pytest.mark.parametrize("ends", ["ack", "result", "failure"])
def test_a_task_that_an_open_transaction_has_locked_holds_up_no_other(client, good, open_transaction, ends):
    locked = threading.Event()

    @client.job(queue="bad", keep_result=60 if ends == "result" else None, retry=Retry(attempts=1))
    def bad(task: pgqueue.Task) -> None:
        task.touch(60, conn=open_transaction)
        locked.set()
        if ends == "failure":
            raise RuntimeError("boom")

    with working(client):
        bad.put()
        assert locked.wait(30)
        assert [good.put(n).result(10) for n in range(5)] == list(range(5))
        assert client.queue("bad").stats()["taken"] == 1
        open_transaction.rollback()
        eventually(lambda: client.queue("bad").stats()["taken"] == 0)
    assert client.queue("bad").stats()["buried"] == (ends == "failure")


# --- hostile handlers


def exits() -> None:
    raise SystemExit(3)


def interrupts() -> None:
    raise KeyboardInterrupt


def closes_generators() -> None:
    raise GeneratorExit


def cancels() -> None:
    raise asyncio.CancelledError


def leaks_threads() -> None:
    for _ in range(5):
        threading.Thread(target=threading.Event().wait, args=[5], daemon=True).start()
    raise RuntimeError("and they wait for 5 seconds")


def stops_the_loop() -> None:
    asyncio.get_running_loop().stop()


HOSTILE = [exits, interrupts, closes_generators, cancels, leaks_threads]


CASES = [(act, kind) for kind in ("thread", "async", "mixed") for act in HOSTILE]
CASES += [(stops_the_loop, "async"), (stops_the_loop, "mixed")]


@pytest.mark.parametrize(("act", "kind"), sampled(CASES, keep=5), ids=lambda one: getattr(one, "__name__", one))
def test_a_hostile_handler_ends_no_other(client, act, kind):
    def sync() -> None:
        act()

    async def aio() -> None:
        act()
        await asyncio.sleep(0)

    async def answer_async(n: int) -> int:
        return n

    def answer(n: int) -> int:
        return n

    options: dict[str, Any] = {"queue": "q", "retry": Retry(attempts=1), "keep_result": 60}
    hostile = client.job(**options)(sync if kind == "thread" else aio)
    bystander = client.job(**options)(answer_async if kind == "async" else answer)
    with working(client):
        tasks = [hostile.put() for _ in range(6)]  # more than there are handlers
        assert [bystander.put(n).result(30) for n in range(6)] == list(range(6))
        eventually(lambda: {task.outcome().state for task in tasks} <= {"failed", "done"})
        assert [bystander.put(n).result(30) for n in range(6)] == list(range(6))
