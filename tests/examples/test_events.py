"""The Flask example over HTTP: its long poll and its server-sent events, fed by HTTP and by SQL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sites import Site, events, free_port, serving

pytestmark = pytest.mark.once


@pytest.fixture
def site(dsn: str) -> Iterator[Site]:
    port = free_port()
    command = ["flask", "--app", "examples.events", "run", "--port", str(port)]
    with serving(command, port, settings={"PGQUEUE_DSN": dsn}) as it:
        yield it


@pytest.mark.slow
def test_a_long_poll(site, db):
    assert site.open("/wait/orders?timeout=0.1").status == 204
    with ThreadPoolExecutor(3) as threads:
        polls = [threads.submit(lambda: site.open("/wait/orders").read().decode()) for _ in range(3)]
        done: list[str] = []
        while len(done) < 3:  # those that come late get a later one
            db.execute("SELECT pgqueue.post('orders', 'order 7 was paid')")
            done = [poll.result() for poll in polls if poll.done()]
    assert done == ["order 7 was paid"] * 3


@pytest.mark.slow
def test_server_sent_events(site, db):
    with site.open("/events/orders") as stream:
        assert stream.readline() == b": subscribed\n"
        assert stream.readline() == b"\n"
        db.execute("SELECT pgqueue.post('orders', 'from SQL')")
        site.open("/post/orders", data=b"two\nlines")
        assert events(stream, 2) == [[b"data: from SQL\n"], [b"data: two\n", b"data: lines\n"]]
