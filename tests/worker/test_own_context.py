"""Each run has an asyncio task and a context of its own: what one handler leaves behind reaches no other."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import pytest
from checkout import HELPERS
from eventually import eventually
from running import running

import pgqueue
from pgqueue import Worker

pytestmark = pytest.mark.once

TENANT: ContextVar[str] = ContextVar("tenant", default="none")


@pytest.fixture
def client(blocking: Callable[..., pgqueue.Client]) -> pgqueue.Client:
    return blocking()


def working(client: pgqueue.Client, **options: Any) -> AbstractContextManager[Worker]:
    return running(Worker(client, **({"retry_delay": 0, "grace": 5, "concurrency": 1} | options)))


# --- cancellations that outlive their run


def cancel_at_once() -> None:
    me = asyncio.current_task()
    assert me is not None
    me.cancel()


def cancel_later() -> None:
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().call_later(0.02, me.cancel)


def cancel_next_turn() -> None:
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().call_soon(me.cancel)


@pytest.mark.parametrize("leave", [cancel_at_once, cancel_later, cancel_next_turn], ids=lambda leave: leave.__name__)
def test_a_cancellation_that_a_handler_leaves_behind_meets_no_other_run_and_ends_no_runner(client, leave):
    @client.job(queue="q", keep_result=60)
    async def careless() -> str:
        leave()
        return "done"

    @client.job(queue="q", keep_result=60)
    async def innocent(n: int) -> int:
        await asyncio.sleep(0.05)
        return n

    with working(client, concurrency=2):
        careless_ones = [careless.put() for _ in range(4)]  # more than there are runners
        innocent_ones = [innocent.put(n) for n in range(4)]
        assert [put.result(30) for put in careless_ones] == ["done"] * 4
        assert [put.result(30) for put in innocent_ones] == [0, 1, 2, 3]
        assert [client.results.attempts(put) for put in innocent_ones] == [[]] * 4  # none has failed


def test_a_handler_begins_with_no_cancellation_counted(client):
    @client.job(queue="q", keep_result=60)
    async def group() -> int:
        async def fail() -> None:
            raise ValueError("child")

        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fail())
                await asyncio.sleep(30)
        me = asyncio.current_task()
        assert me is not None
        found = me.cancelling()
        me.cancel()  # TaskGroup of Python 3.11 leaves one as well, if its body has ended before the child fails
        return found

    with working(client):
        assert [group.put().result(30) for _ in range(3)] == [0, 0, 0]


def test_a_handler_that_cancels_all_tasks_of_its_loop_loses_no_other_task(client):
    begun, cancelled = threading.Event(), threading.Event()

    @client.job(queue="q", keep_result=60)
    async def wipe() -> None:
        begun.set()
        await asyncio.sleep(0.05)
        for one in asyncio.all_tasks() - {asyncio.current_task()}:
            one.cancel()
        cancelled.set()

    @client.job(queue="q", keep_result=60, retry=pgqueue.Retry(attempts=5, delay=0))
    async def innocent(n: int) -> int:
        await asyncio.sleep(0 if cancelled.is_set() else 30)
        return n

    with working(client, concurrency=4):
        put = wipe.put()
        assert begun.wait(30)
        others = [innocent.put(n) for n in range(6)]
        assert put.result(30) is None
        assert [one.result(30) for one in others] == list(range(6))


# --- contexts


def see_and_set() -> str:
    seen = TENANT.get()
    TENANT.set("left behind")
    return seen


def test_a_context_variable_of_one_run_is_not_seen_by_the_next_in_a_thread(client):
    class Naming:
        @contextlib.contextmanager
        def run(self, run: Any) -> Iterator[None]:
            seen.append(TENANT.get())
            TENANT.set("of the middleware")
            yield

    seen: list[str] = []
    client.middleware.append(Naming())

    @client.job(queue="q", keep_result=60)
    def handle() -> str:
        return see_and_set()

    with working(client):
        assert [handle.put().result(30) for _ in range(3)] == ["of the middleware"] * 3
    assert seen == ["none"] * 3


@pytest.mark.parametrize("mixed", [False, True], ids=["loop", "bridge"])
def test_a_context_variable_of_one_run_is_not_seen_by_the_next_in_a_loop(client, mixed):
    @client.job(queue="q", keep_result=60)
    async def handle() -> str:
        await asyncio.sleep(0)
        return see_and_set()

    if mixed:

        @client.job(queue="q")
        def other() -> None: ...

    with working(client):
        assert [handle.put().result(30) for _ in range(3)] == ["none"] * 3


def test_the_handlers_of_a_loop_see_what_its_start_hook_has_set(client):
    @client.on_start
    async def name() -> AsyncIterator[None]:
        TENANT.set("of the hook")
        yield

    @client.job(queue="q", keep_result=60)
    async def handle() -> str:
        return see_and_set()

    with working(client):
        assert [handle.put().result(30) for _ in range(3)] == ["of the hook"] * 3


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_context_variable_of_one_batch_is_not_seen_by_the_next(client, kind):
    seen: list[str] = []
    if kind == "sync":

        @client.batch_handler("q", n=2)
        def handle(tasks: list[Any]) -> None:
            seen.append(see_and_set())
    else:

        @client.batch_handler("q", n=2)
        async def handle_async(tasks: list[Any]) -> None:
            seen.append(see_and_set())

    with working(client):
        for n in range(3):
            client.queue("q").put(n)
            eventually(lambda n=n: len(seen) == n + 1)  # type: ignore[misc]
    assert seen == ["none"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["see_and_set", "see_and_set_async"])
def test_a_context_variable_of_one_run_is_not_seen_by_the_next_in_a_process(dsn, monkeypatch, name):
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    monkeypatch.syspath_prepend(str(HELPERS))
    sys.modules.pop("crunch", None)
    module = importlib.import_module("crunch")
    try:
        with working(module.client):
            assert [getattr(module, name).put().result(30) for _ in range(3)] == ["none"] * 3
    finally:
        module.client.close()
        del sys.modules["crunch"]


def test_a_context_variable_of_one_run_is_not_seen_by_the_next_in_testing():
    client = pgqueue.Client("postgresql://")

    @client.job(queue="q", keep_result=60)
    def handle() -> str:
        return see_and_set()

    from pgqueue.testing import without_database

    with without_database(client) as tasks:
        for _ in range(3):
            handle.put()
        tasks.run()
    assert TENANT.get() == "none"
