"""Schedules: their times, their last task, and the buttons for now and for a pause."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..._calls import schedules as calls
from ..._calls.rows import rows
from ..._calls.schedules import ScheduleInfo
from ..._values import data
from ..._values.timetable import read_zone
from .visit import MOST, Page, Visit

BY_NAME = "FROM pgqueue.schedules WHERE name OPERATOR(pg_catalog.=) %s::pg_catalog.text"
TIMES = 5  # next times of a schedule


async def read(visit: Visit) -> dict[str, Any]:
    found = await visit.read(calls.list_schedules())
    return {"schedules": found[:MOST], "more": len(found) > MOST}


async def read_one(visit: Visit) -> dict[str, Any]:
    name = visit.asked.text("name") or ""
    schedule, moment = await visit.read(calls.get_schedule(name))
    times, problem = next_times(schedule, moment)
    result = (await visit.read(rows(("last_result::pg_catalog.text AS text",), BY_NAME, name)))[0]["text"]
    return {
        "title": schedule.name,
        "schedule": schedule,
        "times": times,
        "problem": problem,
        "data": visit.shown(schedule.queue, schedule.data),
        "has_result": result is not None,
        "result": None if result is None else visit.shown(schedule.queue, data.shown(result)),
    }


def next_times(schedule: ScheduleInfo, moment: datetime) -> tuple[list[datetime], str | None]:
    """The next times in the zone of the schedule; or none, and the reason."""
    times: list[datetime] = []
    try:
        timetable, zone = schedule.timetable(), read_zone(schedule.tz)
        while len(times) < TIMES and (at := timetable.after(moment)) is not None:
            times.append(at.astimezone(zone))
            moment = at
    except (ValueError, ImportError) as error:  # set in SQL; or cronsim is not installed here
        return [], str(error)
    return times, None


PAGE = Page("schedules", "Schedules", "schedules.html", read)
ONE = Page("schedule", "Schedule", "schedule.html", read_one)
