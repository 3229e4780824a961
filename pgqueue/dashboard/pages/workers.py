"""Workers: their process, what they serve and what each runs now; and the other clients."""

from __future__ import annotations

from typing import Any

from ..._calls.rows import Row, rows
from .visit import MOST, Column, Listing, Page, Visit

COLUMNS = (
    "session",
    "number",
    "name",
    "host",
    "pid",
    "state",
    "concurrency",
    "version",
    "role",
    "started_at",
    "queues",
    "jobs",
    "limits::pg_catalog.text AS limits",
)
TAKES = ("id", "queue", "session", "taken_at", "deadline")
RUNNING = (
    "FROM (SELECT k.*, pg_catalog.row_number() OVER (PARTITION BY session ORDER BY taken_at) AS place"
    " FROM pgqueue.takes k) k WHERE place OPERATOR(pg_catalog.<=) 5 ORDER BY taken_at LIMIT 1000"
)
CLIENTS = Listing(
    "clients",
    "Clients",
    (
        Column("Client", "label"),
        Column("State", "state", "state"),
        Column("Tasks", "taken", "number"),
        Column("Longest take", "longest", "duration"),
        Column("Since", "started_at", "ago"),
        Column("Grace", "grace", "duration"),
        Column("Role", "role"),
    ),
    (
        "label",
        "state",
        "taken",
        "extract(epoch FROM longest_take)::float AS longest",
        "started_at",
        "extract(epoch FROM grace)::float AS grace",
        "role",
    ),
    "FROM pgqueue.sessions ORDER BY taken DESC, label",
    "No client that takes is connected.",
)


async def read(visit: Visit) -> dict[str, Any]:
    workers = await visit.read(
        rows(COLUMNS, "FROM pgqueue.workers ORDER BY name, session, number LIMIT %s::int", MOST + 1)
    )
    running: dict[int, list[Row]] = {}
    for take in await visit.read(rows(TAKES, RUNNING)):
        running.setdefault(take["session"], []).append(take)
    return {
        "workers": workers[:MOST],
        "more": len(workers) > MOST,
        "running": running,
        "tables": [await CLIENTS.table(visit)],
    }


PAGE = Page("workers", "Workers", "workers.html", read)
