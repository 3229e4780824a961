"""A browser closes its connection: the examples free the thread or the coroutine that served it, within 2 seconds."""

from __future__ import annotations

import asyncio
import importlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvicorn
from eventually import Stopwatch, eventually, in_time
from sites import CHECKOUT, Site, free_port, serving, started

pytestmark = pytest.mark.once

WITHIN = 2.0  # seconds


@contextmanager
def browser(port: int, path: str, *, reads: bytes = b"") -> Iterator[None]:
    """A connection that asks for a page, and is closed at the end of the block."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as conn:
        conn.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        found = b""
        while reads not in found:
            found += conn.recv(4096)
        yield


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "reads"),
    [("/events/orders", b": ping\n\n"), ("/wait/orders", b"")],
    ids=["events", "long poll"],
)
def test_a_thread_of_flask_is_free(dsn: str, path: str, reads: bytes) -> None:
    port = free_port()
    command = ["flask", "--app", "examples.events", "run", "--port", str(port)]
    with serving(command, port, settings={"PGQUEUE_DSN": dsn}) as site:
        frees_its_thread(site, path, reads, "/wait/orders?timeout=0.01")


@pytest.mark.slow
def test_a_thread_of_the_flask_application_is_free(dsn: str) -> None:
    port = free_port()
    with (
        started("flask", "--app", "examples.flask_app", "create-tables", settings={"PGQUEUE_DSN": dsn}) as made,
        serving(
            ["flask", "--app", "examples.flask_app", "run", "--port", str(port)], port, settings={"PGQUEUE_DSN": dsn}
        ) as site,
    ):
        assert made.wait(30) == 0
        frees_its_thread(site, "/mailed", b"", "/orders/1", status=404)


def frees_its_thread(site: Site, path: str, reads: bytes, other: str, status: int = 204) -> None:
    """`other` is a page that ends at once: after it the client has its own threads."""
    with browser(site.port, path, reads=reads):  # the first connects
        pass
    with browser(site.port, other, reads=f" {status} ".encode()):
        pass
    settled(site)
    before = threads(site.process.pid)

    def attempt() -> float:
        with browser(site.port, path, reads=reads):
            eventually(lambda: threads(site.process.pid) == before + 1)
        watch = Stopwatch()
        eventually(lambda: threads(site.process.pid) == before)
        return watch()

    in_time(attempt, WITHIN)


def settled(site: Site) -> None:
    """Until no request has a thread: those of the client, and of psycopg's pool, stay."""
    same = 0
    last = -1
    while same < 15:
        threading.Event().wait(0.1)
        now = threads(site.process.pid)
        same, last = (same + 1 if now == last else 0), now


@pytest.fixture
def application(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The Starlette example, imported anew: its client is closed at the end of each lifespan."""
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    monkeypatch.syspath_prepend(str(CHECKOUT))
    sys.modules.pop("examples.asgi_app", None)
    yield importlib.import_module("examples.asgi_app")
    sys.modules.pop("examples.asgi_app", None)


@pytest.mark.parametrize(
    ("path", "reads"),
    [("/events", b": ping\n\n"), ("/sums/{id}", b"")],
    ids=["events", "long poll"],
)
def test_a_coroutine_of_starlette_is_free(application: Any, db: psycopg.Connection, path: str, reads: bytes) -> None:
    (id,) = db.execute("SELECT id FROM pgqueue.put('sums', '[1]')").fetchone() or ()
    active: list[str] = []

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await application.app(scope, receive, send)
        active.append(scope["path"])
        try:
            await application.app(scope, receive, send)
        finally:
            active.remove(scope["path"])

    with running(counting) as port:

        def attempt() -> float:
            with browser(port, path.format(id=id), reads=reads):
                eventually(lambda: active)
            watch = Stopwatch()
            eventually(lambda: not active)
            return watch()

        for _ in range(2):
            in_time(attempt, WITHIN)


@contextmanager
def running(app: Callable[..., Any]) -> Iterator[int]:
    """A server of the application in a thread of this process."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=asyncio.run, args=(server.serve(),))
    thread.start()
    try:
        eventually(lambda: server.started)
        yield port
    finally:
        server.should_exit = True
        thread.join()
