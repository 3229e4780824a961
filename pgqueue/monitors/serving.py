"""The HTTP server of `pgqueue metrics`: one path, and an end to clients that send nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, start_http_server

from .prometheus import PgqueueCollector, wsgi_app

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

PATH = "/metrics"
SILENCE = 10.0  # seconds for which a client may neither send nor read


@contextmanager
def serving(collector: PgqueueCollector, host: str, port: int, *, silence: float = SILENCE) -> Iterator[int]:
    """Serve the collector at PATH, in threads; the port. Raises OSError if the address cannot be listened at."""

    class Handler(_Handler):
        timeout = silence

    server, thread = start_http_server(port, host, CollectorRegistry())
    server.set_app(at_path(wsgi_app(collector)))
    server.RequestHandlerClass = Handler
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def at_path(app: WSGIApplication) -> WSGIApplication:
    """The application at PATH. Any other path is not found, and reads nothing from the database."""

    def checked(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") == PATH:
            return app(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"there is {PATH}\n".encode()]

    return checked


class _Handler(WSGIRequestHandler):
    def handle(self) -> None:
        try:
            super().handle()
        except (TimeoutError, ConnectionError):  # the client was silent for too long, or is gone
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """There are scrapes every few seconds: no log."""
