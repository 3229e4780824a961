"""Owners of threads and tasks: what ends before its time is logged, and goes on."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from eventually import eventually, soon

from pgqueue._engine import outages, owners

ENDS = [RuntimeError("boom"), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "FIRST", 0.001)


class Loop:
    """Ends by the errors one after another, and then waits for its end."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.over = threading.Event()
        self.waits = False

    def __call__(self) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.waits = True
        self.over.wait(30)

    async def aio(self) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.waits = True
        while not self.over.is_set():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_a_loop_that_is_ended_by_anything_goes_on_and_is_logged_once(error, caplog):
    loop = Loop(error, error, error)
    thread = owners.Owned("the loop", loop, loop.over.is_set)
    thread.start()
    eventually(lambda: loop.waits)
    assert thread in owners.living()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith(f"the loop was ended by an error, and goes on: {type(error).__name__}")
    assert record.exc_info is not None
    loop.over.set()
    thread.join(30)
    assert not thread.is_alive()


def test_a_loop_whose_time_is_over_does_not_go_on(caplog):
    loop = Loop(RuntimeError("at the end"))
    loop.over.set()
    thread = owners.Owned("the loop", loop, loop.over.is_set)
    thread.start()
    thread.join(30)
    assert not loop.waits
    assert "at the end" in caplog.text


def test_a_loop_that_only_another_can_follow_hands_its_error_on():
    loop, handed = Loop(RuntimeError("boom")), []
    thread = owners.Owned("the loop", loop, loop.over.is_set, handed.append)
    thread.start()
    thread.join(30)
    assert [str(error) for error in handed] == ["boom"]
    assert not loop.waits


async def test_a_task_that_is_ended_by_anything_is_replaced(caplog):
    loop = Loop(RuntimeError("boom"), asyncio.CancelledError(), GeneratorExit())
    task = owners.OwnedTask("the task", loop.aio, loop.over.is_set)
    await soon(lambda: loop.waits)
    task._task.cancel()
    loop.waits = False
    await soon(lambda: loop.waits)
    loop.over.set()
    await task.join()
    assert [record.getMessage() for record in caplog.records] == [
        "the task was ended by an error, and goes on: RuntimeError: boom"
    ]


def test_a_task_does_not_keep_its_event_loop_from_ending(caplog):
    loop = Loop()

    async def main() -> None:
        owners.OwnedTask("the task", loop.aio, loop.over.is_set)
        await soon(lambda: loop.waits)

    asyncio.run(main())
    assert caplog.messages == []


@pytest.mark.parametrize(
    "begin",
    [lambda work: owners.errand("an errand", work).start(), lambda work: owners.later(0.001, "an errand", work)],
    ids=["errand", "later"],
)
def test_an_errand_that_fails_is_logged(begin, caplog):
    def work() -> None:
        raise SystemExit("no")

    begin(work)
    eventually(lambda: caplog.messages == ["an errand has failed: SystemExit: no"])
