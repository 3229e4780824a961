"""The functions that run in the taking processes, for Child. Each sends "up" once it is connected."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection

import psycopg

import pgqueue
from pgqueue.worker import Worker


def work(pipe: Connection, dsn: str, name: str) -> None:
    """Run a worker, from the start signal until the pipe is closed."""
    with pgqueue.Client(dsn) as client:
        client.queue("another").take(0)  # connects
        _run(pipe, Worker(client, {name: lambda data: None}))


def work_jobs(pipe: Connection, dsn: str, name: str) -> None:
    """The same with a job, whose arguments are an item of conventional.py."""
    with pgqueue.Client(dsn) as client:
        client.queue("another").take(0)  # connects

        @client.job(name, name="work")
        def work(to: str, n: int, text: str) -> None:
            pass

        _run(pipe, Worker(client))


def _run(pipe: Connection, worker: Worker) -> None:
    pipe.send("up")
    pipe.recv()
    threading.Thread(target=_stop_at_end, args=(pipe, worker), daemon=True).start()
    worker.run()


def _exit_at_end(pipe: Connection) -> None:
    """End this process when the pipe is closed, although its main thread waits for something else."""

    def watch() -> None:
        with suppress(EOFError, OSError):
            pipe.recv()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _stop_at_end(pipe: Connection, worker: Worker) -> None:
    with suppress(EOFError):
        pipe.recv()
    worker.stop()


def take_all(pipe: Connection, dsn: str, name: str, batch: int) -> None:
    """Take and ack until no task is left, then send a message."""
    with pgqueue.Client(dsn) as client:
        queue = client.queue(name)
        client.queue("another").take(0)  # connects
        pipe.send("up")
        pipe.recv()
        while tasks := queue.take_many(batch, timeout=0) or (
            queue.stats()["total"] and queue.take_many(batch, timeout=0.1)
        ):
            queue.ack_many(tasks)
        pipe.send("done")


def wait_for_each(pipe: Connection, dsn: str, name: str) -> None:
    """Wait for a task, send the time since its put, ack it, and repeat."""
    _exit_at_end(pipe)
    with pgqueue.Client(dsn) as client:
        queue = client.queue(name)
        queue.take(0)
        pipe.send("up")
        while True:
            task = queue.take(timeout=60)
            if task is None:
                return
            pipe.send(time.monotonic() - task.data)
            task.ack()


def listen_for_each(pipe: Connection, dsn: str) -> None:
    """The same with psycopg alone: LISTEN, and on a notification an UPDATE ... SKIP LOCKED."""
    _exit_at_end(pipe)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("LISTEN bare")
        pipe.send("up")
        while True:
            for _ in conn.notifies(timeout=60, stop_after=1):
                pass
            row = conn.execute(
                "UPDATE conventional SET state = 'T', taken_at = now()"
                " WHERE id = (SELECT id FROM conventional WHERE queue_id = 1 AND state = 'R'"
                "              ORDER BY priority, id LIMIT 1 FOR UPDATE SKIP LOCKED)"
                " RETURNING id, data"
            ).fetchone()
            if row is None:
                return
            pipe.send(time.monotonic() - row[1])
            conn.execute("DELETE FROM conventional WHERE id = %s", (row[0],))


def wait_on_channel(pipe: Connection, dsn: str, channel: str) -> None:
    """Wait for a payload, send the time since its post, and repeat."""
    _exit_at_end(pipe)
    with pgqueue.Client(dsn) as client, suppress(TimeoutError):
        with suppress(TimeoutError):
            client.wait(channel, 0.1)  # connects, and listens
        pipe.send("up")
        while True:
            payload = client.wait(channel, 60)
            pipe.send(time.monotonic() - float(payload))


def listen_on_channel(pipe: Connection, dsn: str) -> None:
    """The same with psycopg alone."""
    _exit_at_end(pipe)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("LISTEN bare")
        pipe.send("up")
        while True:
            for note in conn.notifies(timeout=60, stop_after=1):
                pipe.send(time.monotonic() - float(note.payload))


def hold(pipe: Connection, dsn: str, name: str, n: int, grace: float) -> None:
    """Take n tasks, and hold them until this process is killed."""
    with pgqueue.Client(dsn, session_grace=grace) as client:
        pipe.send("up")
        pipe.recv()
        pipe.send(len(client.queue(name).take_many(n)))
        pipe.recv()


def wait_in_turn(pipe: Connection, dsn: str, name: str) -> None:
    """Send the time, wait for a task, ack it, send the time since its put together with the time now, and repeat."""
    _exit_at_end(pipe)
    with pgqueue.Client(dsn, poll=None) as client:
        queue = client.queue(name)
        queue.take(0)
        pipe.send("up")
        pipe.send(time.monotonic())
        while task := queue.take(timeout=600):
            seconds = time.monotonic() - task.data["at"]
            task.ack()
            pipe.send((seconds, time.monotonic()))


def idle(pipe: Connection, dsn: str, name: str, n: int) -> None:
    """Have n clients wait for a task, each in a thread, until the pipe is closed."""
    _exit_at_end(pipe)  # closing so many clients would take longer than measuring them
    for client in [pgqueue.Client(dsn) for _ in range(n)]:
        client.queue(name).take(0)
        threading.Thread(target=client.queue(name).take, daemon=True).start()
    pipe.send("up")
    threading.Event().wait()
