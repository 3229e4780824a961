"""Sentry for jobs: an event for each task that failed, and check-ins for schedules. The extra `sentry`.

    sentry_sdk.init(dsn=...)
    client.middleware.append(Sentry())

An event has the exception with its frames, and the tags `pgqueue.job`, `pgqueue.queue`, `pgqueue.task` and
`pgqueue.attempt`. Breadcrumbs, tags and users of a handler belong to its run alone: each run has an isolation scope of
its own. The trace of the put is continued in the run.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from ..jobs.middleware import Order, Running

try:
    import sentry_sdk
    from sentry_sdk.crons import capture_checkin
    from sentry_sdk.utils import event_from_exception
except ImportError as error:
    raise ImportError(
        "this needs sentry-sdk: run `pip install '.[sentry]'` in a checkout of pgqueue", name=error.name
    ) from error

ORIGIN = "auto.queue.pgqueue"
HEADERS = ("sentry-trace", "baggage")


class Sentry:
    """A middleware that reports failed runs to Sentry. sentry_sdk.init() says where to.

    Args:
        events: of a task that fails several times: `every` attempt is an event; or, the default, only the `last` one,
            after which the task is buried, so that a retry that helps makes no noise.
        traces: whether to make a transaction of each run, at the SDK's sample rate, and to continue the trace of the
            put. Default True.
        schedules: whether each occurrence of a schedule is a check-in of the monitor whose slug is the schedule's name:
            in_progress when it begins, ok when it is done, error when its task is buried. Sentry makes the monitor from
            the schedule's cron expression or interval, and its time zone. Default True. Sentry knows whole minutes
            only: a schedule at other times has no check-ins. Names, for example {"nightly"}: of these schedules alone.
            A task's own headers name its schedule, so each role that may put into the worker's queues can send
            check-ins by the name of any schedule: give the names where such roles are not trusted with all monitors.
        monitor_config: more of the monitors of schedules, for example {"checkin_margin": 5, "max_runtime": 30}, in
            minutes.
        monitors: the slug of a monitor, by the name of the job. Each run of the job then sends a check-in when it
            begins and when it ends, and none for its schedule.
    """

    def __init__(
        self,
        *,
        events: Literal["last", "every"] = "last",
        traces: bool = True,
        schedules: bool | Collection[str] = True,
        monitor_config: Mapping[str, Any] | None = None,
        monitors: Mapping[str, str] | None = None,
    ) -> None:
        if events not in ("last", "every"):
            raise ValueError(f"events is 'last' or 'every', not {events!r}")
        self._every = events == "every"
        self._traces = traces
        if isinstance(schedules, str):
            raise ValueError(f"schedules is a bool, or a collection of names, not {schedules!r}")
        self._schedules = schedules if isinstance(schedules, bool) else frozenset(schedules)
        self._config = dict(monitor_config or {})
        self._monitors = dict(monitors or {})

    @contextmanager
    def put(self, order: Order) -> Iterator[None]:
        """A span; the trace's context is stored in the task's headers."""
        if not self._traces:
            yield
            return
        with sentry_sdk.start_span(op="queue.publish", name=order.queue, origin=ORIGIN) as span:
            for name, value in (("sentry-trace", sentry_sdk.get_traceparent()), ("baggage", sentry_sdk.get_baggage())):
                if value:
                    order.headers.setdefault(name, value)
            yield
            span.set_data("messaging.destination.name", order.queue)
            span.set_data("messaging.message.id", ",".join(map(str, order.ids[:10])))

    @contextmanager
    def run(self, run: Running) -> Iterator[None]:
        """An isolation scope; a transaction; an event if the run fails; check-ins."""
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            scope.set_transaction_name(run.job, source="task")
            for name, value in _tags(run).items():
                scope.set_tag(f"pgqueue.{name}", str(value))
            with self._transaction(run), self._check_ins(run):
                try:
                    yield
                except BaseException as error:
                    if run.fails(error) if self._every else run.buries(error):
                        _report(error)
                    raise

    @contextmanager
    def _transaction(self, run: Running) -> Iterator[None]:
        if not self._traces:
            yield
            return
        came = {name: run.headers[name] for name in HEADERS if name in run.headers}
        going = sentry_sdk.continue_trace(came, op="queue.process", name=run.job, source="task", origin=ORIGIN)
        with sentry_sdk.start_transaction(going) as transaction:
            transaction.set_data("messaging.destination.name", run.queue)
            transaction.set_data("messaging.message.id", str(run.id))
            transaction.set_data("messaging.message.retry.count", run.attempt - 1)
            transaction.set_data("messaging.message.receive.latency", run.waited * 1000)
            yield

    @contextmanager
    def _check_ins(self, run: Running) -> Iterator[None]:
        known = self._check_in(run)
        if known is None:
            yield
            return
        began = time.monotonic()
        id = capture_checkin(**known, status="in_progress")
        try:
            yield
        except BaseException as error:
            if "monitor_config" not in known or run.buries(error):  # else the next attempt ends the check-in
                capture_checkin(**known | {"check_in_id": id}, status="error", duration=time.monotonic() - began)
            raise
        status: Literal["ok", "error"] = "error" if run.given_up() else "ok"
        capture_checkin(**known | {"check_in_id": id}, status=status, duration=time.monotonic() - began)

    def _check_in(self, run: Running) -> dict[str, Any] | None:
        """The common fields of a run's check-ins; None: it has none. All attempts of an occurrence have one id."""
        if run.job in self._monitors:
            return {"monitor_slug": self._monitors[run.job]}
        name = run.headers.get("schedule")
        if name is None or not (self._schedules is True or (self._schedules and name in self._schedules)):
            return None
        if (times := monitored(run.headers)) is None:
            return None
        id = uuid.uuid5(uuid.NAMESPACE_OID, f"{name} {run.headers.get('scheduled_at')} {run.id}").hex
        return {"monitor_slug": name, "check_in_id": id, "monitor_config": self._config | times}


def monitored(headers: Mapping[str, str]) -> dict[str, Any] | None:
    """The times of a schedule, as Sentry has them; None: it cannot have them.

    Args:
        headers: of a task that the schedule has put.
    """
    cron, every = headers.get("schedule_cron"), headers.get("schedule_every")
    if cron is not None and not cron.strip():
        return None
    if cron is not None:
        seconds, *rest = cron.split()
        if len(rest) == 5:
            cron = " ".join(rest)
        elif cron == "@midnight":
            cron = "@daily"
        if len(rest) == 5 and not seconds.isdecimal():
            return None
        return {"schedule": {"type": "crontab", "value": cron}, "timezone": headers.get("schedule_tz", "UTC")}
    try:
        minutes, odd = divmod(float(every or 1), 60)
    except ValueError:
        return None
    if odd or not 1 <= minutes < math.inf:  # a task may have any headers
        return None
    size, unit = next((size, unit) for size, unit in _UNITS if minutes % size == 0)
    return {"schedule": {"type": "interval", "value": int(minutes // size), "unit": unit}}


_UNITS = ((1440, "day"), (60, "hour"), (1, "minute"))  # in minutes


def _tags(run: Running) -> dict[str, Any]:
    return {"job": run.job, "queue": run.queue, "task": run.id, "attempt": run.attempt}


def _report(error: BaseException) -> None:
    event, hint = event_from_exception(
        error,
        client_options=sentry_sdk.get_client().options,
        mechanism={"type": "pgqueue", "handled": False},
    )
    sentry_sdk.capture_event(event, hint=hint)
