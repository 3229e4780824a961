"""A worker is ready as long as its tasks are begun: not because its threads live."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator

import pytest
from eventually import eventually
from running import running

import pgqueue
from pgqueue import Worker
from pgqueue._calls.take import Taken
from pgqueue.worker import neglect
from pgqueue.worker.crew import Crew

pytestmark = pytest.mark.once


@pytest.fixture
def client(blocking: Callable[..., pgqueue.Client], monkeypatch: pytest.MonkeyPatch) -> pgqueue.Client:
    monkeypatch.setattr(neglect, "BOUND", 0.05)
    monkeypatch.setattr(neglect, "EVERY", 0.01)
    client = blocking()
    client.handler("q")(lambda data: None)
    client.handler("r")(lambda data: None)
    return client


@pytest.fixture
def queue(client: pgqueue.Client) -> pgqueue.Queue:
    return client.queue("q")


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The fetcher hangs, until this is set."""
    go, take = threading.Event(), Crew._take

    def hang(crew: Crew, queues: list[str], n: int, timeout: float | None) -> list[Taken]:
        go.wait(30)
        return take(crew, queues, n, timeout)

    monkeypatch.setattr(Crew, "_take", hang)
    yield go
    go.set()


@pytest.fixture
def worker(client: pgqueue.Client, stuck: threading.Event) -> Iterator[Worker]:
    with running(Worker(client, concurrency=1, grace=5)) as worker:
        yield worker
        stuck.set()


def test_a_worker_whose_fetcher_is_stuck_is_not_ready(queue, stuck, worker):
    eventually(lambda: worker.report() == (True, True, None))
    queue.put(1)
    live, ready, why = eventually(lambda: (found := worker.report()).ready is False and found)
    assert (live, ready) == (True, False)
    assert re.match(r"tasks of q have been ready for \d+ s, and its runners are idle", why)
    stuck.set()
    eventually(lambda: queue.stats()["total"] == 0)
    eventually(lambda: worker.report() == (True, True, None))


def test_a_worker_is_ready_while_its_queue_is_paused(queue, worker, monkeypatch):
    asked = threading.Event()
    ask = neglect.Neglect._ask

    def noted(self: neglect.Neglect, idle: list[Crew]) -> None:
        ask(self, idle)
        asked.set()

    monkeypatch.setattr(neglect.Neglect, "_ask", noted)
    queue.put(1, delay=60)  # makes the queue
    queue.pause(60)
    queue.put(2)
    for _ in range(3):
        asked.clear()
        assert eventually(lambda: worker.report().ready and asked.is_set())
    assert worker.report().ready
