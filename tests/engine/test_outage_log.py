"""What a client logs of an outage."""

from __future__ import annotations

import logging

import pytest

from pgqueue._engine import outages
from pgqueue._engine.outages import SAME, TELL, Outage
from pgqueue.errors import ConnectionLost

LOST = ConnectionLost("gone")


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Clock:
    caplog.set_level(logging.INFO, logger="pgqueue")
    clock = Clock()
    monkeypatch.setattr(outages, "time", clock)
    return clock


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.levelname for record in caplog.records]
    caplog.clear()
    return found


def test_an_outage_is_told_at_once_and_every_interval_and_its_end_once(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage("me")
    outage.over()
    for _ in range(100):
        outage.met(LOST)
    assert levels(caplog) == ["WARNING"]
    clock.now += TELL
    outage.met(LOST)
    outage.met(LOST)
    assert levels(caplog) == ["WARNING"]
    outage.over()
    outage.over()
    assert "after 30.0 s" in caplog.text
    assert levels(caplog) == ["INFO"]
    clock.now += SAME
    outage.met(LOST)
    assert levels(caplog) == ["WARNING"]


def test_a_part_that_is_served_does_not_make_each_refusal_of_another_an_outage(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage("me")
    for _ in range(100):
        outage.met(LOST)
        outage.over()
        clock.now += SAME / 2
    assert levels(caplog) == ["WARNING", "INFO"] * 2  # in 50 seconds
