"""Fixtures of the tests of jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pgqueue
from pgqueue import Worker

Work = Callable[..., Worker]


@pytest.fixture
def client(blocking: Callable[..., pgqueue.Client]) -> pgqueue.Client:
    return blocking()


@pytest.fixture
def work(client: pgqueue.Client) -> Iterator[Work]:
    """Runs workers of the client in threads until the end of the test."""
    running: list[tuple[Worker, threading.Thread]] = []

    def start(**options: Any) -> Worker:
        worker = Worker(client, **({"concurrency": 2, "retry_delay": 0.01} | options))
        thread = threading.Thread(target=worker.run)
        thread.start()
        running.append((worker, thread))
        return worker

    yield start
    for worker, thread in running:
        worker.stop()
        thread.join(30)
        assert not thread.is_alive()
