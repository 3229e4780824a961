"""Data of tasks shows to roles that may look into its queue now, whatever function, view or link leads to it.

Each function and view that a role may reach is called, with arguments made from the catalogue (generated_calls.py). The
role `other` had all rights to the victim's queue once, and used them: its tasks wait for the victim's, its batch has
members there, it observes and has schedules. Then it lost them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import generated_calls
import psycopg
import pytest
from altered import replaced
from rights_victim import SECRET, Victim, victim

pytestmark = pytest.mark.once  # rules of our own, the same on every server

#: Roles that may not see the victim's data. A role that may manage a queue can lead its tasks elsewhere, but no call
#: returns what is in them.
KINDS = ("other", "user", "put", "manage", "monitor")

#: The victim's, without the exclusive one, which is for no other role.
QUEUES = ("secret", "secret.source", "secret.dead")
IDS = """
    SELECT k.id FROM (SELECT id, queue_id FROM pgqueue.task UNION SELECT task_id, queue_id FROM pgqueue.result) k
      JOIN pgqueue.queue q ON q.id = k.queue_id WHERE q.name = ANY (%s)"""

#: A finished task of which nothing is left but its result.
FINISHED = """
    SELECT pgqueue.put('secret.source', '1');
    SELECT pgqueue.finish(id, token, result => '"xyzzy"') FROM pgqueue.take('secret.source')"""

LINKS = """
    SELECT pgqueue.put_flow('other', '1', after => ARRAY [{id}], on_failure => 'run'), pgqueue.await_ends('{{{id}}}')"""
LATE = """
    SELECT pgqueue.create_batch('late');
    SELECT pgqueue.put_flow('secret', '"xyzzy member"', batch => (SELECT id FROM pgqueue.batches), priority => -9);
    SELECT pgqueue.close_batch((SELECT id FROM pgqueue.batches));
    SELECT pgqueue.put_flow('other', '1', after => ARRAY (SELECT id FROM pgqueue.batches), on_failure => 'run');
    SELECT pgqueue.set_schedule('late', 'secret', '1', every => '1 h');
    SELECT pgqueue.register_worker(1, '{secret}', '{send}');
    SELECT pgqueue.observe(pgqueue.queue_id('secret'))"""
FAILS = "SELECT pgqueue.fail(id, token, error => 'xyzzy failed') FROM pgqueue.take('secret')"


@dataclass
class Aim:
    victim: Victim
    ids: list[int]  # of the victim's tasks, of those that wait for them, and of batches

    def answer(self, kind: str, statement: str) -> tuple[str | None, str]:
        """What a call gives a role: the SQLSTATE, and the answer or the error. It is rolled back."""
        conn = self.victim.owner
        conn.execute(
            f"BEGIN; SET LOCAL lock_timeout = '1 s'; SET LOCAL statement_timeout = '10 s';"
            f"SET LOCAL ROLE {self.victim.roles[kind]}"
        )
        try:
            return None, str(conn.execute(statement).fetchall())
        except psycopg.Error as error:
            return error.sqlstate, f"{error.diag.message_primary} {error.diag.message_detail}"
        finally:
            conn.execute("ROLLBACK")

    def seen(self, kind: str, only: str = "") -> tuple[dict[str, str], dict[str, set[str | None]]]:
        """The calls that show the victim's data to a role of this kind, by function; and how the calls ended."""
        shown, ends = dict[str, str](), dict[str, set[str | None]]()
        owner, role = self.victim.owner, self.victim.roles[kind]
        calls = [
            *generated_calls.views(owner, role),
            *generated_calls.functions(owner, role, self.victim.names, self.ids),
        ]
        for name, statement in calls:
            if only in name:
                state, answer = self.answer(kind, statement)
                ends.setdefault(name, set()).add(state)
                if SECRET in answer:
                    shown[name] = f"{statement}: {answer}"
        owner.execute("SELECT pg_advisory_unlock_all(), set_config('pgqueue.session', '', false)")
        return shown, ends


@pytest.fixture(scope="module")
def aim(shared: str) -> Iterator[Aim]:
    with victim(shared) as made, psycopg.connect(shared, autocommit=True) as late:
        owner = made.owner
        other = made.roles["other"]
        owner.execute(f"SET ROLE {made.roles['victim']}")
        owner.execute(FINISHED)
        owner.execute("RESET ROLE")
        for queue in QUEUES:
            owner.execute(f"SELECT pgqueue.grant('{queue}', '{other}')")
        late.execute(f"SET ROLE {other}")
        theirs = [id for (id,) in owner.execute(IDS, [list(QUEUES)])]
        for id in theirs:
            late.execute(LINKS.format(id=id))
        late.execute(LATE)
        owner.execute(f"SET ROLE {made.roles['victim']}")
        owner.execute(FAILS)
        owner.execute("RESET ROLE")
        for queue in QUEUES:
            owner.execute(f"SELECT pgqueue.revoke('{queue}', '{other}')")
        ids = owner.execute(
            "SELECT id FROM pgqueue.task UNION SELECT task_id FROM pgqueue.result UNION SELECT id FROM pgqueue.batch"
        )
        yield Aim(made, [id for (id,) in sorted(ids.fetchall())])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_shows_data_to_a_role_that_may_not_look(aim: Aim, kind: str) -> None:
    shown, ends = aim.seen(kind)
    assert shown == {}
    # Each call got as far as its rights or further: none failed by its arguments alone.
    assert {name: states for name, states in ends.items() if not states & {None, "42501", "PQ032", "PQ045"}} == {}


#: Functions and views without the question, or with that for a living task only, as predecessors once was.
PLANTED = {
    "a view of tasks": "CREATE VIEW pgqueue.planted AS SELECT id, data FROM pgqueue._tasks",
    "a view of results by the tasks": """
        CREATE VIEW pgqueue.planted AS
        SELECT d.task_id, r.value FROM pgqueue.dependency d JOIN pgqueue.result r ON r.task_id = d.on_id
          JOIN pgqueue.task t ON t.id = d.task_id JOIN pgqueue._seen q ON q.id = t.queue_id""",
    "the data by an id": """
        CREATE FUNCTION pgqueue.planted(id bigint) RETURNS jsonb LANGUAGE sql SECURITY DEFINER
        BEGIN ATOMIC SELECT t.data FROM pgqueue.task t WHERE t.id = planted.id; END""",
    "a living task alone is asked for": """
        CREATE FUNCTION pgqueue.planted(id bigint) RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER AS $$
        BEGIN
            PERFORM pgqueue._check_guarded(t.queue_id, 'look') FROM pgqueue.task t WHERE t.id = planted.id;
            RETURN (SELECT r.value FROM pgqueue.result r WHERE r.task_id = planted.id);
        END $$""",
    "errors of attempts": """
        CREATE FUNCTION pgqueue.planted(ids bigint[]) RETURNS SETOF text LANGUAGE sql SECURITY DEFINER
        BEGIN ATOMIC SELECT a.error FROM pgqueue.attempt a WHERE a.task_id = ANY (ids); END""",
    "progress": """
        CREATE FUNCTION pgqueue.planted(queue text, id bigint DEFAULT NULL) RETURNS SETOF jsonb
        LANGUAGE sql SECURITY DEFINER
        BEGIN ATOMIC SELECT p.value FROM pgqueue.progress p WHERE p.task_id = planted.id; END""",
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_does_not_ask_for_the_queue_is_found(aim: Aim, planted: str) -> None:
    """So the calls reach what is in a task, and in each table beside it."""
    what = "VIEW" if "VIEW" in PLANTED[planted] else "FUNCTION"
    owner = aim.victim.owner
    owner.execute(PLANTED[planted])
    try:
        grant = "SELECT" if what == "VIEW" else "EXECUTE"
        on = "TABLE" if what == "VIEW" else what
        owner.execute(f"GRANT {grant} ON {on} pgqueue.planted TO {aim.victim.roles['other']}")
        shown, _ = aim.seen("other", "planted")
        assert set(shown) == {"pgqueue.planted"}
    finally:
        owner.execute(f"DROP {what} pgqueue.planted")


@pytest.mark.slow
def test_without_its_question_predecessors_is_found(aim: Aim) -> None:
    """The result of a finished task of another queue, through a link that was made when the role might look."""
    with replaced(aim.victim.owner, "predecessors", "CASE WHEN q.guarded", "CASE WHEN false"):
        shown, _ = aim.seen("other", "predecessors")
    assert set(shown) == {"pgqueue.predecessors"}
