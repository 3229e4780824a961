"""`python -m faults.celery.kills`: kill -9 of Celery's workers, with pgqueue and with Redis, acks late and early.

Three workers with two children each run tasks of 50 ms, which journal their runs. For each kill 200 tasks are sent, and
while a worker runs one of them its parent process is killed, or one of its children, or all of it. A parent is started
again at once. With late acks `task_reject_on_worker_lost` is set, so that the task of a killed child is given back as
well: by default Celery calls it failed.

A task is lost if it was sent, did not run to its end, and is not in the broker when all others are done. It is held if
it is in the broker at that time: Redis gives it back after `visibility_timeout`, one hour. A task that was running is
back when another process begins to run it. The exit code is 1 if a task is lost with pgqueue and late acks.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery

from benchmarks import redis

from .. import servers
from . import programs
from .programs import Program, soon, worker

WORKERS = 3
SECONDS = 0.05  # of a task
BEFORE = 20  # tasks to send before the kill
WITHIN = 60.0  # seconds for a worker to begin
REST = 15.0  # seconds without a run, after which the rest is taken as held or lost
KINDS = ("parent", "child", "all")


@dataclass(frozen=True)
class Kill:
    """A kill, and the labels of the tasks that ran at that moment in the processes that it concerns."""

    kind: str
    at: float
    interrupted: frozenset[str]


@dataclass(frozen=True)
class Broker:
    """`held`: the texts of the messages that are in the broker."""

    name: str
    url: str
    held: Callable[[], list[str]]


@dataclass(frozen=True)
class Outcome:
    sent: int
    lost: int
    held: int
    again: int
    interrupted: int
    back: list[tuple[str, float]]  # the kind of the kill, and the seconds until the task began again


def kill(victim: Program, kind: str) -> Kill:
    """Kill, and start a worker again."""
    children = victim.children()
    concerned = random.sample(children, 1) if kind == "child" else children
    killed = {"parent": [victim.process.pid], "child": concerned, "all": [victim.process.pid, *children]}[kind]
    at = time.monotonic()
    for pid in killed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if kind != "child":
        victim.process.wait()
    running = set[str]()
    for line in victim.lines():
        if line.event in ("took", "handled") and line.at <= at and int(line.fields[1]) in concerned:
            (running.add if line.event == "took" else running.discard)(line.fields[0])
    if kind != "child":
        victim.start()
    return Kill(kind, at, frozenset(running))


def run(broker: Broker, late: bool, kills: int, tasks: int, folder: Path) -> Outcome:
    sent, done = list[str](), list[Kill]()
    with ExitStack() as stack:
        sender = Celery("sender", broker=broker.url, set_as_current=False)
        stack.callback(sender.close)
        more = {"RIG_ACKS_LATE": str(int(late))}
        workers = [worker(f"{broker.name}-{late:d}-{number}", folder, broker.url, **more) for number in range(WORKERS)]
        for each in workers:
            stack.callback(each.kill)
        for number in range(kills):
            victim = workers[number % WORKERS]
            for each in workers:
                soon(lambda each=each: _is_ready(each), WITHIN, f"{each.name} was not ready")  # type: ignore[misc]
            began, victims = time.monotonic(), len(done)
            for task in itertools.count():
                if task >= tasks // kills and len(done) > victims:
                    break
                sender.send_task("rig.note", (f"{number}-{task}", SECONDS))
                sent.append(f"{number}-{task}")
                if task >= BEFORE and len(done) == victims and _running(victim, began):
                    time.sleep(random.uniform(0, SECONDS / 2))
                    done.append(kill(victim, KINDS[number % len(KINDS)]))
            print(f"{broker.name}, late acks {late}: {number + 1} of {kills} kills", file=sys.stderr)
        _wait_for_rest(workers, sent)
        return _outcome(workers, sent, done, broker.held())


def _is_ready(each: Program) -> bool:
    return any(line.event == "ready" and line.at > each.began for line in each.lines())


def _running(victim: Program, since: float) -> set[str]:
    """The tasks that it began since then, and has not ended."""
    running = set[str]()
    for line in victim.lines():
        if line.event in ("took", "handled") and line.at > since:
            (running.add if line.event == "took" else running.discard)(line.fields[0])
    return running


def _runs(workers: list[Program], event: str) -> list[tuple[str, float]]:
    return [(line.fields[0], line.at) for each in workers for line in each.lines() if line.event == event]


def _wait_for_rest(workers: list[Program], sent: list[str]) -> None:
    """Until all have run, or no task ends any more."""
    handled, since = 0, time.monotonic()
    while handled < len(sent) and time.monotonic() - since < REST:
        now = len({label for label, _ in _runs(workers, "handled")})
        if now > handled:
            handled, since = now, time.monotonic()
        time.sleep(0.1)


def _outcome(workers: list[Program], sent: list[str], done: list[Kill], texts: list[str]) -> Outcome:
    counts = Counter(label for label, _ in _runs(workers, "handled"))
    took = _runs(workers, "took")
    missing = [label for label in sent if label not in counts]
    held = [label for label in missing if any(f"'{label}'" in text for text in texts)]
    back = [
        (each.kind, min(again) - each.at)
        for each in done
        for label in each.interrupted
        if (again := [at for other, at in took if other == label and at > each.at])
    ]
    interrupted = sum(len(each.interrupted) for each in done)
    repeated = sum(count > 1 for count in counts.values())
    return Outcome(len(sent), len(missing) - len(held), len(held), repeated, interrupted, back)


@contextmanager
def pgqueue_broker(folder: Path, bindir: Path | None) -> Iterator[Broker]:
    root = folder / "server"
    root.mkdir(mode=0o711)
    server = servers.Cluster(root, bindir)

    def held() -> list[str]:
        with server.connect() as conn:
            return [text for (text,) in conn.execute("SELECT data::text FROM pgqueue.tasks").fetchall()]

    try:
        yield Broker("pgqueue", programs.url_of(server.dsn), held)
    finally:
        server.close()


@contextmanager
def redis_broker() -> Iterator[Broker]:
    from redis import Redis  # not at the top: without Redis the other half can run

    with redis.serve() as server, Redis.from_url(server.url) as client:
        found: Any = client

        def held() -> list[str]:
            return [bytes(text).decode() for text in (*found.lrange("celery", 0, -1), *found.hvals("unacked"))]

        yield Broker("Redis", server.url, held)


def row(name: str, late: bool, kills: int, found: Outcome) -> str:
    returned = f"{len(found.back)} of {found.interrupted}"
    times = [_times([seconds for kind, seconds in found.back if kind in kinds]) for kinds in (KINDS, *zip(KINDS))]
    numbers = (
        f"{kills} | {found.sent:,} | {found.lost} | {found.held} | {found.again} | {returned} | {' | '.join(times)}"
    )
    return f"| {name} | {'late' if late else 'early'} | {numbers} |"


def _times(back: list[float]) -> str:
    return f"{statistics.median(back):.2f} s, {max(back):.2f} s" if back else "-"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.celery.kills", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="default: 50")
    parser.add_argument("--tasks", type=int, default=10_000, help="in all; default: 10,000")
    parser.add_argument("--only", choices=["pgqueue", "redis"], help="default: both")
    parser.add_argument("--acks", choices=["late", "early"], help="default: both")
    parser.add_argument("--bindir", type=Path, help="PostgreSQL's programs; default: those of the embedded server")
    options = parser.parse_args()
    lost = 0
    kinds = " | ".join(f"of a killed {kind}" for kind in ("parent", "child", "worker with its children"))
    print(f"| broker | acks | kills | tasks | lost | held | run twice | back | after: median, worst | {kinds} |")
    print(f"|---|---|{'--:|' * (7 + len(KINDS))}")
    for late in (True, False):
        if options.acks not in (None, "late" if late else "early"):
            continue
        for name in ("pgqueue", "redis"):
            if options.only not in (None, name):
                continue
            with servers.folder() as folder, ExitStack() as stack:
                broker = stack.enter_context(
                    pgqueue_broker(folder, options.bindir) if name == "pgqueue" else redis_broker()
                )
                found = run(broker, late, options.kills, options.tasks, folder)
                print(row(broker.name, late, options.kills, found), flush=True)
                lost += found.lost if late and name == "pgqueue" else 0
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
