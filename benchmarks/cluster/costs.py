"""The CPU time of the servers and of the client for a task.

    one by one   a queue with many tasks: put, take and ack of a task are a call each
    in batches   put_many, take_many and ack_many of 100
    worker       put_many of 100, and a worker that was waiting

A figure of a contender is its time in a turn; a ratio is of two turns of the same round. Each server has the same work
in a turn, however many there are. The first calls of a turn cost more, on the server and in the client: with the same
work over three servers, three clients in turn used 1.35 of the CPU time of one, in place of 1.23.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import psycopg

import pgqueue

from .. import conventional
from .servers import One, counted, seconds

QUEUE, BATCH, LIMIT = "bench", 100, 60.0
SINGLES, BATCHES, RUNS = 90, 9, 18  # cycles of each server in a turn
WARM = 8  # cycles of each server before
CLIENT, AGAIN, CLUSTER_1, CLIENTS_3, CLUSTER_3 = "client", "client again", "cluster of 1", "3 clients", "cluster of 3"
BLOCKS = "3 clients in blocks"
SIZES = {CLIENT: 1, AGAIN: 1, CLUSTER_1: 1, BLOCKS: 3, CLIENTS_3: 3, CLUSTER_3: 3}  # servers
CLUSTERS = (CLUSTER_1, CLUSTER_3)
VERBS = ("put", "take", "ack", "one by one", "in batches", "worker")

AnyClient = pgqueue.Client | pgqueue.Cluster


class InTurn:
    """Three clients, each of which does every third call: three servers without a cluster. A worker of each.

    With blocks each does a third of a server's turn at once. Then the caches of the CPU are those of one server.
    """

    def __init__(self, dsns: Sequence[str], *, blocks: bool = False) -> None:
        self.clients_in_turn = [pgqueue.Client(dsn) for dsn in dsns]
        self._turns = {verb: itertools.count() for verb in ("put", "take", "put_many", "take_many", "ack_many")}
        self._blocks = {verb: (BATCHES if "many" in verb else SINGLES) // 3 if blocks else 1 for verb in self._turns}

    def queue(self, name: str) -> Any:
        queues = [client.queue(name) for client in self.clients_in_turn]

        def next_of(verb: str) -> Callable[..., Any]:
            verbs, turns, block = [getattr(queue, verb) for queue in queues], self._turns[verb], self._blocks[verb]
            return lambda *arguments: verbs[next(turns) // block % len(verbs)](*arguments)

        return SimpleNamespace(**{verb: next_of(verb) for verb in self._turns})

    def close(self) -> None:
        for client in self.clients_in_turn:
            client.close()


@dataclass(frozen=True)
class Cost:
    """CPU time of a task, seconds."""

    server: float
    client: float


@dataclass
class Contender:
    """A client or a cluster with databases of its own, and connections to them beside it."""

    servers: list[One]
    database: str
    client: AnyClient | InTurn
    conns: list[psycopg.Connection[Any]]

    def rest(self) -> None:
        """Begin a turn with tables without dead rows and a checkpoint that is done."""
        for conn in self.conns:
            conn.execute("VACUUM pgqueue.task, pgqueue.take")
            conn.execute("SELECT pgqueue._fold_deltas()")
            conn.execute("CHECKPOINT")

    def left(self) -> int:
        return sum(len(conn.execute("SELECT FROM pgqueue.task").fetchall()) for conn in self.conns)


@contextmanager
def contender(servers: Sequence[One], name: str, address: Callable[[str], str] = str) -> Iterator[Contender]:
    used = list(servers[: SIZES[name]])
    database = ("counted " if address is counted else "") + name
    for one in used:
        one.clone(database)
    dsns = [one.dsn(database) for one in used]
    reached = [address(dsn) for dsn in dsns]
    with ExitStack() as stack:
        conns = [stack.enter_context(psycopg.connect(dsn, autocommit=True)) for dsn in dsns]
        client = _client(name, reached)
        stack.callback(client.close)
        yield Contender(used, database, client, conns)


def _client(name: str, dsns: Sequence[str]) -> AnyClient | InTurn:
    if name in (CLIENTS_3, BLOCKS):
        return InTurn(dsns, blocks=name == BLOCKS)
    return pgqueue.Cluster(dsns) if name in CLUSTERS else pgqueue.Client(dsns[0])


# --- the cycles


def one_by_one(client: AnyClient | InTurn, n: int, lap: Callable[[str], None]) -> None:
    queue: Any = client.queue(QUEUE)
    for i in range(n):
        queue.put(conventional.item(i))
    lap("put")
    tasks = [queue.take(0) for _ in range(n)]
    lap("take")
    for task in tasks:
        task.ack()
    lap("ack")


def in_batches(client: AnyClient | InTurn, n: int) -> None:
    queue: Any = client.queue(QUEUE)
    items = [conventional.item(i) for i in range(BATCH)]
    for _ in range(n):
        queue.put_many(items)
    for _ in range(n):
        queue.ack_many(queue.take_many(BATCH, 0))


def to_worker(client: AnyClient | InTurn, n: int, handled: Handled) -> None:
    queue: Any = client.queue(QUEUE)
    items = [conventional.item(i) for i in range(BATCH)]
    handled.expect(n * BATCH)
    for _ in range(n):
        queue.put_many(items)
    handled.wait()


class Handled:
    """Counts the tasks that a worker has handled."""

    def __init__(self) -> None:
        self._lock, self._all, self._left = threading.Lock(), threading.Event(), 0

    def expect(self, n: int) -> None:
        self._left = n
        self._all.clear()

    def __call__(self, data: object) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._all.set()

    def wait(self) -> None:
        if not self._all.wait(LIMIT):
            raise TimeoutError("the worker did not get through")


@contextmanager
def working(client: AnyClient | InTurn, handled: Handled) -> Iterator[None]:
    workers = [pgqueue.Worker(one, {QUEUE: handled}) for one in getattr(client, "clients_in_turn", [client])]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()


# --- CPU time

Found = dict[str, dict[str, list[Cost]]]  # by verb and contender


def cpu(servers: Sequence[One], rounds: int) -> Found:
    found: Found = {verb: {name: [] for name in SIZES} for verb in VERBS}
    with ExitStack() as stack:
        all_of_them = {name: stack.enter_context(contender(servers, name)) for name in SIZES}
        in_turns(rounds, all_of_them, found, lambda name: _calls(all_of_them[name]))
        handlers = {name: Handled() for name in SIZES}
        for name, one in all_of_them.items():
            stack.enter_context(working(one.client, handlers[name]))
        in_turns(rounds, all_of_them, found, lambda name: _worked(all_of_them[name], handlers[name]))
    return found


def in_turns(
    rounds: int, contenders: dict[str, Contender], found: Found, turn: Callable[[str], dict[str, Cost]]
) -> None:
    names = list(contenders)
    for number in range(-1, rounds):  # the first one is not kept: it compiles functions and fills caches
        first = number % len(names)
        for name in names[first:] + names[:first]:
            contenders[name].rest()
            for verb, cost in turn(name).items():
                if number >= 0:
                    found[verb][name].append(cost)


def _calls(one: Contender) -> dict[str, Cost]:
    one_by_one(one.client, WARM * len(one.servers), lambda verb: None)  # after VACUUM each backend plans again
    in_batches(one.client, len(one.servers))
    time_of = Laps(one.servers)
    one_by_one(one.client, n := SINGLES * len(one.servers), time_of.lap)
    costs = {verb: _cost(used, n) for verb, used in time_of.laps.items()}
    single = Cost(sum(cost.server for cost in costs.values()), sum(cost.client for cost in costs.values()))
    time_of = Laps(one.servers)
    in_batches(one.client, n := BATCHES * len(one.servers))
    time_of.lap("in batches")
    return {**costs, "one by one": single, "in batches": _cost(time_of.laps["in batches"], n * BATCH)}


def _worked(one: Contender, handled: Handled) -> dict[str, Cost]:
    to_worker(one.client, 2 * len(one.servers), handled)
    settled(one)
    time_of = Laps(one.servers)
    to_worker(one.client, n := RUNS * len(one.servers), handled)
    settled(one)
    time_of.lap("worker")
    return {"worker": _cost(time_of.laps["worker"], n * BATCH)}


def settled(one: Contender) -> None:
    """Wait until the worker has acked all."""
    deadline = time.monotonic() + LIMIT
    while one.left():
        if time.monotonic() > deadline:
            raise TimeoutError("the worker did not ack its tasks")
        time.sleep(0.01)


class Laps:
    """The CPU time of the servers and of this process since the last lap."""

    def __init__(self, servers: Sequence[One]) -> None:
        self._servers = servers
        self.laps: dict[str, Cost] = {}
        self._last = self._now()

    def lap(self, name: str) -> None:
        now = self._now()
        self.laps[name] = Cost(now.server - self._last.server, now.client - self._last.client)
        self._last = self._now()

    def _now(self) -> Cost:
        return Cost(seconds(self._servers), time.process_time())


def _cost(used: Cost, tasks: int) -> Cost:
    return Cost(used.server / tasks, used.client / tasks)


def quartiles(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Of the ratios within a round."""
    low, middle, high = statistics.quantiles([our / their for our, their in zip(ours, theirs, strict=True)], n=4)
    return low, middle, high
