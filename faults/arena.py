"""An arena: a setting, a crew that works in it, and faults one after another. At the end the ledger judges."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from . import kinds, servers, settings
from .crew import Crew
from .kinds import Fault, Scene
from .ledger import AFTER, LATER, Proof, Tables, Violation, Window, prove
from .settings import Setting

AT_WORK_WITHIN = 60.0  # seconds for all processes to complete a first step
SWEPT_WITHIN = 10.0  # seconds from the end of all processes to that of their sessions
CALM = Fault("none", "plain", kinds.calm)
CALMS = 3  # times


@dataclass(frozen=True)
class Options:
    """What all arenas have in common.

    Attributes:
        dsn: of a server that runs already; None for private clusters.
        bindir: PostgreSQL's programs for these.
        rate: puts a second, of all producers together.
        bound: seconds after a fault in which everyone has to be back.
        drain: seconds for the queues to become empty at the end.
        keep: leave the journals and the programs' output in this folder.
    """

    dsn: str | None = None
    bindir: Path | None = None
    rate: float = 100.0
    seed: int = 0
    bound: float = 30.0
    drain: float = 60.0
    keep: Path | None = None


@dataclass(frozen=True)
class Planned:
    """A fault, how often, and for how many seconds each time."""

    fault: Fault
    times: int
    seconds: float


class Arena:
    """One arena. run() may be called in any thread; setting `stopping` makes it end early."""

    def __init__(
        self,
        setting: str,
        plan: list[Planned],
        options: Options,
        stopping: threading.Event,
        say: Callable[[str], None],
    ) -> None:
        self.name, self._plan, self._options, self._stopping = setting, plan, options, stopping
        self._tell = say
        self._windows: list[Window] = []

    def run(self) -> Proof:
        with ExitStack() as stack:
            folder = stack.enter_context(servers.folder())
            setting = stack.enter_context(settings.provide(self.name, folder, self._options.dsn, self._options.bindir))
            journals = self._journals(folder)
            crew = Crew(journals, setting.way, self._options.rate, self._options.seed)
            stack.callback(crew.close)
            scene = self._scene(setting, crew)
            if not crew.wait_for_steps(list(crew.members), 0.0, AT_WORK_WITHIN):
                missing = ", ".join(sorted(set(crew.members) - crew.stepped(0.0)))
                raise TimeoutError(f"before any fault, {missing} completed no step within {AT_WORK_WITHIN:g} s")
            for planned in [Planned(CALM, CALMS, 0), *self._plan]:
                self._many(planned, scene)
            tables = self._finish(setting, crew)
            tables.other += scene.seen + crew.exits
            proof = prove(crew.lives(), self._windows, tables, self._options.bound)
            if proof.violations:  # a rare one does not come again, so what the processes printed is shown
                for log in sorted(journals.glob("*.log")):
                    self._tell("".join(f"{self.name}: {log.stem}: {line}\n" for line in log.read_text().splitlines()))
            return proof

    def _journals(self, folder: Path) -> Path:
        place = (self._options.keep or folder) / f"journals-{self.name}"
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _scene(self, setting: Setting, crew: Crew) -> Scene:
        chance = random.Random(f"{self._options.seed} {self.name}")
        return Scene(setting.server, crew, chance, self._stopping, setting.proxy, setting.pooler, setting.namespace)

    def _many(self, planned: Planned, scene: Scene) -> None:
        if self._windows and not self._windows[-1].excuses <= planned.fault.excuses:
            scene.sleep(AFTER)  # what the last fault excuses is not to excuse the next one
        began = time.monotonic()
        scene.seconds = planned.seconds
        for scene.turn in range(planned.times):
            planned.fault.prepare(scene)
            self._once(planned.fault, scene)
        if not planned.fault.waits:
            self._wait(scene, None, time.monotonic())
        self._tell(f"{self.name}: {planned.fault.name}: {planned.times} times in {time.monotonic() - began:.0f} s")

    def _once(self, fault: Fault, scene: Scene) -> None:
        window = Window(fault.name, time.monotonic(), float("inf"), fault.excuses)
        self._windows.append(window)
        victims = fault.act(scene)
        window.ended = time.monotonic()
        window.victims = None if victims is None else frozenset(victims)
        if fault.waits:
            self._wait(scene, window.victims, window.ended)

    def _wait(self, scene: Scene, names: frozenset[str] | None, since: float) -> None:
        """Until these are back. The ledger tells, from the journals, when they were, or that they were not in time."""
        scene.crew.wait_for_steps(scene.crew.members if names is None else names, since, self._options.bound)
        scene.sleep(scene.random.uniform(0, 0.3))  # the next fault comes at any moment

    def _finish(self, setting: Setting, crew: Crew) -> Tables:
        tables = Tables()
        with setting.server.connect() as admin:
            tables.counted |= _counted(admin, "under load")
            crew.end_producers()
            self._drain(admin)
            tables.left |= _left(admin)
            crew.end(list(crew.members))
            tables.counted |= _counted(admin, "at the end")
            tables.rows |= _swept(admin)
        return tables

    def _drain(self, admin: psycopg.Connection[Any]) -> None:
        deadline = time.monotonic() + self._options.drain
        while not {"B", LATER}.issuperset(_left(admin).values()):
            if time.monotonic() > deadline or self._stopping.is_set():
                break
            time.sleep(0.05)


def _left(admin: psycopg.Connection[Any]) -> dict[str, str]:
    """The labels of all tasks, with their states."""
    query = """
        SELECT t.data ->> 'label',
               CASE WHEN EXISTS (SELECT FROM pgqueue.task d
                                  WHERE d.run_at > clock_timestamp() + '1 min'
                                    AND (d.id = t.id OR t.state = 'L' AND d.queue_id = t.queue_id AND d.lane = t.lane))
                    THEN %s ELSE t.state::text END
          FROM pgqueue.task t
    """
    return dict(admin.execute(query, [LATER]).fetchall())


def _counted(admin: psycopg.Connection[Any], when: str) -> dict[str, tuple[int, int]]:
    """What the counters say, and what the tables have: in one snapshot.

    Not the ready and the delayed ones each by itself: the view counts a task that has become due as ready.
    """
    query = """
        SELECT q.name, s.total, count(t.id), s.buried, count(t.id) FILTER (WHERE t.state = 'B'),
               s.taken, count(k.task_id) FILTER (WHERE k.deadline > clock_timestamp())
          FROM pgqueue.queue q
          JOIN pgqueue.stats s ON s.queue = q.name
          LEFT JOIN pgqueue.task t ON t.queue_id = q.id
          LEFT JOIN pgqueue.take k ON k.task_id = t.id
         GROUP BY q.name, s.total, s.buried, s.taken
    """
    admin.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with admin.transaction():
        rows = admin.execute(query).fetchall()
    admin.isolation_level = None
    counted = {}
    for name, total, tasks, buried, tasks_buried, taken, takes in rows:
        counted[f"tasks of {name}, {when}"] = (total, tasks)
        counted[f"buried tasks of {name}, {when}"] = (buried, tasks_buried)
        counted[f"taken tasks of {name}, {when}"] = (taken, takes)
    return counted


def _swept(admin: psycopg.Connection[Any]) -> dict[str, int]:
    """Takes and sessions, after all processes have ended: others would sweep them, so it is for us to do it."""
    deadline = time.monotonic() + SWEPT_WITHIN
    while True:
        admin.execute("SELECT pgqueue.sweep()")
        found = admin.execute(
            "SELECT (SELECT count(*) FROM pgqueue.take), (SELECT count(*) FROM pgqueue.session)"
        ).fetchone()
        assert found is not None
        if found == (0, 0) or time.monotonic() > deadline:
            return {"pgqueue.take": found[0], "pgqueue.session": found[1]}
        time.sleep(0.1)


def failed(arena: str, error: BaseException) -> Violation:
    return Violation(time.monotonic(), "rig", f"{arena}: {type(error).__name__}: {error}")
