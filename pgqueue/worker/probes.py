"""The HTTP server that answers the probes of health.py. http.server is slow to import: only answering() loads this."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable

from .._engine.owners import Owned

Asked = Callable[[], tuple[bool, bool, str | None]]  # the fields of a Report


class Server:
    """Answers probes in threads of its own, until close(). `port`: the one that it listens on."""

    def __init__(self, host: str, port: int, report: Asked) -> None:
        class Handler(_Handler):
            pass

        Handler.report = staticmethod(report)
        self._server = _Server((host, port), Handler)
        self.port: int = self._server.server_address[1]
        self._closed = threading.Event()
        self._thread = Owned("pgqueue-health", self._server.serve_forever, self._closed.is_set)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
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
    report: Asked
    timeout = 10.0  # seconds for a request: a connection that sends nothing ends
    server_version = "pgqueue"
    sys_version = ""

    def do_GET(self) -> None:
        live, ready, why = self.report()
        good = {"/live": live, "/ready": live and ready}.get(self.path)
        if good is None:
            self._answer(404, "there are /live and /ready")
        else:
            self._answer(200 if good else 503, "ok" if good else why or "no")

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
        """There are probes every few seconds: no log."""
