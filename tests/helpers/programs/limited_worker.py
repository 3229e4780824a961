"""Runs a worker on a queue with limits. Each run is noted with its beginning and end by the database's clock.

    limited_worker.py DSN QUEUE THREADS SECONDS

A row of the table `run(pid, task_id, began, ended)` for each run; a run that was killed has no end. The first line is
{"ready": pid}. It works for as long as its input is open.
"""

import json
import logging
import os
import sys
import threading
import time
from typing import Any

import psycopg

import pgqueue

logging.disable()
own = threading.local()


def main(dsn: str, name: str, threads: str, seconds: str) -> None:
    def connection() -> psycopg.Connection:
        if not hasattr(own, "conn"):
            own.conn = psycopg.connect(dsn, autocommit=True)
        return own.conn

    def handle(data: Any, task: pgqueue.Task) -> None:
        began = "INSERT INTO run VALUES (%s, %s, clock_timestamp()) RETURNING ctid"
        (place,) = connection().execute(began, [os.getpid(), task.id]).fetchone() or [None]
        time.sleep(float(seconds))
        connection().execute("UPDATE run SET ended = clock_timestamp() WHERE ctid = %s", [place])

    with pgqueue.Client(dsn, session_grace=0) as client:
        worker = pgqueue.Worker(client, {name: handle}, concurrency=int(threads))
        threading.Thread(target=lambda: (sys.stdin.read(), worker.stop()), daemon=True).start()
        client.queue(name).stats()
        print(json.dumps({"ready": os.getpid()}), flush=True)
        worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
