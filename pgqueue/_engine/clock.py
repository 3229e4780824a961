"""The clock of schedules: finds due schedules, fires them, and sleeps until the next time. A flow, for both shells.

sql/6_families/schedules.sql has the theory. Any number of clocks may run at once, and none is responsible for a
schedule: each looks when the next one is due, and the first clock fires it. Between two looks a clock keeps only the
pauses of schedules that could not be fired.

Time. The database says which schedules are due, and in how many seconds the next one is. The clock sleeps for that time
by its own monotonic clock, but no longer than LOOK: when the time of the database steps forward, or the machine slept,
a schedule is late by LOOK at most. It does not sleep through a change: set_schedule and resume_schedule announce it. A
clock looks after its LISTEN is committed, and after each reconnect.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg

from .._calls.schedules import CHANNEL, Due, Fired, due_schedules, fire_schedule, refuse_schedule
from .._values.logs import log
from .._values.timetable import between, timetable
from ..errors import ClosedError, Error, NotAllowed
from .listener import Listener
from .outages import AWAY, Outage, Pauses
from .steps import Flow, Run
from .switchboard import Ear
from .waits import MakeSignal, TimeLeft, enter, next_payload

MOST = 100  # occurrences that are fired together, of a schedule that missed more
LOOK = 10.0  # seconds between two looks while there are schedules
#: Seconds until a schedule is tried again, by the outcome: at first, and doubled each time up to the second one. It is
#: busy for a millisecond while another clock fires it, and longer while a transaction of the application changes it.
AGAIN = {"busy": (0.05, 5.0), "early": (0.05, 5.0), "refused": (10.0, 10.0)}
PAUSE = (1.0, 30.0)  # after a look that the server refused: first and longest, seconds
MICROSECOND = timedelta(microseconds=1)


class Clock:
    """Fires schedules until stop(). `poll`: seconds between two looks while there is no schedule."""

    def __init__(self, poll: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self.stopped = False
        self._poll = float("inf") if poll is None else poll
        self._now = now
        self._put_off: dict[str, float] = {}  # schedules, each until a time of `now`
        self._pauses: dict[str, float] = {}  # the last pause of each that was put off
        self._told: dict[str, str] = {}  # the problem of each that was logged
        self._away, self._refusals = Pauses(), Pauses(*PAUSE)
        self._hang_up: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """Let run() return. May be called in any thread."""
        self.stopped = True
        self._hang_up()

    def run(self, listener: Listener, make_signal: MakeSignal) -> Flow[None]:
        """Look, fire, sleep. Returns after stop(), and when the client is closed or may not fire schedules."""
        ear = Ear(CHANNEL, make_signal)
        self._hang_up = lambda: listener.switchboard.hang_up(ear)
        try:
            yield from enter(listener, ear, TimeLeft(PAUSE[0]))  # without it, a reconnect is a reason to look
            while not self.stopped:
                listener.switchboard.forget(ear)  # before the look: an announcement after it counts
                seconds, is_pause = yield from self._look_safely(listener.outage)
                left = TimeLeft(seconds)
                heard = yield from next_payload(listener, make_signal, ear, left)
                while is_pause and heard is not None and not left.over():  # no announcement shortens it
                    heard = yield from next_payload(listener, make_signal, ear, left)
        except ClosedError:
            pass
        except NotAllowed as error:
            log.warning("this process fires no schedules: %s", error)
        finally:
            listener.switchboard.leave(ear)

    def _look_safely(self, outage: Outage) -> Flow[tuple[float, bool]]:
        """Returns in how many seconds to look again, and whether that is a pause after an error."""
        try:
            seconds = yield from self.look()
        except (ClosedError, NotAllowed):
            raise
        except AWAY as error:
            outage.met(error)
            return self._away.failed(), True
        except (Error, psycopg.Error) as error:
            seconds = self._refusals.failed()
            log.warning("schedules wait for %.1f s: %s", seconds, str(error).strip())
            return seconds, True
        self._away.succeeded()
        self._refusals.succeeded()
        return seconds, False

    def look(self) -> Flow[float]:
        """Fire the schedules that are due. Returns in how many seconds to look again."""
        while True:
            now = self._now()
            self._put_off = {name: until for name, until in self._put_off.items() if until > now}
            rows: list[Due] = yield Run(due_schedules(list(self._put_off)), relaxed=False)
            due = [row for row in rows if row.seconds <= 0]
            if not due or self.stopped:
                coming = [row.seconds for row in rows] + [until - now for until in self._put_off.values()]
                return min(LOOK, *coming) if coming else self._poll
            for row in due:
                fired: Fired = yield Run(self._answer(row), relaxed=False)
                self._note(row.name, fired)

    def _answer(self, due: Due) -> Any:
        """The call for a schedule that is due. Its occurrences are counted up to the server's present time."""
        try:
            times = timetable(due.cron, due.every, due.tz)
        except (ValueError, ImportError) as error:
            return refuse_schedule(due, str(error)[:1000])
        start = due.counts_from if due.next_at is None else due.next_at - MICROSECOND
        return fire_schedule(due, between(times, start, due.moment, MOST), times.after(due.moment))

    def _note(self, name: str, fired: Fired) -> None:
        if (pauses := AGAIN.get(fired.outcome)) is not None:
            first, longest = pauses
            self._pauses[name] = min(self._pauses.get(name, first / 2) * 2, longest)
            self._put_off[name] = self._now() + self._pauses[name]
        else:
            self._pauses.pop(name, None)
        if fired.problem is None:
            self._told.pop(name, None)
        elif self._told.get(name) != fired.problem:
            log.error("schedule %r does not fire: %s", name, fired.problem)
            self._told[name] = fired.problem
