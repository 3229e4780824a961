"""Timing single takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pgqueue

from . import conventional
from .bench import QUEUE


@contextmanager
def taker(dsn: str) -> Iterator[Callable[[int], float]]:
    """A function that puts n tasks, takes and acks them one by one, and returns the mean seconds of a take."""
    with pgqueue.Client(dsn) as client:
        queue = client.queue(QUEUE)

        def mean_take(n: int) -> float:
            queue.put_many(conventional.item(k) for k in range(n))
            spent = 0.0
            for _ in range(n):
                began = time.perf_counter()
                task = queue.take(timeout=0)
                spent += time.perf_counter() - began
                if task is None:
                    raise RuntimeError("a task that was put cannot be taken")
                task.ack()
            return spent / n

        mean_take(20)  # connects, and creates the queue
        yield mean_take
