"""A Docker engine that runs nothing: it answers the part of Docker's HTTP API that a container of PostgreSQL needs.

The published port of its container is a relay to a running server, so a client of the container meets PostgreSQL.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, TCPServer, ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from psycopg.conninfo import conninfo_to_dict

LOCAL = ("127.0.0.1", 0)
CONTAINER = "c0ffee" * 10
EXECUTION = "5eed" * 16


class Engine:
    """What was asked of the engine, and the state of its one container."""

    def __init__(self, published: int, tries: int) -> None:
        """`published`: the port that stands for the container's 5432. `tries`: how many checks it takes to be ready."""
        self._published = published
        self._tries = tries
        self.pulled: list[str] = []
        self.created: dict[str, Any] = {}
        self.state = "absent"
        self.checks: list[str] = []

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        """The status and the document for a request; `path` is without the version of the API."""
        if path in ("/version", "/_ping"):
            return 200, {"ApiVersion": "1.44", "Version": "27.0", "Os": "linux"}
        if found := re.fullmatch(r"/images/(.+)/json", path):
            return (200, {"Id": found[1]}) if found[1] in self.pulled else (404, {"message": "no such image"})
        if (method, path) == ("POST", "/images/create"):
            self.pulled.append(f"{query['fromImage']}:{query['tag']}")
            return 200, {"status": "pulled"}
        if (method, path) == ("POST", "/containers/create"):
            self.created, self.state = body, "created"
            return 201, {"Id": CONTAINER, "Warnings": []}
        if path.startswith(f"/containers/{CONTAINER}"):
            return self._of_container(method, path.removeprefix(f"/containers/{CONTAINER}"), body)
        if path == f"/exec/{EXECUTION}/start":
            return 200, b""  # the command has no output
        if path == f"/exec/{EXECUTION}/json":
            return 200, {"Running": False, "ExitCode": int(len(self.checks) < self._tries)}
        return 404, {"message": f"the fake engine does not know {method} {path}"}

    def _of_container(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if (method, path) == ("GET", "/json"):
            ports = {"5432/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(self._published)}]}
            status = {"Status": self.state, "Running": self.state == "running"}
            return 200, {"Id": CONTAINER, "State": status, "NetworkSettings": {"Ports": ports}, "Config": {}}
        if (method, path) == ("POST", "/start"):
            self.state = "running"
            return 204, None
        if (method, path) == ("POST", "/exec"):
            self.checks.append(body["Cmd"][-1])
            return 201, {"Id": EXECUTION}
        if (method, path) == ("DELETE", ""):
            self.state = "removed"
            return 204, None
        return 404, {"message": f"the fake engine does not know {method} {path} of a container"}


@contextmanager
def engine(conninfo: str, tries: int = 1) -> Iterator[tuple[str, Engine]]:
    """A running engine in front of a server: its DOCKER_HOST, and what it was asked for."""
    with _served(ThreadingTCPServer(LOCAL, _relay_to(conninfo))) as published:
        asked = Engine(published, tries)
        with _served(ThreadingHTTPServer(LOCAL, _handler_of(asked))) as port:
            yield f"tcp://127.0.0.1:{port}", asked


@contextmanager
def _served(server: TCPServer) -> Iterator[int]:
    """Serve in threads; gives the port."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler_of(asked: Engine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"null")
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            path = re.sub(r"^/v[\d.]+(?=/)", "", url.path)
            status, document = asked.answer(self.command, path, query, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            if document is not None:
                self.wfile.write(document if isinstance(document, bytes) else json.dumps(document).encode())

        do_POST = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Not on the tests' output."""

    return Handler


def _relay_to(conninfo: str) -> type[BaseRequestHandler]:
    class Relay(BaseRequestHandler):
        def handle(self) -> None:
            with _connected(conninfo) as upstream:
                back = threading.Thread(target=_copy, args=(upstream, self.request))
                back.start()
                _copy(self.request, upstream)
                back.join()

    return Relay


def _connected(conninfo: str) -> socket.socket:
    at = conninfo_to_dict(conninfo)
    host, port = str(at.get("host", "localhost")), int(at.get("port") or 5432)
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    upstream = socket.socket(socket.AF_UNIX)
    upstream.connect(f"{host}/.s.PGSQL.{port}")
    return upstream


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Until either side ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
