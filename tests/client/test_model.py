"""A model of a queue against the database: whatever is done in whatever order, the views say what the model says.

The model is in modelling.py, and what has to be equal in machine.py. Each rule here does a thing to both and compares
the answers. An example draws the options of its queue, so that the short ways of a queue without any and the long ones
meet the same rules.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import hypothesis
import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, initialize, multiple, precondition, rule
from machine import PAST, SESSIONS, WAYS, Hold, Machine, hour
from modelling import Claim, Modelled, Options, Put
from statements import value
from stepping import die

EXAMPLES, STEPS = 50, 50
MANY = 24  # a quarter of so many is more than one
SELDOM = st.sampled_from([False, False, False, True])
QUEUES = st.sampled_from(["q", "q", "q", "dead"])
TAKEN = st.sampled_from([1, 2, 3, MANY])
OPTIONS = st.builds(
    Options,
    capacity=st.sampled_from([None, None, 8]),
    max_takes=st.sampled_from([None, 1, 2]),
    dead_letter=st.booleans(),
    keep_done=SELDOM,
    lanes=st.booleans(),
)
PUTS = st.builds(
    Put,
    priority=st.integers(-1, 1),
    delay=SELDOM,
    ttr=st.booleans(),
    ttl=st.booleans(),
    lane=st.sampled_from([None, None, None, "a", "b"]),
    key=st.sampled_from([None, None, "x", "y"]),
    if_exists=st.sampled_from(["ignore", "replace", "error"]),
    way=st.sampled_from(["put", "put", *WAYS]),
)
REFUSED = {"PQ037": "full", "PQ038": "error", "PQ039": "taken"}


class QueueMachine(Machine):
    """Rules do a thing to both, the database and the model, and compare the answers."""

    holds = Bundle("holds")

    def draw_task(self, data: st.DataObject, *states: str) -> Modelled:
        chosen = [id for id, task in self.model.tasks.items() if not states or task.state in states]
        return self.model.tasks[data.draw(st.sampled_from(sorted(chosen)))]

    def draw_claim(self, data: st.DataObject) -> Claim:
        return self.claims[data.draw(st.integers(0, len(self.claims) - 1))]

    # --- putting

    @initialize(options=OPTIONS, puts=st.lists(PUTS, min_size=4, max_size=8), more=st.sampled_from([0, 0, 0, MANY]))
    def begin_with(self, options: Options, puts: list[Put], more: int) -> None:
        self.claims: list[Claim] = []  # whoever made them may still use those that are over
        self.new_queues(options)
        self.put_some(puts + [Put()] * more)

    @rule(puts=st.lists(PUTS, min_size=1, max_size=3))
    def put_some(self, puts: list[Put]) -> None:
        for put in puts:
            self.put(put if self.model.options.lanes else replace(put, lane=None))

    def put(self, put: Put) -> None:
        self.puts += 1
        lanes = self.model.lanes
        met, other = self.model.meet(put)
        refused = None
        way = "put" if put.way == "flow" and put.if_exists == "replace" else put.way  # a flow's task replaces none
        times = {"delay": hour(put.delay), "ttr": hour(put.ttr), "ttl": hour(put.ttl)}
        try:
            asked = {**asdict(put), **times, "data": self.puts}
            id, state, existed, kept = self.admin.execute(WAYS[way], asked).fetchall()[0]
        except psycopg.Error as error:
            refused = REFUSED[error.sqlstate or ""]
            self.model.lanes = lanes
        if refused or met in ("error", "taken"):
            assert refused == met
            return
        if met == "put":
            other = self.model.add(id, put, self.puts)
        elif met == "replaced":
            assert other
            self.model.replace(other, put, self.puts)
        if other is None:
            assert (met, state) == ("full", "full")
        elif way in ("many", "json"):
            assert id == other.id
        else:
            assert (id, self.known(other, state)) == (other.id, self.model.seen(other))
            assert (bool(existed), kept) == (met != "put", other.data if met == "ignored" else None)

    # --- taking and settling

    @precondition(lambda self: self.any("ready") or any(task.late for task in self.model.tasks.values()))
    @rule(target=holds, queue=QUEUES, n=TAKEN, by=st.integers(0, SESSIONS - 1))
    def take(self, queue: str, n: int, by: int) -> Any:
        session, _ = self.sessions[by]
        if n == 1:
            taken = self.ask("SELECT id, token FROM pgqueue.take(%s, session => %s)", queue, session)
        else:
            query = "SELECT id, token FROM pgqueue.take_many(ARRAY [%s], %s, session => %s)"
            taken = self.ask(query, queue, n, session)
        return self.taken(self.model.take(queue, n, session), taken, session)

    @precondition(lambda self: self.any("ready") and not self.model.lanes)
    @rule(target=holds, n=TAKEN, by=st.integers(0, SESSIONS - 1))
    def take_of_both(self, n: int, by: int) -> Any:
        session, _ = self.sessions[by]
        query = "SELECT id, token FROM pgqueue.take_many(ARRAY ['q', 'dead'], %s, session => %s)"
        taken = self.ask(query, n, session)
        return self.taken(self.model.take_of_both(n, session), taken, session)

    @precondition(lambda self: self.model.tasks and not self.anything_due())
    @rule(target=holds, data=st.data(), by=st.integers(0, SESSIONS - 1))
    def take_id(self, data: st.DataObject, by: int) -> Any:
        session, _ = self.sessions[by]
        task = self.draw_task(data)
        token, problem = self.ask("SELECT token, problem FROM pgqueue.take_id(%s, %s)", task.id, session)[0]
        assert problem == self.model.take_id(task, session)
        return multiple() if problem else self.taken([task], [(task.id, token)], session)

    def taken(self, expected: list[Modelled], found: list[tuple[Any, ...]], session: int) -> Any:
        assert [id for id, _ in found] == [task.id for task in expected]
        for task, (_, token) in zip(expected, found, strict=True):
            task.session, task.token = session, token
        return multiple(*(Hold(*each) for each in found))

    @precondition(lambda self: self.any("ready"))
    @rule(queue=QUEUES, n=st.integers(1, 2))
    def pop(self, queue: str, n: int) -> None:
        popped = self.ask("SELECT id FROM pgqueue.pop(%s, %s)", queue, n)
        expected = self.model.take(queue, n)
        assert popped == [(task.id,) for task in expected]
        for task in expected:
            self.model.end(task)

    @rule(hold=consumes(holds))
    def ack(self, hold: Hold) -> None:
        task, state = self.settle(hold, "ack(%s, %s)")
        if task:
            assert state == "done"
            self.model.end(task)

    @rule(held=st.lists(consumes(holds), min_size=1, max_size=4))
    def ack_many(self, held: list[Hold]) -> None:
        for task in self.settle_many("ack_many", held):
            self.model.end(task)

    @rule(held=st.lists(consumes(holds), min_size=1, max_size=4))
    def release_many(self, held: list[Hold]) -> None:
        for task in self.settle_many("release_many", held):
            self.model.release_untouched(task)

    @rule(hold=holds, delayed=st.booleans(), failed=st.booleans(), holds_lane=st.booleans())
    def release(self, hold: Hold, delayed: bool, failed: bool, holds_lane: bool) -> None:
        query = "release(%s, %s, delay => %s::interval, error => %s, hold_lane => %s)"
        task, state = self.settle(hold, query, hour(delayed), "it failed" if failed else None, holds_lane)
        if task:
            assert state == self.model.release(task, delayed=delayed, failed=failed, holds_lane=holds_lane)

    @rule(hold=holds)
    def requeue(self, hold: Hold) -> None:
        expected = self.model.refusal(hold.id, hold.token)
        new_id, problem = self.ask("SELECT new_id, problem FROM pgqueue.requeue(%s, %s)", hold.id, hold.token)[0]
        assert problem == expected
        if new_id:
            self.model.requeue(self.model.tasks[hold.id], new_id)

    @rule(hold=holds)
    def touch(self, hold: Hold) -> None:
        problem = self.model.touch(hold.id, hold.token)
        assert self.ask("SELECT problem FROM pgqueue.touch(%s, %s)", hold.id, hold.token) == [(problem,)]

    @rule(hold=holds, failed=st.booleans())
    def bury(self, hold: Hold, failed: bool) -> None:
        task, state = self.settle(hold, "bury(%s, %s, error => %s)", "it failed" if failed else None)
        if task:
            assert state == self.model.bury(task, failed=failed)

    # --- what anybody may

    @precondition(lambda self: self.any("taken"))
    @rule(data=st.data())
    def bury_anything(self, data: st.DataObject) -> None:
        """By its id alone anybody may, in any state."""
        task = self.draw_task(data, "ready", "delayed", "taken", "buried")
        state = self.ask("SELECT state FROM pgqueue.bury(%s)", task.id)
        assert state == [(self.model.bury(task),)]

    @precondition(lambda self: self.any("buried"))
    @rule(queue=QUEUES, n=st.integers(1, 3))
    def kick(self, queue: str, n: int) -> None:
        assert value(self.admin, "SELECT pgqueue.kick(%s, %s)", queue, n) == self.model.kick(queue, n)

    @precondition(lambda self: len(self.model.tasks) > 6)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        task = self.draw_task(data)
        assert [value(self.admin, "SELECT pgqueue.delete(%s)", task.id) for _ in range(2)] == [True, False]
        self.model.delete(task)

    @precondition(lambda self: self.any("buried", "delayed"))
    @rule(data=st.data())
    def kick_task(self, data: st.DataObject) -> None:
        task = self.draw_task(data, "buried", "delayed")
        self.ask("SELECT FROM pgqueue.kick_task(%s)", task.id)
        self.model.kick_task(task)

    @precondition(lambda self: self.any("ready", "delayed", "taken", "buried", "done"))
    @rule(data=st.data())
    def delete_strict(self, data: st.DataObject) -> None:
        task = self.draw_task(data)
        problem = "taken by another" if self.model.seen(task) == "taken" else None
        assert self.ask("SELECT problem FROM pgqueue.delete_strict(%s)", task.id) == [(problem,)]
        if problem is None:
            self.model.delete(task)

    @precondition(lambda self: self.any("ready", "delayed", "buried", "done"))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        task = self.draw_task(data, "ready", "delayed", "buried", "done")
        expected = ("done", "ended") if task.state == "done" else ("cancelled", None)
        assert self.ask("SELECT state, problem FROM pgqueue.cancel(%s)", task.id) == [expected]
        if task.state != "done":
            self.model.delete(task)

    @rule(queue=QUEUES)
    def release_all(self, queue: str) -> None:
        held = self.model.in_state(queue, "taken")
        assert value(self.admin, "SELECT pgqueue.release_all(%s)", queue) == len(held)
        for task in held:
            self.model.release_untouched(task)

    @precondition(lambda self: len(self.model.tasks) > 12)
    @rule(queue=QUEUES)
    def truncate_queue(self, queue: str) -> None:
        tasks = [task for task in self.model.tasks.values() if task.queue == queue]
        assert value(self.admin, "SELECT pgqueue.truncate_queue(%s)", queue) == len(tasks)
        for task in tasks:
            self.model.remove(task)

    @rule(queue=QUEUES, n=TAKEN, by=st.integers(0, SESSIONS - 1))
    def take_while_it_is_paused(self, queue: str, n: int, by: int) -> None:
        self.ask("SELECT pgqueue.pause_queue(%s, '1 h')", queue)
        assert self.ask("SELECT id FROM pgqueue.take_many(ARRAY [%s], %s, %s)", queue, n, self.sessions[by][0]) == []
        self.ask("SELECT pgqueue.pause_queue(%s, '0')", queue)
        self.model.act_on_late(queue, paused=True)

    @rule()
    def put_while_it_is_draining(self) -> None:
        self.ask("SELECT pgqueue.drain_queue('q')")
        with pytest.raises(psycopg.Error, match="drain"):
            self.ask("SELECT FROM pgqueue.put('q', '1')")
        self.ask("SELECT pgqueue.drain_queue('q', false)")

    # --- claims

    @precondition(lambda self: self.any("ready") and len(self.model.claims) < 8)
    @rule(target=holds, queue=QUEUES, n=st.integers(1, 3))
    def claim(self, queue: str, n: int) -> Any:
        found = self.ask("SELECT id, claim FROM pgqueue.claim_messages(%s, %s)", queue, n)
        expected = self.model.claim(queue, n)
        if found:
            self.claims.append(Claim(found[0][1], queue))
            self.model.claims[self.claims[-1].id] = self.claims[-1]
        return self.taken(expected, found, session=0)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def get_claim(self, data: st.DataObject) -> None:
        claim = self.draw_claim(data)
        found = self.ask("SELECT id FROM pgqueue.get_claim(%s, %s)", claim.queue, claim.id)
        held: list[int | None] = [task.id for task in self.model.held_by(claim)] or [None]
        assert [id for (id,) in found] == (held if self.model.is_live(claim) else [])

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def renew_claim(self, data: st.DataObject) -> None:
        claim = self.draw_claim(data)
        renewed = value(self.admin, "SELECT pgqueue.renew_claim(%s, %s)", claim.queue, claim.id)
        assert renewed == self.model.renew(claim)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def release_claim(self, data: st.DataObject) -> None:
        claim = self.draw_claim(data)
        given_back = value(self.admin, "SELECT pgqueue.release_claim(%s, %s)", claim.queue, claim.id)
        assert given_back == self.model.release_claim(claim)

    @precondition(lambda self: self.claims and self.model.tasks)
    @rule(data=st.data(), queue=QUEUES, named=st.booleans())
    def delete_message(self, data: st.DataObject, queue: str, named: bool) -> None:
        task = self.draw_task(data)
        claim = self.draw_claim(data) if named else None
        query = "SELECT pgqueue.delete_message(%s, %s, claim => %s)"
        problem = value(self.admin, query, queue, task.id, claim and claim.id)
        assert problem == self.model.delete_message(queue, task, claim)

    @precondition(lambda self: any(self.model.is_live(claim) for claim in self.claims))
    @rule(data=st.data())
    def claim_ends(self, data: st.DataObject) -> None:
        live = [claim for claim in self.claims if self.model.is_live(claim)]
        claim = data.draw(st.sampled_from(live))
        claim.over = True
        for task in self.model.held_by(claim):
            task.late = True
        self.admin.execute(f"UPDATE pgqueue.claim SET expires_at = {PAST} WHERE token = %s", [claim.id])
        self.admin.execute(f"UPDATE pgqueue.take SET deadline = {PAST} WHERE token = %s", [claim.id])

    # --- time, and death

    def timed(self) -> list[Modelled]:
        """Those for which it can pass alone; a claim's tasks have theirs together."""
        return [
            task
            for task in self.model.tasks.values()
            if task.state == "delayed" or (task.ends and task.session != 0 and task.state != "done")
        ]

    @precondition(lambda self: self.timed())
    @rule(data=st.data())
    def time_passes(self, data: st.DataObject) -> None:
        """The delay of a task is over, the deadline of its take, or its time to live."""
        task = self.model.tasks[data.draw(st.sampled_from(sorted(task.id for task in self.timed())))]
        if task.state == "delayed" or (task.state == "taken" and task.ttr):
            task.late = True
        elif task.ttl:
            self.expire(task)
        self.be_late(task)

    @precondition(lambda self: self.with_key_and_ttl())
    @rule(data=st.data(), put=PUTS)
    def put_the_key_of_an_expired_task(self, data: st.DataObject, put: Put) -> None:
        task = self.model.tasks[data.draw(st.sampled_from(self.with_key_and_ttl()))]
        self.expire(task)
        self.be_late(task)
        self.put_some([replace(put, key=task.key)])

    def with_key_and_ttl(self) -> list[int]:
        return [task.id for task in self.timed() if task.ttl and task.key and task.state != "delayed"]

    def expire(self, task: Modelled) -> None:
        task.late, task.expired = task.state == "taken", True
        self.admin.execute(f"UPDATE pgqueue.task SET expires_at = {PAST} WHERE id = %s", [task.id])

    def be_late(self, task: Modelled) -> None:
        if task.late:
            self.admin.execute(f"UPDATE pgqueue.task SET run_at = {PAST} WHERE id = %s AND state = 'D'", [task.id])
            self.admin.execute(f"UPDATE pgqueue.take SET deadline = {PAST} WHERE task_id = %s", [task.id])

    def anything_due(self) -> bool:
        return any(task.late or task.expired for task in self.model.tasks.values())

    @precondition(anything_due)
    @rule()
    def tick(self) -> None:
        promoted = value(self.admin, "SELECT pgqueue.promote_all()")
        assert promoted == self.model.promote("q") + self.model.promote("dead")

    def takers(self) -> list[int]:
        """Places in `sessions` of those that have tasks."""
        have = {task.session for task in self.model.tasks.values()}
        return [which for which, (session, _) in enumerate(self.sessions) if session in have]

    @precondition(lambda self: self.takers())
    @rule(data=st.data())
    def a_taker_dies(self, data: st.DataObject) -> None:
        self.end_session(data.draw(st.sampled_from(self.takers())))

    @precondition(lambda self: self.any("ready"))
    @rule(queue=QUEUES, n=TAKEN, by=st.integers(0, SESSIONS - 1))
    def a_taker_dies_at_once(self, queue: str, n: int, by: int) -> None:
        self.take(queue, n, by)
        self.end_session(by)

    def end_session(self, which: int) -> None:
        session, conn = self.sessions.pop(which)
        die(conn, self.admin)
        self.admin.execute(
            "UPDATE pgqueue.session SET started_at = started_at - interval '1 h'"
        )  # no take outlasts this life
        held = [task for task in self.model.tasks.values() if task.session == session]
        assert value(self.admin, "SELECT freed FROM pgqueue.sweep()") == len(held)
        self.model.lose(held)
        self.new_session()

    @rule()
    def fold(self) -> None:
        """Counts are moved from where they were appended to where they are summed up; nobody may notice."""
        self.ask("SELECT pgqueue._fold_deltas(at_once => true)")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_queue_does_what_its_model_does(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        machine = type("Machine", (QueueMachine,), {"admin": admin, "dsn": dsn})
        hypothesis.stateful.run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
            ),
        )
