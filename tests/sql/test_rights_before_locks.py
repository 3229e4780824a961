"""A right is asked for before a row is locked: else a role without it could hold up others while it waits for a lock.

Each call of the table of rights that is refused says which locks it held by then: _refuse tells in this database.
PostgreSQL releases them with the error, so nothing could see them afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString

import psycopg
import pytest
import rights_calls
from rights_victim import Victim, victim

pytestmark = pytest.mark.once  # rules of our own, the same on every server

RAISE = "USING ERRCODE = 'insufficient_privilege',"
TELLING = f"""{RAISE} DETAIL = 'Locks: ' || coalesce((
    SELECT string_agg(DISTINCT coalesce(c.relname, l.classid::text), ' ') FROM pg_locks l
      LEFT JOIN pg_class c ON c.oid = l.relation
     WHERE l.pid = pg_backend_pid()
       AND (l.locktype = 'advisory'
            OR l.locktype = 'relation' AND c.relnamespace = 'pgqueue'::regnamespace AND c.relkind = 'r'
               AND l.mode <> 'AccessShareLock')), ''),"""

SESSION = {"session", "1885827331", "1885827332"}  # of the caller's own session, which it opens: SESSION and CLAIMING
ITS_OWN = {
    **dict.fromkeys(("observe", "register_worker", "take", "take_id", "take_many"), SESSION),
    "bind": {"exchange"},  # which the call has declared
    "count_runs": {"tally_part"},  # it adds rows
    "delete_strict": {"take"},  # it looks for a take of the caller's, and finds none
}
KINDS = ("user", "other")  # each function is open to one of them
TICKS = {"take_or_listen"}  # first it does the periodic work, which every client may


@contextmanager
def replaced(owner: psycopg.Connection, name: str, old: str, new: str) -> Iterator[None]:
    """The function with another body."""
    found = owner.execute("SELECT pg_get_functiondef(%s::regproc)", [f"pgqueue.{name}"]).fetchone()
    assert found is not None
    assert old in found[0]
    owner.execute(found[0].replace(old, new))
    try:
        yield
    finally:
        owner.execute(found[0])


@pytest.fixture(scope="module")
def aim(shared: str) -> Iterator[Victim]:
    with victim(shared) as made, replaced(made.owner, "_refuse", RAISE, TELLING):
        yield made


def locked(aim: Victim, *names: str) -> dict[str, set[str]]:
    """What each function had locked when it refused a role, besides what is the role's own."""
    found: dict[str, set[str]] = {}
    for name, calls in rights_calls.FUNCTIONS.items():
        for call in calls if not names or name in names else ():
            for kind in KINDS:
                if call.expected(kind) != "refused":
                    continue
                _, answer, _ = aim.call(kind, call.statement.format(**aim.names))
                if told := re.search(r"Locks: (.*)", answer):
                    found.setdefault(name, set()).update(set(told[1].split()) - ITS_OWN.get(name, set()))
    return found


def test_no_refused_call_has_locked_anything(aim: Victim) -> None:
    found = locked(aim)
    assert len(found) > 30  # refusals by the table of privileges; the others have no EXECUTE, and did not begin
    assert {name: locks for name, locks in found.items() if locks and name not in TICKS} == {}


@pytest.mark.parametrize("name", ["bury", "delete", "delete_message", "kick_task"])
def test_without_the_question_the_rule_finds_locks(aim: Victim, name: LiteralString) -> None:
    with replaced(aim.owner, "_check_tasks", "BEGIN", "BEGIN RETURN;"):
        assert "task" in locked(aim, name)[name]
