"""Buried tasks, grouped by queue, job and error, the newest group first."""

from __future__ import annotations

from typing import Any

from ..._calls.rows import rows
from .visit import MOST, Page, Visit

LOOKED_AT = 1000  # buried tasks that are grouped, the last of each queue in their order
LEAST = 20  # of each queue
QUEUES = 20  # those with the most buried tasks: a look into one costs more than its tasks
SAME = 200  # characters by which errors are the same
COLUMNS = (
    "t.queue",
    "CASE WHEN pg_catalog.pg_column_size(t.data) OPERATOR(pg_catalog.<=) 12000"
    " THEN coalesce(t.data OPERATOR(pg_catalog.->>) 'job', '') END AS job",  # NULL: the data is long
    f"coalesce(pg_catalog.left(t.error, {SAME}), '') AS error",
    "pg_catalog.count(*) AS tasks",
    "pg_catalog.max(t.buried_at) AS last_at",
    "pg_catalog.max(t.id) AS id",
    "pg_catalog.max(t.attempts) AS attempts",
)
SOURCE = (
    "FROM pg_catalog.unnest(%s::pg_catalog.text[]) q(queue)"
    " CROSS JOIN LATERAL pgqueue.find_tasks(queue => q.queue, state => 'buried',"
    " n => %s::int, backwards => true) t GROUP BY 1, 2, 3 ORDER BY 5 DESC NULLS LAST LIMIT %s::int"
)
WITH_FAILURES = (
    "FROM pgqueue.stats s WHERE s.buried OPERATOR(pg_catalog.>) 0 ORDER BY s.buried DESC, s.queue LIMIT %s::int"
)


async def read(visit: Visit) -> dict[str, Any]:
    queue = visit.asked.text("queue")
    found = [queue] if queue else [row["queue"] for row in await visit.read(rows(("s.queue",), WITH_FAILURES, QUEUES))]
    each = max(LEAST, LOOKED_AT // max(1, len(found)))
    groups = await visit.read(rows(COLUMNS, SOURCE, found, each, MOST))
    return {"queue": queue, "groups": groups, "looked_at": each, "most": QUEUES}


PAGE = Page("failures", "Failures", "failures.html", read)
