"""A Redis of one's own on a free port, for comparisons. It keeps nothing on disk."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

LOCAL = "127.0.0.1"
WITHIN = 30.0  # seconds to start


@dataclass(frozen=True)
class Redis:
    url: str
    pid: int
    version: str


def missing() -> str | None:
    """Why there can be none here; None if there can."""
    return None if shutil.which("redis-server") else "redis-server is not installed"


@contextmanager
def serve() -> Iterator[Redis]:
    with socket.create_server((LOCAL, 0)) as free:
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", LOCAL, "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield Redis(f"redis://{LOCAL}:{port}/0", process.pid, _version())
    finally:
        process.terminate()
        process.wait(WITHIN)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + WITHIN
    while True:
        with suppress(OSError):
            socket.create_connection((LOCAL, port), 1).close()
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"redis-server did not listen on port {port} within {WITHIN:g} s")
        time.sleep(0.02)


def _version() -> str:
    """For example 7.0.15."""
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    return said.partition("v=")[2].partition(" ")[0]
