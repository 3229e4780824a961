"""Where claims start: exact while the head is cheap, bounded when it is not. No database, and a clock of our own."""

from __future__ import annotations

import pytest

from pgqueue._engine.cursor import EACH, MIN_REST, REST, SLOW, ClaimCursor

FAST, LONG = SLOW / 3, SLOW * 4


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cursor(clock: Clock) -> ClaimCursor:
    return ClaimCursor(clock)


def claim(cursor: ClaimCursor, took: float, last: tuple[int, int] | None, n: int = 1) -> None:
    cursor.claimed(cursor.start(), took, last, n)


def leave_the_head(cursor: ClaimCursor, took: float = LONG, last: tuple[int, int] = (0, 2)) -> None:
    for _ in range(2):
        claim(cursor, took, last)
    assert cursor.start() == last


def test_the_first_claim_starts_at_the_head(cursor: ClaimCursor) -> None:
    assert cursor.start() is None
    assert cursor.rest() == 0


def test_claims_stay_at_the_head_while_that_is_fast(cursor: ClaimCursor) -> None:
    for id in range(100):
        claim(cursor, FAST, (0, id))
        assert cursor.start() is None


def test_once_slow_is_chance(cursor: ClaimCursor) -> None:
    """A new connection compiles the functions in its first claim."""
    for id in range(10):
        claim(cursor, LONG if id % 2 else FAST, (0, id))
        assert cursor.start() is None


def test_twice_slow_leaves_the_head_for_a_time_in_proportion(cursor: ClaimCursor, clock: Clock) -> None:
    leave_the_head(cursor, took=0.02, last=(3, 7))
    assert cursor.rest() == pytest.approx(REST * 0.02)
    clock.now += REST * 0.02 - 0.001
    assert cursor.start() == (3, 7)
    clock.now += 0.002
    assert cursor.start() is None
    assert cursor.rest() == 0


def test_a_rest_is_not_shorter_than_its_least(cursor: ClaimCursor) -> None:
    leave_the_head(cursor, took=MIN_REST / REST / 1.5)
    assert cursor.rest() == pytest.approx(MIN_REST)


def test_a_batch_may_take_longer(cursor: ClaimCursor) -> None:
    for id in range(10):
        claim(cursor, FAST + 1000 * EACH, (0, id), n=1000)
        assert cursor.start() is None
    for id in range(10, 12):
        claim(cursor, LONG + 1000 * EACH, (0, id), n=1000)
    assert cursor.start() == (0, 11)


def test_the_cursor_moves_with_its_claims_and_its_rest_stays(cursor: ClaimCursor, clock: Clock) -> None:
    leave_the_head(cursor)
    rest = cursor.rest()
    for id in range(10, 20):
        clock.now += 0.001
        claim(cursor, FAST, (0, id))
        assert cursor.start() == (0, id)
        assert cursor.rest() < rest
    clock.now += rest
    assert cursor.start() is None


def test_an_empty_claim_keeps_the_position(cursor: ClaimCursor) -> None:
    leave_the_head(cursor, last=(0, 5))
    claim(cursor, FAST, None, 0)
    assert cursor.start() == (0, 5)


def test_a_head_that_became_fast_is_kept(cursor: ClaimCursor, clock: Clock) -> None:
    leave_the_head(cursor)
    clock.now += cursor.rest() + 0.001
    claim(cursor, FAST, (0, 9))
    assert cursor.start() is None
    claim(cursor, LONG, (0, 10))
    assert cursor.start() is None  # once again is chance


def test_a_head_that_stays_slow_is_left_again_at_once(cursor: ClaimCursor, clock: Clock) -> None:
    leave_the_head(cursor)
    clock.now += cursor.rest() + 0.001
    claim(cursor, LONG, (0, 1))
    assert cursor.start() == (0, 1)


def test_a_distant_server_makes_no_head_slow(cursor: ClaimCursor, clock: Clock) -> None:
    """All claims take that long: starting elsewhere would not help."""
    leave_the_head(cursor, took=0.020)
    claim(cursor, 0.019, (0, 3))
    clock.now += cursor.rest() + 0.001
    for id in range(10, 20):
        claim(cursor, 0.020, (0, id))
        assert cursor.start() is None


def test_slow_with_nothing_ever_given_has_nowhere_to_go(cursor: ClaimCursor) -> None:
    for _ in range(3):
        claim(cursor, LONG, None, 0)
        assert cursor.start() is None


def test_the_walks_cost_a_tenth_at_most(cursor: ClaimCursor, clock: Clock) -> None:
    """A head that costs 0.1 s a claim, for a minute, with claims from the cursor at 1 ms: at most 1/REST of the time,
    but for the two that it takes to learn."""
    at_head, began, id = 0.0, clock.now, 0
    while clock.now < began + 60:
        id += 1
        start = cursor.start()
        took = 0.1 if start is None else 0.001
        at_head += took if start is None else 0
        clock.now += took
        cursor.claimed(start, took, (0, id), 1)
    assert at_head <= 60 / REST + 0.3
    assert at_head >= 60 / (2 * REST)  # nor is the head forgotten
