"""The statements of a task, counted.

one by one   put, take and ack of many tasks, each by itself, and in turn
in batches   put_many, take_many and ack_many of 100
pick-up      one put after the other, each for a take that waits
worker       which begins with all tasks there, so that less depends on the time: its takes and acks alone
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from .costs import (
    BATCH,
    BATCHES,
    CLIENT,
    CLUSTER_1,
    CLUSTER_3,
    LIMIT,
    QUEUE,
    SINGLES,
    Contender,
    Handled,
    contender,
    in_batches,
    one_by_one,
    settled,
    working,
)
from .servers import One, Sent, calls, counted

PICKS, DRAINED = 21, 12_000
TASKS = {
    "put": SINGLES,
    "take": SINGLES,
    "ack": SINGLES,
    "put, take, ack in turn": SINGLES,
    "in batches": 3 * BATCHES * BATCH,
    "worker": DRAINED,
    "pick-up": PICKS,
}


def measured(servers: Sequence[One]) -> dict[str, dict[str, Counter[str]]]:
    """Of all tasks of a kind of work, by that and by contender."""
    found: dict[str, dict[str, Counter[str]]] = {}
    for name in (CLIENT, CLUSTER_1, CLUSTER_3):
        with contender(servers, name, counted) as one:

            def count(verb: str, work: Callable[[], object], one: Contender = one, name: str = name) -> None:
                sent = Sent(one.servers)
                work()
                found.setdefault(verb, {})[name] = sent.read().get(one.database, Counter())

            one_by_one(one.client, 6, lambda verb: None)  # connects to each server
            _count_calls(one, count)
            count("worker", lambda: _drained(one))
    return found


def _drained(one: Contender) -> None:
    queue: Any = one.client.queue(QUEUE)
    for _ in range(DRAINED // BATCH):
        queue.put_many(range(BATCH))
    handled = Handled()
    handled.expect(DRAINED)
    with working(one.client, handled):
        handled.wait()
        settled(one)


def _count_calls(one: Contender, count: Callable[[str, Callable[[], object]], None]) -> None:
    queue: Any = one.client.queue(QUEUE)
    tasks: list[Any] = []
    count("put", lambda: [queue.put(i) for i in range(SINGLES)])
    count("take", lambda: tasks.extend(queue.take(0) for _ in range(SINGLES)))
    count("ack", lambda: [task.ack() for task in tasks])
    count("put, take, ack in turn", lambda: [(queue.put(i), queue.take(0).ack()) for i in range(SINGLES)])
    count("in batches", lambda: in_batches(one.client, 3 * BATCHES))
    count("pick-up", lambda: _picked_up(one))


def _picked_up(one: Contender) -> None:
    """Put each task once a take waits at all servers, in a thread that goes on taking."""
    queue: Any = one.client.queue(QUEUE)
    sent = Sent(one.servers)
    taker = threading.Thread(target=lambda: [queue.take(LIMIT).ack() for _ in range(PICKS)])
    taker.start()
    for i in range(PICKS):
        deadline = time.monotonic() + LIMIT
        while sent.read().get(one.database, Counter())["next_due"] < (i + 1) * len(one.servers):
            if time.monotonic() > deadline:
                raise TimeoutError("the take does not wait")
            time.sleep(0.005)
        queue.put(i)
    taker.join()


#: Of these works other statements depend on the time: a channel stays armed for 5 ms, and the worker has just begun.
COUNTED = {"worker": ("take_many", "next_due", "ack_many"), "pick-up": ("put", "take", "next_due", "ack")}


def per_task(verb: str, found: Counter[str]) -> float:
    sent = sum(found[name] for name in COUNTED[verb]) if verb in COUNTED else calls(found)
    return sent / TASKS[verb]
