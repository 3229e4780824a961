"""Brokers of Celery: a Redis of a test's own, for guides and comparisons, and the test's database."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from eventually import eventually

from pgqueue.contrib.celery.clients import CLIENTS

LOCAL = "127.0.0.1"


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Its URL. It keeps nothing on disk."""
    if (program := shutil.which("redis-server")) is None:
        pytest.skip("redis-server is not installed")
    with socket.create_server((LOCAL, 0)) as free:
        port = free.getsockname()[1]
    command = [program, "--port", str(port), "--bind", LOCAL, "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: _answers(port))
        yield f"redis://{LOCAL}:{port}/0"
    finally:
        process.terminate()
        process.wait(30)


def _answers(port: int) -> bool:
    try:
        socket.create_connection((LOCAL, port), 1).close()
    except OSError:
        return False
    return True


def celery_url(dsn: str, **more: str) -> str:
    """A DSN as a URL of the transport pgqueue://, with more parameters."""
    parts = psycopg.conninfo.conninfo_to_dict(dsn) | more
    return "pgqueue://?" + "&".join(f"{name}={value}" for name, value in parts.items())


def close_clients() -> None:
    """Close the clients of Celery's backends, which live as long as the process, and of connections left open."""
    while CLIENTS._lent:
        CLIENTS._lent.popitem()[1].client.close()
