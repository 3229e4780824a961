"""Prometheus: a collector that reads the database at each scrape. This process counts nothing and has no thread for it.

The figures are the database's, so each of many processes reports the same, and prometheus_client's multiprocess mode is
not needed.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .._calls.health import Everything, everything
from .._sync.client import Client
from .._values import arguments
from .._values.arguments import Seconds
from ..errors import ClosedError
from .reading import TIMEOUT, Reader, checked, chosen, of_queues

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.exposition import choose_encoder, gzip_accepted
    from prometheus_client.registry import Collector

    from .exposition import HISTOGRAMS, METRICS, histograms, samples, text
except ImportError as error:
    raise ImportError(
        "metrics need prometheus-client: run `pip install '.[metrics]'` in a checkout of pgqueue", name=error.name
    ) from error

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


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

        def read() -> Everything:
            all = client.shell.run(everything())
            return all._replace(
                stats=of_queues(all.stats, names),
                jobs=_of(all.jobs, names),
                limits=_of(all.limits, names),
                schedules=_of(all.schedules, names),
            )

        self._reader = Reader(read, arguments.seconds("timeout", timeout, positive=True))

    def describe(self) -> Iterator[Metric]:
        """The metrics without their values."""
        for name, kind, documentation, labels in METRICS:
            yield _KINDS[kind](name, documentation, labels=labels)
        for name, _, documentation, labels in HISTOGRAMS:
            yield HistogramMetricFamily(name, documentation, labels=labels)

    def collect(self) -> Iterator[Metric]:
        """The metrics with their present values."""
        found = self._read()
        for (name, kind, documentation, labels), rows in samples(found):
            family = _KINDS[kind](name, documentation, labels=labels)
            for values, value in rows:
                family.add_metric(values, value)
            yield family
        for (name, _, documentation, labels), series in histograms(found):
            histogram = HistogramMetricFamily(name, documentation, labels=labels)
            for values, buckets, total in series:
                histogram.add_metric(values, buckets, total)
            yield histogram

    def text(self, *, openmetrics: bool = False) -> bytes:
        """The present values as a scrape gets them, at a sixth of the time.

        Args:
            openmetrics: True: the output of prometheus_client.openmetrics.exposition.generate_latest() for a registry
                with this collector alone; False: that of prometheus_client.generate_latest().

        Returns:
            The text in UTF-8. If the database is away, it has only pgqueue_up with the value 0.
        """
        return text(self._read(), openmetrics=openmetrics)

    def _read(self) -> Everything | None:
        try:
            return self._reader.read()
        except ClosedError:
            return None


def _of(found: list[Any], names: Sequence[str] | None) -> list[Any]:
    """Those of these queues; None: all."""
    return found if names is None else [one for one in found if one.queue in names]


_KINDS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


def wsgi_app(collector: PgqueueCollector) -> WSGIApplication:
    """The same application as prometheus_client.make_wsgi_app() for a registry with this collector alone, at a sixth of
    the time.

    It answers a plain GET itself, in the format that the Accept header asks for, and leaves the rest, for example
    `?name[]=pgqueue_up`, to prometheus_client.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    others = make_wsgi_app(registry)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if (
            environ["REQUEST_METHOD"] != "GET"
            or environ.get("QUERY_STRING")
            or environ.get("PATH_INFO") == "/favicon.ico"
        ):
            answer: Iterable[bytes] = others(environ, start_response)
            return answer
        _, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        written = collector.text(openmetrics=content_type.startswith("application/openmetrics-text"))
        headers = [("Content-Type", content_type)]
        if gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")):
            written = gzip.compress(written, 1)  # the best level takes longer than the rest of the scrape
            headers.append(("Content-Encoding", "gzip"))
        start_response("200 OK", headers)
        return [written]

    return app
