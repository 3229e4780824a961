"""When a queue is alarming, with time given: no database, no clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import pytest

from pgqueue._calls import stats as counting
from pgqueue._calls.health import Check
from pgqueue.monitors.thresholds import Alert, Thresholds, Watcher

HOUR = 3600.0


def seen(total: int, age: float | None = None) -> counting.Stats:
    return counting.summed([]) | {"total": total, "oldest_ready_age": age}


class Story:
    """A queue whose length is told minute by minute, to a watcher."""

    def __init__(self, **thresholds: Any) -> None:
        self.watcher = Watcher(Thresholds(**{"half_life": HOUR} | thresholds))
        self.at = 0.0

    def look(self, total: int, age: float | None = None) -> list[float | str | None]:
        """What is alarming a minute later: the factor of a length, else the kind."""
        self.at += 60
        return [alert.factor or alert.kind for alert in self.watcher.look({"q": seen(total, age)}, [], self.at)]

    def go(self, *lengths: int) -> list[list[float | str | None]]:
        return [self.look(length) for length in lengths]

    def until(self, factor: float, growth: Callable[[int], float]) -> int:
        """After how many minutes of growth a threshold is reached."""
        return next(n for n in range(1, 10_000) if factor in self.look(round(growth(n))))


# --- length


def test_each_threshold_tells_once():
    story = Story()
    assert story.go(100, 100, 490) == [[], [], []]
    assert story.go(600, 700, 900) == [[5], [], []]
    assert story.go(1500, 1600) == [[10], []]
    assert story.go(5000, 50000) == [[20], []]


def test_a_leap_tells_of_every_threshold_that_it_passes():
    assert Story().go(100, 2500, 2500) == [[], [5, 10, 20], []]
    assert Story(factors=[20, 3, 3]).go(100, 2500) == [[], [3, 20]]


def test_it_is_armed_again_only_clearly_below():
    story = Story(factors=[5], half_life=1e9)
    assert story.go(100, 500) == [[], [5]]
    assert story.go(499, 500, 401, 500) == [[], [], [], []]  # trembles around the threshold
    assert story.go(399, 499, 501) == [[], [], [5]]


def test_an_alert_says_all():
    watcher = Watcher(Thresholds(age=60))
    watcher.look({"mail": seen(100)}, [], 0.0)
    assert watcher.look({"mail": seen(600, age=61.4)}, [], 10.0) == [
        Alert(
            kind="length",
            name="mail",
            value=600,
            threshold=500,
            factor=5,
            average=100,
            at=10.0,
            text="queue 'mail' has 600 tasks, over 5 times its average of 100",
        ),
        Alert(
            kind="age",
            name="mail",
            value=61.4,
            threshold=60,
            at=10.0,
            text="queue 'mail' has a task that is ready for 61 s, over 60 s",
        ),
    ]


@pytest.mark.parametrize("usual", [0, 3])
def test_a_queue_that_is_mostly_empty_is_not_alarming_at_its_first_tasks(usual):
    story = Story()
    assert story.go(usual, 49) == [[], []]
    assert story.go(50, 99, 100, 200) == [[5], [], [10], [20]]
    assert Story(minimum_average=1000).go(usual, 4999, 5000) == [[], [], [5]]


@pytest.mark.parametrize(("factor", "minutes"), [(5, 5), (10, 11), (20, 26)])
def test_a_fast_outage_reaches_every_threshold_at_nearly_that_multiple(factor, minutes):
    """Nobody takes any more, and in a minute as much is put as usually stands there."""
    story = Story()
    story.go(*[1000] * 60)
    assert story.until(factor, lambda n: 1000 + 1000 * n) == minutes


def test_a_slow_outage_is_told_of_too():
    """In a half-life come ten times as much as usually stands there."""
    story = Story()
    story.go(*[1000] * 60)
    assert story.until(5, lambda n: 1000 + 10_000 * n / 60) < 60


def test_what_grows_for_hours_is_what_is_usual():
    story = Story()
    assert not any(story.go(*[1000 + 30 * n for n in range(600)]))


def test_the_average_at_most_doubles_in_a_half_life():
    story = Story(factors=[1000])
    story.go(100)
    average = [100.0]
    for _ in range(3):
        story.go(*[100_000] * 60)
        average.append(story.watcher._watched["q"]._average.value)
    assert all(1.9 < after / before <= 2.0 for before, after in pairwise(average))


def test_a_new_level_is_the_new_normal_after_some_half_lives():
    story = Story(factors=[5])
    assert story.go(100, 600) == [[], [5]]
    assert not any(story.go(*[600] * 60 * 6))
    assert story.look(2000) == []
    assert story.look(3100) == [5]


def test_who_looks_less_often_finds_the_same_average():
    averages = []
    for step in (1, 10):
        watcher = Watcher(Thresholds(half_life=HOUR))
        for second in range(0, 7201, step):
            watcher.look({"q": seen(100 if second < HOUR else 150)}, [], float(second))
        averages.append(watcher._watched["q"]._average.value)
    assert averages == pytest.approx([125, 125], rel=0.01)


def test_a_clock_that_is_set_back_changes_no_average():
    watcher = Watcher(Thresholds(factors=[5]))
    for at in (1000.0, 10.0, 1000.0):
        assert watcher.look({"q": seen(100)}, [], at) == []
    assert [alert.average for alert in watcher.look({"q": seen(600)}, [], 10.0)] == [100]


# --- queues that come and go


def test_what_is_there_at_the_start_is_usual_and_what_comes_later_was_empty():
    watcher = Watcher(Thresholds(factors=[5]))
    assert watcher.look({"old": seen(5000)}, [], 0) == []
    alerts = watcher.look({"old": seen(5000), "new": seen(5000)}, [], 10)
    assert [(alert.name, alert.average) for alert in alerts] == [("new", 10)]


def test_a_queue_that_was_deleted_is_forgotten():
    watcher = Watcher(Thresholds(factors=[5]))
    watcher.look({"q": seen(1000)}, [], 0)
    assert watcher.look({}, [], 10) == []
    assert [alert.average for alert in watcher.look({"q": seen(1000)}, [], 20)] == [10]


def test_queues_have_nothing_to_do_with_each_other():
    watcher = Watcher(Thresholds(factors=[5]))
    watcher.look({"a": seen(100), "b": seen(1000)}, [], 0)
    assert [alert.name for alert in watcher.look({"a": seen(600), "b": seen(600)}, [], 10)] == ["a"]
    assert [alert.name for alert in watcher.look({"a": seen(600), "b": seen(6000)}, [], 20)] == ["b"]


# --- age


def test_age_tells_once_and_is_armed_again_clearly_below():
    story = Story(age=60)
    looks = [None, 59, 60, 1000, 50, 60, 47, 59, 60, None, 61]
    assert [story.look(1, age) for age in looks] == [
        *([], [], ["age"], [], [], [], [], [], ["age"], [], ["age"]),
    ]


def test_without_an_age_no_age_is_alarming():
    assert Story().look(1, 1e6) == []


# --- health


def test_a_check_tells_when_it_turns_bad():
    watcher = Watcher(Thresholds())

    def look(*statuses: Literal["ok", "warn", "bad"]) -> list[Alert]:
        checks = [Check(name, status, 7.5, "%", "full") for name, status in zip("abc", statuses, strict=False)]
        return watcher.look({}, checks, 10.0)

    assert look("bad", "ok") == [
        Alert(kind="health", name="a", value=7.5, at=10.0, text="the check a is bad: 7.5 %, full")
    ]
    assert [alert.name for alert in look("bad", "bad")] == ["b"]
    assert look("ok", "bad") == look("warn", "bad") == []
    assert [alert.name for alert in look("bad", "bad", "bad")] == ["a", "c"]


def test_a_check_may_have_found_infinity_which_json_has_not():
    (alert,) = Watcher(Thresholds()).look({}, [Check("tick", "bad", math.inf, "s", "")], 10.0)
    assert (alert.value, alert.text) == (math.inf, "the check tick is bad: inf s")
    assert alert.as_dict()["value"] is None
