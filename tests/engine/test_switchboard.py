"""The switchboard by itself: what it wants listened to, and who hears what. No database."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from pgqueue._engine.switchboard import KEPT, OVERFLOW, RECONNECT, TOO_LATE, Ear, Switchboard

IDLE = 15.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> Switchboard:
    return Switchboard(IDLE, clock)


def ear(channel: str = "foo", limit: int = 1000) -> Ear:
    return Ear(channel, threading.Event, limit)


def listen(board: Switchboard) -> list[str]:
    """Do what it plans, as the listener does; returns the channels that are new."""
    _, on, _ = board.plan()
    board.listening(on)
    return on


def heard(board: Switchboard, ear: Ear) -> list[object]:
    items: list[object] = []
    while (item := board.hear(ear)) is not None:
        items.append(item)
    return items


def test_an_ear_is_active_once_listen_is_committed(board):
    one = ear()
    assert board.enter(one) is True
    assert not one.ready.is_set()
    off, on, _ = board.plan()
    assert (off, on) == ([], ["foo"])
    assert not one.ready.is_set()
    board.listening(on)
    assert one.ready.is_set()


def test_the_second_ear_of_a_channel_is_active_at_once(board):
    board.enter(ear())
    listen(board)
    second = ear()
    assert board.enter(second) is False
    assert second.ready.is_set()
    assert listen(board) == []


def test_all_ears_of_a_channel_hear_all_and_no_other_does(board):
    ears = [ear(), ear(), ear("bar")]
    for one in ears:
        board.enter(one)
    listen(board)
    board.deliver("foo", "a")
    board.deliver("foo", "b")
    board.deliver("nobody", "c")
    assert [heard(board, one) for one in ears] == [["a", "b"], ["a", "b"], []]


def test_who_has_left_hears_nothing(board):
    one, other = ear(), ear()
    board.enter(one)
    board.enter(other)
    listen(board)
    board.leave(one)
    board.leave(one)
    board.deliver("foo", "a")
    assert heard(board, one) == []
    assert heard(board, other) == ["a"]


def test_an_idle_channel_goes_after_its_time_and_is_asked_for_again(board, clock):
    one = ear()
    board.enter(one)
    listen(board)
    board.leave(one)
    off, on, again = board.plan()
    assert (off, on, again) == ([], [], clock.now + IDLE)
    clock.now += IDLE
    assert board.plan()[0] == ["foo"]
    late = ear()
    assert board.enter(late) is True  # UNLISTEN may be on its way: only a LISTEN behind it counts
    assert not late.ready.is_set()
    assert listen(board) == ["foo"]


def test_who_comes_back_in_time_asks_for_nothing(board, clock):
    one = ear()
    board.enter(one)
    listen(board)
    board.leave(one)
    clock.now += IDLE - 1
    board.plan()
    assert board.enter(ear()) is False
    clock.now += 10 * IDLE
    assert board.plan()[:2] == ([], [])


def leave_behind(board: Switchboard, names: Iterable[str]) -> None:
    """Channels that are listened to, and have no ear any more."""
    for name in names:
        one = ear(name)
        board.enter(one)
        listen(board)
        board.leave(one)


def test_of_too_many_idle_channels_the_oldest_go_with_the_next_listen(board, clock):
    """Each result that is awaited has a channel that is never wanted again."""
    leave_behind(board, map(str, range(KEPT)))
    leave_behind(board, ["0", "more"])  # the oldest one was used again
    assert board.plan() == ([], [], clock.now + IDLE)  # not by themselves
    board.enter(ear())
    assert board.plan()[:2] == (["1"], ["foo"])
    assert board.enter(ear("0")) is False
    assert board.enter(ear("1")) is True


def test_waiters_that_stay_are_not_too_many(board):
    for number in range(3 * KEPT):
        board.enter(ear(str(number)))
    assert len(listen(board)) == 3 * KEPT
    board.enter(ear())
    assert board.plan()[:2] == ([], ["foo"])


def test_a_channel_whose_ear_left_before_its_listen(board):
    gone, late = ear(), ear()
    board.enter(gone)
    on = board.plan()[1]
    board.leave(gone)
    assert board.enter(late) is True
    board.listening(on)  # the statement that was under way
    assert late.ready.is_set()
    assert board.plan()[:2] == ([], [])
    other = ear("bar")
    board.enter(other)
    board.leave(other)
    assert board.plan()[:2] == ([], [])


def test_a_full_buffer_drops_the_oldest_and_says_so(board):
    one = ear(limit=3)
    board.enter(one)
    listen(board)
    for payload in "abc":
        board.deliver("foo", payload)
    assert heard(board, one) == ["a", "b", "c"]
    for payload in "abcdefgh":
        board.deliver("foo", payload)
    items = heard(board, one)
    assert items[0] is OVERFLOW
    assert items[1:] == list("fgh")


def test_a_lost_connection_is_a_gap_between_what_came_before_and_after(board):
    one, never = ear(), ear("bar")
    board.enter(one)
    listen(board)
    board.enter(never)
    board.deliver("foo", "before")
    board.disconnected()
    assert sorted(listen(board)) == ["bar", "foo"]
    board.deliver("foo", "after")
    assert heard(board, one) == ["before", RECONNECT, "after"]
    assert heard(board, never) == []  # it was not active yet, and has missed nothing


def test_who_waits_is_told_of_a_loss_only_when_all_is_listened_to_again(board):
    """Sooner, it would look at the state, and sleep, while nobody listens."""
    one, signal = ear(), threading.Event()
    board.enter(one)
    listen(board)
    board.await_next(one, signal)
    board.disconnected()
    assert not signal.is_set()
    assert heard(board, one) == []
    listen(board)
    assert signal.is_set()
    assert heard(board, one) == [RECONNECT]


def test_two_losses_in_a_row_are_one_gap(board):
    one = ear()
    board.enter(one)
    listen(board)
    board.disconnected()
    board.disconnected()
    listen(board)
    assert heard(board, one) == [RECONNECT]


def test_a_payload_that_was_removed_too_early_is_a_gap(board):
    one = ear()
    board.enter(one)
    listen(board)
    board.deliver("foo", TOO_LATE)
    assert heard(board, one) == [TOO_LATE]


@pytest.mark.parametrize("event", ["payload", "close", "hang up"])
def test_what_rouses_a_waiter(board, event):
    one = ear()
    board.enter(one)
    listen(board)
    before, after = threading.Event(), threading.Event()
    board.await_next(one, before)
    assert not before.is_set()
    if event == "payload":
        board.deliver("foo", "x")
    elif event == "close":
        board.close()
    else:
        board.hang_up(one)
    assert before.is_set()
    board.await_next(one, after)  # and who comes to wait after it is roused at once
    assert after.is_set()


def test_nobody_waits_for_a_closed_listener(board):
    waiting = ear()
    board.enter(waiting)
    board.close()
    assert waiting.ready.is_set()
    late = ear()
    assert board.enter(late) is False
    assert late.ready.is_set()
