"""without_database: what works in memory, and that no method of a client reaches a server."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import pgqueue
from pgqueue import AsyncClient, AsyncTask, Client, Task, TaskFailed
from pgqueue.errors import ResultUnknown, TaskCancelled
from pgqueue.testing import without_database

pytestmark = pytest.mark.once

NOWHERE = "postgresql://127.0.0.1:1/nowhere"

#: An argument for each required parameter of a public method, by its name.
GIVEN: dict[str, Any] = {
    "after": 0.1, "argument": "n", "by": 1, "channel": "c", "claim": 1, "claim_id": 1, "data": {"n": 1}, "day": "x",
    "exchange": "e", "function": lambda *given: None, "grace": 1.0, "group": "g", "id": 1, "ids": [1], "identity": None,
    "items": [{"n": 1}], "job": "j", "key": "k", "keys": ["k"], "kind": "fanout", "limit": 1, "message": "m", "n": 1,
    "name": "x", "names": ["q"], "new": "y", "new_name": "y", "options": {}, "parent": "/", "path": "/a",
    "payload": "p", "put": 1, "puts": [pgqueue.Put("q", 1)], "queue": "q", "queues": ["q"], "role": "r",
    "routing_key": "r", "shell": None,
    "source": "s", "state": "ready", "status": 1, "target": "q", "task": 1, "tasks": [1], "text": "t", "then": [],
    "timeout": 0, "to": "q", "ttl": 60, "type": "fanout", "until": "u", "value": 1, "verb": "put", "verbs": ["put"],
    "version": 1, "callback": print, "actor": "a",
    "cron": "* * * * *", "what": "w", "at": None, "delta": 1, "seconds": 1, "ttr": 60, "member": "m", "error": "e",
}  # fmt: skip
LOCAL = {"over", "close", "share_jobs", "at"}  # they do no I/O, and need or end the client


class Outside:
    """A server that answers nothing. Any connection to it is a leak."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.dsn = f"postgresql://127.0.0.1:{self._socket.getsockname()[1]}/nowhere"

    def visited(self) -> bool:
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def outside() -> Iterator[Outside]:
    made = Outside()
    yield made
    made.close()


def families(client: Any) -> dict[str, Any]:
    """The client, what it has of families, and what its methods make without I/O."""
    found = {"client": client, "queue": client.queue("q"), "lock": client.lock("x"), "channels": client}
    for name, value in vars(client).items():
        if type(value).__module__.startswith(("pgqueue._sync", "pgqueue._async")) and hasattr(value, "_shell"):
            found[name] = value
    for name in ("messages", "statuses"):
        if hasattr(found["queue"], name):
            found[f"queue.{name}"] = getattr(found["queue"], name)
    return found


def methods(client: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for family, found in families(client).items():
        for name, _ in inspect.getmembers(type(found), callable):
            if not name.startswith("_") and name not in LOCAL:
                yield f"{family}.{name}", getattr(found, name)


def given(method: Callable[..., Any]) -> list[Any]:
    """Arguments for its required parameters. A parameter without one belongs into GIVEN."""
    required = [
        one
        for one in inspect.signature(method).parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    return [GIVEN[one.name] for one in required]


async def awaited(found: Any) -> None:
    if inspect.isawaitable(found):
        found = await found
    if hasattr(found, "__aenter__"):
        async with found:
            pass
    elif hasattr(found, "__aiter__"):
        async for _ in found:
            break


def used(found: Any) -> None:
    if hasattr(found, "__enter__"):
        with found:
            pass
    elif inspect.isgenerator(found):
        next(found, None)


REFUSED = (RuntimeError, ValueError, TimeoutError, pgqueue.Error)


def test_no_method_of_a_client_leaves_the_block(outside: Outside):
    client, left, strange = Client(outside.dsn, connect_timeout=0.2), [], []
    with without_database(client):
        for name, method in methods(client):
            try:
                used(method(*given(method)))
            except REFUSED:
                pass
            except Exception as error:
                strange.append((name, error))
            if outside.visited():
                left.append(name)
    assert (left, strange) == ([], [])


def test_no_method_of_an_async_client_leaves_the_block(outside: Outside):
    left, strange = [], []

    async def use() -> None:
        client = AsyncClient(outside.dsn, connect_timeout=0.2)
        with without_database(client):
            for name, method in methods(client):
                try:
                    async with asyncio.timeout(5):
                        await awaited(method(*given(method)))
                except REFUSED:
                    pass
                except Exception as error:
                    strange.append((name, error))
                if outside.visited():
                    left.append(name)

    asyncio.run(use())
    assert (left, strange) == ([], [])


@pytest.mark.slow
def test_the_outside_sees_a_client_without_the_block(outside: Outside):
    with pytest.raises(pgqueue.Error):
        Client(outside.dsn, connect_timeout=0.2).queue("q").put(1)
    assert outside.visited()


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda client: client.batch([]).open(), "create_batch needs a database, .* use pgqueue.testing.drain"),
        (lambda client: client.queue("q").take(0), "needs a database|nothing comes while it waits"),
        (lambda client: client.schedules.set("x", "* * * * *", "q"), r"declare the schedule by client.cron\(\)"),
        (lambda client: client.put_graph([pgqueue.Put("q", 1)]), "put the tasks one by one, each with after="),
        (lambda client: pgqueue.Worker(client).run(), "needs a database"),
        (lambda client: client.dsn(), "needs a database"),
    ],
)
def test_what_memory_has_not_says_what_to_use(use: Callable[[Client], Any], said: str):
    client = Client(NOWHERE)
    client.job("q", name="job")(lambda: None)
    with without_database(client), pytest.raises(RuntimeError, match=said):
        use(client)


def test_after_the_block_the_client_is_as_before():
    client = Client(NOWHERE, connect_timeout=0.2)
    before = {name: getattr(client.shell, name) for name in ("run", "connections", "together")}
    with without_database(client):
        client.queue("q").put(1)
    assert {name: getattr(client.shell, name) for name in before} == before
    with pytest.raises(pgqueue.Error):
        client.queue("q").put(1)


def test_a_result_may_be_none():
    client = Client(NOWHERE)
    nothing = client.job("q", keep_result=60)(lambda: None)
    with without_database(client) as tasks:
        task = nothing.put()
        tasks.run()
        assert (task.result(0), task.outcome().has_result) == (None, True)


def test_results_are_found_as_after_a_worker():
    client = Client(NOWHERE)

    @client.job("q", keep_result=60, retry=pgqueue.Retry(attempts=1))
    def halve(task: Task, n: int) -> int:
        task.progress(n)
        if n % 2:
            raise ValueError("odd")
        return n // 2

    @client.job("q")
    def forget() -> None: ...

    with without_database(client, propagate=False) as tasks:
        even, odd, forgotten, cancelled = halve.put(4), halve.put(3), forget.put(), halve.put(6)
        with pytest.raises(TimeoutError):
            even.result(0)
        with pytest.raises(RuntimeError, match=r"Run the tasks first, by tasks\.run"):
            even.result()
        assert cancelled.cancel("no need") == "cancelled"
        tasks.run()
        assert (even.result(), even.outcome().progress, even.outcome().state) == (2, 4, "done")
        with pytest.raises(TaskFailed, match="ValueError: odd"):
            odd.result(0)
        with pytest.raises(ResultUnknown):
            forgotten.result(0)
        with pytest.raises(TaskCancelled, match="no need"):
            cancelled.result(0)
        assert client.cancel_many([even, 99]) == {even.id: "done", 99: "unknown"}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_steps_and_cancelling_work_in_a_handler(kind: str):
    client, charged = Client(NOWHERE), []
    policy: Any = {"keep_result": 60, "retry": pgqueue.Retry(delay=0, jitter=False)}
    if kind == "sync":

        @client.job("q", **policy)
        def ship(task: Task, cancels: bool) -> Any:
            receipt = task.step("charge", lambda: charged.append(1) or len(charged))
            if cancels:
                client.cancel(task, "sold out")
                return [bool(task.cancelled), task.cancelled.reason, task.cancelled.wait(0)]
            if task.attempts == 0:
                raise OSError
            return receipt
    else:

        @client.job("q", **policy)
        async def ship(task: AsyncTask, cancels: bool) -> Any:
            async def charge() -> int:
                charged.append(1)
                return len(charged)

            receipt = await task.step("charge", charge)
            if cancels:
                await task.cancel("sold out")
                return [bool(task.cancelled), task.cancelled.reason, await task.cancelled.wait(0)]
            if task.attempts == 0:
                raise OSError
            return receipt

    with without_database(client) as tasks:
        shipped, sold_out = ship.put(False), ship.put(True)
        tasks.run()
        assert shipped.result(0) == 1
        assert sold_out.result(0) == [True, "sold out", True]
        assert len(charged) == 2


def test_a_handler_that_fails_after_a_cancel_ends_its_task_as_cancelled():
    client = Client(NOWHERE)

    @client.job("q")
    def leave(task: Task) -> None:
        task.cancel("not needed")
        raise OSError

    with without_database(client) as tasks:
        task = leave.put()
        tasks.run()
        assert (tasks.of(task).state, task.outcome().error) == ("cancelled", "not needed")


@pytest.mark.parametrize(("on_failure", "state"), [("wait", "waiting"), ("run", "done"), ("bury", "buried")])
def test_a_task_waits_for_others(on_failure: Any, state: str):
    client, ran = Client(NOWHERE), list[Any]()

    @client.job("q", keep_result=60, retry=pgqueue.Retry(attempts=2, delay=5, jitter=False))
    def part(n: int) -> int:
        if n < 0:
            raise ValueError(n)
        return n

    @client.job("q")
    def whole(task: Task) -> None:
        ran.append([(one.state, one.result) for one in task.results()])

    with without_database(client, propagate=False) as tasks:
        good = whole.options(after=[part.put(1), part.options(delay=timedelta(hours=1)).put(2)]).put()
        bad = whole.options(after=[part.put(-1)], on_failure=on_failure).put()
        tasks.run()
        assert (good.state, tasks.of(good).state, tasks.of(bad).state) == ("waiting", "waiting", "waiting")
        tasks.run_all()
        assert tasks.of(bad).state == state
        assert [("done", 1), ("done", 2)] in ran
        assert ([("failed", None)] in ran) == (on_failure == "run")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_plain_handlers_run_what_was_put_into_their_queue(kind: str):
    client, seen = Client(NOWHERE), []
    made_before = client.queue("q")
    if kind == "sync":

        @client.handler("q", keep_result=60)
        def handle(data: Any) -> int:
            seen.append(data)
            return len(seen)
    else:

        @client.handler("q", keep_result=60)
        async def handle_async(data: Any) -> int:
            seen.append(data)
            return len(seen)

    with without_database(client) as tasks:
        first = made_before.put({"n": 1}, key="k")
        assert made_before.put({"n": 2}, key="k").existed
        client.queue("q").put({"n": 3}, delay=60, unique_data=True)
        tasks.run_all()
        assert seen == [{"n": 1}, {"n": 3}]
        assert first.result(0) == 1
