"""A model of one queue against the database: whatever is done in whatever order, the views say what the model says.

Time is not waited for: deadlines and delays are moved into the past with UPDATE. Sessions are raw connections; one
dies by closing its connection, and a sweep with no grace gives its tasks back. The examples share one database, whose
tables are emptied before each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import hypothesis
import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from servers import Server
from statements import row, rows, value
from stepping import die

EXAMPLES, STEPS, SESSIONS = 50, 50, 2
VIEW = "SELECT id, state, priority, attempts, session FROM pgqueue.tasks ORDER BY id"
PUT = st.tuples(st.integers(-1, 1), st.booleans(), st.integers(0, 3).map(lambda n: n == 0))  # priority, ttr, delay
STATES = ("ready", "delayed", "taken", "buried")


@dataclass
class Modelled:
    """A task as it should be."""

    id: int
    priority: int
    state: str = "ready"
    attempts: int = 0
    session: int | None = None
    token: int | None = None
    ttr: bool = False
    overdue: bool = False  # its deadline or its delay is over; nobody has promoted it yet

    def seen(self) -> tuple[int, str, int, int, int | None]:
        """Its row in the view, which does not wait for a promotion to say that time is over."""
        if self.overdue:
            return self.id, "ready", self.priority, self.attempts, None
        return self.id, self.state, self.priority, self.attempts, self.session

    def give_back(self, state: str = "ready", *, failed: bool = False) -> None:
        self.state, self.session, self.token, self.overdue = state, None, None, False
        self.attempts += failed


@dataclass(frozen=True)
class Hold:
    """A take as its taker remembers it, for as long as it likes: it may have been lost meanwhile."""

    id: int
    token: int


class QueueMachine(RuleBasedStateMachine):
    """Rules do a thing to both, the database and the model, and compare the answers."""

    admin: psycopg.Connection
    dsn: str
    holds = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.admin.execute("TRUNCATE pgqueue.task, pgqueue.take, pgqueue.session")
        self.tasks: dict[int, Modelled] = {}
        self.sessions: list[tuple[int, psycopg.Connection]] = []
        for _ in range(SESSIONS):
            self.new_session()

    def teardown(self) -> None:
        for _, conn in self.sessions:
            conn.close()

    def new_session(self) -> None:
        conn = psycopg.connect(self.dsn, autocommit=True)
        id = value(conn, "SELECT pgqueue.open_session(grace => '0', label => 'model')")
        self.sessions.append((id, conn))

    # --- what the model knows

    def promote(self) -> None:
        """What a claim at the head does first."""
        for task in self.tasks.values():
            if task.overdue:
                task.give_back(failed=task.state == "taken")

    def in_order(self, state: str) -> list[Modelled]:
        return sorted((t for t in self.tasks.values() if t.state == state), key=lambda t: (t.priority, t.id))

    def any(self, *states: str) -> bool:
        return any(task.state in states for task in self.tasks.values())

    def timed(self) -> list[int]:
        """Those for which time can be over."""
        return sorted(t.id for t in self.tasks.values() if t.state == "delayed" or (t.state == "taken" and t.ttr))

    def refusal(self, hold: Hold) -> str | None:
        """The problem that a settling of this hold is answered with; None if it counts."""
        task = self.tasks.get(hold.id)
        if task is None:
            return "not found"
        if task.seen()[1] != "taken":
            return "not taken"
        return None if task.token == hold.token else "taken by another"

    # --- rules

    @initialize(puts=st.lists(PUT, min_size=4, max_size=8))
    def begin_with(self, puts: list[tuple[int, bool, bool]]) -> None:
        for put in puts:
            self.put(put)

    @rule(puts=st.lists(PUT, min_size=1, max_size=3))
    def put_some(self, puts: list[tuple[int, bool, bool]]) -> None:
        self.begin_with(puts)

    def put(self, put: tuple[int, bool, bool]) -> None:
        priority, ttr, delay = put
        query = "SELECT id, state FROM pgqueue.put('q', '1', %s, %s::interval, %s::interval)"
        times = "1 h" if delay else None, "1 h" if ttr else None
        id, state = rows(self.admin, query, priority, *times)[0]
        self.tasks[id] = Modelled(id, priority, state, ttr=ttr)
        assert state == ("delayed" if delay else "ready")

    @precondition(lambda self: self.any("ready") or any(task.overdue for task in self.tasks.values()))
    @rule(target=holds, n=st.integers(1, 3), by=st.integers(0, SESSIONS - 1))
    def take(self, n: int, by: int) -> Any:
        session, _ = self.sessions[by]
        self.promote()
        expected = self.in_order("ready")[:n]
        if n == 1:
            query, args = "SELECT id, token FROM pgqueue.take('q', session => %s)", [session]
        else:
            query, args = "SELECT id, token FROM pgqueue.take_many(ARRAY ['q'], %s, session => %s)", [n, session]
        taken = rows(self.admin, query, *args)
        assert [id for id, _ in taken] == [task.id for task in expected]
        for task, (_, token) in zip(expected, taken, strict=True):
            task.state, task.session, task.token = "taken", session, token
        return multiple(*(Hold(*each) for each in taken))

    @rule(hold=consumes(holds))
    def ack(self, hold: Hold) -> None:
        state, problem, _ = rows(self.admin, "SELECT * FROM pgqueue.ack(%s, %s)", hold.id, hold.token)[0]
        assert problem == self.refusal(hold)
        if problem is None:
            assert state == "done"
            del self.tasks[hold.id]

    @rule(held=st.lists(consumes(holds), min_size=1, max_size=4))
    def ack_many(self, held: list[Hold]) -> None:
        refusals = {hold.id: problem for hold in held if (problem := self.refusal(hold))}
        counting = [hold.id for hold in held if not self.refusal(hold)]
        query = "SELECT id, problem FROM pgqueue.ack_many(%s::bigint[], %s::bigint[])"
        refused = rows(self.admin, query, [hold.id for hold in held], [hold.token for hold in held])
        assert dict(refused) == {id: problem for id, problem in refusals.items() if id not in counting}
        for id in counting:
            del self.tasks[id]

    @rule(hold=holds, delay=st.booleans(), failed=st.booleans())
    def release(self, hold: Hold, delay: bool, failed: bool) -> None:
        query = "SELECT state, problem FROM pgqueue.release(%s, %s, delay => %s::interval, error => %s)"
        args = (hold.id, hold.token, "1 h" if delay else None, "it failed" if failed else None)
        state, problem = rows(self.admin, query, *args)[0]
        assert problem == self.refusal(hold)
        if problem is None:
            assert state == ("delayed" if delay else "ready")
            self.tasks[hold.id].give_back(state, failed=failed)

    @rule(hold=holds)
    def touch(self, hold: Hold) -> None:
        state, problem = rows(self.admin, "SELECT state, problem FROM pgqueue.touch(%s, %s)", hold.id, hold.token)[0]
        assert problem == self.refusal(hold)
        assert problem or state == "taken"

    @rule(hold=holds)
    def bury(self, hold: Hold) -> None:
        state, problem = rows(self.admin, "SELECT state, problem FROM pgqueue.bury(%s, %s)", hold.id, hold.token)[0]
        assert problem == self.refusal(hold)
        if problem is None:
            assert state == "buried"
            self.tasks[hold.id].give_back("buried")

    @precondition(lambda self: self.any("taken"))
    @rule(data=st.data())
    def bury_anything(self, data: st.DataObject) -> None:
        """By its id alone anybody may, in any state."""
        task = self.tasks[data.draw(st.sampled_from(sorted(self.tasks)))]
        assert rows(self.admin, "SELECT state FROM pgqueue.bury(%s)", task.id) == [("buried",)]
        task.give_back("buried")

    @precondition(lambda self: self.any("buried"))
    @rule(n=st.integers(1, 3))
    def kick(self, n: int) -> None:
        kicked = self.in_order("buried")[:n]
        assert value(self.admin, "SELECT pgqueue.kick('q', %s)", n) == len(kicked)
        for task in kicked:
            task.give_back()

    @precondition(lambda self: len(self.tasks) > 6)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.tasks)))
        assert [value(self.admin, "SELECT pgqueue.delete(%s)", id) for _ in range(2)] == [True, False]
        del self.tasks[id]

    @precondition(lambda self: self.timed())
    @rule(data=st.data())
    def time_passes(self, data: st.DataObject) -> None:
        """A deadline or a delay of one task is over."""
        task = self.tasks[data.draw(st.sampled_from(self.timed()))]
        task.overdue = True
        past = "now() - interval '1 s'"
        self.admin.execute(f"UPDATE pgqueue.take SET deadline = {past} WHERE task_id = %s", [task.id])
        self.admin.execute(f"UPDATE pgqueue.task SET run_at = {past} WHERE id = %s AND state = 'D'", [task.id])

    @precondition(lambda self: any(task.overdue for task in self.tasks.values()))
    @rule()
    def tick(self) -> None:
        overdue = sum(task.overdue for task in self.tasks.values())
        assert value(self.admin, "SELECT pgqueue.promote_all()") == overdue
        self.promote()

    @precondition(lambda self: self.any("taken"))
    @rule(which=st.integers(0, SESSIONS - 1))
    def a_taker_dies(self, which: int) -> None:
        session, conn = self.sessions.pop(which)
        die(conn, self.admin)
        held = [task for task in self.tasks.values() if task.session == session]
        assert value(self.admin, "SELECT freed FROM pgqueue.sweep()") == len(held)
        for task in held:
            task.give_back(failed=True)
        self.new_session()

    @precondition(lambda self: len(self.in_order("ready")) > 3)
    @rule(n=st.integers(1, 3))
    def pop(self, n: int) -> None:
        self.promote()
        expected = [task.id for task in self.in_order("ready")[:n]]
        assert [found[0] for found in rows(self.admin, "SELECT id FROM pgqueue.pop('q', %s)", n)] == expected
        for id in expected:
            del self.tasks[id]

    # --- what holds after every step

    @invariant()
    def views_agree(self) -> None:
        seen = [task.seen() for task in sorted(self.tasks.values(), key=lambda task: task.id)]
        assert rows(self.admin, VIEW) == seen
        counts = {state: sum(task[1] == state for task in seen) for state in STATES}
        stats = row(self.admin, "SELECT total, ready, delayed, taken, buried FROM pgqueue.stats WHERE queue = 'q'")
        assert (stats or (0,) * 5) == (len(seen), *counts.values())

    @invariant()
    def takes_belong_to_tasks_and_sessions(self) -> None:
        orphans = """SELECT k.* FROM pgqueue.take k LEFT JOIN pgqueue.task t ON t.id = k.task_id
                       LEFT JOIN pgqueue.session s ON s.id = k.session_id
                      WHERE t.id IS NULL OR t.state <> 'R' OR s.id IS NULL"""
        assert rows(self.admin, orphans) == []


@pytest.fixture(scope="module")
def model_dsn(pg_server: Server, pg_template: str) -> Iterator[str]:
    name = pg_server.create(pg_template)
    yield pg_server.dsn(name)
    pg_server.drop(name)


@pytest.mark.slow
def test_a_queue_does_what_its_model_does(model_dsn: str) -> None:
    with psycopg.connect(model_dsn, autocommit=True) as admin:
        machine = type("Machine", (QueueMachine,), {"admin": admin, "dsn": model_dsn})
        hypothesis.stateful.run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                suppress_health_check=list(hypothesis.HealthCheck),  # a slow machine is not ill
            ),
        )
