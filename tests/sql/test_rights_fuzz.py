"""Random calls by roles with part of the rights, half of them under contention or with an old snapshot: rights_fuzz.py.

`pytest tests/sql/test_rights_fuzz.py -m slow --calls=100000` makes as many as one likes.
"""

from __future__ import annotations

import contextlib

import pytest
import rights_fuzz
from altered import replaced
from rights_fuzz import Fuzz
from rights_victim import victim

PIECE = 1000  # calls in a database of their own


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "piece" in metafunc.fixturenames:
        metafunc.parametrize("piece", range(max(1, metafunc.config.getoption("calls") // PIECE)))


def fuzzed(stack: contextlib.ExitStack, dsn: str, seed: int) -> Fuzz:
    aim = stack.enter_context(victim(dsn, rights_fuzz.KINDS, f"LOGIN PASSWORD '{rights_fuzz.PASSWORD}'"))
    return stack.enter_context(rights_fuzz.fuzzing(dsn, aim, seed))


@pytest.mark.slow
def test_random_calls_change_and_show_nothing_of_the_victims(dsn: str, piece: int) -> None:
    """The number of the piece is its seed, so that it can be repeated."""
    with contextlib.ExitStack() as stack:
        fuzz = fuzzed(stack, dsn, piece)
        fuzz.run(PIECE)
    assert fuzz.pressed > PIECE / 2
    assert fuzz.codes[None] > PIECE / 4
    if fuzz.faults:
        pytest.fail("\n".join(fuzz.faults[:20]))


LOCKS = "BEGIN PERFORM 1 FROM pgqueue.task t WHERE t.id = ANY (ids) FOR UPDATE;"
PLANTED = {
    "a right that nothing asks for": ("_check_guarded", "BEGIN", "BEGIN RETURN;", "rows changed"),
    "a lock before the question": ("_check_tasks", "BEGIN", LOCKS, "55P03"),
    "a name in a refusal": ("_check_tasks", "is_named => false", "is_named => true", "a name"),
    "another code": ("_refuse", "'insufficient_privilege'", "'P0001'", "P0001"),
    "a wait": ("_refuse", "BEGIN", "BEGIN PERFORM pg_sleep(2.1);", "s: "),
}


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_defect_is_found(dsn: str, planted: str) -> None:
    name, old, new, found = PLANTED[planted]
    with contextlib.ExitStack() as stack:
        fuzz = fuzzed(stack, dsn, 0)
        stack.enter_context(replaced(fuzz.victim.owner, name, old, new))
        while fuzz.calls < 5 * PIECE and not any(found in fault for fault in fuzz.faults):
            fuzz.round()
        assert any(found in fault for fault in fuzz.faults)
