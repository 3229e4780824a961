"""Where claims start: exact while the head is cheap, bounded when it is not. No database, and a clock of our own."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pgqueue._engine.cursor import AT_HEAD, FIRST, FROM_CURSOR, MAX_REST, MIN_REST, REST, SLOWER, ClaimCursor

USUAL = FIRST / 2
LONG = USUAL * SLOWER * 1.1


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


def settle_down(cursor: ClaimCursor, took: float = USUAL, n: int = 1) -> None:
    """Claims at the head, as a queue without a backlog has them."""
    for id in range(1, AT_HEAD + 1):
        claim(cursor, took, (0, id), n)
    assert cursor.start() is None


def leave_the_head(cursor: ClaimCursor, took: float = LONG, last: tuple[int, int] = (0, 2)) -> None:
    settle_down(cursor)
    for _ in range(AT_HEAD):
        assert cursor.start() is None
        claim(cursor, took, last)
    assert cursor.start() == last


def test_the_first_claim_starts_at_the_head(cursor: ClaimCursor) -> None:
    assert cursor.start() is None
    assert cursor.rest() == 0


def test_claims_stay_at_the_head_while_that_is_fast(cursor: ClaimCursor) -> None:
    for id in range(100):
        claim(cursor, USUAL, (0, id))
        assert cursor.start() is None


def test_stalls_do_not_leave_the_head(cursor: ClaimCursor) -> None:
    """A pause of three seconds, a new connection that compiles, a server with other work: most claims, but not all."""
    for id in range(1000):
        claim(cursor, USUAL if id % AT_HEAD == 0 else 3.0, (0, id))
        assert cursor.start() is None


def test_chance_seldom_leaves_the_head(clock: Clock) -> None:
    """On a server with much other work, a claim takes twice its least time on average: the head is left for a
    twentieth of the claims at most."""
    cursor, dice, away = ClaimCursor(clock), random.Random(7), 0
    for id in range(10_000):
        away += cursor.start() is not None
        took = USUAL * (1 + dice.expovariate(1.0))
        clock.now += took
        claim(cursor, took, (0, id))
    assert away <= 500


def test_claims_that_are_all_slow_leave_the_head_for_the_least_time(cursor: ClaimCursor, clock: Clock) -> None:
    leave_the_head(cursor, took=20.0, last=(3, 7))
    assert cursor.rest() == pytest.approx(MIN_REST)
    clock.now += MIN_REST - 0.001
    assert cursor.start() == (3, 7)
    clock.now += 0.002
    assert cursor.start() is None
    assert cursor.rest() == 0


@pytest.mark.parametrize(
    ("took", "rest"), [(LONG, MIN_REST), (0.02, REST * 0.02), (0.1, MAX_REST), (3.0, MAX_REST), (600.0, MAX_REST)]
)
def test_a_head_that_stays_slow_is_left_again_at_once_in_proportion(
    cursor: ClaimCursor, clock: Clock, took: float, rest: float
) -> None:
    leave_the_head(cursor)
    for id in range(10, 14):
        claim(cursor, USUAL, (0, id))
        clock.now += cursor.rest() + 0.001
        assert cursor.start() is None
        claim(cursor, took, (0, id))
        assert cursor.start() == (0, id)
        assert cursor.rest() == pytest.approx(rest)


def test_a_walk_that_grows_slowly_is_noticed(cursor: ClaimCursor) -> None:
    """Each acked task adds 0.1 us under a held snapshot: what is usual must not grow with it."""
    for id in range(20_000):
        claim(cursor, USUAL + id * 1e-7, (0, id))
        if cursor.start() is not None:
            break
    assert id * 1e-7 <= USUAL * (SLOWER - 1) + AT_HEAD * 1e-7


def test_a_batch_is_compared_with_batches(cursor: ClaimCursor) -> None:
    for id in range(100):
        claim(cursor, USUAL, (0, id), n=1)
        claim(cursor, 20 * USUAL, (0, id), n=1000)
        assert cursor.start() is None
    for id in range(AT_HEAD):
        claim(cursor, 20 * USUAL * SLOWER * 1.1, (0, id), n=1000)
    assert cursor.start() == (0, AT_HEAD - 1)


def test_the_cursor_moves_with_its_claims_and_its_rest_stays(cursor: ClaimCursor, clock: Clock) -> None:
    leave_the_head(cursor)
    rest = cursor.rest()
    for id in range(10, 20):
        clock.now += 0.001
        claim(cursor, USUAL, (0, id))
        assert cursor.start() == (0, id)
        assert cursor.rest() < rest
    clock.now += rest
    assert cursor.start() is None


def test_an_empty_claim_keeps_the_position(cursor: ClaimCursor) -> None:
    leave_the_head(cursor, last=(0, 5))
    claim(cursor, USUAL, None, 0)
    assert cursor.start() == (0, 5)


def test_a_head_that_became_fast_is_kept(cursor: ClaimCursor, clock: Clock) -> None:
    leave_the_head(cursor)
    claim(cursor, USUAL, (0, 8))
    clock.now += cursor.rest() + 0.001
    claim(cursor, USUAL, (0, 9))
    assert cursor.start() is None
    for id in range(10, 10 + AT_HEAD - 2):
        claim(cursor, LONG, (0, id))
        assert cursor.start() is None  # it takes as many claims as the first time


def test_a_server_that_becomes_slow_is_no_reason_for_long(cursor: ClaimCursor, clock: Clock) -> None:
    """All claims take that long, from the cursor too: starting elsewhere does not help."""
    leave_the_head(cursor, took=3 * USUAL)
    for id in range(FROM_CURSOR):
        clock.now += MIN_REST / (FROM_CURSOR + 1)
        claim(cursor, 3 * USUAL, (0, id))
    clock.now += MIN_REST
    for id in range(100):
        claim(cursor, 3 * USUAL, (0, id))
        assert cursor.start() is None
    for id in range(AT_HEAD):  # and a server that becomes fast again makes a walk stand out again
        claim(cursor, USUAL, (0, id))
    for id in range(AT_HEAD):
        claim(cursor, LONG, (0, id))
    assert cursor.start() is not None


def test_a_distant_server_makes_no_head_slow(cursor: ClaimCursor, clock: Clock) -> None:
    """The first claims may leave the head, as nothing is known yet."""
    away = 0
    for id in range(200):
        away += cursor.start() is not None
        clock.now += 0.020
        claim(cursor, 0.020, (0, id))
    assert away <= 3


def test_a_head_that_is_slow_from_the_first_claim_on_is_left(cursor: ClaimCursor, clock: Clock) -> None:
    """A client that starts while a snapshot has been held for long."""
    for id in range(AT_HEAD):
        claim(cursor, 0.1, (0, id))
    assert cursor.start() is not None
    claim(cursor, USUAL, (0, 100))
    clock.now += cursor.rest() + 0.001
    claim(cursor, 0.1, (0, 101))
    assert cursor.rest() == pytest.approx(MAX_REST)


def test_slow_with_nothing_ever_given_has_nowhere_to_go(cursor: ClaimCursor) -> None:
    settle_down(cursor, n=0)
    fresh = ClaimCursor()
    for _ in range(3 * AT_HEAD):
        claim(fresh, LONG * 100, None, 0)
        assert fresh.start() is None


def drained(clock: Clock, cost: Callable[[int], float], tasks: int, window: int) -> list[float]:
    """The rate of each window, over that with no walk: `cost(n)` is the walk after n tasks. A claim is half of what is
    done for a task."""
    cursor, rates = ClaimCursor(clock), []
    for first in range(0, tasks, window):
        began = clock.now
        for id in range(first, first + window):
            start = cursor.start()
            took = USUAL + (cost(id) if start is None else 0)
            clock.now += took + USUAL
            cursor.claimed(start, took, (0, id), 1)
        rates.append(window * 2 * USUAL / (clock.now - began))
    return rates


@pytest.mark.slow
def test_no_window_under_a_held_snapshot_is_much_slower(clock: Clock) -> None:
    """A walk of 0.1 us for each acked task: up to 0.1 s at the end."""
    assert min(drained(clock, lambda acked: acked * 1e-7, tasks=1_000_000, window=5000)) >= 0.75


def test_the_walks_cost_a_tenth_at_most(cursor: ClaimCursor, clock: Clock) -> None:
    """A head that costs 0.1 s a claim, for a minute, with claims from the cursor at 1 ms: at most 1/REST of the time,
    but for the claims that it takes to learn."""
    at_head, began, id = 0.0, clock.now, 0
    while clock.now < began + 60:
        id += 1
        start = cursor.start()
        took = 0.1 if start is None else 0.001
        at_head += took if start is None else 0
        clock.now += took
        cursor.claimed(start, took, (0, id), 1)
    assert at_head <= 60 / REST + 0.1 * (AT_HEAD + 1)
    assert at_head >= 60 / (2 * REST)  # nor is the head forgotten
