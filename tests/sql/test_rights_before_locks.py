"""A right is asked for before a row is locked: else a role without it could hold up others while it waits for a lock.

Each call of the table of rights that is refused says which locks it held by then: _refuse tells in this database.
PostgreSQL releases them with the error, so nothing could see them afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import LiteralString

import pytest
import rights_calls
from altered import replaced
from rights_victim import Victim, hold, victim

pytestmark = pytest.mark.once  # rules of our own, the same on every server

RAISE = "USING ERRCODE = 'insufficient_privilege',"
TELLING = f"""{RAISE} DETAIL = 'Locks: ' || coalesce((
    SELECT string_agg(DISTINCT coalesce(c.relname, l.classid::text), ' ') FROM pg_locks l
      LEFT JOIN pg_class c ON c.oid = l.relation
     WHERE l.pid = pg_backend_pid()
       AND (l.locktype = 'advisory' AND l.objsubid <= 2  -- by PostgreSQL's functions: Citus locks its shards by others
            OR l.locktype = 'relation' AND c.relnamespace = 'pgqueue'::regnamespace AND c.relkind = 'r'
               AND l.mode <> 'AccessShareLock')), ''),"""

SESSION = {"session", "1885827331", "1885827332"}  # of the caller's own session, which it opens: SESSION and CLAIMING
ITS_OWN = {
    **dict.fromkeys(("observe", "register_worker", "take", "take_id", "take_many"), SESSION),
    "bind": {"exchange"},  # which the call has declared
    "count_runs": {"tally_part"},  # it adds rows
    "put_flow": {"queue"},  # which the call has made
    "delete_strict": {"take"},  # it looks for a take of the caller's, and finds none
}
KINDS = ("user", "other")  # each function is open to one of them
TICKS = {"take_or_listen"}  # first it does the periodic work, which every client may


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


@pytest.mark.slow
def test_no_refused_call_has_locked_anything(aim: Victim) -> None:
    found = locked(aim)
    assert len(found) > 30  # refusals by the table of privileges; the others have no EXECUTE, and did not begin
    assert {name: locks for name, locks in found.items() if locks and name not in TICKS} == {}


@pytest.mark.parametrize("name", ["bury", "delete", "delete_message", "kick_task"])
def test_without_the_question_the_rule_finds_locks(aim: Victim, name: LiteralString) -> None:
    with replaced(aim.owner, "_check_tasks", "BEGIN", "BEGIN RETURN;"):
        assert "task" in locked(aim, name)[name]


def waits(aim: Victim) -> set[str]:
    """The calls that wait for a transaction of the victim's with all its rows locked, and get nothing of it."""
    found = set()
    with hold(aim):
        for name, calls in rights_calls.functions().items():
            for call in calls:
                for kind in KINDS:
                    if call.expected(kind) == "allowed":
                        continue
                    if aim.call(kind, call.statement.format(**aim.names), "50ms")[0] in ("55P03", "PQ007"):
                        found.add(name)
    return found


@pytest.mark.slow
def test_no_call_without_the_right_waits_for_the_victim(aim: Victim) -> None:
    """What is not refused by _refuse is seen here."""
    assert waits(aim) == set()


@pytest.mark.slow
def test_without_the_question_before_the_lock_it_waits(aim: Victim) -> None:
    with replaced(aim.owner, "_check_batch", "BEGIN", "BEGIN RETURN;"):
        assert waits(aim) >= {"close_batch"}


def test_an_advisory_lock_before_the_question_is_found(aim: Victim) -> None:
    """In a function that asks in its body: others ask in DECLARE, before any statement."""
    with replaced(aim.owner, "set_limit", "BEGIN", "BEGIN PERFORM pg_advisory_xact_lock(1885827399, 1);"):
        assert locked(aim, "set_limit")["set_limit"] == {"1885827399"}
