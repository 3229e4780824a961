"""The waiting take, driven by hand: each step that it asks for, and what it leaves behind wherever it is cut off."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from flowing import IDS, Clock, Listener, Take, name, task, token

from pgqueue._engine import takes
from pgqueue._engine.cursor import AT_HEAD
from pgqueue._engine.steps import Wait
from pgqueue.errors import ClosedError, ConnectionLost, ServerError, SessionDead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(takes, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def take(clock: Clock) -> Take:
    return Take(clock, Listener(clock))


# --- the way of a take


def test_a_claim_that_finds_a_task_is_all(take: Take) -> None:
    step = take.begin()
    assert name(step) == "take"
    assert 11 in step.call.args
    take.answer([task()])
    assert take.result == [task()]
    assert take.listener.undone == []


@pytest.mark.parametrize("timeout", [0, -1])
def test_without_time_there_is_one_claim(take: Take, timeout: float) -> None:
    take.begin(timeout=timeout)
    take.answer([])
    assert take.result == []
    assert take.listener.pokes == 0


def test_several_queues_or_tasks_are_another_call(take: Take) -> None:
    assert name(take.begin("q", "r")) == "take_many"
    assert ["q", "r"] in take.step.call.args
    assert name(take.begin("q", n=5)) == "take_many"


def test_several_queues_are_claimed_from_one_by_one_if_a_task_is_due_and_the_claim_of_all_found_none(
    take: Take,
) -> None:
    take.begin("q", "r", timeout=0)
    assert name(take.answer([])) == "next_due"
    assert name(take.answer({"q": 0.0, "r": 0.0})) == "take"
    assert "q" in take.step.call.args
    assert "r" in take.answer([]).call.args
    take.answer([task(queue="r")])
    assert take.result == [task(queue="r")]
    assert take.listener.undone == []


def test_several_queues_with_nothing_due_are_asked_no_more(take: Take) -> None:
    take.begin("q", "r", timeout=0)
    take.answer([])
    take.answer({"q": None, "r": 2.5})
    assert take.result == []


def test_after_a_lost_connection_several_queues_have_had_their_claim(take: Take) -> None:
    take.begin("q", "r", timeout=0)
    take.answer([])
    take.fail(ConnectionLost("gone"))
    assert take.result == []


def test_queues_that_are_due_and_locked_hold_up_a_take_no_longer_than_the_limit_and_one_claim(take: Take) -> None:
    take.begin("q", "r", timeout=0)
    take.answer([])
    take.answer({"q": 0.0, "r": 0.0})
    take.clock.now += takes.BY_QUEUE
    take.answer([])
    assert take.result == []


def test_it_sleeps_until_it_is_signalled_and_claims_again(take: Take) -> None:
    take.begin()
    take.arm()
    assert take.step.seconds is None
    take.listener.hub.signal([1])
    assert take.step.signal.is_set()
    assert name(take.answer(True)) == "take"
    take.answer([task()])
    assert take.result == [task()]


def test_what_comes_while_it_lies_down_is_not_slept_over(take: Take) -> None:
    take.begin()
    take.answer([])
    take.answer(IDS)
    take.answer(True)
    assert name(take.answer({"q": 0.0})) == "take"
    take.answer([task()])
    assert take.result == [task()]


def test_a_signal_before_the_last_look_ends_the_sleep_at_once(take: Take) -> None:
    take.begin()
    take.answer([])
    take.answer(IDS)
    take.listener.hub.signal([1])
    take.answer(True)
    take.answer({"q": None})
    assert take.step.signal.is_set()


def test_the_listener_is_told_of_a_waiter_and_of_its_end(take: Take) -> None:
    take.begin(timeout=1)
    take.arm()
    assert take.listener.pokes == 1
    take.clock.now += 1
    take.answer(False)
    assert take.listener.pokes == 2
    assert not take.listener.hub._channels[1].waiters


# --- time


def test_lost_races_do_not_prolong_a_take(take: Take) -> None:
    take.begin(timeout=3)
    take.arm()
    assert take.step.seconds == 3
    for left in (2, 1):
        take.clock.now += 1
        take.listener.hub.signal([1])
        assert name(take.answer(True)) == "take"
        assert isinstance(take.answer([]), Wait)
        take.answer(True)
        assert take.answer({"q": None}).seconds == pytest.approx(left)
    take.clock.now += 1
    assert name(take.answer(False)) == "take"  # a last claim when the time is over
    take.answer([])
    assert take.result == []


def test_a_deadline_that_passes_during_the_claim_takes_nothing_away(take: Take) -> None:
    take.begin(timeout=0.1)
    take.clock.now += 5
    take.answer([task()])
    assert take.result == [task()]


def test_it_polls_when_told_to(take: Take) -> None:
    take.core.settings.poll = 30.0
    take.begin()
    take.arm()
    assert take.step.seconds == 30
    take.answer(False)
    assert name(take.step) == "take"


def test_what_is_due_is_left_to_the_listener(take: Take) -> None:
    take.begin()
    take.answer([])
    take.answer(IDS)
    waiting = take.neighbour(1)
    take.answer(True)
    pokes = take.listener.pokes
    assert take.answer({"q": 2.5}).seconds is None
    assert take.listener.pokes == pokes + 1
    take.clock.now += 3
    take.listener.hub.plan()
    assert take.step.signal.is_set()
    assert not waiting.woken.is_set()


def test_a_task_that_a_transaction_has_locked_is_asked_for_again_and_less_and_less(take: Take) -> None:
    take.begin()
    take.answer([])
    take.answer(IDS)
    pauses = []
    for _ in range(8):
        take.answer(True)
        assert name(take.answer({"q": 0.0})) == "take"
        pauses.append(take.answer([]).seconds)
        assert name(take.answer(False)) == "take"
        assert isinstance(take.answer([]), Wait)
    assert pauses[0] == takes.LOCKED_PAUSE[0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == takes.LOCKED_PAUSE[1]


# --- cut off


CUTS = [asyncio.CancelledError(), KeyboardInterrupt(), GeneratorExit(), ValueError("a bug")]


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: type(cut).__name__)
def test_cut_off_in_its_claim_a_take_is_undone(take: Take, cut: BaseException) -> None:
    """The claim may have been committed, or may yet be."""
    step = take.begin()
    with pytest.raises(type(cut)):
        take.fail(cut)
    assert take.listener.undone == [token(step)]


def test_a_take_that_is_dropped_in_its_claim_is_undone(take: Take) -> None:
    """Ctrl-C in the shell's loop is not thrown in here: the generator is closed."""
    step = take.begin()
    take.flow.close()
    assert take.listener.undone == [token(step)]


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: type(cut).__name__)
def test_cut_off_in_its_sleep_it_has_left_and_undoes_nothing(take: Take, cut: BaseException) -> None:
    take.begin()
    take.arm()
    with pytest.raises(type(cut)):
        take.fail(cut)
    assert take.listener.undone == []
    assert not take.listener.hub._channels[1].waiters


def test_a_woken_waiter_that_is_cancelled_passes_its_wake_up_on(take: Take) -> None:
    take.begin()
    take.arm()
    neighbour = take.neighbour()
    take.listener.hub.signal([1])
    assert not neighbour.woken.is_set()
    with pytest.raises(asyncio.CancelledError):
        take.fail(asyncio.CancelledError())
    assert neighbour.woken.is_set()


def test_a_woken_waiter_that_is_cancelled_in_its_claim_passes_it_on_too(take: Take) -> None:
    step = take.begin()
    take.arm()
    neighbour = take.neighbour()
    take.listener.hub.signal([1])
    assert name(take.answer(True)) == "take"
    with pytest.raises(asyncio.CancelledError):
        take.fail(asyncio.CancelledError())
    assert neighbour.woken.is_set()
    assert take.listener.undone == [token(step)]


@pytest.mark.parametrize(("n", "got", "passed"), [(1, 1, True), (3, 3, True), (3, 2, False)])
def test_who_got_all_that_it_asked_for_wakes_the_next(take: Take, n: int, got: int, passed: bool) -> None:
    take.core.queue_ids, take.core.queue_ids_session = dict(IDS), 11
    neighbour = take.neighbour()
    take.begin(n=n)
    take.answer([task(id) for id in range(got)])
    assert neighbour.woken.is_set() is passed


def test_who_was_woken_wakes_the_next_whatever_it_got(take: Take) -> None:
    take.begin(n=3)
    take.arm()
    neighbour = take.neighbour()
    take.listener.hub.signal([1])
    take.answer(True)
    take.answer([task()])
    assert take.result == [task()]
    assert neighbour.woken.is_set()


# --- the connection, the session, the end


def test_a_lost_connection_is_undone_and_the_claim_made_again_under_a_new_token(take: Take) -> None:
    first = take.begin()
    assert isinstance(take.fail(ConnectionLost("gone")), Wait)
    assert take.listener.undone == [token(first)]
    second = take.answer(False)
    assert name(second) == "take"
    assert token(second) != token(first)
    take.answer([task()])
    assert take.result == [task()]


def test_a_dead_session_is_waited_for(take: Take) -> None:
    take.begin(timeout=0)
    assert isinstance(take.fail(SessionDead("dead")), Wait)
    assert take.listener.refusals == [11]
    take.listener.session = None
    wait = take.answer(False)
    assert take.listener.waiting == [wait.signal]
    assert 0 < wait.seconds <= 10
    take.listener.session = 12
    assert 12 in take.answer(True).call.args


def test_a_server_that_does_not_come_back_is_an_error_in_the_end(take: Take) -> None:
    take.begin(timeout=0)
    take.listener.session = None
    take.fail(ConnectionLost("gone"))
    take.answer(False)
    take.clock.now += 11
    with pytest.raises(ServerError, match="without a session: the reason"):
        take.answer(False)


def test_an_error_of_the_last_look_makes_it_claim_again(take: Take) -> None:
    take.begin()
    take.answer([])
    take.answer(IDS)
    take.answer(True)
    assert name(take.fail(ConnectionLost("gone"))) == "take"
    assert not take.listener.hub._channels[1].waiters


@pytest.mark.parametrize("how", ["stopping", "stopped"])
def test_a_close_ends_the_sleep_of_a_take_with_nothing(take: Take, how: str) -> None:
    take.begin()
    take.arm()
    take.listener.stopping, take.stop = how == "stopping", how == "stopped"
    take.listener.hub.wake_all()
    take.answer(True)
    assert take.result == []


#: The answers of the server before the statement at which a client closes.
BEFORE: dict[str, list[Any]] = {
    "the first claim": [],
    "the ids": [[]],
    "the last look": [[], IDS, True],
    "the claim of the last look": [[], IDS, True, {"q": 0.0}],
    "the claim after a sleep": [[], IDS, True, {"q": None}, True],
}


def closed_amid(take: Take, answers: list[Any], closing: bool) -> None:
    take.begin()
    for answer in answers:
        take.answer(answer)
    assert not isinstance(take.step, Wait)
    take.listener.stopping = closing
    take.fail(ClosedError("the client is closed"))


@pytest.mark.parametrize("answers", BEFORE.values(), ids=BEFORE)
def test_a_close_amid_a_statement_ends_a_take_with_nothing(take: Take, answers: list[Any]) -> None:
    """As in its sleep: the caller does not see where the take was."""
    closed_amid(take, answers, closing=True)
    assert take.result == []
    assert not any(channel.waiters for channel in take.listener.hub._channels.values())


def test_a_closed_pool_of_a_client_that_goes_on_is_an_error(take: Take) -> None:
    with pytest.raises(ClosedError):
        closed_amid(take, BEFORE["the last look"], closing=False)


def test_a_close_ends_the_wait_for_a_session(take: Take) -> None:
    take.listener.session = None
    take.begin()
    take.listener.stopping = True
    take.answer(True)
    assert take.result == []


def test_under_a_new_session_the_queues_ids_are_asked_for_again(take: Take) -> None:
    """The server may have crashed, or another one taken over: rows that some take made need not have survived."""
    take.core.queue_ids, take.core.queue_ids_session = dict(IDS), 10
    take.begin()
    assert name(take.answer([])) == "queue_id"
    take.begin()
    take.core.queue_ids, take.core.queue_ids_session = dict(IDS), 11
    assert isinstance(take.answer([]), Wait)


# --- the cursor


def slow(take: Take) -> None:
    """Make claims on "q" start behind (0, 5)."""
    for _ in range(AT_HEAD):
        take.core.cursors["q"].claimed(None, 1.0, (0, 5), 1)


def test_a_slow_head_is_not_where_it_starts(take: Take) -> None:
    slow(take)
    assert take.begin().call.args[-2:] == (0, 5)


def test_an_empty_claim_from_the_cursor_is_made_again_at_the_head_before_it_gives_up(take: Take) -> None:
    slow(take)
    take.begin(timeout=0)
    again = take.answer([])
    assert (name(again), again.call.args[-2:]) == ("take", (None, None))
    take.answer([])
    assert take.result == []


def test_before_it_sleeps_it_looks_at_the_head_and_takes_what_is_there(take: Take) -> None:
    """A task that was released, in front of the cursor: no put will signal it."""
    slow(take)
    take.begin()
    take.answer([])
    take.answer(IDS)
    assert name(take.answer(True)) == "next_due"
    claim = take.answer({"q": 0})
    assert (name(claim), claim.call.args[-2:]) == ("take", (None, None))
    take.answer([task()])
    assert take.result == [task()]


def test_it_sleeps_until_it_is_signalled_while_claims_start_at_the_cursor(take: Take) -> None:
    """It has looked at the head, and nothing is ready there."""
    slow(take)
    take.begin()
    take.answer([])
    take.answer(IDS)
    take.answer(True)
    assert take.answer({"q": None}).seconds is None
    assert take.answer(True).call.args[-2:] == (0, 5)
