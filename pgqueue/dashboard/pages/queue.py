"""A queue: its tasks by state, why they are not done, its workers, and its options with their meaning."""

from __future__ import annotations

from typing import Any

from ..._calls import queue as calls
from ..._calls import stats as counting
from ..._calls.rows import rows
from ...monitors import reasons
from ...monitors.overview import RATES, RATES_OF
from . import histories
from .visit import Page, Visit

WORKERS = ("name", "host", "pid", "state", "concurrency", "age", "cardinality(queues) AS queues")
SERVES = "FROM pgqueue.workers WHERE %s::pg_catalog.text OPERATOR(pg_catalog.=) ANY (queues) ORDER BY name LIMIT 20"
JOBS = ("job", "done", "failed", "retried", "taken", "wait_p50", "wait_p95", "run_p50", "run_p95")
OF_QUEUE = " WHERE queue OPERATOR(pg_catalog.=) %s::pg_catalog.text"


async def read(visit: Visit) -> dict[str, Any]:
    name = visit.asked.queue("name")
    span = visit.asked.one_of("span", tuple(histories.SPANS), "hour")
    info = await visit.read(calls.queue(name))
    rate = await visit.read(rows(RATES, RATES_OF, [name]))
    return {
        "title": name,
        "queue": info,
        "stats": await visit.read(counting.stats(name)),
        "rate": rate[0] if rate else None,
        "reasons_found": await reasons.of_queue(visit.read, name),
        "span": span,
        "spans": tuple(histories.SPANS),
        "charts": await histories.charts(visit, name, span),
        "workers": await visit.read(rows(WORKERS, SERVES, name)),
        "jobs": await visit.read(rows(JOBS, "FROM pgqueue.job_stats" + OF_QUEUE + " ORDER BY job LIMIT 50", name)),
        "options": [(option, getattr(info, option), meaning) for option, meaning in calls.MEANINGS.items()],
        "metadata": visit.shown(name, info.metadata),
    }


PAGE = Page("queue", "Queue", "queue.html", read)
