"""Every function with a session argument: another role is refused, and its own role, the members and the owner are not.

All on one victim: what is refused changes nothing, and what is allowed is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import psycopg
import pytest
from owning import Victim, belongings, forge, make_victim, refused, three_roles
from statements import column

pytestmark = pytest.mark.once  # rules of our own, the same on every server

#: A call of each public function that has a session argument. %(named)s is the session, or NULL to use the setting.
CALLS = {
    "ack": "ack(%(id)s, session => %(named)s)",
    "ack_many": "ack_many(ARRAY [%(id)s], session => %(named)s)",
    "claim_messages": "claim_messages('mine', session => %(named)s)",
    "clear_will": "clear_will(%(named)s)",
    "close_session": "close_session(%(named)s)",
    "create_node": "create_node('/planted', ephemeral => true, session => %(named)s)",
    "create_queue": "create_queue('planted', exclusive => true, session => %(named)s)",
    "declare_exchange": "declare_exchange('planted', durable => false, session => %(named)s)",
    "delete_strict": "delete_strict(%(id)s, session => %(named)s)",
    "finish": "finish(%(id)s, result => '\"forged\"', session => %(named)s)",
    "finish_many": "finish_many(ARRAY [%(id)s], results => '[1]', session => %(named)s)",
    "get_step": "get_step(%(id)s, session => %(named)s, name => 'a')",
    "identify": "identify(session => %(named)s)",
    "join_group": "join_group('planted', session => %(named)s)",
    "observe": "observe(1, %(named)s)",
    "pop": "pop('mine', session => %(named)s)",
    "predecessors": "predecessors(%(id)s, session => %(named)s)",
    "progress": "progress(%(id)s, session => %(named)s, value => '1')",
    "record_step": "record_step(%(id)s, session => %(named)s, name => 'planted', value => '1')",
    "register_worker": "register_worker(1, '{mine}', session => %(named)s)",
    "release": "release(%(id)s, session => %(named)s)",
    "release_many": "release_many(ARRAY [%(id)s], session => %(named)s)",
    "requeue": "requeue(%(id)s, session => %(named)s)",
    "session_deadline": "session_deadline(%(named)s)",
    "set_will": "set_will('', 'q', '\"forged\"', session => %(named)s)",
    "take": "take('mine', %(named)s)",
    "take_id": "take_id((SELECT id FROM pgqueue.tasks WHERE queue = 'mine'), %(named)s)",
    "take_many": "take_many('{mine}', 2, %(named)s)",
    "touch": "touch(%(id)s, session => %(named)s, more => '1 h')",
    "unregister_worker": "unregister_worker(1, %(named)s)",
    "unobserve": "unobserve(pgqueue.queue_id('messages'), %(named)s)",
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
SESSION_ARGUMENTS = """
    SELECT DISTINCT p.proname FROM pg_proc p
     WHERE p.pronamespace = 'pgqueue'::regnamespace AND p.proname NOT LIKE '\\_%' AND 'session' = ANY (p.proargnames)
       AND (p.proargmodes IS NULL OR p.proargmodes [array_position(p.proargnames, 'session')] = 'i')"""


class Stage(NamedTuple):
    """The victim; and for each role a connection, none of which is the victim's session's."""

    the_victim: Victim
    owner: psycopg.Connection
    victim: psycopg.Connection
    member: psycopg.Connection
    other: psycopg.Connection


@pytest.fixture(scope="module")
def stage(shared: str) -> Iterator[Stage]:
    with (
        psycopg.connect(shared, autocommit=True) as owner,
        three_roles(owner) as roles,
        ExitStack() as connections,  # closed before the roles are dropped
    ):

        def connect(**options: Any) -> psycopg.Connection:
            return connections.enter_context(psycopg.connect(shared, autocommit=True, **options))

        of_roles = {name: connect(options=f"-c role={role}") for name, role in roles._asdict().items()}
        yield Stage(make_victim(connect, roles.victim), owner, **of_roles)


def test_every_function_with_a_session_is_called_here(stage: Stage) -> None:
    assert set(column(stage.owner, SESSION_ARGUMENTS.replace("%", "%%"))) == set(CALLS)


@each_call
def test_another_roles_session_is_refused(stage: Stage, call: str) -> None:
    before = belongings(stage.owner)
    message = refused(stage.other, f"SELECT * FROM pgqueue.{call}", stage.the_victim.names)
    assert message == f"session {stage.the_victim.session} belongs to another role"
    assert belongings(stage.owner) == before


@each_call
def test_a_forged_setting_is_refused(stage: Stage, call: str) -> None:
    before = belongings(stage.owner)
    forge(stage.other, stage.the_victim.session)
    message = refused(stage.other, f"SELECT * FROM pgqueue.{call}", stage.the_victim.names | {"named": None})
    assert message == f"session {stage.the_victim.session} belongs to another role"
    assert belongings(stage.owner) == before


@each_call
@pytest.mark.parametrize("role", ["victim", "member", "owner"])
def test_the_role_its_members_and_the_owner_may(stage: Stage, call: str, role: str) -> None:
    conn: psycopg.Connection = getattr(stage, role)
    with conn.transaction(force_rollback=True):
        if call == CALLS["close_session"]:  # of a session that is alive on another connection
            refused(conn, f"SELECT * FROM pgqueue.{call}", stage.the_victim.names, sqlstate="PQ002")
        else:
            conn.execute(f"SELECT * FROM pgqueue.{call}", stage.the_victim.names)
