"""Calls of 7_operations/health.sql: checks of the database as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, LiteralString, NamedTuple

from .call import Call, Rows, query
from .stats import AS_JSON, Stats
from .tallies import JobRuns


class Check(NamedTuple):
    """A row of the view pgqueue.health."""

    name: str
    status: Literal["ok", "warn", "bad"]
    value: float  # may be infinity
    unit: str
    detail: str


def health() -> Call[list[Check]]:
    return query(
        "SELECT name, status, value, unit, detail FROM pgqueue.health", (), lambda rows: [Check(*row) for row in rows]
    )


class Conditions(NamedTuple):
    """The values that alerts compare besides the stats: the paused queues, the failed runs that workers counted in each
    queue since ever, the late schedules (their names, queues and seconds), and the snapshot that has been held
    longest."""

    paused: frozenset[str] = frozenset()
    failed: Mapping[str, int] = {}
    late: Sequence[tuple[str, str, float]] = ()
    snapshot: tuple[str, float] | None = None


def conditions(queues: Sequence[str] | None) -> Call[Conditions]:
    """The conditions of these queues, or of all; snapshots belong to none."""

    def read(rows: Rows) -> Conditions:
        found: dict[str, list[tuple[str, str, float]]] = {"paused": [], "failed": [], "late": [], "snapshot": []}
        for kind, name, queue, value in rows:
            found[kind].append((name, queue, value))
        return Conditions(
            frozenset(queue for _, queue, _ in found["paused"]),
            {queue: int(value) for _, queue, value in found["failed"]},
            [late for late in found["late"] if queues is None or late[1] in queues],
            next(((name, value) for name, _, value in found["snapshot"]), None),
        )

    return query(
        "SELECT 'paused', NULL, name, NULL::float FROM pgqueue.queues WHERE paused_until IS NOT NULL"
        " UNION ALL SELECT 'failed', NULL, queue, pg_catalog.sum(failed OPERATOR(pg_catalog.+) retried)::float"
        " FROM pgqueue.job_runs(since => NULL) GROUP BY queue"
        " UNION ALL SELECT 'late', name, queue, extract(epoch FROM late)::float FROM pgqueue.schedules"
        " WHERE late IS NOT NULL"
        " UNION ALL (SELECT 'snapshot', pg_catalog.concat_ws(' ', kind, name, 'pid', pid, state), NULL,"
        " extract(epoch FROM age)::float FROM pgqueue.snapshots WHERE holds_back AND age IS NOT NULL"
        " ORDER BY age DESC LIMIT 1)",
        (),
        read,
    )


class LimitUse(NamedTuple):
    """The numbers that a limit allows, and the tasks that have a slot or wait for one. `job` is "" for the limit of a
    queue, `argument` "" for one limit over all tasks. `rate`: tasks a second."""

    queue: str
    job: str
    argument: str
    concurrency: int | None
    rate: float | None
    running: int
    waiting: int


class BatchStats(NamedTuple):
    """A row of the view pgqueue.batch_stats."""

    state: Literal["open", "running", "failed"]
    batches: int
    open: int
    failed: int


class ScheduleState(NamedTuple):
    """The state of a schedule. `late`: seconds that an occurrence has waited; `last`: seconds since 1970, 0 for never;
    `failed`: its last task failed, or its last put was refused."""

    queue: str
    name: str
    late: float
    last: float
    failed: bool


class Everything(NamedTuple):
    """The values that monitors read: the stats of every queue by its name, the numbers of connected clients with a
    session and of workers, the runs of jobs since ever, limits, batches, schedules, and the checks."""

    stats: dict[str, Stats]
    sessions: int
    workers: int
    jobs: list[JobRuns]
    limits: list[LimitUse]
    batches: list[BatchStats]
    schedules: list[ScheduleState]
    health: list[Check]


#: The rows of a scrape for each of these: the columns of the record, as a JSON object.
_LISTS: tuple[tuple[LiteralString, type[Any], LiteralString], ...] = (
    (
        "job",
        JobRuns,
        "SELECT queue, job, done, failed, retried, timeouts, cancelled, waited, ran, waits, runs"
        " FROM pgqueue.job_runs(since => NULL)",
    ),
    (
        "limit",
        LimitUse,
        "SELECT queue, coalesce(job, '') AS job, coalesce(argument, '') AS argument, concurrency,"
        " rate OPERATOR(pg_catalog./) extract(epoch FROM per)::float AS rate, running, waiting FROM pgqueue.limits",
    ),
    ("batch", BatchStats, "SELECT state, batches, open, failed FROM pgqueue.batch_stats"),
    (
        "schedule",
        ScheduleState,
        "SELECT queue, name, coalesce(extract(epoch FROM late), 0)::float AS late,"
        " coalesce(extract(epoch FROM last_at), 0)::float AS last,"
        " refused OR coalesce(last_state, '') OPERATOR(pg_catalog.=) ANY ('{buried,failed,cancelled}') AS failed"
        " FROM pgqueue.schedules",
    ),
    ("check", Check, "SELECT name, status, value, unit, detail FROM pgqueue.health"),
)


def everything() -> Call[Everything]:
    """All of it in one statement."""

    def read(rows: Rows) -> Everything:
        stats = {name: json.loads(found) for found, name, kind in rows if kind == "queue"}
        sessions, workers = (
            sum(int(found) for found, _, kind in rows if kind == one) for one in ("sessions", "workers")
        )
        lists: dict[str, list[Any]] = {kind: [] for kind, _, _ in _LISTS}
        for found, _, kind in rows:
            if kind in lists:
                lists[kind].append(json.loads(found))
        jobs, limits, batches, schedules, checks = ([made(**row) for row in lists[kind]] for kind, made, _ in _LISTS)
        health = [check._replace(value=float(check.value)) for check in checks]  # infinity is a string in JSON
        return Everything(stats, sessions, workers, jobs, limits, batches, schedules, health)

    lists = "".join(
        f" UNION ALL SELECT pg_catalog.to_json(r)::pg_catalog.text, NULL, '{kind}' FROM ({select}) r"
        for kind, _, select in _LISTS
    )
    return query(
        AS_JSON + ", queue, 'queue' FROM pgqueue.stats"
        " UNION ALL SELECT pg_catalog.count(*)::pg_catalog.text, NULL, 'sessions' FROM pgqueue.sessions"
        " WHERE parent IS NULL AND state OPERATOR(pg_catalog.=) 'connected'"
        " UNION ALL SELECT pg_catalog.count(*)::pg_catalog.text, NULL, 'workers' FROM pgqueue.workers" + lists,
        (),
        read,
    )
