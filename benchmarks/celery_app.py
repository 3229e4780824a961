"""The application of Celery that measures/celery.py has workers of: `celery -A benchmarks.celery_app worker`.

BENCH_URL is its broker and its result backend, BENCH_RUNS the file to which each run of `count` adds a byte.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

app = Celery("bench", broker=os.environ["BENCH_URL"], backend=os.environ["BENCH_URL"])
app.conf.broker_connection_retry_on_startup = True

_runs = os.open(os.environ["BENCH_RUNS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def count(data: dict[str, Any]) -> None:
    os.write(_runs, b".")


def add(one: int, other: int) -> int:
    return one + other


def total(numbers: list[int]) -> int:
    return sum(numbers)


for function in (count, add, total):
    app.task(name=f"bench.{function.__name__}")(function)
