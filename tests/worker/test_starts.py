"""Hooks of workers: what they yield, when they begin and end, in which process and loop, and what their failures do."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from running import running

import pgqueue
from pgqueue import Worker
from pgqueue.errors import Error

pytestmark = pytest.mark.once


@pytest.fixture
def client(blocking: Callable[..., pgqueue.Client]) -> pgqueue.Client:
    return blocking()


def working(client: pgqueue.Client, **options: Any) -> AbstractContextManager[Worker]:
    return running(Worker(client, **({"retry_delay": 0, "grace": 5} | options)))


def test_a_hook_begins_before_the_first_task_and_ends_after_the_last(client):
    seen: list[Any] = []

    @client.on_start
    def first() -> Iterator[str]:
        seen.append("first begins")
        yield "one"
        seen.append("first ends")

    @client.on_start
    def second() -> Iterator[str]:
        seen.append("second begins")
        yield first() + " and two"
        seen.append("second ends")

    @client.job(queue="q", keep_result=60)
    def handle() -> str:
        seen.append("a task")
        return second()

    with working(client):
        assert handle.put().result(30) == "one and two"
    assert seen == ["first begins", "second begins", "a task", "second ends", "first ends"]
    with pytest.raises(RuntimeError, match=r"second has not begun: a worker begins it; elsewhere use `with "):
        second()
    with first.started() as value:
        assert (value, first()) == ("one", "one")


@pytest.mark.parametrize("mixed", [False, True], ids=["loop", "bridge"])
def test_an_async_hook_begins_in_the_loop_of_its_jobs(client, mixed):
    seen: list[Any] = []

    @client.on_start
    async def session() -> AsyncIterator[Any]:
        loop = asyncio.get_running_loop()
        seen.append("begins")
        yield loop
        assert asyncio.get_running_loop() is loop
        seen.append("ends")

    @client.job(queue="q", keep_result=60)
    async def handle() -> bool:
        return session() is asyncio.get_running_loop()

    if mixed:
        client.job(queue="q")(print_nothing)
    with working(client):
        assert handle.put().result(30) is True
        assert handle.put().result(30) is True
    assert seen == ["begins", "ends"]


def print_nothing() -> None: ...


def test_two_workers_of_a_process_and_a_reload_begin_a_hook_once(client):
    seen: list[str] = []

    @client.on_start
    def counted() -> Iterator[int]:
        seen.append("begins")
        yield 1
        seen.append("ends")

    @client.job(queue="q", keep_result=60)
    def handle() -> int:
        return counted()

    with working(client) as one, working(client):
        assert handle.put().result(30) == 1
        shift = one._present
        one.reload()
        eventually(lambda: one._present is not shift)
        assert handle.put().result(30) == 1
    assert seen == ["begins", "ends"]


def fails_at_start() -> Iterator[None]:
    raise OSError("no pool")
    yield


def leaves_at_start() -> Iterator[None]:
    sys.exit("no licence")
    yield


def does_not_yield() -> Iterator[None]:
    yield from ()


def fails_at_end() -> Iterator[None]:
    yield
    raise OSError("not closed")


def yields_twice() -> Iterator[None]:
    yield
    yield


async def fails_in_loop() -> AsyncIterator[None]:
    raise OSError("no session")
    yield


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (fails_at_start, "the start hook fails_at_start failed: OSError: no pool"),
        (leaves_at_start, "the start hook leaves_at_start failed: SystemExit: no licence"),
        (does_not_yield, "the start hook does_not_yield failed: RuntimeError: it does not yield"),
        (fails_at_end, "the start hook fails_at_end failed at its end: OSError: not closed"),
        (yields_twice, "the start hook yields_twice failed at its end: RuntimeError: it yields twice"),
        (fails_in_loop, "the start hook fails_in_loop failed: OSError: no session"),
    ],
)
def test_a_hook_that_fails_ends_the_worker_with_its_name(client, hook, said):
    ended: list[str] = []

    @client.on_start
    def before() -> Iterator[None]:
        yield
        ended.append("before")

    client.on_start(hook)

    @client.job(queue="q")
    async def handle() -> None: ...

    worker = Worker(client, grace=5)
    if "at_end" in hook.__name__ or "twice" in hook.__name__:
        worker.stop()
    with pytest.raises(Error) as caught:
        worker.run()
    assert str(caught.value).replace(f"{__name__}.", "") == said
    assert ended == ["before"]
    assert client.state() == "running"


@pytest.mark.parametrize("wrong", [print_nothing, lambda: 7, "x", lambda given: (yield given)])
def test_what_is_no_hook_is_refused(client, wrong):
    with pytest.raises(ValueError, match="on_start"):
        client.on_start(wrong)


HOOKED = """
    import os, pathlib
    import pgqueue

    client = pgqueue.Client()
    log = pathlib.Path({folder!r})

    @client.on_start
    def model():
        (log / f"begun-{{os.getpid()}}").touch()
        yield [os.getpid()]
        (log / f"ended-{{os.getpid()}}").touch()

    @client.on_start
    async def session():
        yield "session"

    @client.job(queue="q", isolation="process", keep_result=60)
    def sync():
        return model()

    @client.job(queue="q", isolation="process", keep_result=60)
    async def awaited():
        return [session(), *model()]
"""


@pytest.mark.slow
def test_a_hook_begins_in_each_child_process(dsn, tmp_path, monkeypatch):
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hooked.py").write_text(textwrap.dedent(HOOKED.format(folder=str(tmp_path))))
    hooked = importlib.import_module("hooked")
    try:
        with hooked.client as client, working(client, concurrency=1):
            (pid,) = hooked.sync.put().result(30)
            assert pid != os.getpid()
            assert hooked.awaited.put().result(30) == ["session", pid]
        assert {path.name for path in Path(tmp_path).glob("*-*")} == {
            *(f"{what}-{id}" for what in ("begun", "ended") for id in (pid, os.getpid()))
        }
    finally:
        del sys.modules["hooked"]
