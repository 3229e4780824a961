"""What one role feels of the thousands of things that another one has made: python -m benchmarks.strangers --dsn DSN

The role `stranger` makes them in queues of its own, the role `neighbour` calls, and a monitor looks. The figures are
milliseconds that the server computes for a call, and in parentheses those of the same call before, in the same
database. It needs a server on this machine (Linux), and a superuser's DSN; it makes a database and three roles, and
drops them.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgqueue import migrate

ROLES = ("stranger", "neighbour", "monitor")
NUMBERS = "generate_series(1, {n}) g"

#: What the stranger makes, by one statement each; {n}: how many.
MADE = {
    "schedules": [f"SELECT count(pgqueue.set_schedule('s' || g, 's.q', '1', every => '1 h')) FROM {NUMBERS}"],
    "open batches": [f"SELECT count(pgqueue.create_batch('b' || g)) FROM {NUMBERS}"],
    "members of a batch": [
        f"SELECT count(p) FROM pgqueue.create_batch('b') b, {NUMBERS}, pgqueue.put_flow('s.q', '1', batch => b) p"
    ],
    "limits": [f"SELECT count(pgqueue.set_limit('s.q', job => 'j' || g, concurrency => 1)) FROM {NUMBERS}"],
    "values of a limit": [
        "SELECT pgqueue.set_limit('s.q', concurrency => 1, argument => 'k')",
        f"SELECT pgqueue.put_many('s.q', (SELECT jsonb_agg(jsonb_build_object('k', g)) FROM {NUMBERS}))",
        "SELECT pgqueue.set_limit('s.q', concurrency => 2, argument => 'k')",
    ],
    "bindings": [f"SELECT count(pgqueue.bind('s.q', 'shared', g || '.*.x')) FROM {NUMBERS}"],
    "statuses": [f"SELECT count(pgqueue.set_status('k' || g, '1')) FROM {NUMBERS}"],
    "a chain of tasks that fails": [
        "SELECT pgqueue.put_graph((SELECT jsonb_agg(jsonb_build_object('queue', 's.q', 'data', g, "
        "'on_failure', 'bury', 'after', CASE WHEN g > 1 THEN jsonb_build_array(1 - g) ELSE '[]' END) ORDER BY g) "
        "FROM generate_series(1, least({n}, 500)) g))",
        "SELECT pgqueue.bury(min(id)) FROM pgqueue.tasks",
    ],
}

#: What the others call.
FELT = {
    "put, take, ack": (
        "neighbour",
        "WITH p AS MATERIALIZED (SELECT id FROM pgqueue.put('u.q', '1')) SELECT count(*) FROM p",
        "SELECT pgqueue.ack(t.id, t.token) FROM pgqueue.take('u.q') t",
    ),
    "tick": ("neighbour", "SELECT pgqueue.promote_all()", "SELECT pgqueue.sweep()"),
    "clean_up": ("neighbour", "SELECT pgqueue.clean_up()"),
    "publish": ("neighbour", "SELECT pgqueue.publish('shared', 'order.new', '1')"),
    "due_schedules": ("neighbour", "SELECT * FROM pgqueue.due_schedules()"),
    "batch_stats": ("monitor", "SELECT * FROM pgqueue.batch_stats"),
    "stats": ("monitor", "SELECT * FROM pgqueue.stats"),
    "health": ("monitor", "SELECT * FROM pgqueue.health"),
}


def connect(dsn: str, role: str | None = None) -> psycopg.Connection[Any]:
    conn = psycopg.connect(dsn, autocommit=True)
    if role is not None:
        conn.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(role)))
    return conn


@contextmanager
def database(dsn: str) -> Iterator[str]:
    """A migrated database with the roles, and a queue and an exchange that the neighbour has."""
    name = "pgqueue_strangers"
    with connect(dsn) as conn:
        conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        for role in ROLES:
            conn.execute(sql.SQL("DROP ROLE IF EXISTS {0}; CREATE ROLE {0} LOGIN").format(sql.Identifier(role)))
        own = make_conninfo(dsn, dbname=name)
        try:
            migrate.up(own)
            with connect(own) as owner:
                owner.execute(
                    "SELECT pgqueue.grant_to('neighbour', pattern => 'u.*'), pgqueue.grant_monitor('monitor')"
                )
                owner.execute("SELECT pgqueue.grant_to('stranger', pattern => 's.*')")
                owner.execute(
                    "SELECT pgqueue.grant_to('neighbour', '{share}'), pgqueue.grant_to('stranger', '{share}')"
                )
            with connect(own, "neighbour") as neighbour:
                neighbour.execute("SELECT pgqueue.queue_id('u.q'), pgqueue.declare_exchange('shared', 'topic')")
                neighbour.execute("SELECT pgqueue.bind('u.q', 'shared', 'order.#')")
            yield own
        finally:
            conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
            for role in ROLES:
                conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def computed(pid: int) -> int:
    """The nanoseconds for which a process has had a processor."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def felt(dsn: str, times: int) -> dict[str, float]:
    """Milliseconds of each call: the median."""
    found = {}
    for what, (role, *statements) in FELT.items():
        with connect(dsn, role) as conn:
            took = []
            for _ in range(times + 3):
                began = computed(conn.info.backend_pid)
                for statement in statements:
                    conn.execute(statement)
                took.append((computed(conn.info.backend_pid) - began) / 1e6)
            found[what] = statistics.median(took[3:])  # the first calls compile the functions
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", required=True, help="a superuser's")
    parser.add_argument("--number", type=int, default=10_000, help="how many of each thing the stranger makes")
    parser.add_argument("--only", nargs="+", choices=MADE, default=list(MADE), help="some of the things")
    parser.add_argument("--times", type=int, default=15, help="how often each call is timed")
    given = parser.parse_args()
    print("| the stranger has made |", " | ".join(FELT), "|")
    print("|---" * (len(FELT) + 1) + "|")
    for what in given.only:
        with database(given.dsn) as dsn:
            before = felt(dsn, given.times)
            with connect(dsn, "stranger") as stranger:
                stranger.execute("SELECT pgqueue.queue_id('s.q')")
                for statement in MADE[what]:
                    stranger.execute(statement.format(n=given.number))
            after = felt(dsn, given.times)
        cells = (f"{after[call]:.1f} ({before[call]:.1f})" for call in FELT)
        print(f"| {what} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
