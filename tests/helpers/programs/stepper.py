"""Takes tasks and handles each in five steps, for as long as its input is open; it is meant to be killed.

    stepper.py DSN QUEUE

Each step says in a table `ran(task_id, step, at, joined)` that it runs: the steps "a", "b" and "c" in a transaction of
their own, "d" and "e" in the transaction of their record. Before the ack all records of the task are copied to
`recorded(task_id, step, at)`. The first line is {"ready": pid}; then {"done": id} for each task.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial

import psycopg

import pgqueue


def runs(conn: psycopg.Connection, id: int, step: str, joined: bool) -> Callable[[], str]:
    def run() -> str:
        conn.execute("INSERT INTO ran VALUES (%s, %s, clock_timestamp(), %s)", [id, step, joined])
        return f"{step} of {id}"

    return run


def handle(conn: psycopg.Connection, task: pgqueue.Task) -> None:
    for step in "abc":
        assert task.step(step, runs(conn, task.id, step, joined=False)) == f"{step} of {task.id}"
    for step in "de":
        with conn.transaction():
            task.step(step, runs(conn, task.id, step, joined=True), conn=conn)
    with conn.transaction():
        conn.execute("INSERT INTO recorded SELECT id, step, recorded_at FROM pgqueue.steps WHERE id = %s", [task.id])
        task.ack(conn=conn)


def main(dsn: str, name: str) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    say = partial(print, flush=True)
    with pgqueue.Client(dsn, poll=None, session_grace=0) as client, psycopg.connect(dsn, autocommit=True) as conn:
        say(json.dumps({"ready": os.getpid()}))
        while not ended.is_set():
            if (task := client.queue(name).take(timeout=0.5)) is not None:
                handle(conn, task)
                say(json.dumps({"done": task.id}))


if __name__ == "__main__":
    main(*sys.argv[1:])
