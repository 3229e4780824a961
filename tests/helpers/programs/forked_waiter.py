"""Takes tasks in a thread, and forks while that thread waits; the child takes with the same client, and ends first.

    forked_waiter.py DSN QUEUE TICK

A line of input makes it fork. Lines: {"pid", "session"} once a process waits; {"pid", "data"} for each task.
"""

import json
import os
import sys
import threading
import warnings

import pgqueue
from pgqueue._engine import listener

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where there are threads


def say(**line: object) -> None:
    sys.stdout.write(json.dumps({"pid": os.getpid(), **line}) + "\n")  # one write: the processes share the stream
    sys.stdout.flush()


def take(client: pgqueue.Client, name: str) -> None:
    queue = client.queue(name)
    queue.take(0)
    say(session=client.shell.core.listener().session)
    while task := queue.take():
        task.ack()
        say(data=task.data)


def main(dsn: str, name: str, tick: str) -> None:
    listener.TICK = float(tick)
    client = pgqueue.Client(dsn, poll=None)
    taking = threading.Thread(target=take, args=(client, name))
    taking.start()
    sys.stdin.readline()
    if os.fork() == 0:
        take(client, name)
    taking.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
