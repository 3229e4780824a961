"""The answers of the stats commands and of list-tubes.

A tube exists, as the protocol has it, as long as it has a job or a connection refers to it. Its queue stays in the
database, with its options and its counts. Counts of commands are those of this server since it began; counts of jobs
are those of the database, so they include the tasks of all programs.
"""

from __future__ import annotations

import json
import os
import resource
from datetime import datetime
from time import monotonic
from typing import Any, NamedTuple

from .. import AsyncClient, __version__
from .._calls.call import Call, Rows, query
from .._calls.server import OWN
from .._calls.stats import Stats, summed
from ..errors import NoQueue, TaskNotFound
from . import protocol
from .clock import Clock
from .figures import Figures
from .jobs import MIDDLE, existing

URGENT = 1024 - MIDDLE
COUNTED = 10_000  # urgent jobs of a tube at most: a count reads each of them

#: The commands that stats counts, in its order.
_COUNTED = (
    *("put", "peek", "peek-ready", "peek-delayed", "peek-buried", "reserve", "reserve-with-timeout", "delete"),
    *("release", "use", "watch", "ignore", "bury", "kick", "touch", "stats", "stats-job", "stats-tube", "list-tubes"),
    *("list-tube-used", "list-tubes-watched", "pause-tube"),
)
_BINLOG = ("oldest-index", "current-index", "records-migrated", "records-written", "max-size")


class Reports:
    """The statistics of a server."""

    def __init__(self, client: AsyncClient, figures: Figures, clock: Clock) -> None:
        self._client = client
        self._figures = figures
        self._clock = clock

    async def tubes(self) -> bytes:
        """The names of the tubes that exist: `default`, then the others by name."""
        found = {name for name, stats in (await self._client.stats()).items() if stats["total"]}
        names = sorted(filter(protocol.is_tube, found | self._figures.referred()))
        return protocol.listing(sorted(names, key=lambda name: name != "default"))

    async def tube_stats(self, tube: str) -> Stats | None:
        """The counts of a tube; None if it does not exist."""
        stats = await self._client.queue(tube).stats()
        return stats if stats["total"] or tube in self._figures.referred() else None

    async def tube(self, tube: str) -> bytes:
        """stats-tube"""
        figures, stats = self._figures, await self.tube_stats(tube)
        if stats is None:
            return protocol.NOT_FOUND
        left = await self._pause_left(tube)
        pause = figures.pauses.get(tube)
        values: dict[str, object] = {
            "name": _quoted(tube),
            **_jobs(stats, await self._client.shell.run(_urgent(tube))),
            "total-jobs": stats["calls"]["put"],
            "current-using": figures.count(lambda peer: peer.used == tube),
            "current-watching": figures.count(lambda peer: tube in peer.watched),
            "current-waiting": figures.count(lambda peer: peer.waiting and tube in peer.watched),
            "cmd-delete": stats["calls"]["ack"] + stats["calls"]["delete"],
            "cmd-pause-tube": pause.times if pause else 0,
            "pause": 0 if left <= 0 else pause.seconds if pause else int(left),
            "pause-time-left": int(left),
        }
        return protocol.mapping(values)

    async def job(self, id: int) -> bytes:
        """stats-job"""
        job = await self._client.shell.run(_job(existing(id)))
        reserved = job.state in ("taken", "cancelling")
        left = int(job.left or 0)
        values: dict[str, object] = {
            "id": job.id,
            "tube": _quoted(job.tube),
            "state": "reserved" if reserved else job.state if job.state in ("delayed", "buried") else "ready",
            "pri": job.priority + MIDDLE,
            "age": int(job.age),
            "delay": left + 1 if job.state == "delayed" else 0,
            "ttr": int(job.ttr or 0),
            "time-left": left,
            "file": 0,
            "reserves": reserved + job.releases + job.timeouts + job.buries,
            "timeouts": job.timeouts,
            "releases": job.releases,
            "buries": job.buries,
            "kicks": job.kicks,
        }
        return protocol.mapping(values)

    async def server(self) -> bytes:
        """stats"""
        figures, found = self._figures, await self._client.stats()
        stats, used, system = summed(found.values()), resource.getrusage(resource.RUSAGE_SELF), os.uname()
        tubes = figures.referred().union(name for name, one in found.items() if one["total"])
        values: dict[str, object] = {
            **_jobs(stats, await self._client.shell.run(_urgent(None))),
            **{f"cmd-{name}": figures.commands[name] for name in _COUNTED},
            "job-timeouts": stats["calls"]["ttr"],
            "total-jobs": stats["calls"]["put"],
            "max-job-size": figures.max_job_size,
            "current-tubes": sum(1 for tube in tubes if protocol.is_tube(tube)),
            "current-connections": len(figures.peers),
            "current-producers": figures.count(lambda peer: peer.producer),
            "current-workers": figures.count(lambda peer: peer.worker),
            "current-waiting": figures.count(lambda peer: peer.waiting),
            "total-connections": figures.accepted,
            "pid": os.getpid(),
            "version": _quoted(f"pgqueue {__version__}"),
            "rusage-utime": f"{used.ru_utime:.6f}",
            "rusage-stime": f"{used.ru_stime:.6f}",
            "uptime": int(monotonic() - figures.began),
            **{f"binlog-{name}": 0 for name in _BINLOG},
            "draining": "true" if figures.draining else "false",
            "id": figures.id,
            "hostname": _quoted(system.nodename),
            "os": _quoted(system.version),
            "platform": _quoted(system.machine),
        }
        return protocol.mapping(values)

    async def _pause_left(self, tube: str) -> float:
        """Seconds until the pause of a tube ends, or 0."""
        try:
            until: datetime | None = (await self._client.queue(tube).info()).paused_until
        except NoQueue:
            return 0.0
        return 0.0 if until is None else max(0.0, await self._clock.left(until))


def _jobs(stats: Stats, urgent: int) -> dict[str, object]:
    return {
        "current-jobs-urgent": urgent,
        "current-jobs-ready": stats["ready"] + stats["blocked"],
        "current-jobs-reserved": stats["taken"],
        "current-jobs-delayed": stats["delayed"],
        "current-jobs-buried": stats["buried"],
    }


def _quoted(text: str) -> str:
    """Text as a scalar of YAML. JSON is YAML; and a queue that is no tube may have any name."""
    return json.dumps(text)


def _urgent(tube: str | None) -> Call[int]:
    """How many ready jobs of a tube have a priority below 1024, at most COUNTED; None: of every tube, in sum."""

    def read(rows: Rows) -> int:
        count: int = rows[0][0]
        return count

    return query(
        "SELECT pg_catalog.count(*) FROM pgqueue.stats s CROSS JOIN LATERAL"
        " pgqueue.find_tasks(queue => s.queue, state => 'ready', n => %s::int) t"
        " WHERE (%s::pg_catalog.text IS NULL OR s.queue OPERATOR(pg_catalog.=) %s::pg_catalog.text)"
        " AND s.ready OPERATOR(pg_catalog.>) 0 AND t.priority OPERATOR(pg_catalog.<) %s::int",
        (COUNTED, tube, tube, URGENT),
        read,
    )


class _Job(NamedTuple):
    id: int
    tube: str
    state: str
    priority: int
    age: float  # seconds since its put
    ttr: float | None
    left: float | None  # seconds until its take or its delay ends
    releases: int
    timeouts: int
    buries: int
    kicks: int


def _job(id: int) -> Call[_Job]:
    def read(rows: Rows) -> _Job:
        found: list[Any] = [row for row in rows if row[2] != "done"]
        if not found:
            raise TaskNotFound(f"there is no task {id}", id)
        return _Job(*found[0])

    return query(
        "SELECT id, queue, state, priority,"
        " extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) created_at)::float,"
        " extract(epoch FROM ttr)::float,"
        " extract(epoch FROM CASE state WHEN 'taken' THEN deadline WHEN 'delayed' THEN run_at END"
        " OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp())::float,"
        f" releases, timeouts, buries, kicks FROM pgqueue.tasks WHERE id OPERATOR(pg_catalog.=) %s::bigint {OWN}",
        (id, id),
        read,
    )
