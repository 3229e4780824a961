"""Every public function and view as every kind of role, against a victim with some of everything: rights_calls.py."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import rights
import rights_calls
from rights_calls import COLUMNS, Call
from rights_victim import HOLDER, SECRET, SHARED, Victim, victim
from sampling import sampled

CALLS = {
    f"{name} {number}": call
    for table in (rights_calls.FUNCTIONS, rights_calls.VIEWS)
    for name, calls in table.items()
    for number, call in enumerate(calls)
}
OWNED = [
    pytest.param(call, id=f"{name} {number}")
    for name, calls in rights_calls.OWNED.items()
    for number, call in enumerate(calls)
]


@pytest.fixture(scope="module")
def aim(shared: str) -> Iterator[Victim]:
    with victim(shared) as made:
        yield made


@pytest.fixture(scope="module")
def before(aim: Victim) -> set[str]:
    return aim.rows()


def faults(aim: Victim, before: set[str], call: Call, kind: str) -> Iterator[str]:
    """What a role of this kind got that it must not get, or did not get that it may."""
    state, answer, after = aim.call(kind, call.statement.format(**aim.names))
    expected = call.expected(kind)
    if expected == "allowed":
        if state is not None:
            yield f"{state} {answer}"
    else:
        wanted = {"refused": "42501", "nothing": None}.get(expected, expected)
        if state != wanted:
            yield f"{expected}, but: {state} {answer}"
        changed = before - after
        added = [row for row in after - before if f'"queue_id":{aim.names["q"]},' in row]
        if changed or added:
            yield f"changed: {sorted(changed)[:3]}, added: {added[:3]}"
    if expected == "nothing" and call.gate == "view" and " FROM " in call.statement and answer != "[]":
        yield f"shows rows: {answer}"
    yield from leaks(aim, call, kind, answer)


def leaks(aim: Victim, call: Call, kind: str, answer: str) -> Iterator[str]:
    allowed = call.expected(kind) == "allowed"
    if SECRET in answer and not (allowed and kind in ("take", "look", "owner")):
        yield f"shows data: {answer}"
    if SHARED in answer and not (allowed and kind in ("user", "owner")):
        yield f"shows what is shared: {answer}"
    if kind in ("stranger", "user", "other"):
        if HOLDER in answer and not allowed:
            yield f"shows a holder: {answer}"
        # All users may put into the exclusive queue, which is open: so they may learn its name.
        # And pgqueue.secret is a table.
        named = "secret" in call.statement or "pgqueue.tables" in call.statement
        if "secret" in answer.replace("secret.own", "") and not named:
            yield f"shows a name: {answer}"
    if aim.names["claim"] in answer and not (allowed and kind in ("take", "owner")):
        yield f"shows a claim: {answer}"


@pytest.mark.parametrize("call", sampled([*CALLS.values()], keep=80), ids=CALLS)
def test_each_kind_of_role_gets_what_the_table_says(aim: Victim, before: set[str], call: Call) -> None:
    assert {kind: found for kind in COLUMNS if (found := list(faults(aim, before, call, kind)))} == {}


@pytest.mark.parametrize("call", OWNED)
def test_a_session_is_its_roles(aim: Victim, before: set[str], call: Call) -> None:
    assert {kind: found for kind in COLUMNS if (found := list(faults(aim, before, call, kind)))} == {}


def test_the_table_has_every_public_function_and_view(aim: Victim) -> None:
    """A new function needs a line in rights_calls.py: the roles that may call it, and what the others get."""
    found = aim.owner.execute("""
        SELECT CASE WHEN count(*) OVER (PARTITION BY p.proname) = 1 THEN p.proname
                    ELSE format('%s(%s)', p.proname, pg_get_function_identity_arguments(p.oid)) END
          FROM pg_proc p WHERE p.pronamespace = 'pgqueue'::regnamespace AND NOT starts_with(p.proname, '_')""")
    assert {re.sub(r"\(\w+ ", "(", name) for (name,) in found} == set(rights_calls.functions())
    found = aim.owner.execute("""
        SELECT relname FROM pg_class WHERE relnamespace = 'pgqueue'::regnamespace AND relkind = 'v'
           AND NOT starts_with(relname, '_')""")
    assert {name for (name,) in found} == set(rights_calls.views())


def test_the_victim_has_something_of_everything(aim: Victim, before: set[str]) -> None:
    """Otherwise a call that changes it would change nothing here."""
    tables = {row.split(" ")[0] for row in before}
    assert tables >= {"task", "take", "result", "session", "claim", "lock_holder", "node", "will", "observer"}
    assert tables >= {"exchange", "binding", "retained", "progress", "status", "payload", "privilege", "queue"}
    states = {state for (state,) in aim.owner.execute("SELECT state FROM pgqueue.tasks WHERE queue = 'secret'")}
    assert states == {"ready", "delayed", "taken", "buried", "blocked", "done", "waiting", "cancelling"}


@pytest.mark.once
def test_the_page_is_what_the_table_says() -> None:
    """Run tools/rights.py after a change of the table."""
    assert rights.PAGE.read_text("utf-8") == rights.page()
