"""The crew: one process of each role, started, killed, stopped, and started again.

The processes are forked from a server process that has imported everything (multiprocessing's forkserver), so a new
life begins within milliseconds, and a thousand kills cost little. They are processes like any others: each has its own
pid, client and journal. A process that ends, for whatever reason, is started again at once, as a supervisor would do.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import MappingProxyType

from . import programs
from .journal import Life, last_step, parse
from .ledger import Violation
from .programs import PRODUCERS, ROLES, Role
from .programs.work import Work

POLL = 0.02  # seconds
AGAIN = 0.2  # seconds before a process that ended by itself is started again
ENDS_WITHIN = 30.0  # seconds from SIGTERM to the end of a process

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["faults.programs", "pgqueue.cli.worker"])


@dataclass(frozen=True)
class Way:
    """How the processes reach the server."""

    dsn: str
    listen_dsn: str | None = None
    namespace: str | None = None


@dataclass
class Member:
    """A process in its present life."""

    life: Life
    path: Path
    process: ForkServerProcess

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid


class Crew:
    """All processes of an arena. One thread calls its methods; a thread of its own starts processes again."""

    def __init__(
        self, folder: Path, way: Way, rate: float, seed: int, roles: Mapping[str, Role] = MappingProxyType(ROLES)
    ) -> None:
        self._folder, self._way, self._seed, self._roles = folder, way, seed, roles
        n_putting = sum(name.startswith("put") for name in roles)
        self._pause = max(n_putting, 1) / rate
        self._lock = threading.RLock()
        self._past: list[tuple[Life, Path]] = []
        self._ending = set[str]()
        self.exits: list[Violation] = []
        self.members = {name: self._start(name, 0) for name in roles}
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="crew", daemon=True)
        self._keeper.start()

    def _start(self, name: str, number: int) -> Member:
        path = self._folder / f"{name}.{number:04}.journal"
        work = Work(name, number, self._way.dsn, self._way.listen_dsn, path, self._pause, self._seed)
        arguments = (self._roles[name], work, self._folder / f"{name}.log", self._way.namespace)
        life = Life(name, number, began=time.monotonic())
        process = context.Process(target=programs.run, args=arguments, name=name, daemon=True)
        process.start()
        return Member(life, path, process)

    def _keep(self) -> None:
        """Start again what ended."""
        while not self._closing.is_set():
            with self._lock:
                watched = {member.process.sentinel: name for name, member in self.members.items()}
            for sentinel in connection.wait(list(watched), timeout=POLL * 5):
                self._again(watched[sentinel])  # type: ignore[index]

    def _again(self, name: str) -> None:
        with self._lock:
            member = self.members.get(name)
            if member is None or name in self._ending or member.process.is_alive():
                return
            by_itself = not member.life.killed
            self._bury(member)
        if by_itself:
            time.sleep(AGAIN)
        with self._lock:
            if name not in self._ending and not self._closing.is_set():
                self.members[name] = self._start(name, member.life.number + 1)

    def _bury(self, member: Member) -> None:
        member.process.join()
        now = time.monotonic()
        life = member.life
        if not life.killed:
            life.ended = now
            if not (life.name in self._ending and member.process.exitcode == 0):
                text = f"{life} ended by itself, with exit code {member.process.exitcode}: see {life.name}.log"
                self.exits.append(Violation(now, "ended", text))
        self._past.append((life, member.path))

    def kill(self, name: str) -> None:
        """kill -9. The crew starts it again. A process that has just ended by itself is left to the crew."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            member = self.members[name]
            ended = time.monotonic()
            os.kill(member.pid, signal.SIGKILL)
            member.life.killed, member.life.ended = True, ended

    def stop(self, name: str) -> None:
        """SIGSTOP."""
        os.kill(self.members[name].pid, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.members[name].pid, signal.SIGCONT)

    def stepped(self, since: float) -> set[str]:
        """The names of the living processes that have completed a step since then, in their present lives."""
        with self._lock:
            members = [(name, member) for name, member in self.members.items() if not member.life.killed]
        return {name for name, member in members if last_step(member.path) > max(since, member.life.began)}

    def wait_for_steps(self, names: Iterable[str], since: float, within: float) -> bool:
        """Wait until each of these has completed a step since then; False if one has not in time."""
        deadline = time.monotonic() + within
        while not self.stepped(since).issuperset(names):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL)
        return True

    def end(self, names: Iterable[str]) -> None:
        """SIGTERM, and wait. What does not end in time is killed, and told as a violation."""
        names = [name for name in names if name in self.members]
        with self._lock:
            self._ending.update(names)
            for name in names:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.members[name].pid, signal.SIGTERM)
        deadline = time.monotonic() + ENDS_WITHIN
        for name in names:
            with self._lock:
                member = self.members.pop(name)
            member.process.join(max(0.0, deadline - time.monotonic()))
            if member.process.is_alive():
                text = f"{member.life} did not end within {ENDS_WITHIN:g} s of SIGTERM"
                self.exits.append(Violation(time.monotonic(), "stuck", text))
                member.life.killed, member.life.ended = True, time.monotonic()
                member.process.kill()
            self._bury(member)

    def end_producers(self) -> None:
        self.end(PRODUCERS)

    def close(self) -> None:
        """Kill what is left, at the end or on the way out of an error."""
        self._closing.set()
        self._keeper.join()
        for member in self.members.values():
            self.resume(member.life.name)
            member.process.kill()
            member.process.join()

    def lives(self) -> list[Life]:
        """All lives so far, with their journals."""
        for life, path in self._past:
            if not life.lines and path.exists():
                life.lines = parse(path.read_text(errors="replace"))
        return [life for life, _ in self._past]
