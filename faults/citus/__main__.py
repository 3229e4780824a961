"""`python -m faults.citus`: end a node of Citus between its own commit and the commit of another node, many times.

A transaction on the coordinator writes a row, which is on another node, and puts a task, or acks one (`conn=`). One
window of windows.py is held open for some such transactions, and the coordinator is stopped as by a crash, and started.
Citus then finishes what was prepared. There must be the row and the task, or neither; for an ack the row and no task
any more, or no row and the task. The exit code is 1 if one is without the other.

The row comes before and after the call of pgqueue in turn. `--off` switches two-phase commit off, to show that the rig
finds what it is there for.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import psycopg

import pgqueue
from pgqueue import migrate

from .nodes import Nodes, nodes
from .windows import SETTINGS, WINDOWS, Connection, held

VERBS = ("put", "ack")
BOTH, NEITHER, ALONE = "both", "neither", "one alone"


def prepare(nodes: Nodes) -> None:
    for number, dsn in enumerate(nodes.all, 1):
        migrate.up(dsn, server=number)
    with psycopg.connect(nodes.coordinator, autocommit=True) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY)")
        conn.execute("SELECT create_distributed_table('orders', 'id')")


def attempt(nodes: Nodes, verb: str, window: str, keys: Sequence[int], *, off: bool = False) -> Counter[str]:
    """One end of the coordinator, in the window of as many transactions as there are keys.

    Returns how often row and verb took effect: both, neither, or one alone.
    """
    with ExitStack() as stack:
        client = stack.enter_context(pgqueue.Client(nodes.coordinator))
        victims = [stack.enter_context(psycopg.connect(nodes.coordinator)) for _ in keys]
        for victim, key in zip(victims, keys, strict=True):
            if off:
                victim.execute("SET LOCAL pgqueue.two_phase = off")
            write(client, victim, verb, key)
        with held(window, nodes.coordinator, victims):
            nodes.servers[0].restart("immediate")
    with psycopg.connect(nodes.coordinator, autocommit=True) as conn:
        conn.execute("SELECT recover_prepared_transactions()")
        return Counter(outcome(has_row(conn, key), has_task(conn, key) is (verb == "put")) for key in keys)


def outcome(row: bool, verb: bool) -> str:
    return (BOTH if row else NEITHER) if row is verb else ALONE


def write(client: pgqueue.Client, victim: Connection, verb: str, key: int) -> None:
    """Write the row, and put or ack the task, in the victim's transaction."""
    queue = client.queue(f"{verb} {key}")
    taken = None
    if verb == "ack":
        queue.put(key)
        taken = queue.take(10)
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
    parser.add_argument("--ends", type=int, default=20, help="of the coordinator, in each window; default: 20")
    parser.add_argument("--together", type=int, default=5, help="transactions in the window; default: 5")
    parser.add_argument("--verb", choices=VERBS, help="default: both")
    parser.add_argument("--bindir", type=Path, help="the programs of a PostgreSQL that has Citus")
    parser.add_argument("--off", action="store_true", help="without two-phase commit: one is left without the other")
    options = parser.parse_args()
    keys = itertools.count(1)
    alone = 0
    print("| verb | window | ends | transactions | both | neither | one alone |\n|---|---|--:|--:|--:|--:|--:|")
    with nodes(options.bindir, **SETTINGS) as started:
        prepare(started)
        for verb, window in itertools.product([options.verb] if options.verb else VERBS, WINDOWS):
            found = Counter[str]()
            for _ in range(options.ends):
                found += attempt(started, verb, window, list(islice(keys, options.together)), off=options.off)
            counts = " | ".join(str(found[name]) for name in (BOTH, NEITHER, ALONE))
            print(f"| {verb} | {window} | {options.ends} | {found.total()} | {counts} |", flush=True)
            alone += found[ALONE]
    return int(bool(alone))


if __name__ == "__main__":
    sys.exit(main())
