"""The account of what the events of browsers may cost the database: live.py."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from pgqueue.dashboard import live

pytestmark = pytest.mark.once


class Reader:
    """A database whose answers cost nothing; its counts change with each look, unless they are `gone`."""

    def __init__(self, gone: bool = False) -> None:
        self.spent = 0.0
        self._versions = itertools.count()
        self._gone = gone
        self.is_lost = False
        self.looks = 0

    async def ask(self, call: Any, within: float) -> dict[str | None, str | None]:
        self.looks += 1
        return {} if self._gone else {None: str(next(self._versions))}


async def event(stream: Any) -> str:
    return str(await asyncio.wait_for(anext(stream), 30))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK", 0.001)
    monkeypatch.setattr(live, "LEAST", 0.002)
    monkeypatch.setattr(live, "SPACING", 1)


async def test_browsers_hear_of_changes_soon_after_a_database_that_hung_for_an_hour() -> None:
    reader = Reader()
    stream = live.Pulse(reader).events(None)  # type: ignore[arg-type]  # of a Reader, all that a Pulse uses
    assert await event(stream) == ": listening\n\n"
    assert await event(stream) == live.READ_AGAIN
    reader.spent += 3600
    assert await event(stream) == live.READ_AGAIN


async def test_what_browsers_read_after_an_outage_delays_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pages are dear, and their debt of BURST would take 1,000 hours to pay."""
    monkeypatch.setattr(live, "SPACING", 1e7)
    reader = Reader()
    stream = live.Pulse(reader).events(None)  # type: ignore[arg-type]  # as above
    assert await event(stream) == ": listening\n\n"
    assert await event(stream) == live.READ_AGAIN
    reader.is_lost = True
    assert await event(stream) == live.READ_AGAIN
    reader.is_lost = False
    reader.spent += 1
    assert await event(stream) == live.READ_AGAIN


async def test_a_queue_that_is_gone_does_not_change_with_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY", 3600)
    monkeypatch.setattr(live, "HEARTBEAT", 0.2)
    reader = Reader(gone=True)
    stream = live.Pulse(reader).events("gone")  # type: ignore[arg-type]  # as above
    assert await event(stream) == ": listening\n\n"
    while reader.looks < 5:
        assert await event(stream) == ": still here\n\n"
