"""Takes tasks in one thread for each queue named, and tells each; between takes it gives up, disarms and comes back.

    receiver.py DSN SEED QUEUE...

Lines: {"queue", "number", "at"} for a task, {"queue", "lost"} when nothing ended a wait of PATIENCE seconds: since the
sender sends the next task only when the last one was told, a wake-up was lost.
"""

import json
import random
import sys
import threading
import time

import pgqueue
from pgqueue._engine import listener

PATIENCE = 5.0


def say(**line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")  # one write: threads share the stream
    sys.stdout.flush()


def receive(client: pgqueue.Client, name: str, chance: random.Random) -> None:
    queue, pause = client.queue(name), threading.Event()
    while True:
        for timeout in (*impatience(chance), PATIENCE):
            began = time.monotonic()
            if task := queue.take(timeout):
                break
        if task is None or time.monotonic() - began >= PATIENCE:  # a take looks once more when its time is over
            return say(queue=name, lost=True)
        at = time.time()
        task.ack()
        if task.data is None:
            return None
        say(queue=name, number=task.data, at=at)
        if chance.random() < 0.5:  # around the moment of the disarm and, with idle_timeout, of the UNLISTEN
            pause.wait(chance.uniform(0, 0.04))


def impatience(chance: random.Random) -> list[float]:
    """Timeouts of the takes before the patient one: none, or a few that are over in the middle of lying down."""
    return [chance.uniform(0, 0.008) for _ in range(chance.choice((0, 0, 1, 3)))]


def main(dsn: str, seed: str, *names: str) -> None:
    listener.TICK = 60.0  # each tick reads notifications too, and would hide what came without waking anybody
    with pgqueue.Client(dsn, poll=None, idle_timeout=0.02) as client:
        chances = [random.Random(f"{seed} {name}") for name in names]
        threads = [threading.Thread(target=receive, args=(client, *each)) for each in zip(names, chances, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
