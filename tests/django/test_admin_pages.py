"""What the admin shows, to whom, and of which database."""

import re
from types import SimpleNamespace

import psycopg
import pytest
from browsing import Browser
from django.contrib import admin
from django.contrib.admin import AdminSite
from django.db import connections
from django.test import override_settings
from django.urls import path
from roles import made

from pgqueue.contrib.django.admin import register
from pgqueue.contrib.django.models import Queue, Session, Task

other_admin = AdminSite("other-admin")
register(other_admin, using="other")
urlpatterns = [path("admin/", admin.site.urls), path("other/", other_admin.urls)]

pytestmark = pytest.mark.once

STATES = ("ready", "delayed", "taken", "buried", "blocked", "done")


def put(db, queue="mail", data="{}", **options):
    given = "".join(f", {name} => %s" for name in options)
    (id,) = db.execute(f"SELECT id FROM pgqueue.put(%s, %s::jsonb{given})", [queue, data, *options.values()]).fetchone()
    return id


@pytest.fixture
def each(db):
    """A task in each state; their ids."""
    db.execute("SELECT pgqueue.create_queue('mail', keep_done => '1 h')")
    made = SimpleNamespace(done=put(db))
    db.execute("SELECT pgqueue.ack(id) FROM pgqueue.take('mail')")
    made.taken = put(db, lane="one")
    db.execute("SELECT pgqueue.take('mail')")
    made.blocked = put(db, lane="one")
    made.buried = put(db, data='{"to": "<script>alert(1)</script>"}', key="invoice 7")
    db.execute(
        "SELECT pgqueue.bury(%s, error => %s)", [made.buried, "Traceback\nValueError: <script>alert(2)</script>"]
    )
    made.delayed = put(db, delay="1 h")
    made.ready = put(db)
    return made


# --- showing


def test_a_list_shows_the_tasks_of_a_queue_in_a_state_and_how_many_there_are(browser, each):
    for state in STATES:
        assert browser.ids(f"task/?queue=mail&state={state}") == [getattr(each, state)]
        shown = "done, kept" if state == "done" else state
        assert f"{shown} (1)" in browser.page(f"task/?queue=mail&state={state}")
    assert browser.ids("task/?queue=mail") == [each.ready]
    assert browser.ids("task/") == sorted(vars(each).values(), reverse=True)
    assert browser.ids("task/?queue=nowhere") == []


def test_tasks_are_listed_as_they_are_taken(browser, db):
    last, first, delayed = put(db), put(db, priority=-1), [put(db, delay=f"{hours} h") for hours in (2, 1)]
    assert browser.ids("task/?queue=mail") == [first, last]
    assert browser.ids("task/?queue=mail&state=delayed") == delayed[::-1]


def test_a_search_finds_a_task_by_its_id_or_its_key_in_whatever_state(browser, each):
    assert browser.ids(f"task/?q={each.buried}") == [each.buried]
    assert browser.ids(f"task/?queue=mail&state=ready&q={each.done}") == [each.done]
    assert browser.ids("task/?queue=mail&q=invoice+7") == [each.buried]
    assert browser.ids("task/?q=invoice+7") == []  # a key is one of a queue
    assert browser.ids("task/?queue=mail&q=invoice") == []
    assert browser.ids("task/?q=" + "9" * 30) == []


def test_the_page_of_a_task_shows_all_of_it_escaped(browser, each, db):
    db.execute("SELECT pgqueue.take_id(%s)", [each.buried])
    db.execute("SELECT pgqueue.fail(%s, error => 'again <script>')", [each.buried])
    page = browser.page(f"task/{each.buried}/change/")
    assert "<pre>{\n  &quot;to&quot;: &quot;&lt;script&gt;alert(1)&lt;/script&gt;&quot;\n}</pre>" in page
    assert "again &lt;script&gt;" in page
    assert "invoice 7" in page
    for text in (page, browser.page("task/"), browser.page(f"task/?q={each.buried}")):
        assert not re.search(r"<script>a|again <script>", text)
    assert re.search(r"taken \d.* ago", browser.page(f"task/{each.taken}/change/"))
    assert re.search(r"delayed, due in (59 min|1 h)", browser.page(f"task/{each.delayed}/change/"))


def test_the_result_of_a_task_is_shown_when_the_task_is_gone(browser, db):
    task, failed = put(db), put(db)
    db.execute("SELECT pgqueue.finish(id, result => '{\"sent\": \"<b>\"}') FROM pgqueue.take('mail')")
    db.execute("SELECT pgqueue.fail(id, error => 'Traceback\nValueError: <i>no</i>') FROM pgqueue.take('mail')")
    assert browser.http.get(f"/admin/pgqueue/task/{task}/change/").status_code == 302
    assert "{\n  &quot;sent&quot;: &quot;&lt;b&gt;&quot;\n}" in browser.page(f"result/{task}/change/")
    assert "ValueError: &lt;i&gt;no" in browser.page("result/")
    assert "done" not in browser.page(f"result/?q={failed}").partition("<tbody>")[2]


def test_the_page_of_a_task_that_is_done_and_kept_shows_its_result(browser, db):
    db.execute("SELECT pgqueue.create_queue('kept', keep_done => '1 h')")
    task = put(db, "kept")
    db.execute("SELECT pgqueue.finish(id, result => '{\"sent\": 17}') FROM pgqueue.take('kept')")
    assert "<pre>{\n  &quot;sent&quot;: 17\n}</pre>" in browser.page(f"task/{task}/change/")


def test_the_page_of_a_task_shows_where_it_died_before(browser, db):
    db.execute("SELECT pgqueue.create_queue('watched', dead_letter => '', dead_letter_key => 'morgue')")
    task = put(db, "watched")
    db.execute("SELECT pgqueue.bury(%s)", [task])
    assert browser.ids("task/?queue=morgue") == [task]
    assert "&quot;reason&quot;: &quot;rejected&quot;" in browser.page(f"task/{task}/change/")
    assert "morgue" in browser.page("queue/watched/change/")


def test_large_data_is_shown_in_part(browser, db):
    task = put(db, data='"' + "x" * 200_000 + '"')
    page = browser.page(f"task/{task}/change/")
    assert "150,002 characters more" in page
    assert len(page) < 80_000


def test_the_queues_show_their_counts_with_ways_to_the_tasks(browser, each, db):
    db.execute("SELECT pgqueue.pause_queue('mail', '90 s')")
    db.execute("SELECT pgqueue.drain_queue('mail')")
    for page in (browser.page("queue/"), browser.page("queue/mail/change/")):
        for state in STATES:
            assert f'<a href="/admin/pgqueue/task/?queue=mail&amp;state={state}">1</a>' in page
        assert re.search(r"paused for 1 min \d+ s, draining", page)


def test_the_page_of_a_queue_says_which_roles_may_do_what(browser, each, db, dsn):
    with made(dsn, db) as roles:
        one, other, third = roles(), roles("take", pattern="ma*"), roles("put", pattern="other")
        db.execute("SELECT pgqueue.grant('mail', %s, '{put,look}')", [one])
        page = browser.page("queue/mail/change/")
        assert "open<br>" in page
        assert f"<b>{one}</b>: look, put" in page
        assert f"<b>{other}</b>: take (pattern ma*)" in page
        assert third not in page
        db.execute("SELECT pgqueue.restrict_queue('mail')")
        page = browser.page("queue/mail/change/")
        assert "restricted to the roles" in page
        assert one in page
        assert other not in page


def test_the_pages_of_a_task_and_of_a_queue_say_why_they_are_not_done(browser, each, db):
    assert "<b>buried (1)</b>: ValueError: &lt;script&gt;alert(2)" in browser.page(f"task/{each.buried}/change/")
    db.execute("SELECT pgqueue.pause_queue('mail', '1 h')")
    assert "<b>paused (1)</b>: nothing is taken until" in browser.page("queue/mail/change/")


def test_health_shows_what_is_bad_first(browser, each, db):
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '2 h' WHERE id = %s", [each.ready])
    page = browser.page("health/")
    assert page.index("icon-no") < page.index("icon-unknown") < page.index("icon-yes")
    assert re.search(r"oldest_ready.*?icon-no.*?7,20\d s.*?mail", page, re.DOTALL)


def test_takes_and_sessions_show_who_holds_what(browser, each, db):
    (label,) = db.execute("SELECT label FROM pgqueue.sessions").fetchone()
    (session,) = db.execute("SELECT id FROM pgqueue.sessions").fetchone()
    db.execute("SELECT pgqueue.try_lock('nightly')")
    assert browser.ids("take/") == browser.ids(f"take/?session={session}") == browser.ids(f"take/?q={each.taken}")
    assert browser.ids("take/") == [each.taken]
    assert browser.ids("take/?session=1") == browser.ids("take/?q=1") == []
    assert label in browser.page("take/")
    assert label in browser.page("session/")
    page = browser.page(f"session/{session}/change/")
    assert f"/admin/pgqueue/task/{each.taken}/change/" in page
    assert "nightly (exclusive), 0 waiting" in page


# --- to whom


def test_nothing_is_added_edited_or_deleted_as_a_row(browser, each):
    for page in ("task/add/", "queue/add/", f"task/{each.ready}/delete/"):
        browser.page(page, status=403)
    assert browser.http.post(f"/admin/pgqueue/task/{each.ready}/change/", {"priority": 5}).status_code == 403
    assert 'name="_save"' not in browser.page(f"task/{each.ready}/change/")
    for row in (Task.objects.get(pk=each.ready), Queue.objects.get(), Session.objects.get()):
        with pytest.raises(TypeError, match="read-only"):
            row.save()
        with pytest.raises(TypeError, match="read-only"):
            row.delete()


def test_a_permission_is_needed_to_see_each_page(django_db, each):
    clerk = Browser("view_task")
    assert each.ready in clerk.ids("task/")
    for page in ("queue/", "take/", "schedule/", "session/", "result/", "health/"):
        clerk.page(page, status=403)


# --- of which database


@pytest.fixture
def elsewhere(pg_server, django_template, point):
    """A connection to another database, which Django knows as `other`."""
    name = pg_server.create(django_template)
    point("other", pg_server.dsn(name))
    with psycopg.connect(pg_server.dsn(name), autocommit=True) as connection:
        yield connection
    connections["other"].close()
    pg_server.drop(name)


@pytest.mark.slow
@override_settings(ROOT_URLCONF=__name__)
def test_a_site_may_be_of_another_database(browser, each, elsewhere):
    task = put(elsewhere, "theirs")
    there = Browser("delete_task", "change_task", "view_task", "change_queue", root="/other/pgqueue/")
    assert there.ids("task/") == there.ids("task/?queue=theirs") == [task]
    assert "theirs" in there.page("queue/")
    assert "theirs" not in browser.page("queue/")
    assert there.act("task/", "bury", task) == ["Buried: 1 task."]
    assert there.act("queue/", "drain", "theirs") == ["Draining: 1 queue."]
    assert elsewhere.execute("SELECT state FROM pgqueue.tasks").fetchall() == [("buried",)]
    assert elsewhere.execute("SELECT draining FROM pgqueue.queues").fetchall() == [(True,)]


def test_the_routers_choose_the_database_otherwise(browser, each, elsewhere):
    task = put(elsewhere, "theirs")
    with override_settings(DATABASE_ROUTERS=[ToOther()]):
        assert browser.ids("task/") == [task]
        assert browser.act("task/", "bury", task) == ["Buried: 1 task."]
    assert elsewhere.execute("SELECT state FROM pgqueue.tasks").fetchall() == [("buried",)]


class ToOther:
    """A router for pgqueue alone."""

    def db_for_write(self, model, **hints):
        return "other" if model._meta.app_label == "pgqueue" else None
