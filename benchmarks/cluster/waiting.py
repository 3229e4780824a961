"""Processes that wait for a task of 1, 3 and 8 servers: what they send, and a worker's threads and connections."""

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

from ..children import Child
from .costs import QUEUE, AnyClient
from .servers import TICKS, One, Sent, counted

SIZES = (1, 3, 8)
KINDS = ("worker", "take", "connected")  # the last one only ticks
WARM = 12.0  # seconds until each client has settled: a server's first ticks, a pool's surplus connections


@dataclass(frozen=True)
class Waiting:
    """Of one process that waits.

    Attributes:
        sent: its statements.
        threads: its threads by the kinds of their names.
        connections: its connections to each server.
    """

    sent: Counter[str]
    threads: Counter[str]
    connections: list[int]

    @property
    def ticks(self) -> int:
        return sum(n for name, n in self.sent.items() if name in TICKS)

    @property
    def others(self) -> Counter[str]:
        return Counter({name: n for name, n in self.sent.items() if name not in TICKS})


def measured(servers: Sequence[One], seconds: float) -> dict[str, dict[int, Waiting]]:
    """All processes at the same time, each with databases of its own. By their kind and the number of servers."""
    with ExitStack() as stack:
        children: dict[tuple[str, int], tuple[Child, list[One]]] = {}
        for kind in KINDS:
            for n in SIZES:
                used = list(servers[:n])
                for one in used:
                    one.clone(_database(kind, n))
                dsns = [counted(one.dsn(_database(kind, n))) for one in used]
                child = stack.enter_context(Child(wait, kind, dsns))
                child.hear()
                children[kind, n] = child, used
        time.sleep(WARM)
        sent = Sent(servers)
        time.sleep(seconds)
        all_sent = sent.read()
        found: dict[str, dict[int, Waiting]] = {kind: {} for kind in KINDS}
        for (kind, n), (child, used) in children.items():
            database = _database(kind, n)
            child.tell("threads")
            threads = child.hear()
            connections = [_connections(one, database) for one in used]
            found[kind][n] = Waiting(all_sent.get(database, Counter()), threads, connections)
    return found


def _database(kind: str, n: int) -> str:
    return f"{kind} {n}"


def _connections(one: One, database: str) -> int:
    with psycopg.connect(one.dsn("postgres")) as conn:
        row = conn.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = %s", (database,)).fetchone()
    return int(row[0]) if row else 0


def wait(pipe: Connection, kind: str, dsns: list[str]) -> None:
    """The child: wait, and name the threads of this process when it is asked."""
    client: AnyClient = pgqueue.Client(dsns[0]) if len(dsns) == 1 else pgqueue.Cluster(dsns)
    with client, suppress(EOFError):
        stop = START[kind](client, dsns)
        pipe.send("up")
        pipe.recv()
        names = Counter(_kind(thread.name) for thread in threading.enumerate() if thread.name != "MainThread")
        names["all"] = len(list(Path("/proc/self/task").iterdir())) - 1  # without this one, which waits at the pipe
        pipe.send(names)
        with suppress(EOFError):
            pipe.recv()
        stop()


def _begin_worker(client: AnyClient, dsns: Sequence[str]) -> Callable[[], object]:
    """A worker that has handled and acked a task of each server."""
    handled = threading.Semaphore(0)
    worker = pgqueue.Worker(client, {QUEUE: lambda data: handled.release()})
    threading.Thread(target=worker.run, name="main thread of the worker").start()
    for dsn in dsns:
        with psycopg.connect(dsn) as conn:
            conn.execute("SELECT FROM pgqueue.put(%s, '1')", [QUEUE])
    for _ in dsns:
        if not handled.acquire(timeout=30):
            raise TimeoutError("the worker did not get through")
    return worker.stop


def _begin_take(client: AnyClient, dsns: Sequence[str]) -> Callable[[], object]:
    """A take that waits."""
    _connect(client, dsns)
    threading.Thread(target=client.queue(QUEUE).take, name="thread of the take", daemon=True).start()
    return lambda: None


def _connect(client: AnyClient, dsns: Sequence[str]) -> Callable[[], object]:
    """A client that has put, taken and acked at each server, and does nothing else."""
    for _ in dsns:
        client.queue(QUEUE).put(1)
        if task := client.queue(QUEUE).take(0):
            task.ack()
    return lambda: None


START = {"worker": _begin_worker, "take": _begin_take, "connected": _connect}


def _kind(name: str) -> str:
    """A thread's name without its number."""
    return name.rstrip("0123456789-_ ()")
