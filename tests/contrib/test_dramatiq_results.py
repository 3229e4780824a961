"""The result backend of Dramatiq: what it stores and reads, and waiting."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import psycopg
import pytest
from dramatiq.results import ResultFailure, ResultMissing, Results, ResultTimeout
from eventually import eventually
from statements import column, rows, value

import pgqueue
from pgqueue.contrib.dramatiq import PgqueueBroker, PgqueueResultBackend

pytestmark = pytest.mark.once

MESSAGE: Any = dramatiq.Message("default", "price", (7,), {}, {})


@pytest.fixture
def client(dsn: str) -> Iterator[pgqueue.Client]:
    with pgqueue.Client(dsn, poll=None) as client:
        yield client


@pytest.fixture
def backend(client: pgqueue.Client) -> PgqueueResultBackend:
    return PgqueueResultBackend(client=client)


@pytest.mark.parametrize("result", [None, 0, "", [1, {"a": "ü"}], {"float": 1e16, "text": "a\0b"}])
def test_a_result_comes_back_as_its_encoder_made_it(backend: PgqueueResultBackend, result: Any) -> None:
    backend.store_result(MESSAGE, result, 60_000)
    for read in (backend.get_result(MESSAGE), backend.get_result(MESSAGE, block=True)):
        assert repr(read) == repr(result)  # 1e16 == 10**16


def test_bytes_of_another_encoder_survive(client: pgqueue.Client) -> None:
    backend = PgqueueResultBackend(client=client, encoder=dramatiq.PickleEncoder())
    backend.store_result(MESSAGE, {b"\0\xff"}, 60_000)
    assert backend.get_result(MESSAGE) == {b"\0\xff"}


def test_a_result_is_a_status_for_its_time(backend: PgqueueResultBackend, db: psycopg.Connection) -> None:
    backend.store_result(MESSAGE, {"total": 7}, 60_000)
    seen = "SELECT (value->>'text')::json->>'total', extract(epoch FROM expires_at - updated_at) FROM pgqueue.statuses"
    assert rows(db, f"{seen} WHERE key LIKE 'dramatiq-results:%%'") == [("7", 60)]


@pytest.mark.parametrize("namespace", ["shop", "s" * 300])
def test_readable_keys(client: pgqueue.Client, db: psycopg.Connection, namespace: str) -> None:
    backend = PgqueueResultBackend(client=client, namespace=namespace, use_namespace_prefix_keys=True)
    backend.store_result(MESSAGE, 7, 60_000)
    assert backend.get_result(MESSAGE) == 7
    key = value(db, "SELECT key FROM pgqueue.statuses")
    assert key == f"shop:default:price:{MESSAGE.message_id}" if namespace == "shop" else len(key) == 32


def test_a_missing_result(backend: PgqueueResultBackend) -> None:
    with pytest.raises(ResultMissing):
        backend.get_result(MESSAGE)
    with pytest.raises(ResultTimeout):
        backend.get_result(MESSAGE, block=True, timeout=10)


def test_an_expired_result_is_missing(backend: PgqueueResultBackend) -> None:
    backend.store_result(MESSAGE, 7, 0)

    def missing() -> bool:
        with contextlib.suppress(ResultMissing):
            backend.get_result(MESSAGE)
            return False
        return True

    eventually(missing)


def test_a_failure(backend: PgqueueResultBackend) -> None:
    backend.store_exception(MESSAGE, ValueError("no such page"), 60_000)
    with pytest.raises(ResultFailure, match="actor raised ValueError: no such page"):
        backend.get_result(MESSAGE, block=True)


def test_a_waiting_call_is_woken(backend: PgqueueResultBackend) -> None:
    """Nothing polls: the client's own poll is off."""
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(backend.get_result(MESSAGE, block=True, timeout=30_000)))
    waiting.start()
    eventually(lambda: backend.client.shell.core.running_listener)
    backend.store_result(MESSAGE, 7, 60_000)
    waiting.join(30)
    assert got == [7]


def test_results_of_a_worker_and_of_pipelines_and_groups(
    dsn: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(PgqueueBroker(url=dsn, poll=None)) as broker:
        backend = PgqueueResultBackend(client=broker.client)
        broker.add_middleware(Results(backend=backend, store_results=True))
        monkeypatch.setattr(dramatiq.broker, "global_broker", broker)  # pipelines take its results from there

        @dramatiq.actor(broker=broker, max_retries=0)
        def divide(a: int, b: int) -> float:
            return a / b

        worker = dramatiq.Worker(broker, worker_threads=2, worker_timeout=100)
        worker.start()
        try:
            pipe = dramatiq.pipeline([divide.message(8, 2), divide.message_with_options(args=(2,), pipe_ignore=False)])
            assert pipe.run().get_result(block=True, timeout=30_000) == 0.5
            group = dramatiq.group([divide.message(n, 2) for n in range(4)], broker=broker).run()
            assert list(group.get_results(block=True, timeout=30_000)) == [0, 0.5, 1, 1.5]
            with pytest.raises(ResultFailure, match="ZeroDivisionError"):
                divide.send(1, 0).get_result(backend=backend, block=True, timeout=30_000)
        finally:
            worker.stop()
    assert column(db, "SELECT queue FROM pgqueue.tasks") == ["default.XQ"]


def test_a_result_of_megabytes_is_kept(dsn: str) -> None:
    backend = PgqueueResultBackend(url=dsn)
    with contextlib.closing(backend.client):
        backend.store_result(MESSAGE, "x" * (3 << 20), 60_000)
        assert len(backend.get_result(MESSAGE)) == 3 << 20


def test_a_result_that_is_too_large(make_small: Callable[[], PgqueueResultBackend]) -> None:
    with pytest.raises(pgqueue.BadData, match="1000"):
        make_small().store_result(MESSAGE, "x" * 1000, 60_000)


@pytest.fixture
def make_small(dsn: str) -> Iterator[Callable[[], PgqueueResultBackend]]:
    with contextlib.ExitStack() as stack:

        def made() -> PgqueueResultBackend:
            backend = PgqueueResultBackend(url=dsn, max_data_size=1000)
            stack.callback(backend.client.close)
            return backend

        yield made


def test_a_client_beside_a_url(client: pgqueue.Client) -> None:
    with pytest.raises(ValueError, match="a client was given"):
        PgqueueResultBackend(client=client, url="postgresql://127.0.0.1/shop")
