"""A worker that serves some of the servers of a cluster: spread_worker.py DSN SPREAD.

It reports [server, data] of each task that it handles; `threads` reports their number, and the end of its input stops
it.
"""

from __future__ import annotations

import json
import sys
import threading

import pgqueue

lock = threading.Lock()


def say(what: object) -> None:
    with lock:
        print(json.dumps(what), flush=True)


def handle(data: object, task: pgqueue.Task) -> None:
    say([task.id >> 43, data])


def obey(worker: pgqueue.Worker) -> None:
    for line in sys.stdin:
        if line == "threads\n":
            say({"threads": threading.active_count() - 1})  # without this one
    worker.stop()


with pgqueue.Cluster.from_server(sys.argv[1], retry=0.2) as cluster:
    worker = pgqueue.Worker(cluster, {"w": handle}, spread=int(sys.argv[2]))
    threading.Thread(target=obey, args=[worker], daemon=True).start()
    worker.run()
