"""The clock steps: dead workers' tasks come back all the same. A server of the test's own, under libfaketime."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from eventually import eventually
from statements import column, state, value
from steady import steady

import pgqueue
from pgqueue import migrate
from pgqueue._engine import clock as clocks
from pgqueue.embedded import EmbeddedServer

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed"),
]


class Clock:
    """The clock of a server: an offset in a file that libfaketime reads at each look."""

    def __init__(self, file: Path, server: EmbeddedServer) -> None:
        self._file = file
        self.server = server

    def at(self, moment: datetime) -> None:
        """Set the clock to a moment, from which it goes on."""
        self.step(f"{(moment - datetime.now(UTC)).total_seconds():+.3f}")

    def step(self, offset: str) -> None:
        """Set the clock to so much from the true time."""
        new = self._file.with_suffix(".new")
        new.write_text(offset)
        new.chmod(0o644)
        new.rename(self._file)


@pytest.fixture
def clock(own_bindir: Path | None) -> Iterator[Clock]:
    root = Path(tempfile.mkdtemp(prefix="pgqueue-clock-"))
    root.chmod(0o755)  # for the account that the server runs as
    environment = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(root / "offset"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    server = EmbeddedServer(root / "server", durable=False, ephemeral=True, bindir=own_bindir, environment=environment)
    clock = Clock(root / "offset", server)
    clock.step("+0")
    server.start()
    try:
        migrate.up(server.dsn())
        yield clock
    finally:
        clock.step("+0")
        server.halt()  # before its folder is removed
        server.stop()
        shutil.rmtree(root, ignore_errors=True)


def offset(conn: psycopg.Connection) -> float:
    """Hours by which the server's clock is ahead."""
    return round((float(value(conn, "SELECT extract(epoch FROM clock_timestamp())")) - time.time()) / 3600, 1)


@pytest.mark.parametrize("clients", [1, 2])  # one is alone with its ticks, two see when the other one ticked
@pytest.mark.parametrize("after", ["the start", "it was found missing"])
def test_a_dead_workers_task_comes_back_though_the_clock_stepped_back(clock: Clock, after: str, clients: int) -> None:
    dsn = clock.server.dsn()
    with (
        psycopg.connect(dsn, autocommit=True) as conn,
        pgqueue.Client(dsn) as client,
        pgqueue.Client(dsn) as bystander,
    ):
        if clients == 2:
            bystander.shell.core.listener()
        id = client.queue("q").put("x").id
        grace = "1 s" if after == "the start" else "3 s"
        with psycopg.connect(dsn, autocommit=True) as worker:
            worker.execute("SELECT pgqueue.open_session(label => 'doomed', grace => %s::interval)", [grace])
            worker.execute("SELECT FROM pgqueue.take('q')")
            client.queue("other").take(0)  # its listener sweeps
            if after == "the start":
                clock.step("-1h")
        missing = "SELECT missing_since IS NOT NULL FROM pgqueue.session WHERE label = 'doomed'"
        if after != "the start":
            eventually(lambda: value(conn, missing))
            clock.step("-1h")
        assert offset(conn) == -1.0
        with steady(dsn) as watch:
            eventually(lambda: state(conn, id) == "ready")
            assert watch() < 8


def test_a_step_forward_takes_nothing_from_the_living(clock: Clock) -> None:
    dsn = clock.server.dsn()
    with psycopg.connect(dsn, autocommit=True) as conn, pgqueue.Client(dsn) as client:
        queue = client.queue("q")
        queue.put("x")
        task = queue.take(0)
        assert task is not None
        clock.step("+1h")
        assert offset(conn) == 1.0
        for _ in range(3):
            assert value(conn, "SELECT freed FROM pgqueue.sweep()") == 0
        assert task.ack().state == "done"


# --- schedules

JOB = '{"job": "night", "args": {}}'
SCHEDULED = (
    "SELECT (data -> 'headers' ->> 'scheduled_at')::timestamptz AT TIME ZONE 'UTC' FROM pgqueue.tasks"
    " WHERE data -> 'headers' ->> 'schedule' = %s ORDER BY 1"
)
STEP = timedelta(minutes=30)

#: Nights in which the clocks change: the zone, a moment before (in UTC), an expression, and when it has to happen.
NIGHTS = [
    ("America/New_York", "2026-03-08T05:45", "30 2 * * *", ["2026-03-08T07:00"]),  # 02:30 is skipped
    ("Europe/Berlin", "2026-03-28T23:45", "30 2 * * *", ["2026-03-29T01:00"]),
    ("Europe/Berlin", "2026-10-24T22:45", "30 2 * * *", ["2026-10-25T00:30"]),  # 02:30 comes twice
    ("America/New_York", "2026-11-01T04:45", "30 1 * * *", ["2026-11-01T05:30"]),
]


@pytest.fixture
def firing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[pgqueue.Client]:
    """A client with a clock of schedules, which looks often: it does not see a step of the server's clock."""
    monkeypatch.setattr(clocks, "LOOK", 0.05)
    with pgqueue.Client(clock.server.dsn()) as client:
        fires = client.schedules.clock()
        thread = threading.Thread(target=fires.run)
        thread.start()
        yield client
        fires.stop()
        thread.join(30)


def idle(db: psycopg.Connection) -> bool:
    """Each schedule has a next time, which lies in the future."""
    return bool(value(db, "SELECT bool_and(coalesce(next_at > clock_timestamp(), false)) FROM pgqueue.schedule"))


def test_schedules_in_the_nights_in_which_the_clocks_change(clock: Clock, firing: pgqueue.Client) -> None:
    with psycopg.connect(clock.server.dsn(), autocommit=True) as db:
        for zone, before, expression, expected in NIGHTS:
            night = datetime.fromisoformat(before).replace(tzinfo=UTC)
            clock.at(night)
            for name, cron in (("once", expression), ("hourly", "0 * * * *")):
                db.execute(
                    "SELECT pgqueue.set_schedule(%s, 'q', %s, cron => %s, tz => %s, missed => 'all')",
                    [name, JOB, cron, zone],
                )
            for hop in range(1, 9):  # four hours: over the change, and over the same time of the second pass
                eventually(lambda: idle(db))
                clock.at(night + hop * STEP)
            eventually(lambda: idle(db))
            assert [at.isoformat("T", "minutes") for at in column(db, SCHEDULED, "once")] == expected
            first = night + timedelta(minutes=15)
            hours = [(first + timedelta(hours=n)).replace(tzinfo=None) for n in range(4)]
            assert column(db, SCHEDULED, "hourly") == hours
            db.execute("SELECT pgqueue.delete_schedule('once'), pgqueue.delete_schedule('hourly')")
            db.execute("SELECT pgqueue.truncate_queue('q')")


def test_a_schedule_after_steps_of_the_clock(clock: Clock, firing: pgqueue.Client) -> None:
    """After a step forward one task stands for what was missed; after a step back nothing is fired twice."""
    with psycopg.connect(clock.server.dsn(), autocommit=True) as db:
        noon = datetime(2026, 6, 1, 12, 0, 30, tzinfo=UTC)
        clock.at(noon)
        db.execute("SELECT pgqueue.set_schedule('s', 'q', %s, cron => '* * * * *')", [JOB])
        eventually(lambda: idle(db))
        clock.at(noon + timedelta(hours=2))
        eventually(lambda: column(db, SCHEDULED, "s"))
        eventually(lambda: idle(db))
        assert column(db, SCHEDULED, "s") == [datetime(2026, 6, 1, 14, 0)]
        clock.at(noon)
        for _ in range(3):  # through times that count as fired
            clock.at(noon + timedelta(minutes=1))
            looked = value(db, "SELECT clock_timestamp() + interval '0.3 s'")
            eventually(lambda looked=looked: value(db, "SELECT clock_timestamp() > %s", looked))
        assert len(column(db, SCHEDULED, "s")) == 1
        firing.schedules.resume("s")
        eventually(lambda: value(db, "SELECT next_at FROM pgqueue.schedules") is not None)
        clock.at(noon + timedelta(minutes=2))
        eventually(lambda: len(column(db, SCHEDULED, "s")) == 2)
        assert column(db, SCHEDULED, "s")[0] == datetime(2026, 6, 1, 12, 2)
