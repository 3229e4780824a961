"""What the client of measures/celery.py does, in a process of its own, by the names of these functions."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from celery import Celery, chord

from . import conventional

PATIENCE = 60  # seconds for a result


def serve(pipe: Connection, url: str) -> None:
    """Answer each (function, number) with the seconds by the clock, and of this process's CPU time."""
    app = Celery("bench", broker=url, backend=url)
    pipe.send("up")
    while True:
        name, n = pipe.recv()
        began, cpu = time.perf_counter(), time.process_time()
        DOES[name](app, n)
        pipe.send((time.perf_counter() - began, time.process_time() - cpu))


def put(app: Any, n: int) -> None:
    task, data = app.signature("bench.count"), conventional.item(7)
    for _ in range(n):
        task.apply_async((data,))


def get(app: Any, n: int) -> None:
    task = app.signature("bench.add")
    for number in range(n):
        if task.delay(number, 1).get(timeout=PATIENCE) != number + 1:
            raise RuntimeError("a result is wrong")


def chords(app: Any, n: int) -> None:
    """n members in chords of 100."""
    task, total = app.signature("bench.add"), app.signature("bench.total")
    for _ in range(n // 100):
        if chord(task.clone((number, 1)) for number in range(100))(total).get(timeout=PATIENCE) != 5050:
            raise RuntimeError("a result is wrong")


DOES: dict[str, Callable[[Any, int], None]] = {"put": put, "get": get, "chords": chords}
