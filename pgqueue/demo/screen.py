"""The output of the demo: the start, the progress of the work, the kill, the checks, and commands to try next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .._values import printable
from ..terminal import Console, Progress, figure
from .death import Death
from .outcome import Outcome

LABEL = 12  # columns
PLAIN = 1.0  # seconds between two lines of progress where no bar can be drawn

STEPS = (
    ("{pgqueue} stats", "the queues: `demo` has done the tasks"),
    ('{pgqueue} put mail \'{{"to": "ada@example.org"}}\'', "puts a task into a queue of yours"),
    ("{pgqueue} take mail --ack", "takes it"),
    ("docs/quickstart.md", "the same in Python, and a worker"),
)


class Screen:
    """The lines of the demo, in their order."""

    def __init__(self) -> None:
        self._console = Console()
        self._progress: Progress | None = None
        self._said_given_back = False

    def start(self, embedded: bool) -> None:
        title = "pgqueue demo: workers take tasks from PostgreSQL, one worker is killed, and no task is lost."
        self._say(self._wrapped(title), "bold")
        self._say("")
        if embedded:
            self._row("server", "the embedded PostgreSQL: it starts with its first user and ends with its last")

    def start_cluster(self) -> None:
        title = "pgqueue demo: workers take tasks from several servers, one server is killed, and no task is lost."
        self._say(self._wrapped(title), "bold")
        self._say("")

    def servers(self, n: int) -> None:
        listed = f"{n} embedded PostgreSQL servers, numbered 1 to {n}; server 1 has a synchronous standby"
        self._row("servers", listed)

    def server_killed(self, pid: int) -> None:
        self._row("killed", f"server 1, postmaster {pid}, by kill -9; the other servers go on", "red")

    def promoted(self, seconds: float) -> None:
        self._row("promoted", f"the standby of server 1 takes writes {seconds:.2f} s after the kill")

    def works_again(self, seconds: float, pause: float) -> None:
        text = f"server 1 does tasks again {seconds:.2f} s after the kill; the others paused for {pause:.2f} s at most"
        self._row("all work", text, "green")

    def refused(self) -> None:
        text = "the old primary is back and takes writes; a new client finds its timeline old, and puts to the new one"
        self._row("refused", text, "green")

    def server(self, version: str, where: str) -> None:
        self._row("server", f"PostgreSQL {version.partition(' ')[0]}, {where}")

    def tasks(self, n: int, folder: Path) -> None:
        self._row("tasks", f"{figure(n)}, one for each file of {folder}: count its lines, compute its SHA-256")

    def workers(self, pids: Sequence[int], concurrency: int) -> None:
        one = len(pids) == 1
        counted = "1 process" if one else f"{len(pids)} processes"
        listed = ", ".join(map(str, pids))
        self._row("workers", f"{counted} with {concurrency} tasks at a time{'' if one else ' each'}: {listed}")
        self._say("")

    @contextmanager
    def progress(self, total: int) -> Iterator[None]:
        """The block has a bar, or a line a second."""
        with Progress("working", total, err=False, after=0.0, plain=PLAIN, stay=True) as self._progress:
            try:
                yield
            finally:
                progress, self._progress = self._progress, None
                progress.close()

    def show(self, done: int) -> None:
        if self._progress is not None:
            self._progress.show(done)

    def killed(self, death: Death) -> None:
        tasks = _tasks(len(death.held))
        text = f"worker {death.pid} by kill -9, while it held {tasks}; worker {death.successor} takes its place"
        self._row("killed", text, "red")

    def given_back(self, death: Death) -> None:
        self._said_given_back = True
        self._row("given back", _given_back(death), "green")

    def report(self, outcome: Outcome, faults: Sequence[str]) -> None:
        done = len(outcome.digests)
        self._say("")
        self._row("done", f"{_tasks(done)} in {outcome.seconds:.1f} s, {figure(done / outcome.seconds)} tasks/s")
        if outcome.death and not self._said_given_back:
            self.given_back(outcome.death)
        if faults:
            self._row("FAILED", "; ".join(faults), "bold red")
            return
        checked = f"{figure(outcome.lines)} lines: each file's digest equals the direct computation"
        if outcome.death:
            checked += f"; other workers did all {_tasks(outcome.redelivered())} of the killed one"
        self._row("checked", checked, "bold green")

    def next_steps(self, embedded: bool, with_dsn: bool) -> None:
        self._say("")
        where = "on the embedded server" if embedded else "on the same server"
        self._say(self._wrapped(f"Try next, {where}{', with --dsn as here' if with_dsn else ''}:"), "bold")
        steps = [(step.format(pgqueue=_program()), what) for step, what in STEPS]
        widest = max(len(step) for step, _ in steps)
        fits = not self._console.terminal or widest + 4 + max(len(what) for _, what in steps) < self._console.width
        for step, what in steps:
            self._say(f"  {step:<{widest}}  {what}" if fits else f"  {step}")

    def _row(self, label: str, text: str, style: str = "") -> None:
        self._say(self._wrapped(f"{label:<{LABEL}}{printable.line(text)}", " " * LABEL), style)

    def _wrapped(self, text: str, indent: str = "") -> str:
        if not self._console.terminal:
            return text
        width = max(self._console.width - 1, 2 * LABEL)
        return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)

    def _say(self, text: str, style: str = "") -> None:
        if self._progress is None:
            self._console.say(text, style)
        else:
            self._progress.note(text, style)


def _given_back(death: Death) -> str:
    first, last = death.came_back() or (0.0, 0.0)
    if len(death.back) == 1:
        return f"the task, {first:.2f} s after the kill"
    return f"the first of the {len(death.back)} tasks {first:.2f} s after the kill, the last {last:.2f} s"


def _tasks(n: int) -> str:
    return "1 task" if n == 1 else f"{figure(n)} tasks"


def _program() -> str:
    """The command `pgqueue` as this program was started, for a shell."""
    typed = sys.argv[0]
    if os.path.basename(typed) == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m pgqueue"
    found = shutil.which("pgqueue")
    return "pgqueue" if found and os.path.exists(typed) and os.path.samefile(found, typed) else shlex.quote(typed)
