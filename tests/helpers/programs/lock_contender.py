"""Enters a critical section again and again, by a lock or as an elected leader, for as long as its input is open.

    lock_contender.py DSN NAME lock|elect

What the lock protects is elsewhere, as in life: a connection of its own. `guarded` refuses a fence that is lower than
the highest it saw, which is told as {"refused": fence}; `entry` keeps who was inside, from when until when. The first
line is {"ready": pid}.
"""

import json
import logging
import os
import random
import sys
import threading

import psycopg

import pgqueue

logging.disable()
ENTER = """
    WITH guard AS (UPDATE guarded SET highest = %(fence)s WHERE highest < %(fence)s RETURNING highest)
    INSERT INTO entry (fence, pid, entered_at) SELECT highest, %(pid)s, clock_timestamp() FROM guard
"""
LEAVE = "UPDATE entry SET left_at = clock_timestamp() WHERE fence = %s"


def work(resource: psycopg.Connection, fence: int) -> None:
    if resource.execute(ENTER, {"fence": fence, "pid": os.getpid()}).rowcount != 1:
        print(json.dumps({"refused": fence}), flush=True)
        return
    threading.Event().wait(random.uniform(0, 0.003))
    resource.execute(LEAVE, [fence])


def main(dsn: str, name: str, how: str) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with pgqueue.Client(dsn) as client, psycopg.connect(dsn, autocommit=True) as resource:
        print(json.dumps({"ready": os.getpid()}), flush=True)
        if how == "lock":
            while not ended.is_set():
                with client.lock(name) as lock:
                    work(resource, lock.fence)
        else:
            with client.elect(name, lambda election: work(resource, election.fence)) as election:
                while not ended.is_set():
                    election.wait()
                    election.resign()


if __name__ == "__main__":
    main(*sys.argv[1:])
