"""Whether a worker is alive and ready, over HTTP, for orchestrators.

`GET /live`: 200 while the worker's own threads go on; 503 if one of them has ended or hangs. A database that is away is
no reason: a restart would not mend that. `GET /ready`: 200 while the worker takes tasks: it has begun, does not stop,
and has a session in the database; else 503. The body is one line of text that says why. A probe costs the database
nothing.
"""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

LOOPBACK = "127.0.0.1"


class Report(NamedTuple):
    """Attributes: live; ready; and why not, in words."""

    live: bool
    ready: bool
    why: str | None = None


def address(text: str) -> tuple[str, int]:
    """HOST:PORT, or PORT on the loopback interface. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535 or (colon and not host):
        raise ValueError(f"{text!r} is not HOST:PORT, such as 0.0.0.0:8080, nor a port on {LOOPBACK}")
    return host.strip("[]") or LOOPBACK, int(port)


@contextlib.contextmanager
def answering(place: tuple[str, int] | None, report: Callable[[], Report]) -> Iterator[None]:
    """Answer probes within this block; None: none. Raises ValueError: it cannot listen on that address."""
    if place is None:
        yield
        return
    try:
        server = Server(*place, report)
    except OSError as error:
        raise ValueError(f"--health {place[0]}:{place[1]}: {error.strerror or error}") from error
    try:
        yield
    finally:
        server.close()


class Server:
    """Answers probes in threads of its own, until close(). `port`: the one that it listens on."""

    def __init__(self, host: str, port: int, report: Callable[[], Report]) -> None:
        class Handler(_Handler):
            pass

        Handler.report = staticmethod(report)
        self._server = _Server((host, port), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="pgqueue-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        super().__init__(address, handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    report: Callable[[], Report]
    timeout = 10.0  # seconds for a request: a connection that sends nothing ends
    server_version = "pgqueue"
    sys_version = ""

    def do_GET(self) -> None:
        report = self.report()
        good = {"/live": report.live, "/ready": report.live and report.ready}.get(self.path)
        if good is None:
            self._answer(404, "there are /live and /ready")
        else:
            self._answer(200 if good else 503, "ok" if good else report.why or "no")

    do_HEAD = do_GET

    def _answer(self, status: int, line: str) -> None:
        body = f"{line}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every few seconds: no log."""
