"""Schedules on both shells: setting, listing, running, declaring; and a clock that fires them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from eventually import eventually, soon
from statements import column, rows, value
from waiters import hears

import pgqueue
from pgqueue._calls.schedules import CHANNEL
from pgqueue._engine.clock import Clock
from pgqueue.errors import NoSchedule

SECONDS = "SELECT extract(epoch FROM next_at)::bigint FROM pgqueue.schedules"


async def test_a_schedule_is_set_and_read(client: Any) -> None:
    schedules = client.schedules
    assert await schedules.set("s", "0 9 * * mon-fri", "q", {"a": 1}, tz="Europe/Berlin", priority=3) == "created"
    assert await schedules.set("s", "0 9 * * mon-fri", "q", {"a": 1}, tz="Europe/Berlin", priority=3) == "kept"
    assert await schedules.set("t", None, "q", every=timedelta(minutes=1.5), missed="all") == "created"
    s, t = await schedules.list()
    assert (s.name, s.cron, s.every, s.tz, s.queue, s.data) == (
        "s",
        "0 9 * * mon-fri",
        None,
        "Europe/Berlin",
        "q",
        {"a": 1},
    )
    assert (s.missed, s.options, s.paused, s.declared, s.last_task) == ("one", {"priority": 3}, False, None, None)
    assert (t.cron, t.every, t.data, t.missed) == (None, 90.0, None, "all")
    assert await schedules.get("t") == t
    assert t.as_dict()["every"] == 90.0
    await schedules.delete("t")
    with pytest.raises(NoSchedule, match="no schedule"):
        await schedules.get("t")


async def test_the_next_times(client: Any) -> None:
    await client.schedules.set("s", "30 2 * * *", "q", tz="Europe/Berlin")
    times = await client.schedules.next("s", 400)
    assert len(times) == 400
    assert {(at.hour, at.minute) for at in times} == {(2, 30), (3, 0)}  # the day of the gap
    assert times == sorted(times)
    assert times[0] > datetime.now(UTC)


async def test_pause_resume_and_run_now(client: Any, transaction: Any) -> None:
    await client.schedules.set("s", "@yearly", "q", "data")
    assert await client.schedules.pause("s") is True
    assert await client.schedules.pause("s") is False
    id = await client.schedules.run_now("s")
    assert (await client.queue("q").take(0)).id == id
    assert (await client.schedules.get("s")).last_state == "taken"
    assert await client.schedules.resume("s") is True
    await client.schedules.delete("s", conn=transaction)
    await transaction.rollback()
    assert (await client.schedules.get("s")).paused is False
    for call in (client.schedules.pause, client.schedules.resume, client.schedules.run_now, client.schedules.delete):
        with pytest.raises(NoSchedule):
            await call("x")


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (("", "@daily", "q"), {}, "1 to 200 characters"),
        (("s", "61 * * * *", "q"), {}, "schedule 's': the minute '61'"),
        (("s", "@daily", "q"), {"tz": "Europe/Berlinn"}, "schedule 's': there is no time zone 'Europe/Berlinn'"),
        (("s", None, "q"), {}, "cron expression or a time"),
        (("s", "@daily", "q"), {"every": 5}, "cron expression or a time"),
        (("s", None, "q"), {"every": 0.2}, "at least 1 second"),
        (("s", "@daily", ""), {}, "queue's name"),
        (("s", "@daily", "q"), {"missed": "two"}, "missed is one of"),
        (("s", "@daily", "q"), {"ttl": -1}, "ttl must be"),
        (("s", "@daily", "q"), {"run_at": None}, "a schedule has no option 'run_at'"),
        (("s", "@daily", "q", {1, 2}), {}, "set"),
    ],
)
async def test_what_is_not_valid_is_refused(client: Any, given: Any, options: Any, message: str) -> None:
    for make in (client.schedules.set, client.schedules.declare):
        with pytest.raises(ValueError, match=message):
            await (make(*given, **options) or asyncio.sleep(0))
    assert client.schedules.declared == {}


# --- the clock


@pytest.mark.slow
async def test_a_clock_fires_what_is_set_later_and_what_is_resumed(
    client: Any, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue._engine.clock.LOOK", 600.0)  # only a notification tells it
    clock = client.schedules.clock()
    running = asyncio.ensure_future(clock.run())
    await soon(lambda: hears(client, "pgqueue:schedules"))
    await client.schedules.set("s", None, "q", "tick", every=1)
    await soon(lambda: value(db, "SELECT count(*) FROM pgqueue.tasks") >= 2)
    await client.schedules.pause("s")
    await client.schedules.resume("s")
    before = value(db, "SELECT count(*) FROM pgqueue.tasks")
    await soon(lambda: value(db, "SELECT count(*) FROM pgqueue.tasks") > before)
    assert set(column(db, "SELECT data FROM pgqueue.tasks")) == {"tick"}
    clock.stop()
    await asyncio.wait_for(running, 30)


async def test_a_clock_that_was_stopped_before_it_runs_ends_at_once(client: Any) -> None:
    clock = client.schedules.clock()
    clock.stop()
    await asyncio.wait_for(clock.run(), 30)


@pytest.mark.slow
def test_a_schedule_that_cannot_be_read_says_so_and_holds_up_no_other(
    blocking: Callable[..., pgqueue.Client], db: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """SQL checks the characters of a cron expression only."""
    db.execute("SELECT pgqueue.set_schedule('bad', 'q', cron => '99 * * * *')")
    db.execute("SELECT pgqueue.set_schedule('good', 'q', cron => '* * * * * *')")
    with blocking() as client, running(client):
        eventually(lambda: rows(db, "SELECT FROM pgqueue.tasks"))
        error = eventually(lambda: client.schedules.get("bad").error)
    assert error == "the minute '99' of the cron expression '99 * * * *' is not valid"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"schedule 'bad' does not fire: {error}"
    ]


@pytest.mark.slow
def test_a_clock_goes_on_when_its_connections_are_lost(
    blocking: Callable[..., pgqueue.Client], db: psycopg.Connection
) -> None:
    with blocking() as client, running(client):
        client.schedules.set("s", None, "q", every=1)
        eventually(lambda: rows(db, "SELECT FROM pgqueue.tasks"))
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        before = value(db, "SELECT count(*) FROM pgqueue.tasks")
        eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.tasks") > before)


def test_what_is_announced_does_not_shorten_the_pause_of_a_clock(
    blocking: Callable[..., pgqueue.Client], db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each NOTIFY on its channel would be a look that the server refuses."""
    looks: list[float] = []

    def refused(clock: Clock) -> Iterator[Any]:
        looks.append(time.monotonic())
        raise pgqueue.Error("the server refuses it")
        yield

    monkeypatch.setattr(Clock, "look", refused)
    with blocking() as client, running(client):
        eventually(lambda: looks)
        until = looks[0] + 0.45  # less than the first pause
        while time.monotonic() < until:
            db.execute("SELECT pg_notify(%s, '')", [CHANNEL])
        assert [look for look in looks if look < until] == looks[:1]


class running:
    """A worker of another queue, in a thread."""

    def __init__(self, client: pgqueue.Client, **options: Any) -> None:
        self.worker = pgqueue.Worker(client, {"other": print}, **options)

    def __enter__(self) -> pgqueue.Worker:
        self._thread = threading.Thread(target=self.worker.run)
        self._thread.start()
        return self.worker

    def __exit__(self, *exception: object) -> None:
        self.worker.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()


# --- code and table


def test_a_worker_sets_what_the_code_declares_and_reports_what_it_declares_no_more(
    blocking: Callable[..., pgqueue.Client], db: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pgqueue")
    with blocking() as client:
        client.schedules.declare("a", "@yearly", "q", source="shop")
        client.schedules.declare("b", None, "q", every=3600, source="shop")
        with pytest.raises(ValueError, match="schedule 'a' is declared twice: first in shop"):
            client.schedules.declare("a", "@daily", "q", source="other")
        with running(client):
            eventually(lambda: len(client.schedules.list()) == 2)
        db.execute("SELECT pgqueue.set_schedule('a', 'elsewhere', cron => '@daily')")
    with blocking() as client:
        client.schedules.declare("a", "@yearly", "q", source="shop")
        with running(client):
            eventually(lambda: client.schedules.get("b").removed_at is not None)
        assert (client.schedules.get("a").queue, client.schedules.get("a").cron) == ("q", "@yearly")
        assert [s.declared for s in client.schedules.list()] == ["shop", "shop"]
    told = [record.getMessage() for record in caplog.records if "schedule" in record.getMessage()]
    assert told == [
        "schedule 'a' was created",
        "schedule 'b' was created",
        "schedule 'a' was changed",
        "schedule 'b' is not declared any more, and goes on: `pgqueue schedule delete` ends it",
    ]


def test_the_source_of_a_declaration_is_the_callers_program(blocking: Callable[..., pgqueue.Client]) -> None:
    with blocking() as client:
        client.schedules.declare("a", "@yearly", "q")
        assert list(client.schedules.declared) == [__name__.partition(".")[0]]


def test_a_worker_without_schedules_sets_and_fires_none(
    blocking: Callable[..., pgqueue.Client], db: psycopg.Connection
) -> None:
    with blocking() as client:
        client.schedules.declare("a", "@yearly", "q")
        with running(client, schedules=False):
            eventually(lambda: rows(db, "SELECT FROM pgqueue.session"))
    assert rows(db, "SELECT FROM pgqueue.schedule") == []


# --- unique puts


async def test_a_put_is_unique_by_its_data(queue: Any) -> None:
    first = await queue.put({"a": 1, "b": 2}, unique_data=True)
    again = await queue.put({"b": 2, "a": 1}, unique_data=True)
    assert (first.existed, again.existed, again.id) == (False, True, first.id)
    assert await queue.put_unique({"a": 1, "b": 2}) is None
    await (await queue.take(0)).ack()
    assert (await queue.put({"a": 1, "b": 2}, unique_data=True)).existed is False


async def test_a_put_is_unique_for_a_time(queue: Any) -> None:
    first = await queue.put(1, unique_for=timedelta(hours=1))
    await (await queue.take(0)).ack()
    again = await queue.put(1, unique_for=3600)
    assert (again.existed, again.id, again.state) == (True, first.id, "unknown")
    assert await queue.put_unique(1, unique_for=3600) is None
    assert await queue.put_many([1, 2, 2], unique_for=3600) == [first.id, first.id + 1, first.id + 1]
    with pytest.raises(pgqueue.KeyExists, match="within the time of unique_for"):
        await queue.put(1, unique_for=3600, if_exists="error")


async def test_an_ack_hands_on_once(client: Any, queue: Any) -> None:
    for _ in range(2):
        await queue.put(0)
        handed = [pgqueue.Put("r", 1, unique_for=60), pgqueue.Put("r", 2, unique_data=True)]
        await (await queue.take(0)).ack(put=handed)
    assert (await client.queue("r").stats())["total"] == 2


@pytest.mark.parametrize(
    "options",
    [
        {"unique_for": 0},
        {"unique_for": -1},
        {"unique_for": "x"},
        {"unique_for": float("nan")},
        {"unique_data": 1},
        {"unique_data": True, "key": "k"},
        {"unique_for": 60, "key": "k", "if_exists": "replace"},
    ],
)
async def test_unique_options_that_are_not_valid(queue: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="unique"):
        await queue.put(1, **options)
    assert (await queue.stats())["total"] == 0


# --- the decorator


class Job:
    """What the decorator needs of a job."""

    name = "shop.report"

    def prepare(self, **args: Any) -> pgqueue.Put:
        return pgqueue.Put("reports", {"job": self.name, "args": args}, priority=4)

    def __call__(self) -> None: ...


def test_a_job_and_a_handler_are_scheduled(blocking: Callable[..., pgqueue.Client]) -> None:
    with blocking() as client:
        job = Job()
        assert client.cron("@daily", tz="Europe/Berlin", args={"n": 1}, key="k")(job) is job

        @client.cron(every=60, data={"a": 1}, name="again", missed="all")
        @client.cron(every=30)
        @client.handler("q")
        def handle(data: Any) -> None: ...

        client.schedules.sync()
        again, report, plain = sorted(client.schedules.list(), key=lambda one: one.name != "again")
    assert (again.name, again.queue, again.every, again.data, again.missed) == ("again", "q", 60, {"a": 1}, "all")
    assert (plain.name, plain.every, plain.data) == (f"{__name__}.{handle.__qualname__}", 30, None)
    assert (report.name, report.queue, report.tz) == ("shop.report", "reports", "Europe/Berlin")
    assert (report.data, report.options) == ({"job": "shop.report", "args": {"n": 1}}, {"priority": 4, "key": "k"})
    assert {one.declared for one in (again, report, plain)} == {__name__.partition(".")[0]}


def test_what_is_neither_a_job_nor_a_handler_is_refused(blocking: Callable[..., pgqueue.Client]) -> None:
    with blocking() as client:
        with pytest.raises(ValueError, match="is no job and no handler"):
            client.cron("@daily")(print)
        with pytest.raises(ValueError, match="with args, not with data"):
            client.cron("@daily", data=1)(Job())
        client.handler("q")(print)
        with pytest.raises(ValueError, match="with data, not with args"):
            client.cron("@daily", args={})(print)
        assert client.schedules.declared == {}
