"""A web application as a process of its own, and requests to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from checkout import CHECKOUT
from commands import environment
from eventually import eventually


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Site:
    """Whatever answers HTTP on a port."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self.port = port
        self.process = process

    def open(self, path: str, data: bytes | None = None, type: str = "text/plain", timeout: float = 30) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": type})
        return urllib.request.urlopen(request, timeout=timeout)

    def get(self, path: str) -> str:
        with self.open(path) as answer:
            return str(answer.read().decode())

    def post(self, path: str, content: Any) -> tuple[int, str]:
        """Post JSON; the status and what was answered."""
        try:
            with self.open(path, json.dumps(content).encode(), "application/json") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def answers(self) -> bool:
        assert self.process.poll() is None, f"the server ended with exit code {self.process.returncode}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def events(stream: Any, n: int) -> list[list[bytes]]:
    """The lines of the next server-sent events of an answer; comments are left out, as a browser does."""
    found: list[list[bytes]] = [[]]
    while len(found) <= n:
        line = stream.readline()
        if line == b"\n" and found[-1]:
            found.append([])
        elif line != b"\n" and not line.startswith(b":"):
            found[-1].append(line)
    return found[:n]


@contextlib.contextmanager
def started(
    *module: str, settings: dict[str, str], cwd: Path = CHECKOUT, output: Any = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[str]]:
    """`python -m MODULE ...` under way. At the end of the block it is killed with the processes that it has started."""
    with subprocess.Popen(
        [sys.executable, "-m", *module],
        cwd=cwd,
        env=environment(**settings),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):  # none of them is left
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def serving(module: Sequence[str], port: int, **options: Any) -> Iterator[Site]:
    """A site that is up."""
    with started(*module, **options) as process:
        site = Site(port, process)
        eventually(site.answers)
        yield site
