"""How long browsers share an answer: reading.py."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pgqueue._calls.call import Call
from pgqueue.dashboard import reading

pytestmark = pytest.mark.once

LOOK: Call[Any] = Call("SELECT 1", (), list)


class Shell:
    """A database that counts its statements, each of which takes `seconds` by the clock of the test."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.seconds = 0.0
        self.asked = 0

    async def run(self, call: Any, within: float) -> int:
        self.asked += 1
        await asyncio.sleep(0)
        self.clock.now += self.seconds
        return self.asked


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Client:
    def __init__(self, shell: Shell) -> None:
        self.shell = shell


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reading, "time", clock)
    monkeypatch.setattr(reading.Reader, "shared", 1.0)
    return clock


@pytest.fixture
def shell(clock: Clock) -> Shell:
    return Shell(clock)


@pytest.fixture
def read(shell: Shell) -> reading.Reader:
    return reading.Reader(Client(shell))  # type: ignore[arg-type]  # of a client, all that a Reader uses


async def after(clock: Clock, seconds: float, read: reading.Reader, times: float) -> Any:
    clock.now += seconds
    return await read(LOOK, times)


async def test_viewers_at_the_same_time_share_one_statement(read, shell):
    assert await asyncio.gather(*(read(LOOK) for _ in range(20))) == [1] * 20
    assert shell.asked == 1


async def test_an_answer_is_shared_for_its_time_and_forgotten_after_an_action(read, shell, clock):
    assert await read(LOOK) == 1
    assert await after(clock, 0.9, read, 1) == 1
    assert await after(clock, 0.9, read, 4) == 1
    assert await after(clock, 0, read, 1) == 2
    read.forget()
    assert await read(LOOK) == 3


async def test_a_dear_answer_that_may_be_older_is_shared_for_longer(read, shell, clock):
    shell.seconds = 0.03  # times DEAR: 6 s
    assert await read(LOOK, 4) == 1
    assert await after(clock, 5.5, read, 4) == 1
    assert await after(clock, 0.6, read, 4) == 2
    assert await after(clock, 1.1, read, 1) == 3  # this viewer wants to know it now


async def test_no_answer_is_shared_for_longer_than_a_bound(read, shell, clock):
    shell.seconds = 1.0
    assert await read(LOOK, 4) == 1
    assert await after(clock, reading.KEPT - 1.1, read, 4) == 1
    assert await after(clock, 0.2, read, 4) == 2


async def test_waits_do_not_count_as_the_cost_of_a_statement(read, shell):
    shell.seconds = 0.01
    await read.ask(LOOK)
    shell.seconds = 2.0  # the machine is busy
    for _ in range(reading.TIMES - 1):
        await read.ask(LOOK)
    assert read.spent == pytest.approx(0.01 * reading.TIMES)
    await read.ask(LOOK)  # it is always as long: the statement has become dearer
    assert read.spent == pytest.approx(0.01 * reading.TIMES + 2.0)
