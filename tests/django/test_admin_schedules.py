"""Schedules in the admin: what it shows, and its actions."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from browsing import Browser

pytestmark = pytest.mark.once


@pytest.fixture
def daily(db: psycopg.Connection) -> psycopg.Connection:
    db.execute(
        "SELECT pgqueue.set_schedule('daily', 'mail', '{\"to\": \"<b>\"}', cron => '0 9 * * *', tz => 'Europe/Berlin')"
    )
    db.execute("UPDATE pgqueue.schedule SET next_at = now() + interval '90 min 20 s', error = 'no <i>'")
    return db


def test_the_list_and_the_page_show_all_escaped(browser: Any, daily: psycopg.Connection) -> None:
    daily.execute("UPDATE pgqueue.schedule SET declared = 'shop', removed_at = now()")
    listed, page = browser.page("schedule/"), browser.page("schedule/daily/change/")
    for text in ("0 9 * * *", "in 1 h 30 min", "shop (removed)", "no &lt;i&gt;"):
        assert text in listed
    for text in ("Europe/Berlin", "&quot;to&quot;: &quot;&lt;b&gt;&quot;", "no &lt;i&gt;"):
        assert text in page
    assert "<b>" not in page.partition('name="_selected_action"')[0].partition("Each task")[2]


def test_run_pause_resume_and_delete(browser: Any, daily: psycopg.Connection) -> None:
    assert browser.act("schedule/", "run_now", "daily") == ["Put task 1 of daily."]
    assert daily.execute("SELECT queue FROM pgqueue.tasks").fetchall() == [("mail",)]
    assert browser.act("schedule/", "pause", "daily") == ["Paused: 1 schedule."]
    assert "paused" in browser.page("schedule/")
    assert browser.act("schedule/", "resume", "daily") == ["Resumed: 1 schedule."]
    assert "sets it again" in browser.post("schedule/", "delete_chosen", "daily").content.decode()
    assert browser.act("schedule/", "delete_chosen", "daily", confirmed="1") == ["Deleted: 1 schedule."]
    assert daily.execute("SELECT FROM pgqueue.schedule").fetchall() == []


def test_the_page_of_a_schedule_has_the_buttons_that_fit(browser: Any, daily: psycopg.Connection) -> None:
    assert "Pause" in browser.page("schedule/daily/change/")
    daily.execute("SELECT pgqueue.pause_schedule('daily')")
    page = browser.page("schedule/daily/change/")
    assert "Resume" in page
    assert ">Pause<" not in page


def test_a_user_sees_the_actions_of_the_permissions(browser: Any, daily: psycopg.Connection) -> None:
    looking, acting = Browser("view_schedule"), Browser("change_schedule")
    assert "run_now" not in looking.page("schedule/")
    assert "run_now" in acting.page("schedule/")
    assert "delete_chosen" not in acting.page("schedule/")
    assert acting.act("schedule/", "pause", "daily") == ["Paused: 1 schedule."]
