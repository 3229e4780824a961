"""OpenTelemetry: one trace from an HTTP request through a put to the handler and its own put, and the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import flask
import pytest
from eventually import eventually
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from running import running

import pgqueue
from pgqueue import Worker
from pgqueue.contrib.otel import Telemetry
from pgqueue.errors import QueueDraining

pytestmark = pytest.mark.once

Blocking = Callable[..., pgqueue.Client]


class Exported:
    """What a middleware has exported."""

    def __init__(self, **options: Any) -> None:
        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.middleware = Telemetry(self.provider, MeterProvider([self._metrics]), **options)
        self.tracer = self.provider.get_tracer("test")

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        (found,) = self.spans(name)
        return found

    def metrics(self) -> dict[str, list[Any]]:
        data = self._metrics.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def exported() -> Exported:
    return Exported()


def working(client: Any, **options: Any) -> AbstractContextManager[Worker]:
    return running(Worker(client, **options))


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert span.context is not None
    assert parent.context is not None
    return (
        span.parent is not None
        and span.parent.span_id == parent.context.span_id
        and span.context.trace_id == parent.context.trace_id
    )


def test_one_trace_from_a_request_to_the_last_handler(blocking: Blocking, exported: Exported) -> None:
    """A Flask view puts a sync job, which puts an async one."""
    client = blocking()
    client.middleware.append(exported.middleware)

    @client.job(queue="orders", name="shop.order")
    def order(article: str) -> None:
        notify.put(article)

    @client.job(queue="mail", name="shop.notify")
    async def notify(article: str) -> None:
        await asyncio.sleep(0)
        with exported.tracer.start_as_current_span("render"):
            pass

    app = flask.Flask("shop")

    @app.post("/orders/<article>")
    def place(article: str) -> str:
        with exported.tracer.start_as_current_span("POST /orders", kind=SpanKind.SERVER):  # as its instrumentation does
            return str(order.put(article).id)

    id = app.test_client().post("/orders/tea").text
    with working(client):
        eventually(lambda: exported.spans("process mail"))
    chain = ["POST /orders", "send orders", "process orders", "send mail", "process mail", "render"]
    spans = [exported.span(name) for name in chain]
    assert all(is_child(span, parent) for span, parent in zip(spans[1:], spans, strict=False))
    assert [span.kind for span in spans[1:5]] == [
        *(SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.PRODUCER, SpanKind.CONSUMER),
    ]
    sent, processed = spans[1].attributes, spans[2].attributes
    assert sent == {
        "messaging.system": "pgqueue",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": id,
        "pgqueue.job": "shop.order",
    }
    assert processed == {
        "messaging.system": "pgqueue",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.message.id": id,
        "pgqueue.job": "shop.order",
        "pgqueue.attempt": 1,
    }
    assert [link.context.span_id for link in spans[2].links] == [spans[1].context.span_id]


def test_each_attempt_is_a_span_of_the_same_trace(blocking: Blocking, exported: Exported) -> None:
    client = blocking()

    @client.job(queue="q", middleware=[exported.middleware], retry=pgqueue.Retry(attempts=3, delay=0))
    def fail(n: int) -> None:
        raise LookupError(f"no {n}")

    fail.put(7)
    with working(client):
        eventually(lambda: client.queue("q").stats()["buried"] == 1)
    attempts = exported.spans("process q")
    assert [span.attributes["pgqueue.attempt"] for span in attempts] == [1, 2, 3]
    assert all(is_child(span, exported.span("send q")) for span in attempts)
    for span in attempts:
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "LookupError: no 7"
        assert span.attributes["error.type"] == "LookupError"
        (event,) = span.events
        assert "raise LookupError" in str(event.attributes["exception.stacktrace"])


def test_a_put_that_is_refused_is_an_error(blocking: Blocking, exported: Exported) -> None:
    client = blocking()
    client.middleware.append(exported.middleware)
    client.create_queue("q").drain()

    @client.job(queue="q")
    def send() -> None: ...

    with pytest.raises(QueueDraining):
        send.put()
    span = exported.span("send q")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "pgqueue.errors.QueueDraining"
    assert "messaging.client.sent.messages" not in exported.metrics()


def test_put_many_is_one_span_and_the_parent_of_all_runs(blocking: Blocking, exported: Exported) -> None:
    client = blocking()
    client.middleware.append(exported.middleware)

    @client.job(queue="q")
    async def send(n: int) -> None: ...

    send.put_many([(n,) for n in range(5)])
    with working(client):
        eventually(lambda: len(exported.spans("process q")) == 5)
    sent = exported.span("send q")
    assert sent.attributes["messaging.batch.message_count"] == 5
    assert all(is_child(span, sent) for span in exported.spans("process q"))


def test_a_run_can_begin_a_trace_of_its_own(blocking: Blocking) -> None:
    exported = Exported(new_trace=True)
    client = blocking()
    client.middleware.append(exported.middleware)

    @client.job(queue="q")
    def send() -> None: ...

    send.put()
    with working(client):
        eventually(lambda: exported.spans("process q"))
    sent, processed = exported.span("send q"), exported.span("process q")
    assert processed.parent is None
    assert processed.context.trace_id != sent.context.trace_id
    assert [link.context.trace_id for link in processed.links] == [sent.context.trace_id]


def test_a_task_that_plain_sql_put_begins_a_trace(blocking: Blocking, exported: Exported) -> None:
    client = blocking()
    client.middleware.append(exported.middleware)

    @client.job(queue="q", name="send")
    def send() -> None: ...

    client.queue("q").put({"job": "send", "args": {}})
    client.queue("q").put({"job": "send", "args": {}, "headers": {"traceparent": "nonsense"}})
    with working(client):
        eventually(lambda: len(exported.spans("process q")) == 2)
    assert all(span.parent is None and not span.links for span in exported.spans("process q"))


def test_the_metrics_of_the_conventions(blocking: Blocking, exported: Exported) -> None:
    client = blocking()
    client.middleware.append(exported.middleware)

    @client.job(queue="q", name="send", retry=pgqueue.Retry(attempts=1))
    def send(fails: bool) -> None:
        if fails:
            raise LookupError

    send.put_many([(False,), (False,), (True,)])
    with working(client):
        eventually(lambda: len(exported.spans("process q")) == 3)
    found = exported.metrics()
    assert found.keys() == {
        "messaging.client.sent.messages",
        "messaging.client.operation.duration",
        "messaging.client.consumed.messages",
        "messaging.process.duration",
        "pgqueue.job.wait",
    }
    assert sum(point.value for point in found["messaging.client.sent.messages"]) == 3
    assert sum(point.value for point in found["messaging.client.consumed.messages"]) == 3
    counts = {point.attributes.get("error.type"): point.count for point in found["messaging.process.duration"]}
    assert counts == {None: 2, "LookupError": 1}
    (waits,) = found["pgqueue.job.wait"]
    assert waits.count == 3
    assert waits.sum >= 0
    assert waits.attributes["pgqueue.job"] == "send"


def test_baggage_reaches_the_handler(blocking: Blocking, exported: Exported) -> None:
    client = blocking()
    client.middleware.append(exported.middleware)
    seen: list[Any] = []

    @client.job(queue="q")
    def send() -> None:
        seen.append(baggage.get_baggage("customer"))

    token = context.attach(baggage.set_baggage("customer", "ada"))
    send.put()
    context.detach(token)
    with working(client):
        eventually(lambda: seen)
    assert seen == ["ada"]


def test_without_a_provider_nothing_is_sent(blocking: Blocking) -> None:
    client = blocking()
    client.middleware.append(Telemetry())

    @client.job(queue="q")
    def send() -> None: ...

    task = send.put()
    assert task.data == {"job": send.name, "sig": send.version, "args": {}}
    assert not trace.get_current_span().get_span_context().is_valid
