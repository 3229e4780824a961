"""How many servers a rate of tasks needs: `python -m benchmarks.scale` measures one server, and simulates many.

The figures of one server: the CPU time of its backends and the write-ahead log for a task that is put, taken and acked,
in batches of 100 and one by one, and the connections of a worker process and their private memory.

The simulation places tasks on the servers by rendezvous hashing and connects workers to them by the assignment of
`spread`, as a cluster does, and finds the busiest server: the one that has the most popular lanes. Then it takes one
server away. A server is overloaded if its backends need more than `--busy` of its cores. Tasks without a lane go to the
servers in turn.
"""

from __future__ import annotations

import argparse
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import psycopg

import pgqueue
from pgqueue._engine.cluster.spreading import spread

from .cpu import BackendTime
from .server import serve

BATCH = 100
QUEUE = "scale"


@dataclass(frozen=True)
class Figures:
    """Of one server, for a task: microseconds of CPU and bytes of log; for a worker process: connections and bytes."""

    cpu: float
    wal: float
    connections: int
    memory: float


@dataclass(frozen=True)
class Load:
    """Of each server by its number: its part of the tasks, and the worker processes that are connected to it."""

    tasks: dict[int, float]
    workers: dict[int, int]


# --- the figures of one server


def measured(choice: str, rounds: int) -> tuple[Figures, Figures]:
    """In batches, and one by one. The middle of several rounds, in which the two take turns."""
    with serve(choice) as server:
        server.set("full_page_writes", "off")  # their number depends on the checkpoints
        with (
            server.database() as dsn,
            psycopg.connect(dsn, autocommit=True) as conn,
            pgqueue.Client(dsn) as client,
        ):
            queue = client.queue(QUEUE)
            batches, singles = list[tuple[float, float]](), list[tuple[float, float]]()
            for _ in range(rounds):
                batches.append(_per_task(conn, lambda: _batch(queue), 20, BATCH))
                singles.append(_per_task(conn, lambda: _single(queue), 300, 1))
            connections, memory = _worker(conn, dsn)
            both = (tuple(statistics.median(each) for each in zip(*found, strict=True)) for found in (batches, singles))
            in_batches, one_by_one = (Figures(cpu, wal, connections, memory) for cpu, wal in both)
            return in_batches, one_by_one


def _batch(queue: Any) -> None:
    queue.put_many([{"n": n} for n in range(BATCH)])
    queue.ack_many(queue.take_many(BATCH, timeout=0))


def _single(queue: Any) -> None:
    queue.put({"n": 1})
    queue.take(0).ack()


def _per_task(conn: psycopg.Connection[Any], cycle: Callable[[], None], times: int, tasks: int) -> tuple[float, float]:
    cycle()
    used, position = BackendTime(conn), _position(conn)
    for _ in range(times):
        cycle()
    return used.seconds() * 1e6 / (times * tasks), (_position(conn) - position) / (times * tasks)


def _position(conn: psycopg.Connection[Any]) -> float:
    row = conn.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
    return float(row[0]) if row else 0.0


def _worker(conn: psycopg.Connection[Any], dsn: str) -> tuple[int, float]:
    """The connections of a worker that has taken and acked, and the private memory of one of their backends."""
    known = _backends(conn)
    with pgqueue.Client(dsn) as client:
        conn.execute("SELECT pgqueue.put_many(%s, '[1, 2, 3]')", [QUEUE])
        worker = pgqueue.Worker(client, {QUEUE: lambda data: None})
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            while _tasks(conn):
                time.sleep(0.05)
            ours = _backends(conn) - known
            return len(ours), statistics.mean(_private(pid) for pid in ours)
        finally:
            worker.stop()
            thread.join()


def _tasks(conn: psycopg.Connection[Any]) -> int:
    return len(conn.execute("SELECT FROM pgqueue.tasks").fetchall())


def _backends(conn: psycopg.Connection[Any]) -> set[int]:
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    return {pid for (pid,) in conn.execute(query).fetchall()}


def _private(pid: int) -> float:
    """The bytes of a process that no other process shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(1024.0 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


# --- the simulation


def needed(options: argparse.Namespace, cpu: float) -> int:
    """The servers for the rate, if each gets the same part."""
    full: float = options.rate * cpu / 1e6 / (options.cores * options.busy)
    return math.ceil(full)


def simulated(servers: Sequence[int], options: argparse.Namespace) -> Load:
    """Place the lanes, of which the nth has 1 / n ** skew of the first one's tasks, and the worker processes."""
    tasks, workers = dict.fromkeys(servers, 0.0), dict.fromkeys(servers, 0)
    weights = [1 / place**options.skew for place in range(1, options.lanes + 1)]
    total = sum(weights)
    for lane, weight in enumerate(weights):
        tasks[nearest(f"lane {lane}", servers)] += weight / total
    for chosen in spread([f"worker {number}" for number in range(options.workers)], servers, options.spread).values():
        for server in chosen:
            workers[server] += 1
    return Load(tasks, workers)


def nearest(name: str, servers: Sequence[int]) -> int:
    """The one with the highest score of the name: rendezvous hashing."""
    key = name.encode()
    return max(servers, key=lambda number: blake2b(key, digest_size=8, salt=number.to_bytes(4)).digest())


def described(title: str, load: Load, figures: Figures, options: argparse.Namespace) -> str:
    most = max(load.tasks.values())
    cores = options.rate * most * figures.cpu / 1e6
    connections = [n * figures.connections for n in load.workers.values()]
    verdict = "overloaded" if cores > options.cores * options.busy else "enough"
    return (
        f"| {title} | {len(load.tasks)} | {options.rate * most:,.0f} | {cores:.1f} of {options.cores}, {verdict} "
        f"| {options.rate * most * figures.wal / 1e6:.0f} MB/s | {min(connections)} to {max(connections)} "
        f"| {max(connections) * figures.memory / 1e9:.1f} GB |"
    )


def main() -> None:
    options = _options()
    in_batches, one_by_one = measured(options.pg, options.rounds)
    print("| a task | CPU of the server | log | connections of a worker | memory of each |\n|---|--:|--:|--:|--:|")
    for title, figures in (("in batches of 100", in_batches), ("one by one", one_by_one)):
        memory = f"{figures.memory / 1e6:.1f} MB"
        print(f"| {title} | {figures.cpu:.0f} us | {figures.wal:.0f} bytes | {figures.connections} | {memory} |")
    print(
        f"\n{options.rate:,.0f} tasks/s one by one: {needed(options, one_by_one.cpu)} servers of {options.cores} cores"
    )
    least = needed(options, in_batches.cpu)
    print(f"in batches: {least} servers\n")
    print("| tasks | servers | of the busiest: tasks/s | cores | log | connections of workers | their memory |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for n in dict.fromkeys((least, least + 1, math.ceil(least * 1.25), math.ceil(least * 1.5))):
        servers = range(1, n + 1)
        placed, left = simulated(servers, options), simulated(servers[1:], options)
        print(described("in turn", _equal(placed), in_batches, options))
        print(described("in turn, one server absent", _equal(left), in_batches, options))
        print(described("in lanes", placed, in_batches, options))


def _equal(load: Load) -> Load:
    return Load(dict.fromkeys(load.tasks, 1 / len(load.tasks)), load.workers)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--pg", default="embedded", help="the server to measure, as for `python -m benchmarks`")
    parser.add_argument("--rounds", type=int, default=5, help="of the measurement; default: 5")
    parser.add_argument("--rate", type=float, default=1e6, help="tasks a second; default: 1,000,000")
    parser.add_argument("--cores", type=int, default=8, help="of each server; default: 8")
    parser.add_argument("--busy", type=float, default=0.6, help="the part of them that may be busy; default: 0.6")
    parser.add_argument("--workers", type=int, default=1000, help="processes; default: 1000")
    parser.add_argument("--spread", type=int, default=4, help="servers of each worker; default: 4")
    parser.add_argument("--lanes", type=int, default=100_000, help="default: 100,000")
    parser.add_argument("--skew", type=float, default=0.5, help="0: all lanes have the same tasks; default: 0.5")
    return parser.parse_args()


if __name__ == "__main__":
    main()
