"""An application of Celery for tests: its broker and result backend are named by the environment.

Its tasks are not shared: each test process imports it several times, and other applications would get those of all.
"""

from __future__ import annotations

import os
import sys
import time

import redis
from celery import Celery

BROKER = os.environ["SHOP_BROKER"]

app = Celery("celery_shop", broker=BROKER, backend=os.environ["SHOP_BACKEND"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    task_acks_late=True,  # a worker that runs a member of a chord does not hold another one back
    task_store_errors_even_if_ignored=True,
    result_extended=True,
)
store = redis.Redis.from_url(BROKER)


@app.task(shared=False)
def add(x, y):
    return x + y


@app.task(shared=False)
def large(size):
    return "x" * size


@app.task(shared=False)
def broken(error):
    raise ValueError(error)


@app.task(shared=False, ignore_result=True)
def ignored(n):
    if n < 0:
        raise KeyError(n)
    return n


@app.task(shared=False, bind=True)
def progressing(self):
    self.update_state(state="PROGRESS", meta={"percent": 50})
    while not store.get("go on"):
        time.sleep(0.01)
    return "done"


@app.task(shared=False)
def meet(name, others, n, fails=False):
    """End at the same moment as the other members of the chord, in other processes."""
    store.incr(name)
    deadline = time.monotonic() + 30
    while int(store.get(name)) < others:
        assert time.monotonic() < deadline
    if fails:
        raise ValueError(n)
    return n


@app.task(shared=False)
def body(results, name):
    store.rpush(f"bodies of {name}", len(results))
    return sum(results)


@app.task(shared=False)
def failed(request, exc, traceback):
    store.rpush("errors", str(exc))


if __name__ == "__main__":  # a client that waits
    print('"waiting"', flush=True)
    print(app.AsyncResult(sys.argv[1]).get(timeout=60), flush=True)
