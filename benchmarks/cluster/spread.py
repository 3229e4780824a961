"""Worker processes that each serve some of the servers: their connections and threads, and how soon they settle."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import psycopg

import pgqueue
from pgqueue.worker.shift import Shift

from ..children import Child
from .costs import QUEUE
from .servers import TICKS, One, Sent, counted

WORKERS = 8
SPREADS = (None, 4, 2, 1)
WARM = 12.0  # seconds until pools have closed their surplus connections
TASKS = 40  # at each server


@dataclass(frozen=True)
class Settled:
    """Of worker processes that serve `spread` servers each; None: all.

    Attributes:
        connections: of all of them to each server, the home server first.
        workers: at each server.
        threads: of one process, on average.
        home: the statements to the home server, without those of ticks, from the first start until they had settled.
        changes: how often they changed servers in this time, all together.
        started: seconds from the first start until each had its servers.
        again: seconds from the kill of one until its servers were served by others.
    """

    connections: list[int]
    workers: list[int]
    threads: float
    home: Counter[str]
    changes: int
    started: float
    again: float


def measured(servers: Sequence[One]) -> dict[int | None, Settled]:
    return {spread: _measured(servers, spread) for spread in SPREADS}


def _measured(servers: Sequence[One], spread: int | None) -> Settled:
    database = f"spread {spread}"
    for one in servers:
        one.clone(database)
    sent, began = Sent(servers), time.monotonic()
    with ExitStack() as stack:
        plain = [one.dsn(database) for one in servers]
        dsns = [counted(plain[0]), *plain[1:]]
        children = [stack.enter_context(Child(work, dsns, spread)) for _ in range(WORKERS)]
        conns = [stack.enter_context(psycopg.connect(dsn, autocommit=True)) for dsn in plain]
        wanted = WORKERS * min(spread or len(servers), len(servers))
        _until(lambda: sum(map(len, _pids(conns))) == wanted)
        started = time.monotonic() - began
        for conn in conns:
            conn.execute("SELECT pgqueue.put(%s, to_jsonb(i)) FROM generate_series(1, %s) i", [QUEUE, TASKS])
        _until(lambda: not any(conn.execute("SELECT 1 FROM pgqueue.task LIMIT 1").fetchone() for conn in conns))
        home = Counter({name: n for name, n in sent.read()[database].items() if name not in TICKS})
        time.sleep(WARM)
        connections = [_connections(conn) for conn in conns]
        told = []
        for child in children:
            child.tell("threads")
            told.append(child.hear())
        children[0].kill()
        killed = time.monotonic()
        _until(lambda: all(found and children[0].pid not in found for found in _pids(conns)))
        return Settled(
            connections,
            [len(found) for found in _pids(conns)],
            sum(threads for threads, _ in told) / len(told),
            home,
            sum(changes for _, changes in told),
            started,
            time.monotonic() - killed,
        )


def _pids(conns: Sequence[psycopg.Connection]) -> list[set[int]]:
    """The processes that serve each server."""
    return [{pid for (pid,) in conn.execute("SELECT pid FROM pgqueue.workers")} for conn in conns]


def _connections(conn: psycopg.Connection) -> int:
    found = conn.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchone()
    return int(found[0]) if found else 0


def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the workers have not settled")
        time.sleep(0.02)


def work(pipe: Connection, dsns: list[str], spread: int | None) -> None:
    """The child: work, and tell its threads and how often it changed servers when it is asked."""
    with pgqueue.Cluster(dsns) as cluster:
        worker = pgqueue.Worker(cluster, {QUEUE: lambda data: None}, spread=spread)
        changes: list[Shift] = []
        renewed = worker._renewed

        def counting(old: Shift) -> Shift:
            new = renewed(old)
            changes.extend([new] * (new is not old))
            return new

        worker._renewed = counting  # type: ignore[method-assign]
        thread = threading.Thread(target=worker.run)
        thread.start()
        with suppress(EOFError):
            while True:
                pipe.recv()
                pipe.send((len(list(Path("/proc/self/task").iterdir())) - 2, len(changes)))  # without main and worker's
        worker.stop()
        thread.join()
