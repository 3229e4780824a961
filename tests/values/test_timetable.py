"""The times of schedules, by a set clock: daylight saving, intervals, spans, and expressions that are not valid."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from pgqueue._values.timetable import EPOCH, Cron, Interval, between, read_zone, timetable

pytestmark = pytest.mark.once

DAY = timedelta(days=1)


def local(expression: str, zone: str, first: str, last: str) -> list[str]:
    """The times from the start of a day to the end of another, as the clocks of the zone show them, with the offset."""
    start = datetime.fromisoformat(first).replace(tzinfo=ZoneInfo(zone))
    end = datetime.fromisoformat(last).replace(tzinfo=ZoneInfo(zone)) + DAY
    found = between(
        Cron(expression, zone), start.astimezone(UTC) - timedelta(microseconds=1), end.astimezone(UTC), 1000
    )
    return [f"{at.astimezone(ZoneInfo(zone)):%d %H:%M:%S %z}" for at in found if at < end.astimezone(UTC)]


# --- daylight saving

#: The zone; the day on which an hour is skipped, and the one on which an hour comes twice, each with its hour; and the
#: offsets of winter and summer.
DAYS = [
    ("Europe/Berlin", "2026-03-29", 2, "2026-10-25", 2, "+0100", "+0200"),
    ("America/New_York", "2026-03-08", 2, "2026-11-01", 1, "-0500", "-0400"),
]
zones = pytest.mark.parametrize(("zone", "spring", "gap", "autumn", "twice", "winter", "summer"), DAYS)


@zones
def test_a_time_that_is_skipped_happens_after_the_gap(
    zone: str, spring: str, gap: int, autumn: str, twice: int, winter: str, summer: str
) -> None:
    day = int(spring[-2:])
    before, after = (str(datetime.fromisoformat(spring) + n * DAY)[:10] for n in (-1, 1))
    assert local(f"30 {gap} * * *", zone, before, after) == [
        f"{day - 1:02} {gap:02}:30:00 {winter}",
        f"{day:02} {gap + 1:02}:00:00 {summer}",
        f"{day + 1:02} {gap:02}:30:00 {summer}",
    ]
    assert local(f"30 {gap + 1} * * *", zone, spring, spring) == [f"{day:02} {gap + 1:02}:30:00 {summer}"]


@zones
def test_two_times_in_the_gap_are_one(
    zone: str, spring: str, gap: int, autumn: str, twice: int, winter: str, summer: str
) -> None:
    day = int(spring[-2:])
    assert local(f"15,45 {gap},{gap + 1} * * *", zone, spring, spring) == [
        f"{day:02} {gap + 1:02}:{minute}:00 {summer}" for minute in ("00", "15", "45")
    ]


@zones
def test_a_time_that_comes_twice_happens_once(
    zone: str, spring: str, gap: int, autumn: str, twice: int, winter: str, summer: str
) -> None:
    day = int(autumn[-2:])
    assert local(f"30 {twice} * * *", zone, autumn, autumn) == [f"{day:02} {twice:02}:30:00 {summer}"]
    assert local(f"30 {twice + 1} * * *", zone, autumn, autumn) == [f"{day:02} {twice + 1:02}:30:00 {winter}"]


@zones
def test_with_seconds_a_time_keeps_these_rules(
    zone: str, spring: str, gap: int, autumn: str, twice: int, winter: str, summer: str
) -> None:
    """Of cronsim alone, it would be left out in spring and happen twice in autumn."""
    assert local(f"10 30 {gap} * * *", zone, spring, spring) == [f"{spring[-2:]} {gap + 1:02}:00:00 {summer}"]
    assert local(f"10 30 {twice} * * *", zone, autumn, autumn) == [f"{autumn[-2:]} {twice:02}:30:10 {summer}"]


@zones
def test_a_star_goes_by_time_that_has_passed(
    zone: str, spring: str, gap: int, autumn: str, twice: int, winter: str, summer: str
) -> None:
    assert len(local("*/15 * * * *", zone, spring, spring)) == 23 * 4
    assert len(local("*/15 * * * *", zone, autumn, autumn)) == 25 * 4
    assert len(local("0 * * * *", zone, autumn, autumn)) == 25
    both = [at for at in local("0 * * * *", zone, autumn, autumn) if at[3:5] == f"{twice:02}"]
    assert [at[-5:] for at in both] == [summer, winter]


@zones
def test_no_time_is_lost_or_repeated_wherever_the_search_begins(
    zone: str, spring: str, gap: int, autumn: str, twice: int, winter: str, summer: str
) -> None:
    """From any second of the two days the first time after it is the first one of the whole set after it."""
    for day in (spring, autumn):
        start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
        for expression in (f"30 {gap} * * *", f"*/20 {twice} * * *", "0,30 1-3 * * *", "*/20 * * * *"):
            times = Cron(expression, zone)
            whole = between(times, start, start + 2 * DAY, 1000)
            for minutes in range(2, 6 * 60, 14):
                moment = start + timedelta(minutes=minutes)
                assert times.after(moment) == next(at for at in whole if at > moment), (expression, moment)


@settings(max_examples=60, derandomize=True)
@given(
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    start=st.datetimes(datetime(2024, 1, 1), datetime(2028, 1, 1)),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
)
def test_with_five_fields_it_is_as_cronsim_says(minute: int, hour: int, start: datetime, zone: str) -> None:
    moment = start.replace(microsecond=0, tzinfo=UTC)
    theirs = (at.astimezone(UTC) for at in CronSim(f"{minute} {hour} * * *", moment.astimezone(ZoneInfo(zone))))
    assert Cron(f"{minute} {hour} * * *", zone).after(moment) == next(at for at in theirs if at > moment)


# --- spans and intervals


def test_the_last_ones_of_a_long_span_are_found_at_its_end() -> None:
    times, end = Cron("* * * * * *", "UTC"), datetime(2026, 1, 1, tzinfo=UTC)
    began = time.process_time()
    found = between(times, end - 365 * DAY, end, 100)
    assert time.process_time() - began < 1  # of 31 million seconds it walks over some hundreds: 5 ms
    assert found == [end - timedelta(seconds=n) for n in range(99, -1, -1)]


@pytest.mark.slow
@settings(max_examples=60, derandomize=True)
@given(
    seconds=st.integers(0, 400_000),
    most=st.integers(1, 50),
    expression=st.sampled_from(["*/7 * * * *", "*/13 * * * * *", "0 */5 * * *", "0 0 1 * *", "30 2 * * *"]),
)
def test_between_gives_the_last_of_all(seconds: int, most: int, expression: str) -> None:
    times, end = Cron(expression, "Europe/Berlin"), datetime(2026, 3, 31, 12, tzinfo=UTC)
    start, whole = end - timedelta(seconds=seconds), []
    at = times.after(start)
    while at is not None and at <= end and len(whole) < 40_000:
        whole.append(at)
        at = times.after(at)
    assert between(times, start, end, most) == whole[-most:]


def test_an_interval_has_the_same_times_in_each_process() -> None:
    assert Interval(10).after(EPOCH) == EPOCH + timedelta(seconds=10)
    assert Interval(10).after(EPOCH + timedelta(seconds=9.999)) == EPOCH + timedelta(seconds=10)
    assert Interval(1.5).after(EPOCH + timedelta(seconds=2)) == EPOCH + timedelta(seconds=3)
    assert timetable(None, 1.0, "UTC").after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)) is None


# --- what is not valid

MISTAKES = {
    "": "has 0",
    "* * * *": "has 4",
    "* * * * * * *": "has 7",
    "61 * * * *": "the minute '61'",
    "* 24 * * *": "the hour '24'",
    "0 0 0 * *": "the day-of-month '0'",
    "0 0 1 13 *": "the month '13'",
    "0 0 * * 8": "the day-of-week '8'",
    "60 * * * * *": "the second '60'",
    "*/0 * * * *": r"the minute '\*/0'",
    "5-1 * * * *": "the minute '5-1'",
    "a * * * *": "the minute 'a'",
    "1,,2 * * * *": "the minute '1,,2'",
    "0 0 * * mon#6": "the day-of-week 'mon#6'",
    "٣ * * * *": "the minute '٣'",
    "@reboot": "has 1",
    "0 0 30 2 *": "never occurs",
    "0 0 31 4,6,9,11 *": "never occurs",
    "1" * 256: "at most 255 bytes",
}


@pytest.mark.parametrize("expression", MISTAKES)
def test_an_error_names_the_field(expression: str) -> None:
    with pytest.raises(ValueError, match=MISTAKES[expression]):
        Cron(expression, "UTC")


@settings(max_examples=150, derandomize=True)
@given(st.text(st.sampled_from("0123456789*,-/#LWlw @\0é"), max_size=30))
def test_any_expression_is_read_or_refused(expression: str) -> None:
    try:
        Cron(expression, "UTC")
    except ValueError as error:
        assert "cron expression" in str(error)  # noqa: PT017  # it need not be raised


@pytest.mark.parametrize("zone", ["Europe/Berlinn", "Europe", "../../etc/passwd", "/etc/passwd", "", "\0", "x" * 256])
def test_a_zone_that_does_not_exist_is_named(zone: str) -> None:
    with pytest.raises(ValueError, match="there is no time zone"):
        read_zone(zone)


@pytest.mark.parametrize(("cron", "every"), [(None, None), ("@daily", 5.0), (None, 0.5), (None, float("inf"))])
def test_either_a_cron_expression_or_a_time(cron: str | None, every: float | None) -> None:
    with pytest.raises(ValueError, match="every"):
        timetable(cron, every, "UTC")


@pytest.mark.parametrize("day", ["2026-04-05", "2026-10-04"])
@pytest.mark.parametrize(
    ("expression", "minutes", "hours"),
    [
        ("*/7 2 * * *", range(0, 60, 7), [2]),
        ("45 * * * *", [45], range(24)),
        ("0 */2 * * *", [0], range(0, 24, 2)),
        ("*/10 1,2 * * *", range(0, 60, 10), [1, 2]),
    ],
)
def test_changes_of_half_an_hour_lose_no_time(day: str, expression: str, minutes: list[int], hours: list[int]) -> None:
    """Each minute around the change that the expression matches, from wherever the search begins."""
    zone, times = ZoneInfo("Australia/Lord_Howe"), Cron(expression, "Australia/Lord_Howe")
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - DAY
    every = [start + timedelta(minutes=n) for n in range(2 * 24 * 60)]
    shown = [(at, at.astimezone(zone)) for at in every]
    expected = [at for at, there in shown if there.minute in minutes and there.hour in hours]
    last = times.after(every[-1])
    for moment in every[::17]:
        assert times.after(moment) == next((at for at in expected if at > moment), last)
