"""The labels of clients: what the views and errors call a client."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from statements import rows, value

import pgqueue

LABEL = re.compile(rf"[^:]+:{os.getpid()}:[^:#]+(#\d+)?")


async def test_two_clients_of_a_process_have_different_labels(shell: Any, db: psycopg.Connection) -> None:
    one, other = shell.client(), shell.client()
    assert one.shell.core.label != other.shell.core.label
    assert all(LABEL.fullmatch(client.shell.core.label) for client in (one, other))
    task = await one.queue("q").put(1)
    await one.queue("q").take(0)
    message = f"is taken by {re.escape(one.shell.core.label)}, not by this take of {re.escape(other.shell.core.label)}"
    with pytest.raises(pgqueue.TaskTakenByOther, match=f"{message}$|{message}[^#0-9]"):
        await other.queue("q").ack(task.id)
    assert (await other.queue("q").peek(task)).holder == one.shell.core.label
    assert rows(db, "SELECT holder FROM pgqueue.takes") == [(one.shell.core.label,)]


async def test_the_views_read_host_and_process_out_of_each_label(shell: Any, db: psycopg.Connection) -> None:
    clients = [shell.client() for _ in range(2)]
    for client in clients:
        await client.queue("q").take(0)
    host = clients[0].shell.core.label.partition(":")[0]
    assert rows(db, "SELECT DISTINCT host, pid FROM pgqueue.sessions") == [(host, os.getpid())]
    assert value(db, "SELECT count(DISTINCT label) FROM pgqueue.sessions") == 2


def test_a_client_and_its_mirror_are_one(blocking: Callable[..., pgqueue.Client]) -> None:
    client = blocking()
    assert client.aio.shell.core.label == client.shell.core.label


@pytest.mark.slow
def test_the_first_client_of_a_process_has_no_number() -> None:
    """Nor has the first one that a forked child makes; a client from before the fork is numbered there by its use."""
    program = """
import os, pgqueue
one, two = pgqueue.Client(), pgqueue.Client()
host, pid, name = one.shell.core.label.split(":")
assert pid == str(os.getpid()) and "#" not in name, one.shell.core.label
assert two.shell.core.label == one.shell.core.label + "#2", two.shell.core.label
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
else:
    labels = {client.shell.core.label for client in (one, two, pgqueue.Client())}
    os._exit(labels != {f"{host}:{os.getpid()}:{name}{number}" for number in ("", "#2", "#3")})
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)
