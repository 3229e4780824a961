"""Servers that get alerts."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from pgqueue.monitors import targets


class Posted(NamedTuple):
    path: str
    kind: str
    json: Any


class Hook(ThreadingHTTPServer):
    """A web server that answers with the next of the statuses that it was given, and at last with 200.

    `hangs`: it reads the requests and does not answer before it is cleared.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.statuses: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.posted: queue.SimpleQueue[Posted] = queue.SimpleQueue()
        self.answers = threading.Event()
        self.answers.set()
        super().__init__(("127.0.0.1", 0), _Answer)
        self.base = f"http://127.0.0.1:{self.server_port}"
        self.url = f"{self.base}/secret?key=1"


class _Answer(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            status = self.server.statuses.get_nowait()
        except queue.Empty:
            status = 200
        self.server.posted.put(Posted(self.path, self.headers["Content-Type"], body))
        self.server.answers.wait(60)
        with contextlib.suppress(OSError):  # the client has given up
            self.send_response(status)
            if status == 302:
                self.send_header("Location", self.server.url)
            self.end_headers()

    def do_GET(self) -> None:
        self.server.posted.put(Posted(self.path, "GET", None))

    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def serving() -> Iterator[Hook]:
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.answers.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(targets, "PAUSES", (0.01, 0.01))


@pytest.fixture
def hook(quick: None) -> Iterator[Hook]:
    with serving() as server:
        yield server


@pytest.fixture
def hooks(quick: None) -> Iterator[list[Hook]]:
    """Four of them."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(serving()) for _ in range(4)]
