"""A take from several servers at once, in the thread or coroutine of its caller.

Theory of operation
-------------------
Each server has a take of its own (../takes.py): a flow, which yields a Run or a Wait. The take from all performs these
flows in one thread. It performs the Runs of one flow after another, and puts a flow aside at a Wait. It goes on with
those flows alone whose signal is set or whose time is over, and sleeps once there is none. So a take that waits sends
nothing to a server that does not wake it, and needs no thread and no session beside those of the clients.

    look    a take that does not wait, at each server from the one whose turn it is, until there are enough tasks
    wait    if there were none: at each server a take that begins with its sleep; the first one with a task ends it

The look comes first because most takes of a busy queue end there: n takes that wait would cost n entries in the hubs,
with a LISTEN each, for one task.

- Each signal of a flow also sets the signal of the whole. That one is replaced before the flags are read: a flag that
  is set later sets the new one, and a flag that was set before is read. (If it were replaced after that, a flag that is
  set in between would not wake the take.)
- A flow that goes on awaits another signal from then on, which may be set already: a wake-up that comes before the last
  look sets both signals of its waiter (../hub.py). It has set the signal of the whole too, but that one was replaced
  since. So the take sleeps only after a round in which no flow went on. (If it slept after another one, it would be
  asleep and out of the hub of that server.)
- The end of the wait closes the flows that are aside. Each then leaves its hub and signals the next waiter, as a take
  of one server that is cut off; so a wake-up that came at the same moment is passed on.
- The list of servers may be replaced during the wait, which sets the signal of the whole.
- A server whose connection breaks is no failure of the wait: its flow waits for the session, and its listener tells
  when there is one again. A server that never answered has no listener, and is tried again after `retry` seconds.
- A server that is silent (stopped, or behind a broken network) would hold up the others for as long as a call may
  take. So a call here waits for connect_timeout at most, and a server that let it pass rests for `retry` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..._calls.server import whereabouts
from ..._calls.take import Taken
from ..listener import Listener
from ..steps import Run, Signal, Wait
from ..takes import Take
from ..takes import take as take_from_one
from ..waits import TimeLeft, finite
from .servers import SLOW, UNREACHABLE, C, Server, Servers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Start(Generic[C]):
    """Check the server, if it has to be, and send the listener of its client, which the first call starts.

    `moves`: the take goes on with other servers if this one is slow.
    """

    server: Server[C]
    moves: bool


@dataclass(frozen=True, slots=True)
class At(Generic[C]):
    """Perform a Run at this server. `moves`: as for Start."""

    server: Server[C]
    run: Run
    moves: bool


Flow = Generator[Start[C] | At[C] | Wait, Any, T]
Found = list[tuple[Server[C], list[Taken]]]  # the rows of each server that has any


class Whole:
    """The signal of the whole take. It may be replaced while other threads set it."""

    def __init__(self, make_signal: Callable[[], Signal]) -> None:
        self._make_signal = make_signal
        self.signal = make_signal()

    def renew(self) -> None:
        self.signal = self._make_signal()

    def part(self) -> Signal:
        return PartSignal(self)


class PartSignal:
    """The signal of one flow, which sets that of the whole too."""

    __slots__ = ("_set", "_whole")

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self._set = False

    def set(self) -> None:
        self._set = True  # first: see above
        self._whole.signal.set()

    def is_set(self) -> bool:
        return self._set


class Part(Generic[C]):
    """The take of one server. `rows`: its result; None: it has not ended.

    `rests`: whether it waits for the end of the rest of a silent server.
    """

    def __init__(
        self,
        servers: Servers[C],
        server: Server[C],
        flow: Generator[Start[C] | Run | Wait, Any, list[Taken]],
        rests: bool,
    ) -> None:
        self._servers = servers
        self.server = server
        self.rows: list[Taken] | None = None
        self._flow = flow
        self._rests = rests
        self._signal: Signal | None = None
        self.until = float("-inf")  # when it goes on without a signal
        self._next: Start[C] | Run | None = None  # how it goes on; None: an answer to its Wait

    def is_due(self, now: float) -> bool:
        return now >= self.until or (self._signal is not None and self._signal.is_set())

    def is_asleep(self) -> bool:
        """Whether it waits for its server, and not for the end of a rest."""
        return self._signal is not None

    def is_absent(self) -> bool:
        """Whether its server is known to be away."""
        listener = self.server.client.shell.core.running_listener
        return listener is not None and listener.session is None and listener.failure is not None

    def go_on(self) -> Flow[C, None]:
        """Perform its steps until it waits or ends. Raises as the take."""
        try:
            step = self._next or next(self._flow)
            self._next = None
            while not self._is_aside(step):
                answer, error = yield from self._performed(step)
                step = self._flow.send(answer) if error is None else self._flow.throw(error)
        except StopIteration as end:
            self.rows = end.value

    def close(self) -> None:
        self._flow.close()

    def _is_aside(self, step: Start[C] | Run | Wait) -> bool:
        """Whether it waits: by a step of its own, or for the rest of its server."""
        if isinstance(step, Wait):
            self._signal = step.signal
            self.until = float("inf") if step.seconds is None else time.monotonic() + step.seconds
            return True
        self._signal, self.until = None, self.server.silent_until
        if self._rests and time.monotonic() < self.until:
            self._next = step
            return True
        return False

    def _performed(self, step: Start[C] | Run | Wait) -> Flow[C, tuple[Any, BaseException | None]]:
        """The answer of a step, or its error, which is the flow's to handle."""
        try:
            with self.server.asked():
                return (yield self._bounded(step) if isinstance(step, Run) else step), None
        except BaseException as error:
            return None, error

    def _bounded(self, run: Run) -> At[C]:
        most = self.server.patience
        bounded = Run(run.call, run.relaxed, most if run.within is None else min(run.within, most))
        return At(self.server, bounded, not self._servers.is_last(self.server))


class TakeFromAll(Generic[C]):
    """One take from all servers, from its call to its return. A duty of the frame that drives it (../duties.py)."""

    def __init__(
        self,
        servers: Servers[C],
        make_signal: Callable[[], Signal],
        queues: Sequence[str],
        n: int,
        timeout: float | None,
        stopped: Callable[[], bool] = lambda: False,
        *,
        timed: bool = False,
    ) -> None:
        self._servers = servers
        self._whole = Whole(make_signal)
        self._queues = queues
        self._n = n
        self._left = TimeLeft(timeout)
        self._stopped = stopped
        self._timed = timed
        self._takes: list[Take] = []
        self._failures: list[Exception] = []
        self._members: Sequence[Server[C]] = ()

    def run(self) -> Flow[C, Found[C]]:
        """
        Raises:
            ServerError: none of the servers can be reached.
        """
        try:
            found = yield from self._look()
            if not found and not self._over():
                found = yield from self._wait()
        except BaseException:
            self.fulfil()
            raise
        return found

    def fulfil(self) -> None:
        """Undo a take whose caller gets no tasks. May be called again."""
        for take in self._takes:
            take.fulfil()

    # --- look

    def _look(self) -> Flow[C, Found[C]]:
        found: Found[C] = []
        absent: list[Part[C]] = []
        n, answered = self._n, False
        first = self._servers.turn_of_take()
        for server, again in self._servers.to_ask(first):
            if again and answered:
                break
            part = Part(self._servers, server, self._take(server, n, 0.0, looked=False), rests=False)
            if not (yield from self._connected(part)):
                continue
            if part.rows is None:
                absent.append(part)
                continue
            answered = True
            if part.rows:
                if server is not first:
                    self._servers.found_at(server)
                found.append((server, part.rows))
                n -= len(part.rows)
            if n <= 0:
                break
        if absent and not answered:  # wait for one of them, as the take of one server would
            found, answered = yield from self._first(absent)
        _close(absent)
        if not answered:
            raise self._servers.unreachable(self._failures)
        return found

    def _connected(self, part: Part[C]) -> Flow[C, bool]:
        """Let a part go on to its end, or until its server is known to be away: a client may be just connecting.

        Returns False if its server cannot be reached.
        """
        while alive := (yield from self._goes_on(part)):
            if part.rows is not None or part.is_absent():
                break
            self._whole.renew()
            if not part.is_due(now := time.monotonic()):
                yield Wait(self._whole.signal, finite(part.until - now))
        return alive

    # --- wait

    def _wait(self) -> Flow[C, Found[C]]:
        self._servers.on_change(self._changed)
        try:
            self._members = self._servers.all
            found, answered = yield from self._first([self._waiting(server) for server in self._members], again=True)
        finally:
            self._servers.off_change(self._changed)
        if self._failures and not (found or answered or self._stopped()):
            raise self._servers.unreachable(self._failures)
        return found

    def _first(self, parts: list[Part[C]], again: bool = False) -> Flow[C, tuple[Found[C], bool]]:
        """The rows of the first part that has any, and whether another one has answered, or sleeps at its server.

        `again`: a part that fails is begun again after a rest.
        """
        answered = False
        try:
            while parts:
                self._whole.renew()  # before the flags are read
                now = time.monotonic()
                if again:
                    self._follow(parts)
                due = [part for part in parts if part.is_due(now)]
                for part in due:
                    alive = yield from self._goes_on(part)
                    if part.rows:
                        self._servers.found_at(part.server)
                        return [(part.server, part.rows)], True
                    if not alive or part.rows is not None:
                        parts.remove(part)
                        answered |= alive
                        if again and not alive:
                            parts.append(self._rested(part.server))
                if self._stopped() or (again and self._left.over()):
                    break
                if parts and not due:
                    soonest = min(part.until for part in parts) - time.monotonic()
                    yield Wait(self._whole.signal, self._left.at_most(soonest).seconds() if again else finite(soonest))
            return [], answered or any(part.is_asleep() for part in parts)
        finally:
            _close(parts)

    def _changed(self) -> None:
        """The list of servers was replaced."""
        self._whole.signal.set()

    def _follow(self, parts: list[Part[C]]) -> None:
        """Leave the servers that are gone, and wait at those that came."""
        before, self._members = self._members, self._servers.all
        if before is not self._members:
            _close(part for part in parts if part.server not in self._members)
            parts[:] = [part for part in parts if part.server in self._members]
            parts += [self._waiting(server, looked=False) for server in self._members if server not in before]

    def _rested(self, server: Server[C]) -> Part[C]:
        """The take of a server, from the end of its rest on, or from when it no longer counts as slow."""
        part = self._waiting(server, looked=False)
        part.until = time.monotonic() + (SLOW if server.is_slow() else self._servers.retry)
        return part

    def _waiting(self, server: Server[C], looked: bool = True) -> Part[C]:
        return Part(self._servers, server, self._take(server, self._n, self._left.seconds(), looked), rests=True)

    def _goes_on(self, part: Part[C]) -> Flow[C, bool]:
        """Let a part go on. Returns False if its server cannot be reached."""
        try:
            yield from part.go_on()
        except UNREACHABLE as error:
            self._failures.append(error)
            return False
        return True

    def _take(
        self, server: Server[C], n: int, seconds: float | None, looked: bool
    ) -> Generator[Start[C] | Run | Wait, Any, list[Taken]]:
        core = server.client.shell.core
        running = None if server.unchecked else core.running_listener
        listener: Listener = running or (yield Start(server, not self._servers.is_last(server)))
        if server.whereabouts is None:
            self._servers.reached(server, (yield Run(whereabouts())))
        take = take_from_one(
            core, listener, self._whole.part, self._queues, n, seconds, self._stopped, timed=self._timed, looked=looked
        )
        self._takes.append(take)
        return (yield from take.run())

    def _over(self) -> bool:
        return self._stopped() or self._left.over()


def _close(parts: Iterable[Part[Any]]) -> None:
    for part in parts:
        part.close()
