"""The Flask example over HTTP: its long poll and its server-sent events, fed by HTTP and by SQL."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import environment
from eventually import eventually

CHECKOUT = Path(__file__).parent.parent


class Site:
    def __init__(self, port: int) -> None:
        self.port = port

    def open(self, path: str, data: bytes | None = None) -> object:
        return urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data=data, timeout=30)

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def site(dsn: str) -> Iterator[Site]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "flask", "--app", "examples.events", "run", "--port", str(port)]
    with subprocess.Popen(
        command,
        cwd=CHECKOUT,
        env=environment(PGQUEUE_DSN=dsn, PATH=os.environ["PATH"]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            site = Site(port)
            eventually(site.answers, within=30)
            yield site
        finally:
            process.kill()


def test_a_long_poll(site, db):
    assert site.open("/wait/orders?timeout=0.1").status == 204
    with ThreadPoolExecutor(3) as threads:
        polls = [threads.submit(lambda: site.open("/wait/orders").read().decode()) for _ in range(3)]
        done: list[str] = []
        while len(done) < 3:  # those that come late get a later one
            db.execute("SELECT pgqueue.post('orders', 'order 7 was paid')")
            done = [poll.result() for poll in polls if poll.done()]
    assert done == ["order 7 was paid"] * 3


def test_server_sent_events(site, db):
    with site.open("/events/orders") as stream:
        assert stream.readline() == b": subscribed\n"
        assert stream.readline() == b"\n"
        db.execute("SELECT pgqueue.post('orders', 'from SQL')")
        site.open("/post/orders", data=b"two\nlines")
        assert [stream.readline() for _ in range(5)] == [
            b"data: from SQL\n",
            b"\n",
            b"data: two\n",
            b"data: lines\n",
            b"\n",
        ]
