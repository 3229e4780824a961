"""`python -m faults.neighbours`: how long a queue's tasks take beside a queue of the same worker that behaves badly.

It prints a table as markdown. The database is that of PGQUEUE_DSN; the queues of the jobs below are deleted. A worker
with four handlers of a kind serves both queues. Once it has begun, the bad queue gets its tasks. Then a client puts a
task into the good one, waits for its result, and puts the next one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pgqueue
from pgqueue import Retry

CONCURRENCY = 4
LIMIT = 1.0  # seconds: the time limit of the bad job
LONGEST = 20.0  # seconds for one task of the good queue
KINDS = ("thread", "async", "process")


@dataclass(frozen=True)
class Case:
    """What the bad queue does: how many tasks it has, and the kinds of jobs for which that can be."""

    title: str
    tasks: int
    kinds: tuple[str, ...] = KINDS


CASES = {
    "alone": Case("nothing: the queue is alone", 0),
    "flood": Case("has 5,000 tasks that do nothing", 5000),
    "fail": Case("has 1,000 tasks that fail", 1000),
    "unkeepable": Case("has 1,000 tasks whose results cannot be kept", 1000),
    "hang": Case(f"has 8 tasks that hang, with a time limit of {LIMIT:g} s", 8),  # more threads would end the worker
    "exit": Case("has 1,000 tasks that raise SystemExit", 1000),
    "cancel": Case("has 1,000 tasks that cancel themselves", 1000, ("thread", "async")),
    "block": Case("has 8 tasks that block the event loop for 3 s", 8, ("async",)),
    "crash": Case("has 8 tasks that kill their process", 8, ("process",)),
}


client = pgqueue.Client()
GOOD: dict[str, Any] = {"keep_result": 60}
BAD: dict[str, Any] = {"keep_result": 60, "timeout": LIMIT, "retry": Retry(attempts=1)}


@client.job(queue="good_thread", **GOOD)
def good_thread() -> None:
    pass


@client.job(queue="good_async", **GOOD)
async def good_async() -> None:
    pass


@client.job(queue="good_process", isolation="process", **GOOD)
def good_process() -> None:
    pass


def misbehave(how: str) -> Any:
    if how == "fail":
        raise ConnectionError("its server is away")
    if how == "unkeepable":
        return object()
    if how == "hang":
        time.sleep(60)
    if how == "exit":
        sys.exit(1)
    if how == "cancel":
        raise asyncio.CancelledError
    if how == "block":
        time.sleep(3)
    if how == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    return None


@client.job(queue="bad_thread", **BAD)
def bad_thread(how: str) -> Any:
    return misbehave(how)


@client.job(queue="bad_async", **BAD)
async def bad_async(how: str) -> Any:
    if how == "hang":
        await asyncio.sleep(60)
    if how == "cancel":
        me = asyncio.current_task()
        assert me is not None
        me.cancel()
        await asyncio.sleep(0)
    return misbehave(how)


@client.job(queue="bad_process", isolation="process", **BAD)
def bad_process(how: str) -> Any:
    return misbehave(how)


def delays(kind: str, how: str, n: int, tasks: int) -> list[float]:
    """Seconds from the put of each of n tasks of the good queue to its result."""
    queues = [f"good_{kind}", f"bad_{kind}"]
    for queue in queues:
        with contextlib.suppress(pgqueue.NoQueue):
            client.delete_queue(queue, force=True)
    good, bad = globals()[queues[0]], globals()[queues[1]]
    with working(pgqueue.Worker(client, queues=queues, concurrency=CONCURRENCY, schedules=False, grace=1)):
        for task in [good.put() for _ in range(3 * CONCURRENCY)]:  # processes start
            task.result(timeout=30)
        if tasks:
            bad.put_many([(how,)] * tasks)
        return [delay(lambda: good.put().result(timeout=LONGEST)) for _ in range(n)]


def delay(call: Callable[[], object]) -> float:
    began = time.monotonic()
    with contextlib.suppress(TimeoutError):
        call()
    return time.monotonic() - began


@contextlib.contextmanager
def working(worker: pgqueue.Worker) -> Iterator[None]:
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(30)


def table(n: int, share: float = 1.0) -> tuple[list[str], dict[tuple[str, str], list[float]]]:
    """The lines of the table, and the delays by case and kind; `share`: of the tasks of the bad queue."""
    found: dict[tuple[str, str], list[float]] = {}
    lines = ["| the other queue | " + " | ".join(KINDS) + " |", "|---|" + "---|" * len(KINDS)]
    for how, case in CASES.items():
        cells = []
        for kind in KINDS:
            if kind in case.kinds:
                times = found[how, kind] = delays(kind, how, n, int(case.tasks * share))
                cells.append(f"{1000 * statistics.median(times):.0f}, {1000 * max(times):.0f}")
            else:
                cells.append("")
        lines.append(f"| {case.title} | " + " | ".join(cells) + " |")
        print(lines[-1], file=sys.stderr)
    return lines, found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m faults.neighbours", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("-n", type=int, default=30, help="tasks of the good queue for each cell; default: 30")
    options = parser.parse_args()
    logging.getLogger("pgqueue").setLevel(logging.CRITICAL)
    print("Milliseconds from the put to the result, median and maximum:\n")
    print("\n".join(table(options.n)[0]))


if __name__ == "__main__":
    from faults import neighbours  # a child process imports the jobs by this name

    neighbours.main()
