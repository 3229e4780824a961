"""Prometheus: a collector that reads the database at each scrape. This process counts nothing and has no thread for it.

The figures come from the database, so each of many processes reports the same, and prometheus_client's multiprocess
mode is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from .._calls import stats as counting
from .._calls.health import Check, health
from .._calls.stats import Stats
from .._sync.client import Client
from .._values import arguments, printable
from .._values.arguments import Seconds
from ..errors import ClosedError
from .reading import TIMEOUT, Reader, checked, chosen, stats_of

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "metrics need prometheus-client: run `pip install '.[metrics]'` in a checkout of pgqueue", name=error.name
    ) from error

State = Literal["ready", "delayed", "taken", "buried", "blocked"]
STATUSES = ("ok", "warn", "bad")
STATES: tuple[State, ...] = get_args(State)


class _Found(NamedTuple):
    stats: dict[str, Stats]
    sessions: int
    health: list[Check]


class PgqueueCollector(Collector):
    """For prometheus_client.REGISTRY.register(), or another registry. Registering does not read the database.

    Args:
        client: the client to read with; a blocking Client, which stays open.
        queues: a queue's name, or several; zeros for one that does not exist. None: all queues.
        timeout: seconds to wait for the database, over 0, or a timedelta; default 5, None waits without limit. If it is
            away, or takes longer, the scrape has only pgqueue_up with the value 0, and the log has the reason.

    Raises:
        ValueError: an argument is not valid.
    """

    def __init__(
        self, client: Client, queues: str | Sequence[str] | None = None, *, timeout: Seconds | None = TIMEOUT
    ) -> None:
        names = chosen(queues)
        checked(client)

        def read() -> _Found:
            return _Found(stats_of(client, names), client.shell.run(counting.sessions()), client.shell.run(health()))

        self._reader = Reader(read, arguments.seconds("timeout", timeout, positive=True))

    def describe(self) -> Iterator[Metric]:
        """The metrics without their values."""
        yield from _families(None)

    def collect(self) -> Iterator[Metric]:
        """The metrics with their present values."""
        try:
            found = self._reader.read()
        except ClosedError:
            found = None
        up, *others = _families(found)
        yield up
        if found is not None:
            yield from others


def _families(found: _Found | None) -> Iterator[Metric]:
    up = GaugeMetricFamily("pgqueue_up", "Whether the database answered: 1 or 0.")
    tasks = GaugeMetricFamily("pgqueue_tasks", "Tasks that are not done.", labels=["queue", "state"])
    kept = GaugeMetricFamily("pgqueue_kept_tasks", "Done tasks that are still stored, by keep_done.", labels=["queue"])
    age = GaugeMetricFamily(
        "pgqueue_oldest_ready_age_seconds",
        "How long the oldest ready task has been there; 0 if nothing is ready.",
        labels=["queue"],
    )
    done = CounterMetricFamily(
        "pgqueue_done", "How many tasks were acked or deleted, or expired, in all.", labels=["queue"]
    )
    calls = CounterMetricFamily(
        "pgqueue_calls", "Tasks for which a verb was called, or that reached a time limit.", labels=["queue", "verb"]
    )
    sessions = GaugeMetricFamily("pgqueue_sessions", "Clients that take.")
    statuses = GaugeMetricFamily(
        "pgqueue_health_status", "Checks of the database, as in pgqueue.health: 0 ok, 1 warn, 2 bad.", labels=["check"]
    )
    values = GaugeMetricFamily(
        "pgqueue_health_value", "What the check found, in its own unit.", labels=["check", "unit"]
    )
    up.add_metric([], 0 if found is None else 1)
    if found is not None:
        sessions.add_metric([], found.sessions)
        for name, stats in found.stats.items():
            queue = printable.label(name)
            for state in STATES:
                tasks.add_metric([queue, state], stats[state])
            kept.add_metric([queue], stats["kept"])
            age.add_metric([queue], stats["oldest_ready_age"] or 0.0)
            done.add_metric([queue], stats["done"])
            for verb, n in stats["calls"].items():
                calls.add_metric([queue, verb], n)
        for check in found.health:
            statuses.add_metric([check.name], STATUSES.index(check.status))
            values.add_metric([check.name, check.unit], check.value)
    yield from (up, tasks, kept, age, done, calls, sessions, statuses, values)
