"""The metrics of a scrape, and their text in the two formats of Prometheus.

With 10,000 queues a scrape has 190,000 samples. prometheus_client makes an object of each, and formats each by itself,
which takes six times as long as the text that is written here. A test compares the two byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Literal, NamedTuple, get_args

from prometheus_client.utils import floatToGoString

from .._calls.health import Everything
from .._calls.tallies import BOUNDS
from .._values import printable

OUTCOMES = ("done", "failed", "retried", "cancelled")
State = Literal["ready", "delayed", "taken", "buried", "blocked"]
STATES: tuple[State, ...] = get_args(State)
STATUSES = ("ok", "warn", "bad")

Samples = Iterable[tuple[tuple[str, ...], float]]  # the values of the labels, and the sample's own
Histograms = Iterable[tuple[tuple[str, ...], list[tuple[str, float]], float]]  # likewise the buckets, and the sum


class Metric(NamedTuple):
    """A family of samples. The names of its labels are in their order by the alphabet, as the formats demand."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    documentation: str
    labels: tuple[str, ...] = ()


UP = Metric("pgqueue_up", "gauge", "Whether the database answered: 1 or 0.")
TASKS = Metric("pgqueue_tasks", "gauge", "Tasks that are not done.", ("queue", "state"))
KEPT = Metric("pgqueue_kept_tasks", "gauge", "Done tasks that are still stored, by keep_done.", ("queue",))
AGE = Metric(
    "pgqueue_oldest_ready_age_seconds",
    "gauge",
    "How long the oldest ready task has been there; 0 if nothing is ready.",
    ("queue",),
)
DONE = Metric("pgqueue_done", "counter", "How many tasks were acked or deleted, or expired, in all.", ("queue",))
CALLS = Metric(
    "pgqueue_calls", "counter", "Tasks for which a verb was called, or that reached a time limit.", ("queue", "verb")
)
SESSIONS = Metric("pgqueue_sessions", "gauge", "Connected clients that take, wait, subscribe or hold a lock.")
STATUS = Metric(
    "pgqueue_health_status", "gauge", "Checks of the database, as in pgqueue.health: 0 ok, 1 warn, 2 bad.", ("check",)
)
VALUE = Metric("pgqueue_health_value", "gauge", "What the check found, in its own unit.", ("check", "unit"))

WORKERS = Metric("pgqueue_workers", "gauge", "Workers that run.")
RUNS = Metric("pgqueue_job_runs", "counter", "Runs of a job, by how they ended.", ("job", "outcome", "queue"))
TIMEOUTS = Metric("pgqueue_job_timeouts", "counter", "Runs of a job that a time limit ended.", ("job", "queue"))
WAIT = Metric(
    "pgqueue_job_wait_seconds", "histogram", "How long tasks were ready before a run began.", ("job", "queue")
)
RUN = Metric("pgqueue_job_run_seconds", "histogram", "How long runs of a job took.", ("job", "queue"))

OF_LIMIT = ("argument", "job", "queue")
RUNNING = Metric("pgqueue_limit_running", "gauge", "Tasks that have a slot of a limit.", OF_LIMIT)
WAITING = Metric("pgqueue_limit_waiting", "gauge", "Tasks that wait for a limit.", OF_LIMIT)
CONCURRENCY = Metric(
    "pgqueue_limit_concurrency", "gauge", "Slots of a limit; for each value of its argument.", OF_LIMIT
)
RATE = Metric(
    "pgqueue_limit_rate", "gauge", "Tasks that may begin in a second; for each value of its argument.", OF_LIMIT
)
BATCHES = Metric("pgqueue_batches", "gauge", "Batches that are not done; failed ones for a day.", ("state",))
MEMBERS = Metric("pgqueue_batch_tasks", "gauge", "Tasks of these batches that are open or have failed.", ("state",))
LATE = Metric(
    "pgqueue_schedule_late_seconds",
    "gauge",
    "How long an occurrence of a schedule has waited to be fired; 0 if none waits.",
    ("queue", "schedule"),
)
LAST = Metric(
    "pgqueue_schedule_last_timestamp_seconds",
    "gauge",
    "The last occurrence that was fired, in seconds since 1970; 0 if none was.",
    ("queue", "schedule"),
)
FAILED = Metric(
    "pgqueue_schedule_failed",
    "gauge",
    "Whether the last task of a schedule failed, or its put was refused: 1 or 0.",
    ("queue", "schedule"),
)

METRICS = (
    *(UP, TASKS, KEPT, AGE, DONE, CALLS, SESSIONS, WORKERS, RUNS, TIMEOUTS, RUNNING, WAITING, CONCURRENCY, RATE),
    *(BATCHES, MEMBERS, LATE, LAST, FAILED, STATUS, VALUE),
)
HISTOGRAMS = (WAIT, RUN)


def samples(
    found: Everything | None, label: Callable[[str], str] = printable.label
) -> Iterator[tuple[Metric, Samples]]:
    """Each metric with its samples; if nothing was found, because the database is away, only `pgqueue_up`.

    `label` makes the value of a label of a text.
    """
    yield UP, [((), 0 if found is None else 1)]
    if found is None:
        return
    queues = [(label(name), stats) for name, stats in found.stats.items()]
    checks = [(label(check.name), label(check.unit), check) for check in found.health]
    yield TASKS, (((queue, state), stats[state]) for queue, stats in queues for state in STATES)
    yield KEPT, (((queue,), stats["kept"]) for queue, stats in queues)
    yield AGE, (((queue,), stats["oldest_ready_age"] or 0.0) for queue, stats in queues)
    yield DONE, (((queue,), stats["done"]) for queue, stats in queues)
    yield CALLS, (((queue, verb), n) for queue, stats in queues for verb, n in stats["calls"].items())
    yield SESSIONS, [((), found.sessions)]
    jobs = [(label(one.job), label(one.queue), one) for one in found.jobs]
    yield WORKERS, [((), found.workers)]
    yield RUNS, (((job, how, queue), getattr(one, how)) for job, queue, one in jobs for how in OUTCOMES)
    yield TIMEOUTS, (((job, queue), one.timeouts) for job, queue, one in jobs)
    yield from _samples_of_limits(found, label)
    yield BATCHES, (((one.state,), one.batches) for one in found.batches)
    yield MEMBERS, (((how,), sum(getattr(one, how) for one in found.batches)) for how in ("open", "failed"))
    schedules = [((label(one.queue), label(one.name)), one) for one in found.schedules]
    yield LATE, ((labels, one.late) for labels, one in schedules)
    yield LAST, ((labels, one.last) for labels, one in schedules)
    yield FAILED, ((labels, int(one.failed)) for labels, one in schedules)
    yield STATUS, (((name,), STATUSES.index(check.status)) for name, _, check in checks)
    yield VALUE, (((name, unit), check.value) for name, unit, check in checks)


def _samples_of_limits(found: Everything, label: Callable[[str], str]) -> Iterator[tuple[Metric, Samples]]:
    limits = [((label(one.argument), label(one.job), label(one.queue)), one) for one in found.limits]
    yield RUNNING, ((labels, one.running) for labels, one in limits)
    yield WAITING, ((labels, one.waiting) for labels, one in limits)
    yield CONCURRENCY, ((labels, one.concurrency) for labels, one in limits if one.concurrency is not None)
    yield RATE, ((labels, one.rate) for labels, one in limits if one.rate is not None)


def histograms(
    found: Everything | None, label: Callable[[str], str] = printable.label
) -> Iterator[tuple[Metric, Histograms]]:
    """Each histogram with its buckets, which have the numbers of all below as well."""
    if found is None:
        return
    jobs = [((label(one.job), label(one.queue)), one) for one in found.jobs]
    yield WAIT, ((labels, _buckets(one.waits), one.waited) for labels, one in jobs)
    yield RUN, ((labels, _buckets(one.runs), one.ran) for labels, one in jobs)


def text(found: Everything | None, *, openmetrics: bool = False) -> bytes:
    """The output of prometheus_client.generate_latest() for these metrics; or that of its openmetrics."""
    parts: list[str] = []
    for metric, rows in samples(found, _quotable):
        sampled = metric.name + ("_total" if metric.kind == "counter" else "")
        family = metric.name if openmetrics else sampled
        parts.append(f"# HELP {family} {metric.documentation}\n# TYPE {family} {metric.kind}\n")
        labels = ",".join(f'{name}="%s"' for name in metric.labels)
        line = sampled + (f"{{{labels}}}" if labels else "") + " %s\n"
        parts.extend([line % (*values, _number(value)) for values, value in rows])
    for metric, found_rows in histograms(found, _quotable):
        parts.append(f"# HELP {metric.name} {metric.documentation}\n# TYPE {metric.name} {metric.kind}\n")
        for (job, queue), buckets, total in found_rows:
            parts.extend(
                f'{metric.name}_bucket{{job="{job}",le="{bound}",queue="{queue}"}} {_number(n)}\n'
                for bound, n in buckets
            )
            labels = f'{{job="{job}",queue="{queue}"}}'
            parts.append(f"{metric.name}_count{labels} {_number(buckets[-1][1])}\n")
            parts.append(f"{metric.name}_sum{labels} {_number(total)}\n")
    return ("".join(parts) + ("# EOF\n" if openmetrics else "")).encode()


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    return list(zip(_BOUNDS, accumulate(counts), strict=True))


def _quotable(value: str) -> str:
    """The value of a label, for between its quotes. printable.label prevents other effects of a stranger's text."""
    return printable.label(value).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if type(value) is int and 0 <= value < 1_000_000:  # from there on Go's form has an exponent
        return f"{value}.0"
    written: str = floatToGoString(value)  # type: ignore[no-untyped-call]  # of a library without types
    return written


_BOUNDS = [*map(_number, BOUNDS), "+Inf"]
