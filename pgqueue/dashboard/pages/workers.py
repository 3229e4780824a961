"""Workers: their processes, their queues and jobs, and their present runs; and the other clients."""

from __future__ import annotations

import json
from typing import Any

from ..._calls.rows import Row, rows
from .visit import Column, Listing, Page, Visit

N = 40  # workers on a page, which weighs 150 kB at most
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
    " FROM pgqueue.takes k WHERE session OPERATOR(pg_catalog.=) ANY (%s::int[])) k"
    " WHERE place OPERATOR(pg_catalog.<=) 5 ORDER BY taken_at"
)
#: Behind the last worker of the page before: its name, session and number.
BEHIND = (
    "FROM pgqueue.workers, (SELECT %s::pg_catalog.jsonb AS at) marker WHERE at IS NULL"
    " OR (name, session, number) OPERATOR(pg_catalog.>) (at OPERATOR(pg_catalog.->>) 0,"
    " (at OPERATOR(pg_catalog.->>) 1)::int, (at OPERATOR(pg_catalog.->>) 2)::int)"
    " ORDER BY name, session, number LIMIT %s::int"
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
    cards=True,
)


async def read(visit: Visit) -> dict[str, Any]:
    after = visit.asked.marker()
    found = await visit.read(rows(COLUMNS, BEHIND, after, N + 1))
    workers = found[:N]
    running: dict[int, list[Row]] = {}
    for take in await visit.read(rows(TAKES, RUNNING, sorted({one["session"] for one in workers}))):
        running.setdefault(take["session"], []).append(take)
    last = [workers[-1][name] for name in ("name", "session", "number")] if len(found) > N else None
    return {
        "workers": workers,
        "after": after,
        "more": json.dumps(last) if last else None,
        "running": running,
        "tables": [await CLIENTS.table(visit)],
    }


PAGE = Page("workers", "Workers", "workers.html", read)
