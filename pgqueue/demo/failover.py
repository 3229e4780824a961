"""`pgqueue demo --nodes 3`: the files are tasks on several servers, one server is killed, and its standby takes over.

The demo checks that every file was digested, that the servers that live went on, and that the old primary, which comes
back, gets nothing from a new client. In production Patroni, CloudNativePG or the like notices the death and promotes
the standby. Here the demo itself does it, NOTICED seconds after the kill.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .. import Client
from ..errors import ClosedError, ConnectionLost, Error, ServerError, TakeLost
from .crew import CONCURRENCY, Crew
from .outcome import Outcome
from .screen import Screen
from .servers import Servers

NOTICED = 1.0  # seconds from the kill to the promotion
PATIENCE = 60.0  # seconds without any result before the demo gives up
LONGEST = 0.5  # seconds that a task takes at most
TURN = 0.05  # seconds between two looks at the results
LOOK = 0.5  # seconds that a collector waits for results


@dataclass(slots=True)
class Failover:
    """The events, in seconds from the kill.

    Attributes:
        pid: of the postmaster that was killed.
        promoted: when the standby took writes.
        working: when the first task of the killed server was done again.
        pause: the longest time without a result from the other servers, after the kill.
        strays: how many tasks the old primary got from a new client after its return; None: it did not return.
    """

    pid: int
    promoted: float = 0.0
    working: float = 0.0
    pause: float = 0.0
    strays: int | None = None


@dataclass(slots=True)
class Results:
    """The results that the workers have put, on all servers, as they arrive."""

    arrivals: queue.SimpleQueue[tuple[int, float, Any]] = field(default_factory=queue.SimpleQueue)
    over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def collected(self, clients: Sequence[Client]) -> Iterator[None]:
        """A thread for each server: a server that is down holds up no other."""
        threads = [
            threading.Thread(target=self._collect, args=one, name="pgqueue-demo", daemon=True)
            for one in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.over.set()
            for thread in threads:
                thread.join(2 * LOOK)

    def _collect(self, index: int, client: Client) -> None:
        results = client.queue("demo-results")
        while not self.over.is_set():
            # A task that was taken and not acked is given again: a second result of a file is the same as the first.
            with contextlib.suppress(ServerError, ConnectionLost, TakeLost, ClosedError):
                tasks = results.take_many(500, timeout=LOOK)
                for task in tasks:
                    self.arrivals.put((index, time.monotonic(), task.data))
                results.ack_many(tasks)


def run(files: list[str], n: int, kill: bool, seconds: float, screen: Screen) -> tuple[Outcome, list[str]]:
    """Run the demo on n servers. Returns the outcome, and the violations. Raises Error."""
    screen.servers(n)
    with Servers(n) as servers, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(dsn, session_grace=0)) for dsn in servers.dsns]
        return _Run(servers, clients, files, screen).run(kill, seconds)


class _Run:
    def __init__(self, servers: Servers, clients: list[Client], files: list[str], screen: Screen) -> None:
        self._servers, self._clients, self._files, self._screen = servers, clients, files, screen
        self._outcome = Outcome(secrets.token_hex(4))
        self._results = Results()
        self._failover: Failover | None = None
        self._killed_at = self._heard = self._others_heard = 0.0

    def run(self, kill: bool, seconds: float) -> tuple[Outcome, list[str]]:
        outcome, n = self._outcome, len(self._clients)
        began = self._heard = time.monotonic()
        each = min(LONGEST, seconds * n * CONCURRENCY / len(self._files))
        for index, client in enumerate(self._clients):
            client.queue("demo").put_many(
                {"run": outcome.run, "path": path, "seconds": each} for path in self._files[index::n]
            )
        with self._results.collected(self._clients), Crew(self._servers.dsns, outcome.run) as crew:
            self._screen.workers(crew.pids, CONCURRENCY)
            with self._screen.progress(len(self._files)):
                while len(outcome.digests) < len(self._files) or self._is_down():
                    self._collect()
                    if time.monotonic() - self._heard > PATIENCE:
                        raise Error(f"no result for {PATIENCE:.0f} s: {crew.last_words()}")
                    crew.look()
                    if kill and self._failover is None and len(outcome.digests) > len(self._files) / 3:
                        self._kill()
                    self._screen.show(len(outcome.digests))
                    time.sleep(TURN)
            outcome.seconds = time.monotonic() - began
            if self._failover is not None:
                self._return_old(self._failover)
        if kill and self._failover is None:
            raise Error("the work was over before a server could be killed: choose a --folder with more files")
        return outcome, self._faults()

    def _is_down(self) -> bool:
        return self._failover is not None and not self._failover.working

    def _collect(self) -> None:
        """Add the results that have arrived."""
        with contextlib.suppress(queue.Empty):
            while True:
                index, at, result = self._results.arrivals.get_nowait()
                self._heard = at
                self._outcome.add(result)
                if self._failover is not None:
                    self._time(self._failover, index, at - self._killed_at)

    def _time(self, failover: Failover, index: int, at: float) -> None:
        """Note a result of a server, `at` seconds from the kill."""
        if index > 0:
            failover.pause = max(failover.pause, at - self._others_heard)
            self._others_heard = max(self._others_heard, at)
        elif failover.promoted and at > failover.promoted and not failover.working:
            failover.working = at
            self._screen.works_again(failover.working, failover.pause)

    def _kill(self) -> None:
        self._killed_at, self._others_heard = time.monotonic(), 0.0
        self._failover = Failover(self._servers.kill_first())
        self._screen.server_killed(self._failover.pid)
        while (elapsed := time.monotonic() - self._killed_at) < NOTICED:
            self._collect()
            self._screen.show(len(self._outcome.digests))
            time.sleep(min(TURN, NOTICED - elapsed))
        self._servers.promote()
        self._failover.promoted = time.monotonic() - self._killed_at
        self._screen.promoted(self._failover.promoted)

    def _return_old(self, failover: Failover) -> None:
        """Start the old primary, and have a new process put a task by a DSN that names the old primary first."""
        dsn = self._servers.restart_first()
        command = [sys.executable, "-P", "-m", "pgqueue", "--dsn", dsn, "put", "demo-late", "1"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode != 0:
            raise Error(f"no task could be put after the return of the old primary: {done.stderr.strip()}")
        failover.strays, there = self._servers.count("demo-late")
        if failover.strays == 0 and there == 1:
            self._screen.refused()

    def _faults(self) -> list[str]:
        found = self._outcome.faults(self._files)
        if self._failover is not None and self._failover.strays != 0:
            found.append("the old primary got a task after its return")
        return found
