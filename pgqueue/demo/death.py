"""The kill of a worker, and when the tasks that it held were given back.

A task is given back when the dead worker's session does not hold it any more: it is ready, or another worker has taken
it. The demo sees this in the database. The time at which another handler begins the task would be simpler to find, but
it grows with the work that keeps the handlers busy.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from .crew import Crew, Member

PAUSE = 0.001  # seconds between two looks at connections that end
ENDED_WITHIN = 0.4  # seconds for that: behind a pooler they do not end. It is less than the grace of a session

_HELD = """
    SELECT id, data ->> 'path', session FROM pgqueue.tasks
     WHERE queue = 'demo' AND data ->> 'run' = %s AND holder LIKE %s
"""
_LEFT = """
    SELECT id, data ->> 'path' FROM pgqueue.tasks
     WHERE queue = 'demo' AND data ->> 'run' = %s AND (id = ANY (%s) OR session = ANY (%s))
"""
_HOLDERS = "SELECT id, coalesce(session = ANY (%s), false) FROM pgqueue.tasks WHERE id = ANY (%s)"
_CONNECTED = "SELECT FROM pg_catalog.pg_stat_activity WHERE application_name = %s"


class Death:
    """A worker that was killed.

    Attributes:
        pid: of the worker.
        successor: the pid of the worker in its place.
        held: the paths of the tasks that the worker held, by id.
        back: the seconds from the kill until a task was given back, by id.
        gone: the same for tasks that were already done when the demo looked.
    """

    def __init__(self, db: psycopg.Connection[Any], run: str, crew: Crew, victim: Member) -> None:
        """Kill a worker, and start another one."""
        self._db = db
        self.pid = victim.pid
        before = db.execute(_HELD, [run, f"%:{victim.pid}:%"]).fetchall()
        self._killed_at = time.monotonic()
        victim.kill()
        # The server may have received an ack that it has not run yet. It runs all of them before a backend ends.
        while self._elapsed() < ENDED_WITHIN and db.execute(_CONNECTED, [victim.name]).fetchone() is not None:
            time.sleep(PAUSE)
        self._sessions = list({session for _, _, session in before})
        rows = db.execute(_LEFT, [run, [id for id, _, _ in before], self._sessions]).fetchall()
        self.held: dict[int, str] = dict(rows)
        self.back: dict[int, float] = {}
        self.gone: dict[int, float] = {}
        self.successor = crew.replace(victim).pid

    def look(self) -> None:
        """Note which tasks have been given back."""
        if self.is_over():
            return
        is_held = dict(self._db.execute(_HOLDERS, [self._sessions, list(self.held)]).fetchall())
        now = self._elapsed()
        for id in self.held.keys() - self.back.keys() - self.gone.keys():
            if id not in is_held:
                self.gone[id] = now
            elif not is_held[id]:
                self.back[id] = now

    def is_over(self) -> bool:
        """Whether the dead worker holds no task any more."""
        return len(self.back) + len(self.gone) == len(self.held)

    def settle(self, doers: dict[str, set[int]]) -> None:
        """Decide about the tasks in `gone` by the workers that gave results, by path: a task that the dead worker alone
        has done was acked just before the kill."""
        for id, seconds in self.gone.items():
            if doers.get(self.held[id], set()) - {self.pid}:
                self.back[id] = seconds
            else:
                del self.held[id]
        self.gone.clear()

    def came_back(self) -> tuple[float, float] | None:
        """Seconds from the kill until the first and the last of the tasks were given back; None if there were none."""
        return (min(self.back.values()), max(self.back.values())) if self.back else None

    def _elapsed(self) -> float:
        return time.monotonic() - self._killed_at


def holder(db: psycopg.Connection[Any], run: str, crew: Crew) -> Member | None:
    """The worker that holds the most tasks of this run; None if none holds any."""
    held = [(len(db.execute(_HELD, [run, f"%:{one.pid}:%"]).fetchall()), one) for one in crew.members]
    most, found = max(held, key=lambda pair: pair[0])
    return found if most else None
