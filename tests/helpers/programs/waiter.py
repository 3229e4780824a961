"""Waits for one task at a time, and tells each one.

    waiter.py DSN QUEUE [TICK]

The first line is {"session": id}, once the listener has one; then {"data": data} for each task. Without TICK the
listener's ticks are as in production.
"""

import json
import sys

import pgqueue
from pgqueue._engine import listener


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


def main(dsn: str, name: str, tick: str = "") -> None:
    if tick:
        listener.TICK = float(tick)
    client = pgqueue.Client(dsn, poll=None)
    queue = client.queue(name)
    queue.take(0)
    say(session=client.shell.core.listener().session)
    while task := queue.take():
        task.ack()
        say(data=task.data)


if __name__ == "__main__":
    main(*sys.argv[1:])
