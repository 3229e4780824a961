"""Puts from several threads at once, and is interrupted, or forks, while they wait.

putting_together.py DSN interrupt|fork
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time

import psycopg

import pgqueue

OTHERS = 5


def tell(word: str) -> None:
    print(json.dumps(word) + "\n", end="", flush=True)  # in one piece: the child prints too


def put(queue: pgqueue.Queue, number: int) -> None:
    with contextlib.suppress(psycopg.errors.QueryCanceled):
        queue.put(number)


def gather(client: pgqueue.Client, queue: pgqueue.Queue) -> list[threading.Thread]:
    """Threads that put, all but two of them waiting for the two."""
    threads = [threading.Thread(target=put, args=(queue, number)) for number in range(OTHERS)]
    for count, thread in enumerate(threads, 1):
        thread.start()
        wait_for(client, max(0, count - 2))
    return threads


def wait_for(client: pgqueue.Client, number: int) -> None:
    gatherings = client.shell.together._home[1]
    end = time.monotonic() + 20
    while time.monotonic() < end and sum(len(gathering.waiting) for gathering in gatherings._known.values()) != number:
        time.sleep(0.005)


def interrupt(client: pgqueue.Client, queue: pgqueue.Queue) -> None:
    threads = gather(client, queue)

    def watch() -> None:
        wait_for(client, OTHERS - 1)
        tell("gathered")

    threads.append(threading.Thread(target=watch))
    threads[-1].start()
    try:
        queue.put("main")
    except KeyboardInterrupt:
        tell("interrupted")
    for thread in threads:
        thread.join()
    tell("ended")


def fork(client: pgqueue.Client, queue: pgqueue.Queue) -> None:
    queue.put("before")
    with psycopg.connect(sys.argv[1]) as holder:
        holder.execute("LOCK TABLE pgqueue.task IN EXCLUSIVE MODE")
        threads = gather(client, queue)
        if (child := os.fork()) == 0:
            states: list[str] = []
            inside = [threading.Thread(target=lambda: states.append(queue.put("child").state)) for _ in range(OTHERS)]
            for thread in inside:
                thread.start()
            for thread in inside:
                thread.join()
            assert states == ["ready"] * OTHERS
            tell("child")
            os._exit(0)
        holder.rollback()
        for thread in threads:
            thread.join()
        os.waitpid(child, 0)
        tell("parent")


with pgqueue.Client(sys.argv[1]) as client:
    {"interrupt": interrupt, "fork": fork}[sys.argv[2]](client, client.queue("q"))
