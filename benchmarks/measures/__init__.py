"""One file a measure: a function from a Bench to its Findings. The order here is the order of the table."""

from __future__ import annotations

from ..bench import Measure
from . import (
    bulk_put,
    celery,
    dashboard,
    delayed,
    depth,
    drain,
    held_snapshot,
    idle,
    in_flight,
    jobs,
    kill,
    lanes,
    latency,
    many_queues,
    monitoring,
    one_by_one,
    poll,
    post,
    publishing,
    single_put,
    sql_claim,
    together,
    waiting,
    wal,
)

MEASURES: dict[str, Measure] = {
    "single-put": single_put.measure,
    "together": together.measure,
    "one-by-one": one_by_one.measure,
    "drain": drain.measure,
    "latency": latency.measure,
    "waiting": waiting.measure,
    "idle": idle.measure,
    "held-snapshot": held_snapshot.measure,
    "many-queues": many_queues.measure,
    "sql-claim": sql_claim.measure,
    "publishing": publishing.measure,
    "wal": wal.measure,
    "bulk-put": bulk_put.measure,
    "post": post.measure,
    "depth": depth.measure,
    "delayed": delayed.measure,
    "in-flight": in_flight.measure,
    "lanes": lanes.measure,
    "poll": poll.measure,
    "monitoring": monitoring.measure,
    "dashboard": dashboard.measure,
    "jobs": jobs.measure,
    "kill": kill.measure,
    "celery": celery.measure,
}

#: Those that the page's table of targets shows.
MAIN = (
    "single-put",
    "together",
    "one-by-one",
    "drain",
    "latency",
    "waiting",
    "idle",
    "held-snapshot",
    "many-queues",
    "sql-claim",
)
