"""Each function that takes a task's id, with a victim's task in each state, by roles without rights to its queue.

The calls are made from the catalogue (generated_calls.py). Before and after each of them the victim's rows, the locks
on these, and what is notified are compared. Also in transactions at REPEATABLE READ that are older than a grant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import generated_calls
import psycopg
import pytest
from altered import replaced
from psycopg import sql
from rights_victim import SECRET, Victim, victim
from statements import column, notifications, value

pytestmark = pytest.mark.once  # rules of our own, the same on every server

KINDS = ("user", "other")  # each function is open to one of them
WORK = "SELECT pgqueue.promote_all(), pgqueue.sweep(), pgqueue.clean_up()"

MORE = """
    SELECT pgqueue.put_flow('secret', '"xyzzy in a batch"', batch => pgqueue.create_batch('victim batch 2'),
                            priority => 3);
    SELECT pgqueue.put('secret', '{"job": "rare", "xyzzy": 1}', priority => -9);
    SELECT pgqueue.put('secret', '{"job": "rare", "xyzzy": 2}', priority => -9);
    SELECT count(*) FROM pgqueue.take('secret');
    SELECT pgqueue.run_schedule('victim');
    SELECT pgqueue.put('secret.source', '"xyzzy"');
    SELECT pgqueue.finish(id, token, result => '"xyzzy"') FROM pgqueue.take('secret.source')"""

#: The victim's task in each state, by a query of the owner's.
STATES = {
    **{name: f"SELECT id FROM pgqueue.task WHERE data = '\"xyzzy {name}\"'"
       for name in ("ready", "taken", "delayed", "buried", "blocked", "waiting", "claimed", "cancelled", "dead")},
    "in a batch": "SELECT id FROM pgqueue.task WHERE data = '\"xyzzy in a batch\"'",
    "limited and taken": "SELECT id FROM pgqueue.task WHERE data @> '{\"job\": \"rare\", \"xyzzy\": 1}'",
    "waiting for a limit": "SELECT id FROM pgqueue.task WHERE data @> '{\"job\": \"rare\", \"xyzzy\": 2}'",
    "scheduled": "SELECT last_task FROM pgqueue.schedule WHERE name = 'victim'",
    "finished and kept": "SELECT task_id FROM pgqueue.result r JOIN pgqueue.task t ON t.id = r.task_id"
                         " WHERE t.state = 'F' AND r.value IS NOT NULL",
    "finished with a result": "SELECT task_id FROM pgqueue.result r WHERE value IS NOT NULL"
                              " AND NOT EXISTS (SELECT FROM pgqueue.task t WHERE t.id = r.task_id)",
}  # fmt: skip

LOCKABLE = " UNION ALL ".join(
    f"SELECT count(*) FROM (SELECT FROM pgqueue.{table} k FOR UPDATE SKIP LOCKED) {table}"
    for table in ("task", "take", "result", "queue", "batch", "member", "schedule", "progress", "task_limit")
)


@dataclass
class Aim:
    victim: Victim
    ids: dict[str, int]
    role: psycopg.Connection  # which calls
    listener: psycopg.Connection
    before: set[str]
    worked: set[str]  # what the periodic work changes
    free: list[int]  # how many rows of each table are not locked

    def calls(self, kind: str, id: int, only: str = "") -> Iterator[tuple[str, str]]:
        """The calls with a task's id, or with several."""
        for name, statement in generated_calls.functions(
            self.victim.owner, self.victim.roles[kind], self.victim.names, [id]
        ):
            if only in name and any(f"{argument} => " in statement for argument in ("id", "ids", "after")):
                yield name, statement

    def faults(self, statement: str) -> Iterator[str]:
        """What a call shows, changes or locks of the victim's."""
        try:
            with self.role.transaction(force_rollback=True):
                answer = str(self.role.execute(statement).fetchall())
                locked = [row for (row,) in self.victim.owner.execute(LOCKABLE)]
                if locked != self.free:
                    yield f"it locks rows: {locked}, {self.free}"
                self.role.execute("RESET ROLE")
                if changed := self.before - rows_seen(self.role, self.victim) - self.worked:
                    yield f"it changes {sorted(changed)[:3]}"
        except psycopg.Error as error:
            answer = f"{error.diag.message_primary} {error.diag.message_detail}"
        if SECRET in answer:
            yield f"it shows {answer}"


def rows_seen(conn: psycopg.Connection, aim: Victim) -> set[str]:
    return replace(aim, owner=conn).rows()


@pytest.fixture(scope="module")
def aim(shared: str) -> Iterator[Aim]:
    with (
        victim(shared) as made,
        psycopg.connect(shared, autocommit=True, prepare_threshold=None) as role,
        psycopg.connect(shared, autocommit=True) as listener,
    ):
        owner = made.owner
        owner.execute(f"SET ROLE {made.roles['victim']}")
        for one in MORE.split(";\n"):
            owner.execute(one)
        owner.execute("RESET ROLE")
        owner.execute(WORK)
        ids = {state: int(value(owner, query)) for state, query in STATES.items()}
        before = made.rows()
        with owner.transaction(force_rollback=True):
            owner.execute(WORK)
            worked = before - made.rows()
        yield Aim(made, ids, role, listener, before, worked, column(owner, LOCKABLE))


@contextmanager
def calling(aim: Aim, kind: str) -> Iterator[None]:
    aim.role.execute(f"SET lock_timeout = '1 s'; SET statement_timeout = '10 s'; SET ROLE {aim.victim.roles[kind]}")
    try:
        yield
    finally:
        aim.role.execute("RESET ROLE; SELECT pg_advisory_unlock_all(), set_config('pgqueue.session', '', false)")


def found(aim: Aim, kind: str, state: str, only: str = "") -> dict[str, list[str]]:
    with calling(aim, kind):
        return {
            statement: faults
            for _, statement in aim.calls(kind, aim.ids[state], only)
            if (faults := list(aim.faults(statement)))
        }


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", STATES)
def test_a_task_in_each_state_is_not_for_a_role_without_rights(aim: Aim, state: str, kind: str) -> None:
    assert found(aim, kind, state) == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_not_by_a_transaction_that_is_older_than_a_grant_either(aim: Aim, kind: str) -> None:
    """The grant is revoked again at the end; a snapshot that is older shows neither."""
    owner, role = aim.victim.owner, aim.victim.roles[kind]
    with calling(aim, kind), aim.role.transaction(force_rollback=True):
        aim.role.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        owner.execute(f"SELECT pgqueue.grant('secret', '{role}'), pgqueue.revoke('secret', '{role}')")
        assert {
            statement: faults
            for id in aim.ids.values()
            for _, statement in aim.calls(kind, id)
            if (faults := list(aim.faults(statement)))
        } == {}


def heard(aim: Aim, kind: str, only: str = "") -> set[str]:
    """The channels of the victim's on which something came while the calls were made, and committed."""
    owner, names = aim.victim.owner, aim.victim.names
    channels = [f"pgqueue:task:{id}" for id in aim.ids.values()]
    channels += [f"pgqueue:call:{names['me']}", f"pgqueue:session:{names['me']}", "pgqueue:schedules"]
    channels.append(value(owner, "SELECT pgqueue._secret_channel('change', %s)", names["q"]))
    for channel in channels:
        aim.listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    notifications(aim.listener, owner)
    with calling(aim, kind):
        for id in aim.ids.values():
            for _, statement in aim.calls(kind, id, only):
                with contextlib.suppress(psycopg.Error):
                    aim.role.execute(statement)
    return set(notifications(aim.listener, owner))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_call_notifies_of_a_task_of_another_role(aim: Aim, kind: str) -> None:
    assert heard(aim, kind) == set()
    assert aim.before - aim.victim.rows() - aim.worked == set()


@pytest.mark.slow
def test_what_a_call_notifies_is_found(aim: Aim) -> None:
    told = "BEGIN PERFORM pg_notify('pgqueue:task:' || delete_batch.id, '');"
    with replaced(aim.victim.owner, "delete_batch", "BEGIN", told):
        assert heard(aim, "user", "pgqueue.delete_batch") == {f"pgqueue:task:{id}" for id in aim.ids.values()}


def test_what_a_call_changes_is_found(aim: Aim) -> None:
    with replaced(aim.victim.owner, "_check_guarded", "BEGIN", "BEGIN RETURN;"):
        assert "changes" in str(found(aim, "user", "ready", "pgqueue.delete"))


def test_what_a_call_locks_is_found(aim: Aim) -> None:
    lock = "BEGIN PERFORM FROM pgqueue.result r WHERE r.task_id = outcome.id FOR UPDATE;"
    with (
        replaced(aim.victim.owner, "outcome", "BEGIN", lock),
        replaced(aim.victim.owner, "outcome", "STABLE", "VOLATILE"),
    ):
        assert "locks" in str(found(aim, "user", "finished with a result", "pgqueue.outcome"))
