"""The processes of the load, over `Cluster.from_server`. A control beats beside them.

A handler acks its task itself, so that the journal has each ack. If the ack fails, so does the handler: one that tried
again until its server is back would keep a thread from the tasks of the other servers.
"""

from __future__ import annotations

import os
import time
from itertools import count, cycle

import pgqueue

from ..programs import Role
from ..programs.work import LANES, TTR, Work

WORK, LATER = "work", "later"
N_LANES = 12
DELAYED = 5  # one put of so many has a delay, so that a server that drains has tasks to move
DELAY = 4.0  # seconds
LANE_DELAY = 0.5  # seconds
BEAT = 0.02  # seconds


def cluster(work: Work) -> pgqueue.Cluster:
    return pgqueue.Cluster.from_server(work.dsn)


def without_place(work: Work) -> None:
    with cluster(work) as made:
        numbers = count()

        def step() -> None:
            later = next(numbers) % DELAYED == 0
            queue, labels = made.queue(LATER if later else WORK), work.labels()
            with work.putting(queue.name, labels) as ids:
                task = queue.put({"label": labels[0]}, ttr=TTR, delay=DELAY if later else 0)
                assert task is not None
                ids.append(task.id)
            work.rest()

        work.repeat(step)


def in_lanes(work: Work) -> None:
    """The lane is the place: its server gets the task, or none.

    A task with a delay is journaled without its lane: others of the lane may be first until it is due.
    """
    with cluster(work) as made:
        queue, lanes, numbers = made.queue(LANES), cycle([f"lane {n}" for n in range(N_LANES)]), count()

        def step() -> None:
            lane, labels, delayed = next(lanes), work.labels(), next(numbers) % DELAYED == 0
            with work.putting(queue.name, labels, None if delayed else lane) as ids:
                delay = LANE_DELAY if delayed else 0
                task = queue.put({"label": labels[0]}, ttr=TTR, lane=lane, delay=delay)
                assert task is not None
                ids.append(task.id)
            work.rest()

        work.repeat(step)


def worker(work: Work) -> None:
    with cluster(work) as made:

        def handle(data: object, task: pgqueue.Task) -> None:
            label = work.took(task)
            time.sleep(work.hold())
            with work.acking([label]):
                task.ack()

        handlers = dict.fromkeys((WORK, LATER, LANES), handle)
        pgqueue.Worker(made, handlers, concurrency=4, retry_delay=0.1).run()


def control(work: Work) -> None:
    """Beat, and write to the disk as a commit does."""
    file = os.open(work.path.with_suffix(".beat"), os.O_WRONLY | os.O_CREAT)
    while not work.over:
        time.sleep(BEAT)
        os.pwrite(file, b"beat", 0)
        os.fsync(file)
        work.journal.write("beat")


PRODUCERS = ("put-1", "put-2", "put-lanes")
WORKERS = ("worker-1", "worker-2")
CONTROL = "control"
ROLES: dict[str, Role] = {
    "put-1": without_place,
    "put-2": without_place,
    "put-lanes": in_lanes,
    "worker-1": worker,
    "worker-2": worker,
    CONTROL: control,
}
