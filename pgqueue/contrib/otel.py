"""OpenTelemetry for jobs: a span for each put and each run, in one trace, and metrics. The extra `otel`.

    client.middleware.append(Telemetry())

Names and attributes are those of OpenTelemetry's semantic conventions for messaging, version 1.30 and later, which are
still in development:

    span            kind        attributes; each also has messaging.system, messaging.destination.name and pgqueue.job
    send QUEUE      producer    messaging.operation.type=send, messaging.message.id; of put_many
                                messaging.batch.message_count
    process QUEUE   consumer    messaging.operation.type=process, messaging.message.id, pgqueue.attempt; error.type and
                                the exception if it fails

    messaging.client.sent.messages      counter: tasks put
    messaging.client.operation.duration histogram, seconds: of puts
    messaging.client.consumed.messages  counter: runs begun
    messaging.process.duration          histogram, seconds: of runs
    pgqueue.job.wait                    histogram, seconds: from ready to begun

The context is stored in the task's headers, in the form of the propagator that the application has set: `traceparent`
and `tracestate` by default. Each attempt is a span of its own, a child of the put, and has a link to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..jobs.middleware import Order, Running

try:
    from opentelemetry import context, metrics, propagate, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ImportError as error:
    raise ImportError(
        "tracing needs opentelemetry-api: run `pip install '.[otel]'` in a checkout of pgqueue", name=error.name
    ) from error

SYSTEM = "pgqueue"

# The conventions recommend these bounds.
DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
WAITS = (0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0)


class Telemetry:
    """A middleware that makes spans and metrics. Without an SDK that is set up it makes none.

    Args:
        tracer_provider: default the global one.
        meter_provider: default the global one.
        new_trace: True: each run begins a trace of its own, with a link to the put. False, the default: it is part of
            the trace of the put.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        new_trace: bool = False,
    ) -> None:
        self._new_trace = new_trace
        self._tracer = trace.get_tracer("pgqueue", tracer_provider=tracer_provider)
        meter = metrics.get_meter("pgqueue", meter_provider=meter_provider)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Tasks that were put.")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}", "Runs that began.")
        self._putting = _histogram(meter, "messaging.client.operation.duration", "Duration of puts.", DURATIONS)
        self._processing = _histogram(meter, "messaging.process.duration", "Duration of runs.", DURATIONS)
        self._waiting = _histogram(meter, "pgqueue.job.wait", "Time from ready to begun.", WAITS)

    @contextmanager
    def put(self, order: Order) -> Iterator[None]:
        """A producer's span; its context is stored in the task's headers."""
        known = _attributes("send", order.queue, order.job)
        with self._span(f"send {order.queue}", SpanKind.PRODUCER, known, self._putting) as span:
            propagate.inject(order.headers)
            yield
            if len(order.ids) == 1:
                span.set_attribute("messaging.message.id", str(order.ids[0]))
            elif order.ids:
                span.set_attribute("messaging.batch.message_count", len(order.ids))
            self._sent.add(len(order.ids), known)

    @contextmanager
    def run(self, run: Running) -> Iterator[None]:
        """A consumer's span, whose parent is the put's."""
        known = _attributes("process", run.queue, run.job)
        came = propagate.extract(run.headers)
        putting = trace.get_current_span(came).get_span_context()
        own = {"messaging.message.id": str(run.id), "pgqueue.attempt": run.attempt}
        self._consumed.add(1, known)
        self._waiting.record(run.waited, known)
        token = context.attach(came)  # for the baggage: a span becomes current in the context that is attached
        try:
            with self._span(
                *(f"process {run.queue}", SpanKind.CONSUMER, known, self._processing),
                own,
                context=trace.set_span_in_context(trace.INVALID_SPAN, came) if self._new_trace else came,
                links=[Link(putting)] if putting.is_valid else [],
            ):
                yield
        finally:
            context.detach(token)

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        known: dict[str, str],
        duration: metrics.Histogram,
        own: dict[str, Any] | None = None,
        **more: Any,
    ) -> Iterator[trace.Span]:
        began = time.monotonic()
        failed: dict[str, str] = {}
        with self._tracer.start_as_current_span(
            name,
            kind=kind,
            attributes=known | (own or {}),
            record_exception=False,
            set_status_on_exception=False,
            **more,
        ) as span:
            try:
                yield span
            except BaseException as error:  # a CancelledError too: the time limit
                failed["error.type"] = _name(error)
                span.set_attribute("error.type", failed["error.type"])
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
                raise
            finally:
                duration.record(time.monotonic() - began, known | failed)


def _attributes(operation: str, queue: str, job: str) -> dict[str, str]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "pgqueue.job": job,
    }


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _histogram(meter: metrics.Meter, name: str, what: str, bounds: Sequence[float]) -> metrics.Histogram:
    return meter.create_histogram(name, "s", what, explicit_bucket_boundaries_advisory=bounds)
