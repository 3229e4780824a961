"""A push to every user: one task for all users is cut into ranges, the ranges into batches, and the batches are sent.

    pgqueue worker examples.push:client             # in one terminal, or in several, at the top of the checkout
    python -m examples.push 100000                  # in another: begins, and says when all are reached

Kill workers at any time: another worker cuts a range again that was not handed on.
"""

from __future__ import annotations

import sys
import threading

import pgqueue
from pgqueue import Put, split_range

PARTS = 10  # of a range that is too large
BATCH = 1000  # users at once

client = pgqueue.Client()  # PGQUEUE_DSN or `pgqueue --dsn` names the database; connects at its first call


@client.handler("ranges")
def cut(users: list[int], task: pgqueue.Task) -> None:
    """Put all parts and ack in one statement: if this process dies before it, no part is put."""
    lo, hi = users
    if hi - lo < BATCH:
        task.forward("push")
    else:
        task.ack(put=[Put("ranges", part) for part in split_range(lo, hi, PARTS)])


@client.handler("push")
def push(users: list[int]) -> None:
    """Stands for the service that reaches the users' telephones."""
    lo, hi = users
    print(f"pushed to users {lo} to {hi}\n", end="", flush=True)  # in one call: other threads print too


def unfinished() -> int:
    # In the order in which the users pass the queues.
    return sum(client.queue(name).stats()["total"] for name in ("ranges", "push"))


def main(users: int) -> None:
    with client:
        client.queue("ranges").put([1, users])
        while unfinished():
            threading.Event().wait(0.2)
        print(f"{users} users are reached")


if __name__ == "__main__":
    main(int(sys.argv[1]))
