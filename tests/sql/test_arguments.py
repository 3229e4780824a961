"""Every public function with hostile arguments: a call succeeds, or fails with an SQLSTATE of pgqueue's.

Whatever was stored can be read, in SQL and in Python. A function that is new is called as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import hypothesis
import psycopg
import pytest
from arguing import LONG, OTHERS, VALUES, Function, functions, is_ours, outcome, prepare, read_back, values, wrote
from hypothesis import settings
from hypothesis import strategies as st

from pgqueue import sql as schema

pytestmark = pytest.mark.once  # rules of our own, the same on every server

DEFINED = re.compile(r"CREATE OR REPLACE FUNCTION pgqueue\.([a-z]\w*)\((?!\))")
#: The public functions with arguments; sweep has results only.
NAMES = {name for file in schema.CODE for name in DEFINED.findall(schema.read(file))} - {"sweep", "tick_ages"}
NAMES = {name for name in NAMES if not name.startswith(OTHERS)}
CALLS = 10
EXAMPLES = 1000  # of CALLS calls each: eighty calls of each function


class Arena:
    """A prepared database, and what is called in it."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self.conn = conn
        self.usual = prepare(conn)
        self.functions = functions(conn)

    def given(self, function: Function, **hostile: Any) -> dict[str, Any]:
        """The usual arguments where they are needed, and hostile ones."""
        usual = self.usual.of(function)
        return {name: usual.get(name) for name in self.usual.needed(function)} | hostile


@pytest.fixture(scope="module")
def arena(shared: str) -> Iterator[Arena]:
    with psycopg.connect(shared, autocommit=True, prepare_threshold=None) as conn:
        yield Arena(conn)


def test_every_function_is_called(arena: Arena) -> None:
    assert sorted({function.name for function in arena.functions}) == sorted(NAMES)
    assert {type for function in arena.functions for type in function.arguments.values()} == VALUES.keys()


def test_every_function_succeeds(arena: Arena) -> None:
    """With its usual arguments, so that a hostile one is what refuses a call below."""
    came = {}
    for function in arena.functions:
        with arena.conn.transaction(force_rollback=True):
            came[str(function)] = outcome(arena.conn, function.call(arena.given(function)))
        arena.conn.execute("SELECT pg_advisory_unlock_all()")  # a rollback does not free a session's
    assert {name: outcome for name, outcome in came.items() if outcome != "ok"} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_hostile_argument(arena: Arena, name: str) -> None:
    unexpected = []
    for function in (function for function in arena.functions if function.name == name):
        for argument, type in function.arguments.items():
            for value in values(arena.conn, type):
                with arena.conn.transaction(force_rollback=True):
                    came = outcome(arena.conn, function.call(arena.given(function, **{argument: value})))
                    if came == "ok" and wrote(arena.conn):
                        read_back(arena.conn)
                    if not is_ours(came):
                        unexpected.append((argument, str(value)[:100], came))
    assert unexpected == []


# --- any tuple of arguments


NUMBERS = {"integer": st.integers(-(2**31), 2**31 - 1), "bigint": st.integers(-(2**63), 2**63 - 1)}
CHARACTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
ANY = {
    **NUMBERS,
    "text": st.text(CHARACTERS, max_size=300),
    "interval": st.integers(-(10**9) - 1, 10**9 + 1).map("{} s".format),
}


def argument(type: str) -> st.SearchStrategy[Any]:
    """Mostly a value that was chosen for being hostile, else any; no long arrays, which cost a second each."""
    chosen = st.sampled_from([value for value in VALUES[type] if value != LONG and "infinity" not in str(value)])
    return st.one_of(chosen, chosen, ANY[type]) if type in ANY else chosen


def tuples(arena: Arena) -> st.SearchStrategy[tuple[Function, dict[str, Any]]]:
    """A function and its arguments. Those with a default may be left out; those of prepare() stand in half the time."""

    def of(function: Function) -> st.SearchStrategy[tuple[Function, dict[str, Any]]]:
        usual = arena.usual.of(function)
        ways = {
            name: st.one_of(st.just(usual[name]), argument(type)) if name in usual else argument(type)
            for name, type in function.arguments.items()
        }
        needed = arena.usual.needed(function)
        rest = [name for name in ways if name not in needed]

        def with_these(chosen: list[str]) -> st.SearchStrategy[dict[str, Any]]:
            return st.fixed_dictionaries({name: ways[name] for name in (*needed, *chosen)})

        # Of many hostile arguments one is refused nearly always: so half of the calls have two besides the needed ones.
        few = st.lists(st.sampled_from(rest), max_size=2, unique=True) if rest else st.just([])
        many = st.lists(st.sampled_from(rest), unique=True) if rest else st.just([])
        return st.one_of(few, many).flatmap(with_these).map(lambda given: (function, given))

    return st.one_of([of(function) for function in arena.functions])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_any_arguments(arena: Arena) -> None:
    """EXAMPLES transactions of CALLS calls each: no lost connection, no other SQLSTATE, and all of it can be read."""
    seen: set[str] = set()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],  # what failed is told as it is: to shrink it would run for minutes
    )
    @hypothesis.given(st.lists(tuples(arena), min_size=CALLS, max_size=CALLS))
    def run(calls: list[tuple[Function, dict[str, Any]]]) -> None:
        with arena.conn.transaction(force_rollback=True):
            for function, given in calls:
                came = outcome(arena.conn, function.call(given))
                seen.add(f"{function.name} {came[:5]}")
                assert is_ours(came), (function.name, given, came)
            read_back(arena.conn, lists=True)
        arena.conn.execute("SELECT pg_advisory_unlock_all()")  # a rollback does not free a session's

    run()
    succeeded = {name.removesuffix(" ok") for name in seen if name.endswith(" ok")}
    never = NAMES - succeeded  # a few may need a name that is seldom drawn; but not all examples are refused
    assert len(never) < len(NAMES) / 25, never
