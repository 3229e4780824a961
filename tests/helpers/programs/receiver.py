"""Takes tasks in one thread for each queue named, and tells each; between takes it gives up, disarms and comes back.

    receiver.py DSN SEED TICK PATIENCE QUEUE...

TICK: seconds between ticks, and between looks at the place in line.

Lines: {"queue", "number", "at"} for a task, {"queue", "lost"} when nothing ended a wait of PATIENCE seconds: since the
sender sends the next task only when the last one was told, a wake-up was lost. {"state"} answers each line of input:
where each thread is, what the hub knows, and for how long the process itself stood still.
"""

import json
import random
import sys
import threading
import time
import traceback

import pgqueue
from pgqueue._engine import listener, places

BEAT = 0.05


def say(**line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")  # one write: threads share the stream
    sys.stdout.flush()


def receive(client: pgqueue.Client, name: str, patience: float, chance: random.Random) -> None:
    queue, pause = client.queue(name), threading.Event()
    while True:
        for timeout in (*impatience(chance), patience):
            began = time.monotonic()
            if task := queue.take(timeout):
                break
        if task is None or time.monotonic() - began >= patience:  # a take looks once more when its time is over
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


class Watchdog(threading.Thread):
    """Measures how late it is itself: for so long the process, or the machine, stood still."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.late: list[tuple[float, float]] = []  # the time, and by how many seconds

    def run(self) -> None:
        while True:
            due = time.monotonic() + BEAT
            time.sleep(BEAT)
            late = time.monotonic() - due
            if late > 0.2:
                self.late.append((time.time(), late))


def answer(client: pgqueue.Client, watchdog: Watchdog) -> None:
    for _ in sys.stdin:
        engine, now = client.shell.core.listener(), time.monotonic()
        say(
            state={
                "session": engine.session,
                "failure": repr(engine.failure),
                "late": [(round(time.time() - at, 1), round(late, 2)) for at, late in watchdog.late[-5:]],
                "hub": {id: repr(channel) for id, channel in engine.hub._channels.items()},
                "calls": sorted(engine.hub._calls),
                "plan": repr(engine._plans._plan),
                "now": now,
                "again": [engine.hub._again, engine._plans._retry.at, engine._plans._line.at],
                "threads": [traceback.format_stack(frame)[-4:] for frame in sys._current_frames().values()],
            }
        )


def main(dsn: str, seed: str, tick: str, patience: str, *names: str) -> None:
    listener.TICK = places.CHECK = places.SOON = float(tick)  # all that could make up for a lost call
    watchdog = Watchdog()
    watchdog.start()
    with pgqueue.Client(dsn, poll=None, idle_timeout=0.02) as client:
        threading.Thread(target=answer, args=(client, watchdog), daemon=True).start()
        chances = [random.Random(f"{seed} {name}") for name in names]
        threads = [
            threading.Thread(target=receive, args=(client, name, float(patience), chance))
            for name, chance in zip(names, chances, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
