"""The SQL files of the schema in their order, and the schema versions that this library works with.

Tables are versioned, functions are not. `sql/1_tables/` holds the tables as they are today, and migrations/ holds the
steps that led there. Every other file is code: CREATE OR REPLACE throughout, run again at the end of each upgrade, in
the upgrade's transaction. If the functions were versioned like the tables, each change of one line would be a copied
file, and a reader would have to assemble today's code from all of them.

CONTRIBUTING.md, "Change the schema", has the steps of a change, and says when to raise NEWEST and OLDEST below.

This file imports nothing heavy: every client imports it at its start.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..errors import SchemaError

#: The layers of the SQL and the files of each layer, in the order in which they are run. A file refers only to files
#: before it; tests/project/test_sql_layers.py checks the references.
LAYERS = {
    "1_tables": (
        *("schema", "roles", "quotas", "audit", "tasks", "attempts", "limits", "sessions", "line", "statistics"),
        *("tallies", "statuses", "coordination", "exchanges", "schedules", "ticks", "flows", "servers"),
    ),
    "2_base": (
        *("advisory", "nowait", "parts", "caller", "bounds", "record", "quotas", "server", "rights", "roles", "names"),
        *("secret", "changeover", "latches", "line", "wake", "session", "turns", "identity"),
        *("stats", "queue_stats", "task", "specification"),
    ),
    "3_moves": ("announce", "follow", "count", "untake", "leave", "cancelled", "moves"),
    "4_rules": (
        "attempts",
        *("flows/links", "flows/deciding", "flows/waiting"),
        *("dead", "due", "suspect", "lanes"),
        *("limits/meters", "limits/admission", "limits/setting", "limits/following"),
        "unanswered",
    ),
    "5_verbs": (
        *("put/special", "put/unique", "put/checked", "put/together", "put/put"),
        *("put/hand_on", "put/graphs", "put/batches", "put/again"),
        *("take/heads", "take/take", "take/undo", "take/pop"),
        *("settle/settle", "settle/touch", "settle/ack", "settle/requeue", "settle/cancel"),
        *("queue/listed", "queue/queue", "queue/draining"),
        *("pick", "find", "truncate", "transfer"),
    ),
    "6_families": (
        *("channels", "statuses", "dependencies", "results", "steps", "locks", "nodes"),
        *("exchanges", "publish", "wills", "expiry", "claims", "messages", "changes", "tallies", "schedules", "firing"),
    ),
    "7_operations": (
        *("monitor", "neighbours", "audit", "servers", "foreign", "workers", "health", "history"),
        *("ticks", "sweep", "cleaning", "outside"),
    ),
    "8_grants": ("owned", "grants", "bound", "settings", "restored", "citus"),
}
TABLES = tuple(f"1_tables/{name}.sql" for name in LAYERS["1_tables"])
CODE = tuple(f"{layer}/{name}.sql" for layer, names in LAYERS.items() if layer != "1_tables" for name in names)
FILES = TABLES + CODE

#: The schema versions that this library works with, both ends included. Revisions are numbered "0001",
#: "0002", ..., so that text compares like numbers, also for a revision that only a later library knows.
OLDEST = "0001"
NEWEST = "0001"

#: Run it outside of a caller's transaction: without the table it raises undefined_table, which aborts the transaction.
VERSIONS = "SELECT version_num FROM pgqueue.schema_version"

_MISSING = {"42P01", "3F000"}  # undefined_table, invalid_schema_name


def read(name: str) -> str:
    """The text of one file of `FILES`."""
    return (Path(__file__).parent / name).read_text("utf-8")


def mismatch(versions: Iterable[str] = (), *, sqlstate: str | None = None) -> SchemaError | None:
    """The error if this library cannot work with a database's schema, else None.

    `versions` are the rows that `VERSIONS` returned, or `sqlstate` is the error that it raised. An error that does not
    concern the schema gives None.
    """
    if sqlstate is not None and sqlstate not in _MISSING:
        return None
    found = max(versions, default=None)  # one row; none before the first upgrade and after a `down` to base
    if found is None:
        return SchemaError("this database has no pgqueue schema: run `pgqueue migrate up`")
    if found < OLDEST:
        return SchemaError(
            f"the pgqueue schema is at version {found}, this library needs {OLDEST}: run `pgqueue migrate up`"
        )
    if found > NEWEST:
        return SchemaError(
            f"the pgqueue schema is at version {found}, this library knows only {NEWEST}: upgrade the library"
        )
    return None
