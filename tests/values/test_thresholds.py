"""When a queue is alarming, with time given: no database, no clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import pytest

from pgqueue._calls import stats as counting
from pgqueue._calls.health import Check, Conditions
from pgqueue.monitors.averages import Minute
from pgqueue.monitors.thresholds import Alert, Thresholds
from pgqueue.monitors.watcher import Watcher

HOUR = 3600.0
NONE = Conditions()


def seen(total: int, age: float | None = None) -> counting.Stats:
    return counting.summed([]) | {"total": total, "oldest_ready_age": age}


class Story:
    """A queue whose length is told minute by minute, to a watcher."""

    def __init__(self, **thresholds: Any) -> None:
        self.watcher = Watcher(Thresholds(**{"half_life": HOUR} | thresholds))
        self.at = 0.0

    def look(self, total: int, age: float | None = None) -> list[float | str | None]:
        """What begins to be alarming a minute later: the factor of a growth, else the kind."""
        self.at += 60
        alerts = self.watcher.look({"q": seen(total, age)}, [], NONE, self.at)
        return [alert.factor or alert.kind for alert in alerts if alert.state == "firing"]

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
    watcher.look({"mail": seen(100)}, [], NONE, 0.0)
    assert watcher.look({"mail": seen(600, age=61.4)}, [], NONE, 10.0) == [
        Alert(
            kind="growth",
            name="mail",
            queue="mail",
            value=600,
            threshold=500,
            factor=5,
            average=100,
            since=10.0,
            at=10.0,
            text="queue 'mail' has 600 tasks, over 5 times its average of 100",
        ),
        Alert(
            kind="age",
            name="mail",
            queue="mail",
            value=61.4,
            threshold=60,
            since=10.0,
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
        average.append(story.watcher._queues["q"]._average.value)
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
            watcher.look({"q": seen(100 if second < HOUR else 150)}, [], NONE, float(second))
        averages.append(watcher._queues["q"]._average.value)
    assert averages == pytest.approx([125, 125], rel=0.01)


def test_a_clock_that_is_set_back_changes_no_average():
    watcher = Watcher(Thresholds(factors=[5]))
    for at, length in ((1000.0, 100), (10.0, 150), (10.0, 120)):
        assert watcher.look({"q": seen(length)}, [], NONE, at) == []
    assert [alert.average for alert in watcher.look({"q": seen(600)}, [], NONE, 10.0)] == [100]


# --- queues that come and go


def test_what_is_there_at_the_start_is_usual_and_what_comes_later_was_empty():
    watcher = Watcher(Thresholds(factors=[5]))
    assert watcher.look({"old": seen(5000)}, [], NONE, 0) == []
    alerts = watcher.look({"old": seen(5000), "new": seen(5000)}, [], NONE, 10)
    assert [(alert.name, alert.average) for alert in alerts] == [("new", 10)]


def test_a_queue_that_was_deleted_is_forgotten():
    watcher = Watcher(Thresholds(factors=[5]))
    watcher.look({"q": seen(1000)}, [], NONE, 0)
    assert watcher.look({}, [], NONE, 10) == []
    assert [alert.average for alert in watcher.look({"q": seen(1000)}, [], NONE, 20)] == [10]


def test_queues_have_nothing_to_do_with_each_other():
    watcher = Watcher(Thresholds(factors=[5]))
    watcher.look({"a": seen(100), "b": seen(1000)}, [], NONE, 0)
    assert [alert.name for alert in watcher.look({"a": seen(600), "b": seen(600)}, [], NONE, 10)] == ["a"]
    assert [alert.name for alert in watcher.look({"a": seen(600), "b": seen(6000)}, [], NONE, 20)] == ["b"]


# --- age


def test_age_tells_once_and_is_armed_again_clearly_below():
    story = Story(age=60)
    looks = [None, 59, 60, 1000, 50, 60, 47, 59, 60, None, 61]
    assert [story.look(1, age) for age in looks] == [
        *([], [], ["age"], [], [], [], [], [], ["age"], [], ["age"]),
    ]


def test_without_an_age_no_age_is_alarming():
    assert Story(age=None).look(1, 1e6) == []


# --- absolute thresholds


def row(**values: Any) -> counting.Stats:
    """The stats of a queue; a verb's name gives its calls."""
    stats = counting.summed([])
    calls = {verb: values.pop(verb, 0) for verb in counting.VERBS}
    return stats | values | {"calls": calls}  # type: ignore[return-value]


def told(alerts: list[Alert]) -> list[tuple[str, str, str]]:
    return [(alert.state, alert.kind, alert.name) for alert in alerts]


def test_a_length_fires_and_is_resolved_once():
    watcher = Watcher(Thresholds(length=100))
    ready = [99, 100, 5000, 80, 79, 79, 0, 100]
    assert [told(watcher.look({"q": row(ready=n)}, [], NONE, float(at))) for at, n in enumerate(ready)] == [
        *([], [("firing", "length", "q")], [], [], [("resolved", "length", "q")], [], []),
        [("firing", "length", "q")],
    ]
    (firing,) = watcher.firing.values()
    assert (firing.since, firing.threshold, firing.text) == (7.0, 100, "queue 'q' has 100 ready tasks, over 100")


def test_a_resolved_alert_says_since_when_it_was_and_what_is_now():
    watcher = Watcher(Thresholds(length=100))
    watcher.look({"q": row(ready=500)}, [], NONE, 10.0)
    assert watcher.look({"q": row(ready=3)}, [], NONE, 50.0) == [
        Alert(
            state="resolved",
            kind="length",
            name="q",
            queue="q",
            value=3,
            threshold=100,
            since=10.0,
            at=50.0,
            text="resolved: queue 'q' has 3 ready tasks",
        )
    ]


def test_a_queue_may_have_a_threshold_of_its_own():
    watcher = Watcher(Thresholds(length={"mail": 10, "bulk": None, None: 1000}, age={"mail": None}, untaken=None))
    found = {name: row(ready=999, oldest_ready_age=400.0) for name in ("mail", "bulk", "other")}
    assert told(watcher.look(found, [], NONE, 0.0)) == [
        *(("firing", "length", "mail"), ("firing", "age", "bulk"), ("firing", "age", "other")),
    ]


def test_without_a_word_about_the_others_they_have_the_default():
    watcher = Watcher(Thresholds(length={"mail": 10}))
    found = {"mail": row(ready=10), "other": row(ready=9999), "third": row(ready=10_000)}
    assert [name for _, _, name in told(watcher.look(found, [], NONE, 0.0))] == ["mail", "third"]


@pytest.mark.parametrize(
    "counted",
    [
        lambda n: (row(bury=n), NONE),
        lambda n: (row(ttr=n), NONE),
        lambda n: (row(bury=n), Conditions(failed={"q": n})),  # a failure that buried its task is one
        lambda n: (row(), Conditions(failed={"q": n})),
    ],
    ids=["buried", "over time", "both", "runs"],
)
def test_failures_of_a_minute(counted: Callable[[int], tuple[counting.Stats, Conditions]]):
    watcher = Watcher(Thresholds(failures=10))

    def look(n: int, at: float) -> list[str]:
        stats, conditions = counted(n)
        return [alert.state for alert in watcher.look({"q": stats}, [], conditions, at)]

    assert look(1000, 0) == look(1005, 30) == look(1009, 50) == []
    assert look(1011, 95) == []  # five of them are older
    assert look(1015, 96) == ["firing"]
    assert look(1016, 100) == []
    assert look(1016, 136) == ["resolved"]


def test_releases_are_no_failures():
    watcher = Watcher(Thresholds(failures=10))
    assert watcher.look({"q": row()}, [], NONE, 0.0) == []
    assert watcher.look({"q": row(release=1000)}, [], NONE, 10.0) == []


def test_what_grew_in_a_minute():
    minute = Minute()
    counts = [(0.0, 5), (10.0, 5), (20.0, 15), (79.0, 15), (81.0, 15), (90.0, 3), (100.0, 4)]
    assert [minute.add(count, at) for at, count in counts] == [0, 0, 10, 10, 0, 0, 1]
    assert minute.add(4, 50.0) == 0  # a clock that was set back
    assert minute.add(64, 650.0) == 6  # in ten minutes


def test_a_minute_keeps_few_counts():
    minute = Minute()
    for n in range(10_000):
        minute.add(n, n / 50)
    assert len(minute._kept) < 15
    assert minute.add(10_000, 200.0) == pytest.approx(3000, rel=0.1)


def test_a_queue_from_which_nothing_takes():
    watcher = Watcher(Thresholds(untaken=60, age=None))

    def look(at: float, **values: Any) -> list[str]:
        stats = row(**{"ready": 3, "oldest_ready_age": at + 1000, "take": 7} | values)
        return [alert.state for alert in watcher.look({"q": stats}, [], NONE, at)]

    assert look(0) == look(59) == []
    assert look(60) == ["firing"]
    assert watcher.firing[next(iter(watcher.firing))].text == (
        "queue 'q' has 3 ready tasks, and nothing has taken one for 60 s"
    )
    assert look(70) == []
    assert look(80, take=8) == ["resolved"]
    assert look(139, take=8) == []
    assert look(140, take=8) == ["firing"]
    assert look(150, take=8, ready=0, oldest_ready_age=None) == ["resolved"]
    assert look(160, take=8, oldest_ready_age=1.0) == []  # it has just come


def test_a_taker_that_is_busy_or_a_pause_is_no_lack_of_takers():
    watcher = Watcher(Thresholds(untaken=60, age=None))
    paused = Conditions(paused=frozenset({"paused"}))
    found = {"busy": row(ready=3, taken=1, oldest_ready_age=1e6), "paused": row(ready=3, oldest_ready_age=1e6)}
    assert watcher.look(found, [], paused, 0.0) == watcher.look(found, [], paused, 600.0) == []
    assert [alert.name for alert in watcher.look(found, [], NONE, 700.0)] == ["paused"]


def test_a_late_schedule():
    watcher = Watcher(Thresholds(late_schedule={"bulk": None, None: 60}))

    def look(*late: tuple[str, str, float]) -> list[tuple[str, str, str]]:
        return told(watcher.look({}, [], Conditions(late=late), 0.0))

    assert look(("nightly", "reports", 59.0)) == []
    assert look(("nightly", "reports", 60.0), ("dump", "bulk", 1e6)) == [("firing", "late_schedule", "nightly")]
    assert look(("nightly", "reports", 90.0)) == []
    assert look() == [("resolved", "late_schedule", "nightly")]


def test_a_held_snapshot_is_one_alert_whoever_holds_it():
    watcher = Watcher(Thresholds(snapshot=100))
    held = [("connection psql pid 7", 99.0), ("connection psql pid 7", 100.0), ("connection dump pid 8", 300.0), None]
    alerts = [watcher.look({}, [], Conditions(snapshot=one), 0.0) for one in held]
    assert [[alert.text for alert in found] for found in alerts] == [
        [],
        ["a snapshot is held for 100 s by connection psql pid 7, over 100 s: dead rows stay, and tables grow"],
        [],
        ["resolved: no old snapshot is held"],
    ]


@pytest.mark.parametrize("name", ["length", "age", "failures", "untaken", "late_schedule", "snapshot"])
def test_each_threshold_can_be_off(name: str):
    found = {"q": row(ready=10**6, oldest_ready_age=1e6, bury=10**6)}
    conditions = Conditions(late=[("nightly", "q", 1e6)], snapshot=("a dump", 1e6))

    def kinds(**thresholds: Any) -> set[str]:
        watcher = Watcher(Thresholds(**thresholds))
        first = watcher.look({"q": row()}, [], NONE, 0.0)
        later = watcher.look(found, [], conditions, 10.0) + watcher.look(found, [], conditions, 100.0)
        return {alert.kind for alert in first + later}

    assert kinds() - kinds(**{name: None}) == {name}


def test_a_queue_that_goes_while_an_alert_fires():
    watcher = Watcher(Thresholds(length=10))
    watcher.look({"q": row(ready=10)}, [], NONE, 0.0)
    (alert,) = watcher.look({}, [], NONE, 10.0)
    assert (alert.state, alert.value, alert.text) == ("resolved", 0, "resolved: queue 'q' is gone")
    assert watcher.firing == {}


# --- health


def test_a_check_tells_when_it_turns_bad():
    watcher = Watcher(Thresholds())

    def look(*statuses: Literal["ok", "warn", "bad"]) -> list[Alert]:
        checks = [Check(name, status, 7.5, "%", "full") for name, status in zip("abc", statuses, strict=False)]
        return [alert for alert in watcher.look({}, checks, NONE, 10.0) if alert.state == "firing"]

    assert look("bad", "ok") == [
        Alert(kind="health", name="a", value=7.5, since=10.0, at=10.0, text="the check a is bad: 7.5 %, full")
    ]
    assert [alert.name for alert in look("bad", "bad")] == ["b"]
    assert look("ok", "bad") == look("warn", "bad") == []
    assert [alert.name for alert in look("bad", "bad", "bad")] == ["a", "c"]
    assert [alert.text for alert in watcher.look({}, [], NONE, 20.0)] == [
        f"resolved: the check {name} is not bad any more" for name in "bac"
    ]


def test_a_check_may_have_found_infinity_which_json_has_not():
    (alert,) = Watcher(Thresholds()).look({}, [Check("tick", "bad", math.inf, "s", "")], NONE, 10.0)
    assert (alert.value, alert.text) == (math.inf, "the check tick is bad: inf s")
    assert alert.as_dict()["value"] is None
