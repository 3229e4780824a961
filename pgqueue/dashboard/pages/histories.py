"""The history of a queue as charts, and of many as small lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from markupsafe import Markup

from ..._calls.history import QueuePeriod, history
from ..._calls.rows import rows
from .. import drawing
from .visit import Visit

#: The choices: how long ago the charts begin, and the length of a period, which divides the days since `ORIGIN`.
SPANS = {
    "hour": (timedelta(hours=1), timedelta(minutes=1)),
    "day": (timedelta(days=1), timedelta(minutes=15)),
    "month": (timedelta(days=31), timedelta(hours=8)),
    "year": (timedelta(days=366), timedelta(days=4)),
}
#: As long as the rows of job_history are in that span, or longer.
RUNS = {"hour": timedelta(minutes=1), "day": timedelta(hours=1), "month": timedelta(days=1), "year": timedelta(days=4)}
RUN_TIMES = (
    "pg_catalog.date_bin(%s::pg_catalog.interval, at, %s::pg_catalog.timestamptz) AS at",
    "pg_catalog.sum(waited) AS waited",
    "pg_catalog.sum(ran) AS ran",
    "pg_catalog.sum(pg_catalog.int8pl(pg_catalog.int8pl(done, failed), pg_catalog.int8pl(retried, cancelled))) AS runs",
)
RUNS_SINCE = (
    "FROM pgqueue.job_history WHERE queue OPERATOR(pg_catalog.=) %s::pg_catalog.text"
    " AND at OPERATOR(pg_catalog.>=) %s::pg_catalog.timestamptz GROUP BY 1 ORDER BY 1"
)
SMALL = (timedelta(hours=1), timedelta(minutes=2))
ORIGIN = datetime(2001, 1, 1, tzinfo=UTC)  # as in history.sql
UNWRITTEN = timedelta(seconds=10)  # within which a tick has written the minute that is over
WIDTH = 420  # of a chart's view box: three are beside each other
SHARED = 4.0  # times as long as other answers are shared: a history changes once a minute

Value = Callable[[QueuePeriod], float | None]


async def charts(visit: Visit, queue: str, span: str) -> list[drawing.Chart]:
    """The charts of a queue; none if it has no history of that time."""
    since, every = SPANS[span]
    found = await visit.read(history([queue], since, every), SHARED)
    if not found:
        return []
    now = datetime.now(UTC)
    at = periods(found, since, every, now)
    given = Lines(found, at)

    def rate(value: Callable[[QueuePeriod], int]) -> list[float]:
        """By the minute; of the last period, by the minutes that are over."""
        return [
            (0 if one is None else value(one)) / max(min(every, now - one_at) / timedelta(minutes=1), 1.0)
            for one_at, one in given.each()
        ]

    calls = {
        "put": rate(lambda one: one.puts),
        "given back": rate(lambda one: one.releases + one.timeouts),
        "buried": rate(lambda one: one.buries),
        "done": rate(lambda one: one.done),
    }
    states = {
        "ready, at most": given.of(lambda one: one.most_ready),
        "delayed": given.of(lambda one: one.delayed),
        "buried": given.of(lambda one: one.buried),
        "taken": given.of(lambda one: one.taken),
    }
    oldest = {"oldest ready task": given.of(lambda one: one.oldest_ready_age)}
    times = "%H:%M" if since <= timedelta(days=1) else "%Y-%m-%d"
    return [
        drawing.chart("Tasks a minute", at, calls, "number", times, WIDTH),
        drawing.chart("Tasks in the queue", at, states, "number", times, WIDTH),
        drawing.chart("Longest wait", at, oldest, "duration", times, WIDTH),
        *await run_times(visit, queue, span, times),
    ]


async def run_times(visit: Visit, queue: str, span: str, times: str) -> list[drawing.Chart]:
    """How long tasks waited and ran, as the workers of the queue counted it; none if there is a single time or none."""
    since = datetime.now(UTC) - SPANS[span][0]
    found = await visit.read(rows(RUN_TIMES, RUNS_SINCE, RUNS[span], ORIGIN, queue, since), SHARED)
    found = [row for row in found if row["runs"]]
    if len(found) < 2:
        return []
    means = {name: [row[name] / float(row["runs"]) for row in found] for name in ("ran", "waited")}
    at = [row["at"] for row in found]
    return [drawing.chart("Mean wait and run", at, means, "duration", times, WIDTH)]


async def sparks(visit: Visit, queues: Sequence[str]) -> dict[str, Markup]:
    """For each queue a small line of its ready tasks in the last hour."""
    since, every = SMALL
    found = await visit.read(history(list(queues), since, every), SHARED)
    at = periods(found, since, every, datetime.now(UTC))
    of: dict[str, list[QueuePeriod]] = {}
    for one in found:
        of.setdefault(one.queue, []).append(one)
    return {
        queue: drawing.spark("ready in the last hour", Lines(of.get(queue, []), at).of(lambda one: one.most_ready))
        for queue in queues
    }


def periods(found: Iterable[QueuePeriod], since: timedelta, every: timedelta, now: datetime) -> list[datetime]:
    """The beginning of each period, also of those without a row. The last one counts if it has a row, or is over."""
    first = now - (now - since - ORIGIN) % every - since
    latest = max((one.at for one in found), default=first)
    over = now - every - UNWRITTEN
    return [at for n in range(since // every + 2) if (at := first + n * every) <= latest or at <= over]


class Lines:
    """The values of a queue's periods; a period without a row was one of an empty queue without a call."""

    def __init__(self, found: Iterable[QueuePeriod], at: Sequence[datetime]) -> None:
        self._rows = {one.at: one for one in found}
        self._at = at

    def each(self) -> list[tuple[datetime, QueuePeriod | None]]:
        return [(at, self._rows.get(at)) for at in self._at]

    def of(self, value: Value) -> list[float]:
        return [0.0 if one is None else value(one) or 0.0 for _, one in self.each()]
