"""Who waits for what, and what the listener has to do about it: the hub alone, with a clock of our own."""

from __future__ import annotations

import threading

import pytest

from pgqueue._engine.hub import LINGER, Hub
from pgqueue._engine.waiters import DRAIN_PAUSE, Plan, Waiter

IDLE = 15.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hub(clock: Clock) -> Hub:
    return Hub(IDLE, clock)


def waiter(*queues: int) -> Waiter:
    return Waiter(queues, threading.Event)


def steps(plan: Plan) -> dict[str, list[int]]:
    """What a plan says has to be sent."""
    return {name: ids for name in ("disarm", "unlisten", "listen", "arm", "arm_again") if (ids := getattr(plan, name))}


def enter(hub: Hub, *queues: int) -> Waiter:
    entered = waiter(*queues)
    hub.enter(entered)
    return entered


def settle(hub: Hub, drained: bool = True) -> None:
    """Do as the listener does, until there is nothing left to send."""
    plan = hub.plan()
    hub.listening(plan.listen)
    if plan.arm:
        hub.armed(dict.fromkeys(plan.arm, drained))


def asleep(hub: Hub, *queues: int) -> Waiter:
    """A waiter that is armed and may conclude that there is nothing."""
    entered = enter(hub, *queues)
    settle(hub)
    assert entered.armed.is_set()
    assert not entered.woken.is_set()
    return entered


# --- up


def test_nobody_waits_and_there_is_nothing_to_do(hub: Hub) -> None:
    plan = hub.plan()
    assert steps(plan) == {}
    assert plan.again == float("inf")


def test_a_waiter_is_armed_once_listen_and_lock_are_committed(hub: Hub) -> None:
    entered = waiter(1)
    assert hub.enter(entered)  # the listener has to be told
    plan = hub.plan()
    assert steps(plan) == {"listen": [1], "arm": [1]}
    hub.listening(plan.listen)
    assert not entered.armed.is_set()
    hub.armed({1: True})
    assert entered.armed.is_set()
    assert not entered.woken.is_set()
    assert steps(hub.plan()) == {}


def test_a_second_waiter_finds_all_as_it_is(hub: Hub) -> None:
    asleep(hub, 1)
    second = waiter(1)
    assert not hub.enter(second)
    assert second.armed.is_set()
    assert steps(hub.plan()) == {}


def test_a_waiter_for_two_queues_is_armed_when_both_are(hub: Hub) -> None:
    asleep(hub, 1)
    both = waiter(1, 2)
    assert hub.enter(both)
    assert not both.armed.is_set()
    assert steps(hub.plan()) == {"listen": [2], "arm": [2]}
    hub.listening([2])
    hub.armed({2: True})
    assert both.armed.is_set()


# --- signals


def test_a_signal_wakes_one_waiter_and_each_once(hub: Hub) -> None:
    first, second = asleep(hub, 1), asleep(hub, 1)
    hub.signal([1])
    assert (first.woken.is_set(), second.woken.is_set()) == (True, False)
    hub.signal([1])
    assert second.woken.is_set()
    hub.signal([1, 2])  # nobody is left: no error


def test_a_signal_before_it_is_armed_is_not_lost(hub: Hub) -> None:
    early = enter(hub, 1)
    hub.signal([1])
    assert early.woken.is_set()
    assert early.armed.is_set()  # it must not wait for what it no longer needs


def test_a_waiter_for_two_queues_is_woken_once(hub: Hub) -> None:
    both, other = asleep(hub, 1, 2), asleep(hub, 2)
    hub.signal([1])
    assert both.woken.is_set()
    hub.signal([2])
    assert other.woken.is_set()


def test_who_left_is_not_woken_instead_of_who_stayed(hub: Hub) -> None:
    gone, stayed = asleep(hub, 1), asleep(hub, 1)
    hub.leave(gone)
    hub.signal([1])
    assert (gone.woken.is_set(), stayed.woken.is_set()) == (False, True)


def test_leaving_tells_whether_it_was_the_last(hub: Hub) -> None:
    first, second = asleep(hub, 1), asleep(hub, 1)
    assert not hub.leave(first)
    assert hub.leave(second)
    assert not hub.leave(second)


def test_wake_all(hub: Hub) -> None:
    waiters = [asleep(hub, 1), asleep(hub, 1), asleep(hub, 2), enter(hub, 3)]
    hub.wake_all()
    assert all(each.woken.is_set() for each in waiters)


def test_close_wakes_who_waits_and_who_comes(hub: Hub) -> None:
    before = asleep(hub, 1)
    hub.close()
    after = enter(hub, 1)
    assert before.woken.is_set()
    assert after.woken.is_set()


# --- the drain


def test_what_is_not_drained_is_tried_again_with_a_growing_pause(hub: Hub, clock: Clock) -> None:
    entered = enter(hub, 1)
    settle(hub, drained=False)
    assert entered.armed.is_set()  # and looks; what is drained later wakes it
    pauses = []
    for _ in range(12):
        plan = hub.plan()
        assert steps(plan) == {}
        pauses.append(plan.again - clock.now)
        clock.now = plan.again
        assert steps(hub.plan()) == {"arm_again": [1]}
        hub.drained({1: False})
        entered = enter(hub, 1)
    assert pauses == sorted(pauses)
    assert pauses[0] <= 2 * DRAIN_PAUSE[0] + 1e-6
    assert pauses[-1] == pytest.approx(DRAIN_PAUSE[1])


@pytest.mark.parametrize("success", [True, False])
def test_each_attempt_at_the_drain_makes_a_waiter_look(hub: Hub, clock: Clock, success: bool) -> None:
    first, second = enter(hub, 1), enter(hub, 1)
    settle(hub, drained=False)
    clock.now = hub.plan().again
    hub.drained({1: success})
    assert (first.woken.is_set(), second.woken.is_set()) == (True, False)


def test_once_drained_it_stays_so(hub: Hub, clock: Clock) -> None:
    enter(hub, 1), enter(hub, 1)
    settle(hub, drained=False)
    clock.now = hub.plan().again
    assert steps(hub.plan()) == {"arm_again": [1]}
    hub.drained({1: True})
    clock.now += 1
    assert steps(hub.plan()) == {}


# --- down


def test_the_last_waiter_leaves_and_after_a_while_the_channel_is_disarmed(hub: Hub, clock: Clock) -> None:
    hub.leave(asleep(hub, 1))
    plan = hub.plan()
    assert steps(plan) == {}
    assert plan.again == pytest.approx(clock.now + LINGER)
    clock.now = plan.again
    plan = hub.plan()
    assert steps(plan) == {"disarm": [1]}
    assert LINGER < plan.again - (clock.now - LINGER) <= IDLE + 1e-6


def test_who_comes_back_soon_finds_all_as_it_was(hub: Hub, clock: Clock) -> None:
    hub.leave(asleep(hub, 1))
    clock.now += LINGER / 2
    back = waiter(1)
    assert not hub.enter(back)
    clock.now += 1
    assert steps(hub.plan()) == {}


def test_an_idle_channel_is_not_listened_to_any_more(hub: Hub, clock: Clock) -> None:
    hub.leave(asleep(hub, 1))
    clock.now += LINGER
    plan = hub.plan()
    clock.now = plan.again
    assert steps(hub.plan()) == {"unlisten": [1]}
    assert steps(hub.plan()) == {}
    enter(hub, 1)
    assert steps(hub.plan()) == {"listen": [1], "arm": [1]}


def test_a_channel_that_is_used_again_in_time_is_armed_without_listen_or_unlisten(hub: Hub, clock: Clock) -> None:
    hub.leave(asleep(hub, 1))
    clock.now += LINGER
    assert steps(hub.plan()) == {"disarm": [1]}
    clock.now += IDLE / 2
    back = waiter(1)
    assert hub.enter(back)
    assert not back.armed.is_set()
    assert steps(hub.plan()) == {"arm": [1]}
    clock.now += IDLE
    assert "unlisten" not in steps(hub.plan())


def test_a_step_down_is_marked_before_it_is_sent(hub: Hub, clock: Clock) -> None:
    """Who enters while the disarm is on its way must not trust what is about to go."""
    hub.leave(asleep(hub, 1))
    clock.now += LINGER
    assert steps(hub.plan()) == {"disarm": [1]}
    meanwhile = waiter(1)
    assert hub.enter(meanwhile)
    assert not meanwhile.armed.is_set()
    settle(hub)
    assert meanwhile.armed.is_set()


def test_a_queue_that_was_never_listened_to_is_not_unlistened(hub: Hub, clock: Clock) -> None:
    hub.leave(enter(hub, 1))
    clock.now += IDLE
    assert steps(hub.plan()) == {}
    assert hub.plan().again == float("inf")


def test_after_a_loss_of_the_connection_everything_is_sent_again(hub: Hub) -> None:
    asleep(hub, 1)
    sleeping = asleep(hub, 2)
    hub.disconnected()
    plan = hub.plan()
    assert steps(plan) == {"listen": [1, 2], "arm": [1, 2]}
    assert not sleeping.woken.is_set()  # the listener wakes them when it has connected


# --- what is due


def test_a_waiter_is_woken_when_something_is_due(hub: Hub, clock: Clock) -> None:
    first, second = asleep(hub, 1), asleep(hub, 1)
    assert hub.set_due(1, 3.0)
    assert hub.plan().again == pytest.approx(clock.now + 3)
    clock.now += 2.9
    hub.plan()
    assert not first.woken.is_set()
    clock.now += 0.2
    hub.plan()
    assert (first.woken.is_set(), second.woken.is_set()) == (True, False)


def test_only_an_earlier_moment_has_to_be_told(hub: Hub, clock: Clock) -> None:
    asleep(hub, 1)
    assert hub.set_due(1, 3.0)
    assert not hub.set_due(1, 4.0)
    assert hub.set_due(1, 1.0)
    assert hub.plan().again == pytest.approx(clock.now + 1)
    assert not hub.set_due(2, 1.0)  # nobody waits for that one


def test_nobody_waits_any_more_and_nothing_is_due(hub: Hub, clock: Clock) -> None:
    sleeping = asleep(hub, 1)
    hub.set_due(1, 1.0)
    hub.leave(sleeping)
    clock.now += LINGER
    hub.plan()
    back = asleep(hub, 1)
    clock.now += 2
    hub.plan()
    assert not back.woken.is_set()
