"""`python -m faults.celery.soak`: Celery's programs on pgqueue for half an hour, with a restart of everything in turn.

Two workers, beat, `celery events` and a client that sends tasks and chords and waits for their results. Every twenty
seconds one of these is ended or killed, or the database server crashes, or the connections that hold sessions are
terminated. The second worker and the client are never restarted. Then all have to be back: the client has got a result,
beat's task has run, each worker has run a task, and an event has come.

It prints how soon they were back, and a table of samples: the memory of each program, the connections, the sizes of
tables and indexes, and their rows. The exit code is 1 if one of them grew between the middle and the last third, if a
task that was sent has not run, or if something was not back in time. It needs a few percent of a CPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from .. import servers
from ..journal import last_step
from ..kinds.server import OTHERS
from . import programs, samples
from .programs import CELERY, Program, soon, worker

PAUSE = 20.0  # seconds from one fault to the next
BOUND = 60.0  # seconds to be back
DRAIN = 30.0  # seconds for the last tasks
SHOWN = 20


class Soak:
    """A server of its own, and the programs."""

    def __init__(self, folder: Path, stack: ExitStack, bindir: Path | None) -> None:
        root = folder / "server"
        root.mkdir(mode=0o711)
        self.server = servers.Cluster(root, bindir)
        stack.callback(self.server.close)
        url, late = programs.url_of(self.server.dsn), {"RIG_ACKS_LATE": "1"}
        self.restarted = worker("worker", folder, url, "-E", **late)
        self.lasting = worker("lasting-worker", folder, url, "-E", **late)
        beat = ("beat", "--schedule", str(folder / "schedule"), "--pidfile", "", "--loglevel", "WARNING")
        self.beat = Program("beat", folder, url, *CELERY, *beat)
        self.events = Program("events", folder, url, *CELERY, "events", "--dump")
        self.client = Program("client", folder, url, sys.executable, "-m", "faults.celery.client", **late)
        self.all = [self.restarted, self.lasting, self.beat, self.events, self.client]
        for program in self.all:
            stack.callback(program.kill)
        self._ticks = folder / "tick.journal"
        self.steps: Mapping[str, Callable[[], float]] = {
            "the worker": lambda: last_step(self.restarted.journal),
            "the lasting worker": lambda: last_step(self.lasting.journal),
            "beat": lambda: last_step(self._ticks),
            "events": lambda: _changed(self.events.log),
            "the client": lambda: last_step(self.client.journal),
        }

    def back(self, since: float) -> float:
        """Wait until all have done a step since then; returns the seconds until then."""

        def missing() -> list[str]:
            return [name for name, step in self.steps.items() if step() <= since]

        with suppress(TimeoutError):
            soon(lambda: not missing(), BOUND, "")
        if late := missing():
            raise TimeoutError(f"after {BOUND:g} s {', '.join(late)} was not back")
        return time.monotonic() - since

    def faults(self) -> dict[str, Callable[[], None]]:
        return {
            "worker, TERM": lambda: self._restart(self.restarted, Program.end),
            "worker, kill -9": lambda: self._restart(self.restarted, Program.kill),
            "beat, TERM": lambda: self._restart(self.beat, Program.end),
            "beat, kill -9": lambda: self._restart(self.beat, Program.kill),
            "events, kill -9": lambda: self._restart(self.events, Program.kill),
            "server, crash and restart": lambda: self.server.restart("immediate"),
            "listeners terminated": self._terminate,
        }

    def _restart(self, program: Program, end: Callable[[Program], None]) -> None:
        end(program)
        program.start()

    def _terminate(self) -> None:
        with self.server.connect() as admin:
            admin.execute(OTHERS + " AND pid IN (SELECT backend_pid FROM pgqueue.session)")

    def lost(self) -> list[str]:
        """The tasks that were sent and have not run, thirty seconds after the last one."""
        self.client.end()
        sent = {line.fields[0] for line in self.client.lines() if line.event == "sent"}

        def missing() -> list[str]:
            lines = self.restarted.lines() + self.lasting.lines()
            return sorted(sent - {line.fields[0] for line in lines if line.event == "handled"})

        with suppress(TimeoutError):
            soon(lambda: not missing(), DRAIN, "")
        return missing()

    def summary(self) -> str:
        lines = self.client.lines()
        sent, got = (sum(line.event == event for line in lines) for event in ("sent", "got"))
        errors = [" ".join(line.fields) for line in lines if line.event == "error"]
        runs = [line for each in (self.restarted, self.lasting) for line in each.lines() if line.event == "handled"]
        again = len(runs) - len({line.fields[0] for line in runs})
        first = "".join(f"\n  {error}" for error in errors[:SHOWN])
        return f"{sent} tasks sent, {got} results awaited, {again} runs repeated, {len(errors)} calls failed.{first}"


def _changed(file: Path) -> float:
    """When a file was written to, by the clock of the journals."""
    return file.stat().st_mtime - time.time() + time.monotonic()


def run(soak: Soak, minutes: float, pause: float) -> tuple[dict[str, list[float]], list[str]]:
    """The seconds to be back, by fault, and what was not in order."""
    back: dict[str, list[float]] = {}
    wrong: list[str] = []
    until, faults = time.monotonic() + 60 * minutes, list(soak.faults().items())
    for number in range(sys.maxsize):
        name, fault = faults[number % len(faults)]
        began = time.monotonic()
        if began >= until:
            return back, wrong
        times = back.setdefault(name, [])
        try:
            fault()
            times.append(soak.back(began))
        except TimeoutError as error:
            wrong.append(f"{name}: {error}")
        print(
            f"{time.monotonic() - until + 60 * minutes:6.0f} s: {name}: {time.monotonic() - began:.1f} s",
            file=sys.stderr,
        )
        threading.Event().wait(max(0.0, began + pause - time.monotonic()))
    raise AssertionError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.celery.soak", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30, help="default: 30")
    parser.add_argument("--pause", type=float, default=PAUSE, help=f"seconds between two faults; default: {PAUSE:g}")
    parser.add_argument("--bindir", type=Path, help="PostgreSQL's programs; default: those of the embedded server")
    parser.add_argument("--keep", type=Path, help="a folder for the journals and logs; default: a temporary one")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.keep or stack.enter_context(servers.folder())
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        soak = Soak(folder, stack, options.bindir)
        soak.back(time.monotonic())
        looking = samples.Samples(soak.all, soak.server.connect)
        back, wrong = run(soak, options.minutes, options.pause)
        looking.close()
        wrong += [f"the task {label} was lost" for label in soak.lost()[:SHOWN]]
        lines, grown = samples.table(looking.series)
        print("| fault | times | back, median | worst |", "|---|--:|--:|--:|", sep="\n")
        for name, times in back.items():
            worst = (f"{statistics.median(times):.1f} s", f"{max(times):.1f} s") if times else ("never", "never")
            print(f"| {name} | {len(times)} | {worst[0]} | {worst[1]} |")
        print("", *lines, "", soak.summary(), *wrong, *grown, sep="\n")
    return int(bool(wrong or grown))


if __name__ == "__main__":
    sys.exit(main())
