"""The clock of schedules without a database: its looks are driven by hand, with a time of the test's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgqueue._calls.schedules import Due, Fired
from pgqueue._engine.clock import LOOK, MOST, Clock

pytestmark = pytest.mark.once

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
TEN = timedelta(seconds=10)


class World:
    """A clock, its own time, and the look that is under way."""

    def __init__(self, poll: float | None = None) -> None:
        self.now = 100.0
        self.clock = Clock(poll, lambda: self.now)
        self.flow: Any = None
        self.step: Any = None
        self.seconds: float | None = None

    def look(self) -> list[str]:
        """Begin a look. Returns the schedules that it leaves out."""
        self.flow = self.clock.look()
        return self._asked(lambda: next(self.flow))

    def answer(self, value: Any) -> Any:
        """Answer the step under way. Returns the arguments of the next one; None: the look is over."""
        return self._asked(lambda: self.flow.send(value))

    def _asked(self, resume: Any) -> Any:
        try:
            self.step = resume()
        except StopIteration as done:
            self.step, self.seconds = None, done.value
            return None
        call = self.step.call
        return call.args[0] if call.function == "due_schedules" else call.args


def due(name: str = "s", *, seconds: float = 0.0, next_at: datetime | None = NOON, **others: Any) -> Due:
    given: dict[str, Any] = {"cron": None, "every": 10.0, "tz": "UTC", "counts_from": NOON - 5 * TEN, "moment": NOON}
    return Due(name, 7, next_at=next_at, seconds=seconds, **given | others)


def test_without_a_schedule_it_sleeps_until_it_is_called() -> None:
    for poll, expected in ((None, float("inf")), (30.0, 30.0)):
        world = World(poll)
        assert world.look() == []
        assert world.answer([]) is None
        assert world.seconds == expected


@pytest.mark.parametrize(("seconds", "expected"), [(0.25, 0.25), (86400.0, LOOK)])
def test_it_sleeps_until_the_next_one_and_not_longer_than_it_trusts_the_clock(seconds: float, expected: float) -> None:
    world = World()
    world.look()
    assert world.answer([due(seconds=seconds)]) is None
    assert world.seconds == expected


def test_it_fires_what_has_come_and_looks_again() -> None:
    world = World()
    world.look()
    fired = world.answer([due(moment=NOON + 2.5 * TEN), due("t", seconds=3.0)])
    assert fired == ("s", 7, NOON, [NOON, NOON + TEN, NOON + 2 * TEN], NOON + 3 * TEN, None)
    assert world.answer(Fired("fired", [1], None)) == []
    assert world.answer([due("t", seconds=3.0)]) is None
    assert world.seconds == 3.0


def test_one_that_was_never_planned_counts_from_when_it_was_set() -> None:
    world = World()
    world.look()
    occurrences = world.answer([due(next_at=None, counts_from=NOON - 2 * TEN)])[3]
    assert occurrences == [NOON - TEN, NOON]


def test_of_many_that_were_missed_the_last_are_fired() -> None:
    world = World()
    world.look()
    occurrences = world.answer([due(moment=NOON + timedelta(days=30))])[3]
    assert len(occurrences) == MOST
    assert occurrences[-1] == NOON + timedelta(days=30)


def test_a_lost_race_is_followed_by_a_look() -> None:
    world = World()
    world.look()
    world.answer([due()])
    assert world.answer(Fired("lost", [], None)) == []
    assert world.answer([]) is None


def test_one_that_is_refused_is_left_out_for_a_while() -> None:
    world = World()
    world.look()
    world.answer([due(), due("t")])
    world.answer(Fired("refused", [], "the queue is full"))
    assert world.answer(Fired("fired", [1], None)) == ["s"]
    assert world.answer([]) is None
    assert world.seconds == 10.0
    world.now += 10.1
    assert world.look() == []


def test_one_that_is_busy_for_long_is_asked_for_less_and_less() -> None:
    world, pauses = World(), list[float]()
    for _ in range(9):
        world.look()
        world.answer([due()])
        assert world.answer(Fired("busy", [], None)) == ["s"]
        assert world.answer([]) is None
        assert world.seconds is not None
        pauses.append(round(world.seconds, 2))
        world.now += world.seconds + 0.01
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_one_that_cannot_be_read_is_refused_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    for _ in range(2):
        world.look()
        assert "the hour '25'" in world.answer([due(cron="0 25 * * *", every=None)])[5]
        world.answer(Fired("refused", [], "the hour"))
        world.answer([])
        world.now += 11
    assert len(caplog.records) == 1
