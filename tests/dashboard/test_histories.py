"""The history of queues on their pages: charts with words, and small lines on the overview."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from statements import put, value

from pgqueue.dashboard import drawing
from pgqueue.dashboard.pages.histories import ORIGIN, SPANS, periods

pytestmark = pytest.mark.once

DESCRIBED = re.compile(r'<svg class="chart"[^>]* role="img"><title>([^<]+)</title><desc>([^<]+)</desc>')
SPARK = re.compile(r'<svg class="spark"[^>]* role="img"><title>([^<]+)</title><polyline [^>]*points="([^"]+)"/></svg>')


def remember(db: psycopg.Connection, queue: str, ago: str, puts: int, ready: int, oldest: float = 0) -> None:
    """A row of the history, of a minute so long ago."""
    db.execute(
        "INSERT INTO pgqueue.history SELECT date_trunc('minute', now() - %s::interval), %s, 0, 2, 0, 1, 3, 4, q.id, %s,"
        " %s, 5, 6, 7, 0, %s, 'm' FROM pgqueue.queue q WHERE q.name = %s",
        [ago, puts, ready, ready, oldest, queue],
    )


def described(page: str) -> dict[str, str]:
    return dict(DESCRIBED.findall(page))


def test_a_queue_has_the_charts_of_the_last_hour_in_words_too(visitor, db):
    put(db, "mail")
    for minute, puts in (("50 min", 30), ("40 min", 90), ("2 min", 12)):
        remember(db, "mail", minute, puts, ready=puts // 3, oldest=puts * 2)
    found = described(visitor.page("queue", name="mail"))
    assert set(found) == {"Tasks a minute", "Tasks in the queue", "Longest wait"}
    assert "put: " in found["Tasks a minute"]
    assert ", 90 at most; given back: " in found["Tasks a minute"]
    assert "given back: 5 last" in found["Tasks a minute"] or "given back: 0 last" in found["Tasks a minute"]
    assert ", 30 at most; delayed: " in found["Tasks in the queue"]
    assert "3 min at most" in found["Longest wait"]


def count_runs(db: psycopg.Connection, queue: str, ago: str, period: str, done: int, waited: float, ran: float) -> None:
    """A row of what workers counted, in a period that began so long ago."""
    db.execute(
        "INSERT INTO pgqueue.tally SELECT now() - %s::interval, now(), q.id, %s, 1, 0, 0, 0, %s, %s, %s, 'send',"
        " array_fill(0::bigint, ARRAY [22]), array_fill(0::bigint, ARRAY [22]) FROM pgqueue.queue q WHERE q.name = %s",
        [ago, done, waited, ran, period, queue],
    )


def test_a_queue_shows_how_long_its_jobs_waited_and_ran(visitor, db):
    put(db, "mail")
    put(db, "other")
    remember(db, "mail", "2 min", 12, ready=0)
    count_runs(db, "mail", "20 min", "minute", done=9, waited=600, ran=50)
    assert "Mean wait and run" not in described(visitor.page("queue", name="mail")), "a line needs two times"
    count_runs(db, "mail", "10 min", "minute", done=3, waited=12, ran=8)
    count_runs(db, "mail", "5 h", "hour", done=1, waited=0, ran=7200)
    count_runs(db, "other", "12 min", "minute", done=1, waited=0, ran=86400)
    hour = described(visitor.page("queue", name="mail"))["Mean wait and run"]
    assert hour.endswith("ran: 2.0 s last, 5.0 s at most; waited: 3.0 s last, 1 min at most")
    day = described(visitor.page("queue", name="mail", span="day"))["Mean wait and run"]
    assert ", 1 h at most; waited: " in day


@pytest.mark.parametrize(("span", "ago"), [("day", "20 h"), ("month", "20 d"), ("year", "300 d")])
def test_links_lead_to_longer_times(visitor, db, span, ago):
    put(db, "mail")
    remember(db, "mail", ago, 600, ready=3)
    page = visitor.page("queue", name="mail")
    assert f'href="queue?name=mail&amp;span={span}#history"' in page
    assert "Nothing is recorded" in page
    found = visitor.page("queue", name="mail", span=span)
    assert f'span={span}#history" aria-current="true"' in found
    rate = 600 / (SPANS[span][1] / timedelta(minutes=1))
    assert f"{drawing.number(rate)} at most" in described(found)["Tasks a minute"]


def test_a_queue_without_history_says_so(visitor, db):
    db.execute("SELECT pgqueue.create_queue('new')")
    assert "Nothing is recorded of this time." in visitor.page("queue", name="new")


def test_the_overview_has_a_line_for_each_queue(visitor, db):
    for name in ("mail", "bills"):
        put(db, name)
    remember(db, "mail", "30 min", 9, ready=40)
    found = SPARK.findall(visitor.page())
    assert sorted(title for title, _ in found) == [
        "ready in the last hour: 0 last, 0 at most",
        "ready in the last hour: 0 last, 40 at most",
    ]
    assert all(len(points.split()) in (29, 30, 31) for _, points in found)


def test_a_drawing_has_no_style_of_its_own(visitor, db):
    put(db, "mail")
    remember(db, "mail", "30 min", 9, ready=40)
    for page in (visitor.page(), visitor.page("queue", name="mail")):
        assert not re.search(r"<svg[^>]*style=|<(polyline|line|text)[^>]*style=", page)


def test_a_role_that_may_only_monitor_sees_the_history(open_dashboard, db, watcher_dsn):
    put(db, "mail")
    remember(db, "mail", "30 min", 9, ready=40)
    assert "Tasks a minute" in described(open_dashboard(watcher_dsn).page("queue", name="mail"))


@pytest.mark.parametrize("span", SPANS)
def test_periods_begin_where_the_server_begins_them(db, span):
    since, every = SPANS[span]
    now = datetime.now(UTC)
    at = periods([], since, every, now)
    binned = "SELECT date_bin(%s, %s::timestamptz - %s, '2001-01-01 00:00+00')"
    assert at[0] == value(db, binned, every, now, since)
    assert {later - one for one, later in itertools.pairwise(at)} == {every}
    assert (at[0] - ORIGIN) % every == timedelta(0)
    assert now - 2 * every - timedelta(seconds=10) < at[-1] <= now - every - timedelta(seconds=10)
