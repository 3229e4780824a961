"""A worker of the cascade in docs/guides/push.md: takes a range, cuts it in parts, and hands them on with its ack.

    splitter.py DSN

It says {"taken": range} before it cuts, and goes on with the ack at a line on its input.
"""

import json
import sys

import pgqueue


def main(dsn: str) -> None:
    with pgqueue.Client(dsn, poll=None, session_grace=0) as client:
        while task := client.queue("ranges").take(timeout=10):
            print(json.dumps({"taken": task.data}), flush=True)
            sys.stdin.readline()
            first, last = task.data
            parts = pgqueue.split_range(first, last, 4)
            task.ack(put=[pgqueue.Put("ranges", part) for part in parts])
            print(json.dumps({"acked": task.data}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
