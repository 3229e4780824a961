"""Which task the records of a handler name, in threads, in coroutines and outside."""

from __future__ import annotations

import asyncio
import contextvars
import io
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from eventually import eventually
from running import running

import pgqueue
from pgqueue import Worker
from pgqueue.contrib.logs import FIELDS, JsonFormatter, TaskFilter, current

pytestmark = pytest.mark.once

log = logging.getLogger("shop")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(TaskFilter())
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    log.setLevel(logging.INFO)
    yield stream
    root.removeHandler(handler)


def working(client: Any, **options: Any) -> AbstractContextManager[Worker]:
    return running(Worker(client, **options))


def lines(stream: io.StringIO, logger: str = "shop") -> dict[str, dict[str, Any]]:
    """By their message."""
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    return {line["message"]: line for line in found if line["logger"] == logger}


def run(client: pgqueue.Client, handler: Any, **options: Any) -> int:
    """Handle one task, and return its id."""
    client.handler("q")(handler)
    id = client.queue("q").put("ada").id
    with working(client, **options):
        eventually(lambda: client.queue("q").stats()["total"] == 0)
    return id


def test_records_of_a_handler_name_its_task(blocking: Callable[..., pgqueue.Client], stream: io.StringIO) -> None:
    client = blocking()

    def handle(data: str) -> None:
        log.info("hello %s", data, extra={"order": 17})
        logging.getLogger("a.library").warning("from below")

    id = run(client, handle)
    log.info("outside")
    found = lines(stream)
    known = {"task": id, "attempt": 1, "queue": "q", "worker": client.shell.core.label}
    assert found["hello ada"].items() >= (known | {"order": 17, "level": "INFO"}).items()
    assert lines(stream, "a.library")["from below"].items() >= known.items()
    assert not found["outside"].keys() & set(FIELDS)


def test_attempts_are_counted_and_tracebacks_kept(blocking: Callable[..., pgqueue.Client], stream: io.StringIO) -> None:
    def handle(data: str, task: pgqueue.Task) -> None:
        try:
            if task.attempts == 0:
                raise LookupError("not yet")
        except LookupError:
            log.exception("failed")
            raise
        log.info("done")

    run(blocking(), handle, retry_delay=0)
    found = lines(stream)
    assert (found["failed"]["attempt"], found["done"]["attempt"]) == (1, 2)
    assert "LookupError: not yet" in found["failed"]["exception"]


def test_coroutines_do_not_mix_their_tasks(blocking: Callable[..., pgqueue.Client], stream: io.StringIO) -> None:
    client = blocking()

    async def handle(data: int, task: pgqueue.AsyncTask) -> None:
        for step in range(5):
            log.info("%s %s", task.id, step)
            await asyncio.sleep(0.001)
        await asyncio.gather(inner(task.id), asyncio.to_thread(log.info, "%s thread", task.id))

    async def inner(id: int) -> None:
        log.info("%s inner", id)

    client.handler("q")(handle)
    ids = client.queue("q").put_many(range(8))
    with working(client):
        eventually(lambda: client.queue("q").stats()["total"] == 0)
    found = lines(stream)
    assert len(found) == 8 * 7
    assert {message.split()[0] for message in found} == set(map(str, ids))
    assert all(line["task"] == int(message.split()[0]) for message, line in found.items())


def test_a_thread_of_a_handler_needs_its_context(blocking: Callable[..., pgqueue.Client], stream: io.StringIO) -> None:
    def handle(data: str) -> None:
        for target in (log.info, contextvars.copy_context().run):
            args = ("alone",) if target == log.info else (log.info, "with context")
            thread = threading.Thread(target=target, args=args)
            thread.start()
            thread.join()

    id = run(blocking(), handle)
    found = lines(stream)
    assert found["with context"]["task"] == id
    assert "task" not in found["alone"]


def test_a_name_can_be_given_and_extra_wins() -> None:
    record = logging.makeLogRecord({"msg": "x", "queue": "own"})
    TaskFilter("worker 1").filter(record)
    assert record.__dict__["queue"] == "own"
    assert record.__dict__["worker"] is None, "outside of a handler"
    assert current() == dict.fromkeys(FIELDS)
    assert json.loads(JsonFormatter().format(record)).keys() == {"time", "level", "logger", "message", "queue"}
