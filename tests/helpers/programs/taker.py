"""Takes tasks in batches and acks them, for as long as its input is open. Each ack is logged in its own transaction.

    taker.py DSN QUEUE BATCH

The log (a table `acked(task_id, pid)`) is written on the connection and in the transaction of the ack, so it says
exactly which acks counted. What the server does (a restart) must be survived; a take that was lost is told in a line
{"refused": problem} and is for the test to judge. The first line is {"ready": pid}.
"""

import contextlib
import json
import logging
import os
import sys
import threading

import psycopg

import pgqueue

logging.disable()  # a restart of the server is loud, and expected


class Taker:
    def __init__(self, dsn: str, queue: pgqueue.Queue) -> None:
        self._dsn = dsn
        self._queue = queue
        self._conn: psycopg.Connection | None = None

    def ack(self, tasks: list[pgqueue.Task]) -> None:
        """All of them, together if that works; what an unknown commit has acked already is no loss."""
        try:
            self._ack(tasks)
        except (pgqueue.TakeLost, pgqueue.ConnectionLost, psycopg.OperationalError):
            for task in tasks:
                self._ack_one(task)

    def _ack_one(self, task: pgqueue.Task) -> None:
        while True:
            try:
                return self._ack([task])
            except pgqueue.TaskNotFound:
                return None
            except pgqueue.TakeLost as error:
                print(json.dumps({"refused": type(error).__name__}), flush=True)
                return None
            except (pgqueue.ConnectionLost, psycopg.OperationalError):
                threading.Event().wait(0.05)

    def _ack(self, tasks: list[pgqueue.Task]) -> None:
        """Ack on one connection, until a call on it fails.

        It may be of no use then and not be closed: executemany() is a pipeline, and one that the server cut off can
        leave the connection in pipeline mode.
        """
        if self._conn is None:
            self._conn = psycopg.connect(self._dsn, autocommit=True)
        try:
            with self._conn.transaction():
                with self._conn.cursor() as cursor:
                    cursor.executemany("INSERT INTO acked VALUES (%s, %s)", [(task.id, os.getpid()) for task in tasks])
                self._queue.ack_many(tasks, conn=self._conn)
        except (pgqueue.ConnectionLost, psycopg.OperationalError):
            self._conn.close()
            self._conn = None
            raise


def main(dsn: str, name: str, batch: str) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with pgqueue.Client(dsn, poll=None, connect_timeout=60) as client:  # a recovery may take its time
        queue = client.queue(name)
        taker = Taker(dsn, queue)
        queue.stats()  # the first call is not to be the one that meets a restart
        print(json.dumps({"ready": os.getpid()}), flush=True)
        while not ended.is_set():
            with contextlib.suppress(pgqueue.ConnectionLost):
                taker.ack(queue.take_many(int(batch), timeout=0.5))


if __name__ == "__main__":
    main(*sys.argv[1:])
