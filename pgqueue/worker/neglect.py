"""Whether tasks of a worker wait although its runners are idle: then the worker is not ready, for any cause.

A living thread, or session, is no proof of work. So the database is asked, no more often than every EVERY seconds, and
only while a runner has been idle, and its crew has begun no task, for BOUND seconds. The report does not wait for the
answer: it uses the last one. A role that may not look into the queues gets no answer, and the worker then counts as
ready.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psycopg

from .._calls.stats import waiting_long
from .._engine.owners import errand
from .._values.logs import log
from ..errors import Error
from .crew import Crew

if TYPE_CHECKING:
    from .._sync.shell import Shell


BOUND = 10.0  # seconds for which a task of a queue may be ready while a runner is idle
EVERY = 10.0  # seconds between two questions
WITHIN = 5.0  # seconds for the answer


class Neglect:
    """Looks at these crews, whose list may grow."""

    def __init__(self, shell: Shell, crews: Sequence[Crew]) -> None:
        self._shell = shell
        self._crews = crews
        self._why: str | None = None
        self._ask_at = 0.0

    def found(self) -> str | None:
        """The tasks that wait although runners are idle, in words; None: none. Does not wait."""
        now = time.monotonic()
        idle = self._idle(now)
        if not idle:
            self._why = None
        elif now >= self._ask_at:
            self._ask_at = now + EVERY
            errand("pgqueue-neglect", self._ask, idle).start()
        return self._why

    def _idle(self, now: float) -> list[Crew]:
        return [crew for crew in self._crews if crew.idle_for(now) >= BOUND]

    def _ask(self, idle: list[Crew]) -> None:
        queues = sorted({queue for crew in idle for queue in crew.startable()})
        try:
            waiting = self._shell.run(waiting_long(queues, BOUND), relaxed=True, within=WITHIN)
        except (Error, psycopg.Error) as error:
            log.debug("whether tasks wait for idle runners is not known at present: %s", error)
            return
        still = {queue for crew in self._idle(time.monotonic()) for queue in crew.startable()}
        self._why = next((_said(queue, age) for queue, age in waiting if queue in still), None)


def _said(queue: str, age: float) -> str:
    return f"tasks of {queue} have been ready for {age:.0f} s, and its runners are idle"
