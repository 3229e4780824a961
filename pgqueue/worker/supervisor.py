"""The supervisor of `pgqueue worker --processes N`: keeps N worker processes running, each a whole worker.

A worker process is the supervisor's own program, with the same command line: the line in its environment tells it that
it is a worker. So it has the program's setup, for example Django's.

The supervisor handles no task and needs no database. Each worker holds one end of a socket pair, its *line*. The worker
ends in order, within its grace, when the line ends: the supervisor closes it at a stop, and the kernel does if the
supervisor is killed. So no worker outlives its supervisor by more than its grace. A stop by a signal does not work: a
process manager may send SIGTERM to each process of a service, and for a worker a second one means "at once". Over the
line the worker reports, once a second, whether it is ready.

A worker that ends by itself is started again, at once if it ran for STEADY seconds, else after a pause (outages.py)
that doubles from PAUSE to LONGEST: a database that is away, or a module with an error, does not cause a new process
each second. If a worker finds that its command line is wrong before any worker was ready, no restart would help, and
the supervisor ends.

A worker is the leader of a process group. So Ctrl-C in a terminal reaches the supervisor alone, which stops the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .._engine.outages import Pauses
from .._engine.owners import Owned
from .._values.logs import log
from .health import Report
from .leaving import FLUSH

PAUSE, LONGEST = 0.5, 30.0  # seconds before a worker that died is started again
STEADY = 10.0  # seconds after which a worker counts as one that runs
SILENT = 10.0  # seconds without a report after which a worker does not count as alive
STARTING = 120.0  # the same before its first report: it imports its module
BEYOND = 3.0  # seconds beyond the grace after which a worker is killed
TURN = 1.0  # seconds: the longest sleep
WRONG = 2  # the exit code of a command line that is wrong
LINE = "PGQUEUE_LINE"  # in a worker's environment: the descriptor of its line


def start_tied(
    command: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a worker on a line of its own. Returns the process, and our end of the line, which does not block.

    The worker ends in order when this end is closed, also by the end of this process. `environment` is added to ours;
    `options` are of subprocess.Popen. Raises OSError: the system has no process or no descriptor for it.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        variables = {**os.environ, **(environment or {}), LINE: str(theirs.fileno())}
        try:
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], process_group=0, env=variables, **options)
        except BaseException:
            ours.close()
            raise
    return process, ours


class Place:
    """The place of one of the N workers, and of its successors."""

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.line: socket.socket | None = None
        self.report = Report(live=True, ready=False, why="it is starting")
        self.heard_at = 0.0
        self.start_at = 0.0
        self._command = list(command)
        self._began = 0.0
        self._pauses = Pauses(PAUSE, LONGEST)
        self._pause = 0.0
        self._text = b""
        self._reported = False

    def start(self) -> None:
        """Start a worker, or another one later if the system has no process for it."""
        try:
            self._start()
        except OSError as error:
            self.hang_up()
            self._later()
            log.error("worker %s cannot be started, again in %.1f s: %s", self.number, self._pause, error)

    def _start(self) -> None:
        self.process, self.line = start_tied(self._command)
        self._began = self.heard_at = time.monotonic()
        self._reported = False
        self.report, self._text = Report(live=True, ready=False, why="it is starting"), b""
        log.info("worker %s is process %s", self.number, self.process.pid)

    def hear(self) -> None:
        """Read the worker's reports."""
        try:
            data = self.line.recv(1 << 16) if self.line else b""
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.hang_up()
            return
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            self.report, self.heard_at, self._reported = Report(**json.loads(line)), time.monotonic(), True

    def hang_up(self) -> None:
        """End the line: the worker stops."""
        if self.line:
            self.line.close()
            self.line = None

    def ended(self) -> int | None:
        """The exit code, if the worker has ended. Notes when to start the next one."""
        if self.process is None or (code := self.process.poll()) is None:
            return None
        self.process = None
        self.hang_up()
        self._later()
        self.report = Report(live=True, ready=False, why=f"it {_end(code)}, and starts again")
        log.warning("worker %s %s; it is started again in %.1f s", self.number, _end(code), self._pause)
        return code

    def _later(self) -> None:
        if time.monotonic() - self._began >= STEADY:
            self._pauses.succeeded()
            self._pause = 0.0
        else:
            self._pause = self._pauses.failed()
        self.start_at = time.monotonic() + self._pause

    def is_silent(self) -> bool:
        allowed = SILENT if self._reported else STARTING
        return self.process is not None and time.monotonic() - self.heard_at > allowed


class Supervisor:
    """Runs `n` workers by `command`, each with its line in the environment. `grace`: of the workers, in seconds."""

    def __init__(self, command: Sequence[str], n: int, grace: float | None) -> None:
        self._places = [Place(number, command) for number in range(1, n + 1)]
        self._grace = grace
        self._pipe = os.pipe()
        self._signals: deque[int] = deque()
        self._stopping = False
        for end in self._pipe:
            os.set_blocking(end, False)

    def report(self) -> Report:
        """Ready if each worker is; alive unless a worker has not been heard of."""
        live = next((f"worker {place.number} is silent" for place in self._places if place.is_silent()), None)
        waiting = (f"worker {one.number}: {one.report.why}" for one in self._places if not one.report.ready)
        why = live or ("it is stopping" if self._stopping else next(waiting, None))
        return Report(live=live is None, ready=why is None, why=why)

    def run(self) -> int:
        """Work until SIGTERM or SIGINT, in the main thread only. Returns the exit code."""
        with self._caught_signals():
            try:
                for place in self._places:
                    place.start()
                code = self._keep()
                return self._stop() or code
            finally:
                for place in self._places:
                    if place.process is not None:  # a second signal
                        place.process.kill()

    def _keep(self) -> int:
        """Keep the workers running until a signal arrives, or a restart would not help."""
        was_ready = False
        while True:
            self._sleep()
            number = self._signals.popleft() if self._signals else None
            if number == signal.SIGHUP:
                log.info("reloading: passing SIGHUP on to the workers")
                self._pass_on(signal.SIGHUP)
            elif number is not None:
                log.info("stopping: %s, the workers finish the tasks under way", signal.Signals(number).name)
                return 0
            was_ready = was_ready or any(place.report.ready for place in self._places)
            for place in self._places:
                if place.ended() == WRONG and not was_ready:
                    log.error("stopping: the command line of the workers is wrong")
                    return WRONG
                if place.process is None and time.monotonic() >= place.start_at:
                    place.start()

    def _stop(self) -> int:
        """Let the workers end. Returns 1 if one had to be killed."""
        self._stopping = True
        began = time.monotonic()
        until = float("inf") if self._grace is None else began + self._grace + BEYOND
        for place in self._places:
            place.hang_up()
        killed = 0
        while running := [place for place in self._places if place.process and place.process.poll() is None]:
            if time.monotonic() >= until:
                for place in running:
                    log.error("worker %s has not ended, and is killed", place.number)
                    self._kill(place)
                killed, until = 1, float("inf")
            self._sleep()
        for place in self._places:
            place.process = None
        log.info("stopped after %.1f s", time.monotonic() - began)
        return killed

    def _kill(self, place: Place) -> None:
        if place.process is not None:
            place.process.kill()

    def _pass_on(self, number: int) -> None:
        for place in self._places:
            if place.process is not None and place.process.poll() is None:
                place.process.send_signal(number)

    def _sleep(self) -> None:
        """Until a signal (the end of a worker too), a report, or the time to start a worker."""
        poll = select.poll()
        poll.register(self._pipe[0], select.POLLIN)
        lines = {place.line.fileno(): place for place in self._places if place.line}
        for fd in lines:
            poll.register(fd, select.POLLIN)
        waiting = [] if self._stopping else [one.start_at for one in self._places if one.process is None]
        due = 0.0 if self._signals else min(waiting, default=float("inf"))
        for fd, _ in poll.poll(max(0.0, min(TURN, due - time.monotonic())) * 1000):
            if fd in lines:
                lines[fd].hear()
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 1 << 10)

    @contextmanager
    def _caught_signals(self) -> Iterator[None]:
        """Within this block signals are noted, and end the sleep. A second SIGTERM or SIGINT kills the workers."""
        before: dict[int, Any] = {}

        def caught(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGCHLD:
                return
            if number != signal.SIGHUP and (self._stopping or {signal.SIGTERM, signal.SIGINT} & {*self._signals}):
                for place in self._places:
                    self._kill(place)
                log.error("stopped at once by a second signal")
                time.sleep(FLUSH)
                os._exit(128 + number)
            self._signals.append(number)

        wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        try:
            for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                before[one] = signal.signal(one, caught)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)


def supervise(n: int, grace: float | None) -> Supervisor:
    """A supervisor of `n` processes of this program."""
    return Supervisor([sys.executable, *sys.orig_argv[1:]], n, grace)


def own_line() -> int | None:
    """The line of this process, if it is a worker of a supervisor. Call it once, before handlers start programs."""
    line = os.environ.pop(LINE, None)
    return None if line is None else int(line)


def follow(line: int, report: Callable[[], Report], stop: Callable[[], None]) -> None:
    """Begin to report over the line, and to stop at its end. SIGHUP, unless the worker takes it to reload, is a stop as
    well: the supervisor starts the next process, with the new code."""
    signal.signal(signal.SIGHUP, lambda number, frame: stop())
    Owned("pgqueue-line", lambda: on_line(line, report, stop), lambda: False, lambda error: stop()).start()


def on_line(fd: int, report: Callable[[], Report], stop: Callable[[], None]) -> None:
    """In a worker: report over the line once a second, and stop at its end. Does not return before that."""
    os.set_inheritable(fd, False)
    line = socket.socket(fileno=fd)
    poll = select.poll()
    poll.register(line, select.POLLIN)
    while True:
        with contextlib.suppress(OSError):
            line.sendall(json.dumps(report()._asdict()).encode() + b"\n")
        if poll.poll(TURN * 1000):
            stop()
            return


def _end(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
