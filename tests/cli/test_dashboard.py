"""`pgqueue dashboard` as a process: where it listens, what it asks for, and how it ends."""

from __future__ import annotations

import base64
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from commands import failed, invoke, started

from pgqueue.dashboard.guarding import hash_password
from pgqueue.dashboard.live import EVERY

pytestmark = pytest.mark.once


@contextmanager
def dashboard(*options, dsn):
    """A dashboard on a free port, and its address."""
    settings = {"PGQUEUE_DSN": dsn}
    with started("dashboard", "--port", "0", *options, settings=settings, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        found = re.fullmatch(r"serving on (http://\S+/)\n", line)
        assert found, line
        yield process, found[1]


def get(address, path="", **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(address + path, headers=headers), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.slow
def test_it_serves_the_pages_on_loopback_until_a_signal(dsn, blocking):
    client = blocking()
    client.create_queue("mail")
    with dashboard("--title", "The shop", dsn=dsn) as (process, address):
        assert address.startswith("http://127.0.0.1:")
        status, page = get(address)
        assert status == 200
        assert "The shop" in page
        assert 'method="post"' in get(address, "queue?name=mail")[1]
        assert get(address, Host="evil.example")[0] == 421
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.slow
def test_read_only_has_no_buttons(dsn, blocking):
    client = blocking()
    client.create_queue("mail")
    with dashboard("--read-only", dsn=dsn) as (_, address):
        assert 'method="post"' not in get(address, "queue?name=mail")[1]


@pytest.mark.slow
def test_beyond_loopback_it_needs_a_password(dsn):
    refused = invoke("dashboard", "--host", "0.0.0.0", "--port", "0", PGQUEUE_DSN=dsn)
    assert "--password-hash" in failed(refused, 2)
    with dashboard("--host", "0.0.0.0", "--password-hash", hash_password("correct horse"), dsn=dsn) as (_, address):
        assert get(address)[0] == 401
        right = base64.b64encode(b"ada:correct horse").decode()
        assert get(address, Authorization=f"Basic {right}")[0] == 200
    wrong = invoke("dashboard", "--port", "0", "--password-hash", "plain", PGQUEUE_DSN=dsn)
    assert "--hash-password" in wrong.stderr


@pytest.mark.slow
def test_an_event_comes_soon_after_a_put(dsn, blocking):
    client = blocking()
    client.create_queue("mail")
    with (
        dashboard(dsn=dsn) as (_, address),
        urllib.request.urlopen(f"{address}events?queue=mail", timeout=30) as stream,
    ):
        assert stream.readline() == b": listening\n"
        events = (line for line in iter(stream.readline, b"") if line.startswith(b"event:"))
        assert next(events) == b"event: changed\n"  # which comes every five seconds in any case
        began = time.monotonic()
        client.queue("mail").put("x")
        assert next(events) == b"event: changed\n"
        assert time.monotonic() - began < EVERY / 2
