"""Puts tasks of a job into a queue of a cluster, one after another, until its input is closed.

    cluster_putter.py QUEUE JOB DSN...

The first line is {"ready": pid}. Each line of its input is answered by {"ids": [...]}: the ids of ten puts that began
after it was read.
"""

import json
import os
import sys
import threading

import pgqueue

PUTS = 10


def main(queue: str, job: str, *dsns: str) -> None:
    asked = threading.Event()
    ended = threading.Event()

    def listen() -> None:
        for _ in sys.stdin:
            asked.set()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    with pgqueue.Cluster(dsns) as cluster:
        putting = cluster.queue(queue)
        putting.put({"job": job})
        print(json.dumps({"ready": os.getpid()}), flush=True)
        while not ended.is_set():
            if asked.is_set():
                asked.clear()
                print(json.dumps({"ids": [putting.put({"job": job}).id for _ in range(PUTS)]}), flush=True)
            else:
                putting.put({"job": job})


if __name__ == "__main__":
    main(*sys.argv[1:])
