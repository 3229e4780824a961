"""`python -m faults.citus`: end a node of Citus between its own commit and the commit of another node, many times.

A transaction on the coordinator writes a row, which is on another node, and puts a task, or acks one (`conn=`). One
window of windows.py is held open, and the coordinator is stopped as by a crash, and started. Citus then finishes what
was prepared. There must be the row and the task, or neither; the row and no task any more, or no row and the task. The
exit code is 1 if one is without the other.

The row comes before and after the call of pgqueue in turn. `--off` switches two-phase commit off, to show that the rig
finds what it is there for.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from pathlib import Path

import psycopg

import pgqueue
from pgqueue import migrate

from .nodes import Nodes, nodes
from .windows import SETTINGS, WINDOWS, Connection, held

VERBS = ("put", "ack")
BOTH, NEITHER = "both", "neither"


def prepare(nodes: Nodes) -> None:
    for number, dsn in enumerate(nodes.all, 1):
        migrate.up(dsn, server=number)
    with psycopg.connect(nodes.coordinator, autocommit=True) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY)")
        conn.execute("SELECT create_distributed_table('orders', 'id')")


def attempt(nodes: Nodes, verb: str, window: str, key: int, *, off: bool = False) -> str:
    """One end of the coordinator. Returns whether row and verb took effect: both, neither, or which one alone."""
    with psycopg.connect(nodes.coordinator) as victim:
        if off:
            victim.execute("SET LOCAL pgqueue.two_phase = off")
        with pgqueue.Client(nodes.coordinator) as client:
            write(client, victim, verb, key)
            with held(window, nodes.coordinator, victim):
                nodes.servers[0].restart("immediate")
    with psycopg.connect(nodes.coordinator, autocommit=True) as conn:
        conn.execute("SELECT recover_prepared_transactions()")
        row, done = has_row(conn, key), has_task(conn, key) is (verb == "put")
    return {(True, True): BOTH, (False, False): NEITHER, (True, False): "the row alone"}.get((row, done), f"{verb} alone")


def write(client: pgqueue.Client, victim: Connection, verb: str, key: int) -> None:
    """Write the row, and put or ack the task, in the victim's transaction."""
    queue = client.queue(verb)
    taken = None
    if verb == "ack":
        queue.put(key)
        while (taken := queue.take(10)) is not None and taken.data != key:
            taken.ack()  # left by an attempt before
        assert taken is not None
    if key % 2:
        victim.execute("INSERT INTO orders VALUES (%s)", [key])
    if taken is None:
        queue.put(key, conn=victim)
    else:
        taken.ack(conn=victim)
    if not key % 2:
        victim.execute("INSERT INTO orders VALUES (%s)", [key])


def has_row(conn: Connection, key: int) -> bool:
    return bool(conn.execute("SELECT FROM orders WHERE id = %s", [key]).rowcount)


def has_task(conn: Connection, key: int) -> bool:
    return bool(conn.execute("SELECT FROM pgqueue.tasks WHERE data = to_jsonb(%s::bigint)", [key]).rowcount)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.citus", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--times", type=int, default=200, help="of each verb, half in each window; default: 200")
    parser.add_argument("--verb", choices=VERBS, help="default: both")
    parser.add_argument("--bindir", type=Path, help="the programs of a PostgreSQL that has Citus")
    parser.add_argument("--off", action="store_true", help="without two-phase commit: one is left without the other")
    options = parser.parse_args()
    keys = itertools.count(1)
    alone = 0
    print("| verb | window | times | both | neither | one alone |\n|---|---|--:|--:|--:|--:|")
    with nodes(options.bindir, **SETTINGS) as started:
        prepare(started)
        for verb, window in itertools.product([options.verb] if options.verb else VERBS, WINDOWS):
            found = Counter(
                attempt(started, verb, window, next(keys), off=options.off) for _ in range(options.times // 2)
            )
            one = found.total() - found[BOTH] - found[NEITHER]
            print(f"| {verb} | {window} | {found.total()} | {found[BOTH]} | {found[NEITHER]} | {one} |", flush=True)
            alone += one
    return int(bool(alone))


if __name__ == "__main__":
    sys.exit(main())
