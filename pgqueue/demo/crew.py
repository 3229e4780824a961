"""The worker processes of the demo, each an ordinary `pgqueue worker`.

The workers are tied to the demo as those of `pgqueue worker --processes` are to their supervisor: by a line, which the
kernel closes however the demo ends (worker/supervisor.py). tied.py bounds the time that they take to end. They lead
process groups, so Ctrl-C in a terminal reaches the demo alone. Their standard error is a pipe to the demo, whose error
message has their last line if they fail.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import IO

from psycopg.conninfo import make_conninfo

from .._values import printable
from ..errors import Error
from ..worker.supervisor import start_tied
from . import tied

CONCURRENCY = 4  # handlers of a worker process
GRACE = 1.0  # seconds that a worker has for its handlers when the demo ends
PATIENCE = 3.0  # seconds until a worker that was told to end is killed
FLUSH = 0.5  # seconds for reading the output of a worker that has ended
DEATHS = 5  # workers that may be killed by others, before the demo gives up


class Member:
    """A worker process. `name`: the application name of its connections, for pg_stat_activity."""

    def __init__(self, conninfo: str, name: str) -> None:
        self.name = name
        command = [sys.executable, "-P", tied.__file__, "worker", "pgqueue.demo.handlers:client", "--quiet"]
        self.process, self._line = start_tied(
            [*command, "--concurrency", str(CONCURRENCY), "--grace", str(GRACE)],
            {"PGQUEUE_DSN": make_conninfo(conninfo, application_name=self.name)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._said = deque[str](maxlen=1)
        self._reader = threading.Thread(target=self._read, args=[self.process.stderr], daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def look(self) -> int | None:
        """Read and drop its reports. Returns its exit code if it has ended."""
        with contextlib.suppress(OSError):
            self._line.recv(1 << 16)
        return self.process.poll()

    def hang_up(self) -> None:
        """Let the worker end in order."""
        self._line.close()

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Close the open files of a worker that has ended."""
        self._line.close()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def said(self) -> str:
        """The last line that the worker wrote to its standard error; "" if it wrote none."""
        if self.process.poll() is not None:
            self._reader.join(FLUSH)
        return self._said[-1] if self._said else ""

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                if text := line.decode(errors="replace").strip():
                    self._said.append(printable.line(text))


class Crew:
    """The worker processes, one for each conninfo. They end with the block, at once if that ends by an exception."""

    def __init__(self, conninfos: Sequence[str], run: str) -> None:
        self._conninfos = conninfos
        self._run = run
        self._numbers = itertools.count(1)
        self._deaths = 0
        self.members: list[Member] = []

    def __enter__(self) -> Crew:
        try:
            for conninfo in self._conninfos:
                self.members.append(self._start(conninfo))
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.hang_up()
        until = time.monotonic() + (PATIENCE if kind is None else 0.0)
        for member in self.members:
            try:
                member.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.kill()
            member.close()

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self.members]

    def look(self) -> None:
        """Start a worker in the place of each one that another process has killed.

        Raises Error: a worker ended by itself, or too many were killed.
        """
        for member in list(self.members):
            code = member.look()
            if code is None:
                continue
            self._deaths += 1
            if code > 0:
                raise Error(f"worker {member.pid} ended with exit code {code}: {member.said()}")
            if self._deaths > DEATHS:
                raise Error(f"{self._deaths} workers were ended by other processes, the last one was {member.pid}")
            self.replace(member)

    def last_words(self) -> str:
        """The last lines of the workers' standard errors."""
        return next((said for member in self.members if (said := member.said())), "the workers say nothing")

    def replace(self, old: Member) -> Member:
        """Start a worker in the place of one that has ended."""
        old.close()
        index = self.members.index(old)
        new = self.members[index] = self._start(self._conninfos[index])
        return new

    def _start(self, conninfo: str) -> Member:
        return Member(conninfo, f"pgqueue demo {self._run} {next(self._numbers)}")
