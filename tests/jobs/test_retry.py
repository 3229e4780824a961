"""The policy of a job: after which attempts and exceptions a task is tried again, and how soon. Without a database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue import Bury, Retry, RetryLater
from pgqueue._calls.take import Taken
from pgqueue.jobs.retry import Unrunnable
from pgqueue.worker.failures import Failure, failure

pytestmark = pytest.mark.once


def failed(error: BaseException | str, retry: Retry, attempts: int = 0) -> Failure:
    return failure(Taken(1, 7, 0, attempts, None, "{}", "q"), error, retry, began=0.0)


def test_delays_grow_by_the_factor_up_to_the_longest() -> None:
    retry = Retry(attempts=9, delay=2, factor=3, max_delay=50, jitter=False)
    assert [retry.after(n) for n in (1, 2, 3, 4, 8, 9)] == [2, 6, 18, 50, 50, None]
    fixed = Retry(attempts=None, delay=timedelta(seconds=4), factor=1, jitter=False)
    assert [fixed.after(n) for n in (1, 2, 10**6)] == [4, 4, 4]


def test_attempts_that_were_lost_count_by_a_limit_of_their_own() -> None:
    same, apart = Retry(attempts=3), Retry(attempts=1, takes=20)
    assert [same.poisoned(n) for n in (1, 2, 3)] == [False, False, True]
    assert [apart.poisoned(n) for n in (1, 19, 20)] == [False, False, True]
    assert apart.after(1) is None
    assert not Retry(attempts=None).poisoned(10**6)
    with pytest.raises(ValueError, match="takes"):
        Retry(takes=0)


@given(st.floats(0, 1e6), st.floats(1, 1e9), st.floats(0, 1e6), st.integers(1, 10**6))
def test_a_delay_is_never_out_of_bounds(delay: float, factor: float, longest: float, attempts: int) -> None:
    for jitter in (True, False):
        after = Retry(attempts=None, delay=delay, factor=factor, max_delay=longest, jitter=jitter).after(attempts)
        assert after is not None
        assert 0 <= after <= longest


def test_only_some_exceptions_are_tried_again() -> None:
    retry = Retry(on=(OSError, KeyError), never=FileNotFoundError)
    assert retry.after(1, ConnectionResetError()) is not None
    assert retry.after(1, KeyError()) is not None
    assert retry.after(1, FileNotFoundError()) is None
    assert retry.after(1, ValueError()) is None
    assert Retry(never=OSError).after(1, ValueError()) is not None
    assert Retry(on=OSError).after(1) is not None  # ended by a limit: there is no exception


def test_an_own_function_chooses_the_delay() -> None:
    asked: list[tuple[int, BaseException]] = []

    def choose(attempts: int, error: BaseException) -> timedelta | None:
        asked.append((attempts, error))
        return timedelta(seconds=7) if attempts < 2 else None

    error = ValueError("x")
    retry = Retry(attempts=5, choose=choose, never=OSError)
    assert [retry.after(1, error), retry.after(2, error), retry.after(1, OSError())] == [7.0, None, None]
    assert asked == [(1, error), (2, error)]


@pytest.mark.parametrize("bad", [lambda n, e: "soon", lambda n, e: 1 / 0, lambda n, e: -1], ids=["str", "raises", "-1"])
def test_a_policy_that_fails_buries_and_says_so(bad: Any) -> None:
    found = failed(ValueError("boom"), Retry(choose=bad))
    assert found.delay is None
    assert "boom" in found.error
    assert "its retry policy failed" in found.error


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": 1.5},
        {"delay": -1},
        {"delay": None},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"max_delay": "1"},
        {"jitter": 1},
        {"on": "OSError"},
        {"never": (OSError, 3)},
        {"choose": 5},
        {"hold_lane": None},
    ],
    ids=str,
)
def test_a_policy_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Retry(**wrong)


def test_a_handler_decides_by_what_it_raises() -> None:
    retry = Retry(attempts=2, delay=5, jitter=False, hold_lane=False)
    buried = failed(Bury("no such user"), retry)
    assert (buried.delay, buried.error, buried.counts) == (None, "no such user", True)
    assert buried.traceback is not None
    later = failed(RetryLater(60, "busy"), retry)
    assert (later.delay, later.error, later.counts, later.hold_lane) == (60.0, "busy", True, False)
    assert failed(RetryLater(60), retry, attempts=1).delay is None  # that was the last one
    free = failed(RetryLater(timedelta(minutes=1), counts=False, hold_lane=True), retry, attempts=7)
    assert (free.delay, free.counts, free.hold_lane) == (60.0, False, True)
    assert failed(Unrunnable("no job"), retry).exception is None


@pytest.mark.parametrize("wrong", [{"after": -1}, {"after": None}, {"after": 1, "counts": 2}], ids=str)
def test_a_retry_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"after|counts"):
        RetryLater(**wrong)


def test_a_failure_has_the_traceback() -> None:
    try:
        raise ValueError("boom")
    except ValueError as error:
        found = failed(error, Retry(delay=1, jitter=False))
    assert found.traceback is not None
    assert found.traceback.splitlines()[-1] == "ValueError: boom"
    assert "test_retry.py" in found.traceback
    assert (found.delay, found.state, found.error.partition(" (")[0]) == (1.0, "failed", "ValueError: boom")
