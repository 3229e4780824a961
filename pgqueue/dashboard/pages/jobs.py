"""Jobs: how their runs ended in the last hour, how long tasks waited and ran, and how both are distributed."""

from __future__ import annotations

from typing import Any

from ..._calls import tallies
from ..._calls.rows import rows
from .. import drawing
from .visit import MOST, Page, Visit

COLUMNS = (
    "queue",
    "job",
    "done",
    "failed",
    "retried",
    "timeouts",
    "cancelled",
    "taken",
    "wait_p50",
    "wait_p95",
    "run_p50",
    "run_p95",
    "last_at",
)
ORDERS = {
    "busiest": " ORDER BY done OPERATOR(pg_catalog.+) failed OPERATOR(pg_catalog.+) retried DESC, queue, job",
    "slowest": " ORDER BY run_p95 DESC NULLS LAST, queue, job",
    "latest": " ORDER BY wait_p95 DESC NULLS LAST, queue, job",
}
HISTOGRAM = ("waits", "runs")
OF_JOB = (
    "FROM pgqueue.job_runs() WHERE queue OPERATOR(pg_catalog.=) %s::pg_catalog.text"
    " AND job OPERATOR(pg_catalog.=) %s::pg_catalog.text"
)
MINUTES = ("at", "done", "failed", "retried", "run_p95", "wait_p95")
HISTORY = (
    "FROM pgqueue.job_history WHERE queue OPERATOR(pg_catalog.=) %s::pg_catalog.text"
    " AND job OPERATOR(pg_catalog.=) %s::pg_catalog.text AND period OPERATOR(pg_catalog.=) 'minute' ORDER BY at"
)


async def read(visit: Visit) -> dict[str, Any]:
    order = visit.asked.one_of("order", tuple(ORDERS), "busiest")
    jobs = await visit.read(rows(COLUMNS, "FROM pgqueue.job_stats" + ORDERS[order] + f" LIMIT {MOST}"))
    return {"jobs": jobs, "order": order, "orders": tuple(ORDERS)}


async def read_job(visit: Visit) -> dict[str, Any]:
    queue, job = visit.asked.queue(), visit.asked.text("job") or ""
    source = "FROM pgqueue.job_stats WHERE queue OPERATOR(pg_catalog.=) %s::pg_catalog.text"
    source += " AND job OPERATOR(pg_catalog.=) %s::pg_catalog.text"
    found = await visit.read(rows(COLUMNS, source, queue, job))
    histograms = await visit.read(rows(HISTOGRAM, OF_JOB, queue, job))
    history = await visit.read(rows(MINUTES, HISTORY, queue, job))
    return {
        "title": job or "(no job)",
        "queue": queue,
        "job": job,
        "stats": found[0] if found else None,
        "charts": _charts(history) if len(history) > 1 else [],
        "waits": drawing.histogram(histograms[0]["waits"], tallies.BOUNDS) if histograms else None,
        "runs": drawing.histogram(histograms[0]["runs"], tallies.BOUNDS) if histograms else None,
    }


def _charts(history: list[dict[str, Any]]) -> list[drawing.Chart]:
    at = [row["at"] for row in history]
    ended = {name: [row[name] for row in history] for name in ("done", "retried", "failed")}
    times = {"ran": [row["run_p95"] for row in history], "waited": [row["wait_p95"] for row in history]}
    return [
        drawing.chart("Runs a minute", at, ended, "number"),
        drawing.chart("95 % of runs and waits, in seconds", at, times, "duration"),
    ]


PAGE = Page("jobs", "Jobs", "jobs.html", read)
JOB = Page("job", "Job", "job.html", read_job)
